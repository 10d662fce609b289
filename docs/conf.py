"""Settings of Sphinx, which builds the site from the Markdown pages and the docstrings (``make docs``)."""

import importlib
import re
import textwrap
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.domains.python import PyObject

project = "stepsize-opt"
release = version = installed_version("stepsize-opt")
copyright = "The stepsize-opt developers, MIT licence"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # the tests execute the notebook and compare its outputs
exclude_patterns = ["paper"]
default_role = "code"

# Pages: Markdown with $…$ and $$…$$ for formulas.
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3

# Docstrings: numpy style; types and defaults come from the signatures.
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_mock_imports = ["torch", "flwr"]  # extras that the environment of the site does not have
autodoc_inherit_docstrings = False  # what a class inherits stands at its base
autodoc_typehints = "description"
autodoc_typehints_format = "short"
autodoc_type_aliases = dict.fromkeys(("Matrix", "Vector", "Stack", "Array", "Indices"), "numpy.ndarray")
autodoc_typehints_description_target = "documented_params"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_attr_annotations = True

# Nothing from other hosts: the pages read the same without a network.  MathJax is one file, its fonts inside.
_mathjax = find_spec("sphinx-mathjax-offline")
assert _mathjax is not None and _mathjax.origin is not None
html_static_path = [str(Path(_mathjax.origin).parent / "static" / "mathjax" / "tex-svg.js"), "site.css"]
html_css_files = ["site.css"]
mathjax_path = "tex-svg.js"
mathjax3_config = {"options": {"enableMenu": False}}

html_theme = "furo"
html_favicon = "favicon.svg"
html_title = f"stepsize-opt {release}"
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def _offered(door: ModuleType) -> list[str]:
    """Return ``__all__``, or all names of a package that are not modules."""
    names = [name for name, value in vars(door).items() if name[0] != "_" and not isinstance(value, ModuleType)]
    return getattr(door, "__all__", names)


_DOORS = ("stepsize_opt", "stepsize_opt.problems", "stepsize_validation", "stepsize_validation.data")
_doors = [importlib.import_module(name) for name in _DOORS]
_public = {name: f"{door.__name__}.{name}" for door in _doors for name in _offered(door)}


_COLON = "\ue000"
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᴷᵏʲ", "₀₁₂₃₄₅₆₇₈₉ᵢⱼ"
_PLAIN = str.maketrans(_RAISED + _LOWERED, "0123456789+-⊤Kkj0123456789ij")
_TEX = {
    r"min\{([^{}]*)\}": r"min\\{\1\\}",
    r"λ(max|min)": r"\\lambda_{\\\1}",
    r"\b(log|det|exp|max|min)(?=[^}a-z])": r"\\\1 ",
    r"\b(tr|diag|Diag)(?=[( ])": r"\\operatorname{\1}",
    r"(maximise the rate of|maximise|subject to)": r"\\text{\1 }",
    r"\^½": "^{1/2}",
    r"−½}": "-1/2}",
    r"½": r"\\tfrac12 ",
    r"\^inf": r"^{\\inf}",
    f"[{_RAISED}]+": lambda found: f"^{{{found[0].translate(_PLAIN)}}}",
    f"[{_LOWERED}]+": lambda found: f"_{{{found[0].translate(_PLAIN)}}}",
    r"\(1/(\w+)\)": r"\\frac1{\1}",
    r"Σ": r"\\sum ",
    r"   +|(?<=,)  +": r"\\quad ",
}


def _typeset(lines: list[str]) -> list[str]:
    """Formulas before the first section, on indented lines of their own, in Unicode for the terminal: LaTeX of them."""
    end = next((i - 1 for i, line in enumerate(lines) if re.fullmatch("---+", line)), len(lines))
    text = "\n".join(lines[:end])

    def display(found: re.Match[str]) -> str:
        formula = textwrap.dedent(found[1]).rstrip()
        for pattern, tex in _TEX.items():
            formula = re.sub(pattern, tex, formula)
        rows = formula.replace(" = ", " &= ").splitlines() if "\n" in formula else [formula]
        body = r" \\ ".join(rows)
        return "\n\n.. math:: " + (rf"\begin{{aligned}} {body} \end{{aligned}}" if len(rows) > 1 else body) + "\n\n"

    return [*re.sub(r"\n\n((?:    .+(?:\n|$))+)\n?", display, text).split("\n"), *lines[end:]]


