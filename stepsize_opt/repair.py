"""Repair: the feasible point next to an answer that may be a little outside.

The conditions of the paper are quadratic on the left and linear on the right, so a D that is a little outside becomes
feasible when it is divided by ``λmax(D^{−½} 𝒬(D B D) D^{−½})``; what is returned is *proved* feasible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from solvers.maps import Matrix, block_slices
from solvers.program import BlockPattern, Constraint, LogDetProgram, Pattern
from stepsize_opt.evaluation import Evaluation, diagonal_norm, inverse_root, shifted_matrix, whitened_spectrum
from stepsize_opt.verified import UNIT, gamma


def _scale_by_bisection(con: Constraint, D: Matrix, root: Matrix) -> float:
    """The largest t with G(tD) ⪰ 0; t ↦ G(tD) is concave, so the feasible t form an interval that starts at 0."""

    def inside(t: float) -> bool:
        G = con.evaluate(t * D)
        return bool(np.isfinite(G).all() and whitened_spectrum(G, root)[0] >= 0.0)

    low, high = 0.0, 1.0
    while inside(high) and high < 1e300:
        low, high = high, 2.0 * high
    while high > 1e-300 and low == 0.0:
        high *= 0.5
        if inside(high):
            low, high = high, 2.0 * high
    while high - low > 4.0 * UNIT * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if inside(middle) else (low, middle)
    return low


def _largest_scale(program: LogDetProgram, D: Matrix, root: Matrix, images: Sequence[Matrix | None]) -> float:
    """The largest t with tD feasible, in plain floating point; 0 when there is none.

    ``root`` is an inverse root of D, ``images`` holds the 𝒬_j(D B_j D).
    """
    scale = math.inf
    for con, moved in zip(program.constraints, images, strict=True):
        if moved is not None and con.is_homogeneous and con.c == 0.0:
            if con.a <= 0.0:
                return 0.0
            top = float(whitened_spectrum(moved, root)[-1])
            scale = min(scale, con.a / top if top > 0.0 else math.inf)
        else:
            scale = min(scale, _scale_by_bisection(con, D, root))
    return scale


class _Plain:
    """D with an inverse root, the 𝒬_j(D B_j D) and the largest feasible scale, all in plain floating point."""

    def __init__(self, program: LogDetProgram, D: Matrix, root: Matrix) -> None:
        self.program = program
        self.D = D
        self.root = root
        self.images = [
            None if con.Q is None or con.B is None else con.Q.apply(D.dot(shifted_matrix(con, 1.0)).dot(D))
            for con in program.constraints
        ]
        self.scale = _largest_scale(program, D, root, self.images)

    def retreat(self, loss: float) -> float | None:
        """How far, relative to D, a proof has to stay off the boundary; None when that needs verified arithmetic.

        An estimate, for the constraints aD − 𝒬(DBD) ⪰ 0 alone: what the proof will take, and the rounding of the
        boundary found here, which must be the smaller of the two or within ``loss``.
        """
        D, size = self.D, np.abs(self.D)
        n = len(D)
        worst = 0.0
        for con, moved in zip(self.program.constraints, self.images, strict=True):
            if con.Q is None or con.B is None or moved is None or not con.is_homogeneous or con.c != 0.0:
                return None
            # The error of _constraint_value, and the shift of the Cholesky factorisation that proves it.
            error = (3.0 * size + 12.0 * np.abs(moved)).sum(axis=1)
            needed = 2.0 * UNIT * error + (2.0 * n * gamma(n + 2)) * D.diagonal()
            # Errors of the two products behind DBD, u|D||B||D| each; they add up by chance, not all in one direction.
            lost = 2.0 * UNIT * con.Q.magnitude(size.dot(np.abs(con.B)).dot(size)).sum(axis=1)
            off = diagonal_norm(1.25 * needed + lost, self.root)
            if not (off <= loss or (lost <= needed).all()):
                return None
            worst = max(worst, off)
        return worst


def repair(program: LogDetProgram, D: Matrix, loss: float = 0.0) -> Evaluation | None:
    """The given D, symmetrised, put into its pattern and scaled to a *proved* feasible point next to the boundary.

    Plain arithmetic finds the boundary where its rounding costs a relative distance of at most ``loss``, or no more
    than the proof costs anyway; otherwise verified arithmetic does, at twice the price.
    Returns None when D is not positive definite or no feasible scale is found.
    """
    D = into_pattern(program.pattern, D)
    root = inverse_root(D)
    if root is None:
        return None
    plain = _Plain(program, D, root)
    if not (0.0 < plain.scale < math.inf):
        return None
    if not 0.5 <= plain.scale <= 2.0:
        # Rounding is judged next to the boundary; a power of four gets there without rounding of D or of its root.
        power = round(0.5 * math.log2(plain.scale))
        plain = _Plain(program, D * 4.0**power, root * 2.0**-power)
    retreat = plain.retreat(loss)
    if retreat is None or retreat >= 0.1:
        return _proved_scale(Evaluation(program, plain.D), plain.root)
    at = Evaluation(program, np.asarray((plain.scale * (1.0 - retreat)) * plain.D))
    return at if at.feasible else _proved_scale(at, plain.root / math.sqrt(plain.scale))


def _proved_scale(at: Evaluation, root: Matrix) -> Evaluation | None:
    """A multiple of D next to the boundary that is proved feasible, from the enclosures of the G_j(D)."""
    program = at.program
    images = [
        None if con.Q is None or M is None else con.Q.apply(M.value)
        for con, M in zip(program.constraints, at.quadratic, strict=True)
    ]
    scale = _largest_scale(program, at.D, root, images)
    # Retreat by what the proof needs, or by the rounding of the eigenvalue behind the scale if that is more; give way
    # further until the proof goes through.  10 % is a failure.
    retreat = max(1.25 * at.doubt(root), 2.0 * program.d * UNIT)
    while retreat < 0.1 and 0.0 < scale < math.inf:
        candidate = Evaluation(program, np.asarray((scale * (1.0 - retreat)) * at.D))
        if candidate.feasible:
            return candidate
        retreat *= 2.0
    return None


def into_pattern(pattern: Pattern, D: Matrix) -> Matrix:
    """The symmetric part of D with the pattern: entries outside the blocks dropped, or each γᵢ matched by its trace."""
    D = 0.5 * (D + D.T)
    if isinstance(pattern, BlockPattern):
        return D if pattern.is_full else pattern.project(D)
    out = np.zeros_like(D)
    for s in block_slices(pattern.sizes):
        W = pattern.W[s, s]
        out[s, s] = (np.trace(D[s, s]) / np.trace(W)) * W
    return out
