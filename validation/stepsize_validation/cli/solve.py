"""The commands ``solve``, ``certify`` and ``compare``."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import check_dense, is_result, json_text, load_matrix, write_text
from stepsize_opt.node import (
    CRITERIA,
    GUARANTEES,
    StepsizeCheck,
    StepsizeResult,
    certify,
    compare,
    optimal_stepsize,
)
from stepsize_opt.proofs import Certificate
from stepsize_opt.sketches import parse_sketch, sketch_forms
from stepsize_validation.cli.common import (
    EXIT_INACCURATE,
    EXIT_OPTIMAL,
    add_algorithm,
    add_matrix,
    add_sketch,
    add_solver,
    add_structure,
    add_volume,
    answer,
    check_output,
    comparison_table,
    exit_code,
    load_problem,
    progress,
    read_lower,
    result_table,
    said,
    solving,
    write_matrix,
)
from stepsize_validation.cli.values import processes, structure
from stepsize_validation.terminal import key_value_table, show

OUTPUTS = (".npz", ".json", ".npy", ".csv")

_SOLVE_EXAMPLES = f"""examples:
  stepsize-opt solve L.npy --sketch randk:8 --output D.npz
  stepsize-opt solve --data breast_cancer --reg 0.1 --sketch randk:25%
  stepsize-opt solve L.mtx --sketch bernq:0.5@10,20 --structure block:10,20 --json
  stepsize-opt solve L.npy --sketch gaussian:4 --algorithm det-CGD2 -q -o D.csv
  stepsize-opt solve L.npy --sketch randk:8 --guarantee descent
  stepsize-opt solve L.npy --sketch randk:8 --guarantee descent --criterion linear --lower 0.01
  stepsize-opt solve L.npy --sketch randk:8 --criterion convex

sketches: {sketch_forms()}
exit codes: 0 optimal, 1 certified gap above --tol, 2 mistake in the input, 3 solver cannot run, 130 interrupted
"""

_CERTIFY_EXAMPLES = """examples:
  stepsize-opt certify D.npy L.npy --sketch randk:8
  stepsize-opt certify D.npz --data breast_cancer --reg 0.1 --json
  stepsize-opt certify D.npy L.npy --sketch randk:8 --guarantee descent

A file that 'solve' wrote (.npz) says which sketch, algorithm, structure, guarantee and criterion it is for; options
overrule it.  Both guarantees are checked; --guarantee is the one by which the exit code judges D.
exit codes: 0 proved and within --tol of optimal, 1 not, 2 mistake in the input
"""

_COMPARE_EXAMPLES = """examples:
  stepsize-opt compare L.npy --sketch randk:8
  stepsize-opt compare --data digits --reg 0.01 --sketch randk:4 --json
  stepsize-opt compare --data digits --reg 0.01 --penalty ridge --sketch randk:4 --criterion linear
