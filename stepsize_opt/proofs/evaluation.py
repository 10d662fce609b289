"""A stepsize matrix D with an enclosure of F(D) = D − 𝒬(D B D): what is proved about one D, and about the best one.

*Feasible.*  F(D) ⪰ 0 is proved by a Cholesky factorisation of its enclosure, shifted by the errors of both.  Whitened
by an inverse root K⁻¹ of D = KKᵀ the smallest eigenvalue of F(D) is the margin of D.

*Bound.*  Take any multiplier Z ⪰ 0 of F(D) ⪰ 0 and any reference D̂ ≻ 0.  Every feasible D has ⟨Z, F(D)⟩ ≥ 0.
With R = 𝒬*(Z) the term ⟨R, D B D⟩ lies above its tangent at D̂ (``.duals``), so that ⟨Q, D⟩ ≤ s with

    Q = R D̂ B + B D̂ R − Z,      s = ⟨R, D̂ B D̂⟩,

and log det D ≤ d log(s/d) − log det Q when Q ≻ 0.  For block-diagonal D only the blocks of Q count; for
D = Diag(γᵢWᵢ) the bound is d log(s/d) + log det W + Σ dᵢ log(dᵢ/⟨Qᵢᵢ, Wᵢ⟩).

The bound needs no assumption on the solver: poor multipliers make it weak, never wrong.  Every number is enclosed
(``.arithmetic``), so the interval [log det D, upper bound] holds in exact arithmetic for the floats returned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair
from stepsize_opt.proofs.certificate import Certificate, first_proved, losses
from stepsize_opt.proofs.cholesky import (
    cholesky_shift,
    is_proved_definite,
    log_det_from_above,
    log_det_from_below,
)
from stepsize_opt.proofs.duals import Multiplier, Tangent, block_log_det, log_det_conjugate
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.maps import image
from stepsize_opt.proofs.roundings import SMALLEST_STEPSIZE
from stepsize_solvers.programs import Family, Matrix, Pattern, Program, Vector, add_to_diagonal


class Evaluation:
    """A symmetric stepsize matrix D of a program with the one condition 𝒬(D B D) ⪯ D, and what is proved of it.

    ``feasible``, ``lower`` and ``certificate`` are those of the paper's goal, log det D under the condition;
    ``Descent`` has the other goals.  A rounded B is taken at its upper end, so that what is proved
    of F(D) holds for every matrix it may stand for, and at its lower end for bounds on the optimum.
    ``arithmetic`` is the precision of the products: enclosures by ``Enclosed`` are wider, and cheaper.
    B: its upper end; half: D B; square: D B D, and quadratic the same rounded; value: F(D); metric: D + F(D).
    """

    def __init__(
        self, program: Program, D: Matrix, arithmetic: type[Approximate] = Pair, B: Approximate | None = None
    ) -> None:
        self.program = program
        self.condition = condition_of(program)
        self.D = D
        self.arithmetic = arithmetic
        self.exact = arithmetic.exact(D)
        self.B = arithmetic.exact(shifted_matrix(self.condition, 1.0)) if B is None else B

    @property
    def d(self) -> int:
        return self.program.d

    @cached_property
    def half(self) -> Approximate:
        return self.exact @ self.B

    @cached_property
    def square(self) -> Approximate:
        return self.half @ self.exact

    @cached_property
    def quadratic(self) -> Enclosed:
        return self.square.rounded()

    @cached_property
    def value(self) -> Enclosed:
        return (self.D - image(self.condition.Q, self.quadratic, self.arithmetic)).symmetric()

    @cached_property
    def metric(self) -> Enclosed:
        return self.D + self.value

    # ---------------------------------------------------------------- of this D

    @property
    def belongs(self) -> bool:
        """Whether D has the pattern, and numbers that are large enough for the error bounds to hold."""
        return min(self.D.diagonal().tolist()) >= SMALLEST_STEPSIZE and self.program.pattern.contains(self.D)

    @cached_property
    def log_det(self) -> float | None:
        """A proved lower bound on log det D, or None when D is not proved positive definite."""
        return log_det_from_below(self.D)

    @cached_property
    def satisfies_condition(self) -> bool:
        """Whether D ≻ 0 has the pattern and F(D) ⪰ 0, *proved* for the floats of D."""
        return self.belongs and self.log_det is not None and is_proved_definite(self.value)

    @cached_property
    def feasible(self) -> bool:
        """Whether D is proved to be a stepsize of the goal."""
        return self.satisfies_condition

    @cached_property
    def lower(self) -> float:
        """A proved lower bound on what the goal makes large; −inf without one."""
        return -math.inf if self.log_det is None else self.log_det

    @cached_property
    def margin(self) -> float:
        """λmin(D^{−½} F(D) D^{−½}): nonnegative if and only if F(D) ⪰ 0; −inf when D is not definite."""
        root = inverse_root(self.D)
        if root is None:
            return -math.inf
        least = float(whitened_spectrum(self.value.value, root)[0])
        return -math.inf if math.isnan(least) else least

    def margin_needed(self, root: Matrix) -> float:
        """Return an upper bound, relative to D, on what rounding may take from F(D): the margin that a proof needs.

        ``root`` is an inverse root of D.
        """
        half = root * np.sqrt(cholesky_shift(self.value))  # ‖D^{−½} Diag(h) D^{−½}‖ for the shift h
        return float(lapack.dsyevd(half.dot(half.T), 0, 1)[0][-1])

    def descent(self) -> Certificate:
        """Return what is proved of H(D) = D + F(D): H ≻ 0, the margin and log det H from below.

        F(D) ⪰ 0 makes H ⪰ D, so log det D is a bound, too, where D satisfies the condition.
        """
        below = log_det_from_below(self.metric)
        lower = -math.inf if below is None else below
        if self.satisfies_condition and self.log_det is not None:
            lower = max(lower, self.log_det)
        return Certificate(lower > -math.inf, 1.0 + self.margin, lower, math.inf, self.d)

    def multiple(self, t: float) -> Self:
        """Return tD of the same program, in the same precision."""
        return type(self)(self.program, np.asarray(t * self.D), self.arithmetic, self.B)

    def first_feasible(self, scale: float, needed: float, last: float, factor: float) -> Self | None:
        """Return the first feasible of the multiples scale·(1 − loss)·D, loss = needed, factor·needed, … up to last."""
        candidates = (self.multiple(scale * (1.0 - loss)) for loss in losses(needed, last, factor))
        return first_proved(candidates, lambda at: at if at.feasible else None)

    def elsewhere(self, D: Matrix) -> Self:
        """Return another matrix of the same program, in twice the working precision."""
        return type(self)(self.program, D)

    # ---------------------------------------------------------------- of every D

    def block_log_det(self, Q: Approximate, s: slice) -> float | None:
        """Return a lower bound on log det of a block of a matrix close to a multiple of D⁻¹; None without a proof."""
        return block_log_det(Q, s)

    def log_det_below(self, A: Matrix) -> float | None:
        """Return a lower bound on log det of floats; None without a proof."""
        return log_det_from_below(A)

    def log_det_above(self, W: Matrix) -> float | None:
        """Return an upper bound on log det of floats; None without a proof."""
        return log_det_from_above(W)

    def upper_bound(self, dual: Matrix, patterns: Sequence[Pattern] = ()) -> float:
        """Return an upper bound on log det over the feasible set; +inf when this multiplier proves nothing.

        ``dual`` is a Z of any quality, near one; this D is the reference D̂, best the answer.  The bound is one for D of
        the program's pattern, or of any of the ``patterns``.
        """
        found = Multiplier.near(self.condition.Q, dual, self.arithmetic)
        if found is None:
            return math.inf
        half = self.half
        if self.condition.B_slack is not None:
            # A smaller B has a larger feasible set: the lower end of a rounded B gives the valid bound, and its
            # quadratic term may be replaced by the larger one of the upper end.  The tangent needs B ⪰ 0.
            B = shifted_matrix(self.condition, -1.0)
            if not is_proved_definite(B):
                return math.inf
            half = self.exact @ self.arithmetic.exact(B)
        tangent = Tangent.of(found.R, half, self.square)
        Q, s = tangent.linear - found.Z, tangent.constant.high
        if not 0.0 < s < math.inf:
            return math.inf
        known = patterns or (self.program.pattern,)
        conjugates = [log_det_conjugate(pattern, Q, self.block_log_det, self.log_det_above) for pattern in known]
        largest = max(math.inf if value is None else value for value in conjugates)
        return (largest + self.d * (Interval.exact(s) / self.d).log()).high

    def direction_bound(self, dual: Matrix, directions: Sequence[Matrix]) -> float:
        """Return an upper bound on log det over the feasible multiples of the directions W; +inf without a proof.

        γ𝒬(WBW) ⪯ W gives γ ≤ ⟨Z, W⟩/⟨𝒬*(Z), WBW⟩.  No tangent is taken, so B may be as graded as it likes.
        """
        found = Multiplier.near(self.condition.Q, dual, self.arithmetic)
        if found is None:
            return math.inf
        exact, B = self.arithmetic.exact, shifted_matrix(self.condition, -1.0)
        bounds: list[float] = []
        for W in directions:
            energy = found.R.inner(exact(W) @ exact(B) @ exact(W))
            quotient, above = found.Z.inner(exact(W)) / energy, self.log_det_above(W)
            if above is None or not (energy.low > 0.0 and quotient.high < math.inf):
                return math.inf
            bounds.append((above + len(W) * quotient.log()).high)
        return max(bounds)

    def inverse_bound(self) -> float:
        """Return −log det B, a bound when the condition is DBD ⪯ D, that is D ⪯ B⁻¹; +inf when it is another.

        Unlike the bound from multipliers it loses nothing when B is nearly singular.
        """
        below = self.log_det_below(shifted_matrix(self.condition, -1.0)) if self.condition.is_plain else None
        return math.inf if below is None else -below

    def certificate(self, dual: Matrix | None, tol: float = 0.0, others: Sequence[Matrix] = ()) -> Certificate:
        """Return the certificate of D: feasible or not, margin, log det, and an upper bound from a multiplier.

        The bound is taken with D itself as reference and, while the bounds leave a gap above ``tol``, again in twice
        the precision, and with the other reference points (a solver's multiplier fits its raw point better than the
        repaired one).
        """
        upper = self.inverse_bound()
        references: list[Matrix | None] = [None, *others] if self.arithmetic is Pair else [None, self.D, *others]
        for other in references:  # None stands for this evaluation
            if dual is None or (self.feasible and (upper - self.lower) / self.d <= tol):
                break
            if other is None:
                upper = min(upper, self._bound_at(self, dual))
            elif np.isfinite(other).all():
                upper = min(upper, self._bound_at(self.elsewhere(0.5 * (other + other.T)), dual))
        return Certificate(self.feasible, self.margin, self.lower, upper, self.d)

    def _bound_at(self, reference: Evaluation, dual: Matrix) -> float:
        """Return the bound of a multiplier for a set that contains this D, with another D̂ as reference."""
        pattern = self.program.pattern
        if pattern.direction is not None:
            return reference.direction_bound(dual, (pattern.direction, self.D))
        # The entries of D = Diag(γᵢWᵢ) are rounded: it has the pattern of its own blocks.
        patterns = [pattern] if pattern.W is None else [pattern, replace(pattern, W=self.D)]
        return reference.upper_bound(dual, patterns)


def condition_of(program: Program) -> Family:
    """Return the condition 𝒬(D B D) ⪯ D of a program that has no other."""
    condition = program.condition
    if condition is None:
        msg = "what is proved about one stepsize takes programs with the one condition 𝒬(D B D) ⪯ D"
        raise ValueError(msg)
    return condition


def shifted_matrix(condition: Family, sign: float) -> Matrix:
    """Return B ± Diag(r): with + no smaller, with − no larger than the matrix that B may be a rounding of."""
    assert condition.B is not None  # by the definition of Program.condition
    if condition.B_slack is None:
        return condition.B
    out = condition.B.copy()
    # Twice the slack, so that the rounding of this sum is covered too.
    add_to_diagonal(out, sign * 2.0 * condition.B_slack)
    return out


def inverse_root(D: Matrix) -> Matrix | None:
    """Return K⁻¹ of the Cholesky factorisation D = KKᵀ, in plain floats; None when D is not positive definite."""
    K, info = lapack.dpotrf(D.T, 1, 1)  # lower, clean
    # LAPACK need not stop at NaN or infinity, but a diagonal entry of the factor takes them on.
    definite = info == 0 and math.isfinite(sum(K.diagonal().tolist()))
    return np.asarray(lapack.dtrtri(K, 1)[0]) if definite else None


def whitened_spectrum(A: Matrix, root: Matrix) -> Vector:
    """Return the eigenvalues of D^{−½} A D^{−½}, ascending, from an inverse root of D; in plain floats."""
    W = root.dot(A).dot(root.T)  # of which LAPACK reads one half
    # All eigenvalues, by divide and conquer: LAPACK's methods for a part of them break down on clusters, and W is
    # close to the identity for D = L⁻¹.
    w, _, info = lapack.dsyevd(W.T, 0, 1)  # compute_v, lower
    return np.asarray(w) if info == 0 else np.full(len(W), math.nan)
