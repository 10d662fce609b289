"""L-orthonormal directions, AᵀLA ⪯ I by proof: a dense A, or for L = UUᵀ + Diag(a) one that is applied, not formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator

from stepsize_opt.inputs import Array, Immutable, read_only, scaled_exactly
from stepsize_opt.proofs import (
    UNIT,
    Enclosed,
    Pair,
    ThinBasis,
    Unproved,
    eigenvector_basis,
    first_proved,
    losses,
    root_basis,
)
from stepsize_solvers.programs import Indices, Matrix, Vector

BASES = ("eigenvectors", "root")
# Newton steps A ← A(3I − AᵀLA)/2: each squares the defect of AᵀLA, and rounding of A leaves what the second would gain.
_REFINEMENTS = 2
_LARGEST_LOSS = 0.1  # a proof that takes a larger share of A has failed


class ThinDirections(Immutable, LinearOperator):  # type: ignore[misc]
    """A = c Diag(t)(I + BZBᵀ), d×d, with B = [Diag(t)U  E], E the first e columns of I; by its products, in O(dr).

    ``proofs.roots`` has the Z that make A L-orthonormal for L = UUᵀ + Diag(a): a root (e = 0), or the eigenvectors.
    """

    def __init__(self, c: float, t: Vector, U: Matrix, Z: Matrix) -> None:
        super().__init__(np.float64, (len(t), len(t)))
        self.c, self.t, self.U, self.Z = c, read_only(t), U, read_only(Z)
        self.e = len(Z) - U.shape[1]

    def scaled(self, n: int) -> ThinDirections:
        """2ⁿA exactly; raises ValueError where float64 does not hold it."""
        return ThinDirections(self.c, scaled_exactly("A", self.t, n), scaled_exactly("U", self.U, -n), self.Z)

    def sent(self, gradients: Array, draw: Indices | slice) -> Array:
        """Columns of A times gradients, shape (…, d) → (…, size of the draw)."""
        y = self.c * self.t * gradients
        inner = np.concatenate([(y * self.t) @ self.U, y[..., : self.e]], axis=-1) @ self.Z
        out = y[..., draw] + (inner[..., : self.U.shape[1]] @ self.U[draw].T) * self.t[draw]
        chosen, place = self._first(draw)
        out[..., chosen] += inner[..., self.U.shape[1] :][..., place]
        return np.asarray(out)

    def received(self, numbers: Array, draw: Indices | slice) -> Array:
        """The sum of columns of A with these coefficients, shape (…, size of the draw) → (…, d)."""
        chosen, place = self._first(draw)
        first = np.zeros((*numbers.shape[:-1], self.e))
        first[..., place] = numbers[..., chosen]
        inner = np.concatenate([(numbers * self.t[draw]) @ self.U[draw], first], axis=-1) @ self.Z.T
        y = inner[..., : self.U.shape[1]] @ self.U.T
        y *= self.t
        y[..., : self.e] += inner[..., self.U.shape[1] :]
        y[..., draw] += numbers
        y *= self.c * self.t
        return np.asarray(y)

    def _first(self, draw: Indices | slice) -> tuple[Any, Any]:
        """Which of the drawn are among the first e coordinates, and where."""
        if isinstance(draw, slice):  # all of them
            return slice(self.e), slice(self.e)
        chosen = np.flatnonzero(np.asarray(draw) < self.e)
        return chosen, np.asarray(draw)[chosen]

    def _matmat(self, X: Any) -> Any:
        return self.received(X.T, slice(None)).T

    def _rmatmat(self, X: Any) -> Any:
        return self.sent(X.T, slice(None)).T

    def _matvec(self, x: Any) -> Any:
        return self.received(np.ravel(x), slice(None))

    def _rmatvec(self, x: Any) -> Any:
        return self.sent(np.ravel(x), slice(None))


@dataclass(frozen=True, eq=False)
class ProvedDirections:
    """A with AᵀLA ⪯ I and AᵀLA ⪰ least·I, both proved for its floats; basis: what it is made of."""

    A: ThinDirections
    least: float
    basis: ThinBasis

    @staticmethod
    def of(U: Matrix, shift: Vector, basis: str) -> ProvedDirections:
        """Return the directions for L = UUᵀ + Diag(shift): ``"root"``, or ``"eigenvectors"`` for a constant shift.

        Raises Unproved where float64 does not suffice.
        """
        eigenvectors = basis == "eigenvectors"
        found = eigenvector_basis(U, float(shift[0])) if eigenvectors else root_basis(U, shift)
        if found is None:
            remedy = "add a regulariser (L + 2λI)"
            if eigenvectors:
                remedy += ", cut columns of U that nearly depend on others (rank=r), or use L.todense()"
            msg = f"L, or the columns of U, are too close to singular for L-orthonormal directions in float64; {remedy}"
            raise Unproved(msg)
        c = float((1.0 - 4.0 * UNIT) / np.sqrt(1.0 + found.defect))  # three roundings: c²(1 + defect) ≤ 1
        least = c * c * (1.0 - found.defect) * (1.0 - 8.0 * UNIT)
        return ProvedDirections(ThinDirections(c, found.t, U, found.Z), least, found)

    @property
    def defect(self) -> float:
        """A bound on ‖AᵀLA − I‖."""
        return (1.0 - self.least) * (1.0 + 4.0 * UNIT)

    def mean_from_below(self, h: Vector, t: float) -> float:
        """s with A Diag(h) Aᵀ ⪰ sI, for the eigenvectors of L and an h of at least about t times its eigenvalues."""
        values, e = self.basis.values, len(self.basis.values)
        rest = min(t, float(h[e:].min(initial=1.0)))
        first = np.minimum(h[:e], t * (1.0 + values))
        return self.A.c**2 * self.basis.mean_from_below(first, rest) * (1.0 - 4.0 * UNIT)


def _gram(L: Matrix, A: Matrix) -> Enclosed:
    exact = Pair.exact
    return (exact(A).T @ (exact(L) @ exact(A))).rounded().symmetric()


def proved_directions(L: Matrix, A: Matrix) -> tuple[Matrix, float]:
    """A, refined and scaled until AᵀLA ⪯ I is proved, and a bound on ‖AᵀLA − I‖."""
    identity = np.eye(len(L))
    for _ in range(_REFINEMENTS):
        A = A @ (1.5 * identity - 0.5 * _gram(L, A).value)
    gram = _gram(L, A)
    top = gram.norm()

    def scaled(loss: float) -> tuple[Matrix, float] | None:
        candidate = A * ((1.0 - loss) / np.sqrt(top))
        return _with_defect(candidate, _gram(L, candidate))

    found = _with_defect(A, gram)
    if found is None and top < 2.0:
        # The rounding of A may count more than the loss.
        found = first_proved(losses(2.0 * UNIT, _LARGEST_LOSS, 2.0), scaled)
    if found is None:
        msg = "L is too close to singular for L-orthonormal directions in float64; add a regulariser (L + 2λI)"
        raise Unproved(msg)
    return found


def _with_defect(A: Matrix, gram: Enclosed) -> tuple[Matrix, float] | None:
    """Return A and a bound on ‖AᵀLA − I‖; None unless AᵀLA ⪯ I is proved by its row sums."""
    if not gram.norm() <= 1.0:
        return None
    return A, gram.plus_diagonal(-1.0).norm()
