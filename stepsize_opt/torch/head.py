"""Linear heads, whose L is proved, and the check that a model is one.

The theorem: f is a mean over rows (a, y) of ℓ(Wa + b, y), the Hessian of ℓ in its first argument is at most K, and W
and b alone are trained.  Then ∇²f ⪯ K ⊗ FᵀF/n for the matrix F of the n rows a.  So the rows must be constant: they may
depend neither on W and b, nor on chance, nor on other rows of the batch, and everything else must stay as it is.
``find_head`` checks this by calls of the model, and ``Frozen`` before every step that nothing has changed since.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from stepsize_opt.torch.smoothness import loss_curvature
from stepsize_opt.torch.workers import Workers, digest

# Of the largest eigenvalue: what is added to all of them, because K is far above the curvature that is met (on the
# digits 26 times), and the ridge is not.  From 10⁻³ to 10⁻¹ this was the best or next to it.
DAMPING = 1e-2
# Examples that the model is called with at once where the data are one pair of tensors.
CHUNK = 256
_REMEDY = "call model.eval() before compress, and train the head in this mode"


def batches(data: Any, like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the data of this process as pairs (inputs, targets) on the device of the parameters.

    Raises TypeError for anything else.
    """
    whole = isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)
    if not whole and (not isinstance(data, Iterable) or isinstance(data, Iterator | Tensor)):
        msg = f"data must be a pair (inputs, targets), or a DataLoader or list of such pairs, got {type(data).__name__}"
        raise TypeError(msg)
    for batch in zip(*(part.split(CHUNK) for part in data), strict=True) if whole else data:
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            msg = "data must yield pairs (inputs, targets)"
            raise TypeError(msg)
        if len(batch[0]):
            yield batch[0].to(like.device), batch[1].to(like.device)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel and ``torch.compile``, in any order."""
    wrapped = isinstance(model, DistributedDataParallel | nn.DataParallel)
    inside: Any = model.module if wrapped else getattr(model, "_orig_mod", None)
    return model if inside is None else unwrapped(inside)


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by their names; raises ValueError where there are none."""
    params: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        msg = "model has no trainable parameters"
        raise ValueError(msg)
    return params


def work_dtype(like: Tensor) -> torch.dtype:
    """The dtype of memories and products: that of the parameters, at least float32."""
    return torch.promote_types(like.dtype, torch.float32)


