"""From a choice to its curve: run it, check its bound, write down what was found."""

from __future__ import annotations

import time
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


def _check(panel: Panel, choice: Choice, record: Run) -> RateCheck:
    if isinstance(panel.infimum, FederatedInfimum):
        assert isinstance(panel.objective, Federated) and choice.lambda_D is not None
        return check_distributed_rate(record, panel.objective.n, choice.lambda_D, panel.infimum)
    return check_rate(record, panel.infimum, theorem=choice.theorem)


def _describe(panel: Panel, choice: Choice, record: Run) -> dict[str, Any]:
    check, whole = _check(panel, choice, record), _whole(panel.infimum)
    theory = choice.theory_iterations
    if theory is None:
        theory = float(iterations_needed(choice.rate, panel.epsilon2, record.start_value - whole.found))
    found: dict[str, Any] = plain(
        {
            "experiment": panel.experiment,
            "dataset": panel.dataset,
            "variant": panel.variant,
            "label": choice.label,
            "algorithm": choice.algorithm,
            "sketch": str(choice.sketch),
            "d": panel.objective.d,
            "ours": choice.ours,
            "feasible": choice.feasible,
            "rate": choice.rate,
            "cost": choice.cost,
            "gap": choice.gap,
            "lambda_D": choice.lambda_D,
            "epsilon2": panel.epsilon2,
            "theory_iterations": theory,
            "iterations": record.iterations,
            "seeds": record.seeds,
            "diverged_at": record.diverged_at,
            "initial_value": record.start_value,
            "f_inf_found": whole.found,
            "f_inf_proved": whole.proved,
            "delta_inf": getattr(panel.infimum, "delta_inf", None),
            "theorem": check.theorem,
            "observed": check.observed,
            "plain": check.plain,
            "lower": check.lower,
            "upper": check.upper,
            "bound": check.bound,
            "loose_bound": check.loose_bound,
            "verdict": check.verdict if choice.feasible else f"{check.verdict} (no guarantee)",
        }
    )
    return found
