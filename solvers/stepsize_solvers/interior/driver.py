"""The one interior-point iteration: Newton steps on the perturbed optimality conditions until the gap is certified.

At a point with F ≻ 0 and the multiplier Z ≻ 0 a step aims at ZF = sI in Nesterov–Todd scaling, and moves primal and
dual together.  The constraint itself is never relaxed: F is computed from the stepsize.  There are two ways to choose
s:

* *with a predictor* (Mehrotra): a first direction aims at s = 0 and tells how much centring is needed, a second one
  takes the second-order terms of all equations along the first.  For systems that are factorised, or warm-started.
* *adaptive*, where every direction is as dear as a step: s falls faster after long steps and more slowly after short
  ones, and the second-order terms are solved for only where the plain step is short.

A problem that breaks down may hand over to another formulation of itself, in double precision or with other systems.

A problem has points (a stepsize with multipliers, strictly inside), Newton systems at points, and steps.  The
problems are the condition 𝒬(DBD) ⪯ D (``.condition``), the largest t with aD − 𝒬(DBD) ⪰ tE (``.floor``) and families
of inequalities (``stepsize_solvers.families``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from stepsize_solvers.interior.frame import Scaling, largest_step, nesterov_todd
from stepsize_solvers.numerics.linalg import Array
from stepsize_solvers.numerics.progress import Bounds, Progress
from stepsize_solvers.programs import Status

# The gap is about μ.  Above this multiple of the tolerance the bounds are taken at D itself: a repair by scaling costs
# an eigenvalue and would not end the iteration.
_NEAR = 30.0
# A repeated correction is closer to the path; it is taken unless it shortens the step by more than this.
_WORTH = 0.9
# Without a predictor: σ at first, its least value, and the same where conjugate gradients took few iterations.
_FIRST_SIGMA = 0.3
_LEAST_SIGMA = 0.25
_LEAST_SIGMA_CHEAP = 0.15
_FEW_ITERATIONS = 8

PointType = TypeVar("PointType")
StepType = TypeVar("StepType")


@dataclass(frozen=True)
class Rules:
    """The constants of the iteration for one kind of problem, each measured over the problems of ``make bench-native``.

    predictor: which of the two ways; correctors: directions with second-order terms, each with those of the one before.
    step_fraction: of the way to the boundary that a step takes (1 − μ where that is more and ``to_boundary``).
    least_sigma, largest_sigma: between which the share of μ to aim at lies after a predictor.
    corrector_below: without a predictor, the length below which second-order terms are worth a solve.
    short: a step shorter than this is taken wherever it leads, and one below ``shortest`` is none.
    most_iterations: of conjugate gradients in one step, after which the next formulation takes over.
    """

    predictor: bool
    step_fraction: float
    to_boundary: bool = False
    correctors: int = 1
    least_sigma: float = 0.0
    largest_sigma: float = 1.0
    corrector_below: float = 0.75
    short: float = 0.05
    shortest: float = 1e-4
    most_iterations: float = math.inf


Solution: TypeAlias = tuple[Array, Array, float]  # X, dZ and dt


class Step(NamedTuple):
    """X, dZ, dt, the changes of F of first and second order, all in the basis of the point, and the r of the step."""

    X: Array
    dZ: Array
    dt: float
    first: Array
    second: Array
    r: Array


@dataclass(frozen=True, eq=False)
class ScaledStep:
    """A step with the changes of Z and F in the coordinates of the Nesterov–Todd factor G.

    X: in the basis of the point; scaled_dZ: GᵀdZG; first, second: G⁻¹(dF)G⁻ᵀ of first and second order.
    """

    scaling: Scaling
    X: Array
    scaled_dZ: Array
    dt: float
    first: Array
    second: Array

    @cached_property
    def dZ(self) -> Array:
        """In the basis of the point."""
        back = self.scaling.G_inverse
        return np.asarray(back.T.dot(self.scaled_dZ).dot(back))


class Equations(Protocol):
    """The linearised optimality conditions of one inequality F ⪰ tE with the multiplier Z and the scaling W."""

    def solve(self, r: Array, c: Array, tolerance: float) -> Solution:
        """Solve K X − F′*[dZ] = r,  F′[X] − E dt + W dZ W = c  and, where there is a t, ⟨E, dZ⟩ = 0.

        The residual of c, as a change of v, is within the tolerance.
        """
        ...


@dataclass(frozen=True, eq=False)
class InequalityPoint(ABC):
    """A point of a problem with one inequality, F̃ and Z̃ in a basis in which the equations are well scaled."""

    Ft: Array
    Zt: Array

    @cached_property
    def scaling_or_none(self) -> Scaling | None:
        """None when F or Z is not numerically positive definite."""
        return nesterov_todd(self.Ft, self.Zt)

    @property
    def scaling(self) -> Scaling:
        scaling = self.scaling_or_none
        assert scaling is not None  # points of the iteration have one
        return scaling

    @cached_property
    @abstractmethod
    def residual(self) -> Array:
        """The gradient of the Lagrangian."""

    @abstractmethod
    def slope(self, X: Array, dt: float) -> Array:
        """F′[X] − E dt."""

    @abstractmethod
    def bend(self, X: Array) -> Array:
        """The change of F of second order (exact: F is quadratic)."""

    @abstractmethod
    def residual_bend(self, X: Array, dZ: Array) -> Array:
        """The second-order change of the residual."""


class System(Protocol[StepType]):
    """Newton's equations at one point, ready for several targets."""

    def step(self, s: float, before: StepType | None = None) -> StepType:
        """The step towards ZF = sI; with the second-order terms of the step ``before``, if given."""
        ...

    def longest(self, step: StepType) -> float:
        """The largest length a ≤ 1 with which the step stays inside, or a little less."""
        ...

    def share_left(self, step: StepType) -> float:
        """The share of the complementarity ⟨Z, F⟩ that the longest step in the direction of s = 0 leaves, or nearly."""
        ...


