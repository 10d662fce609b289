"""The wheel contains the three packages and works outside the checkout."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import stepsize_opt

ROOT = Path(__file__).parents[2]
SOURCES = {"stepsize_opt": ROOT, "stepsize_solvers": ROOT / "solvers", "stepsize_validation": ROOT / "validation"}
SMOKE = """
import json, numpy as np, stepsize_opt
from stepsize_opt import RandK, optimal_stepsize
result = optimal_stepsize(np.diag([1.0, 4.0]) + 0.5, RandK(2, 1))
print(json.dumps([stepsize_opt.__file__, result.status, result.gap]))
"""


def test_every_requirement_names_a_minimum() -> None:
    """``make test-minimum`` pins requirements of this form and would install the newest release of any other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    groups = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *settings["dependency-groups"].values(),
    ]
    named = [one for group in groups for one in group if isinstance(one, str)]
    for requirement in (one for one in named if not one.startswith("stepsize-opt[")):
        assert re.fullmatch(r"[a-z0-9-]+>=[0-9.]+(,<[0-9.]+)?", requirement), requirement


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == stepsize_opt.__version__


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the content of the wheel, built without isolation from a copy of the sources."""
    source, built, installed = (tmp_path_factory.mktemp(name) for name in ("source", "built", "installed"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("solvers", "stepsize_opt", "validation"):
        shutil.copytree(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(built)]
    subprocess.run([*command, str(source)], check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(installed)
    return installed


def files(package: Path) -> set[Path]:
    found = (path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(package) for path in found}


def test_the_wheel_contains_the_files_of_three_packages(installed: Path) -> None:
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == set(SOURCES)
    for package, folder in SOURCES.items():
        assert files(installed / package) == files(folder / package)
        assert (installed / package / "py.typed").is_file()


@pytest.mark.slow
def test_the_installed_wheel_solves_and_has_its_command(installed: Path, tmp_path: Path) -> None:
    def python(*arguments: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed)}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where, status, gap = json.loads(python("-c", SMOKE))
    assert Path(where).is_relative_to(installed)
    assert status == "optimal" and gap <= 1e-6
    version = python("-m", "stepsize_opt", "--version")
    assert version.strip() == f"stepsize-opt {metadata.version('stepsize-opt')}"
