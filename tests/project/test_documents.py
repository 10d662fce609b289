"""Every Python block of the README and the docs runs and prints what is shown; the site is complete."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

import stepsize_opt
from shared.pages import alike, blocks, cells, examples
from stepsize_validation.cli import main
from stepsize_validation.cli.root import parser

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("**/*.md"))]
WITH_PYTHON = [path for path in DOCUMENTS if blocks(path, "python")]
PACKAGES = {
    "stepsize_opt": ROOT / "stepsize_opt",
    "stepsize_solvers": ROOT / "solvers" / "stepsize_solvers",
    "stepsize_validation": ROOT / "validation" / "stepsize_validation",
}
EXTRAS = ("torch", "flower")  # the packages that these two need are not installed here


def test_no_python_block_is_left_out() -> None:
    assert README in WITH_PYTHON and len(WITH_PYTHON) > 1
    fences = sum(len(re.findall(r"^\s*```\s*python\b", path.read_text("utf-8"), re.M)) for path in DOCUMENTS)
    assert fences == sum(len(blocks(path, "python")) for path in WITH_PYTHON)


def printed(code: Any, names: dict[str, object]) -> str:
    """Run code and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, names)
    return out.getvalue()


def assert_alike(page: Path, code: str, found: str, shown: str) -> None:
    assert alike(found, shown), f"{page.name} shows\n{shown}\nbut\n{code}\nprints\n{found}"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[] if path == README else pytest.mark.slow, id=path.name) for path in WITH_PYTHON],
)
def test_python_blocks_run_and_print_what_is_shown(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one document share their names, as a reader would type them one after the other."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "document"}
    for code, shown in examples(path):
        found = printed(compile(code, str(path), "exec"), names)
        assert_alike(path, code, found if shown else "", shown)


def test_files_that_a_page_names_exist() -> None:
    """Pages point to the heads of code files for proofs."""
    folders = [ROOT / name for name in ("docs", "examples", "solvers", "stepsize_opt", "tests", "validation")]
    files = [path.as_posix() for folder in folders for path in folder.rglob("*.py")]
    for page in DOCUMENTS:
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text("utf-8")):
            assert any(path.endswith(f"/{name}") for path in files), f"{page.name} names {name}"


def _tests_of(path: Path) -> set[str]:
    """Return the names of the tests in a file, those of a class as ``Class::test``."""
    names = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        names |= {prefix + one.name for one in inner if isinstance(one, ast.FunctionDef)}
    return names


def test_claims_of_the_paper_name_tests_and_commands_that_exist() -> None:
    rows = [line for line in (ROOT / "docs" / "claims.md").read_text("utf-8").splitlines() if "`tests/" in line]
    assert len(rows) > 10
    for row in rows:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", row):
            assert name in _tests_of(ROOT / path), f"{path} has no {name}"
        for command in re.findall(r"`stepsize-opt ([^`]+)`", row):
            assert callable(parser().parse_args(shlex.split(command)).run)
        for script in re.findall(r"`python ([^`]+)`", row):
            assert (ROOT / script).is_file(), script


