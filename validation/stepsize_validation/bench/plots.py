"""Figures of the solver benchmark: time against d, time against certified gap, performance profiles.

Colours are those of Okabe and Ito; every solver keeps its colour, line style and marker in all figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stepsize_validation.bench.analysis import (
    common_problems,
    competitors,
    default_grid,
    growth,
    performance_profiles,
    size_curve,
)
from stepsize_validation.bench.problems import ProblemSpec
from stepsize_validation.bench.records import NATIVE
from stepsize_validation.bench.store import Results
from stepsize_validation.experiments import pyplot, save_figure

_STYLES: dict[str, tuple[str, Any, str]] = {
    NATIVE: ("#D55E00", "-", "o"),
    "clarabel": ("#0072B2", "--", "^"),
    "mosek": ("#E69F00", (0, (1, 1)), "P"),
    "copt": ("#56B4E9", (0, (7, 2)), "X"),
    "cvxopt": ("#009E73", "-.", "D"),
    "sdpa": ("#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "v"),
    "scs": ("#000000", ":", "s"),
}
_OTHER = ("#777777", "-", "*")


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Every figure that the results support, as PNG files."""
    drawn = (
        time_against_size(results, folder / "time-size.png"),
        time_against_gap(results, folder / "time-gap.png"),
        profiles(results, folder / "profiles.png"),
    )
    return [path for path in drawn if path is not None]


def time_against_size(results: Results, path: Path) -> Path | None:
    """Seconds to the main target against d for the size family, with fitted lines; None without two sizes."""
    gap = results.settings.main_target
    curves = {label: size_curve(results, label, gap) for label in competitors(results)}
    curves = {label: curve for label, curve in curves.items() if curve[0].size}
    if max((curve[0].size for curve in curves.values()), default=0) < 2:
        return None
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(6.4, 4.2))
    for label, (d, seconds) in curves.items():
        colour, line, marker = _style(label)
        fit = growth(results, label, gap)
        name = label if fit is None else f"{label}, $d^{{{fit.slope:.1f}}}$"
        axis.plot(d, seconds, color=colour, linestyle=line, linewidth=1.4, marker=marker, markersize=6, label=name)
        if fit is not None:
            # Over the sizes that were fitted and a little beyond, wide and pale behind the points.
            ends = np.array([fit.sizes[0] / 1.1, fit.sizes[-1] * 1.1])
            axis.plot(ends, fit.seconds(ends), color=colour, linewidth=6.0, alpha=0.25, zorder=1)
    axis.set(xscale="log", yscale="log", xlabel="d", ylabel=f"processor seconds to certified gap {_power(gap)}")
    ticks = sorted({int(d) for curve in curves.values() for d in curve[0]})
    axis.set_xticks(ticks, [str(d) for d in ticks])
    axis.minorticks_off()
    return _finish(figure, axis, path)


def time_against_gap(results: Results, path: Path) -> Path | None:
    """Every rung: certified gap against seconds, on the largest synthetic and the largest real common problem."""
    problems = [_largest(results, family) for family in ("size", "data")]
    chosen = [problem for problem in problems if problem is not None]
    if not chosen:
        return None
    plt = pyplot()
    figure, axes = plt.subplots(1, len(chosen), figsize=(4.6 * len(chosen) + 0.6, 4.0), squeeze=False, sharey=True)
    for axis, problem in zip(axes[0], chosen, strict=True):
        for label in competitors(results):
            rungs = [rung for rung in default_grid(results)[problem][label].rungs if rung.gap]
            colour, line, marker = _style(label)
            points = sorted((rung.gap or 0.0, rung.seconds) for rung in rungs)
            x, y = [p[0] for p in points], [p[1] for p in points]
            axis.plot(x, y, color=colour, linestyle=line, marker=marker, markersize=5, linewidth=1.4, label=label)
        for target in results.settings.targets:
            axis.axvline(target, color="black", linewidth=0.6, alpha=0.4)
        axis.set(xscale="log", yscale="log", xlabel="certified gap", title=problem.name)
        axis.invert_xaxis()
    axes[0, 0].set_ylabel("processor seconds")
    return _finish(figure, axes[0, -1], path)


def _largest(results: Results, family: str) -> ProblemSpec | None:
    """The largest problem of a family on which every competitor has a certified rung."""
    grid = default_grid(results)
    found = [
        problem
        for problem in common_problems(results)
        if problem.family == family and all(grid[problem][label].best_gap for label in competitors(results))
    ]
    return max(found, key=lambda problem: problem.d, default=None)


def profiles(results: Results, path: Path) -> Path | None:
    """Dolan–Moré profiles, one panel for each target; None when nobody solved anything."""
    targets = [target for target in results.settings.targets if performance_profiles(results, target)]
    if not targets:
        return None
    plt = pyplot()
    figure, axes = plt.subplots(1, len(targets), figsize=(3.6 * len(targets) + 0.6, 3.8), squeeze=False, sharey=True)
    for axis, target in zip(axes[0], targets, strict=True):
        for profile in performance_profiles(results, target):
            colour, line, marker = _style(profile.label)
            axis.step(
                profile.factors,
                profile.fractions,
                where="post",
                color=colour,
                linestyle=line,
                marker=marker,
                markevery=0.15,
                markersize=5,
                linewidth=1.6,
                label=profile.label,
            )
        axis.set(
            xscale="log", ylim=(-0.02, 1.04), xlabel="factor of the fastest", title=f"certified gap {_power(target)}"
        )
    axes[0, 0].set_ylabel(f"fraction of {len(common_problems(results))} problems")
    return _finish(figure, axes[0, -1], path)


def _finish(figure: Any, legend_axis: Any, path: Path) -> Path:
    """Grids, a legend to the right of the last panel, and the file."""
    for axis in figure.axes:
        axis.grid(True, which="major", linewidth=0.4, alpha=0.5)
        axis.tick_params(labelsize=8)
    legend_axis.legend(fontsize=9, frameon=False, handlelength=3.5, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.tight_layout()
    save_figure(figure, path, dpi=110)
    pyplot().close(figure)
    return path


def _style(label: str) -> tuple[str, Any, str]:
    return _STYLES.get(label, _OTHER)


def _power(gap: float) -> str:
    return f"$10^{{{round(np.log10(gap))}}}$"
