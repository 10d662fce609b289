"""Reading matrices from files: .npy, .npz (dense or scipy sparse), .csv and Matrix Market .mtx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy import io, sparse

SUFFIXES = (".npy", ".npz", ".csv", ".mtx")


def load_matrix(path: str | Path, key: str = "L") -> Any:
    """The matrix in a file; an .npz file must hold one array, an array named ``key``, or a scipy sparse matrix.

    Raises FileNotFoundError when there is no such file and ValueError when it cannot be read as a matrix.
    """
    file = Path(path)
    if not file.is_file():
        msg = f"no file {file}"
        raise FileNotFoundError(msg)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        msg = f"{file} has suffix {suffix!r}; expected one of {', '.join(SUFFIXES)}"
        raise ValueError(msg)
    try:
        if suffix == ".npy":
            return np.load(file, allow_pickle=False)
        if suffix == ".csv":
            return np.loadtxt(file, delimiter=",", ndmin=2)
        if suffix == ".mtx":
            return io.mmread(file)
        return _load_npz(file, key)
    except (ValueError, OSError, EOFError) as error:
        msg = f"{file} cannot be read as a matrix: {error}"
        raise ValueError(msg) from error


def _load_npz(file: Path, key: str) -> Any:
    with np.load(file, allow_pickle=False) as data:
        names = list(data.keys())
        if {"format", "shape", "data"} <= set(names):
            return sparse.load_npz(file)
        if key in names:
            return data[key]
        if len(names) == 1:
            return data[names[0]]
    msg = f"it holds the arrays {', '.join(names)}; expected one array or one named {key!r}"
    raise ValueError(msg)
