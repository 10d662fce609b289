"""The command ``demo``: the main job on embedded data, from L to the observed rate."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepsize_opt.node import Comparison, compare
from stepsize_opt.sketches import parse_sketch
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    Terminal,
    check_output,
    comparison_table,
    empty_table,
    print_json,
    progress,
    result_table,
    said,
)
from stepsize_validation.cli.values import positive, whole


def add_parsers(commands: Any) -> None:
    """Register the command."""
    demo = commands.add_parser("demo", help="solve on embedded data, run det-CGD, compare with the predicted rate")
    demo.add_argument("--data", default="breast_cancer", help="data set (default: %(default)s)")
    demo.add_argument("--reg", type=positive, default=0.01, help="regularisation λ (default: %(default)s)")
    demo.add_argument("--sketch", default="randk:25%", help="sketch (default: randk:25%%)")
    demo.add_argument("--iterations", type=whole, default=2000, help="steps (default: %(default)s)")
    demo.add_argument("--seeds", type=whole, default=16, help="independent runs (default: %(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    demo.add_argument("--figure", type=Path, help="also draw experiment (a) of the paper on the data as PNG or SVG")
    demo.add_argument("--json", action="store_true", help="print JSON instead of tables")
    demo.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> int:
    from stepsize_opt.problems import LogisticRegression, load_dataset
    from stepsize_validation.runs import check_rate, run

    if args.figure is not None:
        check_output("--figure", args.figure, (".png", ".svg"))
    data = load_dataset(args.data)
    objective = LogisticRegression.from_dataset(data, args.reg)
    sketch = parse_sketch(args.sketch, data.d)
    with progress("solving"):
        comparison = compare(objective.smoothness(), sketch)
    # Theorem 1 is about stepsizes that satisfy the condition.
    tested = Comparison(tuple(row for row in comparison.rows if row.result.satisfies_condition))
    checks = []
    for row in tested.rows:
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
        checks.append(check_rate(record))
    if args.figure is not None:
        from stepsize_validation.experiments import demo_figure

        with said(args.figure), progress("drawing"):
            demo_figure(args.figure, data=args.data, reg=args.reg)
    # "undecided" is a matter of too few seeds; only a violated theorem is a failure.
    code = EXIT_INACCURATE if any(check.verdict == "violated" for check in checks) else EXIT_OPTIMAL
    if args.json:
        rows = [
            {**record, **asdict(check), "verdict": check.verdict}
            for record, check in zip(tested.to_records(), checks, strict=True)
        ]
        print_json({"data": data.name, "result": comparison.rows[0].result.summary(), "rows": rows})
        return code
    console = Terminal()
    console.print(
        f"Logistic regression with a non-convex regulariser on [bold]{data.name}[/bold]: "
        f"m = {data.m}, d = {data.d}, λ = {args.reg:g}, sketch {sketch}"
    )
    console.print(result_table(comparison.rows[0].result))
    console.print(comparison_table(comparison, str(sketch)))
    table = empty_table(
        f"Theorem 1 after K = {args.iterations} steps, {args.seeds} seeds",
        ("method", "stepsize"),
        ("predicted ≤", "observed", "upper bound", "verdict"),
        "mean over the steps of ‖∇f‖² in the norm of D/det(D)^(1/d); observed with its upper confidence bound",
    )
    for row, check in zip(tested.rows, checks, strict=True):
        numbers = (f"{value:.4e}" for value in (check.bound, check.observed, check.upper))
        table.add_row(row.method, row.stepsize, *numbers, check.verdict)
    console.print(table)
    if args.figure is not None:
        console.print(f"gradient norms of every method under rand-1: {args.figure}")
    return code
