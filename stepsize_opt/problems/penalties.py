"""Regularisers of the logistic regression, each with its value, its gradient and bounds on its curvature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stepsize_opt.inputs import check_one_of
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True)
class Penalty:
    """λ Σ_j φ(x_j): ``value`` and ``gradient`` of Σ_j φ(x_j) at each row of X; least ≤ φ″ ≤ most everywhere."""

    value: Callable[[Matrix], Vector]
    gradient: Callable[[Matrix], Matrix]
    least: float
    most: float


def _bounded(X: Matrix) -> Vector:
    squares = X**2
    return np.asarray(np.sum(squares / (1.0 + squares), axis=1))


PENALTIES = {
    # φ(t) = t²/(1 + t²), φ″(t) = 2(1 − 3t²)/(1 + t²)³: from 2 at 0 down to −½ at ±1.
    "nonconvex": Penalty(_bounded, lambda X: np.asarray(2.0 * X / (1.0 + X**2) ** 2), -0.5, 2.0),
    # φ(t) = t²/2
    "ridge": Penalty(lambda X: np.asarray(0.5 * np.sum(X**2, axis=1)), lambda X: X, 1.0, 1.0),
}


def read_penalty(name: str) -> Penalty:
    """The regulariser of a name; raises ValueError for an unknown one.

    Examples
    --------
    >>> from stepsize_opt.problems import read_penalty
    >>> read_penalty("ridge").most
    1.0
    """
    check_one_of("penalty", name, PENALTIES)
    return PENALTIES[name]
