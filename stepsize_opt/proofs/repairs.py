"""The ladder of precisions of a proof about D, and repair: the feasible point next to an answer a little outside.

*Precisions.*  ``Evaluation`` in working precision (``Enclosed``) is the cheapest, in twice that (``Pair``) it loses
less to rounding, and ``InBasis`` loses the least where D is ill-conditioned; errors of ``Pair`` are relative to whole
rows, so that where rows are graded ``Enclosed`` may prove more.  For a given D ``finest`` takes the last precision
that proves anything, ``is_feasible`` any.  For an answer ``repaired`` and ``unrepaired`` yield points, the cheapest
precision first, and ``narrowest`` takes them one by one until the gap is within the tolerance.

Three rungs stand elsewhere, as no feasible D is what they look for: ``Evaluation.certificate`` takes the *bound* on the
optimum again in twice the precision of its D where that leaves a gap; ``clients.programs`` takes the bounds of
multipliers in both, because either may be the smaller; ``clients.fit`` retreats from λ_D in working precision first,
because a retreat of a few roundings is cheaper than twice the precision.

*Repair.*  The conditions of the paper are quadratic on the left and linear on the right, so a D that is a little
outside becomes feasible when it is divided by ``λmax(D^{−½} 𝒬(D B D) D^{−½})``; what is returned is *proved* feasible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from stepsize_opt.proofs.arithmetic import PRECISIONS, Enclosed
from stepsize_opt.proofs.basis import InBasis
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.descent import Descent
from stepsize_opt.proofs.evaluation import Evaluation, inverse_root, whitened_spectrum
from stepsize_opt.proofs.roundings import UNIT
from stepsize_solvers.programs import Matrix, Program, exponent_above

_TINY = 2.0**-200  # D B D of a smaller D, or of a larger one than the inverse, may have no floats
_FAILURE = 0.1  # a proof that takes a larger share of D has failed

Point = TypeVar("Point", bound=Evaluation)


def precisions(program: Program, D: Matrix) -> tuple[Evaluation, ...]:
    """Return D in each precision, the cheapest first; nothing is computed before it is asked for."""
    return *(Evaluation(program, D, arithmetic) for arithmetic in PRECISIONS), InBasis(program, D)


def is_feasible(program: Program, D: Matrix) -> bool:
    """Return whether D is proved feasible in any precision."""
    return any(at.feasible for at in precisions(program, D))


def finest(program: Program, D: Matrix) -> Evaluation:
    """Return D in the finest precision in which it is proved feasible; in twice the working one if in none."""
    found = precisions(program, D)
    return next((at for at in reversed(found) if at.feasible), found[1])


def closest(program: Program, D: Matrix) -> Evaluation | None:
    """Return the feasible point next to the boundary by the finest proof; None without a proof."""
    return repair_in_basis(program, D) or repair(program, D)


def repaired(program: Program, D: Matrix, loss: float = 0.0) -> Iterator[Evaluation]:
    """Yield the feasible points next to D by ``repair`` and, closer where rounding counts, by ``repair_in_basis``.

    Where not even a multiple of D is feasible the first is the best multiple of a plain matrix: a poor answer with a
    large gap, but a proved one.
    """
    first = repair(program, D, loss) or repair(program, program.pattern.member)
    if first is not None:
        yield first
        finer = repair_in_basis(program, D)
        if finer is not None:
            yield finer


def unrepaired(program: Program, D: Matrix) -> Iterator[Descent]:
    """Yield D in its pattern with H ≻ 0 proved, in each precision in which it is."""
    points = (Descent(program, program.pattern.nearest(D), arithmetic) for arithmetic in PRECISIONS)
    return (at for at in points if at.feasible)


def narrowest(
    points: Iterable[Point], certify: Callable[[Point], Certificate], tol: float
) -> tuple[Certificate, Point] | None:
    """Return the point with the smallest gap and its certificate; none is tried after one within ``tol``."""
    best: tuple[Certificate, Point] | None = None
    for at in points:
        certificate = certify(at)
        if best is None or certificate.gap < best[0].gap:
            best = certificate, at
        if certificate.is_optimal(tol):
            break
    return best


def repair(program: Program, D: Matrix, loss: float = 0.0) -> Evaluation | None:
    """The given D, symmetrised, put into its pattern and scaled to a *proved* feasible point next to the boundary.

    The proof uses plain arithmetic where its rounding costs a relative distance of at most ``loss`` from the boundary,
    and twice that precision otherwise.
    Returns None when D is not positive definite or no feasible scale is found.
    """
    D = program.pattern.nearest(D)
    top = float(np.abs(D).max())
    if not 0.0 < top < math.inf:
        return None
    if not _TINY < top < 1.0 / _TINY:
        D = np.ldexp(D, -math.frexp(top)[1])
    at = Evaluation(program, (1.0 - 0.5 * loss) * D, Enclosed)
    if loss > 0.0 and at.feasible and at.margin <= loss:
        return at  # an answer on the boundary needs no search for it
    root = inverse_root(at.D)
    if root is None:
        return None
    scale = _boundary(at, root)
    if not (0.0 < scale < math.inf):
        return None
    if not 0.5 <= scale <= 2.0:
        # Rounding is judged next to the boundary; a power of four gets there without rounding of D or of its root.
        power = round(0.5 * math.log2(scale))
        root = root * 2.0**-power
        at = Evaluation(program, D * 4.0**power, Enclosed)
        scale = _boundary(at, root)
    found = _proved(at, root, scale, loss)
    if found is None:
        finer = Evaluation(program, at.D)
        found = _proved(finer, root, _boundary(finer, root), _FAILURE, loss)
    return found or _proved(at, root, scale, _FAILURE)


def repair_in_basis(program: Program, D: Matrix) -> InBasis | None:
    """The same, as close to the boundary as the floats of D allow, proved in the basis of D; None without a proof."""
    D = program.pattern.nearest(D)
    if not np.isfinite(D).all():
        return None
    at = InBasis(program, np.ldexp(D, -exponent_above(D)))
    if 0.0 < at.boundary < math.inf and not 0.5 <= at.boundary <= 2.0:
        at = InBasis(program, at.D * 4.0 ** round(0.5 * math.log2(at.boundary)))  # rounding is judged at the boundary
    if not 0.0 < at.boundary < math.inf:
        return None
    # The entries of D are rounded, too, which counts relative to its smallest eigenvalue: give way until it is covered.
    return at.first_feasible(at.boundary, max(2.0 * at.loss, 2.0 * program.d * UNIT), _FAILURE, 2.0)


def _boundary(at: Evaluation, root: Matrix) -> float:
    """Return the largest t with tD feasible, from the middle of the enclosures; ``root`` is an inverse root of D."""
    top = float(whitened_spectrum(at.condition.Q.apply(at.quadratic.value), root)[-1])
    return 1.0 / top if top > 0.0 else math.inf


def _proved(at: Evaluation, root: Matrix, scale: float, loss: float, near: float = 0.0) -> Evaluation | None:
    """A multiple of D that is proved feasible, within the relative distance ``loss`` of the boundary; None if not.

    D itself is good enough within the relative distance ``near``.
    """
    if not (0.0 < scale < math.inf):
        return None
    # Retreat by what the proof needs, or by the rounding of the eigenvalue behind the scale if that is more; give way
    # further until the proof goes through.
    needed = max(1.25 * at.margin_needed(root), 2.0 * at.program.d * UNIT)
    if 1.0 + needed <= scale <= 1.0 + near and at.feasible:
        return at
    return at.first_feasible(scale, needed, loss, 2.0)
