"""Objectives of data sets, and random matrices with a given spectrum."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from stepsize_opt.inputs.checks import (
    check_dense,
    check_kind,
    generator,
    items,
    positive_number,
    real_array,
    whole_number,
)
from stepsize_opt.problems import Federated, Layered, LogisticRegression, Quadratic
from stepsize_solvers.programs import Indices, Matrix, Vector
from stepsize_validation.data.datasets import Dataset


class _RepeatedRows(LogisticRegression):
    """A logistic regression on data whose rows repeat, which are evaluated once.

    A gradient with a value of f takes 0.42 of the processor time on phishing, 0.86 of it on a1a.
    """

    def __repr__(self) -> str:
        return f"LogisticRegression(m = {self.m}, d = {self.d}, λ = {self.reg:g}, penalty {self.penalty!r})"

    @cached_property
    def terms(self) -> tuple[Any, Vector]:
        first, labels = _distinct_rows(self.signed_rows)
        return self.signed_rows[first], np.bincount(labels) / self.m


def _distinct_rows(A: Any) -> tuple[Indices, Indices]:
    """Return the first occurrence of each distinct row of A, csr or dense, in order, and which of them each row is."""
    if sparse.issparse(A):
        A.sort_indices()
        bounds = zip(A.indptr[:-1], A.indptr[1:], strict=True)
        keys = [(A.indices[a:b].tobytes(), A.data[a:b].tobytes()) for a, b in bounds]
    else:
        keys = [(row.tobytes(), b"") for row in np.ascontiguousarray(A)]
    seen: dict[tuple[bytes, bytes], int] = {}
    labels = np.array([seen.setdefault(key, len(seen)) for key in keys], dtype=np.intp)
    _, first = np.unique(labels, return_index=True)
    return first.astype(np.intp), labels


def logistic_regression(data: Dataset, reg: float, penalty: str = "nonconvex") -> LogisticRegression:
    """Return the logistic regression on a data set with λ = ``reg``; raises TypeError for what is no Dataset.

    Examples
    --------
    >>> from stepsize_validation.data import load_dataset, logistic_regression
    >>> logistic_regression(load_dataset("breast_cancer"), 0.1).d
    30
    """
    check_kind("data", data, Dataset)
    return _RepeatedRows(data.A, data.b, reg, penalty)


def federated_logistic(parts: Sequence[Dataset], reg: float, penalty: str = "nonconvex") -> Federated:
    """Return one logistic regression for each part, with the paper's non-convex regulariser or with the ridge.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import federated_logistic, load_dataset, split
    >>> federated_logistic(split(load_dataset("breast_cancer"), 4, np.random.default_rng(0)), 0.1).n
    4
    """
    return Federated(tuple(logistic_regression(part, reg, penalty) for part in items("parts", parts)))


def layered_logistic(data: Dataset, reg: float, layers: int) -> Layered:
    """Return logistic regressions on consecutive, nearly equal groups of the features of one data set.

    Examples
    --------
    >>> from stepsize_validation.data import layered_logistic, load_dataset
    >>> layered_logistic(load_dataset("breast_cancer"), 0.1, 4).sizes
    (8, 7, 7, 8)
    """
    bounds = np.linspace(0, data.d, whole_number("layers", layers, high=data.d) + 1).round().astype(int)
    return Layered(tuple(logistic_regression(data.columns(int(a), int(b)), reg) for a, b in pairwise(bounds)))


def random_quadratic(spectrum: Sequence[float] | Vector, rng: np.random.Generator) -> Quadratic:
    """Return a quadratic with the given eigenvalues, random eigenvectors and a standard normal minimiser.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import random_quadratic
    >>> random_quadratic([1.0, 2.0], np.random.default_rng(0)).d
    2
    """
    return Quadratic(with_spectrum(rng, spectrum), rng.standard_normal(len(spectrum)))


def with_spectrum(rng: np.random.Generator, eigenvalues: ArrayLike) -> Matrix:
    """Return Q Diag(λ) Qᵀ with the given λ and random orthonormal eigenvectors Q, exactly symmetric.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where Q comes from.
    eigenvalues : array_like
        λ, shape (d,).

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import with_spectrum
    >>> np.linalg.eigvalsh(with_spectrum(np.random.default_rng(0), [1.0, 2.0])).round(6).tolist()
    [1.0, 2.0]
    """
    values = real_array("eigenvalues", eigenvalues)
    if values.ndim != 1 or not values.size:
        msg = f"eigenvalues must be a list of numbers, got shape {values.shape}"
        raise ValueError(msg)
    Q = np.linalg.qr(generator(rng).standard_normal((values.size, values.size)))[0]
    M = (Q * values) @ Q.T
    return np.asarray(0.5 * (M + M.T))


def random_smoothness(rng: np.random.Generator, d: int, condition: float) -> Matrix:
    """Return a random smoothness matrix: log-spaced eigenvalues from 1 down to 1/condition, random eigenvectors.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the eigenvectors come from.
    d : int
        Size.
    condition : float
        Largest eigenvalue over the smallest, at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import random_smoothness
    >>> L = random_smoothness(np.random.default_rng(0), 3, condition=100.0)
    >>> np.linalg.eigvalsh(L).round(6).tolist()
    [0.01, 0.1, 1.0]
    """
    largest = positive_number("condition", condition)
    if largest < 1.0:
        msg = f"condition must be at least 1, got {condition}"
        raise ValueError(msg)
    size = whole_number("d", d)
    check_dense("the matrix", size)
    return with_spectrum(rng, np.logspace(0.0, -np.log10(largest), size))
