"""The problem behind a limit: a budget k and a goal for an L, formed or not, without memory or with momentum.

*By its entries.*  The D of the closed form is lowered until D ⪯ L⁻¹ and tr(LD) ≤ k are proved for its floats.

*Never formed*, L = UUᵀ + Diag(diagonal).  ``descent``: D next to (k/d)L⁻¹ by Woodbury's formula, with D ⪯ (k/d)L⁻¹
proved: so tr(LD) ≤ k and, as k ≤ d, D ⪯ L⁻¹.  ``euclidean``: D = tI with t next to min(k/tr L, 1/λmax(L)); λmax lies
between a quotient zᵀLz/zᵀz and a γ⁻¹ for which γI ⪯ L⁻¹ is proved.  ``linear`` with M = μI is the same D, tI = (tμ)M⁻¹.

*Momentum* (docs/momentum.md).  t is attained if some D has D ⪯ L⁻¹, tr(LD) ≤ k and DLD ⪰ t²M⁻¹.  The update of z takes
A_J Diag(w_J) A_Jᵀ∇f(y) with t²w ≤ h and A Diag(hw) Aᵀ ⪰ M⁻¹, M = I for the goal ``convex``; for the eigenvalues ℓ of
LM⁻¹ w = ℓ/h, h ≥ t√ℓ.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt.goals import Goal
from stepsize_opt.inputs.checks import positive_number, read_only
from stepsize_opt.inputs.matrices import REGULARISE, SMOOTHNESS_REMEDY, Scaling
from stepsize_opt.large.solve import LargeAnswer, LargeQuestion, large_problem, solve_large
from stepsize_opt.large.stepsizes import DiagonalStepsize, InverseStepsize, StepsizeOperator
from stepsize_opt.limit.answers import CompressionLimit, SubspaceMethod
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Enclosed,
    Interval,
    LowRankCondition,
    Pair,
    Unproved,
    eigenvalue_bounds,
    exp_down,
    first_proved,
    is_feasible,
    is_proved_definite,
    largest_floor,
    log_det_from_below,
    losses,
    sandwich,
    twice_gamma,
    weighted_gram,
)
from stepsize_opt.sketches.diagonal import SystematicSampling, rounded_to_budget
from stepsize_opt.smoothness import (
    LimitBounds,
    LowRankPlusDiagonal,
    MatrixSmoothness,
    NeedsDense,
    ProvedDirections,
    Smoothness,
    inverse_of,
)
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import DiagonalPlusScaled, Matrix, Pattern, Program, Settings, Vector

LARGEST_LOSS = 0.1  # a proof that takes a larger share of D has failed
SMALLEST_BUDGET = 1e-100  # below it underflow counts beside products with D ≈ (k/d)L⁻¹


@dataclass(frozen=True, eq=False)
class LimitProblem(ABC):
    """A checked L, budget k and goal that has a limit."""

    L: Smoothness
    k: float
    goal: Goal

    @property
    @abstractmethod
    def upper_bound(self) -> float:
        """d log of the limit, from above."""

    @abstractmethod
    def best(self) -> CompressionLimit:
        """Return the limit with a D that has it."""

    @abstractmethod
    def subspace(self, basis: str) -> SubspaceMethod:
        """Return the subspace method with the directions of a basis."""

    def limit(self, D: Any, h: Vector, certificate: Certificate) -> CompressionLimit:
        """Return the limit of a D at it; h: the probabilities of its directions, empty if they are unknown."""
        return CompressionLimit(self.k, type(self.goal), locked(D), read_only(h), certificate)

    def method(self, basis: str, **parts: Any) -> SubspaceMethod:
        """Return the subspace method of its parts."""
        own: dict[str, Any] = {"k": self.k, "goal_class": type(self.goal)}
        return SubspaceMethod(basis=basis, **own, **{name: locked(part) for name, part in parts.items()})

    @property
    def momentum(self) -> bool:
        """Whether the method keeps two vectors."""
        return self.goal.momentum

    def floor_probabilities(self, values: Vector) -> Vector:
        """Return h of the largest t, from the eigenvalues ℓ of LM⁻¹: h ≥ tℓ, with momentum h ≥ t√ℓ."""
        return floor_probabilities(np.sqrt(values) if self.momentum else values, self.k)

    def near_limit(self, certificate: Certificate) -> Certificate:
        """Return the certificate; raise Unproved for one that is far from the limit."""
        if not certificate.gap <= LARGEST_LOSS:
            share = f"{math.exp(-certificate.gap):.1%}"
            msg = (
                f"the eigenvalues of L lie too far apart for goal={self.goal.name!r} in float64: what is "
                f"proved of D is {share} of the limit; {REGULARISE}"
            )
            raise self.unproved(msg)
        return self.goal.proved(certificate)

    def unproved(self, reason: str) -> Unproved:
        """Return the error for a D that float64 does not prove: a tiny budget is named before anything else."""
        if self.k < SMALLEST_BUDGET:
            reason = f"k must be at least {SMALLEST_BUDGET}, got {self.k}: for less nothing can be proved in float64"
        return Unproved(reason)


def read_budget(k: object, d: int) -> float:
    """Return k as a float; raise ValueError or TypeError unless 0 < k ≤ d."""
    budget = positive_number("k", k)
    if budget > d:
        msg = f"k must be at most d={d}, got {k}: with d floats per round the step L⁻¹∇f itself can be sent"
        raise ValueError(msg)
    return budget


def locked(value: Any) -> Any:
    """Return a value, read-only if it is an array."""
    return read_only(value) if isinstance(value, np.ndarray) else value


def equal_probabilities(d: int, k: float) -> Vector:
    """Return h of the largest det D: k/d for all."""
    return np.full(d, k / d)


def floor_probabilities(values: Vector, k: float) -> Vector:
    """Return h of the largest t with D ⪰ tM⁻¹, and among these of the largest det D, from the eigenvalues ℓ of LM⁻¹.

    h ≥ tℓ with t = min(k/Σℓ, 1/max ℓ).  Where 1/max ℓ is the smaller, part of the budget k is left: maximise Σ log h
    subject to tℓ ≤ h ≤ 1 and Σh = k, which has h = clip(c, tℓ, 1) with one number c.
    """
    top, total = float(values.max()), float(values.sum())
    if k * top <= total:
        return np.asarray(np.minimum(values * (k / total), 1.0))
    least = values / top
    if k >= len(values):
        return np.ones_like(least)
    # With c between the m-th and the next largest entry, the m largest stay and the others are c.
    falling = np.sort(least)[::-1]
    kept = np.concatenate([[0.0], np.cumsum(falling)[:-1]])
    level = (k - kept) / (len(values) - np.arange(len(values)))
    m = int(np.argmax(level >= falling))  # there is one: k > Σℓ/max ℓ makes the last level larger than its entry
    return np.asarray(np.clip(level[m], least, 1.0))


@dataclass(frozen=True, eq=False)
class FormedLimit(LimitProblem):
    """The limit of an L by its entries."""

    L: MatrixSmoothness

    @classmethod
    def of(cls, L: MatrixSmoothness, k: float, goal: Goal) -> FormedLimit:
        """Raise ValueError for an L that is not proved positive definite, or an M that is not below it."""
        with blas_threads(L.d):
            L.log_det()
            goal.check(L.todense(), np.arange(L.d))
        return cls(L, k, goal)

    @cached_property
    def M(self) -> Matrix | float | None:
        """M of the goal as an array, a number μ for μI, or None for ``descent``."""
        return self.goal.restricted(np.arange(self.L.d))

    @property
    def upper_bound(self) -> float:
        with blas_threads(self.L.d):
            bound = self.L.bounds(self.M, momentum=self.momentum).log_bound(self.k)
            return 0.5 * bound if self.momentum else bound  # with momentum it is that of t²

    def best(self) -> CompressionLimit:
        with blas_threads(self.L.d):
            h = self._probabilities
            D = _attainable(self.L.todense(), self._rough(h), self.k)
            if D is None:
                msg = f"L is too close to singular for a proof of this goal in float64; {SMOOTHNESS_REMEDY}"
                raise self.unproved(msg)
            return self.limit(D, h, self.certificate(D))

    @cached_property
    def _probabilities(self) -> Vector:
        if self.M is None:
            return equal_probabilities(self.L.d, self.k)
        return self.floor_probabilities(self.L.spectrum(self.M).values)

    def _rough(self, h: Vector) -> Matrix:
        """Return D in plain floating point."""
        M, k, d = self.M, self.k, self.L.d
        if M is None:
            return (k / d) * self.L.inverse()
        spectrum = self.L.spectrum(M)
        t = k / float(spectrum.values.sum())
        if self.momentum or t * float(spectrum.values.max()) > 1.0:
            return spectrum.matrix(h)
        return (t / M) * np.eye(d) if isinstance(M, float | int) else t * inverse_of(M)

    def subspace(self, basis: str) -> SubspaceMethod:
        with blas_threads(self.L.d):
            A, defect = self.L.directions(basis, 1.0 if self.M is None else self.M)
            sketch = SystematicSampling(rounded_to_budget(self._probabilities, self.k))
            X = A / self._scaling.factors[:, None]
            D = self._scaling.times(proved_mean(X, sketch.p))
            certificate, weights = self._with_weights(X, sketch.p) if self.momentum else (self.certificate(D), None)
            parts = {"directions": A, "sketch": sketch, "weights": weights}
            return self.method(basis, D=D, certificate=certificate, defect=defect, **parts)

    def _with_weights(self, X: Matrix, h: Vector) -> tuple[Certificate, Vector]:
        """Return the certificate of momentum and w of the update of z, for the directions Λ⁻¹A."""
        values, exact = self.L.spectrum(1.0 if self.M is None else self.M).values, Pair.exact(X)
        mean = (exact * values[None, :] @ exact.T).rounded().symmetric()
        weights, t = weights_of_share(h, values, largest_floor(mean, self._curvature))
        return self.near_limit(certificate_of_rate(t, self.upper_bound, self.L.d)), weights

    def certificate(self, D: Matrix) -> Certificate:
        """Certify a D that is known to be attainable: log det D or d log t from below, and the limit from above.

        Raises Unproved where the floats of D are too coarse to come near the limit.
        """
        scaled = self._scaling.over(D)
        if self.M is None:
            return self.near_limit(self._of_determinant(scaled))
        if self.momentum:
            square = sandwich(scaled, self._scaling.times(self.L.todense()), scaled).symmetric()
            t = Interval.exact(largest_floor(square, self._curvature)).sqrt().low
        else:
            t = largest_floor(Enclosed.exact(scaled), self._curvature)
        return self.near_limit(certificate_of_rate(t, self.upper_bound, len(D)))

    def _of_determinant(self, scaled: Matrix) -> Certificate:
        below = log_det_from_below(scaled)
        lower = -math.inf if below is None else below
        certificate = Certificate(below is not None, 0.0, lower, math.inf, len(scaled))
        return certificate.rescaled(self._scaling.factors).bounded(self.upper_bound)

    @cached_property
    def _scaling(self) -> Scaling:
        """Λ with ΛLΛ near one."""
        return Scaling.of(self.L.todense().diagonal())

    @property
    def _curvature(self) -> Matrix:
        """ΛMΛ."""
        M = 1.0 if self.M is None else self.M
        return self._scaling.times(M if isinstance(M, np.ndarray) else M * np.eye(self.L.d))


def _attainable(L: Matrix, D: Matrix, k: float) -> Matrix | None:
    """Return the multiple of D next to it with D ⪯ L⁻¹ and tr(LD) ≤ k, both proved for its floats; None without one."""
    scaling = Scaling.of(L.diagonal())
    B, X = scaling.times(L), scaling.over(0.5 * (D + D.T))
    program = Program.single(B, DiagonalPlusScaled.identity(len(B)), Pattern.full(len(B)))
    exact = Pair.exact(B)
    share = min(1.0, k / exact.inner(Pair.exact(X)).high)

    def lowered(loss: float) -> Matrix | None:
        # Near a singular L the rounding of the entries counts more than the loss: each proof is of the D that leaves.
        rounded = scaling.times(share * (1.0 - loss) * X)
        candidate = scaling.over(rounded)
        if exact.inner(Pair.exact(candidate)).high > k:
            return None
        return rounded if is_feasible(program, candidate) else None

    return first_proved((0.0, *losses(len(B) * UNIT, LARGEST_LOSS)), lowered)


def proved_mean(A: Matrix, h: Vector) -> Matrix:
    """Return D next to A Diag(h) Aᵀ, below it by proof."""
    exact = Pair.exact(A)
    mean = (exact * h[None, :] @ exact.T).rounded().symmetric()

    def lowered(loss: float) -> Matrix | None:
        D = (1.0 - loss) * mean.value
        return np.asarray(D) if is_proved_definite(mean - D) else None

    found = first_proved(losses(4.0 * len(A) * UNIT, LARGEST_LOSS, 2.0), lowered)
    if found is None:
        msg = "L is too close to singular to prove the mean of the steps in float64; add a regulariser (L + 2λI)"
        raise Unproved(msg)
    return found


_NO_PROOF = "L is too close to singular for a proof in float64; add a regulariser (a larger diagonal)"


@dataclass(frozen=True, eq=False)
class ThinLimit(LimitProblem):
    """The limit of an L that is never formed, found in the units of ``L.near_one``."""

    L: LowRankPlusDiagonal

    @classmethod
    def of(cls, L: LowRankPlusDiagonal, k: float, goal: Goal) -> ThinLimit:
        """Raise ValueError for an M that is no number, or not below L."""
        mu = goal.M
        if not isinstance(mu, float | None):
            msg = "strong_convexity must be a number μ when L is a LowRankPlusDiagonal; a matrix M needs L.todense()"
            raise NeedsDense(msg)
        if goal.strong_convexity is not None and mu is not None and mu > float(L.shift.min()):
            msg = (
                "strong_convexity must satisfy μI ⪯ L, because ∇²f lies between both; a LowRankPlusDiagonal proves it "
                f"for μ up to its smallest diagonal entry, {L.shift.min():g}, got {mu:g}: L.todense() takes more"
            )
            raise ValueError(msg)
        return cls(L, k, goal)

    @property
    def _is_determinant(self) -> bool:
        return self.goal.is_determinant

    @property
    def _mu(self) -> float:
        return self.goal.M if isinstance(self.goal.M, float) else 1.0

    @property
    def upper_bound(self) -> float:
        if self.momentum:
            return self._momentum_ends[1]
        if self._is_determinant:
            bounds = LimitBounds(self.L.d, self.L.near_one.log_det())
            return bounds.scaled(2 * self.L.power).log_bound(self.k)
        return self._as_given(*self._multiple_of_identity())[1].upper_bound

    def best(self) -> CompressionLimit:
        L = self.L.near_one
        if self.momentum:
            return self._best_of_momentum()
        if self._is_determinant:
            inverse, certificate = self._as_given(*self._share_of_inverse(L.d / self.k))
            return self.limit(inverse, equal_probabilities(L.d, self.k), certificate)
        multiple, bounds = self._multiple_of_identity()
        given, certificate = self._as_given(multiple, bounds)
        if sparse.issparse(L.U) or not L.has_constant_shift:
            return self.limit(given, np.empty(0), certificate)
        # λI + UUᵀ has the eigenvalues of λI + UᵀU, and λ for all other directions.
        low_rank = np.maximum(np.linalg.eigvalsh(L.U.T @ L.U)[-L.d :], 0.0)
        values = L.shift[0] + np.concatenate([np.zeros(L.d - len(low_rank)), low_rank])
        return self.limit(given, np.minimum(values * multiple.x[0], 1.0), certificate)

    def _best_of_momentum(self) -> CompressionLimit:
        """Return a multiple of I below the best D, which is a multiple of L^{−½} unless budget is left."""
        lower, upper = self._momentum_ends
        low, high = self._eigenvalues
        h = self.floor_probabilities(low)
        D, _ = self._multiple_of_identity(float((h / high).min()) * (1.0 - 8.0 * UNIT))  # D has eigenvalues h/ℓ
        return self.limit(D.scaled(-self.L.power), h, Certificate(True, 0.0, lower, upper, self.L.d))

    def subspace(self, basis: str) -> SubspaceMethod:
        if self._is_determinant:
            return self._subspace_by_root(basis)
        L, what = self.L.near_one, "momentum" if self.momentum else f"the subspace method for goal={self.goal.name!r}"
        L.require_eigenvectors(what)
        found = L.directions(basis)
        values = np.ones(L.d)
        values[: len(found.basis.values)] += found.basis.values
        sketch = SystematicSampling(rounded_to_budget(self.floor_probabilities(values), self.k))
        if self.momentum:
            D, certificate, weights = self._with_weights(found, values, sketch.p)
        else:
            t = float(self._multiple_of_identity()[0].x[0]) * float(L.shift[0])
            multiple = self._multiple_of_identity(found.mean_from_below(sketch.p, t))
            D, certificate, weights = *self._as_given(*multiple), None
        return self._method(basis, found, sketch=sketch, D=D, certificate=certificate, weights=weights)

    def _subspace_by_root(self, basis: str) -> SubspaceMethod:
        if basis != "root":
            msg = f"basis must be 'root' for goal='descent' and a LowRankPlusDiagonal, got {basis!r}"
            raise NeedsDense(msg)
        L = self.L.near_one
        L.require_dense_factor(f"the subspace method for goal={self.goal.name!r}")
        found = L.directions(basis)
        sketch = SystematicSampling(rounded_to_budget(equal_probabilities(L.d, self.k), self.k))
        # AᵀLA ⪰ least·I is AAᵀ ⪰ least·L⁻¹, so that E[G] ⪰ min h·least·L⁻¹.
        share = float(sketch.p.min()) * found.least * (1.0 - 2.0 * UNIT)
        D, certificate = self._as_given(*self._share_of_inverse(1.0 / share))
        return self._method(basis, found, sketch=sketch, D=D, certificate=certificate)

    def _method(self, basis: str, found: ProvedDirections, **parts: Any) -> SubspaceMethod:
        """Return the method of directions near one, in the units of the L that was given."""
        return self.method(basis, directions=found.A.scaled(-self.L.power), defect=found.defect, **parts)

    def _with_weights(
        self, found: ProvedDirections, values: Vector, h: Vector
    ) -> tuple[StepsizeOperator, Certificate, Vector]:
        """Return D, the certificate of momentum and w of the update of z."""
        a, n = float(self.L.near_one.shift[0]), self.L.power
        # A Diag(values) Aᵀ ⪰ share/a; the weights are in the units of the L that was given.
        share = found.mean_from_below(values, 1.0) * a * (1.0 - 8.0 * UNIT)
        weights, t = weights_of_share(h, values * (math.ldexp(a, 2 * n) / self._mu), share)
        certificate = self.near_limit(certificate_of_rate(t, self.upper_bound, self.L.d))
        D, _ = self._multiple_of_identity(found.mean_from_below(h, float((h / values).min())))
        return D.scaled(-n), certificate, weights

    def _as_given(self, D: StepsizeOperator, certificate: Certificate) -> tuple[StepsizeOperator, Certificate]:
        """Return D and its certificate, for the goal, in the units of the L that was given.

        Raises ValueError where float64 does not hold D.
        """
        d, n = self.L.d, self.L.power
        moved = certificate.moved(-2 * n * d)
        return D.scaled(-n), moved.shifted(d * Interval.exact(self._mu).log())

    def _share_of_inverse(self, q: float) -> tuple[InverseStepsize, Certificate]:
        """Return D next to (qL)⁻¹ and below it by proof; its log det from below, the limit from above.

        Raises NeedsDense for a sparse U, Unproved where float64 does not suffice for the proof.
        """
        L = self.L.near_one
        L.require_dense_factor("goal='descent'")
        scaled = q * L.shift  # two roundings
        condition = LowRankCondition(
            scaled * (1.0 - twice_gamma(4)), scaled * (1.0 + twice_gamma(4)), q, L.U, twice_gamma(2)
        )
        found = condition.inverse()
        if found is None or not L.log_det() > -math.inf:
            raise self.unproved(_NO_PROOF)
        bound = LimitBounds(L.d, L.log_det()).log_bound(self.k)
        # The bound of found is one of this share of L⁻¹, and not of the limit.
        return InverseStepsize(found.p, L.U, found.C), replace(found.certificate, upper_bound=bound)

    @cached_property
    def _scalar(self) -> LargeAnswer:
        """The best γI ⪯ L⁻¹."""
        problem = large_problem(self.L.near_one, DiagonalPlusScaled.identity(self.L.d))
        return solve_large(LargeQuestion(problem, "scalar"), Settings())

    def _multiple_of_identity(self, t: float | None = None) -> tuple[DiagonalStepsize, Certificate]:
        """Return tI with tI ⪯ L⁻¹ and t tr L ≤ k proved, or a smaller t; d log t from below, the limit from above.

        Raises Unproved where float64 does not suffice for the proof.
        """
        L, d, scalar = self.L.near_one, self.L.d, self._scalar
        trace, rounding = L.trace(), twice_gamma(L.longest_row + 4)
        most = min(float(scalar.D.diagonal()[0]), self.k / (trace * (1.0 + rounding)) * (1.0 - 4.0 * UNIT))
        value = most if t is None else min(t, most)
        if not value > 0.0:
            raise self.unproved(_NO_PROOF)
        top = exp_down(-scalar.certificate.upper_bound / d)
        lower = (d * Interval.exact(value).log()).low
        upper = LimitBounds(d, -math.inf, trace * (1.0 - rounding), top).log_bound(self.k)
        certificate = Certificate(True, 0.0, lower, upper, d)
        return DiagonalStepsize(np.full(d, value)), certificate

    @cached_property
    def _eigenvalues(self) -> tuple[Vector, Vector]:
        """Bounds from below and above on the eigenvalues of L near one, ascending.

        Raises NeedsDense for an L whose eigenvectors are not known.
        """
        L = self.L.near_one
        L.require_eigenvectors("momentum")
        a = float(L.shift[0])
        ends = (end[-L.d :] for end in eigenvalue_bounds(weighted_gram(L.U, None)))
        low, high = (a + np.concatenate([np.zeros(L.d - len(end)), end]) for end in ends)
        return low * (1.0 - 2.0 * UNIT), high * (1.0 + 2.0 * UNIT)

    @cached_property
    def _momentum_ends(self) -> tuple[float, float]:
        """d log of the limit, from below and from above, in the units of the L that was given."""
        d = self.L.d
        low, high = (np.sqrt(end) for end in self._eigenvalues)
        trace, top = (root * (1.0 - 4.0 * UNIT) for root in (math.fsum(low), float(low[-1])))
        t = min(self.k / math.fsum(high), 1.0 / float(high[-1])) * (1.0 - 8.0 * UNIT)
        upper = LimitBounds(d, -math.inf, trace, top, momentum=True).log_bound(self.k)
        near = Certificate(True, 0.0, (2.0 * d * Interval.exact(t).log()).low, upper, d)
        given = near.moved(-2 * self.L.power * d).shifted(d * Interval.exact(self._mu).log())
        return 0.5 * given.log_det, 0.5 * given.upper_bound


def weights_of_share(h: Vector, values: Vector, share: float) -> tuple[Vector, float]:
    """Return w next to ℓ/(h share) with hw ≥ ℓ/share, and t with t²w ≤ h, 0 without a share.

    share: what is proved of A Diag(ℓ) Aᵀ ⪰ share M⁻¹, so that A Diag(hw) Aᵀ ⪰ M⁻¹.
    """
    if not share > 0.0:
        return np.ones_like(h), 0.0
    w = values / (h * share) * (1.0 + 8.0 * UNIT)
    return w, math.sqrt(float((h / w).min())) * (1.0 - 4.0 * UNIT)


def certificate_of_rate(t: float, upper_bound: float, d: int) -> Certificate:
    """Return the certificate of a proved t, as d log t."""
    if not t > 0.0:
        return Certificate(False, 0.0, -math.inf, upper_bound, d)
    return Certificate(True, 0.0, (d * Interval.exact(t).log()).low, upper_bound, d)
