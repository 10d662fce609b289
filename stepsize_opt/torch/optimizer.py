"""Gradient steps with a matrix in place of the learning rate."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from stepsize_opt.inputs import asymmetry, positive_number
from stepsize_opt.torch.tensors import as_numpy


class MatrixSGD(Optimizer):
    """x⁺ = x − lr · D g, with a stepsize D for each group of parameters.

    D acts on the group's parameters as one vector: flattened row by row, one after the other.  It is a number γ
    (D = γI), a vector (its diagonal), a symmetric matrix, or a scipy ``LinearOperator``.

    With full gradients and a D that is certified for the smoothness matrix of the loss, every step with lr = 1 keeps
    what the certificate promises, and one with lr < 1 at least lr times the decrease that it promises: for condition
    (3) lr·D is feasible, too, and 2lr·D − lr²·𝒫(DLD) ⪰ lr·(2D − 𝒫(DLD)).  The noise of minibatches is outside it.
    With ``sketch_hook`` the gradients arrive compressed, and this is det-CGD1.

    Parameters
    ----------
    params
        Parameters, named parameters or groups, as in every optimizer of PyTorch.  A group may have a ``stepsize`` of
        its own.
    stepsizes
        D of the groups that have none; or a mapping from the names of parameters to their D, which takes
        ``model.named_parameters()`` and makes each parameter a group.
    lr
        A factor for schedulers to change.

    Notes
    -----
    ``state_dict`` holds D, unless it is an operator: build the optimizer with the same operator before loading.
    D keeps its digits: a vector or matrix that the parameters' dtype cannot hold exactly is refused, because
    the rounded one is another D, with another certificate (``certified_cast`` makes one).  A number is rounded
    towards zero.

    Raises
    ------
    ValueError, TypeError
        For a D of the wrong size, with numbers that are not finite, not symmetric or without a positive diagonal, a
        group without D, an lr that is not positive, names that do not match; ``load_state_dict`` reads D in the same
        way.

    Examples
    --------
    >>> import torch
    >>> from stepsize_opt.torch import MatrixSGD
    >>> x = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> optimizer = MatrixSGD([x], torch.tensor([[0.5, 0.25], [0.25, 0.5]]))
    >>> (x[0] ** 2).backward()
    >>> optimizer.step()
    >>> x.tolist()
    [0.0, 0.5]
    """

    def __init__(self, params: Iterable[Any], stepsizes: Any = None, *, lr: float = 1.0) -> None:
        _check_lr(lr)
        if isinstance(stepsizes, Mapping):
            params, stepsizes = _one_group_each(params, stepsizes), None
        # Operators by the index of their group: a state_dict should hold numbers only.
        self._operators: dict[int, Any] = {}
        super().__init__(params, {"lr": lr, "stepsize": stepsizes})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, with its ``stepsize``; raises as the constructor."""
        super().add_param_group(param_group)
        index = len(self.param_groups) - 1
        group = self.param_groups[index]
        try:
            _check_lr(group["lr"])
            stepsize = _read(group["stepsize"], group["params"])
        except (TypeError, ValueError):
            del self.param_groups[index]
            raise
        if not isinstance(stepsize, float | Tensor):
            self._operators[index] = stepsize
            stepsize = None
        group["stepsize"] = stepsize

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_operators": self._operators}

    def __setstate__(self, state: dict[str, Any]) -> None:
        operators = state.get("_operators", getattr(self, "_operators", {}))
        read = []
        for index, group in enumerate(state["param_groups"]):
            if group["stepsize"] is None and index not in operators:
                msg = f"group {index} was saved with an operator: build the optimizer with it before loading"
                raise ValueError(msg)
            read.append(None if group["stepsize"] is None else _read(group["stepsize"], group["params"]))
        super().__setstate__(state)
        self._operators = operators
        for group, stepsize in zip(self.param_groups, read, strict=True):
            group["stepsize"] = stepsize

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step; ``closure`` evaluates the loss again and returns it.

        Raises RuntimeError when only some of the parameters that share a D have a gradient, or a gradient is sparse;
        then no parameter has moved.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            _check_gradients(group["params"], group["stepsize"])
        for index, group in enumerate(self.param_groups):
            D = self._operators[index] if group["stepsize"] is None else group["stepsize"]
            self._move(group["params"], D, group["lr"])
        return loss

    def _move(self, params: list[Tensor], D: Any, lr: float) -> None:
        if isinstance(D, float):
            for p in params:
                if p.grad is not None:
                    p.sub_(p.grad * D * lr)
            return
        if all(p.grad is None for p in params):
            return
        g = torch.cat([p.grad.reshape(-1) for p in params if p.grad is not None])
        if isinstance(D, Tensor):
            step = D * g if D.ndim == 1 else D @ g
        else:
            step = torch.from_numpy(np.asarray(D @ as_numpy(g))).to(g)
        for p, part in zip(params, torch.split(step, [p.numel() for p in params]), strict=True):
            p.sub_(part.view_as(p) * lr)


