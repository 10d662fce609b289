"""The command ``demo``: the main job on embedded data, from L to the observed rate."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepsize_opt.node import Comparison, ComparisonRow, compare
from stepsize_opt.sketches import parse_sketch
from stepsize_solvers.programs import Matrix
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    check_output,
    comparison_table,
    print_json,
    progress,
    result_table,
    said,
)
from stepsize_validation.cli.values import positive, seed, whole
from stepsize_validation.terminal import empty_table, show

if TYPE_CHECKING:
    from stepsize_validation.runs import RateCheck, Run

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
        formatter_class=argparse.RawDescriptionHelpFormatter,
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


def _demo(args: argparse.Namespace) -> int:
    from stepsize_opt.problems import LogisticRegression, find_infimum, load_dataset
    from stepsize_validation.runs import LEVEL, check_rate, run

    if args.figure is not None:
        check_output("--figure", args.figure, (".png", ".svg"))
    data = load_dataset(args.data)
    objective = LogisticRegression.from_dataset(data, args.reg)
    sketch = parse_sketch(args.sketch, data.d)
    with progress("solving"):
        comparison = compare(objective.smoothness(), sketch)
    infimum = find_infimum(objective)
    theorem: list[RateCheck | None] = []
    descent: list[RateCheck] = []
    final: list[float] = []
    runs: dict[str, Run] = {}
    for row in comparison.rows:
        with progress(f"running {row.method} with {row.stepsize}"):
            record = run(
                objective,
                row.result.D,
                sketch,
                algorithm=row.method,
                iterations=args.iterations,
                seeds=args.seeds,
                seed=args.seed,
            )
        runs[f"{row.method}, {row.stepsize}"] = record
        # Theorem 1 is about stepsizes that satisfy the condition.
        theorem.append(check_rate(record, infimum) if row.result.satisfies_condition else None)
        descent.append(check_rate(record, infimum, guarantee="descent"))
        final.append(float(record.values[:, -1].mean()) - infimum.found)
    if args.figure is not None:
        from stepsize_validation.experiments import demo_figure

        with said(args.figure), progress("drawing"):
            title = f"{data.name}, λ = {args.reg:g}: {args.seeds} seeds"
            demo_figure(args.figure, title, runs, data.name, str(sketch))
    # "undecided" is a matter of too few seeds; only a violated theorem is a failure.
    violated = any(check is not None and check.verdict == "violated" for check in (*theorem, *descent))
    code = EXIT_INACCURATE if violated else EXIT_OPTIMAL
    results = list(zip(comparison.rows, theorem, descent, final, strict=True))
    if args.json:
        rows = [
            {**record, "theorem_1": _record(first), "descent_metric": _record(second), "final_gap": gap}
            for record, (_, first, second, gap) in zip(comparison.to_records(), results, strict=True)
        ]
        print_json({"data": data.name, "result": comparison.rows[0].result.summary(), "rows": rows})
        return code
    show(
        f"Logistic regression with a non-convex regulariser on [bold]{data.name}[/bold]: "
        f"m = {data.m}, d = {data.d}, λ = {args.reg:g}, sketch {sketch}",
        result_table(comparison.rows[0].result),
        comparison_table(comparison, str(sketch)),
    )
    table = empty_table(
        f"both guarantees beside what happened: K = {args.iterations} steps, {args.seeds} seeds",
        ("method", "stepsize"),
        ("predicted ≤", "observed", "verdict", "f − f^inf"),
        "mean over the steps of ‖∇f‖² in the norm of D (Theorem 1), below it of H (descent metric), each scaled to "
        f"determinant 1. holds: the {LEVEL:.1%} upper confidence bound of the mean is below what is predicted. "
        "f after the last step: a better guarantee need not be a better run",
    )
    for row, first, second, gap in results:
        pairs = zip(*(_cells(check) for check in (first, second)), strict=True)
        table.add_row(row.method, row.stepsize, *("\n".join(pair) for pair in pairs), f"{gap:.3e}")
        table.add_section()
    show(table, *_conclusions(comparison, min(results, key=lambda result: result[3])[0], objective.smoothness()))
    return code


def _conclusions(comparison: Comparison, lowest: ComparisonRow, L: Matrix) -> list[str]:
    """Which choice wins, and which rows agree because they are one and the same matrix."""
    best = comparison.best
    others = [row for row in comparison.rows if row.method != best.method]
    ratio = min(map(comparison.relative_iterations, others))
    out = [
        f"The other method needs {ratio:.3f} times the steps of {best.method}.",
        f"Smallest f in these runs: {lowest.method}, {lowest.stepsize}.",
    ]
    for i, row in enumerate(comparison.rows):
        for other in comparison.rows[i + 1 :]:
            # The γ of a direction is certified to 1e-12 or so; different choices differ in the first digits.
            if row.method == other.method and np.allclose(row.result.D, other.result.D, rtol=1e-6, atol=0.0):
                constant = np.ptp(L.diagonal()) <= 1e-9 * L.diagonal().max()
                why = ", because the diagonal of L is constant" if constant else ""
                out.append(f"{row.method}, {row.stepsize} and {other.stepsize} agree: they are the same D{why}.")
    return out


def _record(check: RateCheck | None) -> dict[str, Any] | None:
    return None if check is None else {**asdict(check), "verdict": check.verdict}


def _cells(check: RateCheck | None) -> tuple[str, str, str]:
    """Bound, what was observed, and the verdict; the theorem says nothing of a D outside its condition."""
    return ("–", "–", "–") if check is None else (f"{check.bound:.3e}", f"{check.observed:.3e}", check.verdict)