"""


def add_parsers(commands: Any) -> None:
    """Register the three commands."""
    raw = argparse.RawDescriptionHelpFormatter
    solve = commands.add_parser(
        "solve", help="compute the optimal stepsize for L and a sketch", epilog=_SOLVE_EXAMPLES, formatter_class=raw
    )
    add_matrix(solve)
    add_sketch(solve, required=True)
    add_algorithm(solve, default="det-CGD1")
    add_structure(solve, default="full")
    add_guarantee(solve, default=GUARANTEES[0])
    add_criterion(solve, default=CRITERIA[0])
    add_solver(solve)
    solve.add_argument("--jobs", type=processes, default=1, help="processes for many components, -1 for all cores")
    solve.add_argument("--output", "-o", type=Path, help="write D with its summary (.npz, .json) or alone (.npy, .csv)")
    add_volume(solve)
    solve.set_defaults(run=_solve)

    checking = commands.add_parser(
        "certify", help="check a stepsize matrix of your own", epilog=_CERTIFY_EXAMPLES, formatter_class=raw
    )
    checking.add_argument("stepsize", type=Path, help="the matrix D: .npy, .npz, .csv or .mtx")
    add_matrix(checking)
    add_sketch(checking)
    add_algorithm(checking)
    add_structure(checking)
    add_guarantee(checking)
    add_criterion(checking)
    add_solver(checking)
    add_volume(checking)
    checking.set_defaults(run=_certify)

    comparing = commands.add_parser(
        "compare", help="both optima beside the paper's choices of D", epilog=_COMPARE_EXAMPLES, formatter_class=raw
    )
    add_matrix(comparing)
    add_sketch(comparing, required=True)
    add_criterion(comparing, default=CRITERIA[0])
    add_solver(comparing)
    add_volume(comparing)
    comparing.set_defaults(run=_compare)


def add_guarantee(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """--guarantee; without a default it may come from a file."""
    parser.add_argument(
        "--guarantee",
        choices=GUARANTEES,
        default=default,
        help=f"the paper's condition, or the descent metric H = 2D - T(D) without it (default: {GUARANTEES[0]})",
    )


def add_criterion(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """--criterion and --lower; without a default the criterion may come from a file."""
    parser.add_argument(
        "--criterion",
        choices=CRITERIA,
        default=default,
        help="what the guarantee is judged by: the determinant of D (or H), its least eigenvalue, linear convergence; "
        f"convex: a condition of its own for convex f (default: {CRITERIA[0]})",
    )
    parser.add_argument("--lower", help="for --criterion linear: a number mu > 0 or a file with M, M below the Hessian")


def _solve(args: argparse.Namespace) -> int:
    if args.output is not None:
        check_output("--output", args.output, OUTPUTS)
    L = load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    if args.output is not None and args.output.suffix.lower() != ".npz":
        check_dense(f"--output {args.output}: D", sketch.d)  # only .npz holds D by blocks
    with progress(f"solving d = {sketch.d}", quiet=args.quiet, verbose=args.verbose):
        result = optimal_stepsize(
            L,
            sketch,
            algorithm=args.algorithm,
            structure=args.structure,
            guarantee=args.guarantee,
            criterion=args.criterion,
            lower=read_lower(args.lower),
            n_jobs=args.jobs,
            **solving(args),
        )
    if args.output is not None:
        with said(args.output, quiet=args.quiet):
            _write(result, args.output)
    answer(args, result.summary, lambda: show(result_table(result)))
    return exit_code(result.status)


def _write(result: StepsizeResult, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        result.save(path)
    elif suffix == ".json":
        write_text(path, json_text({**result.summary(), "D": result.D}, indent=2) + "\n")
    else:
        write_matrix(result.D, path)


def _certify(args: argparse.Namespace) -> int:
    D = load_matrix(args.stepsize, "D")
    _take_from_file(args)
    L = load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    with progress("certifying", quiet=args.quiet, verbose=args.verbose):
        check = certify(
            D,
            L,
            sketch,
            algorithm=args.algorithm,
            structure=args.structure,
            criterion=args.criterion,
            lower=read_lower(args.lower),
            **solving(args),
        )
    rates = {"rate": check.rate, "descent_rate": check.descent_rate, "descent_gap": check.descent.gap}
    answer(
        args,
        lambda: {**asdict(check), "feasible": check.feasible, "gap": check.gap, **rates},
        lambda: show(key_value_table("certificate of the given D", _check_rows(check, args.criterion))),
    )
    # There is no descent metric for the criterion convex, whatever the file was solved for.
    descent = args.guarantee == "descent" and args.criterion != "convex"
    judged = check.descent if descent else check.certificate
    return EXIT_OPTIMAL if judged.is_optimal(args.tol) else EXIT_INACCURATE


def _take_from_file(args: argparse.Namespace) -> None:
    """Fill in what the options leave open from what the file itself says, if ``solve`` wrote it."""
    saved = StepsizeResult.load(args.stepsize) if is_result(args.stepsize) else None
    if args.sketch is None and saved is None:
        msg = f"{args.stepsize} does not say which sketch D is for: name it with --sketch, such as --sketch randk:8"
        raise ValueError(msg)
    if saved is not None and args.structure is None:
        try:
            args.structure = structure(saved.structure)
        except argparse.ArgumentTypeError:
            msg = f"{args.stepsize} does not hold its structure, {saved.structure}; name one with --structure"
            raise ValueError(msg) from None
    args.sketch = args.sketch or (saved and saved.sketch)
    args.algorithm = args.algorithm or (saved.algorithm if saved else "det-CGD1")
    args.structure = args.structure or "full"
    args.guarantee = args.guarantee or (saved.guarantee if saved else GUARANTEES[0])
    args.criterion = args.criterion or (saved.criterion if saved else CRITERIA[0])
    own = args.data is not None and args.penalty == "ridge"  # the data set knows its M
    if saved is not None and args.criterion == "linear" and args.lower is None and not own:
        msg = f"{args.stepsize} does not hold the M of the criterion linear that D is for; name it with --lower"
        raise ValueError(msg)


def _check_rows(check: StepsizeCheck, criterion: str) -> list[tuple[str, str]]:
    c = check.certificate
    margin = f"margin {c.margin:.3e}" if isfinite(c.margin) else "D is not positive definite"
    floor = {"euclidean": "tI", "linear": "tM⁻¹"}.get(criterion)
    of_t = floor is not None
    rate, descent = (f"t, D ⪰ {floor}", f"t, H ⪰ {floor}") if of_t else ("det(D)^(1/d)", "det(H)^(1/d)")
    return [
        ("feasible", f"{_answered(c)} ({margin})"),
        ("log t" if of_t else "log det D / d", f"{c.log_det / c.d:.9f}"),
        ("upper bound / d", f"{c.upper_bound / c.d:.9f}"),
        ("gap of D", f"{c.gap:.3e}"),
        ("largest feasible scale", f"{check.largest_scale:.9g}"),
        ("gap of D at that scale", f"{check.gap_when_scaled:.3e}"),
        ("H = 2D − T(D) positive definite", _answered(check.descent)),
        (f"rate {rate}", f"{check.rate:.9g}" if c.feasible else "none: the condition is not proved"),
        (f"descent rate {descent}", f"{check.descent_rate:.9g} (gap {check.descent.gap:.3e})"),
    ]


def _answered(certificate: Certificate) -> str:
    if certificate.feasible:
        return "yes, proved"
    # The margin is computed to about d roundings: next to zero it does not tell on which side D lies.
    return "no" if certificate.margin < -1e-9 else "not proved"


def _compare(args: argparse.Namespace) -> int:
    L = load_problem(args)
    sketch = parse_sketch(args.sketch, L.shape[0])
    with progress(f"comparing stepsizes for d = {sketch.d}", quiet=args.quiet, verbose=args.verbose):
        table = compare(L, sketch, criterion=args.criterion, lower=read_lower(args.lower), **solving(args))
    answer(args, table.to_records, lambda: show(comparison_table(table, str(sketch))))
    return max(exit_code(row.result.status) for row in table.rows)
