"""What the one interior-point iteration (``.driver``) asks of a problem.

A problem has points (a stepsize with multipliers, strictly inside), Newton systems at points, and steps.  The
problems are the condition 𝒬(DBD) ⪯ D (``.condition``), the largest t with aD − 𝒬(DBD) ⪰ tE (``.floor``) and families
of inequalities (``stepsize_solvers.families``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

from stepsize_solvers.numerics import Array, Bounds, Scaling, nesterov_todd

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


class Solution(NamedTuple):
    """Of the equations of a step."""

    X: Array
    dZ: Array
    dt: float = 0.0


class Step(NamedTuple):
    """X, dZ and dt, the changes F₁ and F₂ of F (first and second order), and the right-hand side r of the step.

    back: G⁻¹ where dZ, F₁ and F₂ are in the coordinates of the Nesterov–Todd factor G.
    """

    X: Array
    dZ: Array
    dt: float
    first: Array
    second: Array
    r: Array
    back: Array | None = None

    @property
    def change_of_Z(self) -> Array:
        """dZ in the basis of the point."""
        return self.dZ if self.back is None else self.back.T.dot(self.dZ).dot(self.back)


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
    def found_scaling(self) -> Scaling | None:
        """None when F or Z is not numerically positive definite."""
        return nesterov_todd(self.Ft, self.Zt)

    @property
    def scaling(self) -> Scaling:
        found = self.found_scaling
        assert found is not None  # points of the iteration have one
        return found

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

    def left(self, step: StepType) -> float:
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
