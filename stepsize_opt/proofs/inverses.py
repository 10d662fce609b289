"""Bounds by the inverse of a matrix, proved for floats: H ⪰ tM⁻¹, ⟨Y, M⁻¹⟩ from below, and M⁻¹ from one side.

H ⪰ tM⁻¹ holds if and only if [ M  √t I ; √t I  H ] ⪰ 0, which a Cholesky factorisation proves.  ⟨Y, M⁻¹⟩ is at least
⟨Y, 2V − VMV⟩ for Y ⪰ 0 and any symmetric V, because M⁻¹ − 2V + VMV = (M⁻¹ − V)M(M⁻¹ − V) ⪰ 0.
M is a matrix, or a number μ that stands for μI.  Y ⪰ M⁻¹ is M ⪰ Y⁻¹, which is YMY ⪰ Y; both sides and the distance
between them are read off one enclosure of YMY.
"""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Enclosed, Pair, enclosed
from stepsize_opt.proofs.certificate import Unproved, first_proved, losses
from stepsize_opt.proofs.cholesky import is_proved_definite
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.roundings import UNIT, power_of_two_scaling
from stepsize_solvers.programs import Matrix

# A number t found by plain arithmetic is lowered by this much of itself, then by 16 times as much, until it is proved,
# and then by quarters: next to a singular H or M rounding takes any share of t.
_FIRST_LOSS = 1e-14
_LARGEST_LOSS = 1e-2
_QUARTERS = 20


def exceeds_inverse(H: Enclosed, t: float, M: Matrix | float) -> bool:
    """Return whether H ⪰ tM⁻¹ is proved for every matrix in the enclosure, for a t > 0 and M ≻ 0."""
    if isinstance(M, float | int):
        return is_proved_definite(H.plus_diagonal(-(Interval.exact(t) / M).high))
    root = Interval.exact(t).sqrt().high * np.eye(len(M))
    return is_proved_definite(Enclosed.symmetric_blocks(enclosed(M), enclosed(root), H))


def largest_floor(H: Enclosed, M: Matrix | float) -> float:
    """Return a t with H ⪰ tM⁻¹ proved, within a few roundings of the largest; 0 when there is no proof for a t > 0."""
    t = _nearly_largest(H.value, M)
    if not t > 0.0:
        return 0.0

    def lowered(share: float) -> float | None:
        candidate = t * share
        return candidate if exceeds_inverse(H, candidate, M) else None

    near = (1.0 - loss for loss in losses(_FIRST_LOSS * len(H.value), _LARGEST_LOSS, 16.0))
    far = (0.25**n for n in range(1, _QUARTERS + 1))
    return first_proved(chain(near, far), lowered) or 0.0


def _nearly_largest(H: Matrix, M: Matrix | float) -> float:
    """Return the largest t with H ⪰ tM⁻¹ in plain floats, 0 for a matrix that is not numerically positive definite.

    With H = KKᵀ and M = CCᵀ it is 1/‖C⁻¹K⁻ᵀ‖²: unlike the smallest eigenvalue of CᵀHC, the factors of graded matrices
    and their inverses have few roundings relative to each entry.
    """
    K, info = lapack.dpotrf(H, 1, 1)  # lower, clean
    if info != 0:
        return 0.0
    R = lapack.dtrtri(K, 1)[0].T
    if isinstance(M, float | int):
        return float(M / np.linalg.eigvalsh(R @ R.T)[-1])
    C, info = lapack.dpotrf(M, 1, 1)
    if info != 0:
        return 0.0
    R = lapack.dtrtri(C, 1)[0] @ R
    return float(1.0 / np.linalg.eigvalsh(R @ R.T)[-1])


def weight_from_below(Y: Enclosed, M: Matrix | float) -> float:
    """Return a lower bound on ⟨Y, M⁻¹⟩ for Y ⪰ 0; −inf without a proof."""
    if isinstance(M, float | int):
        return (Y.diagonal().total() / M).low
    try:
        V = np.linalg.inv(M)
    except np.linalg.LinAlgError:
        return -math.inf
    V = 0.5 * (V + V.T)
    exact = Pair.exact
    return (exact(2.0 * V) - exact(V) @ (exact(M) @ exact(V))).rounded().inner(Y).low


def proved_inverse(E: Enclosed, *, above: bool, name: str) -> tuple[Matrix, float]:
    """Y and a share ε with E⁻¹ ⪯ Y ⪯ (1 + ε)E⁻¹, or (1 − ε)E⁻¹ ⪯ Y ⪯ E⁻¹, for every E ≻ 0 in the enclosure.

    Raises Unproved where float64 does not suffice; ``name`` is what the matrix is called then.
    """
    scale = power_of_two_scaling(E.value.diagonal())
    scaled = Enclosed(*(scale[:, None] * part * scale for part in (E.value, E.error)))
    X = np.linalg.inv(scaled.value) if is_proved_definite(scaled.value) else np.full_like(scaled.value, np.nan)
    sign, inverse = (1.0 if above else -1.0), scaled.to(Pair)

    def moved(loss: float) -> tuple[Matrix, float] | None:
        Y = (1.0 + sign * loss) * 0.5 * (X + X.T)
        exact = Pair.exact(Y)
        square = exact @ (inverse @ exact)
        far = exact * (1.0 + 4.0 * sign * loss) - square
        sides = ((side * sign).rounded().symmetric() for side in (square - exact, far))
        # 1 + 4·loss is rounded once.
        return (scale[:, None] * Y * scale, 4.0 * loss + 2.0 * UNIT) if all(map(is_proved_definite, sides)) else None

    found = first_proved(losses(4.0 * len(X) * UNIT, _LARGEST_LOSS), moved) if np.isfinite(X).all() else None
    if found is None:
        msg = f"{name} is too close to singular for a proof of its inverse in float64; give a larger one"
        raise Unproved(msg)
    return found
