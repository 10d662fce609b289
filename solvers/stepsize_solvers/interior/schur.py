"""The Newton system of the condition by its dual Schur complement, in the eigenbasis of the Nesterov–Todd scaling.

Eliminating X from  𝒦X − F′*dZ = r,  F′X + W dZ W = c  leaves

    (F′ 𝒦⁻¹ F′* + W·W) dZ = c − F′𝒦⁻¹r,      𝒦[X] = X + Π(B̃XR̃ + R̃XB̃),

whose condition number, after a diagonal preconditioner in the basis V of W = V Diag(t) Vᵀ, does not grow as
μ → 0.  It is solved by conjugate gradients with a polynomial p(𝒦) ≈ 𝒦⁻¹ (``numerics.curvature``), and
X = p(𝒦)(r + F′*dZ) is summed along the way.  All of it is linear in small quantities, so single precision is enough:
an error of 10⁻⁷ relative to the direction, while the points themselves are in double.

In the basis V write Ẑ = VᵀdZV.  Pairs (i, j) with tᵢ and tⱼ both large belong to slack directions: there
the term tᵢtⱼ dominates, the equation is solved by its diagonal, and conjugate gradients run on the r rows of the
active directions only (1.1 to 1.2 times faster at d = 200 and 300).  A symmetric Ẑ without its slack block is held as
an r×d array Y:

    Ẑ = H_a + H_aᵀ,   H = Y with the r×r part halved,   ⟨Ẑ, Ẑ′⟩ = Σ w ∘ Y ∘ Y′,  w = 1 on the r×r part, else 2.

When all rows are active, H is the triangle of Y with a halved diagonal, so that products with it cost half.

For a full D and 𝒬(M) = Diag(α∘diag M) + βM the maps need only diagonals of congruences:

    N = βZ + Cᵀ Diag(α ∘ diag(C⁻ᵀZC⁻¹)) C,   F′[X] = (1 − β(λᵢ+λⱼ)) ∘ X − C⁻¹ Diag(α ∘ diag(C(ΛX + XΛ)Cᵀ)) C⁻ᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from stepsize_solvers.interior.frame import Frame
from stepsize_solvers.interior.problem import Solution
from stepsize_solvers.numerics import (
    Array,
    ChebyshevInverse,
    Gram,
    Scaling,
    Sizes,
    Work,
    chebyshev_inverse,
    congruence_diagonal,
    congruence_of_symmetric,
    conjugate_gradients,
    sym,
    within_scaled_tolerance,
)
from stepsize_solvers.programs import Matrix, PositiveMap

# Directions with tᵢ and tⱼ above this are slack: T_ij = tᵢtⱼ is above 3, the rest of the Schur complement below 1.
_SLACK = 3.0**0.5
# Restricting to active rows only pays when it saves a fifth of the work.
_WORTHWHILE = 0.8
# Floor of the preconditioner's estimate of diag(F′𝒦⁻¹F′*), which vanishes where 1 = β(λᵢ + λⱼ).
_DIAGONAL_FLOOR = 0.003
# A typical diagonal of F′𝒦⁻¹F′*; T is above 3 in the slack block, so a guess is enough.
_TYPICAL = 0.1
_MOST_ITERATIONS = 400


class Jacobian(Protocol):
    """F′ and F′* with the dual side in r rows of the basis V."""

    @property
    def r(self) -> int: ...
    def adjoint(self, Y: Array) -> tuple[Array, Array]:
        """F′*[Z] and Z̃ itself in the working basis, for Z given by its rows."""
        ...

    def forward(self, X: Array) -> Array:
        """The rows of Vᵀ F′[X] V."""
        ...


@dataclass(frozen=True, eq=False)
class PatternJacobian:
    """F′ and F′* of a frame with any pattern; all rows of V are active."""

    frame: Frame
    V: Array

    @property
    def r(self) -> int:
        return self.frame.d

    def adjoint(self, Y: Array) -> tuple[Array, Array]:
        Zt = sym(self.V @ Y @ self.V.T)
        return self.frame.coslope(Zt), Zt

    def forward(self, X: Array) -> Array:
        return np.asarray(self.V.T @ self.frame.slope(X) @ self.V)


@dataclass(frozen=True, eq=False)
class FullJacobian:
    """F′ and F′* for a full D, with the dual side in the rows of the basis V (r rows; r = d is all of it)."""

    Q: PositiveMap
    C: Gram
    E: Gram  # C⁻ᵀ V
    V: Array
    lam2: Array  # λᵢ + λⱼ
    r: int

    @staticmethod
    def of(frame: Frame, V: Array, r: int) -> FullJacobian:
        return FullJacobian(frame.Q, frame.C, Gram(frame.E.A @ V), V, frame.sums, r)

    @cached_property
    def damping(self) -> Array:
        """1 − β(λᵢ + λⱼ), what F′ and F′* multiply by for 𝒬(M) = Diag(α∘diag M) + βM, apart from α."""
        split = self.Q.diagonal_plus_scaled
        assert split is not None  # the callers have looked
        return np.asarray(1.0 - split.beta * self.lam2)

    def halve(self, Y: Array) -> Array:
        """H of the rows Y, so that Ẑ = H_a + H_aᵀ; Ẑ itself where these are all rows."""
        if self.r == len(self.V):
            return Y
        H = Y.copy()
        H[:, : self.r] *= 0.5
        return H

    def _congruence(self, A: Array, H: Array) -> Array:
        """A Ẑ Aᵀ, from what ``halve`` returned."""
        if self.r == len(A):
            return congruence_of_symmetric(A, H)
        half = A[:, : self.r] @ (H @ A.T)
        return np.asarray(half + half.T)

    def _congruence_diagonal(self, A: Array, H: Array) -> Array:
        """diag(A Ẑ Aᵀ), from what ``halve`` returned."""
        if self.r == len(A):
            return congruence_diagonal(A, H)
        return np.asarray(2.0 * np.einsum("ij,ij->i", A[:, : self.r], A @ H.T))

    def adjoint(self, Y: Array) -> tuple[Array, Array]:
        """F′*[Z] and Z̃ itself in the working basis, for Z given by its rows."""
        C, E, H = self.C.A, self.E.A, self.halve(Y)
        Zt = self._congruence(self.V, H)
        split = self.Q.diagonal_plus_scaled
        if split is not None:
            N = self.C((split.alpha * self._congruence_diagonal(E, H)).astype(Y.dtype, copy=False))
            N *= self.lam2
            return self.damping * Zt - N, Zt
        N = C.T @ self.Q.adjoint(self._congruence(E, H)).astype(Y.dtype, copy=False) @ C
        N *= self.lam2
        return Zt - N, Zt

    def forward(self, X: Array) -> Array:
        """The rows of Vᵀ F′[X] V."""
        r, C, E, V = self.r, self.C.A, self.E.A, self.V
        M = self.lam2 * X
        split = self.Q.diagonal_plus_scaled
        if split is None:
            image = self.Q.apply(C @ M @ C.T).astype(X.dtype, copy=False)
            return np.asarray((V[:, :r].T @ X) @ V - (E[:, :r].T @ image) @ E)
        weights = (split.alpha * congruence_diagonal(C, M)).astype(X.dtype, copy=False)
        U = self.damping * X
        if r == len(V):
            return congruence_of_symmetric(V.T, U) - self.E(weights)
        return np.asarray((V[:, :r].T @ U) @ V - (E[:, :r].T * weights) @ E)


class Images:
    """X = X₀ + p(𝒦)F′*[y] and Z̃ = Z̃₀ + Σ y, summed while conjugate gradients build y from their directions.

    Both are linear in y and each direction's images are formed anyway to apply the Schur complement, so the Newton
    direction costs nothing once y is known.
    """

    def __init__(self, X: Array, Zt: Array) -> None:
        self.X = X
        self.Zt = Zt
        self._last = (X, Zt)

    def of_direction(self, X: Array, Zt: Array) -> None:
        """Note the images of the direction to which the complement is being applied."""
        self._last = (X, Zt)

    def add_step(self, step: float, direction: Array) -> None:
        """Add the images of ``step`` times that direction, which is now part of y."""
        del direction
        X, Zt = self._last
        self.X += step * X
        self.Zt += step * Zt


@dataclass(frozen=True, eq=False)
class SchurComplement:
    """Y ↦ rows of F′ p(𝒦) F′*[Y] + T ∘ Y, with its diagonal preconditioner and inner product."""

    jacobian: Jacobian
    inverse: ChebyshevInverse
    T: Array
    preconditioner: Array
    images: Images | None = None

    def __call__(self, Y: Array) -> Array:
        image, Zt = self.jacobian.adjoint(Y)
        X = self.inverse(image)
        if self.images is not None:
            self.images.of_direction(X, Zt)
        out = self.jacobian.forward(X)
        out += self.T * Y
        return out

    def precondition(self, Y: Array) -> Array:
        return self.preconditioner * Y

    def inner(self, Y: Array, Y2: Array) -> float:
        """⟨Ẑ, Ẑ′⟩ = 2⟨Y, Y′⟩ minus what the r×r part counts too much."""
        r = self.jacobian.r
        if Y.shape[1] == r:
            return float(np.vdot(Y, Y2))
        return 2.0 * float(np.vdot(Y, Y2)) - float(np.vdot(Y[:, :r], Y2[:, :r]))


@dataclass(frozen=True, eq=False)
class Curvature:
    """𝒦[X] = X + Π(B̃XR̃ + R̃XB̃)."""

    frame: Frame
    Rt: Array

    def __call__(self, X: Array) -> Array:
        out = self.frame.cross(X, self.Rt)
        out += X
        return out

    def diagonal(self) -> Array:
        """1 + b̃ᵢr̃ⱼ + b̃ⱼr̃ᵢ, b̃ and r̃ the diagonals of B̃ and R̃."""
        outer = np.multiply.outer(self.frame.diagonal, np.diagonal(self.Rt))
        return np.asarray(1.0 + outer + outer.T)


@dataclass(frozen=True, eq=False)
class SchurSystem:
    """The linearised optimality conditions at one point, ready to be solved for several right-hand sides."""

    all_rows: Jacobian
    schur: SchurComplement
    slack_diagonal: Array
    V: Array
    work: Work

    @staticmethod
    def of(
        frame: Frame,
        Rt: Matrix,
        scaling: Scaling,
        beta: float,
        dtype: type[np.floating[Any]],
        work: Work,
    ) -> SchurSystem | None:
        """Operators, preconditioner and Chebyshev inverse at a point; None where rounding leaves 𝒦 or W indefinite.

        ``beta`` is the scalar stand-in for 𝒬.
        """
        pattern, t, d = frame.pattern, scaling.t, frame.d
        r = max(1, int(np.searchsorted(t, _SLACK)))
        if d <= Sizes.ALL_ROWS or r > _WORTHWHILE * d or frame.Bt.ndim == 2:
            r = d
        V: Array = scaling.V.astype(dtype, copy=False)
        curvature = Curvature(frame.low if dtype == np.float32 else frame, Rt.astype(dtype, copy=False))
        J = curvature.diagonal()
        if not (t[0] > 0.0 and J.min() > 0.0):
            return None
        mask = None if pattern.is_full else pattern.blocks(np.ones((d, d)))
        inverse = chebyshev_inverse(curvature, J, mask)
        full: Jacobian = PatternJacobian(curvature.frame, V)
        active = full
        if frame.Bt.ndim == 1:
            full = FullJacobian.of(curvature.frame, V, d)
            active = full if r == d else replace(full, r=r)
        T = np.multiply.outer(t[:r], t).astype(dtype)
        diagonal = _schur_diagonal(curvature.frame, J, mask, V, r, beta) + dtype(_DIAGONAL_FLOOR)
        schur = SchurComplement(active, inverse, T, 1.0 / (diagonal + T))
        slack = np.multiply.outer(t[r:], t[r:]) + _TYPICAL
        return SchurSystem(full, schur, slack.astype(dtype), V, work)

    def solve(self, r: Array, c: Array, tolerance: float) -> Solution:
        """X, in the precision of the system, and dZ with 𝒦X − F′*dZ = r and F′X + W dZ W = c."""
        V, rows, inverse = self.V, self.schur.jacobian.r, self.schur.inverse
        d, dtype = len(V), V.dtype
        rhs: Array = r.astype(dtype, copy=False)
        c = V.T @ c.astype(dtype, copy=False) @ V
        dZt = np.zeros((d, d), dtype)
        if rows < d:
            Y = np.zeros((d, d), dtype)
            Y[rows:, rows:] = c[rows:, rows:] / self.slack_diagonal
            image, dZt = self.all_rows.adjoint(Y)
            rhs = rhs + image
        images = Images(inverse(rhs), dZt)
        schur = replace(self.schur, images=images)
        finished = within_scaled_tolerance(schur, schur.T, tolerance)
        b = c[:rows] - schur.jacobian.forward(images.X)
        conjugate_gradients(schur, b, finished, _MOST_ITERATIONS, self.work, images.add_step)
        return Solution(sym(images.X), images.Zt)


def _schur_diagonal(frame: Frame, J: Array, mask: Array | None, V: Array, r: int, beta: float) -> Array:
    """Rows of diag(F′𝒦⁻¹F′*) in the basis V with 𝒬 replaced by β: Σ_kl V_ki² V_lj² (1 − β(b̃_k+b̃_l))²/J_kl."""
    b = frame.diagonal
    h = (1.0 - beta * (b[:, None] + b)) ** 2 / J
    if mask is not None:
        h *= mask
    V2 = V * V
    return np.asarray((V2[:, :r].T @ h) @ V2)
