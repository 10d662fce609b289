"""𝒬(M) and 𝒬*(Z) with bounds on their rounding errors, for every positive map.

Each function here is dispatched on the type of the map: a new map registers its own version from outside,
``image.register(MyMap)`` and so on.  A map that says what its ``hadamard_matrix`` is needs to register
``coefficient_roundings`` only.

The coefficients of a map are rounded.  Moved by their rounding they become exact floats of a map that is a little
smaller, 𝒬̲(M) ⪯ 𝒬(M) for every M ⪰ 0, or a little larger, 𝒬̄(M) ⪰ 𝒬(M).  A smaller map has a larger feasible set, so an
upper bound for it is an upper bound for 𝒬, and what is feasible for a larger map is feasible for 𝒬.  The images of
these maps carry no rounding error to speak of in twice the working precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair
from stepsize_opt.proofs.roundings import UNIT, twice_gamma
from stepsize_solvers.programs import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Layered,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    add_to_diagonal,
    block_slices,
    is_identity,
)


def _unknown(Q: PositiveMap, function: str) -> TypeError:
    name = type(Q).__name__
    return TypeError(f"no verified form for a map of type {name}; register one with {function}.register({name})")


@singledispatch
def coefficient_roundings(Q: PositiveMap) -> int:
    """Roundings in the numbers that define 𝒬, and in each of ``Q.diagonal_action``."""
    raise _unknown(Q, "coefficient_roundings")


@singledispatch
def image(Q: PositiveMap, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    """An enclosure of 𝒬(M) over all matrices that M encloses; the coefficients of the map count as rounded, too."""
    if Q.hadamard_matrix is None:
        raise _unknown(Q, "image")
    return _entrywise(Q, M)


@singledispatch
def centred_image(Q: PositiveMap, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    """An enclosure of 𝒞(M) = E[(S − I) M (S − I)] over all matrices that M encloses: of 𝒬(M) − M, because E[S] = I."""
    return image(Q, M, arithmetic) - M


@singledispatch
def image_above(Q: PositiveMap, M: Approximate) -> Approximate:
    """𝒬̄(M) for a linear map 𝒬̄ with 𝒬̄(M) ⪰ 𝒬(M) for every M ⪰ 0, in the precision of M."""
    return M * _moved_coefficients("image_above", Q, 1.0)


@singledispatch
def centred_above(Q: PositiveMap, M: Approximate) -> Approximate:
    """𝒞̄(M) for a linear map 𝒞̄ with 𝒞̄(M) ⪰ 𝒞(M) for every M ⪰ 0, in the precision of M."""
    return image_above(Q, M) - M


@singledispatch
def adjoint_below(Q: PositiveMap, Z: Approximate) -> Approximate:
    """𝒬̲*(Z) for a linear map 𝒬̲ with 𝒬̲(M) ⪯ 𝒬(M) for every M ⪰ 0, in the precision of Z."""
    if is_identity(Q):
        return Z
    return Z * _moved_coefficients("adjoint_below", Q, -1.0)


@singledispatch
def lowers_to_positive(Q: PositiveMap) -> bool:
    """Return True if the smaller map of ``adjoint_below`` is known to be positive without a check; False: unknown."""
    return False


# ------------------------------------------------------------------------------------------------ entrywise maps


@coefficient_roundings.register(DiagonalPlusScaled)
@coefficient_roundings.register(Hadamard)
def _(Q: DiagonalPlusScaled | Hadamard) -> int:
    return Q.roundings


@image.register(DiagonalPlusScaled)
@image.register(Hadamard)
def _(Q: PositiveMap, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    return _entrywise(Q, M)


def _entrywise(Q: PositiveMap, M: Enclosed) -> Enclosed:
    # Rounded: the coefficients, the product and a sum.
    rounding = twice_gamma(coefficient_roundings(Q) + 2)
    around = rounding * np.abs(M.value)
    if M.slack is not None:
        around += (1.0 + rounding) * M.slack
    return Enclosed(Q.apply(M.value), Q.magnitude(around))


def _moved_coefficients(function: str, Q: PositiveMap, sign: float) -> Matrix:
    """P ± Diag(r), r the row sums of the rounding of P: on either side of the P that it may be a rounding of."""
    P = Q.hadamard_matrix
    if P is None:
        raise _unknown(Q, function)
    roundings = coefficient_roundings(Q)
    if roundings == 0:  # exact floats: the identity, or a P that the caller gave
        return P
    P = P.copy()
    # One more rounding for the sum α + β of a diagonal entry, one for the subtraction.
    add_to_diagonal(P, (sign * twice_gamma(roundings + 2)) * np.add.reduce(np.abs(P), 1))
    return P


@lowers_to_positive.register
def _(Q: DiagonalPlusScaled) -> bool:
    # Diag(α − r) + β 11ᵀ with β ≥ 0 and α ≥ r, where r_j = γ(α_j + dβ); min α is taken from
    # min (α + β), twice as large for its rounding.  Coefficients without rounding are not lowered.
    if Q.roundings == 0:
        return Q.beta >= 0.0 and bool(Q.alpha.min() >= 0.0)
    return Q.beta >= 0.0 and Q.action_range[0] - Q.beta >= 4.0 * twice_gamma(Q.roundings + 2) * Q.d * Q.beta


# ------------------------------------------------------------------------------------------------ a M + b tr(M) I


@coefficient_roundings.register
def _(Q: ScaledPlusTrace) -> int:
    return 2


@image.register
def _(Q: ScaledPlusTrace, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    # Each coefficient is right to two roundings.
    a, b = (Enclosed(np.asarray(x), np.asarray(4.0 * UNIT * x)) for x in (Q.a, Q.b))
    return M * a + M.trace_times_identity() * b


@image_above.register
def _(Q: ScaledPlusTrace, M: Approximate) -> Approximate:
    # M ↦ M and M ↦ tr(M)I are both positive, so each coefficient may be moved on its own.
    return M * (Q.a * (1.0 + 4.0 * UNIT)) + M.trace_times_identity() * (Q.b * (1.0 + 4.0 * UNIT))


@adjoint_below.register
def _(Q: ScaledPlusTrace, Z: Approximate) -> Approximate:
    return Z * (Q.a * (1.0 - 4.0 * UNIT)) + Z.trace_times_identity() * (Q.b * (1.0 - 4.0 * UNIT))


@lowers_to_positive.register(CongruenceSum)
@lowers_to_positive.register(ScaledPlusTrace)
def _(Q: PositiveMap) -> bool:
    return True


# ------------------------------------------------------------------------------------------------ sums of congruences


@coefficient_roundings.register
def _(Q: CongruenceSum) -> int:
    return int(Q.weights.size) + 2


@image.register
def _(Q: CongruenceSum, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    # The weights are exact floats.  In twice the working precision each product is rounded once, not 2d times.
    return _widened(image_above(Q, arithmetic.exact(M.value)).rounded(), Q, M.error)


@centred_image.register
def _(Q: CongruenceSum, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    return _widened(centred_above(Q, arithmetic.exact(M.value)).rounded(), Q.centered(), M.error)


def _widened(found: Enclosed, Q: CongruenceSum, error: Matrix) -> Enclosed:
    """Return an enclosure of an image over all M within the error: it moves by Σ w|S||M − M̂||S|ᵀ at most."""
    roundings = len(Q.weights) + 2 * Q.d + 4
    return found + Enclosed(np.zeros_like(error), Q.magnitude(error) * (1.0 + twice_gamma(roundings)))


@image_above.register
def _(Q: CongruenceSum, M: Approximate) -> Approximate:
    return _sum_of_congruences(Q, M, M.exact)


@centred_above.register
def _(Q: CongruenceSum, M: Approximate) -> Approximate:
    # Outcome by outcome: the floats of a finite law have E[S] = I to rounding only.
    identity = M.exact(np.eye(Q.d))
    return _sum_of_congruences(Q, M, lambda S: M.exact(S) - identity)


def _sum_of_congruences(Q: CongruenceSum, M: Approximate, of: Callable[[Matrix], Approximate]) -> Approximate:
    total = M * 0.0
    for w, S in zip(Q.weights, map(of, Q.matrices), strict=True):
        total = total + (S @ (M @ S.T)) * float(w)
    return total


@adjoint_below.register
def _(Q: CongruenceSum, Z: Approximate) -> Approximate:
    # The weights are exact floats: no map is smaller.
    return image_above(CongruenceSum(Q.weights, Q.matrices.transpose(0, 2, 1)), Z)


# ------------------------------------------------------------------------------------------------ layers


@coefficient_roundings.register
def _(Q: Layered) -> int:
    return max(coefficient_roundings(layer) for layer in Q.layers)


def _by_layers(
    Q: Layered, M: Approximate, of: Callable[[PositiveMap, Any], Approximate], between: float
) -> Approximate:
    """Return the images of the diagonal blocks by the maps of the layers; the rest of M times 0 or 1."""
    slices = block_slices([layer.d for layer in Q.layers])
    return (M * between).with_blocks((s, of(layer, M.block(s))) for layer, s in zip(Q.layers, slices, strict=True))


@image.register
def _(Q: Layered, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    return _by_layers(Q, M, lambda layer, block: image(layer, block, arithmetic), Q.between).rounded()


@centred_image.register
def _(Q: Layered, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    # Layers are independent.
    return _by_layers(Q, M, lambda layer, block: centred_image(layer, block, arithmetic), 0.0).rounded()


@image_above.register
def _(Q: Layered, M: Approximate) -> Approximate:
    return _by_layers(Q, M, image_above, Q.between)


@centred_above.register
def _(Q: Layered, M: Approximate) -> Approximate:
    return _by_layers(Q, M, centred_above, 0.0)


@adjoint_below.register
def _(Q: Layered, Z: Approximate) -> Approximate:
    return _by_layers(Q, Z, adjoint_below, Q.between)
