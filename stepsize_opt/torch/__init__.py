"""PyTorch: optimizers that send k floats per step, and the smoothness matrices of models.

Needs the extra ``torch`` (docs/install.md); nothing else in the library imports it.
"""

from stepsize_opt.torch.compress import Plan as Plan, compress as compress
from stepsize_opt.torch.curvature import estimate_smoothness as estimate_smoothness
from stepsize_opt.torch.feedback import FeedbackSGD as FeedbackSGD
from stepsize_opt.torch.optimizer import CompressedSGD as CompressedSGD
from stepsize_opt.torch.smoothness import certified_cast as certified_cast, head_smoothness as head_smoothness
