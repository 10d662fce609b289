"""Every Python block of the README and the docs runs and prints what is shown; the site is complete."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

from shared.pages import alike, blocks, examples

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


WITH_PYTHON = [path for path in DOCUMENTS if blocks(path, "python")]


def test_documents_hold_python() -> None:
    """Every block that a document says is Python is among those that are run."""
    assert ROOT / "README.md" in WITH_PYTHON and len(WITH_PYTHON) > 1
    fences = sum(len(re.findall(r"^\s*```\s*python\b", path.read_text("utf-8"), re.M)) for path in DOCUMENTS)
    assert fences == sum(len(blocks(path, "python")) for path in WITH_PYTHON)


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: path.name)
def test_python_blocks_run_and_print_what_is_shown(path: Path, tmp_path, monkeypatch) -> None:
    """The blocks of one document share their names, as a reader would type them one after the other."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "document"}
    for code, shown in examples(path):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(path), "exec"), names)
        assert not shown or alike(out.getvalue(), shown), f"{path.name} shows\n{shown}\nbut prints\n{out.getvalue()}"


def test_readme_shows_exactly_what_is_printed() -> None:
    (code,), (shown,) = (blocks(ROOT / "README.md", language) for language in ("python", "text"))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    assert out.getvalue() == shown


DOORS = (
    "stepsize_opt",
    "stepsize_opt.problems",
    "stepsize_opt.smoothness",
    "stepsize_validation",
    "stepsize_validation.data",
)
EXTRAS = ("torch", "flower")  # the packages that they need are not installed here: their text is read


def _docstrings() -> dict[str, str]:
    """Of every public class and function."""
    found = {}
    for door in DOORS:
        module = importlib.import_module(door)
        values = {name: getattr(module, name) for name in _offered(Path(module.__file__ or ""))}
        found |= {name: inspect.getdoc(value) or "" for name, value in values.items() if callable(value)}
    for room in EXTRAS:
        folder = ROOT / "stepsize_opt" / room
        for path in folder.glob("*.py"):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in _extra(room):
                    found[node.name] = ast.get_docstring(node) or ""
    return found


def _offered(path: Path) -> set[str]:
    """Return the names in ``__all__`` of an ``__init__.py``, or those that it imports as themselves."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.name == alias.asname}
    return names


def _extra(room: str) -> set[str]:
    return _offered(ROOT / "stepsize_opt" / room / "__init__.py")


def test_every_public_name_has_an_example() -> None:
    """One of its own, or a line that names another public name that has one."""
    examples_of = {name: text.partition("Examples\n--------\n")[2] for name, text in _docstrings().items()}
    assert set().union(*map(_extra, EXTRAS)) < set(examples_of) and len(examples_of) > 90
    for name, text in examples_of.items():
        other = re.fullmatch(r"See ``(\w+)``\.", text)
        assert ">>> " in (examples_of[other[1]] if other else text), name


def _modules_with_examples() -> list[str]:
    found = []
    for folder in (ROOT, ROOT / "solvers", ROOT / "validation"):
        for path in folder.glob("stepsize_*/**/*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            if ">>> " in path.read_text(encoding="utf-8") and parts[1] not in EXTRAS:
                found.append(".".join(parts).removesuffix(".__init__"))
    return sorted(found)


@pytest.mark.parametrize("module", _modules_with_examples())
def test_docstring_examples(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried and not failed


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "docs" / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, tmp_path) -> None:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert alike(done.stdout, script.with_suffix(".txt").read_text(encoding="utf-8")), done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site; broken links, pages outside the navigation and unreadable docstrings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
        str(ROOT / "docs"),
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_the_api_reference_shows_what_a_door_offers(door: str, site: Path) -> None:
    """Every name that it offers has a place of its own on the rendered pages, and no other name of it has."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    shown = set(re.findall(rf'<dt [^>]*id="{re.escape(door)}\.(\w+)"', pages))
    assert shown == _offered(Path(importlib.import_module(door).__file__ or ""))


@pytest.mark.parametrize("room", EXTRAS)
def test_the_api_reference_shows_what_the_extras_offer(room: str, site: Path) -> None:
    page = (site / "api" / "training.html").read_text(encoding="utf-8")
    assert set(re.findall(rf'<dt [^>]*id="stepsize_opt\.{room}\.(\w+)"', page)) == _extra(room)


def test_the_site_needs_no_network(site: Path) -> None:
    """No page loads a script, style, font or picture from another host; MathJax comes with the site."""
    for page in site.rglob("*.html"):
        assert not re.search(r'(src|<link[^>]* href)="(https?:)?//', page.read_text(encoding="utf-8")), page
    assert (site / "_static" / "tex-svg.js").stat().st_size > 1_000_000
