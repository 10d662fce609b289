"""The command ``demo``: the main job on embedded data, from L to the observed rate."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepsize_opt.planning import compare
from stepsize_opt.sketches import parse_sketch
from stepsize_opt.tables import Row, Table
from stepsize_solvers.programs import Matrix
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    check_output,
    print_columns,
    print_json,
    progress,
    reported,
)
from stepsize_validation.cli.values import positive, seed, whole

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
        "demo",
        help="solve on embedded data, run det-CGD, compare with the predicted rate",
        epilog=_EXAMPLES,
    )
    demo.add_argument("--data", default="breast_cancer", help="data set (default: %(default)s)")
    demo.add_argument("--reg", type=positive, default=0.01, help="regularisation λ (default: %(default)s)")
    demo.add_argument("--sketch", default="randk:25%", help="sketch (default: randk:25%%)")
    demo.add_argument("--iterations", type=whole, default=2000, help="steps (default: %(default)s)")
    demo.add_argument("--seeds", type=whole, default=16, help="independent runs (default: %(default)s)")
    demo.add_argument("--seed", type=seed, default=0, help="random seed (default: %(default)s)")
    demo.add_argument("--figure", type=Path, help="also draw the runs as PNG or SVG")
    demo.add_argument("--json", action="store_true", help="print JSON instead of tables")
    demo.set_defaults(run=_demo)


@dataclass(frozen=True)
class Outcome:
    """One stepsize: its row of the comparison, its run, and the guarantees that were checked on it."""

    row: Row
    record: Run
    theorem: RateCheck | None
    descent: RateCheck
    infimum: float

    @property
    def name(self) -> str:
        return f"{self.row.method}, {self.row.stepsize}"

    @property
    def euclidean(self) -> float:
        """The mean of ‖∇f‖² over steps and seeds."""
        return float(self.record.euclidean.mean())

    @property
    def excess(self) -> float:
        """The mean of f − f^inf after the last step."""
        return float(self.record.values[:, -1].mean()) - self.infimum

    @property
    def violated(self) -> bool:
        """Whether a guarantee is violated; ``undecided`` is a matter of too few seeds."""
        return any(check is not None and check.verdict == "violated" for check in (self.theorem, self.descent))

    def plain(self) -> dict[str, Any]:
        return {
            "theorem_1": _record(self.theorem),
            "descent_metric": _record(self.descent),
            "mean_squared_gradient": self.euclidean,
            "final_gap": self.excess,
        }


def _demo(args: argparse.Namespace) -> int:
    from stepsize_opt.problems import find_infimum
    from stepsize_validation.data import load_dataset, logistic_regression

    if args.figure is not None:
        check_output("--figure", args.figure, (".png", ".svg"))
    data = load_dataset(args.data)
    objective = logistic_regression(data, args.reg)
    sketch = parse_sketch(args.sketch, data.d)
    with progress("solving"):
        comparison = compare(objective.smoothness(), sketch)
    infimum = find_infimum(objective)
    outcomes = [_outcome(row, objective, infimum, args) for row in comparison.rows]
    if args.figure is not None:
        with reported(args.figure), progress("drawing"):
            _draw(args.figure, f"{data.name}, λ = {args.reg:g}, {sketch}, {args.seeds} seeds", outcomes)
    if args.json:
        rows = zip(comparison.to_records(), outcomes, strict=True)
        found = [{**record, **outcome.plain()} for record, outcome in rows]
        print_json({"data": data.name, "result": comparison.rows[0].result.summary(), "rows": found})
    else:
        print(
            f"Logistic regression with a nonconvex regulariser on {data.name}: "
            f"m = {data.m}, d = {data.d}, λ = {args.reg:g}, sketch {sketch}\n"
        )
        print(comparison.rows[0].result)
        print()
        print(comparison)
        _print_runs(outcomes, args)
        for line in _conclusions(comparison, outcomes, objective.smoothness()):
            print(line)
    return EXIT_INACCURATE if any(outcome.violated for outcome in outcomes) else EXIT_OPTIMAL


def _outcome(row: Row, objective: LogisticRegression, infimum: Infimum, args: argparse.Namespace) -> Outcome:
    """Run one stepsize and check its guarantees; Theorem 1 is about stepsizes that satisfy its condition."""
    from stepsize_validation.runs import check_rate, run

    with progress(f"running {row.method} with {row.stepsize}"):
        record = run(objective, row.result, iterations=args.iterations, seeds=args.seeds, seed=args.seed)
    theorem = check_rate(record, infimum) if row.result.satisfies_condition else None
    return Outcome(row, record, theorem, check_rate(record, infimum, goal="descent"), infimum.found)


def _draw(path: Path, title: str, outcomes: Sequence[Outcome]) -> None:
    """Draw the best stepsize, the paper's optimum and CGD's γI against floats: gradient norms and f."""
    from stepsize_validation.figures import file_pyplot, save_figure

    figure, (norms, values) = file_pyplot().subplots(1, 2, figsize=(11.0, 4.2), layout="constrained")
    named = {outcome.name: outcome for outcome in outcomes}
    for label in dict.fromkeys([outcomes[0].name, "det-CGD1, optimal", _TEXTBOOK]):
        record, infimum = named[label].record, named[label].infimum
        record.plot(norms, show="metric", infimum=infimum, label=label)
        record.plot(values, show="excess", infimum=infimum, label=label)
    figure.suptitle(title, fontsize=11)
    save_figure(figure, path, dpi=130)


def _print_runs(outcomes: Sequence[Outcome], args: argparse.Namespace) -> None:
    """Print each guarantee with what was observed, and two quantities that do not depend on the stepsize."""
    from stepsize_validation.runs import LEVEL

    rows = [["method", "stepsize", "predicted ≤", "observed", "verdict", "mean ‖∇f‖²", "f − f^inf"]]
    for one in outcomes:
        numbers = *_cells(one.descent), f"{one.euclidean:.3e}", f"{one.excess:.3e}"
        rows.append([one.row.method, one.row.stepsize, *numbers])
    print_columns(f"Runs of {args.iterations} rounds, {args.seeds} seeds", rows)
    theorems = [one.theorem.verdict for one in outcomes if one.theorem is not None]
    print(
        "predicted and observed: mean of ‖∇f‖² in the norm of H = 2D − T(D), scaled to determinant 1, which differs\n"
        "from row to row; mean ‖∇f‖² is Euclidean, f − f^inf is after the last round.  holds: the\n"
        f"{LEVEL:.1%} upper confidence bound is below the prediction.  Theorem 1, in the norm of D, holds for\n"
        f"{theorems.count('holds')} of the {len(theorems)} stepsizes that satisfy its condition "
        f"({theorems.count('undecided')} undecided with so few seeds)."
    )


def _conclusions(comparison: Table, outcomes: Sequence[Outcome], L: Matrix) -> list[str]:
    """Return what the best guarantee gains over CGD, which stepsize ran best, and which rows are one matrix."""
    best, lowest = outcomes[0], min(outcomes, key=lambda outcome: outcome.excess)
    textbook = next(outcome for outcome in outcomes if outcome.name == _TEXTBOOK)
    out = [
        f"{best.name} needs {best.row.rounds / textbook.row.rounds:.2f} of the rounds that CGD's γ I is guaranteed to "
        f"need; in these runs it has {best.euclidean / textbook.euclidean:.2f} of its mean ‖∇f‖² and "
        f"{best.excess / textbook.excess:.2f} of its f − f^inf.",
        f"Smallest f in these runs: {lowest.name}.",
    ]
    for i, row in enumerate(comparison.rows):
        for other in comparison.rows[i + 1 :]:
            # The γ of a direction is certified to 1e-12 or so; different choices differ in the first digits.
            if row.method == other.method and np.allclose(row.result.D, other.result.D, rtol=1e-6, atol=0.0):
                constant = np.ptp(L.diagonal()) <= 1e-9 * L.diagonal().max()
                why = ", because the diagonal of L is constant" if constant else ""
                out.append(f"{row.method}, {row.stepsize} and {other.stepsize} are the same D{why}.")
    return out


def _record(check: RateCheck | None) -> dict[str, Any] | None:
    return None if check is None else {**asdict(check), "verdict": check.verdict}


def _cells(check: RateCheck) -> tuple[str, str, str]:
    """Return the bound, the observed mean and the verdict."""
    return f"{check.bound:.3e}", f"{check.observed:.3e}", check.verdict
