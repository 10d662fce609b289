"""Running the experiments: jobs that are cached, resumable and spread over processes.

Every curve ends as one npz file under ``output/raw/<experiment>/<data set>/<variant>/``, with its settings; a second
call reads it back instead of running.  A run that was killed continues from its checkpoint to the same numbers.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import __version__
from stepsize_opt.inputs import positive_number, whole_number
from stepsize_opt.node import iterations_needed
from stepsize_opt.problems import (
    Dataset,
    Federated,
    FederatedInfimum,
    Infimum,
    LogisticRegression,
    find_infimum,
    load_dataset,
)
from stepsize_solvers.programs import Matrix
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.panels import DATASETS, EXPERIMENTS, Choice, Panel, panel_a, panel_b, panel_d, taus
from stepsize_validation.runs import (
    CheckpointError,
    Run,
    check_distributed_rate,
    check_rate,
    read_checkpoint,
    run,
    write_checkpoint,
)

# Entries of all the clients' matrices together in (c): beyond this (w1a, d = 300, with 100 clients) a solve takes
# longer than the default time limit.
_CLIENT_ENTRIES = 3_000_000


@dataclass(frozen=True)
class Plan:
    """What is run, and how long; everything that the results depend on.

    iterations: K for each experiment; clients: the client counts of (c); layers, fraction: of (d).
    epsilon2: the level that the tables ask for in (a), (b), (d); epsilon2_distributed: ε² of conditions (12) in (c).
    time_limit: seconds for each distributed solve; one that runs out of time keeps its feasible D and reports its gap.
    draws: subsamples for each fraction of the sensitivity study.
    """

    datasets: tuple[str, ...] = DATASETS
    reg: float = 1e-3
    reg_distributed: float = 0.1
    seeds: int = 16
    seed: int = 0
    iterations_a: int = 3000
    iterations_b: int = 1000
    iterations_c: int = 1000
    iterations_d: int = 1000
    clients: tuple[int, ...] = (10, 30, 100)
    layers: int = 4
    fraction: float = 0.25
    epsilon2: float = 1e-3
    epsilon2_distributed: float = 1e-4
    time_limit: float = 180.0
    draws: int = 20

    def __post_init__(self) -> None:
        for name in ("reg", "reg_distributed", "epsilon2", "epsilon2_distributed", "time_limit"):
            positive_number(name, getattr(self, name))
        for name in ("seeds", "iterations_a", "iterations_b", "iterations_c", "iterations_d", "layers", "draws"):
            whole_number(name, getattr(self, name))
        if not 0.0 < self.fraction <= 1.0:
            msg = f"fraction must be in (0, 1], got {self.fraction!r}"
            raise ValueError(msg)

    @staticmethod
    def quick(datasets: Sequence[str] = ("breast_cancer",)) -> Plan:
        """Sizes for a look within a minute, on data that is always there."""
        return Plan(
            tuple(datasets),
            seeds=6,
            iterations_a=600,
            iterations_b=300,
            iterations_c=200,
            iterations_d=400,
            clients=(5,),
            epsilon2=1e-2,
            draws=4,
        )

    def iterations(self, experiment: str) -> int:
        return int(getattr(self, f"iterations_{experiment}"))


@dataclass(frozen=True)
class Job:
    """One panel to run: τ for (b), the number of clients for (c), 0 otherwise."""

    experiment: str
    dataset: str
    parameter: int = 0


def jobs_of(plan: Plan, experiments: Sequence[str]) -> list[Job]:
    """The jobs of a plan, the long ones first so that the processes end together."""
    unknown = sorted(set(experiments) - set(EXPERIMENTS))
    if unknown:
        msg = f"unknown experiment {', '.join(unknown)}; choose from {', '.join(EXPERIMENTS)}"
        raise ValueError(msg)
    jobs: list[Job] = []
    for name in plan.datasets:
        data = load_dataset(name)
        if "c" in experiments:
            jobs += [Job("c", name, n) for n in client_counts(plan, data)]
        jobs += [Job(one, name) for one in ("a", "d") if one in experiments]
        if "b" in experiments:
            jobs += [Job("b", name, tau) for tau in dict.fromkeys(taus(data.d))]
    # Cost grows with the number of entries of the data; names of equal cost keep their order.
    size = {name: load_dataset(name).m for name in plan.datasets}
    return sorted(jobs, key=lambda job: -size[job.dataset])


def client_counts(plan: Plan, data: Dataset) -> list[int]:
    """The client counts of a plan that one data set gets: all whose n matrices of size d×d stay small, and the least.

    Examining n different Lᵢ costs about n d³ in every round of the solver.
    """
    possible = sorted(n for n in plan.clients if n <= data.m)
    return [n for n in possible if n == possible[0] or n * data.d**2 <= _CLIENT_ENTRIES]


def build_panel(job: Job, plan: Plan) -> tuple[Panel, Infimum | FederatedInfimum]:
    """The objective, its choices and bounds on the infima."""
    data = load_dataset(job.dataset)
    if job.experiment == "c":
        from stepsize_validation.experiments.distributed import panel_c

        return panel_c(
            data,
            plan.reg_distributed,
            job.parameter,
            plan.epsilon2_distributed,
            plan.iterations_c,
            plan.seed,
            plan.time_limit,
        )
    if job.experiment == "a":
        panel = panel_a(data, plan.reg)
    elif job.experiment == "b":
        panel = panel_b(data, plan.reg, job.parameter)
    else:
        panel = panel_d(data, plan.reg, min(plan.layers, data.d), plan.fraction)
    return panel, find_infimum(panel.objective)


def run_job(job: Job, plan: Plan, output: Path) -> list[Path]:
    """Run what is missing of a panel and return the files of its curves; one thread for each process."""
    from threadpoolctl import threadpool_limits

    folder = output / "raw" / job.experiment / _slug(job.dataset) / (str(job.parameter) if job.parameter else "all")
    settings = _settings(plan, job)
    done = folder / "done.npz"
    if done.exists():
        meta, _ = read_checkpoint(done, meta=("settings", "files"))
        paths = [folder / name for name in meta["files"]]
        if meta["settings"] == settings and all(path.exists() for path in paths):
            return paths
    with threadpool_limits(limits=1):
        panel, infimum = build_panel(job, plan)
        paths = [_run_choice(panel, choice, infimum, plan, settings, folder) for choice in panel.choices]
    write_checkpoint(done, {"settings": settings, "files": [path.name for path in paths]}, {})
    return paths


def _settings(plan: Plan, job: Job) -> dict[str, Any]:
    """What the curves of a job depend on: results with other settings are not reused, those with the same are."""
    fields = ["seeds", "seed", f"iterations_{job.experiment}"]
    fields += (
        ["reg_distributed", "epsilon2_distributed", "time_limit"] if job.experiment == "c" else ["reg", "epsilon2"]
    )
    fields += ["layers", "fraction"] if job.experiment == "d" else []
    out: dict[str, Any] = _plain({name: getattr(plan, name) for name in fields} | {"job": asdict(job)})
    return out | {"version": __version__}


def _run_choice(
    panel: Panel,
    choice: Choice,
    infimum: Infimum | FederatedInfimum,
    plan: Plan,
    settings: dict[str, Any],
    folder: Path,
) -> Path:
    path = folder / f"{_slug(choice.label)}.npz"
    if path.exists() and Curve.load(path).meta["settings"] == settings:
        return path
    checkpoint = path.with_suffix(".checkpoint")
    try:
        curve = curve_of(panel, choice, infimum, plan, checkpoint)
    except CheckpointError:
        # Of other settings, or damaged: start afresh.
        checkpoint.unlink(missing_ok=True)
        curve = curve_of(panel, choice, infimum, plan, checkpoint)
    curve.meta["settings"] = settings
    curve.save(path)
    checkpoint.unlink(missing_ok=True)
    return path


def curve_of(
    panel: Panel,
    choice: Choice,
    infimum: Infimum | FederatedInfimum,
    plan: Plan,
    checkpoint: Path | None = None,
) -> Curve:
    """Run one choice of a panel and check its bound."""
    began = time.perf_counter()
    record = run(
        panel.objective,
        choice.D,
        choice.sketch,
        algorithm=choice.algorithm,
        iterations=plan.iterations(panel.experiment),
        seeds=plan.seeds,
        seed=plan.seed,
        checkpoint=checkpoint,
        on_divergence="stop",
    )
    seconds = time.perf_counter() - began
    return Curve.of(_describe(panel, choice, infimum, record, plan) | {"seconds": seconds}, record)


def _describe(
    panel: Panel, choice: Choice, infimum: Infimum | FederatedInfimum, record: Run, plan: Plan
) -> dict[str, Any]:
    if isinstance(infimum, FederatedInfimum):
        assert isinstance(panel.objective, Federated) and choice.lambda_D is not None
        check = check_distributed_rate(record, panel.objective.n, choice.lambda_D, infimum)
        whole, delta_inf, epsilon2 = infimum.whole, infimum.delta_inf, plan.epsilon2_distributed
    else:
        check = check_rate(record, infimum, theorem=choice.theorem)
        whole, delta_inf, epsilon2 = infimum, None, plan.epsilon2
    theory = choice.theory_iterations
    if theory is None:
        theory = float(iterations_needed(choice.rate, epsilon2, record.start_value - whole.found))
    found: dict[str, Any] = _plain(
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
            "gap": choice.gap,
            "lambda_D": choice.lambda_D,
            "epsilon2": epsilon2,
            "theory_iterations": theory,
            "iterations": record.iterations,
            "seeds": record.seeds,
            "diverged_at": record.diverged_at,
            "initial_value": record.start_value,
            "f_inf_found": whole.found,
            "f_inf_proved": whole.proved,
            "delta_inf": delta_inf,
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


def run_plan(
    plan: Plan,
    experiments: Sequence[str],
    output: Path,
    *,
    workers: int = 2,
    report: Callable[[str], None] | None = None,
) -> list[Curve]:
    """Run all jobs of a plan, in ``workers`` processes, and return every curve.

    ``report`` receives one line for each job that ends (default: printed to standard error).
    """
    say = report or (lambda line: print(line, file=sys.stderr, flush=True))
    jobs = jobs_of(plan, experiments)
    paths: dict[Job, list[Path]] = {}
    began = time.perf_counter()
    for job, files in _finished(jobs, plan, output, whole_number("workers", workers)):
        paths[job] = files
        what = f"({job.experiment}) {job.dataset}" + (f" {job.parameter}" if job.parameter else "")
        say(f"[{time.perf_counter() - began:6.0f} s] {len(paths)}/{len(jobs)} {what}")
    return [Curve.load(path) for job in jobs_in_order(jobs) for path in paths[job]]


def _finished(jobs: Sequence[Job], plan: Plan, output: Path, workers: int) -> Iterator[tuple[Job, list[Path]]]:
    if workers == 1:
        yield from ((job, run_job(job, plan, output)) for job in jobs)
        return
    # Spawned, because a fork after numerical libraries have started their threads can hang.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_job, job, plan, output): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def jobs_in_order(jobs: Sequence[Job]) -> list[Job]:
    """By experiment, then data set in the order of the paper's list, then parameter."""
    known = {name: i for i, name in enumerate(DATASETS)}
    return sorted(
        jobs, key=lambda job: (job.experiment, known.get(job.dataset, len(known)), job.dataset, job.parameter)
    )


