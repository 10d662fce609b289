"""Measure the distributed stepsizes: the paper's setting on real data, and the linear form against the lifted one.

    python -m stepsize_validation.bench.distributed [--quick] [--data a1a mushrooms phishing] [--clients 100]

*Data.*  λ = 0.1, n clients with equal shares of the shuffled rows, rand-1, ε² = 10⁻⁴ (the paper's setting); Δ⁰ and
Δ^inf are found by minimising f and every fᵢ.  Optimal diagonal and full D of both algorithms.  Passes when every
certified gap is at most 10⁻⁶.

*Forms.*  Random problems with D ⪯ L⁻¹ slack and active, λ_D ≤ c: the linear form in A and the compact lift in (D, Y),
both with Clarabel, and the native solver.  Passes when all certified intervals overlap.  Times are of the same run.

Exit code 0 when everything passes, 1 otherwise.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from stepsize_opt.clients import optimal_distributed_stepsize
from stepsize_opt.problems import load_dataset
from stepsize_opt.sketches import RandK
from stepsize_solvers import get_solver
from stepsize_solvers.programs import BlockPattern, Constraint, LogDetProgram, Matrix, Settings, Status
from stepsize_validation.experiments import Setting

GAP = 1e-6


@dataclass(frozen=True)
class Row:
    """One line of a table and whether it passes."""

    cells: tuple[str, ...]
    passes: bool


def data_rows(name: str, clients: int, reg: float, epsilon2: float) -> list[Row]:
    """The paper's methods and the full matrices on one data set."""
    data = load_dataset(name)
    setting = Setting.of(data, reg, clients, seed=0)
    scalar = setting.dcgd(epsilon2)
    rows = [Row((name, str(clients), "DCGD", "scalar", str(scalar.K), "1.000", "", "", "", ""), True)]
    for label, algorithm, structure in (
        ("DCGD-mat", "det-CGD1", "scalar"),
        ("D-det-CGD1", "det-CGD1", "diagonal"),
        ("D-det-CGD2", "det-CGD2", "diagonal"),
        ("D-det-CGD1", "det-CGD1", "full"),
        ("D-det-CGD2", "det-CGD2", "full"),
    ):
        begin = time.perf_counter()
        result = optimal_distributed_stepsize(
            setting.client_L,
            setting.sketch,
            epsilon2=epsilon2,
            initial_gap=setting.initial_gap,
            delta_inf=setting.infimum.delta_inf,
            mean_smoothness=setting.L,
            algorithm=algorithm,
            structure=structure,
            tight=True,
        )
        seconds = time.perf_counter() - begin
        tight = "" if result.tight is None else f"{result.tight.saving:.3f}"
        cells = (
            name,
            str(clients),
            label,
            structure,
            str(result.K),
            f"{scalar.K / result.K:.3f}",
            f"{result.gap:.1e}",
            tight,
            "; ".join(result.binding),
            f"{seconds:.1f}",
        )
        rows.append(Row(cells, result.status == Status.OPTIMAL.value and result.gap <= GAP))
    return rows


