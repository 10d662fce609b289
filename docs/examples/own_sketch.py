"""A sketch of your own with a map of its own: send the part of x that is symmetric, or antisymmetric, in its order.

S = I + J or I − J with probability ½, where J reverses the order of the coordinates: S ⪰ 0, E[S] = I, and
𝒫(M) = E[SMS] = M + JMJ, which is none of the shapes that the library has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stepsize_opt import Sketch, optimal_stepsize, parse_sketch
from stepsize_opt.proofs import (
    Approximate,
    Enclosed,
    Pair,
    adjoint_below,
    coefficient_roundings,
    image,
    image_above,
    lowers_to_positive,
)
from stepsize_solvers.programs import Indices, Matrix, PositiveMap, Vector
from stepsize_validation.data import random_smoothness


@dataclass(frozen=True, eq=False)
class Mirrored(PositiveMap):
    """𝒬(M) = kept·M + JMJ with kept = 1, or 0 for the centred map."""

    size: int
    kept: float = 1.0

    @property
    def d(self) -> int:
        return self.size

    def apply(self, M: Matrix) -> Matrix:
        return np.asarray(self.kept * M + M[::-1, ::-1])

    def magnitude(self, M: Matrix) -> Matrix:
        return self.apply(M)

    def centered(self) -> Mirrored:
        return Mirrored(self.size, self.kept - 1.0)

    def restrict(self, indices: Indices) -> Mirrored:
        return Mirrored(indices.size, self.kept)  # a union of groups is its own mirror image

    @property
    def groups(self) -> Indices:
        return np.minimum(np.arange(self.size), np.arange(self.size)[::-1])

    @property
    def diagonal_action(self) -> Vector:
        return np.where(np.arange(self.size) == np.arange(self.size)[::-1], self.kept + 1.0, self.kept)

    def expression(self, Y: Any) -> Any:
        J = np.eye(self.size)[::-1]
        return self.kept * Y + J @ Y @ J


# What proofs need of a map.  The coefficients are 0 and 1, so nothing but the sum is rounded.
@coefficient_roundings.register
def _(Q: Mirrored) -> int:
    return 0


@image.register
def _(Q: Mirrored, M: Enclosed, arithmetic: type[Approximate] = Pair) -> Enclosed:
    return M * Q.kept + M[::-1, ::-1]


@image_above.register
@adjoint_below.register
def _(Q: Mirrored, M: Approximate) -> Approximate:
    J = M.exact(np.eye(Q.d)[::-1])
    return M * Q.kept + J @ (M @ J)


@lowers_to_positive.register
def _(Q: Mirrored) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class MirrorHalves(Sketch):
    """S = I ± J: the d/2 numbers (on average) of x ± Jx are sent.  As text ``mirror``."""

    form: ClassVar[str] = "mirror"
    unbiased_by_formula: ClassVar[bool] = True  # E[S] = I without rounding, which the limit requires

    def _map(self) -> PositiveMap:
        return Mirrored(self.d)

    def _sample(self, rng: np.random.Generator) -> Matrix:
        return self._apply_rows(np.eye(self.d), rng, together=True)

    def _apply_rows(self, X: Matrix, rng: np.random.Generator, together: bool = False) -> Matrix:
        signs = rng.choice([-1.0, 1.0], size=1 if together else len(X))
        return np.asarray(X + signs[:, None] * X[:, ::-1])

    @property
    def expected_nonzeros(self) -> float:
        return self.d / 2

    @property
    def text(self) -> str:
        return "mirror"

    @classmethod
    def parse(cls, argument: str, d: int) -> MirrorHalves:
        return cls(d)

    def support(self) -> tuple[Vector, Any]:
        identity = np.eye(self.d)
        return np.full(2, 0.5), np.array([identity + identity[::-1], identity - identity[::-1]])


if __name__ == "__main__":
    L = random_smoothness(np.random.default_rng(0), 6, 100.0)
    for algorithm in ("det-CGD1", "det-CGD2"):
        result = optimal_stepsize(L, parse_sketch("mirror", 6), algorithm=algorithm)
        print(f"{algorithm}: {result.status}, rate {result.rate:.4f}, certified gap {result.gap:.0e}")