def test_numbers_are_those_of_the_stored_results() -> None:
    """Every table and number between ``<!-- numbers: … -->`` and ``<!-- end -->``."""
    command = [sys.executable, "-W", "error", str(ROOT / "docs" / "fill.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


EVIDENCE = sorted(
    [*(ROOT / "docs").glob("*/*.csv"), *(ROOT / "docs").glob("*/*.jsonl"), *(ROOT / "docs" / "results").glob("*.txt")]
)
STAMP = re.compile(r"# .+; version (\S+), commit [0-9a-f]{7,}, \w+ \w+, \d+ cores, .+, \d{4}-\d\d-\d\d(; torch \S+)?")


@pytest.mark.parametrize("path", EVIDENCE, ids=lambda path: path.name)
def test_stored_results_have_a_stamp_of_this_version(path: Path) -> None:
    """Command, version, commit without changes, machine and date; ``stepsize_validation.origin`` writes it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    stamps = [json.loads(lines[0])["origin"]] if path.suffix == ".jsonl" else [x for x in lines if x.startswith("# ")]
    found = [STAMP.fullmatch(stamp) for stamp in stamps]
    assert found and all(found), stamps
    assert {match[1] for match in found if match} == {stepsize_opt.__version__}, f"measure {path} again"


def test_a_changed_number_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    filled = importlib.import_module("fill").filled
    page = tmp_path / "page.md"
    page.write_text("<!-- numbers: a1a-guarantee -->30<!-- end -->", encoding="utf-8")
    assert filled(page) == "<!-- numbers: a1a-guarantee -->29.5<!-- end -->"


WITH_COMMANDS = [path for path in DOCUMENTS if blocks(path, "console")]


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_COMMANDS, ids=lambda path: path.name)
def test_commands_print_what_is_shown(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(path, "console"):
        command, _, shown = block.partition("\n")
        command, _, word = command.removeprefix("$ ").partition(" | grep ")
        program, *arguments = shlex.split(command)
        assert program == "stepsize-opt"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert main(arguments) == 0
        found = "\n".join(line for line in out.getvalue().splitlines() if word in line)
        assert_alike(path, command, found, shown)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.ipynb")), ids=lambda path: path.name)
def test_cells_of_a_notebook_print_what_is_shown(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "notebook"}
    for code, shown in cells(path):
        *body, last = ast.parse(code).body
        if isinstance(last, ast.Expr):  # a notebook shows its value
            hidden = "" if code.endswith(";") else "print(repr(_) if _ is not None else '')"
            last, body = ast.parse(hidden).body, [*body, *ast.parse(f"_ = {ast.unparse(last)}").body]
        else:
            last = [last]
        found = printed(compile(ast.Module([*body, *last], []), path.name, "exec"), names)
        assert_alike(path, code, found, shown)
    matplotlib.pyplot.close("all")


def _modules_with_examples() -> list[str]:
    found = []
    for package, folder in PACKAGES.items():
        for path in folder.rglob("*.py"):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            if ">>> " in path.read_text(encoding="utf-8") and parts[1] not in EXTRAS:
                found.append(".".join(parts).removesuffix(".__init__"))
    return sorted(found)


@pytest.mark.parametrize("module", _modules_with_examples())
def test_docstring_examples(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried and not failed


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "docs" / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert alike(done.stdout, script.with_suffix(".txt").read_text(encoding="utf-8")), done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; broken links, pages outside the navigation and unreadable docstrings are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", str(ROOT / "docs")]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def _public_names(package: str) -> set[str]:
    """Read ``__all__``, or the names imported as themselves, from the text: the extras are not installed here."""
    top, _, rest = package.partition(".")
    module = PACKAGES[top] / f"{rest}.py"
    text = (module if module.is_file() else PACKAGES[top] / rest / "__init__.py").read_text(encoding="utf-8")
    listed = re.search(r"^__all__ = (\[.*?\])", text, re.M | re.S)
    return set(ast.literal_eval(listed[1]) if listed else re.findall(r"\b(\w+) as \1\b", text))


API = """stepsize_opt stepsize_opt.results stepsize_opt.problems stepsize_opt.smoothness stepsize_opt.torch
stepsize_opt.flower stepsize_validation stepsize_validation.data"""


@pytest.mark.slow
@pytest.mark.parametrize("package", API.split())
def test_the_api_reference_lists_exactly_the_public_names(package: str, site: Path) -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    assert set(re.findall(rf'<dt [^>]*id="{re.escape(package)}\.(\w+)"', pages)) == _public_names(package)


@pytest.mark.slow
def test_the_site_needs_no_network(site: Path) -> None:
    """No page loads a script, style, font or picture from another host; MathJax comes with the site."""
    for page in site.rglob("*.html"):
        assert not re.search(r'(src|<link[^>]* href)="(https?:)?//', page.read_text(encoding="utf-8")), page
    assert (site / "_static" / "tex-svg.js").stat().st_size > 1_000_000