def random_clients(d: int, n: int, rng: np.random.Generator) -> list[Matrix]:
    """Matrices AᵀA/(4m) + 0.2 I of m = d/2 random rows."""
    out = []
    for _ in range(n):
        A = rng.standard_normal((max(1, d // 2), d))
        out.append(A.T @ A / (4.0 * len(A)) + 0.2 * np.eye(d))
    return out


def lifted_log_rate(matrices: Sequence[Matrix], sketch: RandK, c: float) -> tuple[float, float]:
    """log det(D)/d of the compact lift with Clarabel and its seconds, compilation included."""
    d = sketch.d
    L = np.mean(np.array(matrices), axis=0)
    centred = sketch.map.centered()
    constraints = [Constraint(a=-1.0, C=np.asarray(np.linalg.inv(L)))]
    constraints += [
        Constraint(Q=centred, B=L, a=0.0, C=np.asarray(c * np.linalg.inv(M), dtype=np.float64)) for M in matrices
    ]
    begin = time.perf_counter()
    outcome = get_solver("clarabel").solve(
        LogDetProgram(tuple(constraints), BlockPattern((d,))), Settings(tol=GAP / 4.0, extra={"lift": "compact"})
    )
    seconds = time.perf_counter() - begin
    value = -math.inf if outcome.D is None else float(np.linalg.slogdet(outcome.D)[1]) / d
    return value, seconds


def form_rows(sizes: Sequence[int], clients: int) -> list[Row]:
    """Linear form, lift and native solver on the same problems, with K chosen so that D ⪯ L⁻¹ is slack or active."""
    rng = np.random.default_rng(1)
    rows = []
    for d in sizes:
        matrices = random_clients(d, clients, rng)
        # λ_D ≤ c = n/K.  At D = L⁻¹ λ_D is a few times ω = d/k − 1, so c = 1 leaves D ⪯ L⁻¹ slack for k = 1, but not
        # for k = 2d/3.
        for label, sketch, K in (("slack", RandK(d, 1), clients), ("active", RandK(d, -(-2 * d // 3)), clients)):
            answers = {}
            seconds = {}
            for solver in ("native", "clarabel"):
                begin = time.perf_counter()
                answers[solver] = optimal_distributed_stepsize(
                    matrices,
                    sketch,
                    epsilon2=1.0,
                    initial_gap=1e-9,
                    delta_inf=0.0,
                    iterations=K,
                    solver=solver,
                )
                seconds[solver] = time.perf_counter() - begin
            lifted, lifted_seconds = lifted_log_rate(matrices, sketch, clients / K)
            native, linear = answers["native"].certificate, answers["clarabel"].certificate
            # Certified intervals of the two must overlap; the lift's raw value carries the solver's own error of 10⁻⁶.
            overlap = native.log_rate <= linear.upper_bound and linear.log_rate <= native.upper_bound
            agrees = native.log_rate - 1e-6 <= lifted <= native.upper_bound + 1e-6
            cells = (
                str(d),
                str(clients),
                label,
                "; ".join(answers["native"].binding),
                f"{native.gap:.1e}",
                f"{linear.gap:.1e}",
                f"{lifted - native.log_rate:+.1e}",
                f"{seconds['native']:.2f}",
                f"{seconds['clarabel']:.2f}",
                f"{lifted_seconds:.2f}",
                f"{lifted_seconds / seconds['clarabel']:.2f}",
            )
            rows.append(Row(cells, overlap and agrees and native.gap <= GAP))
    return rows


def _print(console: Console, title: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    table = Table(title=title)
    for column in (*columns, "passes"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row.cells, "yes" if row.passes else "NO")
    console.print(table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="an embedded data set and small random problems only")
    parser.add_argument("--data", nargs="*", default=["a1a", "mushrooms", "phishing"], help="data sets")
    parser.add_argument("--clients", type=int, default=100, help="number of clients (default: %(default)s)")
    args = parser.parse_args(argv)
    names, clients = (["breast_cancer"], 10) if args.quick else (args.data, args.clients)
    console = Console(width=200)
    forms = form_rows((6, 10) if args.quick else (6, 10, 15, 20, 25), 3 if args.quick else 5)
    _print(
        console,
        "linear form in A, compact lift, native solver (λ_D ≤ n/K for a given K)",
        (
            "d",
            "n",
            "D ⪯ L⁻¹",
            "binding",
            "gap native",
            "gap linear",
            "lift − native",
            "native s",
            "linear s",
            "lift s",
            "lift/linear",
        ),
        forms,
    )
    rows = [*forms]
    for name in names:
        found = data_rows(name, clients, 0.1, 1e-4)
        rows += found
        _print(
            console,
            f"{name}: λ = 0.1, rand-1, ε² = 1e-4",
            ("data", "n", "method", "D", "K", "DCGD/K", "gap", "Theorem 3", "binding", "seconds"),
            found,
        )
    good = all(row.passes for row in rows)
    console.print("all pass" if good else "some fail")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
