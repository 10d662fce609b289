"""``compare`` and ``compare_distributed``: the optimal stepsizes beside those of the literature, each in one table.

*One node.*  The paper proposes D = γW for W ∈ {I, diag⁻¹(L), L⁻¹, L^{−½}} with the largest γ that condition (3) allows,
and for det-CGD2 the optimum (E[TLT])⁻¹.

*Clients.*  DCGD (Khaled and Richtárik, Corollary 1, as the paper states it): with the scalars L = λmax(L),
L_max = maxᵢ λmax(Lᵢ) and ω = λmax(E[SᵀS]) − 1, the stepsize γ and K must satisfy

    γ ≤ min{ 1/L, √(n/(K L L_max ω)), nε²/(4Δ^inf L L_max ω) },     γK ≥ 12Δ⁰/ε²,

which are the conditions (12) for L·I, L_max·I and D = γI.  DCGD-mat is D = γI under (12) with the matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from stepsize_opt.clients.api import Seeds, optimal_distributed_stepsize
from stepsize_opt.clients.problem import Clients, Targets, log_fraction, read_clients
from stepsize_opt.goals import Goal, GoalName, coordinates_sent
from stepsize_opt.inputs.structures import Direction, Structure
from stepsize_opt.methods import DetCGD1, DetCGD2, Method
from stepsize_opt.node import optimal_stepsize, read_problem
from stepsize_opt.planning.questions import read_solving
from stepsize_opt.proofs import Unproved, exp_down, rounded_down
from stepsize_opt.records import completed
from stepsize_opt.sketches.base import Sketch
from stepsize_opt.tables import Case, Progress, Row, Table, best_first, solve_cases
from stepsize_solvers.numerics.linalg import blas_threads, sym
from stepsize_solvers.programs import Matrix

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
_CLIENT_COLUMNS = ("method", "stepsize", "seeds", "rounds", "floats", "gap")
# Method, structure, goal and seeds of every row for clients.
_CLIENT_CASES: tuple[tuple[str, Structure, GoalName, Seeds], ...] = (
    ("D-det-CGD1", "full", "descent", "shared"),
    ("D-det-CGD2", "full", "descent", "shared"),
    ("DCGD", "scalar", "paper", "independent"),
    ("DCGD-mat", "scalar", "paper", "independent"),
    ("D-det-CGD1", "diagonal", "paper", "independent"),
    ("D-det-CGD2", "diagonal", "paper", "independent"),
    ("D-det-CGD1", "full", "paper", "independent"),
    ("D-det-CGD2", "full", "paper", "independent"),
)


def compare(
    L: Any,
    sketch: Sketch | str,
    *,
    goal: GoalName | Goal = "paper",
    strong_convexity: Any = None,
    on_progress: Progress | None = None,
    solving: Mapping[str, Any] | None = None,
) -> Table:
    """Compare the optima with the paper's directions γI, γ diag⁻¹(L), γL⁻¹, γL^{−½}.

    ``rate`` is that of the goal, and ``descent rate`` is det(H)^{1/d} of each row, H = 2D − T(D).  For ``"paper"`` the
    row "optimal, descent" has the best det(H)^{1/d} of det-CGD1; for det-CGD2 both optima are the same.  ``"linear"``
    has rows with momentum.

    Rounds come from the better proved rate of a row, as in ``StepsizeResult.iterations``, in units of 2Δ⁰/ε²
    (``Table.unit``).  Rows are comparable: each bounds the same quantity, for ``"paper"`` and ``"descent"`` a mean of
    ‖∇f‖² in a metric of determinant 1.

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d), or EstimatedSmoothness
        Smoothness matrix, symmetric positive definite.
    sketch
        The distribution of S (or T), as in ``optimal_stepsize``.
    goal : str or Goal
        By which D is judged, as in ``optimal_stepsize``, without momentum.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M of ``"linear"``, as in ``optimal_stepsize``.
    on_progress : callable, optional
        As in ``plan``.
    solving
        As in ``plan``.

    Returns
    -------
    Table
        The row with the fewest rounds is the first.

    See Also
    --------
    optimal_stepsize : one of the rows.
    compare_distributed : the same for clients.
    plan : methods and sketches within a budget.

    Examples
    --------
    >>> from stepsize_opt import RandK, compare
    >>> for row in compare([[2.0, 1.0], [1.0, 3.0]], RandK(2, 1)).rows[:2]:
    ...     print(f"{row.method} {row.stepsize}: {row.rounds:.3f} 2Δ⁰/ε² rounds")
    det-CGD1 optimal, descent: 4.612 2Δ⁰/ε² rounds
    det-CGD1 γ L^(-1/2): 4.839 2Δ⁰/ε² rounds
    """
    read, sketch = read_problem(L, sketch)
    aim = Goal.read(goal, strong_convexity, sketch.d)
    if aim.momentum:
        msg = f"goal must be one without memory, got a {type(aim).__name__}: momentum has rows of its own"
        raise ValueError(msg)
    smoothness = read.formed()
    with blas_threads(smoothness.d):
        smoothness.log_det()
        directions = _directions(smoothness.todense())
    settings = read_solving(solving)

    def make(method: Method, stepsize: str, structure: Structure, solved_for: Goal) -> Row:
        asked: dict[str, Any] = {"algorithm": method, "structure": structure, "goal": solved_for, **settings}
        result = completed(optimal_stepsize(smoothness, sketch, **asked))
        rounds = result.goal_class.relative_rounds(result.guaranteed_rate)
        return Row(
            goal=aim.name,
            method=method.name,
            stepsize=stepsize,
            rate=result.rate,
            rounds=rounds,
            floats=result.expected_nonzeros * rounds,
            # A record names the goal that the row was solved for.
            more={"goal": solved_for.name, "descent rate": result.descent_rate, "certified": result.certified},
            **result.columns(),
        )

    cases: list[Case[Row]] = [
        (f"{case[0].name}, {case[1]}", partial(make, *case)) for case in _cases(aim, sketch.d, directions)
    ]
    rows = _solved(cases, on_progress)
    fewest = min(row.rounds for row in rows)
    rows = [replace(row, more={**row.more, "times the rounds": row.rounds / fewest}) for row in rows]
    return _table(best_first(rows, lambda row: row.rounds), sketch, aim)


def _cases(goal: Goal, d: int, directions: list[tuple[str, Structure]]) -> list[tuple[Method, str, Structure, Goal]]:
    """Return method, name of the stepsize, structure and goal of each row."""
    first, second = DetCGD1(), DetCGD2()
    cases: list[tuple[Method, str, Structure, Goal]] = [(one, "optimal", "full", goal) for one in (first, second)]
    if goal.needs_condition:
        better = goal.for_limit()  # without the condition
        cases.append((first, f"optimal, {better.name}", "full", better))
    momentum = goal.with_momentum(d)
    if momentum is not None:
        cases.extend((method, "optimal, momentum", "full", momentum) for method in (first, second))
    cases.extend((first, name, structure, goal) for name, structure in directions)
    return cases


def _table(rows: list[Row], sketch: Sketch, goal: Goal) -> Table:
    notes = [
        f"best by {rows[0].result.guarantee_used}, for every f with this L; a run may rank the rows otherwise",
        *dict.fromkeys(row.result.estimated for row in rows if row.result.estimated),
    ]
    momentum = goal.with_momentum(sketch.d)
    if momentum is not None:
        notes.append(f"rounds with momentum are in units of {momentum.words.unit}")
    plain = next(row.result for row in rows if not row.result.momentum)  # without memory, as the limit
    limit = (plain.expected_nonzeros, goal.relative_rounds(plain.limit))
    limits = (limit,) if math.isfinite(plain.limit) else ()
    columns = tuple(name for name in _COLUMNS if goal.needs_condition or name != "descent rate")
    title = f"Stepsizes for {sketch}, d = {sketch.d}, goal {goal.name}"
    return Table(tuple(rows), columns, title, goal.words.unit, {goal.name: limits}, tuple(notes))


def _directions(L: Matrix) -> list[tuple[str, Structure]]:
    """Return the paper's directions W for L, by name."""
    return [
        ("γ I", "scalar"),
        ("γ diag⁻¹(L)", Direction(np.diag(1.0 / np.diagonal(L)))),
        ("γ L⁻¹", Direction(power_of(L, -1.0))),
        ("γ L^(-1/2)", Direction(power_of(L, -0.5))),
    ]


