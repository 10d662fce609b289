"""PyTorch: an optimizer with matrix stepsizes, compressed gradients in DDP, smoothness matrices of models.

Needs the extra ``torch`` (``pip install 'stepsize-opt[torch]'``); nothing else in the library imports it.
"""

from stepsize_opt.torch.casting import certified_cast
from stepsize_opt.torch.hook import SketchState, sketch_hook
from stepsize_opt.torch.optimizer import MatrixSGD
from stepsize_opt.torch.smoothness import estimate_smoothness, head_smoothness

__all__ = [
    "MatrixSGD",
    "SketchState",
    "certified_cast",
    "estimate_smoothness",
    "head_smoothness",
    "sketch_hook",
]
