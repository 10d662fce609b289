"""Tables, summary and page of the solver benchmark, made of the rungs of its results."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepsize_opt.inputs import write_text
from stepsize_solvers.conic import FINEST_ACCURACY
from stepsize_validation.bench.plan import NATIVE
from stepsize_validation.bench.plots import FIGURES, draw_all
from stepsize_validation.bench.results import Frame, Results, absent, competing, growth, seconds_to, within

PAGE = "benchmark.md"
NOTHING = "–"
_RUN = ["problem", "label"]
_MACHINE = ("machine", "processor", "cores")


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
        f"To a certified gap of {_power(gap)} the fastest competing solver needs {_mean(factors):.3g} times the "
        f"processor time of the native solver (geometric mean over {len(factors)} problems, from {factors.min():.3g} "
        f"on {factors.idxmin()} to {factors.max():.3g} on {factors.idxmax()}); the native solver has a closed form for "
        f"{int(native[factors.index].sum())} of these problems.",
        "Without the time for building and compiling the models of the competing solvers the mean factor is "
        f"{_mean(solver_factors):.3g} and the smallest {solver_factors.min():.2g}, on {solver_factors.idxmin()}.",
    ]


def _power(gap: float) -> str:
    exponent = f"{round(np.log10(gap))}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{exponent}"


def solver_table(results: Results) -> Frame:
    """Return one row for each solver: problems solved, time, growth, raw points, claims, memory."""
    import pandas as pd

    targets, main = results.settings.targets, results.settings.main_target
    gone, rungs = absent(results), results.rungs
    native = within(rungs[rungs["label"] == NATIVE], main).set_index("problem")["seconds"]
    rows = []
    shown = rungs[(rungs["default"] | rungs["iterate"]) & ~rungs["solver"].isin(list(gone))]
    names = shown["solver"].where(shown["default"], shown["label"])
    for name, mine in shown[shown["run_status"] != "unsupported"].groupby(names, sort=False):
        reached = within(mine, main).set_index("problem")
        ratios = (reached["seconds"] / native).dropna()
        claimed = mine[mine["status"] == "optimal"]
        fit = growth(mine, main)
        violation = reached["raw_violation"].median()
        problems = mine["problem"].nunique()
        rows.append(
            {
                "solver": name,
                **{f"{gap:.0e}": f"{len(within(mine, gap))}/{problems}" for gap in targets},
                "time": NOTHING if ratios.empty else f"{_mean(ratios):.3g}×",
                "growth": NOTHING if fit is None else f"d^{fit[0]:.1f}",
                "outside": NOTHING if pd.isna(violation) else f"{violation:.0e}",
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


def time_table(results: Results, *families: str) -> Frame:
    """Return the times of some families: a row for each problem, a column for each solver."""
    rungs = competing(results)
    chosen = cells(results, rungs[rungs["family"].isin(families)])
    if "size" in families or "data" in families:
        chosen = chosen.sort_values("d", kind="stable")
    table = chosen.pivot(index="problem", columns="solver", values="text")
    return table.reindex(index=chosen["problem"].unique(), columns=rungs["solver"].unique()).fillna(NOTHING)


def formulation_table(results: Results, d: float) -> Frame:
    """Return the times of all formulations at one size of the size family: a row for each solver behind cvxpy."""
    rungs = results.rungs
    same = rungs[(rungs["family"] == "size") & (rungs["d"] == d) & (rungs["lift"] != "")]
    chosen = cells(results, same[~same["solver"].isin(list(absent(results)))])
    chosen["formulation"] = chosen["label"].str.extract(r"\((.*)\)", expand=False)
    return chosen.pivot(index="solver", columns="formulation", values="text").fillna(NOTHING)


class Table(NamedTuple):
    """A table with its title and the sentence that tells what to see."""

    title: str
    text: str
    frame: Frame

    def __str__(self) -> str:
        align = ("left", *["right"] * len(self.frame.columns))
        text: str = self.frame.to_markdown(disable_numparse=True, colalign=align)
        return text


_LEGEND = """How many problems each solver solves to each certified gap, and its time over that of the native solver to
the middle gap (geometric mean). *growth*: of the time over the three largest sizes; *outside*: median distance of the
solver's own point from the feasible set; *claims*: answers called optimal although their certified gap is above the
tolerance; *MB*: peak memory beyond the libraries."""


def all_tables(results: Results) -> list[Table]:
    """Return every table that the results support."""
    gap, rungs = _power(results.settings.main_target), results.rungs
    varied = rungs[~rungs["default"] & ~rungs["iterate"]]["d"].max()
    times = f"processor seconds to a certified gap of {gap}; words tell why there are none, {NOTHING} means not run."
    rest = ("condition", "structure", "distributed")
    tables = (
        Table("Solvers", _LEGEND, solver_table(results)),
        Table("Size", f"Growing d, condition number 10³: {times}", time_table(results, "size")),
        Table("Real data", f"L of logistic regression: {times}", time_table(results, "data")),
        Table("Sketches", f"All kinds of sketch at one size: {times}", time_table(results, "sketch")),
        Table("Conditioning, structure, clients", f"One size: {times}", time_table(results, *rest)),
        Table("Formulations", f"d = {varied}, condition number 10³: {times}", formulation_table(results, varied)),
    )
    return [table for table in tables if len(table.frame)]


_HEAD = """# Solver benchmark

Solvers are compared at equal *certified* gap. Each climbs a ladder of tolerances; the first answer counts whose
repaired point is proved feasible and proved within the gap, whatever the solver's own tolerance was.
`stepsize-opt bench` measures and writes this page, `stepsize-opt bench --report` writes it again from the stored runs
(`results.jsonl`)."""

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


def page(results: Results, figures: list[str]) -> str:
    """Return the text of ``benchmark.md``: summary, the figures of the given names, tables, settings."""
    blocks = [_HEAD, " ".join(summary(results))]
    for name in figures:
        blocks += [f"![{name.removesuffix('.png')}]({name})", f"*{FIGURES[name].caption}*"]
    for table in all_tables(results):
        blocks += [f"## {table.title}", table.text, str(table)]
    return "\n\n".join(block for block in [*blocks, "## Settings", settings_text(results)] if block) + "\n"


def write_report(results: Results, folder: Path) -> list[Path]:
    """Write the figures and the page ``benchmark.md``; return what was written."""
    figures = draw_all(results, folder)
    write_text(folder / PAGE, page(results, figures))
    return [folder / name for name in (*figures, PAGE)]
