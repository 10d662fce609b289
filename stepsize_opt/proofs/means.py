"""Means of floats, rounded to the side on which what is proved for them stays true.

L = (1/n)ΣLᵢ is no matrix of floats.  f is smooth with every matrix above L, so L is rounded *up*: what is proved for
the floats holds for f.  A matrix M ⪯ ∇²f and a bound on f^inf are rounded *down*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stepsize_opt.proofs.arithmetic import Pair
from stepsize_opt.proofs.roundings import exponent_above
from stepsize_solvers.programs import Matrix, add_to_diagonal


def mean_of(matrices: Sequence[Matrix]) -> Pair:
    """Return (1/n)ΣLᵢ in twice the working precision."""
    return sum((Pair.exact(M) for M in matrices[1:]), Pair.exact(matrices[0])).divided(len(matrices))


def mean_above(matrices: Sequence[Matrix]) -> Matrix:
    """Return a matrix of floats L̂ ⪰ (1/n)ΣLᵢ for symmetric Lᵢ: the mean itself where its entries are floats.

    Diagonal dominance: a symmetric error is at most the diagonal matrix of its row sums, by which the diagonal of the
    rounded mean is raised.
    """
    if len(matrices) == 1:
        return matrices[0]
    exponent = max(map(exponent_above, matrices))  # sums of the largest floats overflow
    scaled = [np.ldexp(M, -exponent) for M in matrices]
    mean = mean_of(scaled)
    assert mean.lo is not None and mean.error is not None
    rounding = np.abs(mean.lo) + mean.error
    if any((np.ldexp(A, exponent) != M).any() for A, M in zip(scaled, matrices, strict=True)):
        rounding += 2.0**-1000  # bits were lost below the normal floats
    above, raised = mean.hi.copy(), 2.0 * rounding.sum(axis=1)  # twice, for the rounding of these sums
    diagonal = above.diagonal()
    np.fill_diagonal(above, np.where(raised > 0.0, np.nextafter(diagonal + raised, np.inf), diagonal))
    out = np.ldexp(above, exponent)
    if (np.ldexp(out, -exponent) != above).any():
        add_to_diagonal(out, 2 * len(out) * math.ulp(0.0))
    return out
