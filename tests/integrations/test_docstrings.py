"""The examples in the docstrings of the rooms for the extras run and print what is shown."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "stepsize_opt" / room for room in ("torch", "flower")]
FILES = [path for room in ROOMS for path in sorted(room.glob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_docstring_examples(path: Path) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"stepsize_opt.{path.parent.name}.{path.stem}"))
    assert tried and not failed
