"""The native solver and the default call: cost in units of one ``eigh``, growth, cvxpy models, closed form.

Processor time of this process unless a study says otherwise; OPENBLAS_NUM_THREADS=1 leaves out the idle waiting
of BLAS threads.  The cost of an answer that is not certified is infinite.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.harness import GAP, Measured, Timed, at_hand, eigh_seconds, main, shortest, timed
from stepsize_opt import RandK, certify, optimal_stepsize
from stepsize_opt.proofs import repair
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Matrix, Outcome, Pattern, Program, Settings
from stepsize_validation.data import load_dataset, logistic_regression, random_smoothness, with_spectrum

_COST = 200.0  # eigh


def unit_diagonal(L: Matrix) -> Matrix:
    """Scale L to a unit diagonal; the reductions of the library do that up to powers of two."""
    s = 1.0 / np.sqrt(np.diagonal(L))
    M = L * np.multiply.outer(s, s)
    return np.asarray(0.5 * (M + M.T))


def synthetic(d: int, condition: float) -> Matrix:
    """Return a random orthogonal basis with a log-spaced spectrum, scaled to a unit diagonal."""
    return unit_diagonal(with_spectrum(np.random.default_rng(0), np.geomspace(1.0, condition, d) / condition))


def solve(program: Program, tol: float = GAP) -> Outcome:
    """Return the answer of the native solver, neither repaired nor certified."""
    return get_solver("native").solve(program, Settings(tol=tol))


def certified_gap(program: Program, outcome: Outcome) -> float:
    """Return the gap that is proved of an answer after its repair; ∞ without one."""
    D = outcome.X
    point = None if D is None else repair(program, D)
    return math.inf if D is None or point is None else point.certificate(outcome.duals[0][0], GAP, (D,)).gap


def in_eigh(name: str, case: str, run: Timed, gap: float, unit: float, at_most: float) -> Measured:
    """Return the time of a call in seconds of one eigh; infinite without a proof of the gap."""
    cost = run.seconds / unit if gap <= GAP else math.inf
    return Measured(name, case, cost, at_most=at_most, note=f"{run.seconds:.3g} s, gap {gap:.0e}")


def costs(name: str, case: str, B: Matrix) -> Iterator[Measured]:
    """Measure the cost for k = 1, d/4, 3d/4."""
    unit, d = eigh_seconds(B), len(B)
    for k in sorted({1, max(1, d // 4), max(1, 3 * d // 4)}):
        program = Program.single(B, RandK(d, k).map)
        run = shortest([partial(solve, program)], 3 if d < 400 else 1)[0]
        yield in_eigh(name, f"{case}, k = {k}", run, certified_gap(program, run.answer), unit, _COST)


def data_sets(quick: bool) -> Iterator[Measured]:
    """Real data with d ≥ 100, λ = 0.1 and 10⁻³: cost in eigh."""
    for name in at_hand("mushrooms") if quick else at_hand("mushrooms", "a1a", "a9a", "w1a"):
        for reg in (0.1, 1e-3):
            L = logistic_regression(load_dataset(name), reg).smoothness()
            yield from costs("eigh, data sets", f"{name} λ={reg:g}", unit_diagonal(L))


def spectra(quick: bool) -> Iterator[Measured]:
    """Synthetic spectra of condition 10 to 10⁸: cost in eigh."""
    for d in (100,) if quick else (100, 300):
        for condition in (1e1, 1e3, 1e5, 1e8):
            yield from costs("eigh, synthetic spectra", f"d = {d}, condition {condition:.0e}", synthetic(d, condition))


def growth(quick: bool) -> Iterator[Measured]:
    """Cost in eigh by size at condition 10³, and the exponent of growth; the slowest k counts."""
    sizes, slowest = (100, 200) if quick else (200, 400, 700, 1000), []
    for d in sizes:
        B = synthetic(d, 1e3)
        found = list(costs("eigh by size", f"d = {d}", B))
        yield from found
        slowest.append(max(one.value for one in found) * eigh_seconds(B))
    slope = float(np.polyfit(np.log(sizes), np.log(slowest), 1)[0])
    yield Measured("growth: exponent of d", f"d = {sizes[0]} … {sizes[-1]}", slope, at_most=3.2)


def solve_plain_model(L: Matrix, P: Matrix, solver: str, **options: Any) -> Matrix | None:
    """Return the D of the problem as one writes it in cvxpy, feasible or not; None without one.

        maximise log det D   subject to   [Y, DH; HᵀD, I] ⪰ 0,   D − P∘Y ⪰ 0,      L = HHᵀ,

    that is DLD ⪯ Y and P∘Y ⪯ D, without the library's scaling, choice of the objective, or compiled models.
    """
    import cvxpy as cp

    d, H = len(L), np.linalg.cholesky(L)
    D, Y = cp.Variable((d, d), symmetric=True), cp.Variable((d, d), symmetric=True)
    lift = cp.bmat([[Y, D @ H], [H.T @ D, np.eye(d)]])
    model = cp.Problem(cp.Maximize(cp.log_det(D)), [lift >> 0, D - cp.multiply(P, Y) >> 0])
    try:
        model.solve(solver=solver, **options)
    except cp.SolverError:  # no answer within its limits
        return None
    return None if D.value is None else np.asarray(D.value, dtype=np.float64)


def closed_form(quick: bool) -> Iterator[Measured]:
    """Theorem B on a factor model (one common factor plus noise): exact, within 15 eigh."""
    d, rng = 100 if quick else 500, np.random.default_rng(0)
    factor = rng.uniform(0.8, 1.2, d)
    A = 0.2 * rng.standard_normal((4 * d, d)) + np.multiply.outer(rng.standard_normal(4 * d), factor)
    B = unit_diagonal(A.T @ A / len(A) + 2e-3 * np.eye(d))
    for k in (d // 4, 3 * d // 4):
        run = shortest([partial(solve, Program.single(B, RandK(d, k).map))], 2)[0]
        extra = run.answer.stats.extra_stats
        gap = extra["gap"] if extra["closed_form"] and extra["gap"] <= 1e-10 else math.inf
        yield in_eigh("eigh, theorem B", f"d = {d}, k = {k}", run, gap, eigh_seconds(B), 15.0)


def diagonal(quick: bool) -> Iterator[Measured]:
    """Diagonal D: certified within 60 eigh."""
    d = 200 if quick else 2000
    B = synthetic(d, 1e3)
    run = timed(partial(solve, Program.single(B, RandK(d, d // 4).map, Pattern((1,) * d))))
    gap = float(run.answer.stats.extra_stats["gap"])
    yield in_eigh("eigh, diagonal D", f"d = {d}", run, gap, eigh_seconds(B), 60.0)


def call(quick: bool) -> Iterator[Measured]:
    """The default call with d ≤ 34 against a cvxpy model with Clarabel, and the share of checks and certificate.

    Wall time: what a user waits for.
    """
    for d in (2, 5, 10) if quick else (2, 4, 5, 6, 8, 10, 14, 20, 34):
        L, sketch = random_smoothness(np.random.default_rng(d), d, 1e3), RandK(d, max(1, d // 4))
        ours = partial(optimal_stepsize, L, sketch)
        written = partial(solve_plain_model, L, sketch.second_moment_matrix, "CLARABEL")
        for run in (ours, written):
            run()  # imports and first calls do not count
        mine, theirs = shortest([ours, written], 8 if d <= 10 else 2, time.perf_counter)
        mine = min([mine, *shortest([ours], 40, time.perf_counter)], key=lambda one: one.seconds)
        ratio = theirs.seconds / mine.seconds if mine.answer.status == "optimal" else 0.0
        note = f"{1e3 * mine.seconds:.3g} ms"
        yield Measured("call: times faster than a cvxpy model", f"d = {d}", ratio, at_least=10.0, note=note)
        stats = mine.answer.solver_stats
        share = 1.0 - ((stats.solve_time or 0.0) + (stats.setup_time or 0.0)) / mine.seconds
        if stats.num_iters:  # a closed form leaves no solver to compare with
            yield Measured("call: share of checks and certificate", f"d = {d}", share, at_most=0.5)


def clarabel(quick: bool) -> Iterator[Measured]:
    """A whole call against a cvxpy model with Clarabel as one writes it, and how far Clarabel's D is from feasible."""
    for d in (10,) if quick else (10, 20, 30, 40):
        L, sketch = random_smoothness(np.random.default_rng(d), d, 1e3), RandK(d, d // 4)
        optimal_stepsize(L, sketch)  # imports do not count
        ours = shortest([partial(optimal_stepsize, L, sketch)], 5)[0]
        theirs = timed(partial(solve_plain_model, L, sketch.second_moment_matrix, "CLARABEL"))
        margin = certify(theirs.answer, L, sketch).margin
        yield Measured("clarabel: processor seconds", f"d = {d}", theirs.seconds, note=f"margin {margin:.1e}")
        yield Measured("clarabel: native seconds", f"d = {d}", ours.seconds, note=ours.answer.status)
        yield Measured("clarabel: margin", f"d = {d}", margin)


def forms(quick: bool) -> Iterator[Measured]:
    """Every form of the cvxpy model at tol = 1e-6: processor seconds and certified gap."""
    for d in (6,) if quick else (10, 20):
        program = Program.single(synthetic(d, 1e3), RandK(d, max(1, d // 4)).map)
        for solver, lift, goal in product(("clarabel", "scs"), ("quadratic", "compact"), ("log_det", "root_det")):
            settings = Settings(tol=GAP, extra={"lift": lift, "objective": goal})
            run = shortest([partial(get_solver(solver).solve, program, settings)], 2)[0]
            case, note = f"d = {d}, {lift}, {goal}", f"gap {certified_gap(program, run.answer):.0e}"
            yield Measured(f"{solver}: processor seconds", case, run.seconds, note=note)


STUDIES = (data_sets, spectra, growth, closed_form, diagonal, call, clarabel, forms)

if __name__ == "__main__":
    sys.exit(main(STUDIES))