class Problem(Protocol[PointType, StepType]):
    """One problem as the iteration sees it."""

    @property
    def rules(self) -> Rules: ...
    def mu(self, p: PointType) -> float:
        """⟨Z, F⟩ divided by the size of F."""
        ...

    def bounds(self, p: PointType, near: bool) -> Bounds:
        """The interval that the point proves; cheaper unless ``near`` the end."""
        ...

    def least_target(self, p: PointType, steps: int) -> float:
        """The least s to aim at: μ must not outrun the dual residual, nor what the tolerance asks for."""
        ...

    def system(self, p: PointType) -> System[StepType] | None:
        """The equations at a point; None when rounding has made them indefinite."""
        ...

    def moved(self, p: PointType, step: StepType, length: float) -> PointType | None:
        """The point after a step; None unless it is strictly inside."""
        ...

    def is_near_path(self, p: PointType, before: PointType) -> bool:
        """Whether a new point is central enough to go on from."""
        ...

    def fallback(self, p: PointType) -> tuple[Problem[PointType, StepType], PointType] | None:
        """Another formulation of the problem to go on with after a breakdown at a point, with that point in it."""
        ...

    def details(self, p: PointType) -> dict[str, Any]:
        """What the log shows beside the interval, by name."""
        ...


# ---------------------------------------------------------------- the iteration