def predicted_savings(plan: Plan, regs: Sequence[float] = (1e-3, 1e-1)) -> list[dict[str, Any]]:
    """Rates alone, without runs: the best of the paper's choices against the optimal D of det-CGD1, for rand-1."""
    rows = []
    for name in plan.datasets:
        data = load_dataset(name)
        for reg in regs:
            panel = panel_a(data, reg)
            ours = next(choice for choice in panel.choices if choice.ours)
            best = max((choice for choice in panel.choices if not choice.ours), key=lambda choice: choice.rate)
            C = _correlation(LogisticRegression.from_dataset(data, reg).smoothness())
            rows.append(
                {
                    "dataset": name,
                    "reg": reg,
                    "paper": best.label,
                    "saving": ours.rate / best.rate,
                    "gap": ours.gap,
                    "smallest_correlation_eigenvalue": float(np.linalg.eigvalsh(C)[0]),
                }
            )
    return rows


def _correlation(L: Matrix) -> Matrix:
    scale = 1.0 / np.sqrt(np.diagonal(L))
    return scale[:, None] * L * scale


def _slug(text: str) -> str:
    """A name for a file: letters, digits, dots and hyphens, with subscripts as digits."""
    plain = text.translate(str.maketrans("₁₂₃⁻¹ᵢ−γ*", "123-1i-gs"))
    return re.sub(r"[^A-Za-z0-9.]+", "-", plain).strip("-")


def _plain(value: Any) -> Any:
    """Numbers, strings, lists and dictionaries only, as JSON gives them back."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value
