"""Running the methods on real problems, and checking that the predicted rates hold.

Objectives are in ``stepsize_opt.problems``, data sets and splits over clients in ``stepsize_validation.data``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # loading typing would come before the command line can answer Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from stepsize_validation.runs import (
        Divergence,
        FeedbackRun,
        RateCheck,
        Run,
        check_distributed_rate,
        check_rate,
        distributed_lambda,
        first_below,
        observed_contraction,
        run,
        run_feedback,
    )
    from stepsize_validation.table1 import CommunicationTable, communication_table

__all__ = [
    "CommunicationTable",
    "Divergence",
    "FeedbackRun",
    "RateCheck",
    "Run",
    "check_distributed_rate",
    "check_rate",
    "communication_table",
    "distributed_lambda",
    "first_below",
    "observed_contraction",
    "run",
    "run_feedback",
]


def __getattr__(name: str) -> Any:
    """Load names when they are first used, so that the command line can answer Ctrl-C while it loads the rest."""
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from stepsize_validation import runs, table1

    return getattr(runs if hasattr(runs, name) else table1, name)
