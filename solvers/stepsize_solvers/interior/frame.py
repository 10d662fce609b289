"""The matrix G(D) = aD − 𝒬(DBD) around one D, written in a basis C with CCᵀ = D that has the pattern of D.

For a = 1 it is the left-hand side F of the condition F(D) ⪰ 0, for a = 2 the descent metric.

A change of D is CXCᵀ; what comes from G is multiplied by C⁻¹ from both sides, what comes from its inverse by C:

    G̃ = aI − C⁻¹𝒬(CB̃Cᵀ)C⁻ᵀ,   B̃ = CᵀBC,   Ỹ = G̃⁻¹,   R̃ = Cᵀ𝒬*(Y)C,
    G′[X] = aX − C⁻¹𝒬(C(XB̃ + B̃X)Cᵀ)C⁻ᵀ,      G′*[Z] = Π(aZ − (B̃N + NB̃)),  N = Cᵀ𝒬*(C⁻ᵀZC⁻¹)C,
    G̃(I + X) = G̃ + G′[X] − C⁻¹𝒬(CXB̃XCᵀ)C⁻ᵀ      (exact: G is quadratic),

Π the projection onto the pattern in this basis: the diagonal blocks, or multiples of the identity in each block for
D = Diag(γᵢWᵢ).  C is rotated so that the diagonal blocks of B̃ are diagonal: for a full D, B̃ is.

A step D⁺ = C(I + X)Cᵀ changes the basis to C⁺ = CKU with KKᵀ = I + X and a rotation U that makes the blocks of KᵀB̃K
diagonal: one Cholesky factorisation and one eigendecomposition.

*Scaling.*  Nesterov–Todd scaling of the pair F ≻ 0, Z ≻ 0, and the largest step that keeps matrices positive definite.

There is one W ≻ 0 with W Z W = F, the geometric mean F # Z⁻¹.  With a factor G, GGᵀ = W,

    Gᵀ Z G = G⁻¹ F G⁻ᵀ = Diag(v),      v² the eigenvalues of F Z,

and the centring equation Z F = s I linearises to the symmetric dF + W dZ W = G Diag(s/v − v) Gᵀ.
In the eigenbasis W = V Diag(t) Vᵀ the map dZ ↦ W dZ W multiplies entry (i, j) by tᵢtⱼ: small where the
constraint is active in both directions, large where it is slack in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from stepsize_solvers.numerics import (
    Array,
    Gram,
    cholesky,
    congruence_diagonal,
    eigh,
    log_det_from_cholesky,
    lower_congruence,
    lower_product,
    lower_solve,
    sym,
    triangular_inverse,
)
from stepsize_solvers.programs import Family, Matrix, Pattern, PositiveMap, add_to_diagonal

_GRADED = 1e10  # see is_graded
# Bisection ends when the bracket is this narrow; the fraction to the boundary of a step hides what is left.
_RESOLUTION = 0.04
_MOST_TRIALS = 12


@dataclass(frozen=True, eq=False)
class Frame:
    """The basis of one D and the maps in it, in the precision of its arrays.
    Products are written ``A.dot(B)``: for small matrices that call takes half the time of @.

    C, E: C and C⁻ᵀ; Bt: the diagonal of B̃ for a full D, otherwise the matrix; log_det: of D.  Another basis, CCᵀ ≠ D,
    has B̃ = CᵀBDC⁻ᵀ, which need not be symmetric; ``value``, ``left`` and ``bend`` are not for it.
    """

    Q: PositiveMap
    a: float
    pattern: Pattern
    C: Gram
    E: Gram
    Bt: Array
    log_det: float

    @staticmethod
    def of(left: Family, pattern: Pattern, D: Matrix, rotated: bool = True, graded: bool = False) -> Frame | None:
        """The frame of D, or None when D is not numerically positive definite; ``rotated`` as said above.

        ``graded``: keep all of B̃ for a full D, too.
        """
        K = cholesky(D)
        if K is None or left.B is None:
            return None
        C, C_inverse = K, triangular_inverse(K)
        Bt: Array = sym(K.T.dot(left.B.dot(K)))
        if rotated and (pattern.is_full or (pattern.W is None and max(pattern.sizes) > 1)):
            U, Bt = _rotation(pattern, Bt, graded)
            C, C_inverse = K.dot(U), U.T.dot(C_inverse)
        return Frame(left.Q, left.a, pattern, Gram(C), Gram(C_inverse.T), Bt, log_det_from_cholesky(K))

    def moved(self, X: Array) -> tuple[Frame, Array] | None:
        """Return the rotated frame of D⁺ = C(I + X)Cᵀ and T = C⁻¹C⁺; None unless I + X ≻ 0."""
        M = X.astype(self.C.A.dtype)
        add_to_diagonal(M, 1.0)
        K = cholesky(M)
        if K is None:
            return None
        if self.Bt.ndim == 1:
            root = K.T * np.sqrt(self.Bt)
            U, Bt = _rotation(self.pattern, root.dot(root.T))
        else:
            U, Bt = _rotation(self.pattern, sym(K.T @ self.Bt @ K), graded=True)
        T = lower_product(K, U)
        C, E = Gram(self.C.A.dot(T)), Gram(lower_solve(K, self.E.A.T).T.dot(U))
        return Frame(self.Q, self.a, self.pattern, C, E, Bt, self.log_det + log_det_from_cholesky(K)), T

    @property
    def d(self) -> int:
        return int(self.C.A.shape[0])

    def lowered(self) -> Frame:
        """The frame in single precision."""
        C, E, Bt = (part.astype(np.float32) for part in (self.C.A, self.E.A, self.Bt))
        return replace(self, C=Gram(C), E=Gram(E), Bt=Bt)

    @property
    def condition(self) -> float:
        """‖C‖‖C⁻¹‖/d in the norm of Frobenius: 1 for an orthogonal C."""
        return math.sqrt(float(np.vdot(self.C.A, self.C.A)) * float(np.vdot(self.E.A, self.E.A))) / self.d

    @cached_property
    def low(self) -> Frame:
        """The frame in single precision."""
        return self if self.C.A.dtype == np.float32 else self.lowered()

    @cached_property
    def diagonal(self) -> Array:
        """diag B̃."""
        return self.Bt if self.Bt.ndim == 1 else np.diagonal(self.Bt)

    @cached_property
    def sums(self) -> Array:
        """λᵢ + λⱼ for a diagonal B̃."""
        return np.asarray(self.Bt[:, None] + self.Bt)

    def project(self, M: Array) -> Array:
        """Π(M)."""
        pattern = self.pattern
        if pattern.is_full:
            return M
        if pattern.W is None:
            return pattern.blocks(M)
        means = [np.full(s.stop - s.start, np.trace(M[s, s]) / (s.stop - s.start)) for s in pattern.slices]
        return np.diag(np.concatenate(means)).astype(M.dtype)

    def left(self, X: Array) -> Array:
        """B̃X."""
        return np.asarray(self.Bt[:, None] * X if self.Bt.ndim == 1 else self.Bt @ X)

    def twice(self, X: Array) -> Array:
        """B̃ᵀX + XB̃ for a symmetric X."""
        if self.Bt.ndim == 1:
            return np.asarray(self.sums * X)
        M = X @ self.Bt
        return np.asarray(M + M.T)

    def cotwice(self, X: Array) -> Array:
        """B̃X + XB̃ᵀ for a symmetric X."""
        if self.Bt.ndim == 1:
            return np.asarray(self.sums * X)
        M = self.Bt @ X
        return np.asarray(M + M.T)

    def image(self, M: Array) -> Array:
        """C⁻¹𝒬(CMCᵀ)C⁻ᵀ; the cheap map needs a diagonal and a symmetric product only."""
        split, C, E = self.Q.diagonal_plus_scaled, self.C.A, self.E.A
        if split is not None:
            return _plus(self.E((split.alpha * congruence_diagonal(C, M)).astype(M.dtype)), split.beta, M)
        return sym(E.T.dot(self.Q.apply(C.dot(M).dot(C.T)).astype(M.dtype, copy=False)).dot(E))

    def coimage(self, Z: Array) -> Array:
        """Cᵀ𝒬*(C⁻ᵀZC⁻¹)C."""
        split, C, E = self.Q.diagonal_plus_scaled, self.C.A, self.E.A
        if split is not None:
            return _plus(self.C((split.alpha * congruence_diagonal(E, Z)).astype(Z.dtype)), split.beta, Z)
        return sym(C.T.dot(self.Q.adjoint(E.dot(Z).dot(E.T)).astype(Z.dtype, copy=False)).dot(C))

    @property
    def D(self) -> Matrix:
        C = self.C.A.astype(np.float64, copy=False)
        return np.asarray(C.dot(C.T))

    @cached_property
    def quadratic(self) -> Array:
        """C⁻¹𝒬(DBD)C⁻ᵀ; diag(DBD)_j = Σ_k λ_k C_jk² for a diagonal B̃."""
        split = self.Q.diagonal_plus_scaled
        if self.Bt.ndim == 2:
            return self.image(self.Bt)
        if split is None:
            return sym(self.E.A.T.dot(self.Q.apply((self.C.A * self.Bt).dot(self.C.A.T))).dot(self.E.A))
        out = self.E((split.alpha * ((self.C.A * self.C.A) @ self.Bt)).astype(self.Bt.dtype, copy=False))
        add_to_diagonal(out, split.beta * self.Bt)
        return out

    @property
    def value(self) -> Array:
        """G̃."""
        G = -self.quadratic
        add_to_diagonal(G, self.a)
        return G

    def slope(self, X: Array) -> Array:
        """G′[X]."""
        return np.asarray(self.a * X - self.image(self.twice(X)))

    def coslope(self, Z: Array) -> Array:
        """G′*[Z]."""
        return self.project(self.a * Z - self.cotwice(self.coimage(Z)))

    def bend(self, X: Array) -> Array:
        """−C⁻¹𝒬(CXB̃XCᵀ)C⁻ᵀ."""
        if self.Bt.ndim == 1 and self.Q.diagonal_plus_scaled is None:
            CX, E = self.C.A.dot(X), self.E.A
            image = self.Q.apply((CX * self.Bt).dot(CX.T)).astype(X.dtype, copy=False)
            return np.asarray(-E.T.dot(image).dot(E))
        if self.Bt.ndim == 1:
            root = X * np.sqrt(self.Bt)
            return -self.image(root.dot(root.T))  # half a product
        return -self.image(sym(X @ self.left(X)))

    def cross(self, X: Array, N: Array) -> Array:
        """Π(B̃XN + NXB̃)."""
        M = self.left(X).dot(N)
        return self.project(M + M.T)

    def stretched(self, E: Matrix) -> Matrix:
        """C⁻¹EC⁻ᵀ."""
        return sym(self.E.A.T @ E @ self.E.A)

    def dual(self, Yt: Array) -> Matrix:
        """C⁻ᵀỸC⁻¹."""
        E = self.E.A.astype(np.float64, copy=False)
        return sym(E.dot(Yt).dot(E.T))

    def change(self, X: Array) -> Matrix:
        """CXCᵀ."""
        return sym(self.C.A @ X @ self.C.A.T)


_LARGEST = 1e300  # of an entry: the sum of two is a float


def curvature_loss(frame: Frame, Rt: Matrix, g: Matrix) -> float:
    """½⟨g, K⁻¹g⟩; infinite when B or R is not numerically positive definite."""
    Bt = frame.Bt
    if Bt.ndim == 1:
        root = 1.0 / np.sqrt(Bt)
        scale = np.multiply.outer(root, root)
        with np.errstate(over="ignore"):
            R, g = Rt * scale, g * scale
    else:
        K = cholesky(Bt)
        if K is None:
            return math.inf
        R, g = (lower_solve(K, lower_solve(K, M).T) for M in (Rt, g))
    if not np.abs(R).max() < _LARGEST:
        return math.inf
    rho, U = eigh(sym(R))
    if not rho[0] > 0.0:
        return math.inf
    g = U.T @ g @ U
    with np.errstate(over="ignore"):  # infinite is what it is then
        return 0.5 * float(np.sum(g * g / (rho[:, None] + rho)))


def is_graded(Q: PositiveMap) -> bool:
    """Whether second moments differ so much (a coordinate kept with probability 10⁻¹⁰, say) that rotations lose digits.

    The diagonal of a B that is scaled for D near one has the same ratio, and eigenvectors of B, or of a D that is so
    graded, are right to rounding of the largest entries only.
    """
    lowest, highest = Q.action_range
    return bool(highest > _GRADED * lowest)


def effective_beta(Q: PositiveMap) -> float:
    """A scalar β with 𝒬(M) ≈ βM on average: the mean of what an entrywise map multiplies by off the diagonal.

    For other maps ⟨M, 𝒬(M)⟩/⟨M, M⟩ at a fixed random M.
    """
    split = Q.diagonal_plus_scaled
    if split is not None:
        return split.beta
    P, d = Q.hadamard_matrix, Q.d
    if P is not None and d > 1:
        return float(P.sum() - np.trace(P)) / (d * (d - 1))
    M = np.random.default_rng(1).standard_normal((d, d))
    M += M.T
    return float(np.vdot(M, Q.apply(M)) / np.vdot(M, M))


def _rotation(pattern: Pattern, Bt: Array, graded: bool = False) -> tuple[Array, Array]:
    """U with the pattern that makes the diagonal blocks of UᵀB̃U diagonal, and that matrix.

    For a full D its diagonal alone, unless the map is graded and rounding off the diagonal counts.
    """
    if pattern.is_full and not graded:
        lam, U = eigh(Bt)
        # B ⪰ 0 has no negative eigenvalue; rounding may produce one of the relative size of the unit roundoff.
        return U, np.maximum(lam, np.finfo(lam.dtype).tiny)
    U = np.eye(len(Bt))
    for s in pattern.slices:
        if s.stop - s.start > 1:
            U[s, s] = eigh(Bt[s, s])[1]
    return U, sym(U.T @ Bt @ U)


def _plus(out: Array, factor: float, M: Array) -> Array:
    out += np.asarray(factor, dtype=M.dtype) * M
    return out


# ---------------------------------------------------------------- Nesterov–Todd scaling


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Cholesky factor K of F, the eigenvectors U of KᵀZK, v and G = KU Diag(v)^{−½} of the pair."""

    factor: Array
    U: Array
    v: Array
    G: Array

    def lowered(self) -> Scaling:
        """The scaling in single precision."""
        return Scaling(*(part.astype(np.float32, copy=False) for part in (self.factor, self.U, self.v, self.G)))

    @cached_property
    def mu(self) -> float:
        """⟨F, Z⟩/d, the mean of v²."""
        return float(self.v.dot(self.v)) / len(self.v)

    @cached_property
    def _spectrum(self) -> tuple[Array, Array]:
        # Only when asked for: the last point, and those that are refused, need no basis.
        return eigh(self.W)

    @property
    def t(self) -> Array:
        """The eigenvalues of W, ascending."""
        return self._spectrum[0]

    @property
    def V(self) -> Array:
        """The eigenvectors of W."""
        return self._spectrum[1]

    @cached_property
    def G_inverse(self) -> Array:
        """G⁻¹ = Diag(v)^½ UᵀK⁻¹."""
        return np.asarray((self.U * np.sqrt(self.v)).T.dot(triangular_inverse(self.factor)))

    @cached_property
    def W(self) -> Array:
        return sym(self.G @ self.G.T)

    def aim(self, s: float) -> Array:
        """G Diag(s/v − v) Gᵀ, the right-hand side of the centring equation for ZF = sI."""
        return np.asarray((self.G * (s / self.v - self.v)) @ self.G.T)

    def second_order(self, dF: Array, dZ: Array) -> Array:
        """The part of the centring equation that is quadratic in the changes of F and Z.

        In the coordinates of G, where F and Z are Diag(v), it is the symmetric part of the product of both, divided by
        (vᵢ + vⱼ)/2.
        """
        product = (self.G_inverse @ dF) @ (dZ @ self.G)
        product = (product + product.T) / (self.v[:, None] + self.v)
        return np.asarray(self.G @ product @ self.G.T)


