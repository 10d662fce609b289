"""A stepsize matrix with enclosures of all its constraints: what is proved about one D.

Whitened by an inverse root K⁻¹ of D = KKᵀ, the constraint G(D) ⪰ 0 becomes K⁻¹G(D)K⁻ᵀ ⪰ 0, whose smallest eigenvalue
is the margin of D.  Feasibility itself is proved by a Cholesky factorisation of the enclosure of G(D), shifted by the
errors of both (:mod:`stepsize_opt.proofs.arithmetic`).
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import (
    SMALLEST_STEPSIZE,
    UNIT,
    Approximate,
    Enclosed,
    Pair,
    cholesky_shift,
    log_det_from_below,
    proved_cholesky,
)
from stepsize_opt.proofs.maps import image
from stepsize_solvers.programs import (
    BlockPattern,
    Constraint,
    LogDetProgram,
    Matrix,
    Pattern,
    ScaledPattern,
    Vector,
    block_slices,
)


class Evaluation:
    """A symmetric stepsize matrix D with enclosures of every D B_j D and G_j(D), computed once for all that follows.

    A rounded B_j is taken at its upper end, so that what is proved of G_j(D) holds for the matrix that is meant.
    ``arithmetic`` is the precision of the products: enclosures by :class:`Plain` are wider, and cheaper.
    """

    def __init__(self, program: LogDetProgram, D: Matrix, arithmetic: type[Approximate] = Pair) -> None:
        self.program = program
        self.D = D
        self.arithmetic = arithmetic
        self.exact = arithmetic.exact(D)
        self.halves = [None if con.B is None else self.half(shifted_matrix(con, 1.0)) for con in program.constraints]
        self.quadratic = [None if half is None else (half @ self.exact).rounded() for half in self.halves]
        self.values = [
            _constraint_value(con, D, M, arithmetic) for con, M in zip(program.constraints, self.quadratic, strict=True)
        ]

    def half(self, B: Matrix) -> Approximate:
        """D B."""
        return self.exact @ self.arithmetic.exact(B)

    @cached_property
    def feasible(self) -> bool:
        """Whether D ≻ 0 has the pattern and every G_j(D) ⪰ 0, *proved* for the floats of D."""
        if not self.D.diagonal().min() >= SMALLEST_STEPSIZE:
            return False
        if not _has_pattern(self.program.pattern, self.D) or self.log_det is None:
            return False
        return all(proved_cholesky(value) is not None for value in self.values)

    @cached_property
    def log_det(self) -> float | None:
        """A proved lower bound on log det D, or None when D is not proved positive definite."""
        return log_det_from_below(self.D)

    @cached_property
    def margin(self) -> float:
        """min_j λmin(D^{−½} G_j(D) D^{−½}): nonnegative just when D is feasible; −inf when D is not definite."""
        root = inverse_root(self.D)
        if root is None:
            return -math.inf
        least = min(float(whitened_spectrum(value.value, root)[0]) for value in self.values)
        return -math.inf if math.isnan(least) else least

    def doubt(self, root: Matrix) -> float:
        """An upper bound, relative to D, on what rounding may take from the G_j(D): what a proof needs as margin.

        ``root`` is an inverse root of D.
        """
        return max(diagonal_norm(cholesky_shift(value), root) for value in self.values)


def _constraint_value(con: Constraint, D: Matrix, M: Enclosed | None, arithmetic: type[Approximate]) -> Enclosed:
    """An enclosure of G(D) = C + aD + c det(D)^{1/d} E − 𝒬(M) with M = DBD."""
    value = con.a * D
    error = UNIT * np.abs(value)
    if con.C is not None:
        value = value + con.C
        error = error + UNIT * np.abs(value)
    if con.E is not None and con.c != 0.0:
        below = log_det_from_below(D)
        # c E ⪰ 0, so a lower bound on det(D)^{1/d} gives a lower bound on G; exp rounds by less than 2 ulp.
        tau = 0.0 if below is None else math.exp(below / D.shape[0]) * (1.0 - 8.0 * UNIT)
        term = con.c * tau * con.E
        value = value + term
        error = error + UNIT * (np.abs(value) + 2.0 * np.abs(term))
    if con.Q is not None and M is not None:
        quadratic = image(con.Q, M, arithmetic)
        value = value - quadratic.value
        error = error + quadratic.error + UNIT * np.abs(value)
    return Enclosed(value, error).symmetric()


def shifted_matrix(con: Constraint, sign: float) -> Matrix:
    """B ± Diag(r): with + no smaller, with − no larger than the matrix that is meant."""
    if con.B is None:
        msg = "the constraint has no quadratic term"
        raise ValueError(msg)
    if con.B_slack is None:
        return con.B
    out = con.B.copy()
    # Twice the slack, so that the rounding of this sum is covered too.
    np.einsum("ii->i", out)[:] += sign * 2.0 * con.B_slack
    return out


def inverse_root(D: Matrix) -> Matrix | None:
    """K⁻¹ of the Cholesky factorisation D = KKᵀ, in plain floating point; None when D is not positive definite."""
    if not np.isfinite(D).all():
        return None
    K, info = lapack.dpotrf(D.T, 1, 1)  # lower, clean
    return None if info != 0 else np.asarray(lapack.dtrtri(K, 1)[0])


def whitened_spectrum(A: Matrix, root: Matrix) -> Vector:
    """The eigenvalues of D^{−½} A D^{−½}, ascending, from an inverse root of D; in plain floating point."""
    W = root.dot(A).dot(root.T)
    # All eigenvalues, by divide and conquer: LAPACK's methods for a part of them break down on clusters, and W is
    # close to the identity for D = L⁻¹.
    w, _, info = lapack.dsyevd(0.5 * (W + W.T), 0, 1)  # compute_v, lower
    return np.asarray(w) if info == 0 else np.full(len(W), math.nan)


def diagonal_norm(h: Vector, root: Matrix) -> float:
    """‖D^{−½} Diag(h) D^{−½}‖ for h ≥ 0, from an inverse root of D."""
    half = root * np.sqrt(h)
    return float(lapack.dsyevd(half.dot(half.T), compute_v=0, lower=1)[0][-1])


def _has_pattern(pattern: Pattern, D: Matrix) -> bool:
    if not (D == D.T).all():
        return False
    if isinstance(pattern, BlockPattern):
        return pattern.is_full or np.array_equal(D, pattern.project(D))
    return has_direction(pattern, D) and np.array_equal(D, BlockPattern(pattern.sizes).project(D))


def has_direction(pattern: ScaledPattern, D: Matrix) -> bool:
    """Whether the diagonal blocks of D are positive multiples of those of W, up to the rounding of their entries."""
    for s in block_slices(pattern.sizes):
        W, block = pattern.W[s, s], D[s, s]
        if np.array_equal(W, block):
            continue
        j = int(np.argmax(W.diagonal()))
        if not block[j, j] > 0.0:
            return False
        # Near one by powers of two, so that no quotient leaves the range of float64.
        W, block = np.ldexp(W, -math.frexp(W[j, j])[1]), np.ldexp(block, -math.frexp(block[j, j])[1])
        # γᵢWᵢ is rounded entry by entry, so it matches its direction to a few ulp only.
        if not np.allclose(block * (W[j, j] / block[j, j]), W, rtol=16 * UNIT * len(W), atol=0.0):
            return False
    return True
