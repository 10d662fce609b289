"""From a model to an optimizer that sends k floats per step, with a plan of what is sent and what is proved."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from stepsize_opt.inputs import check_one_of, real_number, whole_number
from stepsize_opt.methods import Feedback
from stepsize_opt.torch.curvature import Layer, is_dear, low_rank
from stepsize_opt.torch.feedback import FeedbackSGD
from stepsize_opt.torch.head import Batches, Frozen, find_head, trainable, unwrapped
from stepsize_opt.torch.operators import Operator, Scaled, operator
from stepsize_opt.torch.optimizer import work_tensor
from stepsize_opt.torch.workers import Workers

CURVATURES = ("auto", "low-rank", "none")


@dataclass(frozen=True)
class Plan:
    """What an optimizer of ``compress`` sends, and where its L̂ comes from; ``print(plan)`` shows it.

    Attributes
    ----------
    layers : tuple of Layer
        Parameters that share a part of L̂: their names, number, the source of L̂, and whether that is proved.
    d, k, workers : int
        Parameters, entries that are sent per step, processes.
    bytes_up, bytes_down : float
        Bytes that a process sends and receives per step, on average, places and values of f included.
    setup_bytes : int
        Bytes that this process sent before the first step.
    float_bytes : int
        Bytes of one float of the parameters.
    """

    layers: tuple[Layer, ...]
    d: int
    k: int
    workers: int
    bytes_up: float
    bytes_down: float
    setup_bytes: int
    float_bytes: int

    @property
    def certified(self) -> bool:
        """Whether L̂ is proved to be a bound, so that the guarantee of the method holds for full gradients."""
        return all(layer.certified for layer in self.layers)

    def __str__(self) -> str:
        unit = self.float_bytes
        dense = self.d * unit
        width = max(len(layer.names) for layer in self.layers)
        processes = "1 process" if self.workers == 1 else f"{self.workers} processes"
        lines = [f"feedback: {self.k} of {self.d} entries per step, {processes}"]
        lines += [f"  {one.names:<{width}}  {one.size:>9}  {one.source}" for one in self.layers]
        lines += [
            f"  per step: {self.bytes_up / unit:.6g} floats up, {self.bytes_down / unit:.6g} down "
            f"(dense gradients: {self.d} up and down)",
            f"  set-up: {self.setup_bytes / unit:.6g} floats, {self.setup_bytes / dense:.2f} dense gradients",
            f"  {'certified for full gradients' if self.certified else 'estimated, certified=False'}",
        ]
        return "\n".join(lines)


def compress(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    data: Any,
    *,
    floats_per_step: int,
    curvature: Literal["auto", "low-rank", "none"] = "auto",
    rank: int = 4,
    places: Literal["shared", "own"] = "shared",
    weight_decay: float = 0.0,
    lr: float = 1.0,
    process_group: Any = None,
    verbose: bool = True,
) -> FeedbackSGD:
    """Make an optimizer that sends ``floats_per_step`` entries of the gradient per step, and print its plan.

    All trainable parameters are one vector with one L̂.  Where only a last linear layer is trained and the loss has a
    known bound, L̂ is proved (``head_smoothness``) for the present modes of the modules, after a check that its theorem
    covers the model: the inputs of the layer must not change from call to call (dropout), with the rest of the batch
    (batch normalisation in training) or with the layer.  A step raises
    RuntimeError where the frozen part has changed since.

    Parameters
    ----------
    model
        The model, plain, compiled or in DDP (then call backward under ``no_sync()``).
    loss
        ``loss(outputs, targets)``, a mean over the examples, such as ``nn.CrossEntropyLoss()``.
    data
        The data of this process, (inputs, targets) or a DataLoader: all of it for a proved L̂; an estimate takes the
        first 4096 examples with the model in evaluation mode.
    floats_per_step
        k, from 1 to d.
    curvature
        ``"auto"``: what is proved for a head, where its set-up costs at most 8 dense gradients, a low rank for other
        heads.  ``"low-rank"``: an estimate, for every model.  ``"none"``: plain coordinates.
    rank
        Of a low rank: its number of eigenvectors.
    places
        ``"shared"``: one process chooses the places of a step for all, an all-reduce of k floats;
        ``"own"``: each its own, an all-gather.
    weight_decay
        λ of ½λ‖x‖², which is part of the loss.
    lr, process_group
        As in ``FeedbackSGD``.
    verbose
        Whether the first process prints the plan.

    Returns
    -------
    FeedbackSGD, with the ``plan``.

    Raises
    ------
    ValueError, TypeError
        For arguments that are not as described, or that differ between the processes; with ``curvature="auto"`` for a
        model whose L is not proved, with the reason.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt.torch import compress
    >>> _ = torch.manual_seed(0)
    >>> inputs, labels = torch.randn(50, 4), torch.randint(0, 3, (50,))
    >>> model, loss = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss()
    >>> optimizer = compress(model, loss, (inputs, labels), floats_per_step=5)
    feedback: 5 of 15 entries per step, 1 process
      weight + bias         15  ½(I − 11ᵀ/C) ⊗ FᵀF/n, proved
      per step: 13.5 floats up, 11 down (dense gradients: 15 up and down)
      set-up: 15 floats, 1.00 dense gradients
      certified for full gradients
    >>> for _ in range(20):
    ...     value = optimizer.step(lambda: loss(model(inputs), labels))
    """
    check_one_of("curvature", curvature, CURVATURES)
    net, workers = unwrapped(model), Workers.of(process_group)
    params = list(trainable(net).values())
    if not params:
        msg = "model has no trainable parameters"
        raise ValueError(msg)
    d = sum(p.numel() for p in params)
    k, rank = whole_number("floats_per_step", floats_per_step, high=d), whole_number("rank", rank)
    if not real_number("weight_decay", weight_decay) >= 0.0:
        msg = f"weight_decay must be 0 or more, got {weight_decay!r}"
        raise ValueError(msg)
    asked = _Asked(net, loss, Batches(data, params[0]), k, weight_decay, workers, curvature, rank)
    options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "process_group": workers}
    basis, layers, frozen = asked.basis()
    estimated = not all(layer.certified for layer in layers)
    rule: Any = "measured" if estimated else "worst-case"
    options |= {"estimated": estimated, "basis": basis}
    feedback = Feedback(None, k, clients=workers.size, rule=rule, places=places)
    optimizer = FeedbackSGD(params, feedback, **options)
    numbers = (d, k, workers.size, *optimizer.traffic(), optimizer.setup_bytes, params[0].element_size())
    if frozen is not None:
        optimizer.register_step_pre_hook(lambda *_: frozen.check())
    optimizer.plan = Plan(tuple(layers), *numbers)
    if verbose and workers.rank == 0:
        print(optimizer.plan)
    return optimizer


def _in_evaluation(method: Any) -> Any:
    """Let a method of ``_Asked`` see its model in evaluation mode, with gradients."""

    @functools.wraps(method)
    def call(self: _Asked, *arguments: Any) -> Any:
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            with torch.enable_grad():
                return method(self, *arguments)
        finally:
            for module, training in modes.items():
                module.training = training

    return call


@dataclass(frozen=True, eq=False)
class _Asked:
    """The model and what was asked for, from which L̂ or its basis is made."""

    model: nn.Module
    loss: Any
    data: Batches
    k: int
    ridge: float
    workers: Workers
    curvature: str
    rank: int

    def basis(self) -> tuple[Operator, Sequence[Layer], Frozen | None]:
        """A with AAᵀ = L̂⁻¹ for feedback, the rows of the plan, and what a proof takes for constant."""
        params = list(trainable(self.model).values())
        if self.curvature == "auto" and not is_dear(self.model):
            try:
                head = find_head(self.model, self.loss, self.data, self.workers, work_tensor(params[0]).dtype)
            except ValueError as error:
                msg = f"no L is proved: {error}; an estimate is curvature='low-rank'"
                raise ValueError(msg) from None
            return head.basis(self.ridge, params[0]), [self._row(head)], head.frozen
        return *self._estimated(), None

    @_in_evaluation
    def _estimated(self) -> tuple[Operator, Sequence[Layer]]:
        params = list(trainable(self.model).values())
        size = sum(p.numel() for p in params)
        if self.curvature == "none":
            return Scaled(1.0), [Layer("all parameters", size, "plain coordinates", certified=False)]
        L, layers = low_rank(self.model, self.loss, self.data, self.ridge, self.rank, self.workers)
        return operator(Feedback(L, 1).directions[0], work_tensor(params[0])), layers

    def _row(self, head: Any) -> Layer:
        names, ridge = list(trainable(self.model)), "" if not self.ridge else " + λI"
        size = sum(p.numel() for p in trainable(self.model).values())
        K = "½(I − 11ᵀ/C)" if isinstance(self.loss, nn.CrossEntropyLoss) else f"{head.K[0, 0]:g}·I"
        return Layer(" + ".join(names), size, f"{K} ⊗ FᵀF/n{ridge}, proved", certified=True)
