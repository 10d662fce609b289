"""Compressed gradients in DistributedDataParallel: every process draws the same sketch and sends k numbers."""

# pyright: reportMissingImports=false
# Without "from __future__ import annotations": DDP looks at the annotations of the hook, which must not be strings.
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stepsize_opt.inputs import whole_number
from stepsize_opt.methods import CompressedStep, Compressor
from stepsize_opt.sketches import Sketch, generators
from stepsize_opt.torch.tensors import as_numpy


class SketchState:
    """What the processes of a run share: the compressor of each parameter, and the random numbers of its draws.

    A *sketch* S for a parameter makes its gradient S∇f, the mean over the processes included: with ``MatrixSGD`` and D
    it is det-CGD1.  A *compressor* makes it the whole step, as ``CompressedStep.of(D, T, "det-CGD2")`` with D before
    the sketch, or the subspace method; then the optimizer is ``MatrixSGD(params, 1.0)``.

    All processes draw from equal generators, so n processes are one node with the mean gradient, and the certificate
    of one node holds: for full gradients, and for the mean of the losses of the processes.  The draws of all parameters
    are made together, in the order of ``model.named_parameters()``: they are those of ``LayerWise`` in
    ``stepsize_validation.run`` with the same seed, and do not depend on how DDP fills its buckets.

    Each backward pass is a round that compresses what ``p.grad`` then holds: accumulate gradients under
    ``ddp.no_sync()``, all but the last, and start each round with ``zero_grad``.

    Parameters
    ----------
    model
        The model, before or after it is wrapped or compiled.
    compressors
        A ``Sketch`` or a ``Compressor`` for the name of each parameter that needs a gradient; ``Identity(d)`` sends
        all of it.
    seed
        A whole number, equal on all processes.  Models that are trained together, each with a state of its own, need
        different ones: with equal seeds their draws are the same, and no longer independent.
    process_group
        As in DDP; None is the default group.

    Attributes
    ----------
    rounds : int
        Backward passes so far.
    numbers_sent : int
        Numbers that this process handed to all-reduce, all rounds together.
    bytes_sent : int
        Their bytes.

    Raises
    ------
    ValueError, TypeError
        For names or sizes that do not match the parameters, or something that is neither a sketch nor a compressor.

    Examples
    --------
    In each process, with ``dist`` for ``torch.distributed``; here there is one process.

    >>> import tempfile, torch, torch.distributed as dist
    >>> from stepsize_opt import RandK
    >>> from stepsize_opt.torch import MatrixSGD, SketchState, sketch_hook
    >>> folder = tempfile.TemporaryDirectory()
    >>> dist.init_process_group("gloo", init_method=f"file://{folder.name}/start", rank=0, world_size=1)
    >>> model = torch.nn.Linear(6, 1, bias=False)
    >>> state = SketchState(model, {"weight": RandK(6, 2)}, seed=0)
    >>> ddp = torch.nn.parallel.DistributedDataParallel(model)
    >>> ddp.register_comm_hook(state, sketch_hook)
    >>> optimizer = MatrixSGD(model.parameters(), 0.1)
    >>> ddp(torch.ones(1, 6)).sum().backward()
    >>> optimizer.step()
    >>> state.rounds, state.numbers_sent, int(model.weight.grad.count_nonzero())
    (1, 2, 2)
    >>> dist.destroy_process_group()
    >>> folder.cleanup()
    """

    def __init__(
        self,
        model: nn.Module,
        compressors: Mapping[str, Sketch | Compressor],
        seed: int = 0,
        process_group: Any = None,
    ) -> None:
        named = {name: p for name, p in _unwrapped(model).named_parameters() if p.requires_grad}
        if set(named) != set(compressors):
            absent, unknown = sorted(set(named) - set(compressors)), sorted(set(compressors) - set(named))
            msg = f"compressors must name every parameter that needs a gradient: missing {absent}, unknown {unknown}"
            raise ValueError(msg)
        self._compressors: dict[str, Compressor] = {}
        for name, p in named.items():
            self._compressors[name] = _compressor(name, compressors[name], p.numel())
        self._names: dict[Tensor, str] = {p: name for name, p in named.items()}
        self._rng = generators(whole_number("seed", seed, low=0), 1)[0]
        self._pending: dict[str, Any] = {}
        self.process_group = process_group
        self.rounds = self.numbers_sent = self.bytes_sent = 0

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers: the state of the generator and the counts.  Between two backward passes."""
        if self._pending:
            msg = f"a backward pass is not complete: {sorted(self._pending)} did not get their gradients"
            raise RuntimeError(msg)
        counts = {name: getattr(self, name) for name in ("rounds", "numbers_sent", "bytes_sent")}
        return {"generator": self._rng.bit_generator.state, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called; the next draws have the same bits."""
        absent = {"generator", "rounds", "numbers_sent", "bytes_sent"} - set(state)
        if absent:
            msg = f"state must be what SketchState.state_dict() returned; it lacks {', '.join(sorted(absent))}"
            raise ValueError(msg)
        self._rng.bit_generator.state = state["generator"]
        self.rounds, self.numbers_sent, self.bytes_sent = (
            int(state[name]) for name in ("rounds", "numbers_sent", "bytes_sent")
        )
        self._pending = {}

    def take(self, parameter: Tensor) -> tuple[Compressor, Any]:
        """The compressor of a parameter and its draw in this round; the first call of a round draws for all of them."""
        name = self._names.get(parameter)
        if name is None:
            msg = "DDP hands over a parameter that the model of this SketchState does not have"
            raise RuntimeError(msg)
        if not self._pending:
            self._pending = {name: one.draw(self._rng) for name, one in self._compressors.items()}
            self.rounds += 1
        if name not in self._pending:
            msg = f"{name} got a second gradient before {sorted(self._pending)} got one: all must be used in each round"
            raise RuntimeError(msg)
        return self._compressors[name], self._pending.pop(name)

    def count(self, message: Tensor) -> None:
        self.numbers_sent += message.numel()
        self.bytes_sent += message.numel() * message.element_size()


