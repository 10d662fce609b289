"""DCGD with a scalar stepsize and the matrix stepsizes in one table: rounds and floats of each for the same ε².

*DCGD* (Khaled and Richtárik, Corollary 1, as the paper states it): with the scalars L = λmax(L), L_max = maxᵢ λmax(Lᵢ)
and ω = λmax(E[SᵀS]) − 1, the stepsize γ and K must satisfy

    γ ≤ min{ 1/L, √(n/(K L L_max ω)), nε²/(4Δ^inf L L_max ω) },     γK ≥ 12Δ⁰/ε²,

which are the conditions (12) for L·I, L_max·I and D = γI.  *DCGD-mat* is D = γI under (12) with the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from stepsize_opt.clients.api import Seeds, optimal_distributed_stepsize
from stepsize_opt.clients.problem import Targets, log_fraction, read_clients
from stepsize_opt.goals import GoalName, coordinates_sent
from stepsize_opt.inputs import NAMED_STRUCTURES
from stepsize_opt.proofs import exp_down, rounded_down
from stepsize_opt.records import completed
from stepsize_opt.sketches import Sketch
from stepsize_opt.tables import Row, Table, best_first

_COLUMNS = ("method", "stepsize", "seeds", "rounds", "floats", "gap")
# Method, structure, goal and seeds of every row.
_CASES: tuple[tuple[str, str, GoalName, Seeds], ...] = (
    ("D-det-CGD1", "full", "descent", "shared"),
    ("D-det-CGD2", "full", "descent", "shared"),
    ("DCGD", "scalar", "paper", "independent"),
    ("DCGD-mat", "scalar", "paper", "independent"),
    ("D-det-CGD1", "diagonal", "paper", "independent"),
    ("D-det-CGD2", "diagonal", "paper", "independent"),
    ("D-det-CGD1", "full", "paper", "independent"),
    ("D-det-CGD2", "full", "paper", "independent"),
    ("D-det-CGD1", "full", "descent", "independent"),
    ("D-det-CGD2", "full", "descent", "independent"),
)


@dataclass(frozen=True)
class ScalarStepsize:
    """γ and K of DCGD from the scalars L, L_max and ω, n clients."""

    gamma: float
    K: int


def dcgd_stepsize(
    L: float, L_max: float, omega: float, *, clients: int, epsilon2: float, initial_gap: float, delta_inf: float
) -> ScalarStepsize:
    """The smallest K of DCGD with scalar constants, and the largest γ for it.

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
    sketch: Sketch | Sequence[Sketch],
    *,
    epsilon2: float,
    initial_gap: float,
    delta_inf: float,
    mean_smoothness: Any = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    solver: str = "auto",
    tol: float = 1e-6,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Table:
    """Shared seeds, DCGD, DCGD-mat, and distributed det-CGD1 and det-CGD2 with the best diagonal and the best full D.

    The row with the fewest rounds is first.  Where all clients have one sketch they may draw the same one, and need no
    λ_D at all.  The best full D also has a row for the goal ``descent``.  ``on_progress`` is called as in ``plan``:
    with the number of rows done, of all rows, and the name of the next before each is solved.  Other arguments are as
    in ``optimal_distributed_stepsize``, limits for each row.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, compare_distributed
    >>> clients = [np.diag([1.0, 2.0]), np.diag([3.0, 1.0])]
    >>> table = compare_distributed(clients, RandK(2, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.5)
    >>> [(row.method, row.seeds, row.rounds) for row in table.rows if row.method != "D-det-CGD2"][:2]
    [('D-det-CGD1', 'shared', 7), ('D-det-CGD1', 'independent', 88)]
    """
    numbers: dict[str, Any] = {"epsilon2": epsilon2, "initial_gap": initial_gap, "delta_inf": delta_inf}
    clients = read_clients(smoothness, sketch, mean_smoothness)
    matrices, sketches = clients.matrices, clients.sketches
    scalar = dcgd_stepsize(
        float(np.linalg.eigvalsh(clients.smoothness)[-1]),
        max(float(np.linalg.eigvalsh(M)[-1]) for M in matrices),
        max(s.omega for s in sketches),
        clients=len(matrices),
        **numbers,
    )
    per_round = sum(s.expected_nonzeros for s in sketches)
    k, sent = per_round / len(sketches), coordinates_sent(scalar.K, per_round)

    shared = len(set(sketches)) == 1
    report = on_progress or (lambda done, total, name: None)
    cases = [case for case in _CASES if shared or case[3] == "independent"]
    rows = []
    for done, (method, structure, goal, seeds) in enumerate(cases):
        report(done, len(cases), f"{method}, {structure} D, {seeds} seeds, {goal}")
        words: dict[str, Any] = {"goal": "paper", "method": method, "stepsize": _label(structure, goal), "seeds": seeds}
        # Rows of one table belong to one goal; a record names the goal that the row was solved for.
        words["more"] = {"goal": goal}
        words["sketch"] = ", ".join(dict.fromkeys(map(str, sketches)))
        if method == "DCGD":
            rows.append(Row(k=k, rate=scalar.gamma, rounds=scalar.K, floats=sent, status="formula", **words))
            continue
        result = completed(
            optimal_distributed_stepsize(
                matrices,
                sketches,
                mean_smoothness=mean_smoothness,
                algorithm=method.removeprefix("D-") if method.startswith("D-") else "det-CGD1",
                structure=NAMED_STRUCTURES[structure],
                goal=goal,
                seeds=seeds,
                **numbers,
                solver=solver,
                tol=tol,
                verbose=verbose,
                time_limit=time_limit,
                max_iters=max_iters,
                options=options,
            )
        )
        found: dict[str, Any] = {"rate": result.rate, "rounds": result.K, "floats": result.communication}
        rows.append(Row(k=k, **found, gap=result.gap, status=result.status, result=result, **words))
    report(len(cases), len(cases), "")
    title = f"Stepsizes for {len(matrices)} clients, d = {len(matrices[0])}, ε² = {epsilon2:g}"
    return Table(tuple(best_first(rows, lambda row: row.rounds)), _COLUMNS, title)


def _label(structure: str, goal: str) -> str:
    return structure if goal == "paper" else f"{structure}, {goal}"
