"""A primal-dual point (D, Z) in the basis in which the curvature of the Lagrangian is nearly diagonal.

For one constraint F(D) = D − 𝒬(D B D) ⪰ 0 and a full pattern, take C with

    C Cᵀ = D,      Cᵀ B C = Λ = Diag(λ).

With Z̃ = CᵀZC, R̃ = Cᵀ𝒬*(Z)C and F̃ = C⁻¹FC⁻ᵀ the optimality conditions D⁻¹ + Z = B D R + R D B, Z ⪰ 0, F ⪰ 0,
ZF = 0 read  r₁ := I + Z̃ − (ΛR̃ + R̃Λ) = 0,  Z̃F̃ = 0, and D B D = C Λ Cᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepsize_solvers.numerics import Array, sym
from stepsize_solvers.programs import Matrix


class Basis(NamedTuple):
    """C with CCᵀ = D and CᵀBC = Diag(λ), its inverse, and λ."""

    C: Array
    C_inverse: Array
    lam: Array


@dataclass(frozen=True, eq=False)
class Point:
    """(D, Z) and everything that the Newton system needs of it, in the working basis."""

    C: Array
    C_inverse: Array
    lam: Array
    log_det: float
    Zt: Array
    Rt: Array
    Ft: Array

    @property
    def d(self) -> int:
        return int(self.C.shape[0])

    @cached_property
    def _single(self) -> Basis:
        return Basis(*(M.astype(np.float32, copy=False) for M in (self.C, self.C_inverse, self.lam)))

    def basis(self, dtype: Any) -> Basis:
        """The working basis in the given precision."""
        return self._single if dtype == np.float32 else Basis(self.C, self.C_inverse, self.lam)

    def single(self) -> Point:
        """The point rounded to single precision."""
        arrays = (M.astype(np.float32) for M in (self.Zt, self.Rt, self.Ft))
        return Point(*self._single, self.log_det, *arrays)

    @property
    def D(self) -> Matrix:
        C = self.C.astype(np.float64, copy=False)
        return sym(C @ C.T)

    @property
    def Z(self) -> Matrix:
        C_inverse = self.C_inverse.astype(np.float64, copy=False)
        return sym(C_inverse.T @ self.Zt @ C_inverse)
