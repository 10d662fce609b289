"""From a choice to its curve: run it, check its bound, write down what was found."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from stepsize_opt.node import iterations_needed
from stepsize_opt.problems import Federated, FederatedInfimum, Infimum
from stepsize_validation.experiments.cache import plain
from stepsize_validation.experiments.catalogue import EXPERIMENTS
from stepsize_validation.experiments.choices import Choice, Panel
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.plan import Plan
from stepsize_validation.runs import RateCheck, Run, check_distributed_rate, check_rate, run


def curve_of(panel: Panel, choice: Choice, plan: Plan, checkpoint: Path | None = None) -> Curve:
    """Run one choice of a panel and check its bound."""
    began = time.perf_counter()
    record = run(
        panel.objective,
        choice.D,
        choice.sketch,
        algorithm=choice.algorithm,
        iterations=EXPERIMENTS[panel.experiment].steps(plan),
        seeds=plan.seeds,
        seed=plan.seed,
        checkpoint=checkpoint,
        on_divergence="stop",
    )
    seconds = time.perf_counter() - began
    return Curve.of(_describe(panel, choice, record) | {"seconds": seconds}, record)


def _whole(infimum: Infimum | FederatedInfimum) -> Infimum:
    """The bounds on f^inf itself."""
    return infimum.whole if isinstance(infimum, FederatedInfimum) else infimum


def _check(panel: Panel, choice: Choice, record: Run, guarantee: str) -> RateCheck:
    if isinstance(panel.infimum, FederatedInfimum):
        assert isinstance(panel.objective, Federated) and choice.lambda_D is not None
        return check_distributed_rate(record, panel.objective.n, choice.lambda_D, panel.infimum, guarantee=guarantee)
    if guarantee != choice.guarantee or choice.criterion == "det":
        return check_rate(record, panel.infimum, theorem=choice.theorem, guarantee=guarantee)
    return check_rate(record, panel.infimum, guarantee=guarantee, criterion=choice.criterion, rate=choice.rate)


def _describe(panel: Panel, choice: Choice, record: Run) -> dict[str, Any]:
    check, whole = _check(panel, choice, record, choice.guarantee), _whole(panel.infimum)
    descent = None
    if record.descent_rate > 0.0:
        descent = _check(panel, replace(choice, criterion="det"), record, "descent")
    theory = choice.theory_iterations
    if theory is None:
        theory = float(iterations_needed(choice.rate, panel.epsilon2, record.start_value - whole.found))
    named = ("label", "ours", "guarantee", "criterion", "feasible", "rate", "cost", "gap", "lambda_D", "efficiency")
    found: dict[str, Any] = plain(
        {
            **asdict(check),
            **{name: getattr(choice, name) for name in named},
            **{name: getattr(panel, name) for name in ("experiment", "dataset", "variant", "epsilon2")},
            "algorithm": str(choice.algorithm),
            "sketch": str(choice.sketch),
            "d": panel.objective.d,
            "theory_iterations": theory,
            "diverged_at": record.diverged_at,
            "initial_value": record.start_value,
            "f_inf_found": whole.found,
            "f_inf_proved": whole.proved,
            "delta_inf": getattr(panel.infimum, "delta_inf", None),
            "verdict": check.verdict if choice.feasible else f"{check.verdict} (no guarantee)",
            "descent_rate": record.descent_rate,
            "descent_cost": 1.0 / record.descent_rate if descent and choice.theory_iterations is None else None,
            "descent_verdict": descent and descent.verdict,
            "final_gap": float(record.values[:, -1].mean()) - whole.found,
        }
    )
    return found
