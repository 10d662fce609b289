"""What the iteration needs of a program: points, residuals, the path of the constraints, bounds, a Newton system.

Two models implement it: ``.full.FullModel`` (full D, fast) and ``.blocks.BlockModel`` (block-diagonal D).
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

from stepsize_solvers.numerics import Array, Bounds, Counters, Scaling
from stepsize_solvers.programs import Matrix
from stepsize_solvers.single.inverse import ChebyshevInverse, Interval
from stepsize_solvers.single.newton import NewtonStep


class AnyPoint(Protocol):
    """A primal-dual point in its working basis."""

    @property
    def d(self) -> int: ...
    @property
    def D(self) -> Matrix: ...
    @property
    def Z(self) -> Matrix: ...
    @property
    def Zt(self) -> Array: ...
    @property
    def Ft(self) -> Array: ...


PointType = TypeVar("PointType", bound=AnyPoint)


class System(Protocol):
    """A Newton system ready for several right-hand sides."""

    @property
    def inverse(self) -> ChebyshevInverse: ...
    def solve(self, r1: Array, r2: Array, tolerance: float, max_iterations: int) -> NewtonStep: ...


class Model(Protocol[PointType]):
    """A program seen from the iteration."""

    @property
    def d(self) -> int: ...
    @property
    def single_precision(self) -> bool: ...
    def lowered(self, p: PointType) -> PointType | None: ...
    def advance(self, p: PointType, X: Array, dZt: Array, to_double: bool = False) -> PointType | None: ...
    def dual_residual(self, p: PointType) -> Array: ...
    def slope(self, p: PointType, X: Array) -> Array: ...
    def bend(self, p: PointType, X: Array) -> Array: ...
    def curvature_of_residual(self, p: PointType, X: Array, dZt: Array) -> Array: ...
    def bounds(self, p: PointType, factor: Array | None, near: bool = True) -> Bounds: ...
    def confirmed(self, p: PointType) -> Bounds | None: ...
    def system(
        self,
        p: PointType,
        scaling: Scaling,
        dtype: type[np.floating[Any]],
        counters: Counters,
        known: Interval | None = None,
    ) -> System: ...
