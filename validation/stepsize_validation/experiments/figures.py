"""Figures in the paper's layout: one panel for each data set and setting, log scales, one legend.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; every method also has its own line
style and marker, so the figures survive a black-and-white print.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import atomic_write
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.experiments.axes import Axes
from stepsize_validation.experiments.curve import Curve, by_panel


@dataclass(frozen=True)
class Style:
    """How a line is drawn; ``line`` is a name of matplotlib's or a pattern of dashes."""

    colour: str
    line: Any
    marker: str


# In order of first appearance; the optimal D of this project has styles of its own.
_OURS = (
    Style("#D55E00", "-", "o"),
    Style("#7A3B00", (0, (8, 1)), "*"),
    Style("#882255", (0, (4, 1, 1, 1)), "h"),
    Style("#332288", (0, (2, 1)), "<"),
    Style("#999933", (0, (6, 1, 1, 1)), ">"),
)
_STYLES = (
    Style("#000000", ":", "s"),
    Style("#0072B2", "--", "^"),
    Style("#009E73", "-.", "D"),
    Style("#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "v"),
    Style("#E69F00", (0, (1, 1)), "P"),
    Style("#56B4E9", (0, (7, 2)), "X"),
)

# Of the bars: what is drawn, and its colour.
_BARS = {"predicted": "#0072B2", "observed": "#E69F00"}


def draw(curves: Sequence[Curve], shown: Axes, title: str, path: Path, columns: int = 3) -> Path:
    """One figure with a panel for each (data set, variant): the mean over seeds, shaded by two standard errors."""
    plt = pyplot()
    x, y = shown.x, shown.y
    groups = by_panel(curves)
    styles = _assign_styles(curves)
    rows = -(-len(groups) // columns)
    width = min(columns, len(groups))
    # A lone panel is wider, for the sake of the legend; an entry of the legend takes up to 2.9 inches by 0.2.
    inches = max(4.0 * width, 6.5)
    legend_rows = -(-len(styles) // max(2, int(inches / 2.9)))
    header = 0.45 + 0.2 * legend_rows
    height = 2.9 * rows + header
    figure, axes = plt.subplots(rows, width, figsize=(inches, height), squeeze=False)
    handles: dict[str, Any] = {}
    for axis, (panel, group) in zip(axes.flat, groups.items(), strict=False):
        for curve in group:
            handles.setdefault(curve.meta["label"], _line(axis, x.of(curve), y.of(curve), curve, styles))
        axis.set(xscale="log", yscale="log", title=f"{panel.dataset}, {panel.variant}")
        axis.title.set_fontsize(10)
        axis.grid(True, which="major", linewidth=0.4, alpha=0.5)
        axis.tick_params(which="both", labelsize=8)
    for axis in axes.flat[len(groups) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel(y.label, fontsize=9)
    # The lowest visible panel of each column carries the label of its x axis.
    for column in range(width):
        lowest = max(row for row in range(rows) if row * width + column < len(groups))
        axes[lowest, column].set_xlabel(x.label, fontsize=9)
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
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - header / height))
    save_figure(figure, path, dpi=130)
    plt.close(figure)
    return path


def _line(axis: Any, x: Vector, y: Matrix, curve: Curve, styles: dict[str, Style]) -> Any:
    style = styles[curve.meta["label"]]
    mean = y.mean(axis=0)
    error = 2.0 * y.std(axis=0) / max(1.0, len(y) - 1.0) ** 0.5
    # A log axis has no place for the nonpositive end of a wide band: it ends at a tenth of the mean.
    axis.fill_between(x, (mean - error).clip(0.1 * mean), mean + error, color=style.colour, alpha=0.15, linewidth=0)
    # Markers are shifted against each other so that curves that coincide still show both.
    order = list(styles).index(curve.meta["label"])
    every = max(1, len(x) // 8)
    return axis.plot(
        x,
        mean,
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markevery=(order * every // max(1, len(styles)), every),
        markersize=4.5,
        linewidth=2.0 if curve.meta["ours"] else 1.4,
        zorder=3 if curve.meta["ours"] else 2,
    )[0]


def _assign_styles(curves: Sequence[Curve]) -> dict[str, Style]:
    labels = dict.fromkeys((curve.meta["label"], curve.meta["ours"]) for curve in curves)
    ours, others = cycle(_OURS), cycle(_STYLES)
    return {label: next(ours if mine else others) for label, mine in labels}


def bar_savings(records: Sequence[dict[str, Any]], path: Path) -> Path:
    """Predicted and observed savings of the optimal D, a row for each experiment, under each guarantee."""
    plt = pyplot()
    letters = list(dict.fromkeys(record["experiment"] for record in records))
    series = [(g, key) for g in dict.fromkeys(record["guarantee"] for record in records) for key in _BARS]
    groups = {letter: [record for record in records if record["experiment"] == letter] for letter in letters}
    panels = {letter: list(dict.fromkeys(map(_panel_name, group))) for letter, group in groups.items()}
    # At least as wide as the legend and the label of the axis are.
    inches = max(6.5, 1.5 + 0.3 * max(map(len, panels.values())) * len(series))
    figure, axes = plt.subplots(len(letters), 1, figsize=(inches, 0.6 + 2.7 * len(letters)), squeeze=False)
    for axis, letter in zip(axes[:, 0], letters, strict=True):
        _bars(axis, groups[letter], panels[letter], series)
        axis.set_title(f"({letter})", fontsize=10, loc="left")
        axis.set_ylabel("paper's best / optimal D", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, frameon=False, ncols=len(series), loc="upper center")
    figure.tight_layout(rect=(0.0, 0.0, 1.0, 1.0 - 0.3 / (0.6 + 2.7 * len(letters))))
    save_figure(figure, path, dpi=130)
    plt.close(figure)
    return path


def _panel_name(record: dict[str, Any]) -> str:
    return f"{record['data']}\n{record['variant']}"


def _bars(
    axis: Any, records: Sequence[dict[str, Any]], names: Sequence[str], series: Sequence[tuple[str, str]]
) -> None:
    wide = 0.8 / len(series)
    for i, (guarantee, key) in enumerate(series):
        found = {_panel_name(record): record[key] or 0.0 for record in records if record["guarantee"] == guarantee}
        heights = [found.get(name, 0.0) for name in names]
        bars = axis.bar(
            [place + wide * (i - 0.5 * (len(series) - 1)) for place in range(len(names))],
            heights,
            0.95 * wide,
            label=f"{guarantee}, {key}",
            color=_BARS[key],
            hatch="" if guarantee == "condition" else "//",
            edgecolor="black",
            linewidth=0.5,
        )
        axis.bar_label(bars, labels=[f"{h:.3g}" if h else "" for h in heights], fontsize=7, padding=1)
    axis.axhline(1.0, color="black", linewidth=0.8)
    crowded = len(names) > 8
    axis.set_xticks(range(len(names)), names, rotation=60 if crowded else 0, ha="right" if crowded else "center")
    axis.tick_params(which="both", labelsize=7)
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.yaxis.set_major_locator(pyplot().LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.margins(y=0.15)


def bar_efficiency(curves: Sequence[Curve], path: Path) -> Path:
    """For each data set, the rate that each method guarantees over the limit for as many floats per round."""
    plt = pyplot()
    sets = list(dict.fromkeys(curve.meta["dataset"] for curve in curves))
    styles = _assign_styles(curves)
    figure, axis = plt.subplots(figsize=(max(6.5, 1.0 + 1.6 * len(sets)), 4.0))
    width = 0.8 / len(styles)
    for i, (label, style) in enumerate(styles.items()):
        shares = {c.meta["dataset"]: c.meta["efficiency"] or 0.0 for c in curves if c.meta["label"] == label}
        places = [at + (i - (len(styles) - 1) / 2.0) * width for at, name in enumerate(sets) if name in shares]
        axis.bar(places, [shares[name] for name in sets if name in shares], width, label=label, color=style.colour)
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(sets)), sets)
    axis.tick_params(which="both", labelsize=8)
    axis.set_ylabel("guaranteed rate / limit", fontsize=9)
    axis.legend(fontsize=8, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    save_figure(figure, path, dpi=130)
    plt.close(figure)
    return path


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure in the format that the name of the file ends in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=dpi, format=path.suffix.removeprefix("."))


def pyplot() -> Any:
    """matplotlib.pyplot with a backend that needs no display."""
    try:
        import matplotlib
    except ImportError as error:
        msg = "figures need matplotlib: pip install 'stepsize-opt[plots]'"
        raise ModuleNotFoundError(msg) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt
