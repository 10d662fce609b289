"""A low rank plus a number in place of L, for a model whose L is not proved.

Lanczos' method with Hessian–vector products, each of them averaged over the processes; the number is the smallest of
the |eigenvalues| that are kept.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_opt.torch.head import Batches, trainable
from stepsize_opt.torch.smoothness import largest_curvature
from stepsize_opt.torch.workers import Workers

# The most dense gradients that the FᵀF of a head may cost; for feedback a low rank takes its place where it costs more.
AFFORDABLE = 8.0
# Examples that an estimate uses at most on each process.
EXAMPLES = 4096


@dataclass(frozen=True, eq=False)
class Layer:
    """One row of the plan: parameters that share a part of L̂."""

    names: str
    size: int
    source: str
    certified: bool


def first(data: Batches, examples: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The first examples; raises ValueError where there are none."""
    left = examples
    for inputs, targets in data:
        yield inputs[:left], targets[:left]
        left -= len(inputs)
        if left <= 0:
            return
    if left == examples:
        msg = "data has no examples"
        raise ValueError(msg)


def is_dear(model: nn.Module) -> bool:
    """Whether the FᵀF of a head costs more than it may."""
    layers = {m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))}
    layer: Any = layers.pop() if len(layers) == 1 else None
    return type(layer) is nn.Linear and layer.in_features + 1 > 2.0 * AFFORDABLE * layer.out_features


def low_rank(
    model: nn.Module, loss: Any, data: Batches, ridge: float, rank: int, workers: Workers
) -> tuple[LowRankPlusDiagonal, list[Layer]]:
    """L̂ = UUᵀ + aI of the ``rank`` largest |eigenvalues| of the Hessian at the present parameters.

    Raises ValueError where the Hessian is zero or not finite.
    """
    named = trainable(model)
    params, batches = list(named.values()), list(first(data, EXAMPLES))
    dtype = torch.promote_types(params[0].dtype, torch.float32)

    def product(v: Tensor) -> Tensor:
        parts = [part.view_as(p) for p, part in zip(params, torch.split(v, [p.numel() for p in params]), strict=True)]
        total = torch.zeros_like(v)
        for inputs, targets in batches:
            g = torch.autograd.grad(loss(model(inputs), targets), params, create_graph=True)
            along: Any = sum((a * b).sum() for a, b in zip(g, parts, strict=True))
            total += torch.cat([h.reshape(-1) for h in torch.autograd.grad(along, params)]) * len(inputs)
        return workers.mean(total / sum(len(inputs) for inputs, _ in batches))

    d = sum(p.numel() for p in params)
    vectors, sizes, rest = largest_curvature(product, d, rank, dtype, params[0].device)
    source = f"rank {len(sizes)} + scalar of the Hessian, estimated"
    L = LowRankPlusDiagonal(vectors * np.sqrt(sizes), rest + ridge)
    return L, [Layer("all parameters", d, source, certified=False)]
