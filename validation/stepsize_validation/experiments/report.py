"""One HTML file with all figures, tables, settings and versions, and the numbers behind them.

``reproduce`` runs the experiments, the sensitivity study and Table 1, and writes under its output folder:
``report.html`` (self-contained), ``figures/*.png``, ``tables.json`` and ``raw/**/*.npz``, one file for each curve.
"""

from __future__ import annotations

import base64
import html
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import json_text, write_text
from stepsize_opt.node import communication_table
from stepsize_opt.problems import LogisticRegression, load_dataset
from stepsize_validation.experiments import sensitivity
from stepsize_validation.experiments.curve import Curve
from stepsize_validation.experiments.figures import BITS, EUCLIDEAN, ITERATIONS, WEIGHTED, Axis, bar_savings, draw
from stepsize_validation.experiments.panels import EXPERIMENTS
from stepsize_validation.experiments.study import Job, Plan, build_panel, curve_of, predicted_savings, run_plan
from stepsize_validation.experiments.tables import (
    BITS_NOTE,
    as_html,
    curve_records,
    saved_iterations,
    savings,
    verdicts,
)

TITLES = {
    "a": "(a) One node, rand-1",
    "b": "(b) One node, rand-τ with τ = d/4, d/2, 3d/4",
    "c": "(c) Distributed, rand-1, stepsizes from conditions (12)",
    "d": "(d) Layers: Bern-q against rand-k at equal bits",
}
_FIGURES: dict[str, tuple[tuple[Axis, Axis], ...]] = {
    "a": ((ITERATIONS, WEIGHTED), (BITS, WEIGHTED)),
    "b": ((ITERATIONS, WEIGHTED), (BITS, WEIGHTED)),
    "c": ((ITERATIONS, WEIGHTED), (ITERATIONS, EUCLIDEAN), (BITS, WEIGHTED)),
    "d": ((BITS, WEIGHTED), (ITERATIONS, WEIGHTED)),
}
_TEXT = {
    "a": "With rand-1 every method sends one number a round, so both axes order the curves alike. Each curve is in the "
    "norm of its own D, scaled to determinant 1, as in the paper.",
    "b": "D₂* is the optimum of det-CGD2. The paper runs det-CGD1 with it as well; where det-CGD1's condition does not "
    "allow D₂*, Theorem 1 promises nothing, and its bound can fail.",
    "c": "Conditions (12) ask for small steps: K in the tables is what they need for ε². The steps run here are fewer, "
    "and the best curves are compared at the level that both reach. Δ^inf is estimated by long runs, as in the paper.",
    "d": "All compressed methods send equally many numbers on average. Bern-q with one q for all layers needs "
    "as many bits as no compression at all (the paper's “compression for free”); rand-k needs more.",
}
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;max-width:1250px;margin:2em auto;padding:0 1em;color:#111}"
    "table{border-collapse:collapse;font-size:12.5px;margin:.8em 0}td,th{border-bottom:1px solid #ccc;"
    "padding:.2em .6em;text-align:left}th{background:#f2f2f2}.ours{font-weight:600}img{max-width:100%}"
    "details{margin:.6em 0}summary{cursor:pointer;color:#0072B2}code{background:#f2f2f2;padding:0 .2em}"
)
# A sensitivity study solves 160 problems for each data set: minutes up to this d, an hour at the 300 of w1a.
_SENSITIVITY_D = 150
_PACKAGES = ("stepsize-opt", "numpy", "scipy", "cvxpy", "scs", "clarabel", "scikit-learn", "matplotlib")


@dataclass(frozen=True, eq=False)
class Reproduction:
    """What :func:`reproduce` made: the folder, the curves and the tables (as in ``tables.json``)."""

    output: Path
    curves: tuple[Curve, ...]
    tables: dict[str, Any]

    @property
    def report(self) -> Path:
        return self.output / "report.html"

    @property
    def all_hold(self) -> bool:
        """Whether no choice that satisfies its condition violated its bound."""
        return not any(
            curve.meta["feasible"] and (curve.meta["diverged_at"] is not None or curve.meta["verdict"] == "violated")
            for curve in self.curves
        )


