"""Measure and draw figure 1 of the README: the optimal D, γI and the paper's closed forms with the same sketch.

    python docs/first_page.py            run all panels, store docs/results/first_page*.csv, draw
    python docs/first_page.py --draw     draw the stored curves

Logistic regression with the ridge λ = 1e-2 on eight data sets, rand-k with k = d/20, d/10 and d/4.  The stepsizes of a
panel have the same k, seeds and starting point, and each is the optimal one of its kind for goal="descent";
"optimal D of (3)" has the largest determinant that condition (3) allows.  Nothing is tuned, but for the two tuned rows,
which take the best of seven multiples at each level.  Floats are those that one client sends until f − f* is below a
level, the median over the seeds; the loop is that of the README.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from stepsize_opt import Direction, RandK, optimal_stepsize
from stepsize_opt.problems import LogisticRegression, find_infimum
from stepsize_validation.data import load_dataset, logistic_regression
from stepsize_validation.figures import file_pyplot, save_figure
from stepsize_validation.origin import origin
from stepsize_validation.runs import log_steps

RESULTS = Path(__file__).resolve().parent / "results"
SETS = ("a1a", "phishing", "mushrooms", "australian_scale", "breast_cancer", "w1a", "ionosphere_scale", "heart_scale")
SHARES = (20, 10, 4)
LEVELS = (1e-2, 1e-4, 1e-6)
SEEDS, REG, POINTS = 5, 1e-2, 80
MOST = 400  # a run ends after the floats of so many dense gradients
MULTIPLES = 2.0 ** np.arange(0.0, 3.5, 0.5)
CGD, PAPER, OPTIMAL = "γI", "optimal D of (3)", "optimal D"
TUNED_CGD, TUNED = "γI, tuned", "cD, tuned"
CLOSED = ("γ diag⁻¹(L)", "γ L^−½", "γ L⁻¹", "det-CGD2")
BEST_CLOSED = "best closed form"
COLOURS = {CGD: "#888888", TUNED_CGD: "#bbbbbb", BEST_CLOSED: "#d98c21", PAPER: "#6baed6", OPTIMAL: "#08519c"}
LABELS = {CGD: "textbook CGD, best γI", OPTIMAL: "optimal D, descent"}
SHOWN, SHOWN_SHARE = ("breast_cancer", "a1a"), 10


@dataclass(frozen=True)
class Panel:
    """One objective and its k."""

    name: str
    f: LogisticRegression
    least: float
    k: int

    def stepsizes(self) -> dict[str, Any]:
        """Return each stepsize; det-CGD2 applies its own before the sketch."""
        L, sketch = self.f.smoothness(), RandK(self.f.d, self.k)
        w, V = np.linalg.eigh(L)
        directions = (np.diag(1.0 / np.diag(L)), (V / np.sqrt(w)) @ V.T, (V / w) @ V.T)
        stepsizes = {CGD: optimal_stepsize(L, sketch, structure="scalar", goal="descent").D}
        for name, W in zip(CLOSED, directions, strict=False):
            stepsizes[name] = optimal_stepsize(L, sketch, structure=Direction(W), goal="descent").D
        stepsizes["det-CGD2"] = optimal_stepsize(L, sketch, algorithm="det-CGD2", goal="descent").D
        stepsizes[PAPER] = optimal_stepsize(L, sketch).D
        stepsizes[OPTIMAL] = optimal_stepsize(L, sketch, goal="descent").D
        return stepsizes

    def run(self, D: Any, name: str) -> np.ndarray:
        """Return f − f* after 0, 1, … rounds, shape (rounds + 1, seeds); a run that rises above 10 Δ⁰ ends there."""
        d, k = self.f.d, self.k
        generators, X = [np.random.default_rng(seed) for seed in range(SEEDS)], np.zeros((SEEDS, d))
        gaps, S = [self.f.value(X) - self.least], np.zeros((SEEDS, d))
        while LEVELS[-1] < gaps[-1].max() <= 10.0 * gaps[0][0] and k * len(gaps) <= MOST * d:
            S[:] = 0.0
            for row, rng in zip(S, generators, strict=True):
                row[rng.choice(d, k, replace=False)] = d / k
            gradient = self.f.gradient(X)
            X = X - (S * (gradient @ D) if name == "det-CGD2" else (S * gradient) @ D)
            gaps.append(self.f.value(X) - self.least)
        return np.array(gaps)

    def runs(self) -> dict[str, list[np.ndarray]]:
        """Return the runs of each method: one, or one for each multiple where it is tuned."""
        D = self.stepsizes()
        runs = {name: [self.run(stepsize, name)] for name, stepsize in D.items()}
        for name, base in ((TUNED_CGD, CGD), (TUNED, OPTIMAL)):
            runs[name] = runs[base] + [self.run(c * D[base], name) for c in MULTIPLES[1:]]
        return runs

    def rate(self, structure: Literal["scalar", "full"]) -> float:
        """Return the largest proved t with E f(x^K) − f* ≤ (1 − t)^K (f(x⁰) − f*) that a D of this structure has."""
        L, M, sketch = self.f.smoothness(), self.f.strong_convexity(), RandK(self.f.d, self.k)
        return optimal_stepsize(L, sketch, structure=structure, goal="linear", strong_convexity=M).rate


def floats_to(gaps: np.ndarray, level: float, k: int) -> float:
    """Return the median over the seeds of the floats that a client sends until its gap is below a level."""
    below = gaps <= level
    return float(np.median(np.where(below.any(axis=0), k * below.argmax(axis=0), np.inf)))


def panels() -> Iterator[Panel]:
    """Return the panels: each data set with each of its k once."""
    for name in SETS:
        f = logistic_regression(load_dataset(name), REG, "ridge")
        least = find_infimum(f).found
        for k in sorted({max(1, f.d // share) for share in SHARES}):
            yield Panel(name, f, least, k)


def measure(panel: Panel) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the floats of each method to each level, and the curves of a panel that is drawn."""
    place = {"data": panel.name, "d": panel.f.d, "k": panel.k}
    runs = panel.runs()
    rows = [
        place
        | {"method": method}
        | {f"{level:g}": min(floats_to(gaps, level, panel.k) for gaps in tries) for level in LEVELS}
        for method, tries in runs.items()
    ]
    shown = panel.name in SHOWN and panel.k == panel.f.d // SHOWN_SHARE
    return pd.DataFrame(rows), curves(panel, runs).assign(**place) if shown else pd.DataFrame()


