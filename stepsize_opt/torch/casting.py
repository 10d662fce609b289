"""Stepsizes in a smaller dtype, proved for the numbers that are left."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stepsize_opt.methods import Method
from stepsize_opt.node import certify
from stepsize_opt.sketches import Sketch

# Rounding a scaled D moves it again; a few times the largest relative rounding error of the dtype makes room for it.
_ATTEMPTS = 6


def certified_cast(
    D: Any,
    L: Any,
    sketch: Sketch,
    dtype: torch.dtype = torch.float32,
    *,
    algorithm: str | Method = "det-CGD1",
) -> torch.Tensor:
    """D rounded to ``dtype`` and scaled back until the condition is proved for exactly the numbers returned.

    Parameters
    ----------
    D
        Stepsize matrix, d×d, such as ``result.D``.
    L, sketch, algorithm
        As in ``certify``.
    dtype
        ``torch.float32``, or another floating dtype.

    Raises
    ------
    ValueError
        When ``dtype`` is so coarse that no multiple of the rounded D is proved (bfloat16 and a large condition number).

    Notes
    -----
    The certificate is about the update in exact arithmetic.  That gradients and steps are rounded, too, is outside it.

    Examples
    --------
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> from stepsize_opt.torch import certified_cast
    >>> L = [[2.0, 1.0], [1.0, 3.0]]
    >>> certified_cast(optimal_stepsize(L, RandK(2, 1)).D, L, RandK(2, 1)).dtype
    torch.float32
    """
    exact = np.array(D, dtype=np.float64)
    anything = np.eye(len(exact))  # a multiplier, which saves certify a solve; the bound is not used here
    unit = float(torch.finfo(dtype).eps)
    scale = 1.0
    for attempt in range(_ATTEMPTS):
        rounded = torch.tensor(scale * exact, dtype=dtype)
        check = certify(rounded.to(torch.float64).numpy(), L, sketch, algorithm=algorithm, dual=anything)
        if check.feasible:
            return rounded
        if not check.largest_scale > 0.0:
            break
        scale *= min(1.0, check.largest_scale) * (1.0 - 2.0**attempt * unit)
    msg = f"no multiple of D rounded to {dtype} could be proved; keep the parameters in float64, or use a diagonal D"
    raise ValueError(msg)