def reproduce(
    experiments: Sequence[str],
    output: Path,
    plan: Plan | None = None,
    *,
    workers: int = 2,
    say: Callable[[str], None] | None = None,
) -> Reproduction:
    """Run the experiments that are not cached yet and write the report.

    Raises ValueError for an unknown experiment, FileNotFoundError for a data set that is not there.
    """
    chosen = plan or Plan()
    names = [one for one in EXPERIMENTS if one in set(experiments)] if "all" not in experiments else list(EXPERIMENTS)
    unknown = sorted(set(experiments) - {*EXPERIMENTS, "all"})
    if unknown or not names:
        msg = f"unknown experiment {', '.join(unknown)}; choose from {', '.join(EXPERIMENTS)} or all"
        raise ValueError(msg)
    began = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    curves = run_plan(chosen, names, output, workers=workers, report=say)
    tables: dict[str, Any] = {
        "settings": asdict(chosen),
        "versions": versions(),
        "savings": savings(curves),
        "verdicts": verdicts(curves),
        "curves": curve_records(curves),
    }
    if "a" in names:
        tables["predicted"] = predicted_savings(chosen)
        tables.update(_studies(chosen, output, workers, say))
    figures = _draw_all(curves, tables["savings"], output / "figures")
    tables["seconds"] = time.perf_counter() - began
    tables["run_seconds"] = sum(float(curve.meta["seconds"]) for curve in curves)
    write_text(output / "tables.json", json_text(tables, indent=1) + "\n")
    write_text(output / "report.html", _page(names, tables, figures))
    return Reproduction(output, tuple(curves), tables)


def _studies(plan: Plan, output: Path, workers: int, say: Callable[[str], None] | None) -> dict[str, Any]:
    """Sensitivity on the data sets whose many solves are cheap, Table 1 on the smallest."""
    sets = [load_dataset(name) for name in plan.datasets]
    smallest = min(sets, key=lambda one: one.d)
    names = [name for name, one in zip(plan.datasets, sets, strict=True) if one is smallest or one.d <= _SENSITIVITY_D]
    tasks = sensitivity.tasks_of(
        names,
        plan.reg,
        iterations=plan.iterations_b,
        seeds=plan.seeds,
        epsilon2=plan.epsilon2,
        draws=plan.draws,
    )
    rows = sensitivity.run_tasks(tasks, output / "raw" / "sensitivity", workers=workers, say=say)
    table = communication_table(LogisticRegression.from_dataset(smallest, plan.reg).smoothness())
    return {
        **rows,
        "margins": sensitivity.worst_margins(rows["subsamples"]),
        "table 1": {"data": smallest.name, "k": list(table.k), "rows": table.to_records()},
    }


def _draw_all(curves: Sequence[Curve], saved: Sequence[dict[str, Any]], folder: Path) -> dict[str, list[Path]]:
    out: dict[str, list[Path]] = {}
    for name, axes in _FIGURES.items():
        group = [curve for curve in curves if curve.meta["experiment"] == name]
        if group:
            out[name] = [draw(group, x, y, TITLES[name], folder / f"{name}_{y.name}_{x.name}.png") for x, y in axes]
    bars = [record for record in saved if record["experiment"] == "a"]
    if bars:
        out["savings"] = [bar_savings(bars, folder / "savings.png")]
    return out


