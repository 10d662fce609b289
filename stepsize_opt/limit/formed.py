"""The limit of an L that is a matrix, and the subspace method that attains it, each with its proof."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import REGULARISE, SMOOTHNESS_REMEDY
from stepsize_opt.limit.problem import LimitProblem, Subspace, equal_probabilities, floor_probabilities
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Enclosed,
    Evaluation,
    InBasis,
    Interval,
    Pair,
    Unproved,
    first_proved,
    is_proved_definite,
    largest_floor,
    log_det_from_below,
    losses,
    power_of_two_scaling,
)
from stepsize_opt.sketches import SystematicSampling, rounded_to_budget
from stepsize_opt.smoothness import MatrixSmoothness, inverse_of
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import DiagonalPlusScaled, Matrix, Pattern, Program, Vector

LARGEST_LOSS = 0.1  # a proof that takes a larger share of D has failed


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
            return self.L.bounds(self.M).log_bound(self.k)

    def best(self) -> tuple[Matrix, Vector, Certificate]:
        with blas_threads(self.L.d):
            h, rough = self._rough()
            D = _attainable(self.L.todense(), rough, self.k)
            if D is None:
                msg = f"L is too close to singular for a proof of this goal in float64; {SMOOTHNESS_REMEDY}"
                raise self.unproved(msg)
            return D, h, self.certificate(D)

    def _rough(self) -> tuple[Vector, Matrix]:
        """h and D in plain floating point."""
        M, k, d = self.M, self.k, self.L.d
        if M is None:
            return equal_probabilities(d, k), (k / d) * self.L.inverse()
        spectrum = self.L.spectrum(M)
        h = floor_probabilities(spectrum.values, k)
        t = k / float(spectrum.values.sum())
        if t * float(spectrum.values.max()) > 1.0:
            return h, spectrum.matrix(h)
        return h, (t / M) * np.eye(d) if isinstance(M, float | int) else t * inverse_of(M)

    def subspace(self, basis: str) -> Subspace:
        with blas_threads(self.L.d):
            h = equal_probabilities(self.L.d, self.k)
            if self.M is not None:
                h = floor_probabilities(self.L.spectrum(self.M).values, self.k)
            A, defect = self.L.directions(basis, 1.0 if self.M is None else self.M)
            sketch = SystematicSampling(rounded_to_budget(h, self.k))
            scale = power_of_two_scaling(self.L.todense().diagonal())
            D = scale[:, None] * proved_mean(A / scale[:, None], sketch.p) * scale
            return Subspace(A, sketch, D, self.certificate(D), defect)

    def certificate(self, D: Matrix) -> Certificate:
        """Of a D that is known to be attainable: log det D or d log t from below, and the limit from above.

        Raises Unproved where the floats of D are too coarse to come near the limit.
        """
        return self.near_limit(self._certificate(D))

    def near_limit(self, certificate: Certificate) -> Certificate:
        """Return the certificate; raise Unproved for one that is far from the limit."""
        if not certificate.gap <= LARGEST_LOSS:
            share = f"{math.exp(-certificate.gap):.1%}"
            msg = (
                f"the eigenvalues of L lie too far apart for goal={self.goal.name!r} in float64: what is "
                f"proved of D is {share} of the limit; {REGULARISE}"
            )
            raise self.unproved(msg)
        return certificate

    def _certificate(self, D: Matrix) -> Certificate:
        scale, scaled = self._scaled(D)
        d = len(D)
        if self.M is None:
            below = log_det_from_below(scaled)
            lower = -math.inf if below is None else below
            return Certificate(below is not None, 0.0, lower, math.inf, d).rescaled(scale).bounded(self.upper_bound)
        t = largest_floor(Enclosed.exact(scaled), self._curvature(scale))
        if t <= 0.0:
            return Certificate(False, 0.0, -math.inf, self.upper_bound, d)
        return Certificate(True, 0.0, (d * Interval.exact(t).log()).low, self.upper_bound, d)

    def _scaled(self, D: Matrix) -> tuple[Vector, Matrix]:
        """Λ with ΛLΛ near one, and Λ⁻¹DΛ⁻¹."""
        scale = power_of_two_scaling(self.L.todense().diagonal())
        return scale, D / scale[:, None] / scale

    def _curvature(self, scale: Vector) -> Matrix:
        """ΛMΛ."""
        M = 1.0 if self.M is None else self.M
        return np.diag(M * scale * scale) if isinstance(M, float) else scale[:, None] * M * scale


def _attainable(L: Matrix, D: Matrix, k: float) -> Matrix | None:
    """D, or the nearest multiple of it, with D ⪯ L⁻¹ and tr(LD) ≤ k proved for its floats; None without a proof."""
    scale = power_of_two_scaling(L.diagonal())
    B, X = scale[:, None] * L * scale, D / scale[:, None] / scale
    program = Program.single(B, DiagonalPlusScaled.identity(len(B)), Pattern.full(len(B)))
    within = _within_budget(B, 0.5 * (X + X.T), k)
    if within is None:
        return None

    def lowered(loss: float) -> Matrix | None:
        candidate = np.asarray((1.0 - loss) * within)
        # In the basis of D rounding counts least, but the plain proof is the cheaper one.
        proved = Evaluation(program, candidate).feasible or InBasis(program, candidate).feasible
        return np.asarray(scale[:, None] * candidate * scale) if proved else None

    return first_proved((0.0, *losses(len(B) * UNIT, LARGEST_LOSS)), lowered)


def _within_budget(L: Matrix, D: Matrix, k: float) -> Matrix | None:
    """D, lowered until tr(LD) ≤ k is proved; None without a proof."""
    exact = Pair.exact(L)
    used = exact.inner(Pair.exact(D)).high
    if used <= k:
        return D

    def lowered(loss: float) -> Matrix | None:
        candidate = D * (k / used * (1.0 - loss))
        return candidate if exact.inner(Pair.exact(candidate)).high <= k else None

    # The rounding of the entries of D may count more than the loss.
    return first_proved(losses(4.0 * UNIT, LARGEST_LOSS, 2.0), lowered)


def proved_mean(A: Matrix, h: Vector) -> Matrix:
    """D next to A Diag(h) Aᵀ, below it by proof."""
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
