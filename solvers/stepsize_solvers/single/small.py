"""Small problems: Newton systems formed densely, predictor and corrector from one Cholesky factorisation.

In coordinates svec(X) = (X_ii, √2 X_ij) symmetric d×d matrices are vectors of n = d(d+1)/2 numbers with the inner
product ⟨X, Y⟩ = tr(XY), and X ↦ AXAᵀ is an n×n matrix, written A⊗A.  With the working basis C of a point (D = CCᵀ,
CᵀBC = Λ), the Nesterov–Todd factor G of (F̃, Z̃) and E = G⁻¹C⁻¹, the change of the scaled constraint along dD = CXCᵀ is

    N x = svec(E F′[dD] Eᵀ),      N = (E⊗E) [(C⊗C) − T (C⊗C) Diag(λᵢ + λⱼ)],      T the matrix of 𝒬,

because dD B D + D B dD = C(XΛ + ΛX)Cᵀ has the coordinates (λᵢ + λⱼ) x_ij in the basis C.  With r₂ and ζ in the
scaled coordinates too, the Newton system of ``stepsize_solvers.single.iteration`` is

    K x − Nᵀζ = r₁,    N x + ζ = r₂      ⟹      (K + NᵀN) x = r₁ + Nᵀr₂,   ζ = r₂ − N x,   dZ = EᵀζE,

K[X] = X + ΛXR̃ + R̃XΛ.  One factorisation serves a predictor, which aims at ZF = 0 and tells how much centring is
needed, and correctors with the second-order terms of both equations (Mehrotra's rule).  The matrix grows worse like
1/μ, which a direct factorisation bears down to gaps of 10⁻⁹.  A step costs O(d⁶) operations in few calls: for small
sizes the calls are what counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from stepsize_solvers.numerics import Bounds, Progress, sym
from stepsize_solvers.programs import (
    CongruenceSum,
    Hadamard,
    Indices,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    Status,
    Vector,
    add_to_diagonal,
)
from stepsize_solvers.single.iteration import NEAR, Tuning

# Positional arguments, because keywords take as long as the arithmetic of a small matrix:
# (a, lower, clean, overwrite_a), (a, compute_v, lower), (c, lower) and (c, b, lower).
_cholesky, _eigh, _inverse, _solve = lapack.dpotrf, lapack.dsyevd, lapack.dtrtri, lapack.dpotrs

# Sizes up to which these steps beat the general iteration.  Measured in one run on one thread, CPU time of the
# iteration to a gap of 10⁻⁶, rand-k / Gaussian map: 6× / 5× at d = 5, 5× / 4× at 10, 3× / 2.5× at 14, 1.7× / 1× at 18;
# beyond, the O(d⁶) operations win.  A map that is not a Hadamard product costs one more product of n×n matrices.
LARGEST_HADAMARD = 18
LARGEST = 16

# A cold start is moved to this fraction of the boundary: 5.4 steps on average over 120 random problems (d ≤ 16, all
# maps, condition up to 10⁶) where 0.9 takes 5.6 and 0.8 takes 5.9.
_START_FRACTION = 0.95
# Fraction of the way to the boundary, 1 − μ near the end; 0.99 throughout takes 3 % more steps on the same problems,
# 0.97 takes 10 % more.
_STEP_FRACTION = 0.99
# Corrections of one step, each with the second-order terms of the direction before it.  A second one where the first
# leaves more than the target takes 5.0 steps instead of 5.9 on 415 random problems (d ≤ 18, all maps); a third 4.8.
_CORRECTORS = 2
# A repeated correction is closer to the path; it is taken unless it shortens the step by more than this.
_WORTH = 0.9
# Steps longer than this are cut to 1 anyway.
_BEYOND = 1.1
# Shorter steps make no progress: the general iteration takes over.
_SHORTEST = 1e-3


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Index arrays of svec for one size d.

    rows, columns: the pair (i, j), i ≤ j, of each coordinate, and flat = i·d + j; diagonal: the coordinates with i = j.
    weights: 1 or √2, and their inverses.  position: the coordinate of each entry, d×d.
    pairs: 2uuᵀ, u = ½ on the diagonal and √½ off it, the factor of A_ik A_jl + A_il A_jk in A⊗A.
    The matrix of X ↦ ΛXR + RXΛ is the sum of factors · λ[lam_index] · R.ravel()[R_index] over equal ``places``.
    """

    d: int
    n: int
    eye: Matrix
    rows: Indices
    columns: Indices
    flat: Indices
    diagonal: Indices
    weights: Vector
    inverse_weights: Vector
    position: Indices
    pairs: Matrix
    places: Indices
    factors: Vector
    lam_index: Indices
    R_index: Indices

    def svec(self, M: Matrix) -> Vector:
        """The coordinates of a symmetric matrix."""
        x = M.ravel().take(self.flat)
        x *= self.weights
        return x

    def smat(self, x: Vector) -> Matrix:
        """The symmetric matrix with the given coordinates."""
        return (x * self.inverse_weights).take(self.position)

    def congruence(self, A: Matrix) -> Matrix:
        """A⊗A: the n×n matrix of X ↦ AXAᵀ."""
        first, second = A.take(self.rows, axis=1), A.take(self.columns, axis=1)
        out = first.take(self.rows, axis=0)
        out *= second.take(self.columns, axis=0)
        other = second.take(self.rows, axis=0)
        other *= first.take(self.columns, axis=0)
        out += other
        out *= self.pairs
        return out

    def curvature(self, lam: Vector, R: Matrix) -> Matrix:
        """The n×n matrix of X ↦ ΛXR + RXΛ, Λ = Diag(lam)."""
        terms = lam.take(self.lam_index)
        terms *= R.ravel().take(self.R_index)
        terms *= self.factors
        total: Vector = np.bincount(self.places, terms, self.n * self.n)  # type: ignore[assignment]  # stub: integers
        return total.reshape(self.n, self.n)


