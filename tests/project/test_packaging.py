"""The wheel works outside the checkout and holds what it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("stepsize_opt", "stepsize_solvers", "stepsize_validation")
SMOKE = """
import json, numpy as np, stepsize_opt
from stepsize_opt import RandK, optimal_stepsize
result = optimal_stepsize(np.diag([1.0, 4.0]) + 0.5, RandK(2, 1))
print(json.dumps([stepsize_opt.__file__, result.status, result.gap]))
"""


def test_every_requirement_names_a_minimum() -> None:
    """``make test-minimum`` pins what has this form; of anything else it would install the newest release."""
    project = PYPROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in (one for group in groups for one in group if not one.startswith("stepsize-opt[")):
        assert re.fullmatch(r"[a-z0-9-]+>=[0-9.]+(,<[0-9.]+)?", requirement), requirement


def test_the_oldest_python_is_the_same_everywhere() -> None:
    project, prefix = PYPROJECT["project"], "Programming Language :: Python :: "
    oldest = project["requires-python"].removeprefix(">=")
    named = [one.removeprefix(prefix) for one in project["classifiers"] if one.startswith(prefix)]
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert named[0] == PYPROJECT["tool"]["basedpyright"]["pythonVersion"] == oldest
    assert f"python: {json.dumps(named)}" in workflow
    assert f'python-version: "{oldest}"' in workflow
    for page, words in (("README.md", "Python ≥ "), ("Makefile", "Python ≥ "), ("docs/install.md", "Python ")):
        found = re.findall(rf"{words}(\d\.\d+)", (ROOT / page).read_text(encoding="utf-8"))
        assert found == [oldest], page


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built without isolation: the build requirements are part of the development environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source")
    names = ["pyproject.toml", "README.md", "LICENSE", "solvers", "stepsize_opt", "validation"]
    subprocess.run(["cp", "-r", *[str(ROOT / name) for name in names], str(source)], check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_content(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    assert "stepsize_solvers/single/__init__.py" in names
    assert "stepsize_validation/data/breast_cancer.csv.gz" in names


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory) -> Path:
    """A folder with the wheel installed in it."""
    target = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return target


def python(site: Path, folder: Path, *arguments: str) -> str:
    """What Python prints when it is started in a folder with the installed wheel on its path."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_smoke(site: Path, tmp_path: Path) -> None:
    where, status, gap = json.loads(python(site, tmp_path, "-c", SMOKE))
    assert Path(where).is_relative_to(site)
    assert status == "optimal"
    assert gap <= 1e-6
    version = python(site, tmp_path, "-m", "stepsize_opt", "--version")
    assert version.strip() == f"stepsize-opt {metadata.version('stepsize-opt')}"


def test_run_time_dependencies_are_imported_by_the_library() -> None:
    """Nothing is pulled in that no module of the packages imports."""
    modules = {"scikit-learn": "sklearn"}
    required = [re.split(r"[<>=\s;\[]", r)[0] for r in metadata.requires("stepsize-opt") or [] if "extra" not in r]
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for package in ("solvers", "stepsize_opt", "validation")
        for path in (ROOT / package).rglob("*.py")
    )
    # scs and clarabel are reached through cvxpy by name.
    for name in required:
        module = modules.get(name, name)
        assert re.search(rf"^\s*(import|from) {module}\b", text, re.M) or f'"{module}"' in text, name
