"""The results of the solver benchmark: a file of JSON lines, read as a DataFrame, and its tables and sentences.

The first line of the file has its stamp, the settings and the environment, every other line one finished run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepsize_opt.saving import json_text, write_text
from stepsize_solvers.conic.backends import FINEST_ACCURACY
from stepsize_validation.bench.plan import NATIVE, BenchSettings

# A DataFrame or Series of pandas, whose own annotations call a choice of rows either of the two.
Frame = Any
RESULTS_FILE = "results.jsonl"
# A slope is fitted through so many of the largest sizes: at small ones overhead hides how the work grows.
_SLOPE_SIZES = 3
NOTHING = "–"
_RUN = ["problem", "label"]
_MACHINE = ("machine", "processor", "cores")


@dataclass(frozen=True, eq=False)
class Results:
    """Finished runs with the settings and the environment that they share, and the stamp of their file."""

    settings: BenchSettings
    environment: dict[str, str]
    runs: list[dict[str, Any]]
    origin: str = ""

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
            return Results(BenchSettings(**head["settings"]), head["environment"], runs, head.get("origin", ""))
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
    head = {"origin": fresh.origin, "settings": asdict(fresh.settings), "environment": fresh.environment}
    write_text(path, json_text(head) + "\n")
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
    return json.loads(json_text(value), parse_float=lambda digits: float(f"{float(digits):.6g}"))


def within(rungs: Frame, gap: float) -> Frame:
    """Return the first rung of each run whose certified gap is at most ``gap``."""
    return rungs[rungs["gap"] <= gap].drop_duplicates(["problem", "label"])


def power(gap: float) -> str:
    """Return a gap as a power of ten."""
    exponent = f"{round(np.log10(gap))}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{exponent}"


def competing(results: Results) -> Frame:
    """Return the rungs of the solvers that could run, closed forms included."""
    rungs = results.rungs
    return rungs[~rungs["iterate"] & ~rungs["solver"].isin(list(absent(results)))]


def absent(results: Results) -> dict[str, str]:
    """Return the solvers that could not run at all, each with the reason."""
    statuses = results.rungs.groupby("solver", sort=False)["run_status"].unique()
    return {
        solver: str(found[0]) for solver, found in statuses.items() if set(found) <= {"no licence", "not installed"}
    }


def seconds_to(rungs: Frame, gap: float) -> Frame:
    """Return the processor seconds to a certified gap: a row for each problem, a column for each solver."""
    order = rungs["solver"].drop_duplicates()
    return within(rungs, gap).pivot(index="problem", columns="solver", values="seconds").reindex(columns=order)


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


def _mean(ratios: Frame) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.log(ratios).mean()))


def summary(results: Results) -> list[str]:
    """Compare the native solver with the fastest other one in two sentences; empty if no problem was solved by both."""
    rungs, gap = competing(results), results.settings.main_target
    times = seconds_to(rungs, gap)
    if NATIVE not in times:
        return []
    # Building and compiling the model is left out in proportion to the elapsed time.
    solving = rungs.assign(seconds=rungs["seconds"] * rungs["solve"] / rungs["wall"])
    factors, solver_factors = (
        (found.drop(columns=NATIVE).min(axis=1) / times[NATIVE]).dropna() for found in (times, seconds_to(solving, gap))
    )
    if factors.empty:
        return []
    native = within(rungs[rungs["solver"] == NATIVE], gap).set_index("problem")["closed_form"]
    return [
        f"To a certified gap of {power(gap)} the fastest competing solver needs {_mean(factors):.3g} times the "
        f"processor time of the native solver (geometric mean over {len(factors)} problems, from {factors.min():.3g} "
        f"on {factors.idxmin()} to {factors.max():.3g} on {factors.idxmax()}); the native solver has a closed form for "
        f"{int(native[factors.index].sum())} of these problems.",
        "Without the time for building and compiling the models of the competing solvers the mean factor is "
        f"{_mean(solver_factors):.3g} and the smallest {solver_factors.min():.2g}, on {solver_factors.idxmin()}.",
    ]


def solver_table(results: Results) -> Frame:
    """Return one row for each solver: problems solved, time, growth, claims, memory."""
    import pandas as pd

    targets, main = results.settings.targets, results.settings.main_target
    gone, rungs = absent(results), results.rungs
    native = within(rungs[rungs["label"] == NATIVE], main).set_index("problem")["seconds"]
    rows = []
    shown = rungs[(rungs["run_status"] != "unsupported") & ~rungs["solver"].isin(list(gone))]
    for name, mine in shown.groupby("label", sort=False):
        reached = within(mine, main).set_index("problem")
        ratios = (reached["seconds"] / native).dropna()
        claimed = mine[mine["status"] == "optimal"]
        fit = growth(mine, main)
        problems = mine["problem"].nunique()
        rows.append(
            {
                "solver": name,
                **{f"{gap:.0e}": f"{len(within(mine, gap))}/{problems}" for gap in targets},
                "time": NOTHING if ratios.empty else f"{_mean(ratios):.3g}×",
                "growth": NOTHING if fit is None else f"d^{fit[0]:.1f}",
                "claims": f"{int((~(claimed['gap'] <= claimed['tol'])).sum())}/{len(claimed)}",
                "MB": f"{(mine['peak_mb'] - mine['base_mb']).max():.0f}",
            }
        )
    rows += [{"solver": name, f"{targets[0]:.0e}": reason} for name, reason in gone.items()]
    return pd.DataFrame(rows).fillna(NOTHING).set_index("solver")


def cells(results: Results, rungs: Frame) -> Frame:
    """Return each run's processor seconds to the main target as text, or why there are none: a status, a gap."""
    runs = rungs.groupby(_RUN, sort=False).agg(
        family=("family", "first"),
        d=("d", "first"),
        solver=("solver", "first"),
        status=("run_status", "first"),
        best=("gap", "min"),
    )
    runs["seconds"] = within(rungs, results.settings.main_target).set_index(_RUN)["seconds"]
    runs["text"] = runs["best"].map(lambda gap: f"gap {gap:.0e}", na_action="ignore").fillna("no answer")
    runs["text"] = runs["text"].where(runs["status"] == "done", runs["status"])
    runs["text"] = runs["seconds"].map(_seconds_text, na_action="ignore").fillna(runs["text"])
    return runs.reset_index()


