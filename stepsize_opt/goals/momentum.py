"""Goals of methods with momentum: the program of the goal ``linear`` with another M (docs/momentum.md).

The largest t with H(D) ⪰ t²𝒫(M⁻¹) is the root of the largest τ with H(D) ⪰ τM′⁻¹, M′ = 𝒫(M⁻¹)⁻¹.  In floats V ⪰ M⁻¹ is
what the update of z multiplies by, and M′ ⪯ 𝒫(V)⁻¹: H ⪰ τM′⁻¹ ⪰ τ𝒫(V) is proved for the method that runs, whose
M̂ = V⁻¹ ⪯ M is a bound on ∇²f, too.  With M′⁻¹ ⪯ e^loss 𝒫(M⁻¹), no D has τ above e^loss times the bound for M′.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from stepsize_opt.goals.base import Goal, GoalWords
from stepsize_opt.goals.floors import FloorGoal, StronglyConvex
from stepsize_opt.inputs.checks import check_dense, dimensions, positive_number, read_only, real_array
from stepsize_opt.inputs.matrices import Symmetric, check_positive_definite, dense
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Enclosed,
    coefficient_roundings,
    image,
    proved_inverse,
    rounded_up,
    twice_gamma,
)
from stepsize_opt.smoothness import LimitBounds
from stepsize_solvers.programs import Indices, Matrix, PositiveMap, Vector

_RATE = "t with H ⪰ t²𝒫(M⁻¹)"
_FEASIBLE = "H ⪰ t²𝒫(M⁻¹) with t > 0"


@dataclass(frozen=True, eq=False)
class MomentumGoal(FloorGoal):
    """The largest t of a method with momentum; M is that of the theorem until ``for_sketch`` puts M′ in its place.

    given: M of the theorem then; V ⪰ M⁻¹: what the update of z multiplies by; loss: M′⁻¹ ⪯ e^loss 𝒫(M⁻¹).
    """

    momentum: ClassVar[bool] = True
    given: Symmetric | float | None = None
    V: Matrix | float | None = None
    loss: float = 0.0

    def for_sketch(self, law: PositiveMap) -> Goal:
        """Raises Unproved where M is too close to singular for float64, ValueError where memory does not hold M⁻¹."""
        excess = 2.0 * UNIT
        if isinstance(self.M, float):
            V: Matrix | float = rounded_up(1 / Fraction(self.M))
        else:
            M = dense(self.M)
            check_positive_definite("strong_convexity", M, "goal='linear' needs M ≻ 0")
            V, excess = proved_inverse(Enclosed.exact(M), above=True, name="strong_convexity")
        M_prime, share = _inverse_image(law, V)
        loss = (excess + share / (1.0 - share)) * (1.0 + 8.0 * UNIT)
        return replace(self, M=M_prime, given=self.M, V=V, loss=loss)

    def check(self, L: Matrix, indices: Indices) -> None:
        """M was proved positive definite by ``for_sketch``."""

    def combine(self, parts: Sequence[Certificate]) -> Certificate:
        """Return the certificate of t = √τ, as d log t, from those of τ for M′."""
        certificate = super().combine(parts)
        upper = certificate.upper_bound + certificate.d * self.loss
        slack = 4.0 * UNIT * (abs(certificate.upper_bound) + certificate.d)
        return replace(certificate, log_det=0.5 * certificate.log_det, upper_bound=0.5 * (upper + slack))

    def log_limit(self, parts: Sequence[LimitBounds], rank: float) -> float:
        return 0.5 * super().log_limit(parts, rank)  # that of t²

    def for_limit(self) -> Goal:
        return replace(self, M=self.theorems_M)

    @property
    def inverse_curvature(self) -> Any:
        return read_only(self.V) if isinstance(self.V, np.ndarray) else self.V

    @property
    def theorems_M(self) -> Symmetric | float:
        return self.M if self.given is None else self.given


@dataclass(frozen=True, eq=False)
class LinearMomentum(StronglyConvex, MomentumGoal):
    """E f(x^K) − f* ≤ 2(1 − t)^K Δ⁰ for strongly convex f."""

    name: ClassVar[str] = "linear"
    strong: ClassVar[bool] = True
    factor: ClassVar[int] = 2
    words: ClassVar[GoalWords] = GoalWords(_RATE, _FEASIBLE, "log(2Δ⁰/accuracy)", ("accuracy", "initial_gap"), "H")


@dataclass(frozen=True, eq=False)
class ConvexMomentum(MomentumGoal):
    """E f(x^K) − f* ≤ 2‖x⁰ − x*‖²/(t²K(K + 3)) for convex f, M = I."""

    name: ClassVar[str] = "convex"
    words: ClassVar[GoalWords] = GoalWords(
        f"{_RATE}, M = I", _FEASIBLE, "‖x⁰ − x*‖ (2/accuracy)^½", ("accuracy", "initial_distance"), "H"
    )

    @classmethod
    def rounds(cls, rate: float, accuracy: float, start: Any) -> int:
        """Return the smallest K with 2r² ≤ accuracy t²K(K + 3), start = x⁰ − x* or a number r ≥ ‖x⁰ − x*‖."""
        if dimensions(start) == 0:
            squared = Fraction(positive_number("initial_distance", start)) ** 2
        else:
            squared = sum((Fraction(x) ** 2 for x in real_array("initial_distance", start).tolist()), Fraction(0))
        t, target = Fraction(positive_number("rate", rate)), Fraction(positive_number("accuracy", accuracy))
        needed = math.ceil(2 * squared / (t**2 * target))  # ≤ K(K + 3)
        K = max(1, (math.isqrt(4 * needed + 9) - 3) // 2)  # (2K + 3)² = 4K(K + 3) + 9
        return K if K * (K + 3) >= needed else K + 1


def _inverse_image(law: PositiveMap, V: Matrix | float) -> tuple[Symmetric | float, float]:
    """Return M′ and a share ε with (1 − ε)𝒫(V)⁻¹ ⪯ M′ ⪯ 𝒫(V)⁻¹; a number where 𝒫(V) is a multiple of I."""
    if isinstance(V, np.ndarray):
        whole = V
    elif law.is_entrywise:
        return _inverse_diagonal(V * law.diagonal_action, twice_gamma(coefficient_roundings(law) + 2))
    else:
        check_dense("𝒫(M⁻¹)", law.d)
        whole = V * np.eye(law.d)
    found = image(law, Enclosed.exact(whole)).symmetric()
    diagonal, error = found.value.diagonal(), found.error.diagonal()
    if np.array_equal(found.value, np.diag(diagonal)) and np.array_equal(found.error, np.diag(error)):
        return _inverse_diagonal(diagonal, float((error / diagonal).max()))
    return proved_inverse(found, above=False, name="𝒫(M⁻¹)")


def _inverse_diagonal(q: Vector, error: float) -> tuple[Symmetric | float, float]:
    """Return M′ of 𝒫(V) = Diag(q), q right to a relative error."""
    share = 2.0 * error + 8.0 * UNIT
    inverse = (1.0 - 0.5 * share) / q
    if (inverse == inverse[0]).all():
        return float(inverse[0]), share
    return sparse.csr_array(sparse.diags_array(inverse)), share
