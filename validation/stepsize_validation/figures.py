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


def draw_panels(panels: Mapping[str, Sequence[Line]], path: Path, *, title: str, x_label: str, y_label: str) -> None:
    """Draw one panel for each name, on log scales, with one legend for all."""
    styles = styles_of((line.label, line.ours) for lines in panels.values() for line in lines)
    width = min(3, len(panels))
    # A lone panel is wider than one of several, to make room for the legend.
    figure, axes = grid(len(panels), (max(4.0, 6.5 / width), 2.9), 1.0)
    handles: dict[str, Any] = {}
    for place, (axis, (name, lines)) in enumerate(zip(axes, panels.items(), strict=True)):
        for label, ours, curve in lines:
            shift = list(styles).index(label) / len(styles)
            drawn = curve.plot(axis, styles[label], label=label, ours=ours, shift=shift)
            handles.setdefault(label, drawn)
        lowest = place + width >= len(panels)  # of its column
        log_axes(axis, x_label if lowest else "", y_label if place % width == 0 else "", name)
    figure.suptitle(title, fontsize=12)
    looks = {"ncols": width + 1, "fontsize": 9, "frameon": False, "handlelength": 3.5}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", **looks)
    save_figure(figure, path, dpi=130)


def grid(count: int, size: tuple[float, float], more: float = 0.0, **options: Any) -> tuple[Any, Any]:
    """Return a figure with at most three panels of this size in a row, ``more`` inches higher, and the axes."""
    width = min(3, count)
    rows = -(-count // width)
    inches = size[0] * width, size[1] * rows + more
    figure, axes = file_pyplot().subplots(rows, width, figsize=inches, squeeze=False, layout="constrained", **options)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, axes.flat[:count]


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
