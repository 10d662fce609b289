"""From a model to an optimizer that sends k floats per step, with a plan of what is sent and what is proved."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from stepsize_opt.inputs.checks import check_kind, whole_number
from stepsize_opt.inputs.matrices import EstimatedSmoothness
from stepsize_opt.methods import Feedback
from stepsize_opt.torch.feedback import FeedbackSGD
from stepsize_opt.torch.head import find_head, trained, unwrapped
from stepsize_opt.torch.workers import Workers


@dataclass(frozen=True)
class Plan:
    """What an optimizer of ``compress`` sends, and where its L̂ comes from; ``print(plan)`` shows it.

    Attributes
    ----------
    names, source : str
        The parameters, and where their L̂ comes from.
    certified : bool
        Whether L̂ is proved to be a bound, so that the guarantee of the method holds for full gradients.
    d, k, workers : int
        Parameters, entries that are sent per step, processes.
    bytes_up, bytes_down : float
        Bytes that a process sends and receives per step, on average, places and values of f included.
    setup_bytes : int
        Bytes that this process sent before the first step, without those of an estimate.
    float_bytes : int
        Bytes of one float of the parameters.
    """

    names: str
    source: str
    certified: bool
    d: int
    k: int
    workers: int
    bytes_up: float
    bytes_down: float
    setup_bytes: int
    float_bytes: int

    def __str__(self) -> str:
        unit = self.float_bytes
        dense = self.d * unit
        processes = "1 process" if self.workers == 1 else f"{self.workers} processes"
        lines = [
            f"feedback: {self.k} of {self.d} entries per step, {processes}",
            f"  {self.names}: {self.source}",
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
    L: EstimatedSmoothness | None = None,
    places: Literal["shared", "own"] = "shared",
    weight_decay: float = 0.0,
    process_group: Any = None,
    verbose: bool = True,
) -> FeedbackSGD:
    """Make an optimizer that sends ``floats_per_step`` entries of the gradient per step, and print its plan.

    It is for models of which one linear layer alone is trained, the last one, with a loss of known curvature: a head, a
    generalised linear model.  There L is proved (``head_smoothness``), after a check that the theorem covers the model:
    the inputs of the layer must not change from call to call (dropout), with the rest of the batch (batch normalisation
    in training) or with the layer.  The proof is about the present modes of the modules and the present frozen part: a
    step raises RuntimeError where they differ.

    Parameters
    ----------
    model
        The model, plain, compiled or in DDP (then call backward under ``no_sync()``).
    loss
        ``loss(outputs, targets)``, a mean over the examples, such as ``nn.CrossEntropyLoss()``.
    data : pair of torch.Tensor, DataLoader or list of such pairs
        All data of this process, (inputs, targets) or a DataLoader.
    floats_per_step
        k, from 1 to d.
    L
        An estimate, such as ``estimate_smoothness(model, loss, data)``, for a model whose L is not proved or too dear
        to send: p(p + 1)/2 floats for p features.
    places
        ``"shared"``: one process chooses the places of a step for all, an all-reduce of k floats;
        ``"own"``: each its own, an all-gather.
    weight_decay
        λ of ½λ‖x‖², which is part of the loss.
    process_group : torch.distributed.ProcessGroup, optional
        As in ``FeedbackSGD``.
    verbose
        Whether the first process prints the plan.

    Returns
    -------
    FeedbackSGD, with the ``plan``.

    Raises
    ------
    ValueError, TypeError
        For arguments that are not as described, or that differ between the processes; without ``L`` for a model whose L
        is not proved, with the reason.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt.torch import compress
    >>> _ = torch.manual_seed(0)
    >>> inputs, labels = torch.randn(50, 4), torch.randint(0, 3, (50,))
    >>> model, loss = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss()
    >>> optimizer = compress(model, loss, (inputs, labels), floats_per_step=5)
    feedback: 5 of 15 entries per step, 1 process
      weight + bias: ½(I − 11ᵀ/C) ⊗ FᵀF/n, proved
      per step: 11.5 floats up, 9 down (dense gradients: 15 up and down)
      set-up: 15 floats, 1.00 dense gradients
      certified for full gradients
    >>> for _ in range(20):
    ...     value = optimizer.step(lambda: loss(model(inputs), labels))
    """
    net, workers = unwrapped(model), Workers.of(process_group)
    names, params = zip(*trained(net).items(), strict=True)
    d = sum(p.numel() for p in params)
    k = whole_number("floats_per_step", floats_per_step, high=d)
    options: dict[str, Any] = {"weight_decay": weight_decay, "model": model, "process_group": workers}
    sent: dict[str, Any] = {"clients": workers.size, "places": places}
    if L is None:
        head = find_head(net, loss, data, workers)
        basis = head.basis(weight_decay, params[0])
        optimizer = FeedbackSGD(params, Feedback(None, k, **sent), basis=basis, **options)
        optimizer.register_step_pre_hook(lambda *_: head.frozen.check())
        source = f"{head.words}{' + λI' if weight_decay else ''}, proved"
    else:
        check_kind("L", L, EstimatedSmoothness, ", such as estimate_smoothness(model, loss, data)")
        optimizer = FeedbackSGD(params, Feedback(L, k, rule="measured", **sent), **options)
        source = f"{L.source}, estimated"
    numbers = (d, k, workers.size, *optimizer.traffic(), optimizer.setup_bytes, params[0].element_size())
    optimizer.plan = Plan(" + ".join(names), source, L is None, *numbers)
    if verbose and workers.rank == 0:
        print(optimizer.plan)
    return optimizer
