"""Data for the objectives: svmlight files from a folder, or the sets that scikit-learn ships.

Files are looked up in the folder that the environment variable ``STEPSIZE_OPT_DATA`` names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from solvers.maps import Vector

DATA_VARIABLE = "STEPSIZE_OPT_DATA"
EMBEDDED = ("breast_cancer", "digits")
# Widths that the files themselves do not show, because their last features never occur.
_FEATURES = {"a1a": 123, "a9a": 123}


@dataclass(frozen=True, eq=False)
class Dataset:
    """A design matrix A (m×d, dense or csr) and labels b in {−1, +1}."""

    name: str
    A: Any
    b: Vector

    @property
    def m(self) -> int:
        return int(self.A.shape[0])

    @property
    def d(self) -> int:
        return int(self.A.shape[1])


def load_dataset(name: str) -> Dataset:
    """An embedded set by name, or the svmlight file ``name`` of the data folder (or at that path).

    Raises FileNotFoundError with the names at hand when there is no such set, ValueError for labels that are not two.
    """
    if name in EMBEDDED:
        return _embedded(name)
    path = _find(name)
    try:
        from sklearn.datasets import load_svmlight_file
    except ImportError as error:
        msg = "reading svmlight files needs scikit-learn: pip install 'stepsize-opt[data]'"
        raise ModuleNotFoundError(msg) from error
    try:
        A, labels = load_svmlight_file(str(path), n_features=_FEATURES.get(path.name))
    except (ValueError, UnicodeDecodeError) as error:
        msg = f"{path} is not an svmlight file: {error}"
        raise ValueError(msg) from error
    return Dataset(path.name, sparse.csr_array(A), signs(labels))


def signs(labels: Any) -> Vector:
    """Two-valued labels ({0,1}, {1,2}, {−1,+1}, …) as −1 for the smaller and +1 for the larger value."""
    values = np.unique(np.asarray(labels, dtype=float))
    if values.size != 2:
        msg = f"binary labels expected, got {values.size} distinct values"
        raise ValueError(msg)
    return np.where(np.asarray(labels, dtype=float) == values[1], 1.0, -1.0)


def available_datasets() -> list[str]:
    """Names that :func:`load_dataset` knows here: embedded sets, then the files of the data folder."""
    folder = os.environ.get(DATA_VARIABLE)
    files = sorted(p.name for p in Path(folder).iterdir() if p.is_file() and not p.suffix) if folder else []
    return [*EMBEDDED, *files]


def _find(name: str) -> Path:
    folder = os.environ.get(DATA_VARIABLE)
    candidates = [Path(name)] + ([Path(folder) / name] if folder else [])
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    hint = "" if folder else f"; set {DATA_VARIABLE} to a folder with svmlight files for more"
    msg = f"no data set {name!r}; known here: {', '.join(available_datasets())}{hint}"
    raise FileNotFoundError(msg)


def _embedded(name: str) -> Dataset:
    try:
        from sklearn import datasets
    except ImportError as error:
        msg = "the embedded data sets need scikit-learn: pip install 'stepsize-opt[data]'"
        raise ModuleNotFoundError(msg) from error
    bunch = datasets.load_breast_cancer() if name == "breast_cancer" else datasets.load_digits()
    A = np.asarray(bunch.data, dtype=float)
    if name == "digits":
        # Pixels 0…16 become 0…1; pixels that are the same in every image carry nothing; odd against even digits.
        A = A[:, np.ptp(A, axis=0) > 0.0] / 16.0
        return Dataset(name, A, signs(bunch.target % 2))
    # Measurements in very different units: standardised, as anyone would before a gradient method.
    return Dataset(name, (A - A.mean(axis=0)) / A.std(axis=0), signs(bunch.target))
