"""Repair: the feasible point next to an answer that may be a little outside.

The conditions of the paper are quadratic on the left and linear on the right, so a D that is a little outside becomes
feasible when it is divided by ``λmax(D^{−½} 𝒬(D B D) D^{−½})``; what is returned is *proved* feasible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stepsize_opt.proofs.arithmetic import UNIT, Plain
from stepsize_opt.proofs.evaluation import Evaluation, inverse_root, whitened_spectrum
from stepsize_solvers.programs import BlockPattern, Constraint, LogDetProgram, Matrix, Pattern, block_slices


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


def repair(program: LogDetProgram, D: Matrix, loss: float = 0.0) -> Evaluation | None:
    """The given D, symmetrised, put into its pattern and scaled to a *proved* feasible point next to the boundary.

    The proof uses plain arithmetic where its rounding costs a relative distance of at most ``loss`` from the boundary,
    and twice that precision otherwise.
    Returns None when D is not positive definite or no feasible scale is found.
    """
    D = into_pattern(program.pattern, D)
    if loss > 0.0 and np.isfinite(D).all():
        # An answer on the boundary needs no search for it.
        near = Evaluation(program, (1.0 - 0.5 * loss) * D, Plain)
        if near.feasible and near.margin <= loss:
            return near
    if np.isfinite(D).all():
        D = np.ldexp(D, -int(np.frexp(np.abs(D).max())[1]))  # D B D of a tiny or huge D has no floats
    root = inverse_root(D)
    if root is None:
        return None
    at = Evaluation(program, D, Plain)
    scale = _boundary(at, root)
    if not (0.0 < scale < math.inf):
        return None
    if not 0.5 <= scale <= 2.0:
        # Rounding is judged next to the boundary; a power of four gets there without rounding of D or of its root.
        power = round(0.5 * math.log2(scale))
        root = root * 2.0**-power
        at = Evaluation(program, D * 4.0**power, Plain)
        scale = _boundary(at, root)
    found = _proved(at, root, scale, loss)
    if found is None:
        finer = Evaluation(program, at.D)
        found = _proved(finer, root, _boundary(finer, root), 0.1)  # a retreat of 10 % is a failure
    # Errors of the higher precision are relative to whole rows; where rows are graded, plain arithmetic may prove more.
    return found or _proved(at, root, scale, 0.1)


def _boundary(at: Evaluation, root: Matrix) -> float:
    """The largest t with tD feasible, from the middle of the enclosures; ``root`` is an inverse root of D."""
    images = [
        None if con.Q is None or M is None else con.Q.apply(M.value)
        for con, M in zip(at.program.constraints, at.quadratic, strict=True)
    ]
    return _largest_scale(at.program, at.D, root, images)


def _proved(at: Evaluation, root: Matrix, scale: float, loss: float) -> Evaluation | None:
    """A multiple of D that is proved feasible, within the relative distance ``loss`` of the boundary; None if not."""
    if not (0.0 < scale < math.inf):
        return None
    # Retreat by what the proof needs, or by the rounding of the eigenvalue behind the scale if that is more; give way
    # further until the proof goes through.
    retreat = max(1.25 * at.doubt(root), 2.0 * at.program.d * UNIT)
    while retreat <= loss:
        candidate = Evaluation(at.program, np.asarray((scale * (1.0 - retreat)) * at.D), at.arithmetic)
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
