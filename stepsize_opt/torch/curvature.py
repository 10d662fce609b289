"""Where L̂ of a model comes from: proved for linear heads, Kronecker factors or a low rank for networks.

*Kronecker factors* (K-FAC: Martens, Grosse, 2015).  The Fisher matrix of a layer with the weight matrix [W b], inputs a
and gradients g of its outputs is taken for E[ggᵀ] ⊗ E[aaᵀ].  Processes average the two factors, so that a layer of
size p×q costs p(p+1)/2 + q(q+1)/2 floats once; of a side longer than ``SIDE`` only the diagonal is used.

*Low rank plus scalar*.  Lanczos' method with Hessian–vector products, each of them averaged over the processes; the
scalar is the smallest of the |eigenvalues| that are kept.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_opt.torch.head import Batches, trainable
from stepsize_opt.torch.operators import Blocks, Kronecker, Operator, Scaled
from stepsize_opt.torch.smoothness import largest_curvature
from stepsize_opt.torch.workers import Workers

# A side with an orthogonal factor costs ``SIDE`` multiplications per parameter and step.
SIDE = 256
# Of the largest eigenvalue: what is added to all of them.  For heads more, because K is far above the curvature that
# is met (on the digits 26 times), and the ridge is not.  From 10⁻³ to 10⁻¹ for heads, and from 10⁻⁴ to 10⁻¹ for two
# small networks, these were the best or next to it.
DAMPING = 1e-3
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


# ---------------------------------------------------------------- Kronecker factors


def network_basis(
    model: nn.Module, loss: Any, data: Batches, ridge: float, workers: Workers
) -> tuple[Operator, list[Layer]]:
    """A of the Kronecker factors of a network at its present parameters, and the rows of the plan."""
    named = trainable(model)
    times = Counter(p for _, p in model.named_parameters(remove_duplicate=False))
    layers = {
        name: m
        for name, m in model.named_modules()
        if _has_factors(m) and all(times[p] == 1 for p in m.parameters(recurse=False))
    }
    factors, squares = _measure(model, loss, data, list(layers.values()), named, workers)
    blocks: list[_Block] = []
    for name, p in named.items():
        prefix, _, own = name.rpartition(".")
        if name in squares:
            blocks.append(_Block(name, p.numel(), squares[name]))
        elif own == "weight":
            blocks.append(_layer_block(prefix, layers[prefix], *factors[layers[prefix]]))
    added = DAMPING * max(*(block.largest for block in blocks), 1e-30) + ridge
    like = next(iter(named.values()))
    rows = [Layer(block.names, block.size, f"{block.source}, estimated", certified=False) for block in blocks]
    return Blocks([block.basis(added, like) for block in blocks], [block.size for block in blocks]), rows


@dataclass(frozen=True, eq=False)
class _Block:
    """Parameters that share a part of L̂: one number, or G ⊗ F on the matrix [W b] of a layer."""

    names: str
    size: int
    square: float = 0.0
    F: _Side | None = None
    G: _Side | None = None
    bias: bool = False

    @property
    def largest(self) -> float:
        return self.square if self.F is None or self.G is None else float(self.F.largest * self.G.largest)

    @property
    def source(self) -> str:
        if self.F is None or self.G is None:
            return "one number"
        return f"Kronecker factors {self.G.text} and {self.F.text}"

    def basis(self, added: float, like: Tensor) -> Operator:
        if self.F is None or self.G is None:
            return Scaled((self.square + added) ** -0.5)
        return _kronecker(self.F, self.G, added, self.bias, like)


def _layer_block(name: str, layer: Any, F: Tensor, G: Tensor) -> _Block:
    prefix, bias = f"{name}." if name else "", layer.bias is not None
    names = f"{prefix}weight + {prefix}bias" if bias else f"{prefix}weight"
    size = layer.weight.numel() + (layer.bias.numel() if bias else 0)
    return _Block(names, size, F=_Side.of(F), G=_Side.of(G), bias=bias)


@dataclass(frozen=True, eq=False)
class _Side:
    """Eigenvalues of a factor, and its eigenvectors; None where only the diagonal was measured."""

    values: Tensor
    vectors: Tensor | None

    @staticmethod
    def of(factor: Tensor) -> _Side:
        if factor.ndim == 1:
            return _Side(factor.clamp(min=0.0), None)
        values, vectors = torch.linalg.eigh(factor.double().cpu())
        return _Side(values.clamp(min=0.0), vectors)

    @property
    def largest(self) -> Tensor:
        return self.values.max()

    @property
    def text(self) -> str:
        n = len(self.values)
        return f"{n} (diagonal)" if self.vectors is None else f"{n}×{n}"


def _kronecker(F: _Side, G: _Side, added: float, bias: bool, like: Tensor) -> Kronecker:
    """A with AAᵀ = (G ⊗ F + added·I)⁻¹, with the dtype of ``like``, at least float32."""
    eigenvalues = G.values[:, None] * F.values + added
    wide = torch.promote_types(like.dtype, torch.float32)

    def tensor(x: Tensor | None) -> Any:
        return None if x is None else x.to(device=like.device, dtype=wide).contiguous()

    return Kronecker(tensor(G.vectors), tensor(F.vectors), tensor(eigenvalues.rsqrt()), bias)


def _has_factors(module: nn.Module) -> bool:
    linear = type(module) is nn.Linear
    convolution = type(module) is nn.Conv2d and module.groups == 1 and not isinstance(module.padding, str)
    own = list(module.parameters(recurse=False))
    return (linear or convolution) and all(p.requires_grad for p in own)


def _measure(
    model: nn.Module, loss: Any, data: Batches, layers: list[Any], named: dict[str, Tensor], workers: Workers
) -> tuple[dict[Any, tuple[Tensor, Tensor]], dict[str, float]]:
    """The factors of the layers, and a mean square of the gradient for each of the other parameters."""
    device, dtype = next(iter(named.values())).device, next(iter(named.values())).dtype
    rest = [name for name, p in named.items() if not any(p is q for m in layers for q in m.parameters(recurse=False))]
    sums: dict[Any, list[Any]] = {layer: [0.0, 0.0] for layer in layers}
    squares, count, wide = dict.fromkeys(rest, 0.0), 0, torch.promote_types(dtype, torch.float32)
    generator = torch.Generator(device=device).manual_seed(workers.rank)
    for inputs, targets in first(data, EXAMPLES):
        total, seen = _sampled_loss(model, loss, inputs, targets, layers, generator)
        outputs = [out for layer in layers for _, out in seen.get(layer, [])]
        gradients = torch.autograd.grad(total, [*outputs, *(named[name] for name in rest)], allow_unused=True)
        left = iter(gradients)
        for layer in layers:
            for features, _ in seen.get(layer, []):
                F, g = _rows(layer, features, layer.bias is not None), _columns(layer, next(left))
                sums[layer][0] += _second_moment(F.to(wide))
                # The g of a place of a convolution is one of several for an example; their inputs are summed above.
                sums[layer][1] += _second_moment(g.to(wide)) * (len(inputs) / len(g))
        for name in rest:
            g = next(left)
            squares[name] += 0.0 if g is None else float(g.double().square().mean())
        count += len(inputs)
    flat = [part / count for layer in layers for part in sums[layer] if isinstance(part, Tensor)]
    flat.append(torch.tensor([squares[name] / count for name in rest], dtype=wide, device=device))
    averaged = iter(workers.symmetric_means(flat, wide, device))
    factors = {m: (next(averaged), next(averaged)) for m in layers if isinstance(sums[m][0], Tensor)}
    means = dict(zip(rest, next(averaged).tolist(), strict=True))
    unused = [m for m in layers if m not in factors]
    if unused:
        msg = f"the loss does not use {unused[0]!r}; freeze its parameters (requires_grad_(False)) or take it out"
        raise ValueError(msg)
    return factors, means


def _sampled_loss(
    model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor, layers: list[Any], generator: torch.Generator
) -> tuple[Tensor, dict[Any, list[tuple[Tensor, Tensor]]]]:
    """The sum of the losses, with inputs and outputs of the layers: for cross-entropy with labels that the model draws.

    With such labels the covariance of the gradients is the Fisher matrix; other losses take their targets.
    """
    seen: dict[Any, list[tuple[Tensor, Tensor]]] = {}

    def keep(module: nn.Module, arguments: Any, output: Tensor) -> None:
        seen.setdefault(module, []).append((arguments[0].detach(), output))

    handles = [layer.register_forward_hook(keep) for layer in layers]
    out = model(inputs)
    for handle in handles:
        handle.remove()
    if isinstance(loss, nn.CrossEntropyLoss) and out.ndim == 2:
        labels = torch.multinomial(out.detach().softmax(1), 1, generator=generator)[:, 0]
        return nn.functional.cross_entropy(out, labels, reduction="sum"), seen
    return loss(out, targets) * len(inputs), seen


def _second_moment(rows: Tensor) -> Tensor:
    """Σ of rows' outer products, or its diagonal for long rows."""
    return rows.T @ rows if rows.shape[1] <= SIDE else rows.square().sum(0)


def _rows(layer: Any, features: Tensor, bias: bool) -> Tensor:
    """The inputs of a layer as rows, patches of a convolution, with a one for the bias."""
    if isinstance(layer, nn.Conv2d):
        padding: Any = layer.padding
        patches = nn.functional.unfold(features, layer.kernel_size, layer.dilation, padding, layer.stride)
        rows = patches.transpose(1, 2).reshape(-1, patches.shape[1])
    else:
        rows = features.reshape(-1, features.shape[-1])
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1) if bias else rows


def _columns(layer: Any, gradient: Tensor) -> Tensor:
    """The gradients in the outputs of a layer as rows."""
    channels_last = gradient.movedim(1, -1) if isinstance(layer, nn.Conv2d) else gradient
    return channels_last.reshape(-1, channels_last.shape[-1])


# ---------------------------------------------------------------- low rank


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
