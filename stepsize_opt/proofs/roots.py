"""Directions that are orthonormal in L = UUᵀ + Diag(a) with a thin U (d×r), nearly, and a bound on what is missing.

With t ≤ a^{−½} and B = [Diag(t)U  E], E the first e columns of the identity, let A = Diag(t)(I + BZBᵀ) for a matrix Z.
For 𝒢 = BᵀB and the Π that leaves the part of U in B,

    AᵀLA ⪯ (I + BZᵀBᵀ)(I + BΠBᵀ)(I + BZBᵀ) = I + BEBᵀ,      E = Z + Zᵀ + Zᵀ𝒢Z + (I + Zᵀ𝒢)Π(I + 𝒢Z),

with equality for t = a^{−½}.  For every invertible T with 𝒢 ⪯ TTᵀ the norm of BEBᵀ is at most that of TᵀET: statements
about matrices of size r + e.  Two choices of Z make E = 0.

*Root*, e = 0: Z = −φ(𝒢), φ(γ) = 1/(1 + γ + √(1 + γ)), so that I + BZBᵀ = (I + BBᵀ)^{−½}.

*Eigenvectors*, a and t multiples of 1: let 𝒢 = PΓPᵀ with e positive eigenvalues, so that Q₁ = t₀UN₀, N₀ = PΓ^{−½}, has
orthonormal columns, the eigenvectors of L for a(1 + γ).  With EᵀQ₁ = XΣYᵀ and R = −YXᵀ the block reflection
H = I − (Q₁R − E)(I + XΣXᵀ)⁻¹(Q₁R − E)ᵀ has HE = Q₁R; so the columns of A = t₀H Diag(RᵀDiag(1 + γ)^{−½}, I) are
eigenvectors, the first e of them Q₁, and L-orthonormal.  For h = (h₁, …, h_e, h₀, …, h₀) and V = J + Z𝒢J, J the part
of E in B,

    A Diag(h) Aᵀ = t₀²(h₀I + BFBᵀ),      F = h₀(Z + Zᵀ + Z𝒢Zᵀ) + V Diag(h_j − h₀) Vᵀ,

and F = 0 for h proportional to the eigenvalues.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, Pair, enclosed
from stepsize_opt.proofs.certificate import first_proved, losses
from stepsize_opt.proofs.cholesky import cholesky_shift, is_proved_definite
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.thin import FAILURE, in_range, vanishing, weighted_gram
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class ThinBasis:
    """t and Z of A with (1 − defect)I ⪯ AᵀLA ⪯ (1 + defect)I for their floats.

    gram, T: 𝒢, and a T with 𝒢 ⪯ TTᵀ; values: the γ of the eigenvectors that come first, none for a root.
    """

    t: Vector
    Z: Matrix
    defect: float
    gram: Enclosed
    T: Matrix
    values: Vector

    def mean_from_below(self, first: Vector, rest: float) -> float:
        """s with A Diag(h) Aᵀ ⪰ sI for h = (first, rest, …, rest), for the eigenvectors of L."""
        exact, size, e = Pair.exact, len(self.Z), len(self.values)
        z, g = exact(self.Z), self.gram.to(Pair)
        F: Approximate = (z + z.T + z @ (g @ z.T)) * rest
        if e > 0:  # none where U is zero
            J = np.eye(size)[:, size - e :]
            V = exact(J) + z @ (g @ exact(J))
            # h_j − h₀ as exact floats: a smaller h gives a smaller mean.
            F = F + V * (enclosed(first) - rest).low[None, :] @ V.T
        t = Interval.exact(float(self.t[0]))
        return (t * t * (rest - Interval.exact(_norm(F, self.T)))).low


def root_basis(U: Matrix, a: Vector) -> ThinBasis | None:
    """Return the root of UUᵀ + Diag(a), a > 0; None when its directions are not proved to be nearly orthonormal."""
    t = _scales(a)
    if not in_range(U, positive=(t,)):
        return None
    gram = weighted_gram(U, t * t)
    values, P = np.linalg.eigh(gram.value)
    root = np.sqrt(1.0 + np.maximum(values, 0.0))
    # Where 𝒢 vanishes up to rounding (dependent columns of U), Z is free; a Z of its size elsewhere adds no rounding.
    root[vanishing(values, gram)] = root.max(initial=1.0)
    Z = (P / (-root * (1.0 + root))) @ P.T
    return _proved(t, 0.5 * (Z + Z.T), gram, np.empty(0))


def eigenvector_basis(U: Matrix, a: float) -> ThinBasis | None:
    """Return the eigenvectors of UUᵀ + aI, a > 0; None when they are not proved to be nearly orthonormal."""
    t = _scales(np.full(len(U), a))
    if not in_range(U, positive=(t,)):
        return None
    part = weighted_gram(U, t * t)
    values, P = np.linalg.eigh(part.value)
    # An eigenvector of γ is wrong by error/γ, and what is left out without it is γ.
    kept = values > np.sqrt(float(part.error.max()))
    kept[: max(0, len(values) - len(U))] = False  # UUᵀ has no more than d, whatever rounding makes of the others
    values, N = values[kept], P[:, kept] / np.sqrt(values[kept])
    r, e = len(part.value), len(values)
    corner = t[0] * enclosed(U[:e].T)  # Diag(t)Uᵀ E
    gram = Enclosed.symmetric_blocks(part, corner, enclosed(np.eye(e)))
    X, sigma, Yt = np.linalg.svd(corner.value.T @ N)
    R = -(X @ Yt).T
    J = np.eye(r + e)[:, r:]
    reflector = np.vstack([N @ R, -np.eye(e)])
    H = -reflector @ ((X / (1.0 + sigma)) @ X.T) @ reflector.T
    turn = J @ (R.T / np.sqrt(1.0 + values) - np.eye(e)) @ J.T
    return _proved(t, H + turn + H @ gram.value @ turn, gram, values)


def _scales(a: Vector) -> Vector:
    """Return t next to a^{−½}, four roundings: 1 − 16u ≤ t²a ≤ 1."""
    return (1.0 / enclosed(a).sqrt()).low


# 1 − t²a of ``_scales`` is at most this.
_SCALES_DEFECT = 2.0**-49


def _proved(t: Vector, Z: Matrix, gram: Enclosed, values: Vector) -> ThinBasis | None:
    """Return the basis with its defect; None for one that is not small."""
    T = _dominating(gram)
    if T is None:
        return None
    exact, size = Pair.exact, len(Z)
    z, g, identity = exact(Z), gram.to(Pair), np.eye(size)
    left = exact(identity) + z.T @ g
    U_part = exact(identity[:, : size - len(values)])
    half = left @ U_part
    defect = (_SCALES_DEFECT + Interval.exact(_norm(z + z.T + z.T @ (g @ z) + half @ half.T, T))).high
    return ThinBasis(t, Z, defect, gram, T, values) if defect < FAILURE else None


def _dominating(gram: Enclosed) -> Matrix | None:
    """Return a factor T with 𝒢 ⪯ TTᵀ."""
    values, P = np.linalg.eigh(gram.value)
    values = np.maximum(values, 0.0)
    # What rounding may take from TTᵀ − 𝒢; U = 0 has nothing to round.
    most = max(float(values.max(initial=0.0)), 1.0) * np.eye(len(values))
    more = 4.0 * float(cholesky_shift(Enclosed(most, gram.error)).max(initial=0.0))

    def raised(by: float) -> Matrix | None:
        T = np.asarray(P * np.sqrt(values + by))
        return T if is_proved_definite((enclosed(T) @ T.T - gram).symmetric()) else None

    return first_proved(losses(more, 2.0**19 * more, 2.0), raised)


def _norm(E: Approximate, T: Matrix) -> float:
    """Return ‖TᵀET‖ of a symmetric E from above."""
    return E.congruent(T.T).norm()