def _before_napoleon(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Link public names that a docstring mentions; hide a colon that napoleon would take for the end of a type."""

    def link(found: re.Match[str]) -> str:
        target = _public.get(found[1])
        return found[0] if target in (None, name) else f":py:obj:`{found[1]} <{target}>`"

    if what in ("property", "attribute") and lines:
        lines[0] = lines[0].replace(":", _COLON)
    lines[:] = _typeset(lines)
    lines[:] = [re.sub(r"``(?:stepsize_opt\.)?(\w+)``", link, line) for line in lines]
    lines[:] = [re.sub(r"docs/(\w+)\.md", r":doc:`/\1`", line) for line in lines]


def _after_napoleon(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Bring the colon back; name the types of attributes without their modules."""
    lines[:] = [_without_modules(line) if line.startswith(":vartype ") else line.replace(_COLON, ":") for line in lines]


def _without_modules(line: str) -> str:
    """Sphinx leaves the module out of a link with a tilde; a type with a Literal in it gets no links."""
    if "Literal[" in line:
        return re.sub(r"\bstepsize_\w+(?:\.\w+)*\.(\w+)", r"\1", line)
    return re.sub(r"\b(?=stepsize_\w+\.\w)", "~", line)


def _keep_punctuation_with_formulas(app: Any, page: nodes.document, name: str) -> None:
    """Browsers break lines between a formula and the full stop after it, or the bracket before it: one box for both."""
    for formula in list(page.findall(nodes.math)):
        parent, place = formula.parent, formula.parent.index(formula)
        before, after = (parent[i] if 0 <= i < len(parent) else None for i in (place - 1, place + 1))
        opening = re.search(r"[(\[“]*$", before)[0] if isinstance(before, nodes.Text) else ""
        closing = re.match(r"[^\s\w]*", after)[0] if isinstance(after, nodes.Text) else ""
        if opening:
            parent[place - 1] = nodes.Text(before.removesuffix(opening))
        if closing:
            parent[place + 1] = nodes.Text(after.removeprefix(closing))
        if opening or closing:
            formula.replace_self(box := nodes.inline(classes=["unbroken"]))
            box += [nodes.Text(opening), formula, nodes.Text(closing)]


def _leave_sizes_without_links(app: Any, page: nodes.document) -> None:
    """Sizes in a type, as in shape (d, d), are names of attributes, too."""
    for link in list(page.findall(pending_xref)):
        if link["reftype"] == "class" and len(link["reftarget"]) == 1:
            link.replace_self(link.children)


def _link_figures(app: Any, page: nodes.document) -> None:
    """Fit figures to the page; Sphinx links a figure of given width to its file, where it can be magnified."""
    for picture in page.findall(nodes.image):
        if "jupyter_execute" not in picture["uri"]:
            picture["width"] = "100%"


_SITE = "https://stepsize-opt.readthedocs.io/en/latest/"
_FILES = "https://raw.githubusercontent.com/stepsize-opt/stepsize-opt/main/"


def _link_within(app: Any, path: Path, page: str, content: list[str]) -> None:
    """Link the README to the pages and files beside it: on GitHub and PyPI its links name the site."""

    def source(link: re.Match[str]) -> str:
        notebook = Path(app.srcdir) / f"{link[1]}.ipynb"
        return f"docs/{link[1]}.ipynb" if notebook.exists() else f"docs/{link[1]}.md"

    content[0] = re.sub(rf"{re.escape(_SITE)}([\w/]+)\.html", source, content[0]).replace(_FILES, "")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("include-read", _link_within)
    app.connect("doctree-read", _leave_sizes_without_links)
    app.connect("doctree-read", _link_figures)
    app.connect("doctree-resolved", _keep_punctuation_with_formulas)
    app.connect("autodoc-process-docstring", _before_napoleon, priority=100)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=900)
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