def sketch_hook(
    state: SketchState,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # exists where torch is built with distributed
) -> torch.futures.Future[Tensor]:
    """The communication hook: ``ddp.register_comm_hook(state, sketch_hook)``.

    The gradients of a bucket become the means over the processes of what the compressors make of them; only the
    compressors' numbers go through all-reduce.  One call for each parameter: the sums, to the last bit, do not depend
    on which parameters share a bucket, which DDP changes after the first step.

    Examples
    --------
    See ``SketchState``.
    """
    group = state.process_group if state.process_group is not None else dist.group.WORLD
    size = dist.get_world_size(group)
    parts, works = [], []
    parameters, gradients = bucket.parameters(), bucket.gradients()
    if len(parameters) != len(gradients):
        msg = "sketch_hook takes dense gradients; build the embedding with sparse=False"
        raise RuntimeError(msg)
    for parameter, rows in zip(parameters, gradients, strict=True):
        compressor, draw = state.take(parameter)
        gradient = _laid_out_as(parameter, rows)
        numbers = compressor.encode(as_numpy(gradient.reshape(-1)), draw)
        message = torch.from_numpy(np.ascontiguousarray(numbers)).to(gradient)
        state.count(message)
        parts.append((compressor, draw, gradient, message))
        if message.numel():  # the same on all processes
            works.append(dist.all_reduce(message, group=group, async_op=True).get_future())

    def write_back(done: Any) -> Tensor:
        done.value()  # raises what all-reduce raised
        for compressor, draw, gradient, message in parts:
            # DDP leaves the mean to the hook.
            step = compressor.decode(as_numpy(message / size), draw)
            gradient.copy_(torch.from_numpy(np.asarray(step)).view_as(gradient))
        return bucket.buffer()

    return torch.futures.collect_all(works).then(write_back)


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient that a bucket holds, entry by entry as in the parameter.

    DDP gives a gradient the strides of a parameter that fills its memory without gaps (channels last, a transpose), and
    hands it over as if it were stored row by row.
    """
    filled = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size > 1 and stride != filled:
            return gradient
        filled *= size
    return gradient.as_strided(parameter.shape, parameter.stride())


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DDP, DataParallel and ``torch.compile``, in any order."""
    wrapped = isinstance(model, DistributedDataParallel | nn.DataParallel)
    inside: Any = model.module if wrapped else getattr(model, "_orig_mod", None)
    return model if inside is None else _unwrapped(inside)


def _compressor(name: str, value: Any, size: int) -> Compressor:
    compressor = CompressedStep(value) if isinstance(value, Sketch) else value
    if not isinstance(compressor, Compressor):
        msg = f"{name} needs a Sketch such as RandK({size}, k), or an object with d, draw, encode and decode; got "
        raise TypeError(msg + repr(value))
    if compressor.d != size:
        msg = f"the compressor of {name} is for d={compressor.d}, but the parameter has {size} entries"
        raise ValueError(msg)
    return compressor