def _solved(cases: list[Case[Row]], on_progress: Progress | None) -> list[Row]:
    """Return the rows of all cases; raise Unproved for one that float64 does not prove."""
    rows, left_out = solve_cases(cases, on_progress)
    if left_out:
        raise Unproved("; ".join(left_out))
    return rows


def power_of(L: Matrix, exponent: float) -> Matrix:
    """Return L^exponent, symmetric to the last bit; L⁻¹ without eigenvalues."""
    if exponent == -1.0:
        return sym(np.linalg.inv(L))
    w, V = np.linalg.eigh(L)
    return sym((V * w**exponent) @ V.T)


@dataclass(frozen=True)
class ScalarStepsize:
    """γ and K of DCGD from the scalars L, L_max and ω, n clients."""

    gamma: float
    K: int


def dcgd_stepsize(
    L: float, L_max: float, omega: float, *, clients: int, epsilon2: float, initial_gap: float, delta_inf: float
) -> ScalarStepsize:
    """Return the smallest K of DCGD with scalar constants, and the largest γ for it.

    γK = 12Δ⁰/ε² turns the second condition into γ ≤ nε²/(12Δ⁰ L L_max ω); K is rounded up to a whole number, and γ
    is then the largest that all conditions allow for it.
    """
    targets = Targets(epsilon2, initial_gap, delta_inf, clients)
    noise = Fraction(L) * Fraction(L_max) * Fraction(omega)
    descent = 1 / Fraction(L)
    kappa, factor = targets.kappa, targets.det_factor
    K = targets.least_iterations(min(descent, kappa / noise) if noise and kappa is not None else descent)
    limits = [rounded_down(descent)]
    if noise:
        limits.append(exp_down(0.5 * log_fraction(clients / (K * noise))))
        if factor is not None:
            limits.append(rounded_down(factor / noise))
    return ScalarStepsize(min(limits), K)