def _check_lr(lr: Any) -> None:
    positive_number("lr", lr.item() if isinstance(lr, Tensor) else lr)


def _check_gradients(params: list[Tensor], stepsize: Any) -> None:
    if any(p.grad is not None and p.grad.is_sparse for p in params):
        msg = "MatrixSGD takes dense gradients; build the embedding with sparse=False"
        raise RuntimeError(msg)
    missing = sum(p.grad is None for p in params)
    if 0 < missing < len(params) and not isinstance(stepsize, float):
        msg = f"{len(params)} parameters share a stepsize, and {missing} of them have no gradient; make several groups"
        raise RuntimeError(msg)


def _one_group_each(params: Iterable[Any], stepsizes: Mapping[str, Any]) -> list[dict[str, Any]]:
    named = list(params)
    if not all(isinstance(one, tuple) for one in named):
        msg = "stepsizes by name need named parameters: MatrixSGD(model.named_parameters(), {name: D, …})"
        raise TypeError(msg)
    names = [name for name, _ in named]
    if set(names) != set(stepsizes):
        absent, unknown = sorted(set(names) - set(stepsizes)), sorted(set(stepsizes) - set(names))
        msg = f"stepsizes must name every parameter once: without a stepsize {absent}, not a parameter {unknown}"
        raise ValueError(msg)
    return [{"params": [one], "stepsize": stepsizes[one[0]]} for one in named]


def _read(stepsize: Any, params: list[Tensor]) -> Any:
    """D as a float, a tensor like the parameters, or the operator that it is."""
    n, like = sum(p.numel() for p in params), params[0]
    if any(p.dtype != like.dtype or p.device != like.device for p in params) or not like.is_floating_point():
        msg = "the parameters of a group must have one floating dtype and one device; make several groups"
        raise ValueError(msg)
    if stepsize is None:
        msg = "a group has no stepsize: MatrixSGD(params, D), or a group {'params': …, 'stepsize': D}"
        raise ValueError(msg)
    if hasattr(stepsize, "matvec"):
        _check_shape(stepsize.shape, n)
        return stepsize
    numbers = as_numpy(stepsize) if isinstance(stepsize, Tensor) else np.asarray(stepsize)
    if numbers.dtype.kind not in "fiu":
        msg = f"a stepsize must hold real numbers or be an operator with shape and matvec, got {stepsize!r}"
        raise TypeError(msg)
    if not np.all(np.isfinite(numbers)):
        msg = "a stepsize must be finite, got NaN or infinity"
        raise ValueError(msg)
    if numbers.ndim == 0:
        return _towards_zero(float(numbers), like.dtype)
    _check_shape(numbers.shape, n)
    if not np.all((numbers if numbers.ndim == 1 else numbers.diagonal()) > 0.0):
        msg = "a stepsize must be positive definite, got a diagonal entry that is not positive"
        raise ValueError(msg)
    # A symmetric matrix that was computed in this type, an inverse say, keeps about half of its digits.
    if n and numbers.ndim == 2 and asymmetry(numbers.astype(np.float64)).max() > torch.finfo(like.dtype).eps ** 0.5:
        msg = "a stepsize must be symmetric, got a matrix that is not"
        raise ValueError(msg)
    exact = torch.tensor(numbers, dtype=torch.float64)
    D = exact.to(like)
    if not torch.equal(D.to(exact), exact):
        msg = (
            f"the stepsize has digits that {like.dtype} does not hold, and the rounded one is another D; "
            "certified_cast(D, L, sketch, dtype) rounds it and proves it again"
        )
        raise ValueError(msg)
    return D


def _towards_zero(number: float, dtype: torch.dtype) -> float:
    if number <= 0.0:
        msg = f"a stepsize must be positive, got {number!r}"
        raise ValueError(msg)
    rounded = torch.tensor(number, dtype=dtype)
    if rounded.item() > number:
        rounded = torch.nextafter(rounded, torch.zeros_like(rounded))
    if not rounded.item() > 0.0:
        msg = f"the stepsize {number:g} is zero in {dtype}; scale the loss, or keep the parameters in a larger type"
        raise ValueError(msg)
    return float(rounded.item())


def _check_shape(shape: tuple[int, ...], n: int) -> None:
    if tuple(shape) not in ((n,), (n, n)):
        msg = f"the parameters of the group have {n} entries, so D must have shape ({n},) or ({n}, {n}), got {shape}"
        raise ValueError(msg)