@lru_cache(maxsize=32)
def coordinates(d: int) -> Coordinates:
    """The index arrays of size d, made once for each size."""
    i, j = np.triu_indices(d)
    n = int(i.size)
    position = np.empty((d, d), dtype=np.intp)
    position[i, j] = position[j, i] = np.arange(n)
    off = i != j
    u = np.where(off, 0.5**0.5, 0.5)
    pairs = 2.0 * np.multiply.outer(u, u)
    # Row (i, j), column (k, l) has the terms Λ_ik R_jl + Λ_il R_jk + Λ_jk R_il + Λ_jl R_ik; Λ is diagonal.
    terms: list[tuple[Indices, Vector, Indices, Indices]] = []
    for a, b in ((i, j), (j, i)):
        for c, e in ((i, j), (j, i)):
            p, q = np.nonzero(a[:, None] == c)
            terms.append((p * n + q, pairs[p, q], a[p], b[p] * d + e[q]))
    places, factors, lam_index, R_index = (np.concatenate(part) for part in zip(*terms, strict=True))
    return Coordinates(
        d=d,
        n=n,
        eye=np.eye(d),
        rows=i,
        columns=j,
        flat=i * d + j,
        diagonal=np.flatnonzero(~off),
        weights=np.where(off, 2.0**0.5, 1.0),
        inverse_weights=np.where(off, 0.5**0.5, 1.0),
        position=position,
        pairs=pairs,
        places=places,
        factors=factors,
        lam_index=lam_index,
        R_index=R_index,
    )


def applies(Q: PositiveMap) -> bool:
    """Whether problems of this size and map are faster with dense systems."""
    return Q.d <= LARGEST or (Q.d <= LARGEST_HADAMARD and Q.is_entrywise)


