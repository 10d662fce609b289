"""A sketch of your own: one of m blocks of coordinates, drawn uniformly and multiplied by m."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import numpy as np

from stepsize_opt import optimal_stepsize, write_certificate
from stepsize_opt.results import StepsizeResult
from stepsize_opt.sketches.base import DiagonalBase
from stepsize_solvers.programs import Matrix, PositiveMap, Vector, hadamard
from stepsize_validation.data import random_smoothness


@dataclass(frozen=True, eq=False)
class OneBlock(DiagonalBase):
    """S = Diag(s), s = m in the block that is drawn: P = E[ssᵀ] is m inside a block and 0 elsewhere."""

    unbiased_by_formula: ClassVar[bool] = True  # E[S] = I without rounding, which the limit requires
    m: int

    def support(self) -> tuple[Vector, Matrix]:  # for certificate files, and for checks by enumeration
        return np.full(self.m, 1.0 / self.m), np.repeat(self.m * np.eye(self.m), self.d // self.m, axis=1)

    def _map(self) -> PositiveMap:
        blocks = np.repeat(np.arange(self.m), self.d // self.m)
        return hadamard(self.m * (blocks[:, None] == blocks), 0)  # no entry of P was rounded

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self.support()[1][rng.integers(self.m, size=size)]

    @property
    def expected_nonzeros(self) -> float:
        return self.d / self.m

    @property
    def text(self) -> str:
        return f"one of {self.m} blocks"


if __name__ == "__main__":
    L = random_smoothness(np.random.default_rng(0), 6, 100.0)
    closed = np.linalg.det(OneBlock(6, 3).second_moment(L)) ** (-1 / 6)
    print(f"det-CGD2, closed form det(P∘L)^(-1/d): rate {closed:.4f}")
    for algorithm in ("det-CGD1", "det-CGD2"):
        result = optimal_stepsize(L, OneBlock(6, 3), algorithm=algorithm)
        print(f"{algorithm}: {result.status}, rate {result.rate:.4f}, certified gap {result.gap:.0e}")
    with TemporaryDirectory() as folder:  # a file holds the name of the class and its fields
        again = StepsizeResult.load(result.save(Path(folder) / "result"))
        print(f"loaded: {again.sketch}, equal: {again.sketch == result.sketch}")
        path = write_certificate(result, L, Path(folder) / "certificate.json")  # verified before it is written
        print(f"{path.name}: log det D is at most {result.certificate.upper_bound:.4f}")
