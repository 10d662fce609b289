"""Imports go one way: solvers ← stepsize_opt ← validation; only the command line may look at validation."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "solvers": {"solvers"},
    "stepsize_opt": {"solvers", "stepsize_opt"},
    "validation": {"solvers", "stepsize_opt", "validation"},
}
PACKAGES = set(ALLOWED)


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the layer"
            names.add((node.module or "").split(".")[0])
    return names & PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_go_one_way(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        allowed = PACKAGES if path.name.startswith("cli") else ALLOWED[package]
        assert _imports(path) <= allowed, f"{path.relative_to(ROOT)} imports {_imports(path) - allowed}"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_type_information_ships(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_importing_the_library_loads_nothing_heavy() -> None:
    heavy = ("cvxpy", "matplotlib", "sklearn", "pandas", "joblib", "validation", "rich")
    code = f"import sys, stepsize_opt; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