def compare_distributed(
    smoothness: Sequence[Any],
    sketch: Sketch | str | Sequence[Sketch | str],
    *,
    epsilon2: float,
    initial_gap: float,
    delta_inf: float,
    mean_smoothness: Any = None,
    on_progress: Progress | None = None,
    solving: Mapping[str, Any] | None = None,
) -> Table:
    """Compare shared seeds, DCGD, DCGD-mat, and distributed det-CGD1 and det-CGD2 with the best diagonal and full D.

    Where all clients have one sketch they may draw the same one, and need no λ_D at all.

    Parameters
    ----------
    smoothness : sequence of array-like or sparse matrix of shape (d, d)
        The clients' matrices L₁, …, L_n.
    sketch
        The distribution of every Sᵢ (or Tᵢ), or one sketch for each client.
    epsilon2, initial_gap, delta_inf
        ε², Δ⁰ and Δ^inf, as in ``optimal_distributed_stepsize``.
    mean_smoothness : array-like or sparse matrix of shape (d, d), optional
        L of f = (1/n)Σfᵢ; None takes (1/n)ΣLᵢ.
    on_progress : callable, optional
        As in ``plan``.
    solving
        As in ``plan``.

    Returns
    -------
    Table
        The row with the fewest rounds is the first.

    See Also
    --------
    optimal_distributed_stepsize : one of the rows.
    compare : the same for one node.
    plan : methods and sketches within a budget.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, compare_distributed
    >>> clients = [np.diag([1.0, 2.0]), np.diag([3.0, 1.0])]
    >>> table = compare_distributed(clients, RandK(2, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.5)
    >>> [(row.method, row.seeds, row.rounds) for row in table.rows if row.method != "D-det-CGD2"][:2]
    [('D-det-CGD1', 'shared', 7), ('D-det-CGD1', 'independent', 306)]
    """
    numbers: dict[str, Any] = {"epsilon2": epsilon2, "initial_gap": initial_gap, "delta_inf": delta_inf}
    clients = read_clients(smoothness, sketch, mean_smoothness)
    settings = {**read_solving(solving), "mean_smoothness": mean_smoothness, **numbers}

    def make(method: str, structure: Structure, goal: GoalName, seeds: Seeds) -> Row:
        stepsize = f"{structure}, {goal}" if seeds == "shared" else str(structure)
        # Rows of one table belong to one goal; a record names the goal that the row was solved for.
        words: dict[str, Any] = {"goal": "paper", "method": method, "stepsize": stepsize, "more": {"goal": goal}}
        if method == "DCGD":
            return Row(**words, seeds=seeds, **_dcgd_columns(clients, numbers))
        asked: dict[str, Any] = {"algorithm": "det-CGD1" if method == "DCGD-mat" else method.removeprefix("D-")}
        asked |= {"structure": structure, "goal": goal, "seeds": seeds, **settings}
        result = completed(optimal_distributed_stepsize(clients.matrices, clients.sketches, **asked))
        floats = result.communication()
        return Row(rate=result.rate, rounds=result.K, floats=floats, seeds=seeds, **words, **result.columns())

    shared = clients.common_sketch is not None
    cases: list[Case[Row]] = [
        (f"{method}, {structure} D, {seeds} seeds, {goal}", partial(make, method, structure, goal, seeds))
        for method, structure, goal, seeds in _CLIENT_CASES
        if shared or seeds == "independent"
    ]
    rows = _solved(cases, on_progress)
    title = f"Stepsizes for {len(clients.matrices)} clients, d = {clients.d}, ε² = {epsilon2:g}"
    return Table(tuple(best_first(rows, lambda row: row.rounds)), _CLIENT_COLUMNS, title)


def _dcgd_columns(clients: Clients, numbers: dict[str, float]) -> dict[str, Any]:
    """Return the columns of DCGD, whose γ and K are formulas."""
    matrices, sketches = clients.matrices, clients.sketches
    found = dcgd_stepsize(
        float(np.linalg.eigvalsh(clients.smoothness)[-1]),
        max(float(np.linalg.eigvalsh(M)[-1]) for M in matrices),
        max(sketch.omega for sketch in sketches),
        clients=len(matrices),
        **numbers,
    )
    per_round = sum(sketch.expected_nonzeros for sketch in sketches)
    return {
        "sketch": ", ".join(dict.fromkeys(map(str, sketches))),
        "k": per_round / len(sketches),
        "rate": found.gamma,
        "rounds": found.K,
        "floats": coordinates_sent(found.K, per_round),
        "status": "formula",
    }
