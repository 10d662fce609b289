"""The default call of the library, checks and certificate included; times are by the clock, in one run."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy import sparse

from stepsize_opt import RandK, StepsizeResult, optimal_stepsize, optimal_stepsize_path
from stepsize_opt.problems import random_smoothness
from stepsize_validation.bench.random_problems import random_problem
from stepsize_validation.bench.targets.harness import GAP, Found, Study, Target, by_the_clock, shortest
from stepsize_validation.bench.targets.plain_model import solve_plain_model


def small(quick: bool) -> Found:
    """d ≤ 34 against cvxpy + Clarabel on the same problem, and the share of checks and certificate."""
    for d in (2, 5, 10) if quick else (2, 4, 5, 6, 8, 10, 14, 20, 34):
        L, sketch = random_smoothness(np.random.default_rng(d), d, 1e3), RandK(d, max(1, d // 4))
        runs = (
            partial(optimal_stepsize, L, sketch),
            partial(solve_plain_model, L, sketch.second_moment_matrix, "CLARABEL"),
            partial(optimal_stepsize, L, sketch, solver="clarabel"),
        )
        for run in runs:
            run()  # imports, first calls and the compiled model do not count
        rounds, repeats = (8, (20, 3, 3)) if d <= 10 else (3 if d <= 20 else 1, (20, 1, 1))
        ours, written, compiled = shortest(runs, rounds, repeats, time.perf_counter)
        result, D, reference = ours.answer, written.answer, compiled.answer
        case = f"d = {d}"
        apart = math.inf if D is None else abs(float(np.linalg.slogdet(D)[1]) - result.log_det) / d
        if not result.status == reference.status == "optimal":
            apart = math.inf
        # Clarabel's own tolerances leave about 1e-7.
        yield Target("log det/d, distance from Clarabel", at_most=1e-5).of(case, apart)
        ratio = written.seconds / ours.seconds
        yield Target("times faster than a cvxpy model", at_least=10.0).of(case, ratio, ms=1e3 * ours.seconds)
        yield Target("times faster than a compiled one").of(case, compiled.seconds / ours.seconds)
        stats = result.solver_stats
        share = 1.0 - ((stats.solve_time or 0.0) + (stats.setup_time or 0.0)) / ours.seconds
        # A closed form leaves no solver to compare with: reductions and certificate are all there is.
        closed = stats.num_iters == 0
        name = "share of checks and certificate" + (" (closed form)" if closed else "")
        yield Target(name, at_most=None if closed else 0.5).of(case, share)


def random(quick: bool) -> Found:
    """Random problems with every sketch: all optimal, and within Clarabel's certified interval for d ≤ 15."""
    count, max_d = (20, 20) if quick else (1000, 60)
    failed, compared, apart, largest = 0, 0, 0.0, 0.0
    for index in range(count):
        problem = random_problem(np.random.default_rng([11, index]), max_d, 1e6)
        result = optimal_stepsize(problem.L, problem.sketch)
        failed += result.status != "optimal"
        largest = max(largest, result.gap)
        if len(problem.L) <= 15:
            reference = optimal_stepsize(problem.L, problem.sketch, solver="clarabel", tol=1e-7)
            # How far the certified intervals are from overlapping: zero when they do.
            lower = result.log_det - reference.certificate.upper_bound
            upper = reference.log_det - result.certificate.upper_bound
            apart = max(apart, lower / result.d, upper / result.d)
            compared += 1
    case = f"{count} problems, d ≤ {max_d}"
    yield Target("random problems that are not optimal", at_most=0.0).of(case, failed)
    yield Target("random problems: largest gap", at_most=GAP).of(case, largest)
    yield Target("random problems: distance from Clarabel's interval", at_most=GAP).of(
        f"{compared} problems, d ≤ 15", apart
    )


def blocks(quick: bool) -> Found:
    """Block-diagonal L with blocks of size 20: against single solves, twice the blocks, two processes."""
    count, size = 20 if quick else 1000, 20
    rng = np.random.default_rng(0)
    parts = [random_smoothness(rng, size, 1e2) for _ in range(count)]

    def together(number: int, jobs: int = 1) -> StepsizeResult:
        L = sparse.block_diag(parts[:number], format="csr")
        return optimal_stepsize(L, RandK(size * number, max(1, size * number // 4)), n_jobs=jobs)

    def singly() -> list[StepsizeResult]:
        return [optimal_stepsize(part, RandK(size, max(1, size // 4))) for part in parts]

    together(2)
    runs = (singly, partial(together, count // 2), partial(together, count), partial(together, count, 2))
    found = shortest(runs, 3 if quick else 1, clock=time.perf_counter)
    singles, half, whole, two = (run.seconds for run in found)
    case = f"{count} blocks of size {size}"
    failed = sum(run.answer.status != "optimal" for run in found[1:])
    yield Target("blocks: answers that are not optimal", at_most=0.0).of(case, failed)
    yield Target("blocks: seconds over single solves", at_most=1.5).of(case, whole / singles, seconds=whole)
    yield Target("blocks: twice as many, times the seconds", at_most=2.4).of(case, whole / half)
    # Starting two processes takes seconds, more than the few blocks of a quick look: shown there, not judged.
    faster = Target("blocks: two processes, times faster", at_least=None if quick else 1.0)
    yield faster.of(case, whole / two, seconds=two)


def path(quick: bool) -> Found:
    """rand-k for k = 1 … d, each started from the one before: fewer steps than cold starts."""
    d = 8 if quick else 34
    L = random_smoothness(np.random.default_rng(1), d, 1e3)
    sketches = [RandK(d, k) for k in range(1, d + 1)]
    warm = by_the_clock(lambda: optimal_stepsize_path(L, sketches))
    cold = by_the_clock(lambda: [optimal_stepsize(L, sketch) for sketch in sketches])
    before, now = _steps(cold.answer), _steps(warm.answer)
    saved = f"{100.0 * (1.0 - warm.seconds / cold.seconds):.0f} %"
    yield Target("path in k: steps saved", at_least=1.0).of(f"d = {d}", before - now, of=before, time_saved=saved)


def _steps(results: Sequence[StepsizeResult]) -> int:
    return sum(result.solver_stats.num_iters or 0 for result in results)


STUDIES = (
    Study("call.small", small),
    Study("call.random", random),
    Study("call.blocks", blocks),
    Study("call.path", path),
)
