"""PyTorch: an optimizer with matrix stepsizes, compressed gradients in DDP, smoothness matrices of models.

Needs the extra ``torch`` (``pip install 'stepsize-opt[torch]'``); nothing else in the library imports it.
"""

from stepsize_opt.torch.casting import certified_cast as certified_cast
from stepsize_opt.torch.hook import SketchState as SketchState, sketch_hook as sketch_hook
from stepsize_opt.torch.optimizer import MatrixSGD as MatrixSGD
from stepsize_opt.torch.smoothness import estimate_smoothness as estimate_smoothness, head_smoothness as head_smoothness
