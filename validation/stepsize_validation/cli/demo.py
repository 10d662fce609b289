"""The command ``demo``: the main job on embedded data, from L to the observed rate."""

from __future__ import annotations

import argparse
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepsize_opt.planning import compare
from stepsize_opt.sketches import parse_sketch
from stepsize_opt.tables import Row
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    FIGURES,
    check_output,
    grouped,
    print_columns,
    print_json,
    progress,
    reported,
)
from stepsize_validation.cli.options import add, positive, seed, whole

if TYPE_CHECKING:
    from stepsize_opt.problems import Infimum, LogisticRegression
    from stepsize_validation.runs import RateCheck, Run

_TEXTBOOK = "det-CGD1, γ I"

_EXAMPLES = """examples:
  stepsize-opt demo
  stepsize-opt demo --data digits --sketch bernq:0.5 --figure demo.png
  stepsize-opt demo --iterations 500 --seeds 4 --json
"""


def add_parsers(commands: Any) -> None:
    """Register the command."""
    demo = commands.add_parser(
        "demo", help="solve on embedded data, run det-CGD, compare with the predicted rate", epilog=_EXAMPLES
    )
    demo.add_argument("--data", default="breast_cancer", help="data set (default: %(default)s)")
    demo.add_argument("--reg", type=positive, default=0.01, help="regularisation λ (default: %(default)s)")
    demo.add_argument("--sketch", default="randk:25%", help="sketch (default: randk:25%%)")
    demo.add_argument("--iterations", type=whole, default=2000, help="steps (default: %(default)s)")
    demo.add_argument("--seeds", type=whole, default=16, help="independent runs (default: %(default)s)")
    demo.add_argument("--seed", type=seed, default=0, help="random seed (default: %(default)s)")
    add(demo, "--figure", "--json")
    demo.set_defaults(run=_demo)


@dataclass(frozen=True)
class Outcome:
    """One stepsize: its row of the comparison, its run, the guarantees that were checked on it, by name, and the mean
    of f − f^inf after the last step."""

    row: Row
    record: Run
    checks: dict[str, RateCheck]
    excess: float

    def plain(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        checks = {name: {**asdict(check), "verdict": check.verdict} for name, check in self.checks.items()}
        gradient = float(self.record.euclidean.mean())
        return {**self.row.record(), **checks, "mean_squared_gradient": gradient, "final_gap": self.excess}


def _demo(args: argparse.Namespace) -> int:
    from stepsize_opt.problems import find_infimum
    from stepsize_validation.data import load_dataset, logistic_regression

    check_output("--figure", args.figure, FIGURES)
    data = load_dataset(args.data)
    objective = logistic_regression(data, args.reg)
    sketch = parse_sketch(args.sketch, data.d)
    with progress("solving"):
        rows = compare(objective.smoothness(), sketch).rows
        infimum = find_infimum(objective)
    first = {row.label: _first_with_its_matrix(row, rows) for row in rows}
    shown = [row for row in rows if first[row.label] is row]
    with progress("running") as show:
        outcomes: list[Outcome] = []
        for row in shown:
            show(len(outcomes), len(shown), row.label)
            outcomes.append(_outcome(row, objective, infimum, args))
    title = f"{data.name} (m = {data.m}, d = {data.d}), λ = {args.reg:g}, sketch {sketch}"
    if args.figure is not None:
        with reported(args.figure), progress("drawing"):
            _draw(args.figure, f"{title}, {args.seeds} seeds", outcomes, infimum.found)
    if args.json:
        found = [outcome.plain() for outcome in outcomes]
        print_json({"data": data.name, "result": rows[0].result.summary(), "rows": found})
    else:
        textbook = next(outcome for outcome in outcomes if outcome.row is first[_TEXTBOOK])
        _print_conclusions(outcomes, textbook, args)
        _print_runs(f"Logistic regression on {title}", outcomes, args)
        for row in rows:
            if first[row.label] is not row:
                print(f"{row.label} is the same matrix as {first[row.label].stepsize}")
        print(f"\n{rows[0].result}")
    return EXIT_INACCURATE if "violated" in _verdicts(outcomes) else EXIT_OPTIMAL


def _verdicts(outcomes: Sequence[Outcome]) -> list[str]:
    return [check.verdict for outcome in outcomes for check in outcome.checks.values()]


def _first_with_its_matrix(row: Row, rows: Sequence[Row]) -> Row:
    """Return the first row of the same method with the same D."""
    # The γ of a direction is certified to 1e-12 or so; different choices differ in the first digits.
    same = (one for one in rows if np.allclose(one.result.D, row.result.D, rtol=1e-6, atol=0.0))
    return next(one for one in same if one.method == row.method)


def _outcome(row: Row, objective: LogisticRegression, infimum: Infimum, args: argparse.Namespace) -> Outcome:
    """Run one stepsize and check its guarantees; Theorem 1 is about stepsizes that satisfy its condition."""
    from stepsize_validation.runs import check_rate, run

    record = run(objective, row.result, iterations=args.iterations, seeds=args.seeds, seed=args.seed)
    checks = {"descent_metric": check_rate(record, infimum, goal="descent")}
    if row.result.satisfies_condition:
        checks["theorem_1"] = check_rate(record, infimum)
    return Outcome(row, record, checks, float(record.values[:, -1].mean()) - infimum.found)


def _draw(path: Path, title: str, outcomes: Sequence[Outcome], infimum: float) -> None:
    """Draw the best stepsize, the paper's optimum and CGD's γI against floats: gradient norms and f."""
    from stepsize_validation.figures import file_pyplot, save_figure

    figure, axes = file_pyplot().subplots(1, 2, figsize=(11.0, 4.2), layout="constrained")
    for one in outcomes:
        if one.row.label in (outcomes[0].row.label, "det-CGD1, optimal", _TEXTBOOK):
            for axis, show in zip(axes, ("metric", "excess"), strict=True):
                one.record.plot(axis, show=show, infimum=infimum, label=one.row.label)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path, dpi=130)