def _seconds_text(seconds: float) -> str:
    """Write two significant digits, without an exponent."""
    return f"{seconds:.0f}" if seconds >= 10.0 else f"{seconds:.2g}" if seconds >= 0.001 else f"{seconds:.5f}"


def time_table(results: Results, family: str) -> Frame:
    """Return the times of one family: a row for each problem, a column for each solver."""
    rungs = competing(results)
    chosen = cells(results, rungs[rungs["family"] == family]).sort_values("d", kind="stable")
    table = chosen.pivot(index="problem", columns="solver", values="text")
    return table.reindex(index=chosen["problem"].unique(), columns=rungs["solver"].unique()).fillna(NOTHING)


def size_table(results: Results) -> Frame:
    """Return the times for growing d and how far a solver's own D is from feasible: a row for each solver."""
    rungs = competing(results)
    sizes = rungs[rungs["family"] == "size"]
    table = time_table(results, "size").T.rename_axis(columns=None)
    if len(table.columns):
        distances = within(sizes, results.settings.main_target).groupby("solver")["raw_violation"].median()
        table["infeasible by"] = distances.map("{:.0g}".format)
        for solver, reason in absent(results).items():
            table.loc[solver, table.columns[0]] = reason
    return table.fillna(NOTHING)


class Table(NamedTuple):
    """A table with its title and the sentence that tells what to see."""

    title: str
    text: str
    frame: Frame


_LEGEND = """How many problems each solver solves to each certified gap, and its time over that of the native solver to
the middle gap (geometric mean). *growth*: of the time over the three largest sizes; *claims*: answers called optimal
although their certified gap is above the tolerance; *MB*: peak memory beyond the libraries."""


def all_tables(results: Results) -> list[Table]:
    """Return every table that the results support."""
    gap = power(results.settings.main_target)
    times = f"processor seconds to a certified gap of {gap}; words tell why there are none, {NOTHING} means not run"
    own = "the median distance of the solver's own D from the feasible set, as a share of D"
    tables = (
        Table("Size", f"Growing d, condition number 10³: {times}; *infeasible by*: {own}.", size_table(results)),
        Table("Solvers", _LEGEND, solver_table(results)),
        Table("Real data", f"L of logistic regression: {times}.", time_table(results, "data")),
    )
    return [table for table in tables if table.frame.size]


_SETTINGS = """{processor}, {machine}, {cores} cores, threads per run: {threads}. Every run has its own process,
with at most {time_limit:g} processor seconds per rung and {memory_mb} MB beyond the libraries. Times are processor
seconds of the solve call (model, compilation by cvxpy and solver; no imports, no certificate), the median of {repeats}
below {repeat_below:g} s. rand-k sends max(1, ⌊d/4⌋) floats. Synthetic L have log-spaced eigenvalues, with condition
number 10² for sketches, structures and clients. To a solver behind cvxpy a tolerance t means residuals of t/100, never
below {finest:.0e}.

Versions: {versions}."""


def settings_text(results: Results) -> str:
    """Return what the runs have in common: machine, limits, versions."""
    env = results.environment
    versions = ", ".join(f"{name} {version}" for name, version in env.items() if name not in _MACHINE)
    return _SETTINGS.format(**env, **asdict(results.settings), versions=versions, finest=FINEST_ACCURACY)