@dataclass
class Drive(Generic[PointType, StepType]):
    """One solve: the problem as formulated now, σ, and the length of the last step."""

    problem: Problem[PointType, StepType]
    progress: Progress[PointType]
    sigma: float = _FIRST_SIGMA
    length: float = 0.0

    def run(self, p: PointType) -> Status:
        """Iterate from a strictly feasible point; INACCURATE after a breakdown of every formulation."""
        progress, tol = self.progress, self.progress.limits.tol
        while True:
            problem = self.problem
            details = None
            if progress.limits.log is not None:
                details = {**problem.details(p), "step": f"{self.length:.3f}"}
            near = problem.mu(p) <= _NEAR * tol
            status = progress.examine(p, problem.bounds(p, near), details)
            new, iterations = None, 0
            if status is None:
                before = progress.work.cg_iterations
                new = self.next(p)
                iterations = progress.work.cg_iterations - before
                self.sigma = self._next_sigma(iterations)
                progress.steps += new is not None
            elif status is not Status.INACCURATE:
                return status
            if new is not None and iterations <= problem.rules.most_iterations:
                p = new
                continue
            best = progress.best
            other = problem.fallback(p if best is None else best.point)
            if other is None:
                return Status.INACCURATE
            self.problem, p = other
            self.sigma, progress.stalled = _FIRST_SIGMA, 0

    def next(self, p: PointType) -> PointType | None:
        """The point after one step; None when rounding allows none."""
        problem, rules = self.problem, self.problem.rules
        system = problem.system(p)
        if system is None:
            return None
        mu, least = problem.mu(p), problem.least_target(p, self.progress.steps)
        step, a = self._predicted(system, mu, least) if rules.predictor else self._adapted(system, mu, least)
        while a > rules.shortest:
            new = problem.moved(p, step, a)
            if new is not None and (a < rules.short or problem.is_near_path(new, p)):
                self.length = a
                return new
            a *= 0.8
        return None

    def _predicted(self, system: System[StepType], mu: float, least: float) -> tuple[StepType, float]:
        """A step and its length by predictor and correctors."""
        rules = self.problem.rules
        fraction = max(rules.step_fraction, 1.0 - mu) if rules.to_boundary else rules.step_fraction
        best, a = system.step(0.0), 0.0
        s = max(min(max(system.share_left(best) ** 3, rules.least_sigma), rules.largest_sigma) * mu, least)
        for _ in range(rules.correctors):
            trial = system.step(s, best)
            length = _cut(system.longest(trial), fraction)
            if length < _WORTH * a:
                break
            best, a = trial, length
            if (1.0 - a) * mu <= s:  # a shorter step leaves no more of μ than the target
                break
        return best, a

    def _adapted(self, system: System[StepType], mu: float, least: float) -> tuple[StepType, float]:
        """A step and its length without a predictor."""
        rules = self.problem.rules
        s = max(self.sigma * mu, least)
        best = system.step(s)
        longest = system.longest(best)
        if longest < rules.corrector_below:
            corrected = system.step(s, best)
            length = system.longest(corrected)
            if length > longest:
                best, longest = corrected, length
        return best, _cut(longest, rules.step_fraction)

    def _next_sigma(self, iterations: int) -> float:
        """σ after a step: ask for more after long steps, for less after short ones."""
        if self.length > 0.8:
            return max(0.3 * self.sigma, _LEAST_SIGMA if iterations > _FEW_ITERATIONS else _LEAST_SIGMA_CHEAP)
        if self.length > 0.5:
            return max(0.6 * self.sigma, _LEAST_SIGMA)
        return min(2.0 * self.sigma, 0.8) if self.length < 0.3 else self.sigma


def _cut(longest: float, fraction: float) -> float:
    """The length of a step: a fraction of the longest unless the whole step is inside."""
    return 1.0 if longest >= 1.0 else fraction * longest


@dataclass(frozen=True, eq=False)
class IterativeSystem:
    """The system of a problem with one inequality by conjugate gradients; accuracy: relative to what they aim at.

    single: whether the equations are in single precision.
    """

    p: InequalityPoint
    equations: Equations
    accuracy: float = 1.5
    single: bool = False

    @cached_property
    def scaling(self) -> Scaling:
        """That of the point, in the precision of the equations."""
        return self.p.scaling.in_single() if self.single else self.p.scaling

    def step(self, s: float, before: Step | None = None) -> Step:
        p, scaling = self.p, self.scaling
        root = scaling.mu**0.5
        r, c, tolerance = p.residual, scaling.aim(s), self.accuracy * (s / root if s > 0.0 else root)
        if before is None:
            return self._step(*self.equations.solve(r, c, tolerance), r)
        r = r + p.residual_bend(before.X, before.dZ)
        c = c - before.second - scaling.second_order(before.first, before.dZ)
        # The equations are linear: solve for what the step before leaves of them.
        W = scaling.W
        X, dZ, dt = self.equations.solve(r - before.r, c - before.first - W @ before.dZ @ W, tolerance)
        return self._step(before.X + X, before.dZ + dZ, before.dt + dt, r)

    def _step(self, X: Array, dZ: Array, dt: float, r: Array) -> Step:
        return Step(X, dZ, dt, self.p.slope(X, dt), self.p.bend(X), r)

    def longest(self, step: Step) -> float:
        return largest_step([[self.p.Zt, step.dZ], [self.p.Ft, step.first, step.second]])

    def share_left(self, step: Step) -> float:
        return 1.0 - self.longest(step)
