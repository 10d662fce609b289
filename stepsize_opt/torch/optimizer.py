"""Optimizers that send k floats per step: every process draws the same indices, and one all-reduce averages."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stepsize_opt.inputs.checks import positive_number, real_number, whole_number
from stepsize_opt.methods import Compressor, Momentum, State, read_compressor
from stepsize_opt.sketches.draws import generators
from stepsize_opt.torch.workers import Workers
from stepsize_solvers.programs import Vector

Closure = Callable[[], Any]


class CompressedOptimizer(Optimizer):
    """What the optimizers here share: groups as vectors, the processes, the bytes, a state that resumes to the bit.

    Attributes
    ----------
    bytes_sent, bytes_received : int
        Bytes of the messages of this process in all steps.
    setup_bytes : int
        Bytes that this process sent before the first step.
    skipped : int
        Steps that moved nothing, because a message of a process was not finite; a warning is issued in each.
    """

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], process_group: Any, model: nn.Module | None
    ) -> None:
        self.workers, self._model = Workers.of(process_group), model
        self.setup_bytes = self.skipped = 0
        super().__init__(params, defaults)
        for module in [] if model is None else model.modules():
            if isinstance(module, DistributedDataParallel):
                weakref.finalize(self, module.register_forward_pre_hook(_refuse_averages).remove)

    @property
    def bytes_sent(self) -> int:
        return self.workers.sent

    @property
    def bytes_received(self) -> int:
        return self.workers.received

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; its parameters need one floating dtype and one device, and lr and weight_decay are checked."""
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise ValueError or TypeError for a group that is not as described."""
        like = group["params"][0]
        if any(p.dtype != like.dtype or p.device != like.device for p in group["params"]):
            msg = "the parameters of a group must have one floating dtype and one device; make several groups"
            raise ValueError(msg)
        if not like.is_floating_point():
            msg = f"the parameters of a group must have a floating dtype, got {like.dtype}"
            raise ValueError(msg)
        if not real_number("weight_decay", group["weight_decay"]) >= 0.0:
            msg = f"weight_decay must be 0 or more, got {group['weight_decay']!r}"
            raise ValueError(msg)

    def differentiated(self, closure: Closure) -> tuple[Any, bool]:
        """Call the closure; return the loss, and whether ``backward()`` was left to the optimizer.

        Raises RuntimeError for gradients from before.
        """
        parameters = [p for group in self.param_groups for p in group["params"]]
        if any(p.grad is not None and bool(p.grad.any()) for p in parameters):
            msg = (
                "parameters have gradients from before, which a closure would replace; to accumulate gradients add up "
                "the losses inside of the closure, else call optimizer.zero_grad() before step(closure)"
            )
            raise RuntimeError(msg)
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
            left = all(p.grad is None for p in parameters)
            if left:
                loss.backward()
        return loss, left

    def _skip(self) -> None:
        """Count a step in which no message counts."""
        self.skipped += 1
        warnings.warn(
            "the loss, the gradient or the message of a process is not finite; no change counts "
            f"({self.skipped} such steps)",
            RuntimeWarning,
            stacklevel=5,  # the line that called step, which PyTorch wraps twice
        )

    def _start(self, *agreed: Any) -> None:
        """Compare what has to be equal on all processes, and give all of them the parameters of the first."""
        device = self.param_groups[0]["params"][0].device
        if not self.workers.equal(*agreed, device=device):
            msg = (
                "the processes were started with different arguments (seed, compressor, k, lr or weight_decay), so "
                "that their parameters would drift apart; pass the same on every process"
            )
            raise ValueError(msg)
        parameters = [p for group in self.param_groups for p in group["params"]]
        if not self.workers.equal(*parameters, device=device):
            for p in parameters:
                self.workers.broadcast(p.data, 0)
        self.setup_bytes = self.workers.sent
        self.workers.sent = self.workers.received = 0

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers, which ``torch.load(…, weights_only=True)`` reads."""
        return {**super().state_dict(), "compression": self._saved()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned, to the same bits; parameters and data are the caller's.

        Raises ValueError for the state of another class of optimizers.
        """
        saved = state_dict.get("compression", {})
        if saved.keys() != self._saved().keys():
            msg = f"state_dict must be that of a {type(self).__name__}"
            raise ValueError(msg)
        if self._belongs(saved):
            super().load_state_dict(dict(state_dict))
            self._load(saved)

    def _belongs(self, _saved: Mapping[str, Any]) -> bool:
        """Return whether a state may be continued here."""
        return True

    def _saved(self) -> dict[str, Any]:
        sent = {"sent": self.workers.sent, "received": self.workers.received, "setup": self.setup_bytes}
        return {**sent, "skipped": self.skipped}

    def _load(self, saved: Mapping[str, Any]) -> None:
        self.workers.sent, self.workers.received = saved["sent"], saved["received"]
        self.setup_bytes, self.skipped = saved["setup"], saved["skipped"]


class CompressedSGD(CompressedOptimizer):
    """x⁺ = x − lr·G∇f(x) with a compressor for each group, or the two vectors of momentum.

    A group is one vector: its parameters one after the other, each row by row.  All processes draw the same indices, so
    n processes are one node with the mean gradient, and the certificate of one node holds for full gradients: at lr = 1
    what it promises, for lr < 1 at least lr times the decrease.  The step is computed by the compressor itself, in
    float64 on the CPU; messages have the dtype of the parameters.  Nothing else may average gradients: use the model
    itself, or DDP under ``no_sync()``.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter or dict
        Parameters or groups, as in every optimizer of PyTorch.
    compressor : CompressedStep, SubspaceMethod or StepsizeResult, optional
        What the groups use that have no entry ``compressor``: a ``CompressedStep``, the ``SubspaceMethod`` of
        ``optimal_method``, or a result that has ``compressor()``.
    lr
        A factor for schedulers to change.
    weight_decay
        λ of ½λ‖x‖², which is added to the loss before the compression.
    seed
        Seed of the draws, equal on all processes.
    model
        The model: DDP outside ``no_sync()`` then raises RuntimeError.
    process_group : torch.distributed.ProcessGroup, optional
        As in DDP; None is the default group, or this process alone.  Or a ``Workers`` of your own.

    Raises
    ------
    ValueError, TypeError
        For a compressor of another size, arguments that differ between the processes, and as described.

    Notes
    -----
    With momentum the parameters are y, where the gradient belongs, between the steps.  ``eval()`` puts x there, which
    the theorem is about, and ``train()`` puts y back.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> from stepsize_opt.torch import CompressedSGD
    >>> x = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
    >>> optimizer = CompressedSGD([x], optimal_stepsize([2.0, 2.0, 2.0, 2.0] * torch.eye(4).numpy(), RandK(4, 2)))
    >>> x.square().sum().backward()
    >>> optimizer.step()
    >>> x.tolist().count(1.0), optimizer.bytes_sent
    (2, 16)
    """

    def __init__(
        self,
        params: Iterable[Any],
        compressor: Any = None,
        *,
        lr: float = 1.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        model: nn.Module | None = None,
        process_group: Any = None,
    ) -> None:
        self._default = compressor
        self._compressors: list[Compressor] = []
        self._states: list[State | None] = []  # x and z of a group with momentum, from its first step on
        self._rng = generators(whole_number("seed", seed, low=0), 1)[0]
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay}, process_group, model)
        kinds = [(type(one).__name__, one.d, one.messages, one.sketch.expected_nonzeros) for one in self._compressors]
        self._start(seed, kinds, [(group["lr"], group["weight_decay"]) for group in self.param_groups])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its ``compressor``; raises as the constructor."""
        group = dict(param_group)
        compressor = read_compressor(group.pop("compressor", self._default))
        super().add_param_group(group)
        size = sum(p.numel() for p in self.param_groups[-1]["params"])
        if compressor.d != size:
            del self.param_groups[-1]
            msg = f"compressor is for d={compressor.d}, but the parameters of its group have {size} entries"
            raise ValueError(msg)
        self._compressors.append(compressor)
        self._states.append(None)

    def _check_group(self, group: dict[str, Any]) -> None:
        super()._check_group(group)
        positive_number("lr", group["lr"])

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override]
        """One step; ``closure`` computes the loss and its gradient, and returns the loss.

        Where a gradient is not finite on one process, nothing moves on any, and a warning is issued.

        Raises RuntimeError when a parameter has no gradient or a sparse one, or before a closure one from before; then
        no parameter has moved.
        """
        loss = None if closure is None else self.differentiated(closure)[0]
        gradients = [_array(flat_gradient(group, torch.float64)) for group in self.param_groups]
        draws = [one.draw(self._rng) for one in self._compressors]
        messages = [
            torch.from_numpy(one.encode(gradient, draw)).to(group["params"][0])
            for one, group, gradient, draw in zip(self._compressors, self.param_groups, gradients, draws, strict=True)
        ]
        means = self.workers.means(messages)
        if all(bool(mean.isfinite().all()) for mean in means):
            for i, mean in enumerate(means):
                self._move(i, *self._compressors[i].updates(_array(mean), draws[i]))
        else:
            self._skip()
        if closure is not None:
            self.zero_grad()
        return loss

    def _move(self, i: int, step: Vector, along: Vector | None) -> None:
        """Put x − lr·G∇f into a group, or y with momentum."""
        group, lr = self.param_groups[i], float(self.param_groups[i]["lr"])
        x, rule = _array(flat(group["params"])), self._rule(i)
        if rule is None or along is None:
            write(group, torch.from_numpy(x - lr * step))
            return
        state = rule.moved(self._states[i] or State(x, x), lr * step, along)
        self._states[i] = state
        write(group, torch.from_numpy(rule.point(state)))

    def _rule(self, i: int) -> Momentum | None:
        """Momentum with t√lr, which satisfies its condition: the descent metric of lr·G is at least lr that of G."""
        rule = self._compressors[i].memory
        return None if rule is None else replace(rule, t=rule.t * math.sqrt(self.param_groups[i]["lr"]))

    @torch.no_grad()
    def eval(self) -> None:
        """Put x of a method with momentum into the parameters; without momentum nothing changes."""
        for group, state in zip(self.param_groups, self._states, strict=True):
            if state is not None:
                write(group, torch.from_numpy(state.x))

    @torch.no_grad()
    def train(self) -> None:
        """Put y of a method with momentum back."""
        for i, state in enumerate(self._states):
            rule = self._rule(i)
            if state is not None and rule is not None:
                write(self.param_groups[i], torch.from_numpy(rule.point(state)))

    def _saved(self) -> dict[str, Any]:
        states = [
            None if one is None else (torch.from_numpy(one.x), torch.from_numpy(one.z), one.rounds)
            for one in self._states
        ]
        return {**super()._saved(), "generator": self._rng.bit_generator.state, "groups": states}

    def _load(self, saved: Mapping[str, Any]) -> None:
        super()._load(saved)
        self._rng.bit_generator.state = saved["generator"]
        self._states = [
            None if one is None else State(_array(one[0]).copy(), _array(one[1]).copy(), one[2])
            for one in saved["groups"]
        ]


