"""The native solver alone: certified gaps, cost in units of one ``eigh``, growth, packages, closed form, diagonal D.

Processor time of this process; OMP_NUM_THREADS=1 leaves out the idle waiting of BLAS threads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from stepsize_opt.problems import LogisticRegression, load_dataset, with_spectrum
from stepsize_opt.proofs import certify_point, repair
from stepsize_opt.sketches import RandK
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Matrix, Outcome, Pattern, PositiveMap, Program, Settings, Solver
from stepsize_validation.bench.targets.harness import (
    GAP,
    Found,
    Measurement,
    Study,
    Target,
    Timed,
    at_hand,
    eigh_seconds,
    shortest,
    timed,
)
from stepsize_validation.bench.targets.plain_model import solve_plain_model

_DATASETS = ("heart_scale", "australian_scale", "ionosphere_scale", "phishing", "mushrooms", "a1a", "a9a", "w1a")
_COST = 200.0  # eigh


@dataclass(frozen=True)
class Problem:
    """A named problem: the constraint 𝒬(D B D) ⪯ D with rand-k."""

    name: str
    B: Matrix
    k: int

    @property
    def d(self) -> int:
        return int(self.B.shape[0])

    @property
    def map(self) -> PositiveMap:
        return RandK(self.d, self.k).map

    @property
    def program(self) -> Program:
        return Program.single(self.B, self.map)

    def solve(self, solver: Solver | None = None, tol: float = GAP) -> Outcome:
        """The answer of a solver (default: native), neither repaired nor certified."""
        return (solver or get_solver("native")).solve(self.program, Settings(tol=tol))

    def __str__(self) -> str:
        return f"{self.name}, d = {self.d}, k = {self.k}"


def unit_diagonal(L: Matrix) -> Matrix:
    """L scaled to a unit diagonal; the reductions of the library do that up to powers of two."""
    s = 1.0 / np.sqrt(np.diagonal(L))
    M = L * np.multiply.outer(s, s)
    return np.asarray(0.5 * (M + M.T))


def synthetic(d: int, condition: float) -> Matrix:
    """A random orthogonal basis with a log-spaced spectrum, scaled to a unit diagonal."""
    return unit_diagonal(with_spectrum(np.random.default_rng(0), np.geomspace(1.0, condition, d) / condition))


def factor_model(d: int) -> Matrix:
    """One common factor plus noise, as in data whose features share a mean."""
    rng = np.random.default_rng(0)
    f = rng.uniform(0.8, 1.2, d)
    A = 0.2 * rng.standard_normal((4 * d, d)) + np.multiply.outer(rng.standard_normal(4 * d), f)
    return unit_diagonal(A.T @ A / len(A) + 2e-3 * np.eye(d))


def with_every_k(name: str, B: Matrix) -> Iterator[Problem]:
    """k ∈ {1, d/4, 3d/4}."""
    d = len(B)
    return (Problem(name, B, k) for k in sorted({1, max(1, d // 4), max(1, 3 * d // 4)}))


def certified_gap(problem: Problem, outcome: Outcome) -> float:
    """The gap that the library proves for a solver's answer, after its repair; ∞ without an answer."""
    D = outcome.X
    point = None if D is None else repair(problem.program, D)
    return np.inf if D is None or point is None else certify_point(point, outcome.duals[0][0], (D,), GAP).gap


def _gap_and_cost(problem: Problem, name: str) -> Iterator[Measurement]:
    """The gap of the iteration alone, and from d = 100 on its cost."""
    run = timed(problem.solve)
    extra = run.answer.stats.extra_stats
    cost = run.seconds / eigh_seconds(problem.B)
    seen = {"steps": extra["steps"], "cg": extra["cg_iterations"], "seconds": run.seconds, "eigh": cost}
    yield Target(f"gap, {name}", at_most=GAP).of(str(problem), certified_gap(problem, run.answer), **seen)
    if problem.d >= 100:
        yield Target(f"cost, {name}, d ≥ 100", "eigh", at_most=_COST).of(str(problem), cost)


def data_sets(quick: bool) -> Found:
    """L = AᵀA/(4m) + 2λI of real data: certified gap, cost."""
    names, missing = at_hand(("heart_scale", "ionosphere_scale") if quick else _DATASETS)
    yield from missing
    for name in names:
        data = load_dataset(name)
        for lam in (0.1, 1e-3):
            B = unit_diagonal(LogisticRegression.from_dataset(data, lam).smoothness())
            for problem in with_every_k(f"{name} λ={lam:g}", B):
                yield from _gap_and_cost(problem, "data sets")


def spectra(quick: bool) -> Found:
    """Synthetic spectra of condition 10 to 10⁸: certified gap, cost."""
    for d in (10, 40) if quick else (10, 40, 100, 300):
        for condition in (1e1, 1e3, 1e5, 1e8):
            for problem in with_every_k(f"spectrum {condition:.0e}", synthetic(d, condition)):
                yield from _gap_and_cost(problem, "synthetic spectra")


def growth(quick: bool) -> Found:
    """Cost by size at condition 10³, and the exponent of growth from d = 200 on; the slowest k counts."""
    slowest: dict[int, float] = {}
    for d in (100, 200) if quick else (100, 200, 400, 700, 1000):
        B = synthetic(d, 1e3)
        unit = eigh_seconds(B)
        for problem in with_every_k("condition 1e3", B):
            run = timed(problem.solve)
            slowest[d] = max(slowest.get(d, 0.0), run.seconds)
            gap = certified_gap(problem, run.answer)
            yield Target("cost by size", "eigh", at_most=_COST).of(
                str(problem), run.seconds / unit, seconds=run.seconds, gap=gap
            )
    large = [d for d in slowest if d >= 200]
    if len(large) > 1:
        slope = float(np.polyfit(np.log(large), np.log([slowest[d] for d in large]), 1)[0])
        yield Target("growth: exponent of d", at_most=3.2).of(f"d = {large[0]} … {large[-1]}", slope)


