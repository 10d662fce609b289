"""The paper's experiments with the optimal stepsize beside them."""

from stepsize_validation.experiments.clients import Setting
from stepsize_validation.experiments.figures import pyplot, save_figure
from stepsize_validation.experiments.plan import Plan
from stepsize_validation.experiments.reproduction import demo_figure, reproduce

__all__ = ["Plan", "Setting", "demo_figure", "pyplot", "reproduce", "save_figure"]