def curves(panel: Panel, runs: dict[str, list[np.ndarray]]) -> pd.DataFrame:
    """Return the median gap of each method with its range over the seeds at steps on a log scale.

    Two methods have a rate: the best that goal="linear" proves for γI, and for any D, which is another D than is run.
    """
    rates, parts = {CGD: panel.rate("scalar"), OPTIMAL: panel.rate("full")}, []
    for method, tries in runs.items():
        gaps = min(tries, key=lambda one: floats_to(one, LEVELS[-1], panel.k))
        rounds = np.concatenate([[0], log_steps(len(gaps) - 1, POINTS)])
        curve = pd.DataFrame({"method": method, "floats": panel.k * rounds, "median": np.median(gaps, axis=1)[rounds]})
        curve["least"], curve["most"] = gaps.min(axis=1)[rounds], gaps.max(axis=1)[rounds]
        curve["rate"] = rates.get(method, np.nan)
        parts.append(curve)
    return pd.concat(parts)


def draw() -> None:
    """Draw the stored curves, with the closed form that needs the fewest floats to the last level."""
    table = pd.read_csv(RESULTS / "first_page.csv", comment="#")
    stored = pd.read_csv(RESULTS / "first_page_curves.csv", comment="#")
    figure, axes = file_pyplot().subplots(1, 2, figsize=(6.8, 3.7), sharey=True, layout="constrained")
    for axis, name in zip(axes, SHOWN, strict=True):
        own = stored[stored["data"] == name]
        d, k = int(own["d"].iloc[0]), int(own["k"].iloc[0])
        closed = table.query("data == @name and k == @k and method in @CLOSED").set_index("method")["1e-06"].idxmin()
        last = own[own["method"] == CGD]["floats"].max()
        axis_floats = np.array([0.0, last])
        for label, colour in COLOURS.items():
            curve = own[own["method"] == (closed if label == BEST_CLOSED else label)]
            width = 2.4 if label == OPTIMAL else 1.6
            axis.plot(curve["floats"], curve["median"], color=colour, lw=width, label=LABELS.get(label, label))
            axis.fill_between(curve["floats"], curve["least"], curve["most"], color=colour, alpha=0.2, lw=0)
            bound = curve["median"].iloc[0] * (1.0 - curve["rate"].iloc[0]) ** (axis_floats / k)
            axis.plot(axis_floats, bound, color=colour, lw=1.2, ls=(0, (4, 2)))
        axis.set(yscale="log", ylim=(0.7 * LEVELS[-1], 1.0), xlim=(0, 1.02 * last))
        axis.set_title(f"{name}, $d = {d}$, $k = {k}$", fontsize=12)
        axis.tick_params(labelsize=10)
        axis.grid(visible=True, lw=0.4, alpha=0.5)
    figure.supxlabel("floats sent by one client", fontsize=12)
    figure.supylabel("$f - f^*$", fontsize=12)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=11, frameon=False)
    save_figure(figure, RESULTS / "first_page.png", dpi=200)


def main() -> None:
    if sys.argv[1:] != ["--draw"]:
        parts = []
        for panel in panels():
            parts.append(measure(panel))
            print(parts[-1][0].to_string(index=False), flush=True)
        for file, tables in zip(("first_page", "first_page_curves"), zip(*parts, strict=True), strict=True):
            text = pd.concat(tables).drop_duplicates().to_csv(index=False, float_format="%.6g")
            (RESULTS / f"{file}.csv").write_text(f"{origin('python docs/first_page.py')}\n{text}", encoding="utf-8")
    draw()


if __name__ == "__main__":
    main()
