"""The two methods of the paper, with a matrix stepsize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

from stepsize_opt.methods.base import Condition, Factors, Method
from stepsize_solvers.programs import DiagonalPlusScaled, Matrix, PositiveMap


@dataclass(frozen=True)
class SketchedGradient(Method):
    """G = D S: the gradient is compressed, then multiplied by D.  T(D) = 𝒫(DLD)."""

    def factors(self, D: Matrix, smoothness: Callable[[], Matrix]) -> Factors:
        return Factors(D, None)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        return law(D @ L @ D)

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        identity = DiagonalPlusScaled.identity(law.d)
        if commutes:
            return Condition(identity, law, "the sketch commutes with D: condition (3) is D ⪯ (E[SLS])⁻¹")
        return Condition(law, identity)


@final
@dataclass(frozen=True)
class DetCGD1(SketchedGradient):
    """det-CGD1: the gradient is compressed, then multiplied by D.  Its condition is (3), E[S D L D S] ⪯ D.

    Examples
    --------
    >>> from stepsize_opt.methods import DetCGD1
    >>> DetCGD1().update
    'x⁺ = x − D S ∇f(x)'
    """

    name: ClassVar[str] = "det-CGD1"
    update: ClassVar[str] = "x⁺ = x − D S ∇f(x)"


@final
@dataclass(frozen=True)
class DetCGD2(Method):
    """det-CGD2: the gradient is multiplied by D, then compressed.  Its condition is (4), D E[TLT] D ⪯ D.

    D ≻ 0 makes (4) the same as D ⪯ (E[TLT])⁻¹, which is the largest of all D that satisfy it.

    Examples
    --------
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> result = optimal_stepsize([[2.0, 1.0], [1.0, 3.0]], RandK(2, 1), algorithm="det-CGD2")
    >>> result.D.round(6).tolist()  # E[TLT]⁻¹, and E[TLT] = 2 diag(L)
    [[0.25, 0.0], [0.0, 0.166667]]
    """

    name: ClassVar[str] = "det-CGD2"
    update: ClassVar[str] = "x⁺ = x − T D ∇f(x)"

    def factors(self, D: Matrix, smoothness: Callable[[], Matrix]) -> Factors:
        return Factors(None, D)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        return D @ law(L) @ D

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        return Condition(DiagonalPlusScaled.identity(law.d), law, "condition (4) is D ⪯ (E[TLT])⁻¹")
