"""Flower: rounds in which each client sends k floats, and the server sends back what a step needs.

Needs the extra ``flower`` (docs/install.md); nothing else in the library imports it.
"""

from stepsize_opt.flower.mod import compress_mod as compress_mod
from stepsize_opt.flower.strategy import (
    FeedbackStrategy as FeedbackStrategy,
    MissingReplies as MissingReplies,
    SharedSeedStrategy as SharedSeedStrategy,
)
