"""Matrices of the library as operations on tensors: made from numpy once, then on the device of the parameters."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.linalg import solve_triangular
from torch import Tensor

from stepsize_opt.large.stepsizes import BlockStepsize, DiagonalStepsize, InverseStepsize
from stepsize_opt.sketches import CoordinatesDraw, FactorDraw, LayersDraw
from stepsize_opt.smoothness import ThinDirections


class Operator(Protocol):
    """A d×d matrix A: ``apply(v)`` is A v, ``transposed(v)`` is Aᵀv."""

    def apply(self, v: Tensor) -> Tensor: ...
    def transposed(self, v: Tensor) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Scaled:
    """Diag(x), or x times the identity."""

    x: Tensor | float

    def apply(self, v: Tensor) -> Tensor:
        return self.x * v

    transposed = apply


@dataclass(frozen=True, eq=False)
class Dense:
    """A by the rows of Aᵀ, so that some columns of A are rows that lie together."""

    rows: Tensor

    def apply(self, v: Tensor) -> Tensor:
        return v @ self.rows

    def transposed(self, v: Tensor) -> Tensor:
        return self.rows @ v

    def some(self, places: Tensor) -> Dense:
        """The columns at ``places``."""
        return Dense(self.rows[places])


@dataclass(frozen=True, eq=False)
class LowRank:
    """Diag(a) − VVᵀ."""

    a: Tensor
    V: Tensor

    def apply(self, v: Tensor) -> Tensor:
        return self.a * v - self.V @ (v @ self.V)

    transposed = apply


@dataclass(frozen=True, eq=False)
class Thin:
    """c Diag(t)(I + BZBᵀ), B = [Diag(t)U  E]: ``ThinDirections``."""

    c: float
    t: Tensor
    U: Tensor
    Z: Tensor

    def apply(self, v: Tensor) -> Tensor:
        return self.c * self.t * (v + self._outer(self.Z @ self._inner(v)))

    def transposed(self, v: Tensor) -> Tensor:
        y = self.c * self.t * v
        return y + self._outer(self._inner(y) @ self.Z)

    def _inner(self, v: Tensor) -> Tensor:
        """Bᵀv."""
        first = len(self.Z) - self.U.shape[1]
        return torch.cat([(self.t * v) @ self.U, v[:first]])

    def _outer(self, w: Tensor) -> Tensor:
        """B w."""
        rank = self.U.shape[1]
        out = self.t * (self.U @ w[:rank])
        out[: len(w) - rank] += w[rank:]
        return out


@dataclass(frozen=True, eq=False)
class Blocks:
    """Diag(A₁, …, A_m)."""

    parts: Sequence[Operator]
    sizes: Sequence[int]

    def apply(self, v: Tensor) -> Tensor:
        return torch.cat([A.apply(x) for A, x in self._pairs(v)])

    def transposed(self, v: Tensor) -> Tensor:
        return torch.cat([A.transposed(x) for A, x in self._pairs(v)])

    def _pairs(self, v: Tensor) -> Any:
        return zip(self.parts, torch.split(v, list(self.sizes)), strict=True)


@dataclass(frozen=True, eq=False)
class Kronecker:
    """(G ⊗ F) Diag(r) on the entries of a matrix [W b], with orthogonal G and F.

    The vector holds W row by row, then b where the layer has a bias.
    """

    G: Tensor
    F: Tensor
    r: Tensor
    bias: bool

    def apply(self, v: Tensor) -> Tensor:
        M = self.G @ (v.view_as(self.r) * self.r) @ self.F.T
        return torch.cat([M[:, :-1].reshape(-1), M[:, -1]]) if self.bias else M.reshape(-1)

    def transposed(self, v: Tensor) -> Tensor:
        rows, columns = self.r.shape
        M = v[: rows * (columns - self.bias)].view(rows, -1)
        M = torch.cat([M, v[-rows:, None]], dim=1) if self.bias else M
        return (self.G.T @ M @ self.F * self.r).reshape(-1)


def operator(matrix: Any, like: Tensor) -> Operator:
    """The matrix with the dtype and on the device of ``like``; None is the identity.

    Raises TypeError for an operator of scipy that is none of the library's.
    """

    def tensor(array: Any) -> Tensor:
        return torch.as_tensor(np.array(array), dtype=like.dtype, device=like.device)

    if matrix is None or isinstance(matrix, float):
        return Scaled(1.0 if matrix is None else matrix)
    if isinstance(matrix, DiagonalStepsize):
        return Scaled(tensor(matrix.x))
    if isinstance(matrix, InverseStepsize):
        half = solve_triangular(matrix.C, np.asarray(matrix.U.T), lower=True).T
        return LowRank(tensor(matrix.p), tensor(matrix.p[:, None] * half))
    if isinstance(matrix, ThinDirections):
        return Thin(matrix.c, tensor(matrix.t), tensor(matrix.U), tensor(matrix.Z))
    if isinstance(matrix, BlockStepsize):
        matrix = matrix.array
    if not isinstance(matrix, np.ndarray):
        msg = f"a {type(matrix).__name__} has no form on tensors; pass an array, or what optimal_stepsize returned"
        raise TypeError(msg)
    return Dense(tensor(matrix.T))


@dataclass(frozen=True, eq=False)
class Coordinates:
    """A drawn S = Diag(s) with s_j = ``factors`` at ``places`` and 0 elsewhere."""

    d: int
    places: Tensor
    factors: Tensor

    def encode(self, x: Tensor) -> Tensor:
        return x[self.places] * self.factors

    def decode(self, numbers: Tensor) -> Tensor:
        out = numbers.new_zeros(self.d)
        out[self.places] = numbers
        return out


@dataclass(frozen=True, eq=False)
class Factor:
    """A drawn S = c F Fᵀ."""

    F: Tensor
    scale: float

    def encode(self, x: Tensor) -> Tensor:
        return x @ self.F

    def decode(self, numbers: Tensor) -> Tensor:
        return self.F @ numbers * self.scale


def drawn(draw: Any, like: Tensor) -> Coordinates | Factor:
    """A draw of a sketch on tensors; raises TypeError for one that is neither coordinates nor a factor."""
    if isinstance(draw, LayersDraw):
        draw = _one_draw(draw)
    if isinstance(draw, CoordinatesDraw):
        places = torch.from_numpy(draw.chosen).to(like.device)
        return Coordinates(draw.d, places, torch.from_numpy(draw.factors).to(like))
    if isinstance(draw, FactorDraw):
        return Factor(torch.from_numpy(draw.factor).to(like), draw.scale)
    msg = f"a {type(draw).__name__} has no form on tensors; use a diagonal sketch such as RandK(d, k)"
    raise TypeError(msg)


def _one_draw(draw: LayersDraw) -> CoordinatesDraw:
    """The draw of all layers, which have to be diagonal."""
    starts = np.cumsum([0, *draw.sizes])
    if not all(isinstance(layer, CoordinatesDraw) for layer in draw.layers):
        msg = "layers that are not diagonal have no form on tensors; give each of them a group of its own"
        raise TypeError(msg)
    layers: Any = draw.layers
    chosen = [layer.chosen + start for layer, start in zip(layers, starts, strict=False)]
    return CoordinatesDraw(int(starts[-1]), np.concatenate(chosen), np.concatenate([layer.factors for layer in layers]))
