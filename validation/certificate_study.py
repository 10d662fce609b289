"""The certificate on random problems with every solver: nothing infeasible, all certified intervals overlap.

    python -m validation.certificate_study --problems 1000

For each problem and each solver that runs here, the returned D is checked in exact rational arithmetic, the raw
answer of the solver is measured for comparison, and the intervals [log det D, upper bound] of all solvers must have a
point in common.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from solvers.base import Settings
from solvers.registry import available_solvers, get_solver
from stepsize_opt import optimal_stepsize
from stepsize_opt.evaluation import Evaluation
from stepsize_opt.reductions import reduce_problem
from stepsize_opt.structures import pattern_of
from validation.exact import satisfies_condition
from validation.random_problems import Problem, random_problem


@dataclass(frozen=True)
class Row:
    """One solver on one problem; the gap is infinite and ``error`` set when the solver gave up."""

    solver: str
    status: str
    lower: float
    upper: float
    gap: float
    feasible: bool
    raw_violation: float
    error: str = ""


@dataclass(frozen=True)
class Case:
    """One problem with the rows of all solvers."""

    index: int
    kind: str
    d: int
    condition: float
    rows: tuple[Row, ...]

    @property
    def overlap(self) -> bool:
        """Whether the certified intervals have a point in common."""
        rows = [row for row in self.rows if not row.error]
        return max(row.lower for row in rows) <= min(row.upper for row in rows)


def study_case(seed: int, index: int, solvers: Sequence[str], max_d: int = 8, max_condition: float = 1e8) -> Case:
    """Draw problem ``index`` of the study and give it to every solver."""
    problem = random_problem(np.random.default_rng([seed, index]), max_d, max_condition)
    rows = tuple(_row(problem, name) for name in solvers)
    return Case(index, problem.kind, len(problem.L), problem.condition, rows)


def _row(problem: Problem, name: str) -> Row:
    try:
        result = optimal_stepsize(problem.L, problem.sketch, solver=name)
    except RuntimeError as error:  # the solver returned no point
        return Row(name, "solver_error", -math.inf, math.inf, math.inf, False, math.nan, str(error))
    return Row(
        solver=name,
        status=result.status,
        lower=result.log_det,
        upper=result.certificate.upper_bound,
        gap=result.gap,
        feasible=satisfies_condition(result.D, problem.L, problem.sketch, "det-CGD1"),
        raw_violation=_raw_violation(problem, name),
    )


def _raw_violation(problem: Problem, name: str) -> float:
    """How far outside the solver's own answer is: the largest −margin over the components; 0 for closed forms."""
    reduction = reduce_problem(
        problem.L, problem.sketch.map, pattern_of("full", len(problem.L)), "det-CGD1", split=True
    )
    worst = 0.0
    for component in reduction.components:
        outcome = get_solver(name).solve(component.program, Settings())
        if outcome.D is not None:
            margin = Evaluation(component.program, outcome.D).margin
            worst = max(worst, math.inf if math.isnan(margin) else -margin)
    return worst


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--problems", type=int, default=1000, help="how many (default: %(default)s)")
    parser.add_argument("--max-d", type=int, default=8, help="largest size (default: %(default)s)")
    parser.add_argument("--max-condition", type=float, default=1e8, help="largest condition number (default: 1e8)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    args = parser.parse_args(argv)
    solvers = [entry.name for entry in available_solvers() if entry.available]
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = [
            pool.submit(study_case, args.seed, i, solvers, args.max_d, args.max_condition) for i in range(args.problems)
        ]
        console = Console(stderr=True)
        cases = [
            future.result() for future in track(futures, "studying", console=console, disable=not console.is_terminal)
        ]
    Console().print(summary_table(cases, solvers))
    bad = [case for case in cases if not case.overlap or any(not r.feasible for r in case.rows if not r.error)]
    for case in bad:
        Console().print(
            f"problem {case.index} ({case.kind}, d = {case.d}, condition {case.condition:.1e}): {case.rows}"
        )
    print(f"{len(cases)} problems, {len(bad)} with an infeasible answer or disjoint certified intervals")
    return 1 if bad else 0


def summary_table(cases: Sequence[Case], solvers: Sequence[str]) -> Table:
    """For each solver: how often it was optimal, failed, infeasible, and how bad its raw answers were."""
    table = Table(title=f"{len(cases)} random problems")
    columns = ("solver", "optimal", "inaccurate", "no answer", "infeasible D", "raw outside by > 1e-7", "worst raw")
    for name in columns:
        table.add_column(name, justify="left" if name == "solver" else "right")
    for name in solvers:
        rows = [row for case in cases for row in case.rows if row.solver == name]
        raw = [row.raw_violation for row in rows if not row.error]
        table.add_row(
            name,
            str(sum(row.status == "optimal" for row in rows)),
            str(sum(row.status == "optimal_inaccurate" for row in rows)),
            str(sum(bool(row.error) for row in rows)),
            str(sum(not row.feasible for row in rows if not row.error)),
            str(sum(value > 1e-7 for value in raw)),
            f"{max(raw, default=0.0):.1e}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