def nesterov_todd(F: Array, Z: Array) -> Scaling | None:
    """The scaling of the pair, or None when one of them is not numerically positive definite."""
    K = cholesky(F)
    if K is None:
        return None
    squares, U = eigh(lower_congruence(K, Z))
    if not squares[0] > 0.0:
        return None
    v = np.sqrt(squares)
    return Scaling(K, U, v, lower_product(K, U) / np.sqrt(v))


def largest_step(paths: Sequence[Sequence[Array]]) -> float:
    """The largest a ≤ 1, up to a few per cent from below, with every matrix polynomial Σ_k aᵏM_k positive definite.

    Each path starts from the length that the paths before it allow.  Paths are linear, or concave quadratics, so a
    shorter step cannot leave them.
    """
    a = 1.0
    for path in paths:
        a = _bisected(path, a)
    return a


def _bisected(path: Sequence[Array], longest: float) -> float:
    """The largest tested a ∈ (0, longest] that is inside; 0 when none was."""
    if longest == 0.0 or _is_inside(path, longest):
        return longest
    low, high = 0.0, longest
    for _ in range(_MOST_TRIALS):
        a = 0.5 * (low + high)
        if _is_inside(path, a):
            low = a
        else:
            high = a
        if low > 0.0 and high - low < _RESOLUTION * high:
            break
    return low


def _is_inside(path: Sequence[Array], a: float) -> bool:
    """Whether the polynomial is numerically positive definite at a."""
    M, power = path[0].copy(), 1.0
    for coefficient in path[1:]:
        power *= a
        M += power * coefficient
    return cholesky(M) is not None
