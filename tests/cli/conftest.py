"""A matrix file for the commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.reference_problems import random_smoothness


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    """Return the name of a file with a random L of size 4."""
    path = tmp_path / "L.npy"
    np.save(path, random_smoothness(4, 20.0, 0))
    return str(path)
