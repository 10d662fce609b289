"""The central path of a few positive unknowns x: direct Newton steps until the certified gap is within the tolerance.

For a stepsize D(x) linear in x, log det D(x) = Σ_j w_j log x_j + const and a matrix inequality F(x) ⪰ 0, the points of
the path maximise Σ_j w_j log x_j + ν log det F(x).  Steps are relative changes x(1 + h).
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from scipy.linalg import lapack

from stepsize_solvers.numerics import cholesky
from stepsize_solvers.programs import Matrix, Status, Vector
from stepsize_solvers.single.point import Bounds

_MAX_ITERATIONS = 200
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
        h = np.asarray(lapack.dpotrs(K, gradient, lower=1)[0])
        return Newton(h, float(np.sqrt(max(gradient @ h, 0.0) / nu)))


@dataclass(frozen=True, eq=False)
class InsidePoint(ABC):
    """An x with F(x) ≻ 0."""

    x: Vector

    @cached_property
    @abstractmethod
    def bounds(self) -> Bounds:
        """The certified interval of log det D; D(x) times the scale is feasible."""

    @abstractmethod
    def newton(self, nu: float) -> Newton | None:
        """The Newton step towards the point of the path at ν."""


Inside = TypeVar("Inside", bound=InsidePoint)


@dataclass
class Path(Generic[Inside]):
    """How far the path was followed; ``best`` has the narrowest interval."""

    status: Status = Status.USER_LIMIT
    best: Inside | None = None
    steps: int = 0
    history: list[tuple[float, float]] = field(default_factory=list)

    def record(self, p: Inside) -> None:
        bounds, best = p.bounds, self.best
        lower, upper = self.history[-1] if self.history else (-np.inf, np.inf)
        self.history.append((max(lower, bounds.lower), min(upper, bounds.upper)))
        if best is None or bounds.width < best.bounds.width or not np.isfinite(best.bounds.width):
            self.best = p


def follow(
    inside: Callable[[Vector], Inside | None],
    start: Vector,
    nu: float,
    d: int,
    tol: float,
    max_iters: int,
    deadline: float,
    log: Callable[[str], None] | None,
) -> Path[Inside]:
    """Follow the path from ``start`` and ν; ``inside`` gives the point of an x, or None when F(x) is not ≻ 0."""
    path: Path[Inside] = Path()
    p = inside(start)
    length, decrement = 0.0, np.inf
    if log is not None:
        log(f"{'iter':>4} {'log det D / d':>16} {'gap':>9} {'nu':>9} {'decrement':>9} {'step':>6}")
    try:
        while p is not None:
            bounds = p.bounds
            path.record(p)
            if log is not None:
                gap = bounds.width / d
                log(f"{path.steps:4d} {bounds.lower / d:16.9f} {gap:9.2e} {nu:9.2e} {decrement:9.2e} {length:6.3f}")
            if bounds.width <= _MARGIN * tol * d:
                path.status = Status.OPTIMAL
                return path
            if path.steps >= min(max_iters, _MAX_ITERATIONS) or time.perf_counter() > deadline:
                return path
            step = p.newton(nu)
            if step is not None and step.decrement < _CLOSE:
                # Aim at the next ν at once when the point is central: the tangent to the path is a free predictor.
                decrement, nu = step.decrement, max(_SHRINK * nu, 0.1 * tol)
                step = p.newton(nu)
            elif step is not None:
                decrement = step.decrement
            if step is None:
                break
            p, length = _moved(inside, p.x, step.h)
            path.steps += p is not None
        path.status = Status.INACCURATE
    except KeyboardInterrupt:
        path.status = Status.INTERRUPTED
    return path


def _moved(inside: Callable[[Vector], Inside | None], x: Vector, h: Vector) -> tuple[Inside | None, float]:
    """The point at x(1 + length·h) for the longest length tried that is inside, and that length."""
    lowest = float(np.min(h))
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