@dataclass(frozen=True, eq=False)
class Kronecker:
    """(G ⊗ F) Diag(r) on the entries of a matrix [W b], with orthogonal G and F: a basis on tensors.

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


@dataclass(frozen=True, eq=False)
class Head:
    """A linear layer that alone is trained and whose outputs are those of the model: L = K ⊗ FᵀF/n is proved."""

    K: Any
    gram: Any
    bias: bool
    frozen: Frozen

    @property
    def words(self) -> str:
        """The form of L."""
        K = "½(I − 11ᵀ/C)" if np.count_nonzero(self.K - np.diag(np.diag(self.K))) else f"{self.K[0, 0]:g}·I"
        return f"{K} ⊗ FᵀF/n"

    def basis(self, ridge: float, like: Tensor) -> Kronecker:
        """A with AAᵀ = L̂⁻¹ for an L̂ of at least L + ridge·I, with the dtype of ``like``, at least float32."""
        (f, F), (g, G) = (torch.linalg.eigh(torch.as_tensor(factor)) for factor in (self.gram, self.K))
        eigenvalues = g.clamp(min=0.0)[:, None] * f.clamp(min=0.0)
        r = (eigenvalues + DAMPING * eigenvalues.max() + ridge).rsqrt()
        G, F, r = (x.to(device=like.device, dtype=work_dtype(like)).contiguous() for x in (G, F, r))
        return Kronecker(G, F, r, self.bias)


def find_head(model: nn.Module, loss: Any, data: Any, workers: Workers) -> Head:
    """The head of a model; raises ValueError with the reason where the theorem says nothing of it or of the loss."""
    head, reason = None, ""
    try:
        head = _own_head(model, loss, data)
    except ValueError as error:
        reason = str(error)
    like = next(iter(trained(model).values()))
    if not workers.equal(bool(reason), device=like.device):
        reason = reason or "the data of another process do not satisfy what the proof needs"
    if head is None or reason:
        msg = (
            f"no L is proved: {reason}. For other models PowerSGD of torch.distributed is the better choice; "
            "L=estimate_smoothness(model, loss, data) is not proved"
        )
        raise ValueError(msg)
    gram = torch.as_tensor(head.gram).to(like.device, work_dtype(like))
    return replace(head, gram=workers.symmetric_mean(gram).double().cpu().numpy())


def _own_head(model: nn.Module, loss: Any, data: Any) -> Head:
    """The head with the FᵀF/n of this process alone."""
    name, layer = _trained_layer(model)
    try:
        K = loss_curvature(loss, layer.out_features)
    except TypeError as error:
        raise ValueError(str(error)) from None
    bias = layer.bias is not None
    gram, count, by_mode = torch.zeros((layer.in_features + bias,) * 2, dtype=torch.float64), 0, False
    with as_it_was(model, layer.weight):
        for inputs, targets in batches(data, layer.weight):
            rows, outputs, depends = _constant_rows(model, name, layer, inputs)
            F = rows[_counted(loss, outputs, targets)].double().cpu()
            F = torch.cat([F, F.new_ones(len(F), 1)], dim=1) if bias else F
            gram += F.T @ F
            count += len(F)
            by_mode |= depends
    if not count or not gram.isfinite().all():
        msg = "data must have rows that the loss counts, with finite inputs of the head"
        raise ValueError(msg)
    return Head(K, (gram / count).numpy(), bias, Frozen(model, by_mode=by_mode))


class Frozen:
    """Everything of a model that is not trained, which the proof takes for constant."""

    def __init__(self, model: nn.Module, *, by_mode: bool) -> None:
        self._model = model
        self._modes = self._present_modes() if by_mode else None
        self._versions, self._digest = self._present_versions(), digest(*self._tensors())

    def check(self) -> None:
        """Raise RuntimeError where the inputs of the head may have changed since they were measured."""
        if self._modes is not None and self._modes != self._present_modes():
            msg = (
                "modules were put into another mode since L was proved, and the inputs of the head differ there; put "
                "them back, or call compress again"
            )
            raise RuntimeError(msg)
        versions = self._present_versions()
        if versions != self._versions:
            if digest(*self._tensors()) != self._digest:
                msg = "frozen parameters or buffers have changed since L was proved; call compress again"
                raise RuntimeError(msg)
            self._versions = versions

    def _tensors(self) -> list[Tensor]:
        return [p for p in self._model.parameters() if not p.requires_grad] + list(self._model.buffers())

    def _present_versions(self) -> list[tuple[int, int]]:
        return [(id(tensor), tensor._version) for tensor in self._tensors()]

    def _present_modes(self) -> list[bool]:
        return [module.training for module in self._model.modules()]


def _trained_layer(model: nn.Module) -> tuple[str, nn.Linear]:
    """The name and the linear layer that alone is trained, weight and bias; raises ValueError for another model."""
    names = list(trained(model))
    for name, module in model.named_modules():
        own = [name and f"{name}.", *dict(module.named_parameters(recurse=False))]
        if type(module) is nn.Linear and names == [own[0] + one for one in own[1:]] and own[1:2] == ["weight"]:
            return name, module
    msg = f"not exactly the weight and the bias of one nn.Linear are trained, but {', '.join(names)}"
    raise ValueError(msg)


@dataclass(frozen=True, eq=False)
class _Call:
    """What went through a layer in one call of the model: its inputs as rows and its outputs."""

    rows: Tensor
    outputs: Tensor
    is_random: bool


def _call(model: nn.Module, layer: nn.Linear, inputs: Tensor, values: dict[str, Tensor] | None = None) -> _Call:
    """Call the model, with other values of parameters where they are given; raises ValueError unless layer is last."""
    seen: list[tuple[Tensor, Tensor, int]] = []

    def keep(_module: Any, arguments: Any, output: Tensor) -> None:
        seen.extend((one, output, output._version) for one in arguments)

    handle, noise = layer.register_forward_hook(keep), noise_of(inputs)
    try:
        with torch.no_grad():
            out = model(inputs) if values is None else functional_call(model, values, (inputs,))
    finally:
        handle.remove()
    if len(seen) != 1 or seen[0][1] is not out or seen[0][2] != out._version:
        msg = "the outputs of the model are not those of one call of the layer that is trained"
        raise ValueError(msg)
    is_random = any(not torch.equal(a, b) for a, b in zip(noise, noise_of(inputs), strict=True))
    return _Call(seen[0][0].reshape(-1, layer.in_features), out, is_random)


def _constant_rows(model: nn.Module, name: str, layer: nn.Linear, inputs: Tensor) -> tuple[Tensor, Tensor, bool]:
    """The inputs of the layer as rows, its outputs, and whether the rows depend on the modes of the modules.

    Raises ValueError where the rows change from call to call, with the rest of the batch or with the layer's own
    parameters, or where something else is done to its outputs.
    """
    here = _call(model, layer, inputs)
    generator = torch.Generator().manual_seed(0)
    drawn = {one: torch.randn(p.shape, generator=generator).to(p) for one, p in layer.named_parameters()}
    values = {f"{name}.{one}" if name else one: value for one, value in drawn.items()}
    others = inputs[: len(inputs) // 2] if len(inputs) > 1 else torch.cat([inputs, torch.zeros_like(inputs)])
    again = _call(model, layer, others, values)
    common = min(len(here.rows), len(again.rows))
    if here.is_random or not _alike(here.rows[:common], again.rows[:common]):
        msg = (
            "the inputs of the head change from call to call, with the other rows of the batch or with the head, as "
            f"dropout and batch normalisation in training do; {_REMEDY}"
        )
        raise ValueError(msg)
    expected = nn.functional.linear(again.rows, drawn["weight"], drawn.get("bias"))
    if not _alike(again.outputs.reshape(expected.shape), expected):
        msg = "the outputs of the head are changed, by a hook say, before they leave the model"
        raise ValueError(msg)
    return here.rows, here.outputs, _depends_on_mode(model, layer, inputs, here.rows)


def _depends_on_mode(model: nn.Module, layer: nn.Linear, inputs: Tensor, rows: Tensor) -> bool:
    """Whether the inputs of the layer are others when all modules are in the opposite mode."""
    with as_it_was(model, rows):
        for module in model.modules():
            module.training = not module.training
        try:
            there = _call(model, layer, inputs)
        except ValueError:  # batch normalisation needs more than one row in training
            return True
        return there.is_random or not _alike(there.rows, rows)


def _counted(loss: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """Which rows the mean of the loss counts; raises ValueError where K does not bound its Hessian."""
    classes = isinstance(loss, nn.CrossEntropyLoss) and not targets.is_floating_point()
    wanted = outputs.shape[:1] if classes else outputs.shape
    if targets.shape != wanted or (isinstance(loss, nn.CrossEntropyLoss) and outputs.ndim != 2):
        msg = f"the targets of {loss!r} have the shape {tuple(targets.shape)}, outputs {tuple(outputs.shape)}"
        raise ValueError(msg)
    if classes:
        return targets != loss.ignore_index
    if isinstance(loss, nn.CrossEntropyLoss) and (targets.min() < 0.0 or targets.sum(1).max() > 1.0 + 1e-5):
        msg = "targets of cross-entropy that are floats must be distributions over the classes"
        raise ValueError(msg)
    return torch.ones(outputs.numel() // outputs.shape[-1], dtype=torch.bool, device=outputs.device)


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two results of one computation are equal up to rounding, which depends on the size of the batch."""
    unit = float(torch.finfo(a.dtype).eps) ** 0.5
    return a.shape == b.shape and bool((a - b).abs().max() <= unit * a.abs().max())


def noise_of(like: Tensor) -> list[Tensor]:
    """The states of PyTorch's generators, of the CPU and of the device of a tensor."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(like.device)] if like.is_cuda else [])]


def set_noise(states: list[Tensor], like: Tensor) -> None:
    """Put the generators into the states that ``noise_of`` returned."""
    torch.set_rng_state(states[0].cpu())
    for state in states[1:]:
        torch.cuda.set_rng_state(state.cpu(), like.device)


@contextmanager
def as_it_was(model: nn.Module, like: Tensor) -> Iterator[None]:
    """Put back the modes and buffers of a model and the generators, which calls of the model may change."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    modes = {module: module.training for module in model.modules()}
    noise = noise_of(like)
    try:
        yield
    finally:
        set_noise(noise, like)
        for module, training in modes.items():
            module.training = training
        for buffer, value in buffers:
            if not torch.equal(buffer, value):
                buffer.data.copy_(value)
