"""``compare``: the optimal stepsizes and the paper's hand-picked directions in one table.

The paper proposes D = γW for W ∈ {I, diag⁻¹(L), L⁻¹, L^{−½}} with the largest γ that condition (3) allows, and for
det-CGD2 the optimum (E[TLT])⁻¹.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.goals import GOAL_NAMES, MOMENTUM_WORDS, WORDS, GoalName
from stepsize_opt.inputs import Direction, Structure, check_one_of
from stepsize_opt.methods import DetCGD1, DetCGD2, Method
from stepsize_opt.node.api import optimal_stepsize, read_problem
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.records import completed
from stepsize_opt.sketches import Sketch
from stepsize_opt.tables import Row, Table, best_first
from stepsize_solvers import SolverChoice
from stepsize_solvers.numerics import blas_threads, sym
from stepsize_solvers.programs import Matrix

# t = 1 solves in one step; the largest float below it keeps the logarithm finite.
_ALMOST_ONE = math.nextafter(1.0, 0.0)
_COLUMNS = (
    "method",
    "stepsize",
    "rate",
    "descent rate",
    "rounds",
    "times the rounds",
    "floats",
    "share of limit",
    "gap",
)


@dataclass(frozen=True)
class _Case:
    """A row to be solved."""

    method: Method
    label: str
    structure: Structure
    goal: GoalName
    momentum: bool = False


def compare(
    L: Any,
    sketch: Sketch,
    *,
    goal: GoalName = "paper",
    strong_convexity: Any = None,
    solver: SolverChoice = "auto",
    tol: float = 1e-6,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Table:
    """Compare the optima with the paper's directions γI, γ diag⁻¹(L), γL⁻¹, γL^{−½}.

    ``rate`` is that of the goal, ``goal`` and ``strong_convexity`` as in ``optimal_stepsize``; ``descent rate`` is
    det(H)^{1/d} of each row, H = 2D − T(D).  For ``"paper"`` the row "optimal, descent" has the best det(H)^{1/d} of
    det-CGD1; for det-CGD2 both optima are the same.  ``"convex"`` has rows for det-CGD1 only.  ``"linear"`` has rows
    with momentum; for ``"convex"`` momentum bounds another quantity (``optimal_stepsize(…, momentum=True)``).
    Other arguments are those of ``optimal_stepsize``, limits for each row.

    Rounds come from the better proved rate of a row, as in ``StepsizeResult.iterations``, in units of 2Δ⁰/ε²
    (``Table.unit``).  Rows are comparable: each bounds the same quantity, for ``"paper"`` and ``"descent"`` a mean of
    ‖∇f‖² in a metric of determinant 1.

    Examples
    --------
    >>> from stepsize_opt import RandK, compare
    >>> for row in compare([[2.0, 1.0], [1.0, 3.0]], RandK(2, 1)).rows[:2]:
    ...     print(f"{row.method} {row.stepsize}: {row.rounds:.3f} 2Δ⁰/ε² rounds")
    det-CGD1 optimal, descent: 4.612 2Δ⁰/ε² rounds
    det-CGD1 γ L^(-1/2): 4.839 2Δ⁰/ε² rounds
    """
    check_one_of("goal", goal, GOAL_NAMES)
    smoothness = read_problem(L, sketch).formed()
    with blas_threads(smoothness.d):
        smoothness.log_det()
        directions = _directions(smoothness.todense())
    results: list[tuple[_Case, StepsizeResult]] = []
    for case in _cases(goal, directions):
        result = optimal_stepsize(
            smoothness,
            sketch,
            algorithm=case.method,
            structure=case.structure,
            goal=case.goal,
            strong_convexity=strong_convexity,
            momentum=case.momentum,
            solver=solver,
            tol=tol,
            verbose=verbose,
            time_limit=time_limit,
            max_iters=max_iters,
            options=options,
        )
        results.append((case, completed(result)))
    return _table(results, sketch, goal)


def _cases(goal: GoalName, directions: list[tuple[str, Structure]]) -> list[_Case]:
    first, second = DetCGD1(), DetCGD2()
    cases = [_Case(first, "optimal", "full", goal)]
    if goal != "convex":
        cases.append(_Case(second, "optimal", "full", goal))
    if goal == "paper":
        cases.append(_Case(first, "optimal, descent", "full", "descent"))
    if goal == "linear":
        cases += [_Case(method, "optimal, momentum", "full", goal, momentum=True) for method in (first, second)]
    return cases + [_Case(first, name, structure, goal) for name, structure in directions]


def _table(results: list[tuple[_Case, StepsizeResult]], sketch: Sketch, goal: GoalName) -> Table:
    fewest = min(_rounds(result) for _, result in results)
    rows = best_first((_row(case, result, goal, fewest) for case, result in results), lambda row: row.rounds)
    best = rows[0].result
    notes = [
        f"best guarantee for this L: {rows[0].method}, {rows[0].stepsize}, by {best.guarantee_used} = "
        f"{best.guaranteed_rate:.6g}; a guarantee is an upper bound, and a run may rank the rows otherwise",
        *dict.fromkeys(result.estimated for _, result in results if result.estimated),
    ]
    if goal == "linear":
        notes.append(f"rounds with momentum are in units of {MOMENTUM_WORDS[goal].unit}")
    plain = results[0][1]  # without memory, as the limit
    limits = ((plain.expected_nonzeros, 1.0 / plain.limit),) if math.isfinite(plain.limit) else ()
    columns = tuple(name for name in _COLUMNS if goal == "paper" or name != "descent rate")
    title = f"Stepsizes for {sketch}, d = {sketch.d}, goal {goal}"
    return Table(tuple(rows), columns, title, WORDS[goal].unit, {goal: limits}, tuple(notes))


def _row(case: _Case, result: StepsizeResult, goal: GoalName, fewest: float) -> Row:
    rounds = _rounds(result)
    return Row(
        goal=goal,
        method=case.method.name,
        stepsize=case.label,
        sketch=str(result.sketch),
        k=result.expected_nonzeros,
        rate=result.rate,
        rounds=rounds,
        floats=result.expected_nonzeros * rounds,
        share_of_limit=result.efficiency if math.isfinite(result.limit) and not case.momentum else None,
        gap=result.gap,
        status=result.status,
        result=result,
        # A record names the goal that the row was solved for.
        more={
            "goal": case.goal,
            "descent rate": result.descent_rate,
            "times the rounds": rounds / fewest,
            "certified": result.certified,
        },
    )


def _rounds(result: StepsizeResult) -> float:
    """Return rounds in the unit of the goal: 1/rate, for ``linear`` 1/−log(1 − t)."""
    rate = result.guaranteed_rate
    return 1.0 / (rate if result.goal != "linear" else -math.log1p(-min(rate, _ALMOST_ONE)))


def _directions(L: Matrix) -> list[tuple[str, Structure]]:
    return [
        ("γ I", "scalar"),
        ("γ diag⁻¹(L)", Direction(np.diag(1.0 / np.diagonal(L)))),
        ("γ L⁻¹", Direction(inverse_of(L))),
        ("γ L^(-1/2)", Direction(power_of(L, -0.5))),
    ]


def inverse_of(L: Matrix) -> Matrix:
    """L⁻¹, symmetric to the last bit."""
    return sym(np.linalg.inv(L))


def power_of(L: Matrix, exponent: float) -> Matrix:
    """L^exponent, symmetric to the last bit."""
    w, V = np.linalg.eigh(L)
    return sym((V * w**exponent) @ V.T)
