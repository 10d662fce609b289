"""Draw figures of several panels into files, without a display, in the styles of ``stepsize_opt.plots``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stepsize_opt.plots import Curve, log_axes, pyplot, styles_of
from stepsize_opt.saving import atomic_write


class Line(NamedTuple):
    """One curve of a panel, and whether its method is one of this project's."""

    label: str
    ours: bool
    curve: Curve


def draw_panels(
    panels: Mapping[str, Sequence[Line]], path: Path, *, title: str, x_label: str, y_label: str, columns: int = 3
) -> None:
    """Draw one panel for each name, on log scales, with one legend for all."""
    styles = styles_of((line.label, line.ours) for lines in panels.values() for line in lines)
    width = min(columns, len(panels))
    rows = -(-len(panels) // width)
    # A lone panel is wider than one of several, to make room for the legend.
    size = max(4.0 * width, 6.5), 2.9 * rows + 1.0
    figure, axes = file_pyplot().subplots(rows, width, figsize=size, squeeze=False, layout="constrained")
    handles: dict[str, Any] = {}
    for place, (axis, (name, lines)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        for label, ours, curve in lines:
            shift = list(styles).index(label) / len(styles)
            drawn = curve.plot(axis, styles[label], label=label, ours=ours, shift=shift)
            handles.setdefault(label, drawn)
        lowest = place + width >= len(panels)  # of its column
        log_axes(axis, x_label if lowest else "", y_label if place % width == 0 else "", name)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(title, fontsize=12)
    looks = {"ncols": width + 1, "fontsize": 9, "frameon": False, "handlelength": 3.5}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", **looks)
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
