"""The command ``demo``: the main job on embedded data, from L to the floats that a run sends.

All stepsizes have the same sketch and seeds.  Each is the optimal one of its kind for ``goal="descent"``, but for the
optimal D of condition (3), the paper's program; nothing is tuned.
"""

from __future__ import annotations

import argparse
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import Sketch, compare, optimal_stepsize, parse_sketch
from stepsize_opt.inputs.structures import Structure
from stepsize_opt.problems import Infimum, LogisticRegression, find_infimum
from stepsize_opt.tables import Row, Table, best_first
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    FIGURES,
    check_output,
    grouped,
    print_json,
    progress,
    reported,
)
from stepsize_validation.cli.options import add, command, positive, seed, whole
from stepsize_validation.data import load_dataset, logistic_regression
from stepsize_validation.figures import file_pyplot, save_figure
from stepsize_validation.runs import RateCheck, Run, check_rate, run

_LEVELS = {"1e-2": 1e-2, "1e-4": 1e-4, "1e-6": 1e-6}
_ROUNDING = 1e-12  # of f − f*
_CGD, _CLOSED, _PAPER, _OPTIMAL = "γ I", "best closed form", "optimal D of (3)", "optimal D, descent"
_CLOSED_FORMS = ("γ diag⁻¹(L)", "γ L⁻¹", "γ L^(-1/2)", "det-CGD2")
_COLOURS = {_CGD: "#888888", _CLOSED: "#d98c21", _PAPER: "#6baed6", _OPTIMAL: "#08519c"}
_PROVED: dict[Structure, str] = {"scalar": _CGD, "full": _OPTIMAL}


def add_parsers(commands: Any) -> None:
    """Register the command."""
    demo = command(commands, "demo", _demo)
    demo.add_argument("--data", default="breast_cancer", help="data set (default: %(default)s)")
    demo.add_argument("--reg", type=positive, default=0.01, help="λ of the ridge (default: %(default)s)")
    demo.add_argument("--sketch", default="randk:10%", help="sketch (default: randk:10%%)")
    demo.add_argument("--iterations", type=whole, default=1500, help="steps (default: %(default)s)")
    demo.add_argument("--seeds", type=whole, default=8, help="independent runs (default: %(default)s)")
    demo.add_argument("--seed", type=seed, default=0, help="random seed (default: %(default)s)")
    add(demo, "--figure", "--json")


