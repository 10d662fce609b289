"""The matrix G(D) = aD − 𝒬(DBD) around one D, written in a basis C with CCᵀ = D that has the pattern of D.

A ``Frame`` is that basis; ``Basis`` is what other bases have too (``.whitened``).

For a = 1 it is the left-hand side F of the condition F(D) ⪰ 0, for a = 2 the descent metric.

A change of D is CXCᵀ; what comes from G is multiplied by C⁻¹ from both sides, what comes from its inverse by C:

    G̃ = aI − C⁻¹𝒬(CB̃Cᵀ)C⁻ᵀ,   B̃ = CᵀBC,   Ỹ = G̃⁻¹,   R̃ = Cᵀ𝒬*(Y)C,
    G′[X] = aX − C⁻¹𝒬(C(XB̃ + B̃X)Cᵀ)C⁻ᵀ,      G′*[Z] = Π(aZ − (B̃N + NB̃)),  N = Cᵀ𝒬*(C⁻ᵀZC⁻¹)C,
    G̃(I + X) = G̃ + G′[X] − C⁻¹𝒬(CXB̃XCᵀ)C⁻ᵀ      (exact: G is quadratic),

Π the projection onto the pattern in this basis: the diagonal blocks, or multiples of the identity in each block for
D = Diag(γᵢWᵢ).  C is rotated so that the diagonal blocks of B̃ are diagonal: for a full D, B̃ is.  Where the map is
graded a full D keeps all of B̃, because its rounding off the diagonal counts.

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
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from stepsize_solvers.numerics.linalg import (
    Array,
    cholesky,
    congruence_diagonal,
    eigh,
    log_det_from_cholesky,
    lower_congruence,
    lower_product,
    lower_solve,
    sym,
    triangular_inverse,
    weighted_gram,
)
from stepsize_solvers.programs import Family, Matrix, Pattern, PositiveMap, add_to_diagonal

# Bisection ends when the bracket is this narrow; the fraction to the boundary of a step hides what is left.
_RESOLUTION = 0.04
_MOST_TRIALS = 12


@dataclass(frozen=True, eq=False)
class Basis(ABC):
    """A basis C of symmetric matrices D and the derivatives of G in it, in the precision of its arrays; E: C⁻ᵀ.

    Products are written ``A.dot(B)``: for small matrices that call takes half the time of @.
    """

    Q: PositiveMap
    a: float
    pattern: Pattern
    C: Array
    E: Array

    @abstractmethod
    def twice(self, X: Array) -> Array:
        """C⁻¹(dD B D + D B dD)C⁻ᵀ for dD = CXCᵀ."""

    @abstractmethod
    def cotwice(self, N: Array) -> Array:
        """Its adjoint."""

    @abstractmethod
    def bend(self, X: Array) -> Array:
        """−C⁻¹𝒬(dD B dD)C⁻ᵀ for dD = CXCᵀ."""

    @abstractmethod
    def cross(self, X: Array, N: Array) -> Array:
        """Π(BdDR + RdDB) in the basis, for dD = CXCᵀ and R = C⁻ᵀNC⁻¹."""

    @property
    def d(self) -> int:
        return int(self.C.shape[0])

    def project(self, M: Array) -> Array:
        """Π(M)."""
        return self.pattern.projected(M)

    def image(self, M: Array) -> Array:
        """C⁻¹𝒬(CMCᵀ)C⁻ᵀ."""
        return self._mapped(self.C, M, self.E, self.Q.apply)

    def coimage(self, Z: Array) -> Array:
        """Cᵀ𝒬*(C⁻ᵀZC⁻¹)C."""
        return self._mapped(self.E, Z, self.C, self.Q.adjoint)

    def _mapped(self, basis: Array, M: Array, inverse: Array, Q: Callable[[Matrix], Matrix]) -> Array:
        """A⁻¹𝒬(AMAᵀ)A⁻ᵀ of a basis A, whose inverse transposed is given; the cheap map needs few products."""
        split = self.Q.diagonal_plus_scaled
        if split is None:
            image = Q(basis.dot(M).dot(basis.T)).astype(M.dtype, copy=False)
            return sym(inverse.T.dot(image).dot(inverse))
        out = weighted_gram(inverse, (split.alpha * congruence_diagonal(basis, M)).astype(M.dtype))
        out += np.asarray(split.beta, dtype=M.dtype) * M
        return out

    def slope(self, X: Array) -> Array:
        """G′[X]."""
        return np.asarray(self.a * X - self.image(self.twice(X)))

    def coslope(self, Z: Array) -> Array:
        """G′*[Z]."""
        return self.project(self.a * Z - self.cotwice(self.coimage(Z)))

    def stretched(self, M: Matrix) -> Matrix:
        """C⁻¹MC⁻ᵀ."""
        return sym(self.E.T @ M @ self.E)

    def squeezed(self, Z: Matrix) -> Matrix:
        """CᵀZC."""
        return sym(self.C.T @ Z @ self.C)

    def dual(self, Yt: Array) -> Matrix:
        """C⁻ᵀỸC⁻¹."""
        E = self.E.astype(np.float64, copy=False)
        return sym(E.dot(Yt).dot(E.T))

    def change(self, X: Array) -> Matrix:
        """CXCᵀ."""
        return sym(self.C @ X @ self.C.T)


@dataclass(frozen=True, eq=False)
class Frame(Basis):
    """A basis of one D: CCᵀ = D and B̃ = CᵀBC, which is symmetric.  log_det: of D."""

    log_det: float
    _rounded: ClassVar[tuple[str, ...]]  # the arrays that are in single precision in ``single``

    @staticmethod
    def of(family: Family, pattern: Pattern, D: Matrix, rotated: bool = True, graded: bool = False) -> Frame | None:
        """The frame of D, or None when D is not numerically positive definite; ``rotated`` as said above.

        ``graded``: keep all of B̃ for a full D, too.
        """
        K = cholesky(D)
        if K is None or family.B is None:
            return None
        inverse, log_det = triangular_inverse(K), log_det_from_cholesky(K)
        Bt = sym(K.T.dot(family.B.dot(K)))
        shared = family.Q, family.a, pattern
        if rotated and pattern.is_full and not graded:
            lam, U = _diagonalised(Bt)
            return FullFrame(*shared, K.dot(U), U.T.dot(inverse).T, log_det, lam)
        if not rotated or pattern.W is not None or max(pattern.sizes) == 1:
            return BlockFrame(*shared, K, inverse.T, log_det, family.B, Bt)
        U = _rotation(pattern, Bt)
        return BlockFrame(*shared, K.dot(U), U.T.dot(inverse).T, log_det, family.B, sym(U.T.dot(Bt).dot(U)))

    @abstractmethod
    def matrix(self) -> Array:
        """B̃."""

    @abstractmethod
    def moved(self, X: Array) -> tuple[Frame, Array] | None:
        """Return the rotated frame of D⁺ = C(I + X)Cᵀ and T = C⁻¹C⁺; None unless I + X ≻ 0."""

    @property
    def diagonal(self) -> Array:
        """diag B̃."""
        return np.diagonal(self.matrix())

    @cached_property
    def quadratic(self) -> Array:
        """C⁻¹𝒬(DBD)C⁻ᵀ."""
        return self.image(self.matrix())

    def times_B(self, X: Array) -> Array:
        """B̃X."""
        return np.asarray(self.matrix() @ X)

    def twice(self, X: Array) -> Array:
        M = X @ self.matrix()
        return np.asarray(M + M.T)

    def bend(self, X: Array) -> Array:
        return -self.image(sym(X @ self.matrix() @ X))

    def whitened_by_B(self, matrices: Sequence[Array]) -> list[Array] | None:
        """L⁻¹ M L⁻ᵀ of each matrix, LLᵀ = B̃; None when B is not numerically positive definite."""
        K = cholesky(self.matrix())
        return None if K is None else [lower_solve(K, lower_solve(K, M).T) for M in matrices]

    @cached_property
    def single(self) -> Frame:
        """The frame in single precision."""
        if self.C.dtype == np.float32:
            return self
        return replace(self, **{name: vars(self)[name].astype(np.float32) for name in self._rounded})

    @property
    def condition(self) -> float:
        """‖C‖‖C⁻¹‖/d in the norm of Frobenius: 1 for an orthogonal C."""
        return math.sqrt(float(np.vdot(self.C, self.C)) * float(np.vdot(self.E, self.E))) / self.d

    @property
    def D(self) -> Matrix:
        C = self.C.astype(np.float64, copy=False)
        return np.asarray(C.dot(C.T))

    @property
    def value(self) -> Array:
        """G̃."""
        G = -self.quadratic
        add_to_diagonal(G, self.a)
        return G

    def cotwice(self, N: Array) -> Array:
        return self.twice(N)

    def cross(self, X: Array, N: Array) -> Array:
        """Π(B̃XN + NXB̃)."""
        M = self.times_B(X).dot(N)
        return self.project(M + M.T)

    def loss(self, Rt: Matrix, g: Matrix) -> float:
        """½⟨g, K⁻¹g⟩ over all matrices; infinite when B or R is not numerically positive definite."""
        with np.errstate(over="ignore"):  # infinite is what it is then
            whitened = self.whitened_by_B((Rt, g))
            if whitened is None or not np.abs(whitened[0]).max() < _LARGEST:
                return math.inf
            rho, U = eigh(sym(whitened[0]))
            if not rho[0] > 0.0:
                return math.inf
            g = U.T @ whitened[1] @ U
            return 0.5 * float(np.sum(g * g / (rho[:, None] + rho)))


@dataclass(frozen=True, eq=False)
class FullFrame(Frame):
    """The frame of a full D with a diagonal B̃ = Diag(λ); lam: λ."""

    lam: Array
    _rounded = ("C", "E", "lam")

    @property
    def diagonal(self) -> Array:
        return self.lam

    def matrix(self) -> Array:
        return np.diag(self.lam)

    @cached_property
    def sums(self) -> Array:
        """λᵢ + λⱼ."""
        return np.asarray(self.lam[:, None] + self.lam)

    def moved(self, X: Array) -> tuple[Frame, Array] | None:
        found = _moved_basis(self, X)
        if found is None:
            return None
        K, log_det = found
        root = K.T * np.sqrt(self.lam)
        lam, U = _diagonalised(root.dot(root.T))
        T, E = lower_product(K, U), lower_solve(K, self.E.T).T.dot(U)
        return FullFrame(self.Q, self.a, self.pattern, self.C.dot(T), E, log_det, lam), T

    def times_B(self, X: Array) -> Array:
        return np.asarray(self.lam[:, None] * X)

    def twice(self, X: Array) -> Array:
        return np.asarray(self.sums * X)

    @cached_property
    def quadratic(self) -> Array:
        """With diag(DBD)_j = Σ_k λ_k C_jk² for the cheap map."""
        split, C = self.Q.diagonal_plus_scaled, self.C
        if split is None:
            return sym(self.E.T.dot(self.Q.apply((C * self.lam).dot(C.T))).dot(self.E))
        out = weighted_gram(self.E, (split.alpha * ((C * C) @ self.lam)).astype(self.lam.dtype, copy=False))
        add_to_diagonal(out, split.beta * self.lam)
        return out

    def bend(self, X: Array) -> Array:
        if self.Q.diagonal_plus_scaled is not None:
            root = X * np.sqrt(self.lam)
            return -self.image(root.dot(root.T))  # half a product
        CX, E = self.C.dot(X), self.E
        image = self.Q.apply((CX * self.lam).dot(CX.T)).astype(X.dtype, copy=False)
        return np.asarray(-E.T.dot(image).dot(E))

    def whitened_by_B(self, matrices: Sequence[Array]) -> list[Array]:
        root = 1.0 / np.sqrt(self.lam)
        scale = np.multiply.outer(root, root)
        return [M * scale for M in matrices]


@dataclass(frozen=True, eq=False)
class BlockFrame(Frame):
    """The frame of a D of any pattern, with all of B̃; B: where that comes from."""

    B: Matrix
    Bt: Array
    _rounded = ("C", "E", "Bt")

    def matrix(self) -> Array:
        return self.Bt

    def moved(self, X: Array) -> tuple[Frame, Array] | None:
        found = _moved_basis(self, X)
        if found is None:
            return None
        K, log_det = found
        U = _rotation(self.pattern, sym(K.T @ self.Bt @ K))
        T, E = lower_product(K, U), lower_solve(K, self.E.T).T.dot(U)
        C = self.C.dot(T)
        Bt = sym(C.T @ self.B @ C)  # from B itself: for a graded map its rounding counts
        return BlockFrame(self.Q, self.a, self.pattern, C, E, log_det, self.B, Bt), T


def _moved_basis(frame: Frame, X: Array) -> tuple[Array, float] | None:
    """The Cholesky factor of I + X and log det D⁺; None unless I + X ≻ 0."""
    M = X.astype(frame.C.dtype)
    add_to_diagonal(M, 1.0)
    K = cholesky(M)
    return None if K is None else (K, frame.log_det + log_det_from_cholesky(K))


def _diagonalised(Bt: Array) -> tuple[Array, Array]:
    """The eigenvalues and eigenvectors of B̃ for a full D.

    B ⪰ 0 has no negative eigenvalue; rounding may produce one of the relative size of the unit roundoff.
    """
    lam, U = eigh(Bt)
    return np.maximum(lam, np.finfo(lam.dtype).tiny), U


def _rotation(pattern: Pattern, Bt: Array) -> Array:
    """U with the pattern that makes the diagonal blocks of UᵀB̃U diagonal; given blocks are left as they are."""
    U = np.eye(len(Bt))
    for s in pattern.slices if pattern.W is None else ():
        if s.stop - s.start > 1:
            U[s, s] = eigh(Bt[s, s])[1]
    return U


_LARGEST = 1e300  # of an entry: the sum of two is a float


# ---------------------------------------------------------------- Nesterov–Todd scaling


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Cholesky factor K of F, the eigenvectors U of KᵀZK, v and G = KU Diag(v)^{−½} of the pair."""

    factor: Array
    U: Array
    v: Array
    G: Array

    def in_single(self) -> Scaling:
        """The scaling in single precision."""
        return Scaling(*(part.astype(np.float32, copy=False) for part in (self.factor, self.U, self.v, self.G)))

    @cached_property
    def mu(self) -> float:
        """⟨F, Z⟩/d, the mean of v²."""
        return float(self.v.dot(self.v)) / len(self.v)

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """t, ascending, and V: the eigenvalues and eigenvectors of W."""
        # Only when asked for: the last point, and those that are refused, need no basis.
        return eigh(self.W)

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
