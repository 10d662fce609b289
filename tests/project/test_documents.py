"""Every Python block of the README and the docs runs, and the README shows what the code prints."""

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def _blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.S | re.M)


WITH_PYTHON = [path for path in DOCUMENTS if _blocks(path, "python")]


def test_documents_hold_python() -> None:
    """Every block that a document says is Python is among those that are run."""
    assert ROOT / "README.md" in WITH_PYTHON and len(WITH_PYTHON) > 1
    fences = sum(len(re.findall(r"^\s*```\s*python\b", path.read_text("utf-8"), re.M)) for path in DOCUMENTS)
    assert fences == sum(len(_blocks(path, "python")) for path in WITH_PYTHON)


@pytest.mark.parametrize("path", WITH_PYTHON, ids=lambda path: path.name)
def test_python_blocks_run(path: Path, tmp_path, monkeypatch) -> None:
    """The blocks of one document share their names, as a reader would type them one after the other."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "document"}
    for block in _blocks(path, "python"):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(block, str(path), "exec"), names)


def test_readme_shows_what_is_printed() -> None:
    """Apart from times and digits that depend on the machine."""
    code, shown = _blocks(ROOT / "README.md", "python")[0], _blocks(ROOT / "README.md", "text")[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})

    def stable(text: str) -> list[str]:
        lines = [line for line in text.strip().splitlines() if not re.search("gap|feasible|solver", line)]
        return [re.sub(r"(\d\.\d{5})\d+", r"\1", line) for line in lines]

    assert stable(out.getvalue()) == stable(shown)


def test_readme_opens_with_the_two_commands() -> None:
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:28]
    text = "\n".join(first_screen)
    assert "make demo" in text
    assert "make test" in text


def test_example_is_short() -> None:
    assert len(_blocks(ROOT / "README.md", "python")[0].strip().splitlines()) <= 10


@pytest.mark.parametrize(
    "module",
    [
        "stepsize_opt",
        "stepsize_opt.node.api",
        "stepsize_opt.node.conic_form",
        "stepsize_opt.clients.api",
        "stepsize_opt.methods.base",
        "stepsize_opt.methods.compressed",
    ],
)
def test_docstring_examples(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module))
    assert tried
    assert not failed


@pytest.mark.parametrize("script", sorted((ROOT / "docs" / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_examples_run(script: Path, tmp_path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


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


@pytest.mark.parametrize("door", ["stepsize_opt", "stepsize_opt.problems", "stepsize_validation"])
def test_the_api_reference_shows_what_a_door_offers(door: str, site: Path) -> None:
    """Every name in ``__all__`` has a place of its own on the rendered pages, and no other name of the door has."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (site / "api").glob("*.html"))
    shown = set(re.findall(rf'<dt [^>]*id="{re.escape(door)}\.(\w+)"', pages))
    assert shown == set(importlib.import_module(door).__all__)


@pytest.mark.parametrize("room", ["torch", "flower"])
def test_the_api_reference_shows_what_the_extras_offer(room: str, site: Path) -> None:
    """Read from the door's text: the packages that the extras need are not installed here."""
    door = (ROOT / "stepsize_opt" / room / "__init__.py").read_text(encoding="utf-8")
    offered = set(ast.literal_eval(door.partition("__all__ = ")[2]))
    page = (site / "api" / "training.html").read_text(encoding="utf-8")
    assert set(re.findall(rf'<dt [^>]*id="stepsize_opt\.{room}\.(\w+)"', page)) == offered


def test_the_site_needs_no_network(site: Path) -> None:
    """No page loads a script, style, font or picture from another host; MathJax comes with the site."""
    for page in site.rglob("*.html"):
        assert not re.search(r'(src|<link[^>]* href)="(https?:)?//', page.read_text(encoding="utf-8")), page
    assert (site / "_static" / "tex-svg.js").stat().st_size > 1_000_000


def test_the_benchmark_table_of_the_readme_is_the_stored_one() -> None:
    """Every row of the README's table stands in the page that the stored run wrote."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    stored = (ROOT / "docs" / "benchmark" / "benchmark.md").read_text(encoding="utf-8")
    section = readme.split("## Benchmark")[1].split("##")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    assert len(rows) >= 5
    for row in rows:
        assert row in stored
