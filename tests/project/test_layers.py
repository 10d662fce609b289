"""Two rules about imports that the contracts of import-linter in pyproject.toml cannot express."""

from __future__ import annotations

import subprocess
import sys

import grimp

# Several subpackages use each of these modules, so each counts as a subpackage.
SHARED_MODULES = {
    "stepsize_opt.certificates",
    "stepsize_opt.goals",
    "stepsize_opt.plots",
    "stepsize_opt.records",
    "stepsize_opt.results",
    "stepsize_opt.tables",
    "stepsize_opt.verify",
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
