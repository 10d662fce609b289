"""The limit from above, proved for floats: no method without memory and of expected rank k has a better metric.

x⁺ = x − G∇f(x) with any random G that does not depend on ∇f(x), E[rank G] ≤ k, and H = E[G + Gᵀ − GᵀLG] has

    H ⪯ L⁻¹      and      tr(LH) ≤ k.

*Proof.*  Let Π be the orthogonal projection on the range of L^½G, so that ΠL^½G = L^½G and tr Π = rank G.  Then
0 ⪯ (L^½G − ΠL^{−½})ᵀ(L^½G − ΠL^{−½}) = GᵀLG − Gᵀ − G + L^{−½}ΠL^{−½}.  In expectation H ⪯ L^{−½}E[Π]L^{−½}, and
E[Π] ⪯ I, tr E[Π] ≤ k.  ∎

Hence log det H ≤ d log(k/d) − log det L (arithmetic and geometric mean of the eigenvalues of L^½HL^½), and H ⪰ tM⁻¹
gives t ≤ k/tr(LM⁻¹) and t ≤ 1/λmax(LM⁻¹).  A D that satisfies its stepsize condition E[GᵀLG] ⪯ D = E[G] has D ⪯ H.

With momentum H ⪰ t²E[SᵀM⁻¹S] gives t ≤ k/tr((LM⁻¹)^½) and t² ≤ 1/λmax(LM⁻¹) (docs/momentum.md).  The trace is at least
⟨L, E⟩ for every symmetric E with ELE ⪯ M⁻¹: with N = L^½M^{−½} and W = M^½EL^½, WWᵀ = M^½ELEM^½ ⪯ I, and so
tr(NW) = ⟨L, E⟩ is at most the sum of the singular values of N.

*Attained* by a spectral problem.  With LV = MV Diag(ℓ), VᵀMV = I (M = I but for the goal ``linear``), the directions
a_j = v_j/√ℓ_j are L-orthonormal, and D = A Diag(h) Aᵀ = V Diag(h/ℓ) Vᵀ has tr(LD) = Σh, and D ⪯ L⁻¹ if and only if
h ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh, lapack
from scipy.sparse.linalg import LinearOperator

from stepsize_opt.inputs.checks import Array, read_only
from stepsize_opt.inputs.matrices import SMOOTHNESS_REMEDY, Scaling, scaled_exactly
from stepsize_opt.proofs import (
    LOG_2,
    UNIT,
    Enclosed,
    Pair,
    ThinBasis,
    Unproved,
    eigenvector_basis,
    first_proved,
    is_proved_definite,
    losses,
    root_basis,
    twice_gamma,
    weight_from_below,
)
from stepsize_solvers.programs import Indices, Matrix, Vector, exponent_above

_LARGEST_LOSS = 0.1  # a proof that takes a larger share has failed


@dataclass(frozen=True)
class LimitBounds:
    """What the limit takes from L, proved from below: log det L, or with M tr(LM⁻¹) and λmax(LM⁻¹).

    The numbers of a block-diagonal L (and M) follow from those of its blocks.  With momentum they are tr((LM⁻¹)^½) and
    λmax(LM⁻¹)^½, and the bound is that of t².
    """

    d: int
    log_det: float
    trace: float | None = None
    top: float = 0.0
    momentum: bool = False

    @staticmethod
    def of(L: Matrix, log_det: float, M: Matrix | float | None = None, *, momentum: bool = False) -> LimitBounds:
        """Bound the floats of an L ≻ 0 whose log det has a proved lower bound; M is a matrix, or a number μ for μI."""
        if M is None:
            return LimitBounds(len(L), log_det)
        L, M = _near_one(L, M)
        top = _top_from_below(L, M)
        if momentum:
            root = math.sqrt(top) * (1.0 - 2.0 * UNIT)
            return LimitBounds(len(L), log_det, _root_trace_from_below(L, M), root, momentum)
        trace = weight_from_below(Enclosed.exact(L), M)
        return LimitBounds(len(L), log_det, max(trace, 0.0), top)

    @staticmethod
    def combine(parts: Sequence[LimitBounds]) -> LimitBounds:
        """Return the numbers of Diag(L₁, …, L_m)."""
        if len(parts) == 1:
            return parts[0]
        traces = [part.trace for part in parts if part.trace is not None]
        return LimitBounds(
            d=sum(part.d for part in parts),
            log_det=math.nextafter(math.fsum(part.log_det for part in parts), -math.inf),
            trace=math.nextafter(math.fsum(traces), 0.0) if traces else None,
            top=max(part.top for part in parts),
            momentum=parts[0].momentum,
        )

    def scaled(self, power: int) -> LimitBounds:
        """Return the numbers of 2^power L, without M."""
        return LimitBounds(self.d, (self.log_det + self.d * power * LOG_2).low)

    def log_bound(self, k: float) -> float:
        """Return d log of the limit from above: of log det H, with M of d log t; k is E[rank G], up to d + 2 roundings.

        With momentum of d log t².
        """
        d, rank = self.d, min(k, float(self.d)) * (1.0 + twice_gamma(self.d + 2))
        if self.trace is None:
            term = d * math.log(rank / d)
            # The rounding of the quotient, too.
            return term - self.log_det + 4.0 * UNIT * (abs(term) + abs(self.log_det) + d)
        ends = [rank / self.trace] if self.trace > 0.0 else []
        ends += [1.0 / self.top] if self.top > 0.0 else []
        if not ends or not min(ends) > 0.0:
            return math.inf
        term = (2 * d if self.momentum else d) * math.log(min(ends))
        return term + 4.0 * UNIT * (abs(term) + 2 * d)


def _near_one(L: Matrix, M: Matrix | float) -> tuple[Matrix, Matrix | float]:
    """Return L and M in units of powers of two in which LM⁻¹ is the same and overflows nowhere; or as they are."""
    if isinstance(M, np.ndarray):
        # M⁻¹ is best computed where the units of the coordinates do not matter.
        scaling = Scaling.of(M.diagonal())
        B, N = scaling.times(L), scaling.times(M)
        exact = np.array_equal(scaling.over(B), L) and np.array_equal(scaling.over(N), M)
        return (B, N) if exact else (L, M)
    e = exponent_above(L)
    try:
        return scaled_exactly("L", L, -e), float(scaled_exactly("M", np.array(M), -e))
    except ValueError:  # float64 does not hold them
        return L, M


def _root_trace_from_below(L: Matrix, M: Matrix | float) -> float:
    """Prove a lower bound on tr((LM⁻¹)^½): ⟨L, E⟩ for ELE ⪯ M⁻¹ with E next to V Diag(ℓ)^{−½} Vᵀ; 0 without one."""
    if isinstance(M, float) and M != 1.0:
        return _root_trace_from_below(L, 1.0) / math.sqrt(M) * (1.0 - 4.0 * UNIT)
    spectrum = Spectrum.of(L, M)
    half = spectrum.vectors * spectrum.values**-0.25
    E, exact = half @ half.T, Pair.exact

    def lowered(loss: float) -> float | None:
        near = (1.0 - loss) * 0.5 * (E + E.T)
        inner = exact(near) @ (exact(L) @ exact(near))
        # ELE ⪯ M⁻¹ is MELEM ⪯ M.
        whole, bound = (exact(M) @ (inner @ exact(M)), M) if isinstance(M, np.ndarray) else (inner, np.eye(len(L)))
        if not is_proved_definite((exact(bound) - whole).rounded().symmetric()):
            return None
        return max(0.0, exact(L).inner(exact(near)).low)

    return first_proved(losses(4.0 * len(L) * UNIT, _LARGEST_LOSS), lowered) or 0.0


def _top_from_below(L: Matrix, M: Matrix | float) -> float:
    """Return a proved lower bound on λmax(LM⁻¹): the quotient vᵀLv/vᵀMv of a vector near the eigenvector."""
    n = len(L)
    whole = M * np.eye(n) if isinstance(M, float) else M
    v = (np.linalg.eigh(L) if isinstance(M, float) else eigh(L, M))[1][:, -1]
    size = np.abs(v)
    (high, high_error), (low, low_error) = (
        (float(v @ (A @ v)), twice_gamma(2 * n + 2) * float(size @ (np.abs(A) @ size))) for A in (L, whole)
    )
    return max(0.0, (high - high_error) / (low + low_error) * (1.0 - 4.0 * UNIT))


# eigh is wrong by roundings of the largest eigenvalue, so the smallest keeps half of its digits down to this share.
_TRUSTED = 2.0**-26


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues ℓ of L relative to M, ascending, and eigenvectors V (columns): LV = MV Diag(ℓ), VᵀMV = I."""

    values: Vector
    vectors: Matrix

    @staticmethod
    def of(L: Matrix, M: Matrix | float = 1.0) -> Spectrum:
        """Solve the symmetric eigenproblem in plain floating point; what it gives is proved later."""
        if not isinstance(M, np.ndarray):
            values, vectors = np.linalg.eigh(L)
            if not values[0] > _TRUSTED * values[-1]:
                values, vectors = _jacobi(np.linalg.cholesky(L))
            return Spectrum(values / M, vectors / np.sqrt(M))
        scaling = Scaling.of(L.diagonal())
        B, N = scaling.times(L), scaling.times(M)
        values, vectors = eigh(B, N)
        if not values[0] > _TRUSTED * values[-1]:
            root = np.linalg.cholesky(N)
            values, inner = _jacobi(np.linalg.solve(root, np.linalg.cholesky(B)))
            vectors = np.linalg.solve(root.T, inner)
        return Spectrum(values, scaling.factors[:, None] * vectors)

    @property
    def directions(self) -> Matrix:
        """A = V Diag(ℓ)^{−½}, AᵀLA = I."""
        return np.asarray(self.vectors / np.sqrt(self.values))

    def matrix(self, h: Vector) -> Matrix:
        """Return D = V Diag(h/ℓ) Vᵀ, symmetric."""
        half = self.vectors * np.sqrt(h / self.values)
        return np.asarray(half @ half.T)


