"""Imports go one way: between packages and between folders, and into another folder through its ``__init__`` only."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Lowest first: a package may import itself and those before it.
PACKAGES = ("stepsize_solvers", "stepsize_opt", "stepsize_validation")
FOLDERS = (ROOT / "solvers", ROOT, ROOT / "validation")
MODULES = {
    ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): path
    for package, folder in zip(PACKAGES, FOLDERS, strict=True)
    for path in (folder / package).rglob("*.py")
}


def folder_of(module: str) -> str:
    """The folder of a module; modules of ``stepsize_validation`` that its folders share are folders of their own."""
    folder = module.rpartition(".")[0]
    own = MODULES[module].name == "__init__.py" or folder == "stepsize_validation"
    return module if own else folder


def imports(module: str) -> set[str]:
    """The project's modules that a module names in its imports, wherever in the file they stand."""
    names = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            names |= {f"{source}.{a.name}" if f"{source}.{a.name}" in MODULES else source for a in node.names}
    return {name for name in names if name.startswith(PACKAGES)}


IMPORTS = {module: imports(module) for module in sorted(MODULES)}


def test_a_package_imports_itself_and_those_below() -> None:
    order = {package: rank for rank, package in enumerate(PACKAGES)}
    rank = {module: order[module.split(".")[0]] for module in MODULES}
    assert [(m, name) for m, names in IMPORTS.items() for name in names if rank[name] > rank[m]] == []


def test_another_folder_is_imported_through_its_init() -> None:
    pairs = [(module, name) for module, names in IMPORTS.items() for name in names]
    assert len(pairs) > 200
    assert [(m, name) for m, name in pairs if folder_of(name) not in (folder_of(m), name)] == []


def test_folders_have_no_cycle() -> None:
    """TopologicalSorter raises CycleError, which names the folders of the cycle."""
    graph: dict[str, set[str]] = {}
    for module, names in IMPORTS.items():
        graph.setdefault(folder_of(module), set()).update(map(folder_of, names))
    order = list(TopologicalSorter({folder: below - {folder} for folder, below in graph.items()}).static_order())
    assert len(order) >= 10


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = ("cvxpy", "matplotlib", "sklearn", "pandas", "joblib", "stepsize_validation", "rich", "torch", "flwr")
    code = f"import sys, stepsize_opt; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