@singledispatch
def map_matrix(Q: PositiveMap, at: Coordinates) -> NDArray[np.float64]:
    """T, the matrix of 𝒬 in svec coordinates: n×n, or its diagonal when 𝒬(M) = P∘M."""
    P = Q.hadamard_matrix
    if P is not None:
        return np.asarray(P.ravel().take(at.flat))
    return np.stack([at.svec(sym(Q.apply(at.smat(e)))) for e in np.eye(at.n)], axis=1)


@map_matrix.register
def _(Q: ScaledPlusTrace, at: Coordinates) -> NDArray[np.float64]:
    trace = np.zeros(at.n)
    trace[at.diagonal] = 1.0
    return Q.a * np.eye(at.n) + Q.b * np.multiply.outer(trace, trace)


@map_matrix.register
def _(Q: CongruenceSum, at: Coordinates) -> NDArray[np.float64]:
    # Σ_r w_r S_ik S_jl for all (ik), (jl) is one product; the entries are those of Σ_r w_r S_r⊗S_r.
    S = Q.matrices.reshape(Q.weights.size, -1)
    products = ((S.T * Q.weights) @ S).reshape((at.d,) * 4)
    i, j = at.rows[:, None], at.columns[:, None]
    return np.asarray(at.pairs * (products[i, at.rows, j, at.columns] + products[i, at.columns, j, at.rows]))


class SmallPoint(NamedTuple):
    """(D, Z) with its working basis and Nesterov–Todd scaling: E F Eᵀ = E⁻ᵀ Z E⁻¹ = Diag(v).

    D and Z are symmetric up to rounding.  gradient is ΛR̃ + R̃Λ, sums holds the λᵢ + λⱼ.
    """

    D: Matrix
    Z: Matrix
    C: Matrix
    lam: Vector
    sums: Matrix
    log_det: float
    Zt: Matrix
    Rt: Matrix
    Ft: Matrix
    gradient: Matrix
    E: Matrix
    v: Vector

    @property
    def d(self) -> int:
        return int(self.lam.size)


class SmallStep(NamedTuple):
    """X (so that dD = CXCᵀ), and in scaled coordinates F′ = E F′[dD] Eᵀ, F″ = −E 𝒬(dD B dD) Eᵀ and ζ; dZ = EᵀζE."""

    X: Matrix
    first: Matrix
    second: Matrix
    zeta: Matrix
    dZ: Matrix


