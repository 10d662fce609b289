"""Error feedback with a measured stepsize, on tensors; ``stepsize_opt.methods.feedback`` has the method."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepsize_opt.inputs import EstimatedSmoothness, check_kind
from stepsize_opt.methods import FLOOR, Feedback, MeasuredStepsize
from stepsize_opt.torch.operators import Blocks, Operator, Scaled, operator
from stepsize_opt.torch.optimizer import (
    Closure,
    CompressedOptimizer,
    differentiate,
    flat,
    flat_gradient,
    subtract,
    work_tensor,
    write,
)

# Every entry of the sample from which the size of the k-th largest change is guessed stands for so many.
_STRIDE = 64


class FeedbackSGD(CompressedOptimizer):
    """Error feedback in a basis, with a stepsize that is measured by the loss: k floats per step, nothing to tune.

    All groups are one vector.  ``step(closure)`` evaluates the loss at x, with its gradient, and at the trial point y;
    x moves to y where the mean loss falls by enough.  The closure returns the loss on all data of this process.  Where
    it does not call ``backward()`` itself, the second call is a forward pass alone.  Nothing else may average
    gradients: use the model itself, or DDP under ``no_sync()``.

    There is no ``lr``, so that PyTorch's schedulers refuse the optimizer: below 0.2 of its stepsize no step would lower
    f by as much as the rule requires.

    Parameters
    ----------
    params
        Parameters or groups, as in every optimizer of PyTorch; all of one dtype and device.
    feedback
        k, rule, places and, unless there is a ``basis``, L; ``clients`` is the number of processes.  An
        ``EstimatedSmoothness`` may be far too small: c then falls with every rejection, without a lower limit.  With
        ``places="shared"`` the messages are an all-reduce of k floats, with ``"own"`` an all-gather.
    basis
        A, an operator on tensors, in place of the basis of ``feedback``.
    weight_decay
        λ of ½λ‖x‖², which is added to the loss.
    process_group
        As in DDP; None is the default group, or this process alone.  Or a ``Workers`` of your own.

    Attributes
    ----------
    stepsize : MeasuredStepsize
        The stepsize ``c``, the ``decrease`` of f that was measured, and the ``status``.
    bound : float
        ‖s‖ + ρ ≥ ‖∇f‖ in the norm of L̂⁻¹ at the last x, infinite while unknown.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt import Feedback
    >>> from stepsize_opt.torch import FeedbackSGD
    >>> x = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = FeedbackSGD([x], Feedback([[1.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 9.0]], 1))
    >>> for _ in range(20):
    ...     loss = optimizer.step(lambda: 0.5 * (x * x * torch.tensor([1.0, 4.0, 9.0])).sum())
    >>> bool(loss < 1e-3)
    True
    """

    def __init__(
        self,
        params: Iterable[Any],
        feedback: Feedback,
        *,
        basis: Operator | None = None,
        weight_decay: float = 0.0,
        process_group: Any = None,
    ) -> None:
        check_kind("feedback", feedback, Feedback, " such as Feedback(L, k)")
        super().__init__(params, {"weight_decay": weight_decay}, process_group)
        self._feedback = feedback
        if feedback.clients != self.workers.size:
            msg = f"feedback has clients={feedback.clients}, but there are {self.workers.size} processes"
            raise ValueError(msg)
        x = flat(self._params)
        if feedback.d not in (None, len(x)):
            msg = f"feedback is for d={feedback.d}, but the parameters have {len(x)} entries"
            raise ValueError(msg)
        like = work_tensor(x)
        self._basis = _basis_of(feedback, like) if basis is None else basis
        self._memory, self._s = like.new_zeros(len(x)), like.new_zeros(len(x))  # eᵢ and the mean of all eᵢ
        self._last = torch.zeros(len(x), dtype=torch.int32, device=x.device)  # the round in which each place was sent
        self._forward_only = False
        self.stepsize = MeasuredStepsize(floor=0.0 if isinstance(feedback.L, EstimatedSmoothness) else FLOOR)
        self.rounds, self._residual = 0, math.inf
        probe = self._basis.apply(torch.linspace(1.0, 2.0, len(x)).to(like)) if self.workers.size > 1 else None
        self._start(feedback.k, feedback.rule, feedback.places, [g["weight_decay"] for g in self.param_groups], probe)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group before the first step; it has no lr."""
        if "lr" in param_group or hasattr(self, "stepsize"):
            msg = "groups of FeedbackSGD are given at the start and have no lr: the loss decides on the stepsize"
            raise ValueError(msg)
        super().add_param_group(param_group)

    @property
    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @property
    def bound(self) -> float:
        return float(self._s.norm()) + self._residual

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override]
        """One round; returns the loss of this process at the x where it began.

        Raises TypeError without a closure, and RuntimeError when a parameter has no gradient; then nothing has moved.
        """
        if closure is None:
            msg = (
                "FeedbackSGD measures its stepsize by the loss: call optimizer.step(closure) with a function that "
                "returns the loss, such as lambda: loss(model(inputs), targets)"
            )
            raise TypeError(msg)
        if any("lr" in group for group in self.param_groups):
            msg = "FeedbackSGD has no lr, the loss decides on its stepsize; take the scheduler away"
            raise ValueError(msg)
        x = [flat(group["params"]) for group in self.param_groups]
        with _same_noise_twice(x[0]) as again:
            loss, f = self._value_and_gradient(closure)
            gradient = torch.cat([flat_gradient(group, self._memory) for group in self.param_groups])
            residual = self._exchange(self._basis.transposed(gradient))
            self._propose(x)
            again()
            value = self._value(closure)
        if not self._accepts(f, value, residual, float(torch.finfo(loss.dtype).eps)):
            for group, start in zip(self.param_groups, x, strict=True):
                write(group, start)
        return loss

    def traffic(self) -> tuple[float, float]:
        """Bytes that a process sends and receives per step, on average over the choosers of shared places."""
        k, n, scalars = self._feedback.k, self.workers.size, 8 * (3 if self._feedback.sends_residual else 2)
        values = k * self._params[0].element_size()
        places = k * (2 if len(self._s) <= 2**15 else 4)
        if self._feedback.places == "own":
            return values + places + scalars, (n - 1) * (values + places) + scalars
        return values + places / n + scalars, values + places * (n - 1) / n + scalars

    # ---------------------------------------------------------------- values of f

    def _value_and_gradient(self, closure: Closure) -> tuple[Tensor, float]:
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
            self._forward_only = differentiate(loss, self.param_groups)
        return loss.detach(), loss.item() + self._penalty()

    def _value(self, closure: Closure) -> float:
        with torch.set_grad_enabled(not self._forward_only):
            value = closure().item()
        return value + self._penalty()

    def _penalty(self) -> float:
        total = 0.0
        for group in self.param_groups:
            if group["weight_decay"]:
                squares = sum(float(p.detach().double().square().sum()) for p in group["params"])
                total += 0.5 * group["weight_decay"] * squares
        return total

    # ---------------------------------------------------------------- the message

    def _exchange(self, t: Tensor) -> float:
        """Send k entries of t − eᵢ, update s, and return this process's part of ρ; t is overwritten."""
        dtype = self._params[0].dtype
        change = t.sub_(self._memory)
        if self._feedback.places == "own":
            places = self._largest(change.abs())
            values = change[places].to(dtype)
            self._remember(places, values, change)
            everybody = self.workers.gather(_packed(places, len(t)))
            gathered = self.workers.gather(values)
            for J, received in zip(everybody, gathered, strict=True):
                self._s[_unpacked(J, len(t))] += received.to(self._s.dtype) / len(gathered)
            least = sum(float(received.abs().min()) for received in gathered) / len(gathered)
            return math.sqrt(len(t) - self._feedback.k) * least
        chooser = self.rounds % self.workers.size
        here = self.workers.rank == chooser
        chosen = self._largest(change.abs()) if here else self._last[: self._feedback.k].long()
        places = _unpacked(self.workers.broadcast(_packed(chosen, len(t)), chooser), len(t))
        values = change[places].to(dtype)
        self._remember(places, values, change)
        self._s[places] += self.workers.mean(values).to(self._s.dtype)
        change[places] = 0.0
        return float(change.norm())

    def _remember(self, places: Tensor, values: Tensor, change: Tensor) -> None:
        self._memory[places] += values.to(change.dtype)
        self._last[places] = self.rounds + 1

    def _largest(self, sizes: Tensor) -> Tensor:
        """The k places with the largest change, ascending; of equal ones the oldest."""
        k = self._feedback.k
        candidates = _above(sizes, k)
        some = sizes[candidates]
        top = torch.topk(some, k)
        least = top.values[-1].item()
        places = candidates[some >= least]
        if len(places) < k:  # some are NaN
            places = candidates[top.indices].sort().values
        elif len(places) > k:
            equal = candidates[some == least]
            oldest = torch.sort(self._last[equal], stable=True).indices
            certain = candidates[some > least]
            places = torch.cat([certain, equal[oldest[: k - len(certain)]]]).sort().values
        return places

    # ---------------------------------------------------------------- the step

    def _propose(self, x: list[Tensor]) -> None:
        step = torch.split(self._basis.apply(self._s), [len(part) for part in x])
        for group, start, part in zip(self.param_groups, x, step, strict=True):
            subtract(group, start, part, self.stepsize.c)

    def _accepts(self, f: float, value: float, residual: float, unit: float) -> bool:
        """Whether x moves to y, by the means over the processes."""
        numbers = [f, value, residual] if self._feedback.sends_residual else [f, value]
        means = self.workers.mean(torch.tensor(numbers, dtype=torch.float64, device=self._s.device)).tolist()
        self._residual = self._known(means[2] if self._feedback.sends_residual else residual)
        self.rounds += 1
        return self.stepsize.accepts(means[0], means[1], float(self._s.norm()), self._residual, unit)

    def _known(self, residual: float) -> float:
        """ρ: 0 when every place was sent since x moved, infinite where nothing bounds it."""
        if (self.stepsize.settled + 1) * self._feedback.k >= len(self._s):
            return 0.0
        return math.inf if self._feedback.rule == "measured" else residual

    # ---------------------------------------------------------------- the state

    def _saved(self) -> dict[str, Any]:
        vectors = {"memory": self._memory, "s": self._s, "last": self._last}
        return {**vectors, "stepsize": asdict(self.stepsize), "rounds": self.rounds, "residual": self._residual}

    def _load(self, saved: Mapping[str, Any]) -> None:
        for name in ("memory", "s", "last"):
            getattr(self, f"_{name}").copy_(saved[name])
        self.stepsize = MeasuredStepsize(**saved["stepsize"])
        self.rounds, self._residual = saved["rounds"], saved["residual"]


