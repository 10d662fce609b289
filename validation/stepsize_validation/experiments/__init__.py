"""The paper's experiments with the optimal stepsize beside them."""

from stepsize_validation.experiments.clients import Setting
from stepsize_validation.experiments.figures import pyplot, save_figure
from stepsize_validation.experiments.plan import Plan
from stepsize_validation.experiments.reproduction import demo_figure, reproduce
from stepsize_validation.experiments.tables import as_text

__all__ = ["Plan", "Setting", "as_text", "demo_figure", "pyplot", "reproduce", "save_figure"]
