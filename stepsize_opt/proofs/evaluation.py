"""A stepsize matrix with an enclosure of its condition F(D) = D − 𝒬(D B D) ⪰ 0: what is proved about one D.

Whitened by an inverse root K⁻¹ of D = KKᵀ, the condition becomes K⁻¹F(D)K⁻ᵀ ⪰ 0, whose smallest eigenvalue is the
margin of D.  Feasibility itself is proved by a Cholesky factorisation of the enclosure of F(D), shifted by the errors
of both (``.arithmetic``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair
from stepsize_opt.proofs.cholesky import (
    cholesky_shift,
    log_det_from_above,
    log_det_from_below,
    log_slack,
    proved_cholesky,
)
from stepsize_opt.proofs.maps import image
from stepsize_opt.proofs.roundings import SMALLEST_STEPSIZE, UNIT
from stepsize_solvers.programs import Family, Matrix, Pattern, Program, Vector, add_to_diagonal


class Evaluation:
    """A symmetric stepsize matrix D with enclosures of D B D and of F(D) = D − 𝒬(D B D), computed once.

    A rounded B is taken at its upper end, so that what is proved of F(D) holds for every matrix it may stand for.
    ``arithmetic`` is the precision of the products: enclosures by ``Plain`` are wider, and cheaper.
    B: its upper end; half: D B; square: D B D, and quadratic the same rounded; value: F(D).
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
        self.half = self.exact @ self.B
        self.square = self.half @ self.exact

    @cached_property
    def quadratic(self) -> Enclosed:
        return self.square.rounded()

    @cached_property
    def value(self) -> Enclosed:
        image_of = image(self.condition.Q, self.quadratic, self.arithmetic)
        value = self.D - image_of.value
        return Enclosed(value, image_of.error + UNIT * np.abs(value)).symmetric()

    def times(self, B: Matrix) -> Approximate:
        """D B."""
        return self.exact @ self.arithmetic.exact(B)

    @cached_property
    def feasible(self) -> bool:
        """Whether D ≻ 0 has the pattern and F(D) ⪰ 0, *proved* for the floats of D."""
        if not min(self.D.diagonal().tolist()) >= SMALLEST_STEPSIZE:
            return False
        if not self.program.pattern.contains(self.D) or self.log_det is None:
            return False
        return proved_cholesky(self.value) is not None

    @cached_property
    def log_det(self) -> float | None:
        """A proved lower bound on log det D, or None when D is not proved positive definite."""
        return log_det_from_below(self.D)

    @cached_property
    def margin(self) -> float:
        """λmin(D^{−½} F(D) D^{−½}): nonnegative if and only if D is feasible; −inf when D is not definite."""
        root = inverse_root(self.D)
        if root is None:
            return -math.inf
        least = float(whitened_spectrum(self.value.value, root)[0])
        return -math.inf if math.isnan(least) else least

    def multiple(self, t: float) -> Evaluation:
        """tD of the same program, in the same precision."""
        return Evaluation(self.program, np.asarray(t * self.D), self.arithmetic, self.B)

    def elsewhere(self, D: Matrix) -> Evaluation:
        """Another matrix of the same program, in twice the working precision."""
        return Evaluation(self.program, D)

    def block_log_det(self, Q: Approximate, s: slice) -> float | None:
        """A proved lower bound on log det of a block of a matrix close to a multiple of D⁻¹; None without a proof."""
        return block_log_det(Q, s)

    def log_det_below(self, A: Matrix) -> float | None:
        """A proved lower bound on log det of floats; None without a proof."""
        return log_det_from_below(A)

    def log_det_above(self, W: Matrix) -> float | None:
        """A proved upper bound on log det of floats; None without a proof."""
        return log_det_from_above(W)

    def margin_needed(self, root: Matrix) -> float:
        """An upper bound, relative to D, on what rounding may take from F(D): the margin that a proof needs.

        ``root`` is an inverse root of D.
        """
        return diagonal_norm(cholesky_shift(self.value), root)


