"""The largest t with D ⪰ tM⁻¹ under the condition F(D) = D − 𝒬(DBD) ⪰ 0, proved from both sides for the floats given.

The condition gives E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D, so D ⪰ tM⁻¹ does under it what H ⪰ tM⁻¹ does without (``.descent``).

*From below.*  F(D) ⪰ 0 as in ``.evaluation``, D ⪰ tM⁻¹ as in ``.floors``.

*From above.*  For Y, Z ⪰ 0 and every D with both,

    t⟨Y, M⁻¹⟩ ≤ ⟨Y, D⟩ + ⟨Z, F(D)⟩ = ⟨Y + Z, D⟩ − ⟨𝒬*(Z), DBD⟩,

a concave quadratic, bounded over the pattern as in ``.quadratics``.  Poor multipliers make the bound weak, never wrong.
"""

from __future__ import annotations

import math

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed
from stepsize_opt.proofs.certificate import Multiplier, semidefinite
from stepsize_opt.proofs.descent import DescentBounds
from stepsize_opt.proofs.evaluation import Evaluation, inverse_root
from stepsize_opt.proofs.floors import SHARES, largest_floor, weight_from_below
from stepsize_opt.proofs.quadratics import largest_quadratic
from stepsize_opt.proofs.roundings import UNIT
from stepsize_solvers.programs import Matrix


def certify_conditioned(
    at: Evaluation, Y: Matrix | None, Z: Matrix | None, M: Matrix | float, tol: float = 0.0
) -> DescentBounds:
    """The proved interval of the largest t: its lower end is one for the D of ``at``, its upper end from Y and Z.

    A little of D⁻¹ is added to a Z that leaves a relative gap of more than a tol > 0.
    """
    lower = largest_floor(Enclosed(at.D, np.zeros_like(at.D)), M) if at.feasible else 0.0
    if Y is None or Z is None:
        return DescentBounds(lower, math.inf)
    upper, root = conditioned_bound(at, Y, Z, M), inverse_root(at.D)
    energy = float(np.vdot(Y, at.D))
    # A Z of low rank makes 𝒬*(Z) nearly singular.  The quadratic of Y + Z + δD⁻¹ is at most that of Y + Z and δ times
    # that of D⁻¹, whose maximum is about d.
    for share in SHARES if tol > 0.0 and root is not None and 0.0 < energy < math.inf else ():
        if upper <= lower * (1.0 + tol):
            break
        assert root is not None
        mixed = Z + (share * tol * energy / at.program.d) * (root.T @ root)
        upper = min(upper, conditioned_bound(at, Y, 0.5 * (mixed + mixed.T), M))
    return DescentBounds(lower, upper)


def conditioned_bound(at: Evaluation, Y: Matrix, Z: Matrix, M: Matrix | float) -> float:
    """A proved upper bound on the largest t with D ⪰ tM⁻¹ and F(D) ⪰ 0 for a D of the pattern; +inf without a proof."""
    found, left = Multiplier.near(at.condition.Q, Z, at.arithmetic), semidefinite(Y, at.arithmetic)
    if found is None or left is None:
        return math.inf
    weight, q = weight_from_below(left.rounded(), M), largest_quadratic(at, left + found.Z, found.R)
    return q / weight * (1.0 + 4.0 * UNIT) if weight > 0.0 and 0.0 < q < math.inf else math.inf
