"""The jobs of a plan: cached, resumable and spread over processes.

A job is one panel.  Every curve ends as one npz file under ``output/raw/<experiment>/<data set>/<parameter>/``, with
its settings; a second call reads it back instead of running.  A run that was killed continues from its checkpoint to
the same numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stepsize_opt.problems import load_dataset
from stepsize_validation.experiments import running
from stepsize_validation.experiments.cache import file_name, kept, with_version
from stepsize_validation.experiments.catalogue import EXPERIMENTS, chosen
from stepsize_validation.experiments.choices import Choice, Panel
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.plan import DATASETS, Plan
from stepsize_validation.experiments.processes import in_processes
from stepsize_validation.runs import CheckpointError


@dataclass(frozen=True)
class Job:
    """One panel to run: τ for (b), the number of clients for (c), 0 otherwise."""

    experiment: str
    dataset: str
    parameter: int = 0

    def __str__(self) -> str:
        return f"({self.experiment}) {self.dataset}" + (f" {self.parameter}" if self.parameter else "")

    def panel(self, plan: Plan) -> Panel:
        """The objective, bounds on its infimum, and the choices."""
        return EXPERIMENTS[self.experiment].panel(load_dataset(self.dataset), plan, self.parameter)

    def settings(self, plan: Plan) -> dict[str, Any]:
        """What the curves of a job depend on: results with other settings are not reused, those with the same are."""
        experiment = EXPERIMENTS[self.experiment]
        used = {name: getattr(plan, name) for name in ("seeds", "seed", *experiment.settings)}
        return {**used, "iterations": experiment.steps(plan), "job": asdict(self)}


def jobs_of(plan: Plan, experiments: Sequence[str]) -> list[Job]:
    """The jobs of a plan, the long ones first so that the processes end together."""
    sets = {name: load_dataset(name) for name in plan.datasets}
    jobs = [
        Job(letter, name, parameter)
        for name, data in sets.items()
        for letter in chosen(experiments)
        for parameter in EXPERIMENTS[letter].parameters(data, plan)
    ]
    return sorted(jobs, key=lambda job: -sets[job.dataset].m)


def run_job(job: Job, plan: Plan, output: Path) -> list[Path]:
    """Run what is missing of a panel and return the files of its curves."""
    folder = output / "raw" / job.experiment / file_name(job.dataset) / (str(job.parameter) if job.parameter else "all")

    def make() -> list[str]:
        panel = job.panel(plan)
        return [_run_choice(panel, choice, plan, job.settings(plan), folder).name for choice in panel.choices]

    def complete(names: Sequence[str]) -> bool:
        return all((folder / name).exists() for name in names)

    return [folder / name for name in kept(folder / "done.npz", job.settings(plan), make, complete)]


def _run_choice(panel: Panel, choice: Choice, plan: Plan, settings: dict[str, Any], folder: Path) -> Path:
    key = with_version(settings)
    path = folder / f"{file_name(choice.label)}.npz"
    if path.exists() and _settings(path) == key:
        return path
    checkpoint = path.with_suffix(".checkpoint")
    try:
        curve = running.curve_of(panel, choice, plan, checkpoint)
    except CheckpointError:
        # Of other settings, or damaged: start afresh.
        checkpoint.unlink(missing_ok=True)
        curve = running.curve_of(panel, choice, plan, checkpoint)
    curve.meta["settings"] = key
    curve.save(path)
    checkpoint.unlink(missing_ok=True)
    return path


def _settings(path: Path) -> Any:
    """Those of a curve that is kept; None for a file that is damaged or of another version."""
    try:
        return Curve.load(path).meta["settings"]
    except CheckpointError:
        return None


def run_plan(
    plan: Plan,
    experiments: Sequence[str],
    output: Path,
    *,
    workers: int = 2,
    say: Callable[[str], None] | None = None,
) -> list[Curve]:
    """Run all jobs of a plan, in ``workers`` processes, and return every curve.

    ``say`` receives one line for each job that ends (default: printed to standard error).
    """
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    jobs = jobs_of(plan, experiments)
    paths: dict[Job, list[Path]] = {}
    began = time.perf_counter()
    for job, files in in_processes(partial(run_job, plan=plan, output=output), jobs, workers):
        paths[job] = files
        say(f"[{time.perf_counter() - began:6.0f} s] {len(paths)}/{len(jobs)} {job}")
    return [Curve.load(path) for job in sorted(jobs, key=_order) for path in paths[job]]


def _order(job: Job) -> tuple[str, int, str, int]:
    """By experiment, then data set in the order of the paper's list, then parameter."""
    known = DATASETS.index(job.dataset) if job.dataset in DATASETS else len(DATASETS)
    return job.experiment, known, job.dataset, job.parameter
