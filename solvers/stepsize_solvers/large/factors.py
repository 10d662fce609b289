"""Is a dense M a diagonal matrix plus one of low rank?

Blocks M_IJ with disjoint I and J do not meet the diagonal: where they have the rank of the other part R of M,
R_ii = M_iJ M_IJ⁺ M_Ii for i outside of I and J.  Two pairs of index sets give the whole diagonal of R, and the leading
eigenvectors of R give its factor.  What is found is checked against M; an answer is only as good as its certificate.
"""

from __future__ import annotations

import numpy as np

from stepsize_solvers.numerics import eigh, sym
from stepsize_solvers.programs import Matrix, Vector

# Beyond this share of the size the central path in r(r + 1)/2 unknowns gains nothing over that in d unknowns.
_LARGEST_SHARE = 8
_LARGEST_RANK = 128
# Singular values below this fraction of the largest are rounding: M was computed with errors near 1e-16, and data whose
# spectrum falls this far within r steps may as well be cut there.
_RANK_FLOOR = 1e-10
_RESIDUAL = 1e-9  # of √(M_ii M_jj); what the answer for R loses by it is of this order


def find_low_rank(M: Matrix) -> tuple[Vector, Matrix] | None:
    """a ≥ 0 and V (d×r) with M = Diag(a) + VVᵀ up to rounding, r at most d/8; None when there is no such form."""
    d = len(M)
    most = min(d // _LARGEST_SHARE, _LARGEST_RANK)
    if most < 1:
        return None
    # Blocks twice as large as the largest rank, so that a rank that is found is no accident of their size.
    size = min(2 * most, d // 4)
    order = np.random.default_rng(0).permutation(d)  # a fixed draw: the same M is answered alike
    pairs = [(order[i : i + size], order[i + size : i + 2 * size]) for i in (0, 2 * size)]
    scale = 1.0 / np.sqrt(M.diagonal())
    N = M * scale[:, None] * scale
    diagonal, rank = np.zeros(d), 0
    for rows, columns in pairs:
        block = N[np.ix_(rows, columns)]
        left, values, right = np.linalg.svd(block)
        rank = int(np.count_nonzero(values > _RANK_FLOOR * values[0]))
        if not 0 < rank <= most:
            return None
        middle = (right[:rank].T / values[:rank]) @ left[:, :rank].T
        outside = np.setdiff1d(np.arange(d), np.concatenate([rows, columns]))
        diagonal[outside] = np.einsum("ij,ji->i", N[np.ix_(outside, columns)] @ middle, N[np.ix_(rows, outside)])
    V = _factor(N, diagonal, rank)
    a = 1.0 - np.einsum("ij,ij->i", V, V)
    residual = N - V @ V.T
    np.fill_diagonal(residual, 0.0)
    if not (np.abs(residual).max() <= _RESIDUAL and a.min() > 0.0):
        return None
    return a / scale**2, V / scale[:, None]


def _factor(N: Matrix, diagonal: Vector, rank: int) -> Matrix:
    """V with VVᵀ near N with another diagonal, by two rounds of subspace iteration and the positive eigenvalues."""
    R = N.copy()
    np.fill_diagonal(R, diagonal)
    basis = R @ np.random.default_rng(1).standard_normal((len(R), rank + 4))
    for _ in range(2):
        basis = R @ np.linalg.qr(basis)[0]
    basis = np.linalg.qr(basis)[0]
    values, vectors = eigh(sym(basis.T @ R @ basis))
    values, vectors = values[-rank:], vectors[:, -rank:]
    return np.asarray((basis @ vectors) * np.sqrt(np.maximum(values, 0.0)))
