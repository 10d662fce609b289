"""Environments in which a solver is installed and has no licence."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest


def without_mosek_licence(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Let MOSEK count as installed, whether or not it is, and let it have no licence."""
    find = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name == "mosek" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    monkeypatch.delenv("MOSEKLM_LICENSE_FILE", raising=False)
    monkeypatch.setenv("HOME", str(home))
