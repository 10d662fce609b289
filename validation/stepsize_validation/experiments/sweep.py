"""Run the jobs of a plan in several processes, and keep the result of each on disk.

A job is one experiment on one data set with one parameter.  A result is kept by ``joblib.Memory`` under everything that
it depends on, so a sweep that was killed runs only the jobs that had not finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from joblib import Memory, Parallel, delayed
from threadpoolctl import threadpool_limits

from stepsize_opt import __version__
from stepsize_opt.goals import GoalName, PaperGoal
from stepsize_opt.inputs.checks import whole_number
from stepsize_opt.plots import Curve
from stepsize_opt.problems import Federated, FederatedInfimum
from stepsize_solvers.process import interrupts_held
from stepsize_validation.data import load_dataset
from stepsize_validation.experiments.spec import Choice, Experiment, Panel, Plan, Tables
from stepsize_validation.runs import RateCheck, Run, check_distributed_rate, check_rate, run


@dataclass(frozen=True)
class Job:
    """One experiment on one data set; the parameter is τ in (b), the number of clients in (c)."""

    experiment: Experiment
    dataset: str
    parameter: int

    def __str__(self) -> str:
        return f"({self.experiment.name}) {self.dataset}" + (f" {self.parameter}" if self.parameter else "")

    def key(self, plan: Plan) -> dict[str, Any]:
        """Return what the result depends on; a result under another key is not reused."""
        used = {name: getattr(plan, name) for name in ("seeds", "seed", *self.experiment.settings)}
        place = {"experiment": self.experiment.name, "dataset": self.dataset, "parameter": self.parameter}
        return {**used, **place, "iterations": self.experiment.steps(plan), "version": __version__}


def sweep(
    experiments: Iterable[Experiment], plan: Plan, folder: Path, *, workers: int, say: Callable[[str], None]
) -> dict[str, Tables]:
    """Run every job that has no result in the folder, and return the tables of each experiment by its name.

    ``say`` receives one line for each job that ends.  Raises ValueError unless ``workers`` is a positive whole number
    and there is a job, FileNotFoundError for an unknown data set.
    """
    whole_number("workers", workers)
    sets = {name: load_dataset(name) for name in plan.datasets}
    jobs = [
        Job(experiment, name, parameter)
        for experiment in experiments
        for name, data in sets.items()
        for parameter in experiment.parameters(data, plan)
    ]
    if not jobs:
        msg = f"no experiment that was asked for runs on {', '.join(sets)}: name other data sets or experiments"
        raise ValueError(msg)
    measured = Memory(folder, verbose=0).cache(measure, ignore=["job", "plan"])
    # The long jobs start first, so that the processes end together.
    order = sorted(range(len(jobs)), key=lambda i: -sets[jobs[i].dataset].m)
    calls = (delayed(measured)(jobs[i].key(plan), jobs[i], plan) for i in order)
    began = time.perf_counter()
    found: dict[int, Tables] = {}
    with interrupts_held():
        results: Any = Parallel(n_jobs=workers, return_as="generator")(calls)
    with closing(results):  # An interrupt ends the processes at once.
        for i, tables in zip(order, results, strict=True):
            found[i] = tables
            say(f"[{time.perf_counter() - began:6.0f} s] {len(found)}/{len(jobs)} {jobs[i]}")
    return _joined(jobs, found)


def measure(key: dict[str, Any], job: Job, plan: Plan) -> Tables:
    """Return all tables of one job, in one thread; ``key`` is what joblib keeps them under."""
    data, experiment = load_dataset(job.dataset), job.experiment
    tables: Tables = {}
    with threadpool_limits(limits=1):
        if experiment.panel is not None:
            tables |= run_panel(experiment.panel(data, plan, job.parameter), experiment.steps(plan), plan)
        if experiment.measure is not None:
            tables |= experiment.measure(data, plan, job.parameter)
    for table in tables.values():
        table.insert(0, "data", data.name)
    return tables


def _joined(jobs: Sequence[Job], found: dict[int, Tables]) -> dict[str, Tables]:
    """Join the tables of the jobs of each experiment, in the order of the plan, with its summary."""
    out: dict[str, Tables] = {}
    for experiment in dict.fromkeys(job.experiment for job in jobs):
        parts = [found[i] for i, job in enumerate(jobs) if job.experiment is experiment]
        names = dict.fromkeys(name for tables in parts for name in tables)
        joined = {name: pd.concat([t[name] for t in parts if name in t], ignore_index=True) for name in names}
        out[experiment.name] = joined | experiment.summarise(joined)
    return out


def run_panel(panel: Panel, iterations: int, plan: Plan) -> Tables:
    """Run the choices of a panel: ``runs`` has one row for each, ``curves`` one for each of its steps."""
    runs, curves = [], []
    length: dict[str, Any] = {"iterations": iterations, "seeds": plan.seeds, "seed": plan.seed}
    for choice in panel.choices:
        record = run(panel.objective, **choice.runs, **length, on_divergence="stop")
        runs.append(_facts(panel, choice, record))
        curves.append(_curve(panel, choice, record))
    return {"runs": pd.DataFrame(runs), "curves": pd.concat(curves, ignore_index=True)}


def _facts(panel: Panel, choice: Choice, record: Run) -> dict[str, Any]:
    """Return a row of ``runs``: the choice, what its theory needs, and whether its bounds hold."""
    check, infimum = _check(panel, choice, record, choice.goal), _whole(panel)
    has_metric = record.descent_rate > 0.0 and not isinstance(panel.objective, Federated)
    descent = _check(panel, choice, record, "descent").verdict if has_metric else None
    theory = choice.theory_iterations
    if theory is None:
        theory = float(PaperGoal.rounds(choice.rate, panel.epsilon2, record.start_value - infimum.found))
    named = ("ours", "goal", "feasible", "rate", "cost", "gap", "efficiency")
    return {
        "variant": panel.variant,
        "method": choice.label,
        "algorithm": str(choice.algorithm),
        **{name: getattr(choice, name) for name in named},
        "epsilon2": panel.epsilon2,
        "theory": theory,
        "floats_per_round": record.floats()[-1] / record.iterations,
        "observed": check.observed,
        "upper": check.upper,
        "bound": check.bound,
        "verdict": "diverged" if record.diverged_at is not None else check.verdict,
        "descent_rate": record.descent_rate if has_metric else None,
        "descent_verdict": descent,
        "euclidean": float(record.means("euclidean")[:, -1].mean()),
        "excess": float(record.values[:, -1].mean()) - infimum.found,
    }


def _check(panel: Panel, choice: Choice, record: Run, goal: GoalName) -> RateCheck:
    if isinstance(panel.infimum, FederatedInfimum):
        assert isinstance(panel.objective, Federated) and choice.lambda_D is not None
        return check_distributed_rate(record, panel.objective.n, choice.lambda_D, panel.infimum)
    rate = choice.rate if goal in ("euclidean", "linear") else None
    return check_rate(record, panel.infimum, goal=goal, rate=rate)


def _whole(panel: Panel) -> Any:
    """Return the bounds on the infimum of f itself."""
    return panel.infimum.whole if isinstance(panel.infimum, FederatedInfimum) else panel.infimum


def _curve(panel: Panel, choice: Choice, record: Run) -> pd.DataFrame:
    """Return the rows of ``curves`` for one choice: the curves of ``Run.plot`` at k = 1 … K, with error and guarantee.

    weighted: in the norm of the choice's goal; metric: in the norm of H whatever the goal is, NaN unless H ≻ 0;
    excess: f(x^k) − f^inf.
    """
    own = {"paper": "weighted", "descent": "metric"}.get(choice.goal, "euclidean")
    floats, K = record.floats(), record.iterations
    columns: dict[str, Any] = {"k": np.arange(1, K + 1), "floats": floats}
    for name, show in (("weighted", own), ("euclidean", "euclidean"), ("metric", "metric"), ("excess", "excess")):
        known = show != "metric" or record.descent_rate > 0.0
        curve = record.curve(show, _whole(panel).found) if known else Curve(floats, *np.full((2, K), np.nan))
        bound = np.nan if curve.bound is None else curve.bound
        columns |= {name: curve.mean, f"{name}_error": curve.error, f"{name}_bound": bound}
    return pd.DataFrame({"variant": panel.variant, "method": choice.label, "ours": choice.ours, **columns})
