"""Imports go one way: between packages, between rooms, and into a room through its door only."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Each package with its folder, lowest first: a package may import itself and those before it.
PACKAGES = {
    "stepsize_solvers": ROOT / "solvers" / "stepsize_solvers",
    "stepsize_opt": ROOT / "stepsize_opt",
    "stepsize_validation": ROOT / "validation" / "stepsize_validation",
}


def _modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name; a folder's door has the name of the folder."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts]).removesuffix(".__init__")] = path
    return found


MODULES = _modules()


def _room(module: str) -> str:
    """The folder of a module."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def _imports(module: str) -> set[str]:
    """The project's modules that a module names in its imports, wherever in the file they stand."""
    names = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative imports hide the room"
            source = node.module or ""
            names |= {f"{source}.{a.name}" if f"{source}.{a.name}" in MODULES else source for a in node.names}
    return {name for name in names if name.split(".")[0] in PACKAGES}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_package_imports_itself_and_those_below(module: str) -> None:
    order = list(PACKAGES)
    allowed = order[: order.index(module.split(".")[0]) + 1]
    assert {name.split(".")[0] for name in _imports(module)} <= set(allowed)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_another_room_is_entered_through_its_door(module: str) -> None:
    here = _room(module)
    for name in _imports(module):
        assert name in MODULES, f"{module} imports {name}, which does not exist"
        assert _room(name) == here or name == _room(name), f"{module} imports {name} past the door of {_room(name)}"


def test_rooms_have_no_cycle() -> None:
    """TopologicalSorter raises CycleError, which names the rooms of the cycle."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        graph.setdefault(_room(module), set()).update(_room(name) for name in _imports(module))
    order = list(TopologicalSorter({room: below - {room} for room, below in graph.items()}).static_order())
    assert len(order) >= 10


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_room_is_described(package: str) -> None:
    text = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")
    rooms = [door.parent.relative_to(PACKAGES[package]) for door in PACKAGES[package].rglob("*/__init__.py")]
    assert rooms and all(f"| `{room.as_posix()}/` | " in text for room in rooms)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_type_information_ships(package: str) -> None:
    assert (PACKAGES[package] / "py.typed").is_file()


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = ("cvxpy", "matplotlib", "sklearn", "pandas", "joblib", "stepsize_validation", "rich", "torch", "flwr")
    code = f"import sys, stepsize_opt; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
