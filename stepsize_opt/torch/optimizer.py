"""Optimizers that send k floats per step: every process draws the same places, and one all-reduce averages."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stepsize_opt.inputs import positive_number, real_number, whole_number
from stepsize_opt.methods import Compressor, Momentum, State
from stepsize_opt.sketches import generators
from stepsize_opt.torch.operators import Dense, drawn, operator
from stepsize_opt.torch.workers import Workers

Closure = Callable[[], Any]


class CompressedOptimizer(Optimizer, ABC):
    """What the optimizers here share: groups as vectors, the processes, the bytes, a state that resumes to the bit.

    Attributes
    ----------
    plan
        What ``compress`` printed; None for an optimizer that was made without it.
    bytes_sent, bytes_received : int
        Bytes of the messages of this process in all steps.
    setup_bytes : int
        Bytes that this process sent before the first step.
    """

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], process_group: Any, model: nn.Module | None
    ) -> None:
        self.workers, self._model = Workers.of(process_group), model
        self.plan: Any = None
        self.setup_bytes = 0
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
        group = self.param_groups[-1]
        try:
            _check_group(group)
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    def buffers(self) -> Iterator[Tensor]:
        """The buffers of the model; none where it is not known."""
        return iter(()) if self._model is None else self._model.buffers()

    def refuse_gradients(self) -> None:
        """Raise RuntimeError for gradients from before: those of a closure take their place."""
        if any(p.grad is not None and float(p.grad.abs().sum()) for g in self.param_groups for p in g["params"]):
            msg = (
                "parameters have gradients from before, which a closure would replace; to accumulate gradients add up "
                "the losses inside of the closure, else call optimizer.zero_grad() before step(closure)"
            )
            raise RuntimeError(msg)
        self.zero_grad()

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
        counts = {"sent": self.workers.sent, "received": self.workers.received, "setup": self.setup_bytes}
        return {**super().state_dict(), "compression": {**counts, **self._saved()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned, to the same bits; parameters and data are the caller's."""
        if "compression" not in state_dict:
            msg = f"state_dict must be that of a {type(self).__name__}; it lacks the entry 'compression'"
            raise ValueError(msg)
        super().load_state_dict(dict(state_dict))
        saved = state_dict["compression"]
        self.workers.sent, self.workers.received = saved["sent"], saved["received"]
        self.setup_bytes = saved["setup"]
        self._load(saved)

    @abstractmethod
    def traffic(self) -> tuple[float, float]:
        """Bytes that a process sends and receives per step, on average."""

    @abstractmethod
    def _saved(self) -> dict[str, Any]: ...

    @abstractmethod
    def _load(self, saved: Mapping[str, Any]) -> None: ...


