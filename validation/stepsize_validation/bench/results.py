"""The results of the solver benchmark: a file of JSON lines, read as a DataFrame, and what is asked of it.

The first line of the file has the settings and the environment, every other line one finished run.
"""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import __version__
from stepsize_opt.inputs import json_text, write_text
from stepsize_validation.bench.plan import BenchSettings

# A DataFrame or Series of pandas, whose own annotations call a choice of rows either of the two.
Frame = Any
RESULTS_FILE = "results.jsonl"
# A slope is fitted through so many of the largest sizes: at small ones overhead hides how the work grows.
_SLOPE_SIZES = 3
_PACKAGES = ("numpy", "scipy", "cvxpy", "clarabel", "scs", "mosek", "cvxopt", "sdpa-python", "coptpy")


@dataclass(frozen=True, eq=False)
class Results:
    """Finished runs with the settings and the environment that they share."""

    settings: BenchSettings
    environment: dict[str, str]
    runs: list[dict[str, Any]]

    @cached_property
    def rungs(self) -> Frame:
        """One row for each rung, and one for each run without any, with the columns of the run repeated.

        Raises ValueError without a run.
        """
        import pandas as pd

        if not self.runs:
            msg = "no run is finished: stepsize-opt bench without --report makes the runs"
            raise ValueError(msg)
        rows = [{**run, **rung} for run in self.runs for rung in run["rungs"] or [{}]]
        return pd.DataFrame(rows).drop(columns="rungs")

    @staticmethod
    def read(folder: Path) -> Results:
        """Read the results in a folder; a last line that was cut off by a kill is dropped.

        Raises FileNotFoundError without results, ValueError for a file of another kind.
        """
        path = folder / RESULTS_FILE
        if not path.is_file():
            msg = f"no benchmark results at {path}; stepsize-opt bench -o {folder} makes them"
            raise FileNotFoundError(msg)
        try:
            head, *runs = [json.loads(line) for line in _whole_lines(path)]
            return Results(BenchSettings(**head["settings"]), dict(head["environment"]), runs)
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{path} is not a file of benchmark results: {error}; choose another --output, or --no-resume"
            raise ValueError(msg) from error


def open_results(folder: Path, fresh: Results, resume: bool) -> Results:
    """Return the results in a folder to continue, or fresh ones; the file then ends with a whole line."""
    path = folder / RESULTS_FILE
    if resume and path.is_file():
        found = Results.read(folder)
        _check_same_conditions(path, found, fresh)
        write_text(path, "".join(_whole_lines(path)))
        return found
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json_text({"settings": asdict(fresh.settings), "environment": fresh.environment}) + "\n")
    return fresh


def _whole_lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8") as file:
        return [line for line in file if line.endswith("\n")]


def _check_same_conditions(path: Path, found: Results, fresh: Results) -> None:
    """Raise ValueError where timings of different machines, versions or limits would end up in one table."""
    before = {**asdict(found.settings), **found.environment}
    now = {**asdict(fresh.settings), **fresh.environment}
    differing = [
        f"{name} was {before.get(name, 'absent')}, is {value}"
        for name, value in now.items()
        if before.get(name) != value
    ]
    if differing:
        msg = (
            f"{path} was measured under other conditions ({'; '.join(differing)}); "
            "choose another --output, or --no-resume to start over"
        )
        raise ValueError(msg)


def rounded(value: Any) -> Any:
    """Round floats to six significant digits: timings have no more, and files stay small."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def environment() -> dict[str, str]:
    """Return versions and the kind of machine."""
    out = {"python": platform.python_version(), "machine": platform.machine(), "processor": _processor()}
    out |= {"cores": str(os.cpu_count()), "stepsize-opt": __version__}
    for package in _PACKAGES:
        try:
            out[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            out[package] = "not installed"
    return out


def _processor() -> str:
    """Return the model name that Linux gives, otherwise what Python knows."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def within(rungs: Frame, gap: float) -> Frame:
    """Return the first rung of each run whose certified gap is at most ``gap``."""
    return rungs[rungs["gap"] <= gap].drop_duplicates(["problem", "label"])


def competing(results: Results) -> Frame:
    """Return the rungs in default formulation of the solvers that could run."""
    rungs = results.rungs
    return rungs[rungs["default"] & ~rungs["solver"].isin(list(absent(results)))]


def absent(results: Results) -> dict[str, str]:
    """Return the solvers that could not run at all, each with the reason."""
    statuses = results.rungs.groupby("solver", sort=False)["run_status"].unique()
    return {
        solver: str(found[0]) for solver, found in statuses.items() if set(found) <= {"no licence", "not installed"}
    }


def seconds_to(rungs: Frame, gap: float, values: str = "seconds") -> Frame:
    """Return the processor seconds to a certified gap: a row for each problem, a column for each solver."""
    order = rungs["solver"].drop_duplicates()
    return within(rungs, gap).pivot(index="problem", columns="solver", values=values).reindex(columns=order)


def common(rungs: Frame) -> list[str]:
    """Return the problems that every solver was given and supports."""
    supported = rungs[rungs["run_status"] != "unsupported"]
    counts = supported.groupby("problem", sort=False)["solver"].nunique()
    return list(counts.index[counts == rungs["solver"].nunique()])


def growth(rungs: Frame, gap: float) -> tuple[float, Frame] | None:
    """Fit seconds ≈ c·d^slope through the three largest sizes that one solver solved; None with fewer.

    Returns the slope and the fitted seconds, with d as the index.
    """
    sizes = within(rungs[rungs["family"] == "size"], gap).sort_values("d").tail(_SLOPE_SIZES).set_index("d")["seconds"]
    if len(sizes) < _SLOPE_SIZES:
        return None
    slope, intercept = np.polyfit(np.log(sizes.index), np.log(sizes), 1)
    return float(slope), np.exp(intercept + slope * np.log(sizes.index.to_series()))
