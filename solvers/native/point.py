"""A primal-dual point (D, Z) in the basis in which the curvature of the Lagrangian is nearly diagonal.

For one constraint F(D) = D − 𝒬(D B D) ⪰ 0 and a full pattern, take C with

    C Cᵀ = D,      Cᵀ B C = Λ = Diag(λ).

With Z̃ = CᵀZC, R̃ = Cᵀ𝒬*(Z)C and F̃ = C⁻¹FC⁻ᵀ the optimality conditions D⁻¹ + Z = B D R + R D B, Z ⪰ 0, F ⪰ 0,
ZF = 0 read  r₁ := I + Z̃ − (ΛR̃ + R̃Λ) = 0,  Z̃F̃ = 0, and D B D = C Λ Cᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solvers.maps import Matrix, Vector
from solvers.native.linalg import sym


@dataclass(frozen=True, eq=False)
class Bounds:
    """The certified interval that a point proves, for the stepsize ``scale`` · D and the dual ``dual_scale`` · Z."""

    lower: float
    upper: float
    scale: float
    dual_scale: float

    @property
    def width(self) -> float:
        return self.upper - self.lower


@dataclass(frozen=True, eq=False)
class Point:
    """(D, Z) and everything that the Newton system needs of it, in the working basis."""

    C: Matrix
    C_inverse: Matrix
    lam: Vector
    log_det: float
    Zt: Matrix
    Rt: Matrix
    Ft: Matrix

    @property
    def d(self) -> int:
        return int(self.C.shape[0])

    @cached_property
    def _single(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        return self.C.astype(np.float32), self.C_inverse.astype(np.float32), self.lam.astype(np.float32)

    def basis(self, dtype: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """C, C⁻¹ and λ in the given precision."""
        return self._single if dtype == np.float32 else (self.C, self.C_inverse, self.lam)

    @property
    def D(self) -> Matrix:
        return sym(self.C @ self.C.T)

    @property
    def Z(self) -> Matrix:
        return sym(self.C_inverse.T @ self.Zt @ self.C_inverse)