class SmallIteration:
    """One solve: maximise log det D subject to 𝒬(D B D) ⪯ D with dense Newton systems."""

    def __init__(self, B: Matrix, Q: PositiveMap, tuning: Tuning, progress: Progress[SmallPoint]) -> None:
        P = Q.hadamard_matrix
        self.B = B
        self.Q = Q if P is None else Hadamard(P)  # one product, cheaper in calls than the structured maps
        self.d = int(B.shape[0])
        self.at = coordinates(self.d)
        self.T = map_matrix(self.Q, self.at)
        self.eye = self.at.eye
        self.tuning = tuning
        self.tol = progress.limits.tol
        self.progress = progress

    # ---------------------------------------------------------------- points

    def point(self, D: Matrix, Z: Matrix) -> SmallPoint | None:
        """The pair in its working basis, or None unless D, F(D) and Z are numerically positive definite."""
        K, info = _cholesky(D.T, 1, 1)
        if info != 0:
            return None
        lam, U, info = _eigh(K.T.dot(self.B.dot(K)), 1, 1)
        if info != 0 or not lam[0] > 0.0:
            return None
        C = K.dot(U)
        C_inverse = U.T.dot(_inverse(K, 1)[0])
        Ft = self.eye - C_inverse.dot(self.Q.apply((C * lam).dot(C.T))).dot(C_inverse.T)
        factor, info = _cholesky(Ft.T, 1, 1)
        if info != 0:
            return None
        Zt = C.T.dot(Z).dot(C)
        squares, U, info = _eigh(factor.T.dot(Zt.dot(factor)), 1, 1)
        if info != 0 or not squares[0] > 0.0:
            return None
        v = np.sqrt(squares)
        E = (U * np.sqrt(v)).T.dot(_inverse(factor, 1)[0]).dot(C_inverse)
        Rt = C.T.dot(self.Q.adjoint(Z)).dot(C)
        sums = lam[:, None] + lam
        log_det = 2.0 * float(np.log(K.diagonal()).sum())
        return SmallPoint(D, Z, C, lam, sums, log_det, Zt, Rt, Ft, sums * Rt, E, v)

    def bounds(self, p: SmallPoint, near: bool = True) -> Bounds:
        """Repair by scaling and the certificate's upper bound at the repaired D, as in ``FullModel``."""
        t = 1.0 / (1.0 - _smallest(p.Ft)) if near else 1.0
        lower = p.log_det + self.d * math.log(t)
        energy = t * t * float(p.Rt.diagonal().dot(p.lam))
        K, info = _cholesky((t * p.gradient - p.Zt).T, 1, 0)
        if info != 0 or not energy > 0.0:
            return Bounds(lower, np.inf, t, 1.0)
        upper = self.d * math.log(energy / self.d) - 2.0 * float(np.log(K.diagonal()).sum()) + p.log_det
        return Bounds(lower, upper, t, self.d / energy)

    def start(self, D: Matrix) -> SmallPoint | None:
        """A point next to a D on the boundary: D moved inside, with the central dual Z = cF⁻¹, ⟨Z, D⟩ = d."""
        D = _START_FRACTION * D
        K, info = _cholesky((D - self.Q.apply(D.dot(self.B).dot(D))).T, 1, 1)
        if info != 0:
            return None
        root = _inverse(K, 1)[0]
        Z = root.T.dot(root)
        return self.point(D, Z * (self.d / float(np.vdot(Z, D))))

    # ---------------------------------------------------------------- the loop

    def run(self, p: SmallPoint | None) -> Status:
        """Iterate until the gap is certified or a limit is reached; INACCURATE after a breakdown."""
        progress, length = self.progress, 0.0
        while p is not None:
            mu = float(p.v.dot(p.v)) / self.d
            residual = self.eye + p.Zt - p.gradient
            details = None
            if progress.limits.log is not None:
                norm = float(np.vdot(residual, residual) / self.d) ** 0.5
                details = {"mu": f"{mu:.2e}", "residual": f"{norm:.2e}", "step": f"{length:.3f}"}
            # Every point is computed from D and Z themselves, so the pair that is returned is the one checked here.
            status = progress.examine(p, self.bounds(p, mu <= NEAR * self.tol), details)
            if status is not None:
                return status
            p, length = self.step(p, residual, mu)
            progress.steps += p is not None
        return Status.INACCURATE

    def step(self, p: SmallPoint, residual: Matrix, mu: float) -> tuple[SmallPoint | None, float]:
        """The next point and the length of the step; None when the factorisation or every step length fails."""
        at, v = self.at, p.v
        N = self.jacobian(p)
        factor = self.factor(p, N)
        if factor is None:
            return None, 0.0
        root = 1.0 / np.sqrt(v)
        scale = root[:, None] * root
        r1 = at.svec(residual)
        found = self.direction(p, N, factor, r1, self.eye * -v)
        a = min(1.0, longest(found, scale, 1))
        # The gap at a central point is μ: a target below a fifth of the tolerance would be wasted work.
        s = max((1.0 - a) ** 3 * mu, 0.2 * self.tol)
        r2 = self.eye * (s / v - v)
        fraction = max(_STEP_FRACTION, 1.0 - mu)
        a = 0.0
        for _ in range(_CORRECTORS):
            bend1, bend2 = self.second_order(p, found)
            trial = self.direction(p, N, factor, r1 + bend1, r2 - bend2)
            length = min(1.0, fraction * longest(trial, scale, 2))
            self.progress.correctors += 1
            if length < _WORTH * a:
                break
            found, a = trial, length
            if (1.0 - a) * mu <= s:  # what a shorter step leaves of μ is no more than the target
                break
        dD = p.C.dot(found.X).dot(p.C.T)
        self.progress.counters.eigendecompositions += 2
        while a > _SHORTEST:
            new = self.point(p.D + a * dD, p.Z + a * found.dZ)
            if new is not None:
                v = new.v
                if v[0] * v[0] > self.tuning.neighbourhood * float(v.dot(v)) / self.d or a < 0.05:
                    return new, a
            a *= 0.8
        return None, 0.0

    # ---------------------------------------------------------------- the Newton system

    def jacobian(self, p: SmallPoint) -> Matrix:
        """N: from the coordinates of X to those of E F′[CXCᵀ] Eᵀ."""
        at = self.at
        J = at.congruence(p.C)
        lam2 = p.sums.ravel().take(at.flat)
        if self.T.ndim == 1:
            J *= 1.0 - self.T[:, None] * lam2
        else:
            J -= self.T.dot(J * lam2)
        return np.asarray(at.congruence(p.E).dot(J))

    def factor(self, p: SmallPoint, N: Matrix) -> Matrix | None:
        """The Cholesky factor of K + NᵀN, or None when rounding has made it indefinite."""
        H = N.T.dot(N)
        H += self.at.curvature(p.lam, p.Rt)
        add_to_diagonal(H, 1.0)
        K, info = _cholesky(H.T, 1, 0, 1)
        return None if info != 0 else np.asarray(K)

    def direction(self, p: SmallPoint, N: Matrix, factor: Matrix, r1: Vector, r2: Matrix) -> SmallStep:
        """The solution of the Newton system, r₁ in svec coordinates, and the curvature of the constraint along it."""
        at, C, E = self.at, p.C, p.E
        x = _solve(factor, r1 + at.svec(r2).dot(N), 1)[0]
        X, first = at.smat(x), at.smat(N.dot(x))
        zeta = r2 - first
        CX = C.dot(X)
        second = -E.dot(self.Q.apply((CX * p.lam).dot(CX.T))).dot(E.T)
        return SmallStep(X, first, second, zeta, E.T.dot(zeta).dot(E))

    def second_order(self, p: SmallPoint, step: SmallStep) -> tuple[Vector, Matrix]:
        """The second-order parts of both equations along a direction, that of the first in svec coordinates.

        Of r₁: X² − (ΛX dR̃ + dR̃ XΛ), dR̃ = Cᵀ𝒬*(dZ)C.  Of ZF = sI in the scaled coordinates, where both matrices are
        Diag(v): F″ and the symmetric part of F′ζ divided by (vᵢ + vⱼ)/2.
        """
        half = (p.lam[:, None] * step.X).dot(p.C.T.dot(self.Q.adjoint(step.dZ)).dot(p.C))
        product = step.first.dot(step.zeta)
        product += product.T
        product /= p.v[:, None] + p.v
        product += step.second
        return self.at.svec(step.X.dot(step.X) - half - half.T), product


def _smallest(M: Matrix) -> float:
    """λmin(M); NaN, which every comparison refuses, when LAPACK fails."""
    w, _, info = _eigh(M, 0, 1)
    return float(w[0]) if info == 0 else math.nan


def longest(step: SmallStep, scale: Matrix, trials: int) -> float:
    """A length a ≤ 1.1 with Diag(v) + aζ ⪰ 0 and Diag(v) + aF′ + a²F″ ⪰ 0, near the largest; scale_ij = (vᵢvⱼ)^{-½}."""
    a = _BEYOND
    smallest = _smallest(step.zeta * scale)
    if smallest * a < -1.0:
        a = -1.0 / smallest
    # F″ ⪯ 0, so the largest b with Diag(v) + b(F′ + aF″) ⪰ 0 falls with a, and is feasible itself when b < a.
    low = 0.0
    for _ in range(trials):
        smallest = _smallest((step.first + a * step.second) * scale)
        if smallest * a >= -1.0:
            return a
        low = max(low, -1.0 / smallest)
        a = 0.5 * (a + low)
    return low
