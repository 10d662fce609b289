"""A method of your own: x⁺ = x − C S Cᵀ∇f(x) with D = CCᵀ and CᵀLC diagonal, a step in a random subspace.

With equal second moments q = E[s_j²] of a diagonal sketch S = Diag(s), T(D) = C E[S CᵀLC S] Cᵀ = q DLD.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stepsize_opt import Method, RandK, Sketch, optimal_stepsize
from stepsize_opt.methods import Condition, Factors
from stepsize_solvers.programs import DiagonalPlusScaled, Matrix, PositiveMap
from stepsize_validation import run
from stepsize_validation.data import random_quadratic


@dataclass(frozen=True)
class OwnSubspace(Method):
    """G = C S Cᵀ."""

    name: ClassVar[str] = "own-subspace"
    update: ClassVar[str] = "x⁺ = x − C S Cᵀ ∇f(x), CCᵀ = D, CᵀLC diagonal"

    def check(self, sketches: Sequence[Sketch]) -> None:
        for sketch in sketches:
            if not isinstance(sketch, RandK):
                msg = f"{self.name} needs the same second moment of every coordinate: RandK(d, k), got {sketch}"
                raise ValueError(msg)

    def factors(self, D: Matrix, smoothness: Callable[[], Matrix]) -> Factors:
        R = np.linalg.cholesky(smoothness())  # L = RRᵀ
        h, U = np.linalg.eigh(R.T @ D @ R)
        C = np.linalg.solve(R.T, U * np.sqrt(h))
        return Factors(C, C.T)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        q = law(L)[0, 0] / L[0, 0]
        return q * (D @ L @ D)

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        q = float(law.diagonal_action[0])
        # Rand-k has α + β = d/k, each rounded at most twice, and so is their sum.
        times_q = DiagonalPlusScaled(np.zeros(law.d), q, roundings=3)
        return Condition(DiagonalPlusScaled.identity(law.d), times_q, "condition T(D) ⪯ D is D ⪯ (k/d) L⁻¹")


if __name__ == "__main__":
    f, sketch = random_quadratic([1.0, 3.0, 10.0, 100.0], np.random.default_rng(0)), RandK(4, 1)
    print(f"closed form (k/d) det(L)^(-1/d): rate {0.25 * 3000.0**-0.25:.4f}")
    for algorithm in ("det-CGD1", "det-CGD2", "own-subspace"):
        result = optimal_stepsize(f.smoothness(), sketch, algorithm=algorithm)
        record = run(f, result.D, sketch, algorithm=algorithm, iterations=100, start=np.ones(4))
        end = record.values[:, -1].mean()
        print(f"{algorithm:<13} rate {result.rate:.4f}, f(x⁰) = {record.start_value:.4g}, f(x¹⁰⁰) = {end:.4g}")