def _basis_of(feedback: Feedback, like: Tensor) -> Operator:
    parts = feedback.directions
    return Blocks([operator(A, like) for A in parts], [A.shape[0] for A in parts]) if parts else Scaled(1.0)


def _above(sizes: Tensor, k: int) -> Tensor:
    """Places among which the k largest are, and few others: a threshold from a sample, as topk of all is slow."""
    sample = sizes[::_STRIDE]
    wanted = k // _STRIDE + k // (4 * _STRIDE) + 16
    if wanted >= len(sample):
        return torch.arange(len(sizes), device=sizes.device)
    least = torch.topk(sample, wanted).values[-1].item()
    if sizes.is_cpu:  # where numpy takes a tenth of the time
        places = torch.from_numpy(np.flatnonzero(sizes.numpy() >= least))
    else:
        places = torch.nonzero(sizes >= least).flatten()
    return places if len(places) >= k else torch.arange(len(sizes), device=sizes.device)


def _packed(places: Tensor, d: int) -> Tensor:
    """Places as bytes, 2 each for d ≤ 32768 and else 4, which every backend sends."""
    return places.to(torch.int16 if d <= 2**15 else torch.int32).view(torch.uint8)


def _unpacked(data: Tensor, d: int) -> Tensor:
    return data.view(torch.int16 if d <= 2**15 else torch.int32).long()


@contextmanager
def _same_noise_twice(x: Tensor) -> Iterator[Any]:
    """Hand over a function that puts PyTorch's generators back, so that dropout is the same at x and at y."""
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(x.device) if x.is_cuda else None

    def again() -> None:
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, x.device)

    yield again