def _page(names: Sequence[str], tables: dict[str, Any], figures: dict[str, list[Path]]) -> str:
    parts = [
        "<h1>Matrix stepsizes for compressed gradient descent: the experiments, with the optimal D</h1>",
        "<p>Logistic regression with the non-convex regulariser λ Σ x²/(1+x²), true gradients (checked by finite "
        "differences), L = AᵀA/(4m) + 2λI. Verdicts compare the mean over seeds, with a one-sided confidence bound, "
        "with the bound of the theorem; see the settings below.</p>",
        "<h2>What the optimal D saves</h2>",
        "<p>Iterations saved by the optimal D over the best of the paper's choices that satisfies its condition, for "
        "each data set: predicted by the theory, and observed until G_K reaches the level. Where the share is "
        "negative, det-CGD2 with its own optimum is the better method.</p>",
        as_html(saved_iterations(tables["savings"]), list(saved_iterations(tables["savings"])[0])),
        *(_image(path) for path in figures.get("savings", ())),
        "<details><summary>As ratios, with levels and certified gaps</summary>",
        as_html(tables["savings"], list(tables["savings"][0])),
        "</details>",
        "<h2>Do the bounds hold?</h2>",
        as_html(
            [{"experiment": name, **counts} for name, counts in tables["verdicts"].items()],
            ["experiment", "holds", "undecided", "violated", "diverged"],
        ),
    ]
    columns = [name for name in tables["curves"][0] if name not in ("experiment", "ours")]
    for name in names:
        parts += [f"<h2>{html.escape(TITLES[name])}</h2>", f"<p>{html.escape(_TEXT[name])}</p>"]
        parts += [_image(path) for path in figures.get(name, ())]
        records = [record for record in tables["curves"] if record["experiment"] == name]
        parts.append(
            f"<details><summary>K and bits to the level, verdicts</summary>{as_html(records, columns)}"
            f"<p>{html.escape(BITS_NOTE)}.</p></details>"
        )
    if "predicted" in tables:
        parts += [
            "<h2>Predicted savings for two regularisations</h2>",
            "<p>For rand-1 the diagonal stepsize is globally optimal just when the smallest eigenvalue of the "
            "correlation matrix of L is at least ½; a large λ brings it there, and nothing is left to save.</p>",
            as_html(tables["predicted"], list(tables["predicted"][0])),
            "<h2>Sensitivity to L</h2>",
            "<p>L taken as factor·L:</p>",
            as_html(tables["factors"], list(tables["factors"][0])),
            "<p>L estimated from a fraction of the rows:</p>",
            as_html(tables["subsamples"], list(tables["subsamples"][0])),
            "<p>The largest margin that 95 % of the draws need on any of these data sets:</p>",
            as_html(tables["margins"], list(tables["margins"][0])),
            f"<h2>Table 1 of the paper for {html.escape(str(tables['table 1']['data']))}, computed and as printed</h2>",
            as_html(
                tables["table 1"]["rows"],
                ["row", "method", "sketch", "stepsize", "computed", "printed", "differs", "note"],
            ),
        ]
    settings = html.escape(json_text({"plan": tables["settings"], "versions": tables["versions"]}, indent=1))
    parts += [
        "<h2>Settings and versions</h2>",
        f"<p>Computing time of the runs: {tables['run_seconds']:.0f} s; this call took {tables['seconds']:.0f} s.</p>",
        f"<pre>{settings}</pre>",
    ]
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>stepsize-opt: experiments</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _image(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<p><img alt="{html.escape(path.stem)}" src="data:image/png;base64,{data}"></p>'


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that the results depend on."""
    out = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


def demo_figure(
    path: Path, data: str = "breast_cancer", reg: float = 1e-3, iterations: int = 1500, seeds: int = 8
) -> Path:
    """Experiment (a) on one data set as one figure; seconds on embedded data with the default sizes."""
    plan = Plan(datasets=(data,), reg=reg, seeds=seeds, iterations_a=iterations)
    panel, infimum = build_panel(Job("a", data), plan)
    curves = [curve_of(panel, choice, infimum, plan) for choice in panel.choices]
    return draw(curves, ITERATIONS, WEIGHTED, f"{TITLES['a']}: {data}, λ = {reg:g}", path)
