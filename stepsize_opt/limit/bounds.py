"""The limit from above, proved for floats: no method without memory and of expected rank k has a better metric.

x⁺ = x − G∇f(x) with any random G that does not depend on ∇f(x), E[rank G] ≤ k, and H = E[G + Gᵀ − GᵀLG] has

    H ⪯ L⁻¹      and      tr(LH) ≤ k.

*Proof.*  Let Π be the orthogonal projection on the range of L^½G, so that ΠL^½G = L^½G and tr Π = rank G.  Then
0 ⪯ (L^½G − ΠL^{−½})ᵀ(L^½G − ΠL^{−½}) = GᵀLG − Gᵀ − G + L^{−½}ΠL^{−½}.  In expectation H ⪯ L^{−½}E[Π]L^{−½}, and
E[Π] ⪯ I, tr E[Π] ≤ k.  ∎

Hence log det H ≤ d log(k/d) − log det L (arithmetic and geometric mean of the eigenvalues of L^½HL^½), and H ⪰ tM⁻¹
gives t ≤ k/tr(LM⁻¹) and t ≤ 1/λmax(LM⁻¹).  A D that satisfies its stepsize condition E[GᵀLG] ⪯ D = E[G] has D ⪯ H.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from stepsize_opt.proofs import UNIT, Enclosed, gamma, power_of_two_scaling, sum_from_below, weight_from_below
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True)
class LimitBounds:
    """What the limit takes from L, proved from below: log det L, or with M tr(LM⁻¹) and λmax(LM⁻¹).

    The numbers of a block-diagonal L (and M) follow from those of its blocks.
    """

    d: int
    log_det: float
    trace: float | None = None
    top: float = 0.0

    @staticmethod
    def of(L: Matrix, log_det: float, M: Matrix | float | None = None) -> LimitBounds:
        """For the floats of L ≻ 0 with a proved lower bound on log det L; M is a matrix, or a number μ for μI."""
        if M is None:
            return LimitBounds(len(L), log_det)
        if not isinstance(M, float):
            # LM⁻¹ does not change, and M⁻¹ is best computed where the units of the coordinates do not matter.
            scale = power_of_two_scaling(M.diagonal())
            B, N = scale[:, None] * L * scale, scale[:, None] * M * scale
            if all(np.array_equal(X / scale[:, None] / scale, Y) for X, Y in ((B, L), (N, M))):
                L, M = B, N
        trace = weight_from_below(Enclosed(L, np.zeros_like(L)), M)
        return LimitBounds(len(L), log_det, max(trace, 0.0), _top_from_below(L, M))

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
        )

    def scaled(self, power: int) -> LimitBounds:
        """Of 2^power L, for numbers without M."""
        return LimitBounds(self.d, sum_from_below(self.log_det, self.d * math.log(2.0) * power))

    def log_bound(self, k: float) -> float:
        """d log of the limit from above: of log det H, or with M of d log t; k is E[rank G], up to d + 2 roundings."""
        d, rank = self.d, min(k, float(self.d)) * (1.0 + gamma(self.d + 2))
        if self.trace is None:
            term = d * math.log(rank / d)
            return (
                term - self.log_det + 4.0 * UNIT * (abs(term) + abs(self.log_det) + d)
            )  # the quotient's rounding, too
        ends = [rank / self.trace] if self.trace > 0.0 else []
        ends += [1.0 / self.top] if self.top > 0.0 else []
        if not ends or not min(ends) > 0.0:
            return math.inf
        term = d * math.log(min(ends))
        return term + 4.0 * UNIT * (abs(term) + d)


def _top_from_below(L: Matrix, M: Matrix | float) -> float:
    """A proved lower bound on λmax(LM⁻¹): the quotient vᵀLv/vᵀMv of a vector near the eigenvector."""
    n = len(L)
    whole = M * np.eye(n) if isinstance(M, float) else M
    v = (np.linalg.eigh(L) if isinstance(M, float) else eigh(L, M))[1][:, -1]
    size = np.abs(v)
    (high, high_error), (low, low_error) = (
        (float(v @ (A @ v)), gamma(2 * n + 2) * float(size @ (np.abs(A) @ size))) for A in (L, whole)
    )
    return max(0.0, (high - high_error) / (low + low_error) * (1.0 - 4.0 * UNIT))