@dataclass(frozen=True, eq=False)
class Outcome:
    """One D: the names of the stepsizes that have it, its row of the comparison, its run, the guarantees that were
    checked on it, and f − f* after 0, 1, … rounds of each seed.
    """

    names: list[str]
    row: Row
    record: Run
    checks: dict[str, RateCheck]
    gaps: Matrix

    @property
    def floats(self) -> Vector:
        """Floats sent before each of the gaps was reached."""
        return np.concatenate([[0.0], self.record.floats()])

    @property
    def median(self) -> Vector:
        """The median of f − f* over the seeds."""
        return np.asarray(np.median(self.gaps, axis=0))

    def floats_to(self, level: float) -> float:
        """Return the median over the seeds of the floats sent until f − f* is at most a level."""
        below = self.gaps <= level
        return float(np.median(np.where(below.any(axis=1), self.floats[below.argmax(axis=1)], math.inf)))

    def plain(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        checks = {name: {**asdict(check), "verdict": check.verdict} for name, check in self.checks.items()}
        floats = {f"floats_to_{name}": self.floats_to(level) for name, level in _LEVELS.items()}
        gradient = float(self.record.euclidean.mean())
        own = {"names": self.names, "mean_squared_gradient": gradient, "final_gap": float(self.gaps[:, -1].mean())}
        return {**self.row.record(), **own, **floats, **checks}


def _demo(args: argparse.Namespace) -> int:
    """Solve on embedded data, run det-CGD, compare with the predicted rate.

    examples:
      stepsize-opt demo
      stepsize-opt demo --data digits --sketch bernq:0.5 --figure demo.png
      stepsize-opt demo --iterations 500 --seeds 4 --json
    """
    check_output("--figure", args.figure, FIGURES)
    with progress("loading"):
        data = load_dataset(args.data)
    objective = logistic_regression(data, args.reg, "ridge")
    sketch = parse_sketch(args.sketch, data.d)
    with progress("solving"):
        rows = _without_repetition(_rows(objective.smoothness(), sketch))
        infimum = find_infimum(objective)
    # The products of a run are small: where other processes are busy, BLAS with two threads takes ten times as long.
    with progress("running") as show, blas_threads(data.d):
        outcomes: list[Outcome] = []
        for names, row in rows:
            show(len(outcomes), len(rows), row.stepsize)
            outcomes.append(_outcome(names, row, objective, infimum, args))
    drawn = {name: next(one for one in outcomes if name in one.names) for name in (_CGD, _PAPER, _OPTIMAL)}
    reached = [name for name, level in _LEVELS.items() if drawn[_OPTIMAL].floats_to(level) < math.inf]
    level = _LEVELS[reached[-1]] if reached else 0.0
    closed = [one for one in outcomes if set(one.names) & set(_CLOSED_FORMS)]
    best = min(closed, key=lambda one: (one.floats_to(level), one.median[-1]))
    drawn[_CLOSED] = replace(best, names=[name for name in best.names if name in _CLOSED_FORMS])
    title = f"{data.name} (m = {data.m}, d = {data.d}), ridge λ = {args.reg:g}, {sketch}"
    if args.figure is not None:
        with reported(args.figure), progress("drawing"):
            _draw(args.figure, f"{title}, {args.seeds} seeds", drawn, objective)
    ahead = {name: _floats_ahead(drawn[name], drawn[_OPTIMAL]) for name in (_CGD, _CLOSED)}
    if args.json:
        found = [outcome.plain() for outcome in outcomes]
        result = drawn[_OPTIMAL].row.result.summary()
        print_json({"data": data.name, "result": result, "ahead_until": ahead, "rows": found})
    else:
        _print_conclusions(drawn, reached, ahead, outcomes)
        _print_tables(title, outcomes, args)
        print(f"\n{drawn[_OPTIMAL].row.result}")
    return EXIT_INACCURATE if "violated" in _verdicts(outcomes) else EXIT_OPTIMAL


def _rows(L: Matrix, sketch: Sketch) -> list[Row]:
    """Return all stepsizes under the names of the figure, the best guarantee first."""
    names = {"det-CGD1, optimal": _OPTIMAL, "det-CGD2, optimal": "det-CGD2"}
    rows = [
        replace(row, stepsize=names.get(row.label, row.stepsize)) for row in compare(L, sketch, goal="descent").rows
    ]
    paper = optimal_stepsize(L, sketch)
    rounds = paper.goal_class.relative_rounds(paper.guaranteed_rate)
    words: dict[str, Any] = {"goal": "descent", "method": paper.algorithm, "stepsize": _PAPER, "rate": paper.rate}
    rows.append(Row(**words, rounds=rounds, floats=paper.expected_nonzeros * rounds, **paper.columns()))
    return best_first(rows, lambda row: row.rounds)


def _without_repetition(rows: Sequence[Row]) -> list[tuple[list[str], Row]]:
    """Return the rows that have a D of their own, each with the names of all that have the same method and D."""
    own: list[tuple[list[str], Row]] = []
    for row in rows:
        # The γ of a direction is certified to 1e-12 or so; different choices differ in the first digits.
        alike = (
            names
            for names, other in own
            if other.method == row.method and np.allclose(other.result.D, row.result.D, rtol=1e-6, atol=0.0)
        )
        same = next(alike, None)
        if same is None:
            own.append(([row.stepsize], row))
        else:
            same.append(row.stepsize)
    return own


def _outcome(
    names: list[str], row: Row, objective: LogisticRegression, infimum: Infimum, args: argparse.Namespace
) -> Outcome:
    """Run one stepsize and check its guarantees; Theorem 1 is about stepsizes that satisfy its condition."""
    record = run(objective, row.result, iterations=args.iterations, seeds=args.seeds, seed=args.seed)
    checks = {"descent_metric": check_rate(record, infimum, goal="descent")}
    if row.result.satisfies_condition:
        checks["theorem_1"] = check_rate(record, infimum)
    return Outcome(names, row, record, checks, record.values - infimum.found)


def _floats_ahead(other: Outcome, best: Outcome) -> float:
    """Return the floats up to which another D has the smaller median of f − f*: infinite where it has it at the end."""
    ahead = best.median - other.median > _ROUNDING
    last = int(np.flatnonzero(ahead)[-1]) if ahead.any() else 0
    return math.inf if last == len(ahead) - 1 else float(other.floats[last])


def _verdicts(outcomes: Iterable[Outcome]) -> list[str]:
    return [check.verdict for outcome in outcomes for check in outcome.checks.values()]


def _draw(path: Path, title: str, drawn: Mapping[str, Outcome], objective: LogisticRegression) -> None:
    """Draw f − f* against floats, the median and the range over the seeds, and the best proved linear rates."""
    figure, axis = file_pyplot().subplots(figsize=(7.0, 4.4), layout="constrained")
    L, M = objective.smoothness(), objective.strong_convexity()
    for name, colour in _COLOURS.items():
        one = drawn[name]
        label = f"{name}: {one.names[0]}" if name == _CLOSED else name
        axis.plot(one.floats, one.median, color=colour, linewidth=2.4 if name == _OPTIMAL else 1.6, label=label)
        axis.fill_between(one.floats, one.gaps.min(axis=0), one.gaps.max(axis=0), color=colour, alpha=0.2, linewidth=0)
    optimal = drawn[_OPTIMAL]
    for structure, name in _PROVED.items():
        best = optimal_stepsize(L, optimal.row.result.sketch, structure=structure, goal="linear", strong_convexity=M)
        bound = optimal.gaps[0, 0] * (1.0 - best.rate) ** np.arange(len(optimal.floats))
        label = f"best proved rate of {'γI' if name == _CGD else 'any D'}"
        axis.plot(optimal.floats, bound, color=_COLOURS[name], linewidth=1.2, linestyle=(0, (4, 2)), label=label)
    axis.set(yscale="log", ylim=(0.7e-6, 1.0), xlabel="floats sent", ylabel="f − f*")
    axis.set_title(title, fontsize=10)
    axis.grid(visible=True, linewidth=0.4, alpha=0.5)
    axis.legend(fontsize=9, frameon=False)
    save_figure(figure, path, dpi=130)


def _print_conclusions(
    drawn: Mapping[str, Outcome], reached: Sequence[str], ahead: Mapping[str, float], outcomes: Sequence[Outcome]
) -> None:
    """Print what the optimal D gains over γI and the paper's closed forms, what is proved, and where γI leads."""
    best, textbook, closed = (drawn[name] for name in (_OPTIMAL, _CGD, _CLOSED))
    row, sent = best.row, best.floats[-1]
    gained = (
        f"After {grouped(sent)} floats f − f* is {best.median[-1]:.1e} with the optimal D of det-CGD1, "
        f"{textbook.median[-1]:.1e} with the textbook stepsize γI, and {closed.median[-1]:.1e} with "
        f"{closed.names[0]}, the best of the paper's closed forms."
    )
    if reached:
        needed = {name: one.floats_to(_LEVELS[reached[-1]]) for name, one in drawn.items()}
        own = needed[_OPTIMAL]
        words = {
            name: f"over {grouped(sent)}"
            if math.isinf(floats)
            else f"{grouped(floats)} ({floats / own:.1f} times as many)"
            for name, floats in needed.items()
        }
        gained = (
            f"With the optimal D of det-CGD1, f − f* is below {reached[-1]} after {grouped(own)} floats; the textbook "
            f"stepsize γI needs {words[_CGD]}, and {closed.names[0]}, the best of the paper's closed forms, "
            f"{words[_CLOSED]}."
        )
    optimal = f"no D of {row.method} has a better guarantee" if row.status == "optimal" else "the guarantee of this D"
    checked = _verdicts(outcomes)
    verdicts = ", ".join(f"{word} {count}" for word, count in Counter(checked).items())
    proved = (
        f"Proved: {optimal} (certified gap {row.gap:.0e}), and that of γI needs {textbook.row.rounds / row.rounds:.1f} "
        f"times as many rounds, each in its own norm; of {len(checked)} predicted bounds, in runs of {len(best.gaps)} "
        f"seeds: {verdicts}."
    )
    leads = [
        f"{name} {'to the end' if math.isinf(until) else f'up to {grouped(until)} floats'}"
        for name, until in (("γI", ahead[_CGD]), (closed.names[0], ahead[_CLOSED]))
        if until
    ]
    first = (
        f"At first others have a smaller f: {' and '.join(leads)}." if leads else "No other D has a smaller f at first."
    )
    print("\n\n".join(textwrap.fill(text, 79) for text in (gained, proved, first)), end="\n\n")


def _print_tables(title: str, outcomes: Sequence[Outcome], args: argparse.Namespace) -> None:
    """Print the floats of each stepsize, and its guarantee with what was observed."""
    rows = []
    for one in outcomes:
        check = one.checks["descent_metric"]
        floats = {name: one.floats_to(level) for name, level in _LEVELS.items()}
        more = {name: grouped(number) if number < math.inf else "—" for name, number in floats.items()}
        more["guaranteed"] = f"{one.row.rounds / outcomes[0].row.rounds:.2f}×"
        more |= {"predicted": f"{check.bound:.1e}", "observed": f"{check.observed:.1e}", "verdict": check.verdict}
        rows.append(replace(one.row, stepsize=" = ".join(one.names), more=more))
    sent = f"floats until f − f* is below a level, median; — not after {grouped(outcomes[0].floats[-1])}"
    rounds = "guaranteed: rounds, over those of the first row"
    print(Table(tuple(rows), ("stepsize", "guaranteed", *_LEVELS), title, notes=(sent, rounds)), end="\n\n")
    norm = (
        f"mean of ‖∇f‖² over {grouped(args.iterations)} rounds in the norm of H = 2D − T(D) scaled to",
        "determinant 1, which differs from row to row",
    )
    print(Table(tuple(rows), ("stepsize", "predicted", "observed", "verdict"), "Predicted ≥ observed", notes=norm))
