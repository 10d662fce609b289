"""Running the paper's experiments: everything that the report shows.

``reproduce`` runs the experiments, the sensitivity study and Table 1, and leaves under its output folder
``report.html``, ``figures/*.png``, ``tables.json`` and ``raw/**/*.npz``, one file for each curve.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stepsize_opt.node import communication_table
from stepsize_opt.problems import LogisticRegression, load_dataset
from stepsize_validation.experiments import rand_one, rand_tau, sensitivity
from stepsize_validation.experiments.axes import ITERATIONS, WEIGHTED, Axes
from stepsize_validation.experiments.catalogue import EXPERIMENTS, chosen
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.figures import draw
from stepsize_validation.experiments.jobs import run_plan
from stepsize_validation.experiments.plan import Plan
from stepsize_validation.experiments.report import write_report
from stepsize_validation.experiments.tables import curve_records, savings, verdicts
from stepsize_validation.runs import Run

# A sensitivity study solves 160 problems for each data set: minutes up to this d, an hour at the 300 of w1a.
_SENSITIVITY_D = 150
_PACKAGES = ("stepsize-opt", "numpy", "scipy", "cvxpy", "scs", "clarabel", "scikit-learn", "matplotlib")


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What ``reproduce`` made: the folder, the curves and the tables (as in ``tables.json``)."""

    output: Path
    curves: tuple[Curve, ...]
    tables: dict[str, Any]

    @property
    def report(self) -> Path:
        return self.output / "report.html"

    @property
    def all_hold(self) -> bool:
        """Whether no choice violated the bound of its guarantee, if it satisfies that, or of its descent metric."""
        return not any(
            curve.meta["descent_verdict"] == "violated"
            or (curve.meta["feasible"] and (curve.meta["diverged_at"] or curve.meta["verdict"] == "violated"))
            for curve in self.curves
        )


def reproduce(
    experiments: Sequence[str],
    output: Path,
    plan: Plan | None = None,
    *,
    workers: int = 2,
    say: Callable[[str], None] | None = None,
) -> Reproduction:
    """Run the experiments that are not cached yet and write the report.

    Raises ValueError for an unknown experiment, FileNotFoundError for a data set that is not there.
    """
    plan = plan or Plan()
    letters = chosen(experiments)
    began = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    curves = run_plan(plan, letters, output, workers=workers, say=say)
    steps = {letter: EXPERIMENTS[letter].steps(plan) for letter in letters}
    tables: dict[str, Any] = {
        "settings": {**asdict(plan), "iterations": steps},
        "versions": versions(),
        "savings": savings(curves),
        "verdicts": verdicts(curves),
        "curves": curve_records(curves),
    }
    if rand_one.EXPERIMENT.letter in letters:
        tables.update(_studies(plan, output, workers, say))
    tables["seconds"] = time.perf_counter() - began
    tables["run_seconds"] = sum(float(curve.meta["seconds"]) for curve in curves)
    write_report(letters, curves, tables, output)
    return Reproduction(output, tuple(curves), tables)


def _studies(plan: Plan, output: Path, workers: int, say: Callable[[str], None] | None) -> dict[str, Any]:
    """What needs no panels: predicted savings, sensitivity on the data sets whose many solves are cheap, Table 1 on the
    smallest."""
    sets = [load_dataset(name) for name in plan.datasets]
    smallest = min(sets, key=lambda one: one.d)
    names = [name for name, one in zip(plan.datasets, sets, strict=True) if one is smallest or one.d <= _SENSITIVITY_D]
    tasks = sensitivity.tasks_of(
        names,
        plan.reg,
        iterations=rand_tau.EXPERIMENT.steps(plan),
        seeds=plan.seeds,
        epsilon2=plan.epsilon2,
        draws=plan.draws,
    )
    rows = sensitivity.run_tasks(tasks, output / "raw" / "sensitivity", workers=workers, say=say)
    table = communication_table(LogisticRegression.from_dataset(smallest, plan.reg).smoothness())
    return {
        "predicted": rand_one.predicted_savings(plan.datasets),
        **rows,
        "margins": sensitivity.worst_margins(rows["subsamples"]),
        "table 1": {"data": smallest.name, "k": list(table.k), "rows": table.to_records()},
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the results depend on."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


def demo_figure(path: Path, title: str, runs: Mapping[str, Run], data: str, sketch: str) -> Path:
    """One panel with a curve of G_K for each run; labels that say optimal are drawn as this project's."""
    curves = []
    for label, record in runs.items():
        guarantee = "descent" if label.endswith("descent") else "condition"
        ours = "det-CGD1, optimal" in label
        meta = {"label": label, "ours": ours, "experiment": "", "dataset": data, "variant": sketch}
        curves.append(Curve.of({**meta, "guarantee": guarantee, "criterion": "det"}, record))
    return draw(curves, Axes(ITERATIONS, WEIGHTED), title, path)
