"""Draw figures of several panels into files, without a display, in the styles of ``stepsize_opt.plots``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import atomic_write
from stepsize_opt.plots import Style, pyplot, styles_of
from stepsize_solvers.programs import Indices, Vector

# An entry of a legend takes up to 2.9 inches by 0.2.
_ENTRY = 2.9


@dataclass(frozen=True, eq=False)
class Line:
    """One curve of a panel: the mean at each x with half the width of its band."""

    label: str
    ours: bool
    x: Vector | Indices
    mean: Vector
    error: Vector


def draw_panels(
    panels: Mapping[str, Sequence[Line]], path: Path, *, title: str, x_label: str, y_label: str, columns: int = 3
) -> None:
    """Draw one panel for each name, on log scales, with one legend for all."""
    styles = styles_of((line.label, line.ours) for lines in panels.values() for line in lines)
    width = min(columns, len(panels))
    rows = -(-len(panels) // width)
    # A lone panel is wider than one of several, to make room for the legend.
    inches = max(4.0 * width, 6.5)
    legend_rows = -(-len(styles) // max(2, int(inches / _ENTRY)))
    header = 0.45 + 0.2 * legend_rows
    height = 2.9 * rows + header
    figure, axes = file_pyplot().subplots(rows, width, figsize=(inches, height), squeeze=False)
    handles: dict[str, Any] = {}
    for place, (axis, (name, lines)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        for line in lines:
            handles.setdefault(line.label, _draw_line(axis, line, styles))
        _finish_panel(axis, name)
        if place % width == 0:
            axis.set_ylabel(y_label, fontsize=9)
        if place + width >= len(panels):  # the lowest panel of its column
            axis.set_xlabel(x_label, fontsize=9)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.text(0.5, 1.0 - 0.22 / height, title, fontsize=12, ha="center")
    figure.legend(
        list(handles.values()),
        list(handles),
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0 - 0.28 / height),
        ncols=-(-len(styles) // legend_rows),
        fontsize=9,
        frameon=False,
        handlelength=3.5,
    )
    # Margins in inches: tight_layout, which measures every label twice, took half of the time of a figure.
    figure.subplots_adjust(
        left=0.85 / inches,
        right=1.0 - 0.15 / inches,
        bottom=0.5 / height,
        top=1.0 - (header + 0.3) / height,
        wspace=0.25,
        hspace=0.3,
    )
    save_figure(figure, path, dpi=130)


def _draw_line(axis: Any, line: Line, styles: Mapping[str, Style]) -> Any:
    style = styles[line.label]
    # A log axis has no place for the nonpositive end of a wide band: the band ends at a tenth of the mean.
    low = (line.mean - line.error).clip(0.1 * line.mean)
    axis.fill_between(line.x, low, line.mean + line.error, color=style.colour, alpha=0.15, linewidth=0)
    # Markers are shifted against each other, so that curves that coincide still show both.
    every = max(1, len(line.x) // 8)
    first = list(styles).index(line.label) * every // len(styles)
    return axis.plot(
        line.x,
        line.mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markevery=(first, every),
        markersize=4.5,
        linewidth=2.0 if line.ours else 1.4,
        zorder=3 if line.ours else 2,
    )[0]


def _finish_panel(axis: Any, name: str) -> None:
    axis.set(xscale="log", yscale="log")
    axis.set_title(name, fontsize=10)
    axis.grid(True, which="major", linewidth=0.4, alpha=0.5)
    axis.tick_params(which="both", labelsize=8)


def draw_bars(heights: Any, path: Path, *, colours: Sequence[str], y_label: str, log: bool = False) -> None:
    """Draw the columns of a pandas table as bars side by side, one group for each row, with a line at 1."""
    inches = 0.3 if log else 0.2  # for each bar; on a log axis each has its number above it
    figure, axis = file_pyplot().subplots(figsize=(max(6.5, 1.0 + inches * heights.size), 4.0))
    crowded = len(heights) > 8
    turned = {"rotation": 60 if crowded else 0, "ha": "right" if crowded else "center"}
    heights.plot.bar(ax=axis, width=0.8, color=list(colours), logy=log)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(heights)), heights.index, **turned)
    axis.tick_params(which="both", labelsize=8)
    axis.set(xlabel="")
    axis.set_ylabel(y_label, fontsize=9)
    axis.yaxis.set_major_formatter("{x:g}")
    if log:
        axis.minorticks_off()
        axis.yaxis.set_major_locator(file_pyplot().LogLocator(subs=(1.0, 2.0, 5.0)))
        for bars in axis.containers:
            axis.bar_label(bars, fmt=lambda height: f"{height:.3g}" if height > 0.0 else "", fontsize=7, padding=1)
        axis.margins(y=0.15)
    axis.legend(fontsize=8, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    save_figure(figure, path, dpi=130)


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure in the format that the name of the file ends in, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=dpi, format=path.suffix.removeprefix("."))
    file_pyplot().close(figure)


def file_pyplot() -> Any:
    """Return matplotlib.pyplot with a backend that needs no display; raise as ``stepsize_opt.plots.pyplot`` does."""
    plt = pyplot()
    plt.switch_backend("Agg")
    return plt
