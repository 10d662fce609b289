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

import grimp
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


@pytest.mark.slow
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


# ----------------------------------------------------------------
# two rules about imports that the contracts of import-linter in pyproject.toml cannot express


# Several subpackages use each of these modules, so each counts as a subpackage.
SHARED_MODULES = {
    "stepsize_opt.certificates",
    "stepsize_opt.goals",
    "stepsize_opt.plots",
    "stepsize_opt.records",
    "stepsize_opt.results",
    "stepsize_opt.saving",
    "stepsize_opt.tables",
    "stepsize_opt.verify",
    "stepsize_solvers.closed_forms",
    "stepsize_solvers.process",
    "stepsize_validation.figures",
    "stepsize_validation.origin",
    "stepsize_validation.table1",
}

# It needs Hypothesis, so that the __init__ of its folder does not import it.
BESIDE_THE_INIT = ("stepsize_validation.cli.studies", "stepsize_validation.properties.checks")


def test_subpackages_are_imported_through_their_init() -> None:
    """No module reaches into another subpackage, and none imports a package that contains its own subpackage."""
    graph = grimp.build_graph("stepsize_solvers", "stepsize_opt", "stepsize_validation", cache_dir=None)
    packages = {module for module in graph.modules if graph.find_children(module)} | SHARED_MODULES

    def folder(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    between_folders = [
        (importer, imported)
        for importer in graph.modules
        for imported in graph.find_modules_directly_imported_by(importer)
        if folder(importer) != folder(imported)
    ]
    assert len(between_folders) > 200
    # A package whose __init__ imports nothing has no other door than its modules.
    packages |= {
        module
        for package in packages - SHARED_MODULES
        if not graph.find_modules_directly_imported_by(package)
        for module in graph.find_children(package)
    }
    wrong = [pair for pair in between_folders if pair[1] not in packages or pair[0].startswith(f"{pair[1]}.")]
    assert wrong == [BESIDE_THE_INIT]


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = ("cvxpy", "matplotlib", "sklearn", "pandas", "joblib", "stepsize_validation", "rich", "torch", "flwr")
    code = f"import sys, stepsize_opt; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
