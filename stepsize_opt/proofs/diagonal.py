"""The proof of a dense program of diagonal D from a thin multiplier, whichever kind it is."""

from __future__ import annotations

import numpy as np

from stepsize_opt.proofs.evaluation import condition_of
from stepsize_opt.proofs.low_rank import LowRankCondition
from stepsize_opt.proofs.nonnegative import NonnegativeCondition
from stepsize_opt.proofs.thin import ProvedDiagonal
from stepsize_solvers.programs import LowRankModel, Program, ThinMultiplier, Vector


def prove_diagonal(program: Program, x: Vector, multiplier: ThinMultiplier) -> ProvedDiagonal | None:
    """The proof for a program DBD ⪯ D of diagonal D, from a thin multiplier; None when it proves nothing."""
    condition = condition_of(program)
    B = condition.B
    if B is None or not (condition.is_plain and program.pattern.is_diagonal):
        return None
    slack = np.zeros(len(B)) if condition.B_slack is None else condition.B_slack
    if isinstance(multiplier, LowRankModel):
        return LowRankCondition.around(B, slack, multiplier).prove(x, multiplier.K)
    return NonnegativeCondition(B, slack=slack).prove(x, multiplier) if B.min() >= 0.0 else None