def _print_conclusions(outcomes: Sequence[Outcome], textbook: Outcome, args: argparse.Namespace) -> None:
    """Print what the best stepsize gains over CGD with γI, and what is proved."""
    best = outcomes[0]
    verdicts = ", ".join(f"{word} {count}" for word, count in Counter(_verdicts(outcomes)).items())
    optimal = best.row.status == "optimal" and best.row.stepsize.startswith("optimal")
    proved = f"no D of {best.row.method} has a better guarantee" if optimal else "the guarantee of this D"
    gained = (
        f"With D of “{best.row.label}” compressed gradient descent is guaranteed to need "
        f"{textbook.row.rounds / best.row.rounds:.1f} times fewer rounds than with the textbook stepsize γI; after "
        f"{grouped(args.iterations)} rounds f − f^inf is {best.excess:.1e}, with γI {textbook.excess:.1e}."
    )
    known = (
        f"Proved: {proved} (certified gap {best.row.gap:.0e}); the predicted bounds in runs of {args.seeds} seeds: "
        f"{verdicts}."
    )
    print(textwrap.fill(gained, 79), textwrap.fill(known, 79), sep="\n\n")


def _print_runs(title: str, outcomes: Sequence[Outcome], args: argparse.Namespace) -> None:
    """Print the guarantee of each stepsize with what was observed."""
    rows = [["method, stepsize", "rounds", "predicted", "observed", "verdict", "f − f^inf"]]
    for one in outcomes:
        times, check = one.row.rounds / outcomes[0].row.rounds, one.checks["descent_metric"]
        numbers = f"{times:.2f}×", f"{check.bound:.1e}", f"{check.observed:.1e}", check.verdict, f"{one.excess:.1e}"
        rows.append([one.row.label, *numbers])
    print_columns(title, rows)
    print(
        f"rounds: guaranteed, over those of the first row; predicted ≥ observed: mean of\n"
        f"‖∇f‖² over {args.iterations} rounds in the norm of H = 2D − T(D) scaled to determinant 1,\n"
        f"which differs from row to row; f − f^inf: after the last round"
    )
