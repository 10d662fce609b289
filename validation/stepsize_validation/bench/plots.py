"""Figures of the solver benchmark: time against d, time against certified gap, performance profiles.

Every solver keeps its colour, line style and marker in all figures.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt.plots import styles_of
from stepsize_validation.bench.plan import NATIVE
from stepsize_validation.bench.results import Frame, Results, common, competing, growth, power, seconds_to, within
from stepsize_validation.figures import file_pyplot, save_figure


def draw_all(results: Results, folder: Path) -> list[str]:
    """Write every figure that the results support as a PNG file; return their names."""
    written = []
    for name, draw in FIGURES.items():
        figure = draw(results)
        if figure is None:
            continue
        for axis in figure.axes:
            axis.grid(visible=True, which="major", color="0.9")
            axis.tick_params(labelsize=8)
        legend = {"fontsize": 9, "frameon": False, "handlelength": 3.5}
        figure.axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), **legend)
        figure.tight_layout()
        save_figure(figure, folder / name, dpi=110)
        written.append(name)
    return written


def _time_against_size(results: Results) -> Any:
    rungs, gap = competing(results), results.settings.main_target
    sizes = within(rungs[rungs["family"] == "size"], gap).sort_values("d")
    if sizes["d"].nunique() < 2:
        return None
    figure, axis = file_pyplot().subplots(figsize=(6.4, 4.2))
    styles = _styles(results)
    for solver, mine in sizes.groupby("solver", sort=False):
        fit = growth(mine, gap)
        name = solver if fit is None else f"{solver}, $d^{{{fit[0]:.1f}}}$"
        axis.plot(mine["d"], mine["seconds"], label=name, **styles[solver])
        if fit is not None:
            # Over the sizes that were fitted, wide and pale behind the points.
            axis.plot(fit[1], color=styles[solver]["color"], linewidth=6.0, alpha=0.25, zorder=1)
    axis.set(xscale="log", yscale="log", xlabel="d", ylabel=f"processor seconds to certified gap {power(gap)}")
    axis.set_xticks(sizes["d"].unique(), [str(d) for d in sizes["d"].unique()])
    axis.minorticks_off()
    return figure


def _time_against_gap(results: Results) -> Any:
    rungs = competing(results)
    certified = rungs[rungs["gap"] > 0.0]
    largest = [
        _largest(certified[certified["family"] == family], rungs["solver"].nunique()) for family in ("size", "data")
    ]
    problems = [problem for problem in largest if problem is not None]
    if not problems:
        return None
    styles = _styles(results)
    figure, axes = _panels(len(problems), 4.6)
    for axis, problem in zip(axes, problems, strict=True):
        for solver, mine in certified[certified["problem"] == problem].groupby("solver", sort=False):
            points = mine.sort_values("gap")
            axis.plot(points["gap"], points["seconds"], label=solver, **styles[solver])
        for target in results.settings.targets:
            axis.axvline(target, color="black", linewidth=0.6, alpha=0.4)
        axis.set(xscale="log", yscale="log", xlabel="certified gap", title=problem)
        axis.invert_xaxis()
    axes[0].set_ylabel("processor seconds")
    return figure


def _largest(certified: Frame, solvers: int) -> str | None:
    """Return the largest problem on which every solver has a certified rung."""
    runs = certified.groupby("problem").agg(d=("d", "first"), solvers=("solver", "nunique"))
    complete = runs[runs["solvers"] == solvers]
    return None if complete.empty else str(complete["d"].idxmax())


def _profiles(results: Results) -> Any:
    rungs = competing(results)
    problems = common(rungs)
    times = {gap: seconds_to(rungs, gap).reindex(index=problems) for gap in results.settings.targets}
    times = {gap: found for gap, found in times.items() if found.notna().any(axis=None)}
    if not times:
        return None
    styles = _styles(results)
    figure, axes = _panels(len(times), 3.6)
    for axis, (gap, found) in zip(axes, times.items(), strict=True):
        # Dolan and Moré (2002); a problem that nobody solves counts against everybody.
        factors = found.div(found.min(axis=1), axis=0)
        # A step at every factor that occurs, and a little beyond the last one so that the end can be seen.
        points = np.unique([1.0, *factors.stack(), 2.0 * factors.max(axis=None)])
        for solver in factors:
            fractions = [(factors[solver] <= point).mean() for point in points]
            axis.step(points, fractions, where="post", markevery=0.15, label=solver, **styles[solver])
        axis.set(xscale="log", ylim=(-0.02, 1.04), xlabel="factor of the fastest", title=f"certified gap {power(gap)}")
    axes[0].set_ylabel(f"fraction of {len(problems)} problems")
    return figure


# A function draws its figure, or returns None when the results do not support it.
FIGURES: dict[str, Callable[[Results], Any]] = {
    "time-size.png": _time_against_size,
    "time-gap.png": _time_against_gap,
    "profiles.png": _profiles,
}


def _styles(results: Results) -> dict[str, dict[str, Any]]:
    names = results.rungs["solver"].unique()
    styles = styles_of((name, name == NATIVE) for name in names)
    return {name: {"color": one.colour, "linestyle": one.line, "marker": one.marker} for name, one in styles.items()}


def _panels(count: int, width: float) -> tuple[Any, Any]:
    figure, axes = file_pyplot().subplots(1, count, figsize=(width * count + 0.6, 3.9), squeeze=False, sharey=True)
    return figure, axes[0]