# ---------------------------------------------------------------- groups as vectors


def flat_gradient(group: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """The gradient of the loss and of ½λ‖x‖² as one vector of this dtype; raises RuntimeError."""
    params = group["params"]
    missing = [i for i, p in enumerate(params) if p.grad is None]
    if missing:
        msg = (
            f"{len(missing)} of the {len(params)} parameters of a group have no gradient (the first is number "
            f"{missing[0]}, shape {tuple(params[missing[0]].shape)}); call backward() first, and leave out parameters "
            "that the loss does not use"
        )
        raise RuntimeError(msg)
    if any(p.grad.is_sparse for p in params):
        msg = "a gradient is sparse, and only dense ones are compressed; build the embedding with sparse=False"
        raise RuntimeError(msg)
    return torch.cat([p.grad.reshape(-1) for p in params]).to(dtype) + group["weight_decay"] * flat(params).to(dtype)


def flat(params: Sequence[Tensor]) -> Tensor:
    """The parameters as one vector, a copy."""
    return torch.cat([p.detach().reshape(-1) for p in params])


def write(group: dict[str, Any], x: Tensor) -> None:
    """Put a vector into the parameters of a group."""
    for p, part in zip(group["params"], torch.split(x, [p.numel() for p in group["params"]]), strict=True):
        p.copy_(part.view_as(p))


def _array(x: Tensor) -> Vector:
    return x.double().cpu().numpy()


def _refuse_averages(module: Any, _inputs: Any) -> None:
    if torch.is_grad_enabled() and module.require_backward_grad_sync:
        msg = (
            "DDP would average dense gradients over the processes: call the model and backward() under model.no_sync()"
        )
        raise RuntimeError(msg)
