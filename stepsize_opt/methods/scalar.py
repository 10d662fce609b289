"""The methods with a scalar stepsize D = γI with which the paper compares its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from stepsize_opt.methods.det_cgd import SketchedGradient
from stepsize_opt.sketches import Identity, Sketch


@dataclass(frozen=True)
class _Scalar(SketchedGradient):
    def check(self, sketches: Sequence[Sketch], *, scalar: bool, clients: bool) -> None:
        if not scalar:
            msg = f"{self.name} takes a scalar stepsize D = γI (structure='scalar'); det-CGD1, det-CGD2 take a matrix"
            raise ValueError(msg)


@final
@dataclass(frozen=True)
class CGD(_Scalar):
    """Compressed gradient descent on one node: det-CGD1 with D = γI.

    Examples
    --------
    >>> from stepsize_opt import CGD, RandK, optimal_stepsize
    >>> CGD().update
    'x⁺ = x − γ S ∇f(x)'
    >>> optimal_stepsize([[2.0, 1.0], [1.0, 3.0]], RandK(2, 1), algorithm="CGD", structure="scalar").status
    'optimal'
    """

    name: ClassVar[str] = "CGD"
    update: ClassVar[str] = "x⁺ = x − γ S ∇f(x)"

    def check(self, sketches: Sequence[Sketch], *, scalar: bool, clients: bool) -> None:
        super().check(sketches, scalar=scalar, clients=clients)
        if clients:
            msg = f"{self.name} needs one node; its name with clients is {DCGD.name}"
            raise ValueError(msg)


@final
@dataclass(frozen=True)
class DCGD(_Scalar):
    """Compressed gradient descent with n clients, each with a sketch of its own.

    Examples
    --------
    >>> from stepsize_opt import DCGD
    >>> DCGD().update
    'x⁺ = x − (γ/n) Σ Sᵢ∇fᵢ(x)'
    """

    name: ClassVar[str] = "DCGD"
    update: ClassVar[str] = "x⁺ = x − (γ/n) Σ Sᵢ∇fᵢ(x)"

    def check(self, sketches: Sequence[Sketch], *, scalar: bool, clients: bool) -> None:
        super().check(sketches, scalar=scalar, clients=clients)
        if not clients:
            msg = f"{self.name} needs clients (in a run, a Federated objective); its name on one node is {CGD.name}"
            raise ValueError(msg)

    @property
    def on_one_node(self) -> CGD:
        return CGD()


@final
@dataclass(frozen=True)
class GradientDescent(_Scalar):
    """Gradient descent: D = γI and no compression, so T(D) = DLD.

    Examples
    --------
    >>> from stepsize_opt import GradientDescent, Identity, optimal_stepsize
    >>> GradientDescent().update
    'x⁺ = x − γ ∇f(x)'
    >>> result = optimal_stepsize([[2.0, 0.0], [0.0, 4.0]], Identity(2), algorithm="GD", structure="scalar")
    >>> round(result.rate, 6)  # 1/λmax(L)
    0.25
    """

    name: ClassVar[str] = "GD"
    update: ClassVar[str] = "x⁺ = x − γ ∇f(x)"

    def check(self, sketches: Sequence[Sketch], *, scalar: bool, clients: bool) -> None:
        super().check(sketches, scalar=scalar, clients=clients)
        for sketch in sketches:
            if not isinstance(sketch, Identity):
                msg = f"{self.name} does not compress: sketch must be Identity(d), got {sketch}"
                raise ValueError(msg)