def block_log_det(Q: Approximate, s: slice) -> float | None:
    """A proved lower bound on log det of a diagonal block Q; None without a proof."""
    return log_det_from_below(Q.rounded().symmetric())


def log_det_conjugate(
    pattern: Pattern,
    Q: Approximate,
    below: Callable[[Approximate, slice], float | None] = block_log_det,
    above: Callable[[Matrix], float | None] = log_det_from_above,
) -> float | None:
    """An upper bound on max { log det D − ⟨Q, D⟩ } + d over the pattern, or None when it is not proved finite.

    ``below`` bounds log det of a diagonal block of Q, ``above`` that of a matrix of floats.
    """
    if pattern.is_diagonal:
        return _diagonal_conjugate(Q.rounded())
    total: list[float] = []
    for s in pattern.slices:
        block = Q.block(s)
        if pattern.W is None:
            bound = below(block, s)
            if bound is None:
                return None
            total.append(-bound)
        else:
            W = pattern.W[s, s]
            size = W.shape[0]
            bound = above(W)
            inner = -((-block).inner_from_above(Q.exact(W)))
            if bound is None or inner <= 0.0:
                return None
            term = size * math.log(size / inner)
            total.append(bound + term + 4.0 * UNIT * (abs(bound) + abs(term) + size))  # the quotient's rounding, too
    return math.fsum(total)


def _diagonal_conjugate(Q: Enclosed) -> float | None:
    """−Σ log Q_jj from above, or None unless every Q_jj is proved positive."""
    value, error = Q.value.diagonal(), Q.error.diagonal()
    least = value - error - 2.0 * UNIT * (np.abs(value) + error)  # the rounding of the differences, too
    if not least.min() > 0.0:
        return None
    logs = np.log(least).tolist()
    return log_slack(logs) - math.fsum(logs)


def condition_of(program: Program) -> Family:
    """The condition 𝒬(D B D) ⪯ D of a program that has no other."""
    condition = program.condition
    if condition is None:
        msg = "what is proved about one stepsize takes programs with the one condition 𝒬(D B D) ⪯ D"
        raise ValueError(msg)
    return condition


def shifted_matrix(condition: Family, sign: float) -> Matrix:
    """B ± Diag(r): with + no smaller, with − no larger than the matrix that B may be a rounding of."""
    assert condition.B is not None  # by the definition of Program.condition
    if condition.B_slack is None:
        return condition.B
    out = condition.B.copy()
    # Twice the slack, so that the rounding of this sum is covered too.
    add_to_diagonal(out, sign * 2.0 * condition.B_slack)
    return out


def inverse_root(D: Matrix) -> Matrix | None:
    """K⁻¹ of the Cholesky factorisation D = KKᵀ, in plain floating point; None when D is not positive definite."""
    K, info = lapack.dpotrf(D.T, 1, 1)  # lower, clean
    # LAPACK need not stop at NaN or infinity, but a diagonal entry of the factor takes them on.
    definite = info == 0 and math.isfinite(sum(K.diagonal().tolist()))
    return np.asarray(lapack.dtrtri(K, 1)[0]) if definite else None


def whitened_spectrum(A: Matrix, root: Matrix) -> Vector:
    """The eigenvalues of D^{−½} A D^{−½}, ascending, from an inverse root of D; in plain floating point."""
    W = root.dot(A).dot(root.T)  # of which LAPACK reads one half
    # All eigenvalues, by divide and conquer: LAPACK's methods for a part of them break down on clusters, and W is
    # close to the identity for D = L⁻¹.
    w, _, info = lapack.dsyevd(W.T, 0, 1)  # compute_v, lower
    return np.asarray(w) if info == 0 else np.full(len(W), math.nan)


def diagonal_norm(h: Vector, root: Matrix) -> float:
    """‖D^{−½} Diag(h) D^{−½}‖ for h ≥ 0, from an inverse root of D."""
    half = root * np.sqrt(h)
    return float(lapack.dsyevd(half.dot(half.T), 0, 1)[0][-1])
