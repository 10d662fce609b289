"""Directions that are orthonormal in L = UUᵀ + Diag(a) with a thin U (d×r), nearly, and a bound on what is missing.

With t ≤ a^{−½}, B = Diag(t)U and a symmetric W (r×r) let A = Diag(t)(I − BWBᵀ).  For G = BᵀB

    AᵀLA ⪯ (I − BWBᵀ)(I + BBᵀ)(I − BWBᵀ) = I + BEBᵀ,      E = XXᵀ − 2W + WGW,      X = I − WG,

with equality for t = a^{−½}; W = φ(G), φ(γ) = 1/(1 + γ + √(1 + γ)), makes E = 0: then I − BWBᵀ = (I + BBᵀ)^{−½}.  For
every invertible T with G ⪯ TTᵀ the norm of BEBᵀ is at most that of TᵀET: statements about r×r matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, Pair, Plain
from stepsize_opt.proofs.cholesky import proved_cholesky
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_opt.proofs.thin import FAILURE, RANGE, in_range, weighted_gram
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class ProvedRoot:
    """t and W of A with (1 − defect)I ⪯ AᵀLA ⪯ (1 + defect)I for their floats."""

    t: Vector
    W: Matrix
    defect: float


def proved_root(U: Matrix, a: Vector) -> ProvedRoot | None:
    """The directions of UUᵀ + Diag(a), a > 0; None when they are not proved to be nearly orthonormal."""
    t = (1.0 - 4.0 * UNIT) / np.sqrt(a)  # three roundings: 1 − 16u ≤ t²a ≤ 1
    if not (in_range(t, U) and t.min() > 1.0 / RANGE):
        return None
    gram = weighted_gram(U, t * t)
    values, P = np.linalg.eigh(gram.value)
    values = np.maximum(values, 0.0)
    root = np.sqrt(1.0 + values)
    W = (P / (root * (1.0 + root))) @ P.T
    W = 0.5 * (W + W.T)
    T = _dominating(gram, values, P)
    if T is None:
        return None
    defect = _defect(W, gram, T) + 16.0 * UNIT
    return ProvedRoot(t, W, defect) if defect < FAILURE else None


def _dominating(gram: Enclosed, values: Vector, P: Matrix) -> Matrix | None:
    """A factor T with G ⪯ TTᵀ."""
    exact, r = Plain.exact, len(P)
    G = Plain.enclosing(gram.value, gram.error)
    # What rounding may take from TTᵀ − G; U = 0 has nothing to round.
    more = max(float(values[-1]), 1.0) * gamma(4 * r * r) + 2.0 * float(gram.error.sum(axis=1).max())
    for _ in range(20):
        T = P * np.sqrt(values + more)
        if proved_cholesky((exact(T) @ exact(T.T) + -G).rounded().symmetric()) is not None:
            return np.asarray(T)
        more *= 2.0
    return None


def _defect(W: Matrix, gram: Enclosed, T: Matrix) -> float:
    """‖TᵀET‖ from above: the largest row sum bounds the eigenvalues of a symmetric matrix."""
    exact, r = Pair.exact, len(W)
    w, g, left = exact(W), Pair.enclosing(gram.value, gram.error), exact(T.T)
    half = left @ (exact(np.eye(r)) + -(w @ g))
    rest = left @ (w + w + -(w @ (g @ w))) @ left.T
    small = (half @ half.T + -rest).rounded().symmetric()
    return float((np.abs(small.value) + small.error).sum(axis=1).max()) * (1.0 + gamma(r + 2))
