"""Matrices and results in the files that the command line is given."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.io import mmread

from stepsize_opt.saving import broken_is_value_error, read_arrays

SUFFIXES = (".npy", ".npz", ".csv", ".mtx")


def is_result(path: Path) -> bool:
    """Return whether a file is one that ``save_result`` wrote, of whatever kind; raises ValueError for a broken one."""
    if path.suffix.lower() != ".npz":
        return False
    with broken_is_value_error(path, "a matrix"):
        return "meta" in read_arrays(path)


def load_matrix(path: str | Path, key: str = "L") -> Any:
    """Return the matrix in a file; an .npz file holds one array, an array named ``key``, or a scipy sparse matrix.

    Raises FileNotFoundError when there is no such file and ValueError when it cannot be read as a matrix of real
    numbers.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    with broken_is_value_error(file, "a matrix"):
        if suffix not in SUFFIXES:
            msg = f"its name ends in {suffix!r}; expected one of {', '.join(SUFFIXES)}"
            raise ValueError(msg)
        if suffix == ".npz":
            matrix = _load_npz(file, key)
        else:
            matrix = {".npy": read_arrays, ".csv": _load_csv, ".mtx": _load_mtx}[suffix](file)
        if matrix.dtype.kind not in "fiub":
            msg = f"it holds entries of type {matrix.dtype}, not real numbers"
            raise ValueError(msg)
        return matrix


def _load_csv(file: Path) -> Any:
    text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a mark before the first number
    lines = [line for line in text.splitlines() if line.partition("#")[0].strip()]
    if lines and lines[0].startswith(","):
        msg = "its first column has no name, as the index that pandas writes: use to_csv(index=False)"
        raise ValueError(msg)
    lines = lines[_is_header(lines) :]
    if not lines:
        msg = "it holds no numbers"
        raise ValueError(msg)
    try:
        matrix = np.loadtxt(lines, delimiter=",", ndmin=2)
    except ValueError:  # which quotes the text of a file that may have been named by mistake
        msg = "it must hold numbers with commas between them, as many in every line, below at most one line of names"
        raise ValueError(msg) from None
    rows, columns = matrix.shape
    numbered = rows == columns + 1 and np.array_equal(matrix[0], np.arange(columns))
    return matrix[1:] if numbered else matrix  # pandas numbers columns without names from 0


def _is_header(lines: list[str]) -> bool:
    """Return whether the first line holds only words that are no numbers: the names of the columns."""
    words = lines[0].partition("#")[0].split(",") if lines else []
    return bool(words) and not any(map(_is_number, words))


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _load_mtx(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    words = [word for line in text.splitlines() if not line.startswith("%") for word in line.split()]
    try:
        np.array(words, dtype=float)
    except ValueError:  # at such a word scipy 1.17 ends the process
        msg = "it must hold numbers with blanks between them below its first line"
        raise ValueError(msg) from None
    return mmread(io.StringIO(text + "\n"))


def _load_npz(file: Path, key: str) -> Any:
    arrays = read_arrays(file)
    if {"format", "shape", "data"} <= set(arrays):
        with file.open("rb") as opened:
            matrix = sparse.load_npz(opened)
        if matrix.format in ("csr", "csc", "bsr"):
            matrix.check_format(full_check=True)  # an index out of range would be read outside the arrays
        return matrix
    if key in arrays:
        return arrays[key]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    msg = f"it holds the arrays {', '.join(arrays)}; expected one array or one named {key!r}"
    raise ValueError(msg)