@dataclass(frozen=True)
class Package:
    """A solver behind cvxpy: its options in the order tried, loosest first, and the name of its time limit."""

    name: str
    options: tuple[dict[str, float], ...]
    time_limit: str


_CLARABEL = Package("CLARABEL", ({},), "time_limit")
_SCS = Package(
    "SCS",
    tuple({"eps_abs": eps, "eps_rel": eps, "max_iters": 1_000_000} for eps in (1e-5, 1e-6, 1e-7)),
    "time_limit_secs",
)


def packages(quick: bool) -> Found:
    """Times faster than cvxpy models as one writes them (condition 10³, k = d/4); these are stopped once they lost.

    A package counts with the loosest options that come within 1e-6 of the optimum after a repair, with the shorter of
    two runs; one that does not get there is slower than it ran.  Native runs before and after them, so that both see
    the same machine.  The library's own cvxpy form of SCS (det^{1/d}, compiled before) is shown beside them.
    """
    for d, wanted in ((10, 10.0),) if quick else ((10, 10.0), (20, 10.0), (34, 10.0), (40, 200.0), (60, 1000.0)):
        problem = Problem("packages", synthetic(d, 1e3), max(1, d // 4))
        clock, processor = time.perf_counter(), time.process_time()
        own = shortest([problem.solve], 10)[0].seconds
        # The limits of packages go by the clock, which a busy machine makes run so many times as fast.
        busy = max(1.0, (time.perf_counter() - clock) / (time.process_time() - processor))
        optimum = problem.solve(tol=1e-8).X
        limit = 1.2 * busy * wanted * own if d > 34 else None
        rivals = {
            package.name.lower(): _plain_package(problem, package, optimum, limit)
            for package in ((_CLARABEL,) if d <= 34 else (_SCS, _CLARABEL))
        }
        own = min(own, shortest([problem.solve], 10)[0].seconds)
        fastest = min(rivals, key=lambda name: rivals[name].seconds)
        ratio = rivals[fastest].seconds / own
        seconds = {f"{name} seconds": run.seconds for name, run in rivals.items()}
        target = Target(f"times faster than a cvxpy model, d = {d}", at_least=wanted)
        yield target.of(f"against {fastest}", ratio, gap=rivals[fastest].answer, native=own, **seconds)
        if d > 34:
            problem.solve(get_solver("scs"), 1e-5)
            compiled = timed(partial(problem.solve, get_solver("scs"), 1e-5))
            gap = distance(problem, compiled.answer.X, optimum)
            yield Target(f"times faster than scs, compiled before, d = {d}").of("scs", compiled.seconds / own, gap=gap)


def _plain_package(problem: Problem, package: Package, optimum: Matrix | None, limit: float | None) -> Timed:
    """Seconds of a package, and how far its answer is from the optimum."""
    P = problem.map.hadamard_matrix
    assert P is not None
    solve_plain_model(synthetic(5, 10.0), np.ones((5, 5)), package.name)  # imports and first calls do not count
    found = Timed(np.inf, np.inf)
    for options in package.options:
        limits = {} if limit is None else {package.time_limit: limit}
        run = partial(solve_plain_model, problem.B, P, package.name, **options, **limits)
        first = timed(run)
        found = Timed(first.seconds, distance(problem, first.answer, optimum))
        if found.answer <= GAP:
            return Timed(min(found.seconds, timed(run).seconds), found.answer)
    return found


def distance(problem: Problem, D: Matrix | None, optimum: Matrix | None) -> float:
    """How far log det D of the repaired D is from that of the optimum, over d."""
    if D is None or optimum is None:
        return np.inf
    points = [repair(problem.program, M) for M in (D, optimum)]
    ours, best = (None if point is None else point.log_det for point in points)
    return np.inf if ours is None or best is None else (best - ours) / problem.d


def closed_form(quick: bool) -> Found:
    """Theorem B on a factor model: exact, within 15 eigh."""
    d = 100 if quick else 500
    B = factor_model(d)
    unit = eigh_seconds(B)
    for k in (d // 4, 3 * d // 4):
        run = shortest([Problem("factor model", B, k).solve], 2)[0]
        case, extra = f"d = {d}, k = {k}", run.answer.stats.extra_stats
        gap = extra["gap"] if extra["closed_form"] else np.inf
        yield Target("theorem B: gap", at_most=1e-10).of(case, gap)
        yield Target("theorem B: cost", "eigh", at_most=15.0).of(case, run.seconds / unit)


def diagonal(quick: bool) -> Found:
    """Diagonal D: certified within 60 eigh."""
    d = 200 if quick else 2000
    B = synthetic(d, 1e3)
    unit = eigh_seconds(B)
    program = Program.single(B, RandK(d, d // 4).map, Pattern((1,) * d))
    run = timed(lambda: get_solver("native").solve(program, Settings(tol=GAP)))
    gap = float(run.answer.stats.extra_stats["gap"])
    yield Target("diagonal D: gap", at_most=GAP).of(f"d = {d}", gap)
    yield Target("diagonal D: cost", "eigh", at_most=60.0).of(f"d = {d}", run.seconds / unit)


STUDIES = (
    Study("native.data", data_sets),
    Study("native.spectra", spectra),
    Study("native.growth", growth),
    Study("native.packages", packages),
    Study("native.closed-form", closed_form),
    Study("native.diagonal", diagonal),
)
