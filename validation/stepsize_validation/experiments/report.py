"""Run the experiments that are asked for, and write their tables and figures.

``reproduce`` leaves ``tables/*.csv``, ``figures/*.png``, ``settings.json`` and the results of its jobs, ``cache/``, in
its output folder.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from stepsize_opt.saving import json_text, write_text
from stepsize_validation.experiments import clients, layers, limit, rand_one, rand_tau, sensitivity, versus
from stepsize_validation.experiments.spec import Experiment, Plan, Tables
from stepsize_validation.experiments.sweep import sweep
from stepsize_validation.experiments.tables import all_hold, compared
from stepsize_validation.figures import file_pyplot
from stepsize_validation.origin import environment, origin

_MODULES = (rand_one, rand_tau, clients, layers, limit, versus, sensitivity)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
_PACKAGES = ("numpy", "scipy", "cvxpy", "scs", "clarabel", "joblib", "pandas")


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The result of ``reproduce``: its folder, and the tables of each experiment by name.

    savings: what the optimal D saves; verdicts: how many bounds hold; all_hold: whether none is violated.
    """

    folder: Path
    tables: dict[str, Tables]
    savings: pd.DataFrame
    verdicts: pd.DataFrame
    all_hold: bool


def chosen(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names, in their order in ``EXPERIMENTS``; ``all`` names every one.

    Raises ValueError for an unknown name, or none at all.
    """
    unknown = sorted(set(names) - {*EXPERIMENTS, "all"})
    if unknown or not names:
        msg = f"unknown experiment {', '.join(unknown)}; choose from {', '.join(EXPERIMENTS)} or all"
        raise ValueError(msg)
    return [experiment for name, experiment in EXPERIMENTS.items() if name in names or "all" in names]


def print_progress(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def reproduce(
    names: Sequence[str],
    output: Path,
    plan: Plan | None = None,
    *,
    workers: int = 2,
    say: Callable[[str], None] = print_progress,
) -> Reproduction:
    """Run the jobs that have no result in the output folder yet, and write all tables and figures.

    ``say`` receives one line for each job that ends.  Raises ValueError for an unknown experiment, FileNotFoundError
    for an unknown data set.
    """
    plan, experiments, began = plan or Plan(), chosen(names), time.perf_counter()
    file_pyplot()  # A missing matplotlib is found before the runs rather than after them.
    tables = sweep(experiments, plan, output / "cache", workers=workers, say=say)
    experiments = [experiment for experiment in experiments if experiment.name in tables]
    with_runs = [experiment for experiment in experiments if experiment.panel is not None]
    for experiment in with_runs:
        tables[experiment.name] |= compared(experiment, tables[experiment.name])
    for experiment in experiments:
        _write(experiment, tables[experiment.name], plan, output)
    about = {
        "settings": {**asdict(plan), "iterations": {one.name: one.steps(plan) for one in experiments}},
        "versions": environment(_PACKAGES),
        "seconds": time.perf_counter() - began,
    }
    write_text(output / "settings.json", json_text(about, indent=1) + "\n")
    return Reproduction(
        output,
        tables,
        _together("savings", tables),
        _together("verdicts", tables),
        all(all_hold(tables[experiment.name]["runs"]) for experiment in with_runs),
    )


def _write(experiment: Experiment, tables: Tables, plan: Plan, folder: Path) -> None:
    """Write all tables but the curves, which are long, and all figures of an experiment."""
    seed = f" --seed {plan.seed}" if plan.seed else ""
    head = origin(f"stepsize-opt reproduce {experiment.name}{seed} --datasets {','.join(plan.datasets)}")
    (folder / "tables").mkdir(exist_ok=True)
    for name, table in tables.items():
        if name != "curves":
            file = f"{experiment.name}_{name.replace(' ', '-')}.csv"
            write_text(folder / "tables" / file, f"{head}\n{table.to_csv(index=False)}")
    for figure in experiment.figures:
        figure.draw(tables, experiment.title, folder / "figures" / f"{experiment.name}_{figure.name}.png")


def _together(name: str, tables: Mapping[str, Tables]) -> pd.DataFrame:
    """Join the tables of one name of all experiments that have it."""
    found = [each[name] for each in tables.values() if name in each]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