def _jacobi(R: Any) -> tuple[Vector, Matrix]:
    """Return eigenvalues and eigenvectors of RRᵀ by Jacobi rotations of Rᵀ, which keep digits of small singular values.

    So they do whatever the units of the coordinates are, the rows of R; eigh loses what is below the rounding of the
    largest.  It takes several times as long.
    """
    sigma, _, vectors, work, _, info = lapack.dgejsv(R.T, joba=0, jobu=3, jobr=0)  # 0: for columns of any size
    values = (sigma * (work[0] / work[1]))[::-1] ** 2
    if info != 0 or not values[0] > 0.0:
        msg = f"L is too close to singular for its eigenvectors in float64; {SMOOTHNESS_REMEDY}"
        raise ValueError(msg)
    return np.asarray(values), np.asarray(vectors[:, ::-1])


BASES = ("eigenvectors", "root")
# Newton steps A ← A(3I − AᵀLA)/2: each squares the defect of AᵀLA, and rounding of A leaves what the second would gain.
_REFINEMENTS = 2


class ThinDirections(LinearOperator):  # type: ignore[misc]
    """A = c Diag(t)(I + BZBᵀ), d×d, with B = [Diag(t)U  E], E the first e columns of I; by its products, in O(dr).

    ``proofs.roots`` has the Z that make A L-orthonormal for L = UUᵀ + Diag(a): a root (e = 0), or the eigenvectors.
    """

    def __init__(self, c: float, t: Vector, U: Matrix, Z: Matrix) -> None:
        super().__init__(np.float64, (len(t), len(t)))
        self.c, self.t, self.U, self.Z = c, read_only(t), U, read_only(Z)
        self.e = len(Z) - U.shape[1]

    def scaled(self, n: int) -> ThinDirections:
        """Return 2ⁿA exactly; raises ValueError where float64 does not hold it."""
        return ThinDirections(self.c, scaled_exactly("A", self.t, n), scaled_exactly("U", self.U, -n), self.Z)

    def sent(self, gradients: Array, draw: Indices | slice) -> Array:
        """Return columns of A times gradients, shape (…, d) → (…, size of the draw)."""
        y = self.c * self.t * gradients
        inner = np.concatenate([(y * self.t) @ self.U, y[..., : self.e]], axis=-1) @ self.Z
        out = y[..., draw] + (inner[..., : self.U.shape[1]] @ self.U[draw].T) * self.t[draw]
        chosen, place = self._first(draw)
        out[..., chosen] += inner[..., self.U.shape[1] :][..., place]
        return np.asarray(out)

    def received(self, numbers: Array, draw: Indices | slice) -> Array:
        """Return the sum of columns of A with these coefficients, shape (…, size of the draw) → (…, d)."""
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
        """Return which of the drawn are among the first e coordinates, and where."""
        if isinstance(draw, slice):  # all of them
            return slice(self.e), slice(self.e)
        chosen = np.flatnonzero(np.asarray(draw) < self.e)
        return chosen, np.asarray(draw)[chosen]

    def _matmat(self, X: Any) -> Any:
        return self.received(X.T, slice(None)).T

    def _rmatmat(self, X: Any) -> Any:
        return self.sent(X.T, slice(None)).T

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
        """Return s with A Diag(h) Aᵀ ⪰ sI, for the eigenvectors of L and h ≥ t times its eigenvalues, about."""
        values, e = self.basis.values, len(self.basis.values)
        rest = min(t, float(h[e:].min(initial=1.0)))
        first = np.minimum(h[:e], t * (1.0 + values))
        return self.A.c**2 * self.basis.mean_from_below(first, rest) * (1.0 - 4.0 * UNIT)


def _gram(L: Matrix, A: Matrix) -> Enclosed:
    exact = Pair.exact
    return (exact(A).T @ (exact(L) @ exact(A))).rounded().symmetric()


def proved_directions(L: Matrix, A: Matrix) -> tuple[Matrix, float]:
    """Refine and scale A until AᵀLA ⪯ I is proved; return it with a bound on ‖AᵀLA − I‖."""
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
