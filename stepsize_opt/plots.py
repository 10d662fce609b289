"""The one way to draw: styles, curves with bands, log axes, eigenvalues; drawing imports matplotlib.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart.  Every style also has its own
line pattern and marker, so that plots survive a black-and-white print.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from stepsize_solvers.programs import Indices, Matrix, Vector


class Style(NamedTuple):
    """How a line is drawn; ``line`` is a name or a dash pattern of matplotlib."""

    colour: str
    line: Any
    marker: str


# This project's methods have styles of their own; all others take the second list in order of appearance.
OURS = (
    Style("#D55E00", "-", "o"),
    Style("#7A3B00", (0, (8, 1)), "*"),
    Style("#882255", (0, (4, 1, 1, 1)), "h"),
    Style("#332288", (0, (2, 1)), "<"),
    Style("#999933", (0, (6, 1, 1, 1)), ">"),
)
OTHERS = (
    Style("#000000", ":", "s"),
    Style("#0072B2", "--", "^"),
    Style("#009E73", "-.", "D"),
    Style("#CC79A7", (0, (5, 1, 1, 1, 1, 1)), "v"),
    Style("#E69F00", (0, (1, 1)), "P"),
    Style("#56B4E9", (0, (7, 2)), "X"),
)


STYLES = (*OTHERS, *OURS)
GUARANTEE = ", guarantee"  # ends the label of a dashed line


def styles_of(labels: Iterable[tuple[str, bool]]) -> dict[str, Style]:
    """Assign a style to each (label, ours), in order of first appearance."""
    ours, others = cycle(OURS), cycle(OTHERS)
    return {label: next(ours if mine else others) for label, mine in dict.fromkeys(labels)}


@dataclass(frozen=True, eq=False)
class Curve:
    """A mean at each x, with half the width of the band around it, and what is guaranteed there, if anything is."""

    x: Vector | Indices
    mean: Vector
    error: Vector
    bound: Vector | None = None

    @staticmethod
    def over_seeds(x: Vector | Indices, values: Matrix, bound: Vector | None = None) -> Curve:
        """Return the mean of values, one row for each seed, with two standard errors."""
        error = 2.0 * values.std(axis=0) / max(1.0, len(values) - 1.0) ** 0.5
        return Curve(x, values.mean(axis=0), error, bound)

    def plot(self, ax: Any, style: Style, *, label: str, ours: bool = False, shift: float = 0.0) -> Any:
        """Draw the curve, its band and its guarantee, dashed, on matplotlib axes; return the line of the curve.

        ``shift``, from 0 to 1, moves the markers along the curve, so that curves that coincide show both.
        """
        # A log axis has no place for the nonpositive end of a wide band: the band ends at a tenth of the mean.
        low = (self.mean - self.error).clip(0.1 * self.mean)
        ax.fill_between(self.x, low, self.mean + self.error, color=style.colour, alpha=0.15, linewidth=0)
        every = max(1, len(self.x) // 8)
        (line,) = ax.plot(
            self.x,
            self.mean,
            label=label,
            color=style.colour,
            linestyle=style.line,
            marker=style.marker,
            markevery=(int(shift * every), every),
            markersize=4.5,
            linewidth=2.0 if ours else 1.4,
            zorder=3 if ours else 2,
        )
        if self.bound is not None:
            ax.plot(self.x, self.bound, "--", color=style.colour, linewidth=1.0, label=f"{label}{GUARANTEE}")
        return line


def log_axes(ax: Any, x_label: str = "", y_label: str = "", title: str = "") -> None:
    """Give matplotlib axes log scales, labels, a title and a pale grid."""
    ax.set(xscale="log", yscale="log")
    ax.set_xlabel(x_label, fontsize=9)
    ax.set_ylabel(y_label, fontsize=9)
    ax.set_title(title, fontsize=10)
    ax.grid(visible=True, which="major", color="0.9")
    ax.tick_params(which="both", labelsize=8)


def pyplot() -> Any:
    """Return matplotlib.pyplot; raise ModuleNotFoundError with the extra to install when matplotlib is missing."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        msg = "plots need matplotlib: pip install matplotlib"
        raise ModuleNotFoundError(msg) from error
    return plt


def axes_or_new(ax: Any, size: tuple[float, float] = (6.0, 4.2)) -> Any:
    """Return the axes given, or those of a new figure of this size in inches."""
    return pyplot().subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def plot_eigenvalues(matrices: Mapping[str, Matrix], ax: Any = None) -> Any:
    """Draw the eigenvalues of symmetric positive definite matrices, the largest first; return the axes."""
    ax = axes_or_new(ax)
    styles = styles_of((name, i == 0) for i, name in enumerate(matrices))
    for name, matrix in matrices.items():
        values = np.linalg.eigvalsh(matrix)[::-1]
        style = styles[name]
        ax.semilogy(range(1, len(values) + 1), values, style.marker, color=style.colour, markersize=4.5, label=name)
    ax.set_xlabel("eigenvalues, largest first", fontsize=9)
    ax.grid(visible=True, which="major", color="0.9")
    ax.tick_params(which="both", labelsize=8)
    ax.legend(fontsize=8, frameon=False)
    return ax
