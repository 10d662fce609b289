"""Reading real Matrix Market files.  (scipy's reader takes the process down when a file ends within a number.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_solvers.programs import Matrix

# How many sizes a layout declares, and the fields that are real numbers.
_SIZES = {"array": 2, "coordinate": 3}
_FIELDS = ("real", "double", "integer", "pattern")


def read_matrix_market(text: str) -> Any:
    """The matrix of a file: an array for the layout ``array``, a coo_array for ``coordinate``.

    Raises ValueError unless it is a general or symmetric matrix of real numbers with as many entries as it declares.
    """
    head, *following = text.splitlines() or [""]
    words = head.lower().split()
    if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
        msg = "its first line must read %%MatrixMarket matrix LAYOUT FIELD SYMMETRY"
        raise ValueError(msg)
    layout, field, symmetry = words[2:]
    if layout not in _SIZES or field not in _FIELDS or symmetry not in ("general", "symmetric"):
        msg = f"{layout} {field} {symmetry} is not supported; general and symmetric real matrices are"
        raise ValueError(msg)
    lines = [(n, line) for n, line in enumerate(following, 2) if line.strip() and not line.startswith("%")]
    number, declared = lines[0] if lines else (2, "")
    if not all(word.isdecimal() for word in declared.split()):
        msg = f"line {number} does not hold the sizes, {_SIZES[layout]} whole numbers"
        raise ValueError(msg)
    sizes = [int(word) for word in declared.split()]
    symmetric = symmetry == "symmetric"
    if len(sizes) != _SIZES[layout] or min(sizes) < 1 or (symmetric and sizes[0] != sizes[1]):
        msg = f"its sizes {sizes} do not fit a {symmetry} matrix by {layout}"
        raise ValueError(msg)
    rows, columns = sizes[:2]
    stored = rows * (rows + 1) // 2 if symmetric else rows * columns
    count = sizes[2] if layout == "coordinate" else stored
    if count != len(lines) - 1:
        msg = f"its header declares {count} entries, but {len(lines) - 1} follow"
        raise ValueError(msg)
    try:
        table = np.loadtxt([line for _, line in lines[1:]], comments=None, ndmin=2)
    except ValueError:
        msg = broken_row([(n, line.split()) for n, line in lines[1:]], "numbers with blanks between them")
        raise ValueError(msg) from None
    width = 1 if layout == "array" else 2 if field == "pattern" else 3
    if table.shape[1] != width:
        msg = f"its entries have {table.shape[1]} numbers instead of {width}"
        raise ValueError(msg)
    if layout == "coordinate":
        return _coordinates(table, rows, columns, symmetric)
    if not symmetric:
        return table.reshape((rows, columns), order="F")
    M = np.zeros((rows, rows))
    upper = np.triu_indices(rows)
    M[upper] = M.T[upper] = table[:, 0]  # the lower triangle by columns is the upper one by rows
    return M


def _coordinates(table: Matrix, rows: int, columns: int, symmetric: bool) -> Any:
    places, data = table[:, :2], table[:, 2] if table.shape[1] == 3 else np.ones(len(table))
    if not np.all((places % 1 == 0) & (places >= 1) & (places <= [rows, columns])):
        msg = f"an entry is not at a whole row and column of the {rows}×{columns} matrix"
        raise ValueError(msg)
    i, j = places.T.astype(np.int64) - 1
    if symmetric:
        beside = i != j
        i, j = np.concatenate([i, j[beside]]), np.concatenate([j, i[beside]])
        data = np.concatenate([data, data[beside]])
    return sparse.coo_array((data, (i, j)), shape=(rows, columns))


def broken_row(rows: Sequence[tuple[int, Sequence[str]]], expected: str) -> str:
    """What is wrong with rows of words, each with the number of its line, that are no table of numbers.

    The words themselves stay out of it: a file that was named by mistake may hold anything.
    """
    first = len(rows[0][1])
    for line, words in rows:
        if not all(map(_is_number, words)):
            return f"line {line} does not hold {expected}"
        if len(words) != first:
            return f"line {line} holds {len(words)} instead of {first} numbers"
    return f"it does not hold {expected}"


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
