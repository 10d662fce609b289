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

from stepsize_opt.inputs import SMOOTHNESS_REMEDY
from stepsize_opt.proofs import (
    LOG_2,
    UNIT,
    Enclosed,
    Pair,
    first_proved,
    is_proved_definite,
    losses,
    power_of_two_scaling,
    twice_gamma,
    weight_from_below,
)
from stepsize_solvers.programs import Matrix, Vector

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
        """For the floats of L ≻ 0 with a proved lower bound on log det L; M is a matrix, or a number μ for μI."""
        if M is None:
            return LimitBounds(len(L), log_det)
        if not isinstance(M, float):
            # LM⁻¹ does not change, and M⁻¹ is best computed where the units of the coordinates do not matter.
            scale = power_of_two_scaling(M.diagonal())
            B, N = scale[:, None] * L * scale, scale[:, None] * M * scale
            if all(np.array_equal(X / scale[:, None] / scale, Y) for X, Y in ((B, L), (N, M))):
                L, M = B, N
        top = _top_from_below(L, M)
        if momentum:
            root = math.sqrt(top) * (1.0 - 2.0 * UNIT)
            return LimitBounds(len(L), log_det, _root_trace_from_below(L, M), root, momentum)
        trace = weight_from_below(Enclosed.exact(L), M)
        return LimitBounds(len(L), log_det, max(trace, 0.0), top)

    @staticmethod
    def combine(parts: Sequence[LimitBounds]) -> LimitBounds:
        """Of Diag(L₁, …, L_m)."""
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
        """Of 2^power L, for numbers without M."""
        return LimitBounds(self.d, (self.log_det + self.d * power * LOG_2).low)

    def log_bound(self, k: float) -> float:
        """d log of the limit from above: of log det H, or with M of d log t; k is E[rank G], up to d + 2 roundings.

        With momentum of d log t².
        """
        d, rank = self.d, min(k, float(self.d)) * (1.0 + twice_gamma(self.d + 2))
        if self.trace is None:
            term = d * math.log(rank / d)
            return (
                term - self.log_det + 4.0 * UNIT * (abs(term) + abs(self.log_det) + d)
            )  # the quotient's rounding, too
        ends = [rank / self.trace] if self.trace > 0.0 else []
        ends += [1.0 / self.top] if self.top > 0.0 else []
        if not ends or not min(ends) > 0.0:
            return math.inf
        term = (2 * d if self.momentum else d) * math.log(min(ends))
        return term + 4.0 * UNIT * (abs(term) + 2 * d)


def _root_trace_from_below(L: Matrix, M: Matrix | float) -> float:
    """A proved lower bound on tr((LM⁻¹)^½): ⟨L, E⟩ for an E with ELE ⪯ M⁻¹ next to V Diag(ℓ)^{−½} Vᵀ; 0 without one."""
    spectrum = Spectrum.of(L, M)
    half = spectrum.vectors * spectrum.values**-0.25
    E, exact = half @ half.T, Pair.exact

    def lowered(loss: float) -> float | None:
        near = (1.0 - loss) * 0.5 * (E + E.T)
        inner = exact(near) @ (exact(L) @ exact(near))
        # ELE ⪯ M⁻¹ is MELEM ⪯ M.
        if isinstance(M, np.ndarray):
            whole, bound = exact(M) @ (inner @ exact(M)), M
        else:
            whole, bound = inner * M, np.eye(len(L))
        if not is_proved_definite((exact(bound) - whole).rounded().symmetric()):
            return None
        return max(0.0, exact(L).inner(exact(near)).low)

    return first_proved(losses(4.0 * len(L) * UNIT, _LARGEST_LOSS), lowered) or 0.0


def _top_from_below(L: Matrix, M: Matrix | float) -> float:
    """A proved lower bound on λmax(LM⁻¹): the quotient vᵀLv/vᵀMv of a vector near the eigenvector."""
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
        """By the symmetric eigenproblem in plain floating point; what it gives is proved later."""
        if isinstance(M, float):
            values, vectors = np.linalg.eigh(L)
            if not values[0] > _TRUSTED * values[-1]:
                values, vectors = _jacobi(np.linalg.cholesky(L))
            return Spectrum(values / M, vectors / np.sqrt(M))
        scale = power_of_two_scaling(L.diagonal())
        B, N = scale[:, None] * L * scale, scale[:, None] * M * scale
        values, vectors = eigh(B, N)
        if not values[0] > _TRUSTED * values[-1]:
            root = np.linalg.cholesky(N)
            values, inner = _jacobi(np.linalg.solve(root, np.linalg.cholesky(B)))
            vectors = np.linalg.solve(root.T, inner)
        return Spectrum(values, scale[:, None] * vectors)

    @property
    def directions(self) -> Matrix:
        """A = V Diag(ℓ)^{−½}, AᵀLA = I."""
        return np.asarray(self.vectors / np.sqrt(self.values))

    def matrix(self, h: Vector) -> Matrix:
        """D = V Diag(h/ℓ) Vᵀ, symmetric."""
        half = self.vectors * np.sqrt(h / self.values)
        return np.asarray(half @ half.T)


def _jacobi(R: Any) -> tuple[Vector, Matrix]:
    """Eigenvalues and eigenvectors of RRᵀ by Jacobi rotations of Rᵀ, whose small singular values keep their digits.

    So they do whatever the units of the coordinates are, the rows of R; eigh loses what is below the rounding of the
    largest.  It takes several times as long.
    """
    sigma, _, vectors, work, _, info = lapack.dgejsv(R.T, joba=0, jobu=3, jobr=0)  # 0: for columns of any size
    values = (sigma * (work[0] / work[1]))[::-1] ** 2
    if info != 0 or not values[0] > 0.0:
        msg = f"L is too close to singular for its eigenvectors in float64; {SMOOTHNESS_REMEDY}"
        raise ValueError(msg)
    return np.asarray(values), np.asarray(vectors[:, ::-1])
