"""The central path of a few positive unknowns x: direct Newton steps until the certified gap is within the tolerance.

For a stepsize D(x) linear in x, log det D(x) = Σ_j w_j log x_j + const and a matrix inequality F(x) ⪰ 0, the points of
the path maximise Σ_j w_j log x_j + ν log det F(x).  Steps are relative changes x(1 + h).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics import Bounds, Limits, Progress, cholesky
from stepsize_solvers.programs import Matrix, Status, Vector

# Damped steps far from the path widen the interval before they narrow it, so the steps themselves are the limit.
MOST_STEPS = 200
_PATIENCE = MOST_STEPS
# Reduction of ν after a step close to the central path; a decrement below this counts as close.
_SHRINK = 0.08
_CLOSE = 0.5
# The bound exceeds the optimum by about 2ν at a central point; the tolerance is met with this much room.
_MARGIN = 0.5


@dataclass(frozen=True, eq=False)
class Newton:
    """The Newton step h and its decrement √(gᵀh/ν)."""

    h: Vector
    decrement: float

    @staticmethod
    def of(gradient: Vector, hessian: Matrix, nu: float) -> Newton | None:
        """From the gradient and the negated Hessian; None when that is not numerically positive definite."""
        K = cholesky(hessian)
        if K is None:
            return None
        h = np.asarray(lapack.dpotrs(K, gradient, 1)[0])
        return Newton(h, math.sqrt(max(float(gradient.dot(h)), 0.0) / nu))


@dataclass(frozen=True, eq=False)
class InsidePoint(ABC):
    """An x with F(x) ≻ 0."""

    x: Vector

    @cached_property
    @abstractmethod
    def bounds(self) -> Bounds:
        """The certified interval of log det D; D(x) times the scale is feasible."""

    @property
    @abstractmethod
    def D(self) -> Matrix:
        """The stepsize D(x)."""

    @property
    @abstractmethod
    def Z(self) -> Matrix:
        """The dual that proves the upper bound."""

    @abstractmethod
    def newton(self, nu: float) -> Newton | None:
        """The Newton step towards the point of the path at ν."""


Inside = TypeVar("Inside", bound=InsidePoint)


def follow(
    inside: Callable[[Vector], Inside | None], start: Vector, nu: float, d: int, limits: Limits
) -> tuple[Status, Progress[Inside]]:
    """Follow the path from ``start`` and ν; ``inside`` gives the point of an x, or None when F(x) is not ≻ 0."""
    progress: Progress[Inside] = Progress(d, limits, _MARGIN, _PATIENCE)
    return progress.run(lambda: _follow(inside, start, nu, progress)), progress


def _follow(inside: Callable[[Vector], Inside | None], start: Vector, nu: float, progress: Progress[Inside]) -> Status:
    p = inside(start)
    length, decrement = 0.0, np.inf
    while p is not None:
        details = None
        if progress.limits.log is not None:
            details = {"nu": f"{nu:.2e}", "decrement": f"{decrement:.2e}", "step": f"{length:.3f}"}
        status = progress.examine(p, p.bounds, details)
        if status is not None:
            return status
        step = p.newton(nu)
        if step is not None and step.decrement < _CLOSE:
            # Aim at the next ν at once when the point is central: the tangent to the path is a free predictor.
            decrement, nu = step.decrement, max(_SHRINK * nu, 0.1 * progress.limits.tol)
            step = p.newton(nu)
        elif step is not None:
            decrement = step.decrement
        if step is None:
            break
        p, length = _moved(inside, p.x, step.h)
        progress.steps += p is not None
    return Status.INACCURATE


def _moved(inside: Callable[[Vector], Inside | None], x: Vector, h: Vector) -> tuple[Inside | None, float]:
    """The point at x(1 + length·h) for the longest length tried that is inside, and that length."""
    lowest = float(h.min())
    length = 1.0 if lowest > -0.9 else 0.9 / -lowest
    cut = False
    while True:
        p = inside(x * (1.0 + length * h))
        if p is not None or length < 1e-8:
            break
        length *= 0.6
        cut = True
    if p is not None and cut:
        # A step that had to be cut ends too close to the boundary: go back a little (the set is convex).
        length *= 0.9
        p = inside(x * (1.0 + length * h))
    return p, length