class CompressedSGD(CompressedOptimizer):
    """x⁺ = x − lr·G∇f(x) with a compressor for each group, or the two vectors of momentum.

    A group is one vector: its parameters one after the other, each row by row.  All processes draw the same places, so
    n processes are one node with the mean gradient, and the certificate of one node holds for full gradients: at lr = 1
    what it promises, for lr < 1 at least lr times the decrease.  Nothing else may average gradients: use the model
    itself, or DDP under ``no_sync()``.

    Parameters
    ----------
    params
        Parameters or groups, as in every optimizer of PyTorch.
    compressor
        What the groups use that have no entry ``compressor``: a ``CompressedStep``, the ``SubspaceMethod`` of
        ``optimal_method``, or a result that has ``compressor()``.
    lr
        A factor for schedulers to change.
    weight_decay
        λ of ½λ‖x‖², which is added to the loss before the compression.
    seed
        Seed of the draws, equal on all processes.
    exact
        Whether the step is computed in float64, as proved, whatever the dtype of the parameters; the messages have
        their dtype.
    model
        The model: DDP outside ``no_sync()`` then raises RuntimeError.
    process_group
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
        exact: bool = True,
        model: nn.Module | None = None,
        process_group: Any = None,
    ) -> None:
        self._default, self._exact = compressor, exact
        self._rounds: list[_Round] = []
        self._rng = generators(whole_number("seed", seed, low=0), 1)[0]
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay}, process_group, model)
        self._start(
            seed, exact, [(one.text, one.d, group["lr"], group["weight_decay"]) for one, group in self._pairs()]
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group with its ``compressor``; raises as the constructor."""
        given = {name: value for name, value in param_group.items() if name != "compressor"}
        super().add_param_group(given)
        try:
            size = sum(p.numel() for p in self.param_groups[-1]["params"])
            like = work_tensor(self.param_groups[-1]["params"][0], self._exact)
            self._rounds.append(_Round.of(param_group.get("compressor", self._default), size, like))
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Closure) -> Any: ...
    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step; ``closure`` computes the loss and its gradient, and returns the loss.

        Raises RuntimeError when a parameter has no gradient or a sparse one, or before a closure one from before; then
        no parameter has moved.
        """
        loss = None
        if closure is not None:
            self.refuse_gradients()
            with torch.enable_grad():
                loss = closure()
                differentiate(loss, self.param_groups)
        gradients = [flat_gradient(group, self._rounds[i].like) for i, group in enumerate(self.param_groups)]
        messages = []
        for (one, group), gradient in zip(self._pairs(), gradients, strict=True):
            one.message.redraw(self._rng)
            messages.append(one.message.encode(gradient).to(group["params"][0].dtype))
        for (one, group), mean in zip(self._pairs(), self.workers.means(messages), strict=True):
            one.move(group, mean)
        if closure is not None:
            self.zero_grad()
        return loss

    @torch.no_grad()
    def eval(self) -> None:
        """Put x of a method with momentum into the parameters; without momentum nothing changes."""
        for one, group in self._pairs():
            if one.x is not None:
                write(group, one.x)

    @torch.no_grad()
    def train(self) -> None:
        """Put y of a method with momentum back."""
        for one, group in self._pairs():
            if one.x is not None:
                write(group, one.point(group["lr"]))

    def traffic(self) -> tuple[float, float]:
        """Bytes that a process sends and receives per step, on average."""
        total = sum(one.floats * group["params"][0].element_size() for one, group in self._pairs())
        return total, total

    def _pairs(self) -> Any:
        return zip(self._rounds, self.param_groups, strict=True)

    def _saved(self) -> dict[str, Any]:
        vectors = [{"x": one.x, "z": one.z, "rounds": one.rounds} for one in self._rounds]
        return {"generator": self._rng.bit_generator.state, "groups": vectors}

    def _load(self, saved: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = saved["generator"]
        for one, state in zip(self._rounds, saved["groups"], strict=True):
            one.x, one.z = (None if v is None else v.to(one.like).clone() for v in (state["x"], state["z"]))
            one.rounds = state["rounds"]


class _Sketched:
    """G = A S B of a ``CompressedStep`` on tensors, with the draw of the present step."""

    def __init__(self, compressor: Any, like: Tensor) -> None:
        self._sketch, self._like, factors = compressor.sketch, like, compressor.factors
        self._A, self._B = operator(factors.left, like), operator(factors.right, like)
        self._V = None if compressor.memory is None else operator(compressor.V, like)
        self._twice = compressor.messages == 2

    def redraw(self, rng: Any) -> None:
        self._draw = drawn(self._sketch.draw(rng), self._like)

    def encode(self, gradient: Tensor) -> Tensor:
        """The numbers to send."""
        numbers = self._draw.encode(self._B.apply(gradient))
        return torch.cat([numbers, self._draw.encode(gradient)]) if self._twice else numbers

    def step(self, numbers: Tensor) -> Tensor:
        """G∇f."""
        own = torch.chunk(numbers, 2)[0] if self._twice else numbers
        return self._A.apply(self._draw.decode(own))

    def along(self, numbers: Tensor) -> Tensor:
        """VS∇f, for momentum."""
        assert self._V is not None
        own = torch.chunk(numbers, 2)[1] if self._twice else numbers
        return self._V.apply(self._draw.decode(own))


class _Directions:
    """G = A_J A_Jᵀ of the subspace method on tensors, with the J of the present step."""

    def __init__(self, method: Any, like: Tensor) -> None:
        self._method, self._like, self._A = method, like, operator(method.directions, like)
        self._weights = None if method.weights is None else torch.as_tensor(method.weights.copy()).to(like)

    def redraw(self, rng: Any) -> None:
        self._places = torch.from_numpy(self._method.draw(rng)).to(self._like.device)
        self._columns = self._A.some(self._places) if isinstance(self._A, Dense) else None

    def encode(self, gradient: Tensor) -> Tensor:
        """The numbers to send, A_Jᵀg."""
        if self._columns is not None:
            return self._columns.transposed(gradient)
        return self._A.transposed(gradient)[self._places]

    def step(self, numbers: Tensor) -> Tensor:
        """G∇f."""
        if self._columns is not None:
            return self._columns.apply(numbers)
        whole = numbers.new_zeros(self._method.d)
        whole[self._places] = numbers
        return self._A.apply(whole)

    def along(self, numbers: Tensor) -> Tensor:
        """VS∇f, for momentum."""
        assert self._weights is not None
        return self.step(numbers * self._weights[self._places])


class _Round:
    """The compressor of one group and, with momentum, its vectors x and z."""

    def __init__(self, compressor: Any, like: Tensor) -> None:
        self.like, self.d = like, int(compressor.d)
        self._momentum: Momentum | None = compressor.memory
        message = _Directions if hasattr(compressor, "directions") else _Sketched
        self.message: _Directions | _Sketched = message(compressor, like)
        self.floats = compressor.messages * float(compressor.sketch.expected_nonzeros)
        self.text = f"{type(compressor).__name__} {self.d} {self.floats}"
        self.x: Tensor | None = None
        self.z: Tensor | None = None
        self.rounds = 0

    @staticmethod
    def of(value: Any, size: int, like: Tensor) -> _Round:
        """Read what a user gave; raises TypeError or ValueError."""
        compressor = value.compressor() if hasattr(value, "compressor") else value
        if not isinstance(compressor, Compressor):
            msg = (
                "compressor must be a CompressedStep, the method of optimal_method or a result with compressor(), "
                f"got {value!r}; for a sketch and a stepsize D it is CompressedStep.of(D, sketch)"
            )
            raise TypeError(msg)
        if compressor.d != size:
            msg = f"compressor is for d={compressor.d}, but the parameters of its group have {size} entries"
            raise ValueError(msg)
        return _Round(compressor, like)

    def move(self, group: dict[str, Any], mean: Tensor) -> None:
        """Make the step of the mean message."""
        numbers, lr = mean.to(self.like.dtype), float(group["lr"])
        if self._momentum is None:
            subtract(group, flat(group["params"]), self.message.step(numbers), lr)
            return
        if self.x is None or self.z is None:
            self.x = self.z = flat(group["params"]).to(self.like.dtype)
        step: Any = lr * self.message.step(numbers)  # the rule adds and multiplies, arrays or tensors
        along: Any = self.message.along(numbers)
        state: Any = self._rule(lr).moved(self._state, step, along)
        self.x, self.z, self.rounds = state.x, state.z, state.rounds
        write(group, self.point(lr))

    def point(self, lr: float) -> Tensor:
        """y, where the next gradient is evaluated."""
        y: Any = self._rule(lr).point(self._state)
        return y

    @property
    def _state(self) -> Any:
        x: Any = self.x
        return State(x, self.z, self.rounds)

    def _rule(self, lr: float) -> Momentum:
        """Momentum with t√lr, which satisfies its condition: the descent metric of lr·G is at least lr that of G."""
        assert self._momentum is not None
        return replace(self._momentum, t=self._momentum.t * math.sqrt(lr))


# ---------------------------------------------------------------- groups as vectors


def flat_gradient(group: dict[str, Any], like: Tensor) -> Tensor:
    """The gradient of the loss and of ½λ‖x‖² as one vector with the dtype of ``like``; raises RuntimeError."""
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
    g = torch.cat([p.grad.reshape(-1) for p in params]).to(like.dtype)
    decay = group["weight_decay"]
    return g + decay * flat(params).to(like.dtype) if decay else g


def flat(params: Sequence[Tensor]) -> Tensor:
    """The parameters as one vector, a copy."""
    return torch.cat([p.detach().reshape(-1) for p in params])


def write(group: dict[str, Any], x: Tensor) -> None:
    """Put a vector into the parameters of a group."""
    for p, part in zip(group["params"], torch.split(x, [p.numel() for p in group["params"]]), strict=True):
        p.copy_(part.view_as(p))


def subtract(group: dict[str, Any], x: Tensor, step: Tensor, factor: float) -> None:
    """Put x − factor·step into the parameters of a group."""
    sizes = [p.numel() for p in group["params"]]
    for p, start, part in zip(group["params"], torch.split(x, sizes), torch.split(step, sizes), strict=True):
        # Not through temporaries, which cost more than the subtraction: their memory is new each time.
        torch.sub(start.view_as(p), part.view_as(p).to(p.dtype), alpha=factor, out=p.data)


def differentiate(loss: Any, groups: Sequence[dict[str, Any]]) -> bool:
    """Call backward() for a closure that left it to the optimizer: no parameter has a gradient; returns which."""
    left = all(p.grad is None for group in groups for p in group["params"])
    if left:
        loss.backward()
    return left


def _refuse_averages(module: Any, _inputs: Any) -> None:
    if torch.is_grad_enabled() and module.require_backward_grad_sync:
        msg = (
            "DDP would average dense gradients over the processes: call the model and backward() under model.no_sync()"
        )
        raise RuntimeError(msg)


def work_tensor(p: Tensor, exact: bool = False) -> Tensor:
    """An empty tensor with the device and the dtype of the computation: float64, or at least float32."""
    wide = torch.float64 if exact else torch.promote_types(p.dtype, torch.float32)
    return torch.empty(0, dtype=wide, device=p.device)


def _check_group(group: dict[str, Any]) -> None:
    like = group["params"][0]
    if any(p.dtype != like.dtype or p.device != like.device for p in group["params"]) or not like.is_floating_point():
        msg = "the parameters of a group must have one floating dtype and one device; make several groups"
        raise ValueError(msg)
    if "lr" in group:
        positive_number("lr", group["lr"])
    if not real_number("weight_decay", group["weight_decay"]) >= 0.0:
        msg = f"weight_decay must be 0 or more, got {group['weight_decay']!r}"
        raise ValueError(msg)
