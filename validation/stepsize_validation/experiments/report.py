"""Run the experiments that are asked for, and write one self-contained report.

``reproduce`` leaves ``report.html``, ``figures/*.png``, ``tables.json`` and the results of its jobs, ``cache/``, in its
output folder.
"""

from __future__ import annotations

import base64
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment

from stepsize_opt import __version__
from stepsize_opt.inputs import json_text, write_text
from stepsize_opt.plots import OTHERS, OURS
from stepsize_validation.experiments import clients, layers, limit, rand_one, rand_tau, sensitivity, versus
from stepsize_validation.experiments.spec import Experiment, Figure, Plan, Tables
from stepsize_validation.experiments.sweep import sweep
from stepsize_validation.experiments.tables import all_hold, compared, saved_iterations
from stepsize_validation.figures import draw_bars, file_pyplot
from stepsize_validation.runs import BITS_NOTE, LEVEL

_MODULES = (rand_one, rand_tau, clients, layers, limit, versus, sensitivity)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
_PACKAGES = ("numpy", "scipy", "cvxpy", "scs", "clarabel", "joblib", "pandas")
_BARS = {
    "paper, predicted": OTHERS[1],
    "paper, observed": OTHERS[5],
    "descent, predicted": OURS[0],
    "descent, observed": OTHERS[4],
}
_TEMPLATE = Path(__file__).with_name("report.html.jinja")


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The result of ``reproduce``: the report, and the tables of each experiment by name.

    savings: what the optimal D saves; verdicts: how many bounds hold; all_hold: whether none is violated.
    """

    report: Path
    tables: dict[str, Tables]
    savings: pd.DataFrame
    verdicts: pd.DataFrame
    all_hold: bool

    def to_dict(self) -> dict[str, Any]:
        """Return all tables but the curves as records, for JSON."""
        return {
            name: {kind: _records(table) for kind, table in tables.items() if kind != "curves"}
            for name, tables in self.tables.items()
        }


def chosen(names: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these names, in the order of the report; ``all`` names every one.

    Raises ValueError for an unknown name, or none at all.
    """
    unknown = sorted(set(names) - {*EXPERIMENTS, "all"})
    if unknown or not names:
        msg = f"unknown experiment {', '.join(unknown)}; choose from {', '.join(EXPERIMENTS)} or all"
        raise ValueError(msg)
    return [experiment for name, experiment in EXPERIMENTS.items() if name in names or "all" in names]


def print_progress(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def reproduce(
    names: Sequence[str],
    output: Path,
    plan: Plan | None = None,
    *,
    workers: int = 2,
    say: Callable[[str], None] = print_progress,
) -> Reproduction:
    """Run the jobs that have no result in the output folder yet, and write the report.

    ``say`` receives one line for each job that ends.  Raises ValueError for an unknown experiment, FileNotFoundError
    for an unknown data set.
    """
    plan, experiments, began = plan or Plan(), chosen(names), time.perf_counter()
    file_pyplot()  # A missing matplotlib is found before the runs rather than after them.
    tables = sweep(experiments, plan, output / "cache", workers=workers, say=say)
    experiments = [experiment for experiment in experiments if experiment.name in tables]
    with_runs = [experiment for experiment in experiments if experiment.panel is not None]
    for experiment in with_runs:
        tables[experiment.name] |= compared(experiment, tables[experiment.name])
    done = Reproduction(
        output / "report.html",
        tables,
        _together("savings", tables),
        _together("verdicts", tables),
        all(all_hold(tables[experiment.name]["runs"]) for experiment in with_runs),
    )
    about = {
        "settings": {**asdict(plan), "iterations": {one.name: one.steps(plan) for one in experiments}},
        "versions": {"python": platform.python_version(), "stepsize-opt": __version__}
        | {name: version(name) for name in _PACKAGES},
        "seconds": time.perf_counter() - began,
    }
    write_text(output / "tables.json", json_text({**about, "tables": done.to_dict()}, indent=1) + "\n")
    write_text(done.report, _page(experiments, done, about, output / "figures"))
    return done


def _page(experiments: Sequence[Experiment], done: Reproduction, about: Mapping[str, Any], folder: Path) -> str:
    """Draw the figures and fill in the template."""
    sections = []
    for experiment in experiments:
        tables, pictures = done.tables[experiment.name], []
        for figure in (*experiment.figures, *([_SAVINGS] if experiment.panel else [])):
            path = folder / f"{experiment.name}_{figure.name}.png"
            figure.draw(tables, experiment.title, path)
            pictures.append((base64.b64encode(path.read_bytes()).decode("ascii"), figure.caption))
        sections.append((experiment, tables, pictures))
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["cell"] = _cell
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        **about,
        made=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        level=f"{LEVEL:.1%}",
        bits_note=BITS_NOTE,
        savings=done.savings,
        shares=saved_iterations(done.savings) if len(done.savings) else None,
        verdicts=done.verdicts,
        sections=sections,
        run_seconds=sum(tables["runs"]["seconds"].sum() for tables in done.tables.values() if "runs" in tables),
    )


def _draw_savings(tables: Tables, title: str, path: Path) -> None:
    """Draw predicted and observed savings of the optimal D for each goal, a group of bars for each panel."""
    saved = tables["savings"].assign(panel=tables["savings"]["data"] + "\n" + tables["savings"]["variant"])
    ratios = saved.pivot(index="panel", columns="goal", values=["predicted", "observed"])
    ratios.columns = [f"{goal}, {kind}" for kind, goal in ratios.columns]
    ratios = ratios.loc[saved["panel"].unique(), [name for name in _BARS if name in ratios]]
    colours = [_BARS[name].colour for name in ratios]
    draw_bars(ratios, path, colours=colours, y_label="paper's best / optimal D", log=True)


_SAVINGS = Figure(
    "savings",
    "Iterations of the paper's best choice divided by those of the optimal D, on a log scale: above 1 the optimal D "
    "saves. A missing bar: not observed.",
    _draw_savings,
)


def _together(name: str, tables: Mapping[str, Tables]) -> pd.DataFrame:
    """Join the tables of one name of all experiments that have it."""
    found = [each[name] for each in tables.values() if name in each]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table as records, None for what is missing."""
    records: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return records


def _cell(value: Any) -> str:
    """Format one value of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if pd.isna(value) or value == "":
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
