"""Solve without the exact reductions, to compare with them or to reach a solver that they would leave nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from stepsize_opt import optimal_stepsize
from stepsize_opt.node import pieces, reductions
from stepsize_opt.results import StepsizeResult
from stepsize_solvers.programs import Pattern


@contextmanager
def without_reductions() -> Iterator[None]:
    """Keep every problem in one piece, with the condition of its method and without closed forms."""
    with (
        mock.patch.object(reductions, "_groups", lambda B, *others: iter([np.arange(B.shape[0])])),
        mock.patch.object(Pattern, "commutes_with", lambda *_: False),
        mock.patch.object(pieces, "closed_form", lambda _: None),
    ):
        yield


def optimal_unreduced(*arguments: Any, **options: Any) -> StepsizeResult:
    """Return the result of ``optimal_stepsize`` without the exact reductions."""
    with without_reductions():
        return optimal_stepsize(*arguments, **options)
