"""What a given stepsize does *not* satisfy, proved: one vector refutes a matrix inequality.

*λ_D from below.*  λmax(Lᵢ^½VLᵢ^½) = max_w wᵀLᵢVLᵢw / wᵀLᵢw, so every w with Lᵢw ≠ 0 gives a lower bound.  With
HHᵀ ≈ Lᵢ and the top eigenvector u of HᵀVH the best one is w = H⁻ᵀu.

*A matrix that is not positive semidefinite.*  vᵀMv < 0 for the eigenvector of the lowest eigenvalue.

*The rate from above.*  Cholesky with a raised diagonal bounds the determinant (``.cholesky``).
"""

from __future__ import annotations

import math

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.cholesky import log_det_from_above
from stepsize_opt.proofs.conditions import Conditions, Scaled, VarianceMap
from stepsize_opt.proofs.intervals import Interval
from stepsize_solvers.programs import Matrix

# Below this, beside numbers near one, underflow may be as large as the rounding that is counted.
_SMALLEST = 2.0**-900


def lambda_from_below(conditions: Conditions, D: Matrix) -> float:
    """Return a lower bound on λ_D in the user's units, 0 without one; infinity is cut off at the largest float."""
    found = [_group_from_below(conditions, variance, D) for variance in conditions.variances]
    best = max(found, key=lambda s: s.log, default=Scaled(0.0, 0))
    value = min(best.value, float(np.finfo(np.float64).max))
    return value if value > _SMALLEST else 0.0


def _group_from_below(conditions: Conditions, variance: VarianceMap, D: Matrix) -> Scaled:
    group, middle = variance.group, variance.middle
    if not variance.sketch_outside:  # there the middle is a bound from above
        middle = conditions.centred_L(group).to(Pair).block(variance.inside)
    V, e = variance.product(D, middle)
    if variance.sketch_outside:
        V = group.map.enclose(V.rounded().symmetric()).to(Pair)
    quotients = [_quotient(L, H, V) for L, H in zip(group.matrices, group.factors, strict=True)]
    return Scaled(max(quotients), 2 * e + conditions.client_exponent)


def _quotient(L: Matrix, H: Matrix, V: Pair) -> float:
    """Return a lower bound on λmax(L^½VL^½); 0 without one."""
    u = np.linalg.eigh(H.T @ V.hi @ H)[1][:, -1:]
    w = Pair.exact(np.asarray(np.linalg.lstsq(H.T, u, rcond=None)[0], dtype=np.float64))
    image = Pair.exact(L) @ w
    numerator, denominator = image.inner(V @ image), w.inner(image)
    return (numerator / denominator).low if min(numerator.low, denominator.low) > _SMALLEST else 0.0


def refutes(conditions: Conditions, D: Matrix) -> bool:
    """Return whether it is proved that D ≻ 0 is false, or what is asked of D beside λ_D: D ⪯ L⁻¹, or 2D − DLD ≻ 0."""
    asked = conditions.minus_quadratic(D, 2.0 if conditions.metric else 1.0)
    least = _lowest(asked)
    return _lowest(Pair.exact(D)) <= 0.0 or (least <= 0.0 if conditions.metric else least < 0.0)


def _lowest(M: Pair) -> float:
    """Return an upper bound on vᵀMv for the eigenvector v of the lowest eigenvalue."""
    v = Pair.exact(np.linalg.eigh(M.hi)[1][:, :1])
    return v.inner(M @ v).high


def log_rate_from_above(conditions: Conditions, D: Matrix) -> float:
    """Return an upper bound on the logarithm of the rate of D in the user's coordinates; infinite without one."""
    A = conditions.minus_quadratic(D, 2.0).rounded().symmetric() if conditions.metric else Enclosed.exact(D)
    above = log_det_from_above(A)
    return math.inf if above is None else (Interval.exact(above) / conditions.d + conditions.log_scale).high
