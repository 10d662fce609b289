"""Tensors and numpy arrays."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def as_numpy(x: Tensor) -> Any:
    """A tensor as a numpy array; numpy has no bfloat16, whose numbers float32 holds exactly."""
    x = x.detach().cpu()
    return (x.float() if x.dtype is torch.bfloat16 else x).numpy()
