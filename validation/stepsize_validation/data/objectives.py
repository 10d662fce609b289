"""Objectives of data sets, and random quadratics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from stepsize_opt.inputs import check_kind, items
from stepsize_opt.problems import Federated, Layered, LogisticRegression, Quadratic
from stepsize_solvers.programs import Vector
from stepsize_validation.data.datasets import Dataset
from stepsize_validation.data.shared_rows import Rows, distinct_rows
from stepsize_validation.data.spectra import with_spectrum


class _RepeatedRows(LogisticRegression):
    """A logistic regression on data whose rows repeat, in whole or in parts: what repeats is evaluated once.

    A run of 300 steps and 20 seeds takes a quarter of the time on phishing, a third on mushrooms, and 0.8 of it on a1a.
    """

    def __repr__(self) -> str:
        return f"LogisticRegression(m = {self.m}, d = {self.d}, λ = {self.reg:g}, penalty {self.penalty!r})"

    @cached_property
    def terms(self) -> tuple[Any, Vector]:
        first, labels = distinct_rows(self.signed_rows)
        return Rows.of(self.A[first], -self.b[first]), np.bincount(labels) / self.m


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
    if not 1 <= layers <= data.d:
        msg = f"layers must be from 1 to the number of features, {data.d}; got {layers}"
        raise ValueError(msg)
    bounds = np.linspace(0, data.d, layers + 1).round().astype(int)
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
