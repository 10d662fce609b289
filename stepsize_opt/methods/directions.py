"""L-orthonormal directions, AᵀLA ⪯ I by proof: a dense A, or for L = UUᵀ + Diag(a) one that is applied, not formed."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import lapack
from scipy.sparse.linalg import LinearOperator

from stepsize_opt.inputs import Array, generator, read_only
from stepsize_opt.limit import LARGEST_LOSS, Spectrum
from stepsize_opt.operators import LowRankPlusDiagonal
from stepsize_opt.proofs import UNIT, Enclosed, Pair, gamma, power_of_two_scaling, proved_cholesky, proved_root
from stepsize_solvers.programs import Indices, Matrix, Vector

BASES = ("cholesky", "eigenvectors", "root", "rotation")
# Newton steps A ← A(3I − AᵀLA)/2: each squares the defect of AᵀLA, and rounding of A leaves what the second would gain.
_REFINEMENTS = 2


class ThinDirections(LinearOperator):  # type: ignore[misc]
    """A = c Diag(t)(I − BWBᵀ) with B = Diag(t)U, d×d, by its products at the cost of O(dr).

    For L = UUᵀ + Diag(a), t = a^{−½} and the right W this is c Diag(a)^{−½}(I + BBᵀ)^{−½} (``proofs.roots``).
    """

    def __init__(self, c: float, t: Vector, U: Matrix, W: Matrix) -> None:
        super().__init__(np.float64, (len(t), len(t)))
        self.c, self.t, self.U, self.W = c, read_only(t), U, read_only(W)

    def digest_parts(self) -> list[Any]:
        """What tells A from other directions."""
        return [self.c, self.t, self.U, self.W]

    def sent(self, gradients: Array, draw: Indices | slice) -> Array:
        """Columns of A times gradients, shape (…, d) → (…, size of the draw)."""
        y = self.c * self.t * gradients
        inner = ((y * self.t) @ self.U) @ self.W
        return np.asarray(y[..., draw] - (inner @ self.U[draw].T) * self.t[draw])

    def received(self, numbers: Array, draw: Indices | slice) -> Array:
        """The sum of columns of A with these coefficients, shape (…, size of the draw) → (…, d)."""
        inner = ((numbers * self.t[draw]) @ self.U[draw]) @ self.W
        y = inner @ self.U.T
        y *= -self.t
        y[..., draw] += numbers
        y *= self.c * self.t
        return np.asarray(y)

    def _matmat(self, X: Any) -> Any:
        return self.received(X.T, slice(None)).T

    def _rmatmat(self, X: Any) -> Any:
        return self.sent(X.T, slice(None)).T

    def _matvec(self, x: Any) -> Any:
        return self.received(np.ravel(x), slice(None))

    def _rmatvec(self, x: Any) -> Any:
        return self.sent(np.ravel(x), slice(None))


def thin_directions(L: LowRankPlusDiagonal) -> tuple[ThinDirections, float, float]:
    """A with AᵀLA ⪯ I, a bound on ‖AᵀLA − I‖, and a b with AᵀLA ⪰ bI, all proved for its floats.

    Raises ValueError where float64 does not suffice.
    """
    found = proved_root(L.U, L.own)
    if found is None:
        msg = "L is too close to singular, or its numbers lie too far apart, for a proof in float64; add a regulariser"
        raise ValueError(msg)
    c = (1.0 - 4.0 * UNIT) / np.sqrt(1.0 + found.defect)  # three roundings: c²(1 + defect) ≤ 1
    least = c * c * (1.0 - found.defect) * (1.0 - 8.0 * UNIT)
    return ThinDirections(float(c), found.t, L.U, found.W), (1.0 - least) * (1.0 + 4.0 * UNIT), least


def dense_basis(L: Matrix, basis: str, rng: np.random.Generator | None) -> Matrix:
    """An L-orthonormal basis in plain floating point."""
    if basis == "cholesky":
        scale = power_of_two_scaling(L.diagonal())
        R, _ = lapack.dpotrf(scale[:, None] * L * scale, 1, 1)  # lower, clean
        return np.asarray(scale[:, None] * lapack.dtrtri(R, 1)[0].T)
    spectrum = Spectrum.of(L)
    if basis == "eigenvectors":
        return spectrum.directions
    root = spectrum.directions @ spectrum.vectors.T
    if basis == "root":
        return np.asarray(root)
    Q, R = np.linalg.qr(generator(np.random.default_rng(0) if rng is None else rng).standard_normal(L.shape))
    return np.asarray(root @ (Q * np.sign(np.diagonal(R))))  # the signs make Q uniform


def _gram(L: Matrix, A: Matrix) -> Enclosed:
    exact = Pair.exact
    return (exact(A).T @ (exact(L) @ exact(A))).rounded().symmetric()


def proved_directions(L: Matrix, A: Matrix) -> tuple[Matrix, float]:
    """A, refined and scaled until AᵀLA ⪯ I is proved, and a bound on ‖AᵀLA − I‖."""
    identity = np.eye(len(L))
    for _ in range(_REFINEMENTS):
        A = A @ (1.5 * identity - 0.5 * _gram(L, A).value)
    rounding, loss = 1.0 + gamma(len(L) + 2), UNIT
    while True:
        gram = _gram(L, A)
        # The largest row sum bounds the largest eigenvalue.
        top = float((np.abs(gram.value) + gram.error).sum(axis=1).max()) * rounding
        if top <= 1.0:
            away = np.abs(gram.value - identity) + gram.error
            return A, float(away.sum(axis=1).max()) * rounding
        if not top < 2.0:
            msg = "L is too close to singular for L-orthonormal directions in float64; add a regulariser (L + 2λI)"
            raise ValueError(msg)
        loss *= 2.0  # the rounding of A may count more than what is taken off
        A = A * ((1.0 - loss) / np.sqrt(top))


def proved_mean(A: Matrix, h: Vector) -> Matrix:
    """D next to A Diag(h) Aᵀ, below it by proof."""
    exact = Pair.exact(A)
    mean = (exact.scaled(h[None, :]) @ exact.T).rounded().symmetric()
    loss = 4.0 * len(A) * UNIT
    while loss <= LARGEST_LOSS:
        D = (1.0 - loss) * mean.value
        rest = mean.value - D
        if proved_cholesky(Enclosed(rest, mean.error + UNIT * np.abs(rest))) is not None:
            return np.asarray(D)
        loss *= 2.0
    msg = "L is too close to singular for the mean of the steps to be proved in float64; add a regulariser (L + 2λI)"
    raise ValueError(msg)
