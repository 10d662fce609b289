"""The inverse of a matrix on one side of it, proved for floats: Y ⪰ E⁻¹, or Y ⪯ E⁻¹, for every E of an enclosure.

Y ⪰ E⁻¹ is E ⪰ Y⁻¹, which is YEY ⪰ Y; both sides and the distance between them are read off one enclosure of YEY.
"""

from __future__ import annotations

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.certificate import Unproved
from stepsize_opt.proofs.cholesky import proved_cholesky
from stepsize_opt.proofs.roundings import UNIT, power_of_two_scaling
from stepsize_solvers.programs import Matrix

_LARGEST_LOSS = 1e-2


def proved_inverse(E: Enclosed, *, above: bool, name: str) -> tuple[Matrix, float]:
    """Y and a share ε with E⁻¹ ⪯ Y ⪯ (1 + ε)E⁻¹, or (1 − ε)E⁻¹ ⪯ Y ⪯ E⁻¹, for every E ≻ 0 in the enclosure.

    Raises Unproved where float64 does not suffice; ``name`` is what the matrix is called then.
    """
    scale = power_of_two_scaling(E.value.diagonal())
    value, error = (scale[:, None] * part * scale for part in (E.value, E.error))
    sign, loss = (1.0 if above else -1.0), 4.0 * len(value) * UNIT
    X = np.linalg.inv(value) if proved_cholesky(value) is not None else np.full_like(value, np.nan)
    while loss <= _LARGEST_LOSS and np.isfinite(X).all():
        Y = (1.0 + sign * loss) * 0.5 * (X + X.T)
        exact = Pair.exact(Y)
        moved = exact @ (Pair.enclosing(value, error) @ exact)
        near = moved + -exact
        far = exact.scaled(1.0 + 4.0 * sign * loss) + -moved
        if all(proved_cholesky(part.scaled(sign).rounded().symmetric()) is not None for part in (near, far)):
            return scale[:, None] * Y * scale, 4.0 * loss * (1.0 + 8.0 * UNIT)
        loss *= 4.0
    msg = f"{name} is too close to singular for a proof of its inverse in float64; give a larger one"
    raise Unproved(msg)
