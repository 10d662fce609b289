"""Error feedback with a measured stepsize, on tensors; ``stepsize_opt.methods.feedback`` has the method."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from stepsize_opt.inputs.checks import check_kind
from stepsize_opt.inputs.matrices import EstimatedSmoothness
from stepsize_opt.methods import FLOOR, Feedback, MeasuredStepsize, exchange
from stepsize_opt.torch.head import as_it_was, noise_of, set_noise, work_dtype
from stepsize_opt.torch.optimizer import Closure, CompressedOptimizer, flat, flat_gradient, write
from stepsize_opt.torch.workers import digest
from stepsize_solvers.programs import Vector


class Basis(Protocol):
    """A d×d matrix A with AAᵀ = L̂⁻¹: ``apply(v)`` is A v, ``transposed(v)`` is Aᵀv."""

    def apply(self, v: Tensor) -> Tensor: ...
    def transposed(self, v: Tensor) -> Tensor: ...


class _NumpyBasis:
    """The basis of a ``Feedback``, by its own products: float64 on the CPU."""

    def __init__(self, feedback: Feedback) -> None:
        self.apply, self.transposed = _on_tensors(feedback.step), _on_tensors(feedback.coefficients)


def _on_tensors(product: Callable[[Vector], Vector]) -> Callable[[Tensor], Tensor]:
    return lambda v: torch.from_numpy(product(v.double().cpu().numpy())).to(v)


class FeedbackSGD(CompressedOptimizer):
    """Error feedback in a basis, with a stepsize that is measured by the loss: k floats per step, nothing to tune.

    All parameters are one vector.  ``step(closure)`` evaluates the loss and its gradient at x and moves on; in every
    second step it evaluates the loss once more, at the point reached, and goes back to the last checked point unless
    the mean loss fell by enough.  The closure returns the loss on all data of this process.  Where it does not call
    ``backward()`` itself, the second call is a forward pass alone.  Nothing else may average gradients: use the model
    itself, or DDP under ``no_sync()``.

    There is no ``lr``, so that PyTorch's schedulers refuse the optimizer: below 0.2 of its stepsize no step would lower
    f by as much as the rule requires.

    Parameters
    ----------
    params : iterable of torch.nn.Parameter
        The parameters, in one group, of one dtype and on one device.
    feedback
        k, rule, places and, unless there is a ``basis``, L; ``clients`` is the number of processes.  An
        ``EstimatedSmoothness`` may be far too small: c then falls with every rejection, without a lower limit.  With
        ``places="shared"`` the messages are an all-reduce of k floats, with ``"own"`` an all-gather.
    basis
        A, on tensors, instead of the basis of ``feedback``, whose products are computed by numpy on the CPU.
    weight_decay
        λ of ½λ‖x‖², which is added to the loss.
    model
        The model: the second call of the closure then leaves its buffers as they were, and a DDP model outside
        ``no_sync()`` raises RuntimeError.
    process_group : torch.distributed.ProcessGroup, optional
        As in DDP; None is the default group, or this process alone.  Or a ``Workers`` of your own.

    Attributes
    ----------
    plan : Plan or None
        What ``compress`` printed.
    stepsize : MeasuredStepsize
        The stepsize ``c``, the ``decrease`` of f that was measured, and the ``status``.
    bound : float
        ‖s‖ + ρ ≥ ‖∇f‖ in the norm of L̂⁻¹ at the last x, infinite while unknown.
    rounds, checks, skipped : int
        Steps; those that evaluated the loss twice; those in which a process had a loss, gradient or message that is not
        finite.  In the last a warning is issued, no change of any process counts, and x is the last checked point.

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
        basis: Basis | None = None,
        weight_decay: float = 0.0,
        model: nn.Module | None = None,
        process_group: Any = None,
    ) -> None:
        check_kind("feedback", feedback, Feedback, " such as Feedback(L, k)")
        super().__init__(params, {"weight_decay": weight_decay}, process_group, model)
        self.plan: Any = None
        self._feedback = feedback
        if feedback.clients != self.workers.size:
            msg = f"feedback has clients={feedback.clients}, but there are {self.workers.size} processes"
            raise ValueError(msg)
        x = self._x
        if feedback.d not in (None, len(x)):
            msg = f"feedback is for d={feedback.d}, but the parameters have {len(x)} entries"
            raise ValueError(msg)
        self._basis = _NumpyBasis(feedback) if basis is None else basis
        self._memory = torch.zeros_like(x, dtype=work_dtype(x))  # eᵢ
        self._s = self._memory.clone()  # the mean of all eᵢ
        self._last = torch.zeros_like(x, dtype=torch.int32)  # the round in which each index was sent
        probe = self._basis.apply(torch.linspace(1.0, 2.0, len(x)).to(self._s))
        agreed = (feedback.k, feedback.rule, feedback.places, self._group["weight_decay"], probe)
        self._identity = {"processes": self.workers.size, "rank": self.workers.rank, "settings": digest(*agreed)}
        self.checks = 0
        self._forget()
        self._start(*agreed)

    def _forget(self) -> None:
        """Begin at the present parameters with nothing remembered."""
        for vector in (self._memory, self._s, self._last):
            vector.zero_()
        self.stepsize = MeasuredStepsize(floor=0.0 if isinstance(self._feedback.L, EstimatedSmoothness) else FLOOR)
        self.rounds, self._residual = 0, math.inf
        # The last checked point, the loss of this process there, and the generators before it was evaluated.
        self._checked, self._value, self._noise = self._x, math.inf, noise_of(self._s)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the group of all parameters, which has no lr."""
        if "lr" in param_group or self.param_groups:
            msg = "FeedbackSGD has one group and no lr: the loss decides on the stepsize of all parameters"
            raise ValueError(msg)
        super().add_param_group(param_group)

    @property
    def _group(self) -> dict[str, Any]:
        return self.param_groups[0]

    @property
    def _x(self) -> Tensor:
        return flat(self._group["params"])

    @property
    def bound(self) -> float:
        return float(self._s.norm()) + self._residual

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:  # type: ignore[override]
        """One round; returns the loss of this process at the x where it began.

        Raises TypeError without a closure, ValueError for a group with an lr, and RuntimeError when a parameter has no
        gradient, or one from before; then nothing has moved.
        """
        if closure is None:
            msg = (
                "FeedbackSGD measures its stepsize by the loss: call optimizer.step(closure) with a function that "
                "returns the loss, such as lambda: loss(model(inputs), targets)"
            )
            raise TypeError(msg)
        if "lr" in self._group:
            msg = "FeedbackSGD has no lr, the loss decides on its stepsize; take the scheduler away"
            raise ValueError(msg)
        noise, x = noise_of(self._s), self._x
        loss, self._forward_only = self.differentiated(closure)
        f, t = loss.item() + self._penalty(), self._basis.transposed(flat_gradient(self._group, self._s.dtype))
        self.zero_grad()
        residual = self._exchange(t, finite=math.isfinite(f))
        if self.stepsize.unchecked == 0.0:  # x is the last checked point
            self._checked, self._value, self._noise = x, f, noise
        if residual is None:
            self._go_back()
            self._skip()
        else:
            self._move(x, closure, residual, float(torch.finfo(loss.dtype).eps))
        self.rounds += 1
        return loss.detach()

    @torch.no_grad()
    def eval(self) -> None:
        """Go back to the last checked point, where the mean loss is the lowest so far; training goes on from there."""
        write(self._group, self._checked)
        self.stepsize.unchecked = 0.0

    def traffic(self) -> tuple[float, float]:
        """Bytes that a process sends and receives per step, on average over the processes and a pair of steps."""
        k, n = self._feedback.k, self.workers.size
        scalars = 8 * (2 if self._feedback.sends_residual else 1)
        values, indices = k * self._checked.element_size(), k * _index_type(len(self._s)).itemsize
        if self._feedback.places == "own":
            return values + indices + scalars, (n - 1) * (values + indices) + scalars
        return values + indices / n + scalars, values + indices * (n - 1) / n + scalars

    # ---------------------------------------------------------------- values of f

    def _value_at_trial(self, closure: Closure) -> float:
        """The loss once more, with the noise of the last checked point; buffers and generators stay as they are."""
        model = nn.Module() if self._model is None else self._model
        with as_it_was(model, self._s), torch.set_grad_enabled(not self._forward_only):
            set_noise(self._noise, self._s)
            value = closure().item()
        self.zero_grad()
        return value + self._penalty()

    def _penalty(self) -> float:
        return 0.5 * self._group["weight_decay"] * float(self._x.double().square().sum())

    # ---------------------------------------------------------------- the message

    def _exchange(self, t: Tensor, *, finite: bool) -> float | None:
        """Send k entries of t − eᵢ, update s, and return this process's part of ρ.

        A process whose loss or t is not finite sends NaN.  Then no change counts on any process, and None is returned.
        """
        own, before = self._feedback.places == "own", self._memory.clone()
        finite = finite and bool(t.isfinite().all())
        indices, values, rest = exchange(
            t if finite else self._memory,
            self._memory,
            self._largest if own else self._shared,
            lambda values: values.to(self._checked.dtype),
        )
        message = values if finite else torch.full_like(values, math.nan)
        if own:
            everybody = [_unpacked(J, len(t)) for J in self.workers.gather(_packed(indices, len(t)))]
            received = self.workers.gather(message)
        else:
            everybody, received = [indices], [self.workers.mean(message.clone())]
        if not all(bool(one.isfinite().all()) for one in received):
            self._memory = before
            return None
        self._last[indices] = self.rounds + 1
        for J, one in zip(everybody, received, strict=True):
            self._s[J] += one.to(self._s.dtype) / len(received)
        if not own:
            return float(rest.norm())
        least = sum(float(one.abs().min()) for one in received) / len(received)
        return self._feedback.residual_bound(least, len(t))

    def _shared(self, sizes: Tensor) -> Tensor:
        """The indices that the process chooses whose turn it is."""
        chooser = self.rounds % self.workers.size
        own = self._largest(sizes) if self.workers.rank == chooser else self._last[: self._feedback.k].long()
        return _unpacked(self.workers.broadcast(_packed(own, len(sizes)), chooser), len(sizes))

    def _largest(self, sizes: Tensor) -> Tensor:
        """The k indices with the largest change, ascending; of equal ones the oldest."""
        k = self._feedback.k
        least = torch.topk(sizes, k, sorted=False).values.min()
        certain, equal = torch.nonzero(sizes > least).flatten(), torch.nonzero(sizes == least).flatten()
        oldest = torch.sort(self._last[equal], stable=True).indices[: k - len(certain)]
        return torch.cat([certain, equal[oldest]]).sort().values

    # ---------------------------------------------------------------- the step

    def _move(self, x: Tensor, closure: Closure, residual: float, unit: float) -> None:
        """Move to y, and in a round that is checked back where f did not fall by enough."""
        write(self._group, x - self.stepsize.c * self._basis.apply(self._s))
        parts = [residual] if self._feedback.sends_residual else []
        checks = self.stepsize.checks
        if checks:
            parts = [self._value, self._value_at_trial(closure), *parts]
        means = self.workers.mean(torch.tensor(parts, dtype=torch.float64, device=self._s.device)).tolist()
        rho = means[-1] if self._feedback.sends_residual else residual
        self._residual = self._feedback.known_residual(rho, self.stepsize.settled, len(x))
        size = float(self._s.norm())
        if not checks:
            self.stepsize.advance(size, self._residual)
            return
        self.checks += 1
        if self.stepsize.accepts(means[0], means[1], size, self._residual, unit):
            self._checked = self._x
        else:
            write(self._group, self._checked)

    def _go_back(self) -> None:
        """Go back to the last checked point; from a point that is not checked as after a check that failed."""
        if self.stepsize.unchecked > 0.0:
            self.stepsize.accepts(0.0, math.inf, float(self._s.norm()), math.inf)
            write(self._group, self._checked)
        self._residual = math.inf

    # ---------------------------------------------------------------- the state

    def _saved(self) -> dict[str, Any]:
        vectors = {"memory": self._memory, "s": self._s, "last": self._last, "checked": self._checked}
        copies = {name: vector.clone() for name, vector in vectors.items()}  # steps change the vectors in place
        counts = {"rounds": self.rounds, "checks": self.checks}
        rest = {"stepsize": asdict(self.stepsize), "residual": self._residual, "value": self._value}
        return {**super()._saved(), **self._identity, **copies, **counts, **rest, "noise": self._noise}

    def _belongs(self, saved: Mapping[str, Any]) -> bool:
        """Return whether a state is of this process, of as many processes, and of this basis; else begin anew."""
        own = all(saved[name] == value for name, value in self._identity.items())
        equal = self.workers.equal(own, saved["rounds"], saved["stepsize"], saved["s"], device=self._s.device)
        if own and equal:
            return True
        warnings.warn(
            "the state is of another process, of another number of processes or of another basis, so that what the "
            "processes remember would not belong together; they begin with nothing remembered. To resume, every "
            "process saves and loads its own state",
            RuntimeWarning,
            stacklevel=3,
        )
        self._forget()
        return False

    def _load(self, saved: Mapping[str, Any]) -> None:
        super()._load(saved)
        for name in ("memory", "s", "last", "checked"):
            getattr(self, f"_{name}").copy_(saved[name])
        self.stepsize = MeasuredStepsize(**saved["stepsize"])
        self.rounds, self.checks = saved["rounds"], saved["checks"]
        self._residual, self._value, self._noise = saved["residual"], saved["value"], saved["noise"]


def _index_type(d: int) -> torch.dtype:
    return torch.int16 if d <= 2**15 else torch.int32


def _packed(indices: Tensor, d: int) -> Tensor:
    """Indices as bytes, which every backend sends."""
    return indices.to(_index_type(d)).view(torch.uint8)


def _unpacked(data: Tensor, d: int) -> Tensor:
    return data.view(_index_type(d)).long()
