"""The inverse of a matrix on one side of it, proved for floats: Y ⪰ E⁻¹, or Y ⪯ E⁻¹, for every E of an enclosure.

Y ⪰ E⁻¹ is E ⪰ Y⁻¹, which is YEY ⪰ Y; both sides and the distance between them are read off one enclosure of YEY.
"""

from __future__ import annotations

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.certificate import Unproved
from stepsize_opt.proofs.cholesky import is_proved_definite
from stepsize_opt.proofs.roundings import UNIT, power_of_two_scaling
from stepsize_opt.proofs.search import first_proved, losses
from stepsize_solvers.programs import Matrix

_LARGEST_LOSS = 1e-2


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
