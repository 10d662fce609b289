"""𝒬(M) and 𝒬*(Z) with bounds on their rounding errors, for every positive map."""

from __future__ import annotations

import math

import numpy as np

from stepsize_opt.proofs.arithmetic import UNIT, Approximate, Enclosed, Pair, gamma, sandwich
from stepsize_solvers.programs import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Layered,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    block_slices,
)


def image(Q: PositiveMap, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    """An enclosure of 𝒬(M) over all matrices that M encloses; the coefficients of the map count as rounded, too."""
    if isinstance(Q, CongruenceSum):
        return _congruences(Q, M, arithmetic)
    if isinstance(Q, Layered):
        value, error = Q.between * M.value, abs(Q.between) * M.error
        error = error + UNIT * np.abs(value)
        for layer, s in zip(Q.layers, block_slices([layer.d for layer in Q.layers]), strict=True):
            inside = image(layer, Enclosed(M.value[s, s], M.error[s, s]), arithmetic)
            value[s, s], error[s, s] = inside.value, inside.error
        return Enclosed(value, error)
    # An entrywise map rounds its coefficients, the product and a sum.
    error = Q.magnitude(M.error + gamma(coefficient_roundings(Q) + 2) * np.abs(M.value))
    if isinstance(Q, ScaledPlusTrace):
        # The trace is a sum of d numbers.
        np.einsum("ii->i", error)[:] += Q.b * gamma(Q.d) * float(np.sum(np.abs(np.diagonal(M.value))))
    return Enclosed(Q.apply(M.value), error)


def adjoint_below(Q: PositiveMap, Z: Matrix, arithmetic: type[Approximate] = Pair) -> Approximate:
    """𝒬̲*(Z) for a linear map 𝒬̲ with 𝒬̲(M) ⪯ 𝒬(M) for every M ⪰ 0.

    The coefficients of 𝒬 are rounded.  Lowered by their rounding (a Hadamard matrix P by Diag(r), r the row sums of
    the rounding: P − Diag(r) is below the P that is meant) they are exact floats of a slightly smaller map.  A smaller
    map has a larger feasible set, so an upper bound for it is an upper bound for 𝒬, and its image of a multiplier
    carries no rounding error to speak of in twice the working precision.
    """
    exact = arithmetic.exact
    if isinstance(Q, CongruenceSum):
        total = exact(np.zeros_like(Z))
        for w, S in zip(Q.weights, Q.matrices, strict=True):
            total = total + (exact(S.T) @ (exact(Z) @ exact(S))).scaled(float(w))
        return total
    if isinstance(Q, Layered):
        slices = block_slices([layer.d for layer in Q.layers])
        blocks = ((s, adjoint_below(layer, Z[s, s], arithmetic)) for layer, s in zip(Q.layers, slices, strict=True))
        return exact(Q.between * Z).with_blocks(blocks)  # the factor is 0 or 1
    if isinstance(Q, ScaledPlusTrace):
        # M ↦ M and M ↦ tr(M)I are both positive, so each coefficient may be lowered on its own.
        scaled = exact(Z).scaled(Q.a * (1.0 - 4.0 * UNIT))
        trace = Q.b * math.fsum(np.diagonal(Z)) * (1.0 - 8.0 * UNIT)
        return scaled + exact(trace * np.eye(Q.d))
    P = Q.hadamard_matrix
    if P is None:
        msg = f"no verified form for a map of type {type(Q).__name__}"
        raise TypeError(msg)
    P = P.copy()
    # One more rounding for the sum α + β of a diagonal entry, one for the subtraction.
    np.einsum("ii->i", P)[:] -= gamma(coefficient_roundings(Q) + 2) * np.abs(P).sum(axis=1)
    return exact(Z).scaled(P)


def lowers_to_positive(Q: PositiveMap) -> bool:
    """Whether the smaller map of :func:`adjoint_below` is positive at a glance; False says nothing.

    Sums of congruences are, and Diag(α − r) + β 11ᵀ with β ≥ 0 and α ≥ r, where r_j = γ(α_j + dβ); min α is taken from
    min (α + β), twice as large for its rounding.
    """
    if isinstance(Q, DiagonalPlusScaled):
        return Q.beta >= 0.0 and Q.action_range[0] - Q.beta >= 4.0 * gamma(Q.roundings + 2) * Q.d * Q.beta
    return isinstance(Q, CongruenceSum | ScaledPlusTrace)


def _congruences(Q: CongruenceSum, M: Enclosed, arithmetic: type[Approximate]) -> Enclosed:
    """Σ_r w_r S_r M S_rᵀ; in twice the working precision each product is rounded once, not 2d times."""
    value = np.zeros_like(M.value)
    error = np.zeros_like(M.value)
    size = np.zeros_like(M.value)
    for w, S in zip(Q.weights, Q.matrices, strict=True):
        term = sandwich(S, M.value, S.T, arithmetic)
        value += w * term.value
        size += w * np.abs(term.value)
        error += w * (term.error + np.abs(S) @ M.error @ np.abs(S.T) * (1.0 + gamma(2 * Q.d)))
    atoms = len(Q.weights)
    return Enclosed(value, error * (1.0 + gamma(atoms + 4)) + gamma(atoms + 2) * size)


def coefficient_roundings(Q: PositiveMap) -> int:
    """Roundings in the numbers that define 𝒬, and in each of ``Q.diagonal_action``."""
    if isinstance(Q, DiagonalPlusScaled | Hadamard):
        return Q.roundings
    if isinstance(Q, Layered):
        return max(coefficient_roundings(layer) for layer in Q.layers)
    return int(Q.weights.size) + 2 if isinstance(Q, CongruenceSum) else 2
