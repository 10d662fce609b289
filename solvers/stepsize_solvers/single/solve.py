"""One constraint 𝒬(D B D) ⪯ D: choose the method for the pattern and the map, run it, report."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg import eigh as generalised_eigh

from stepsize_solvers.numerics import Limits, NativeOptions, Progress, cholesky, sym
from stepsize_solvers.programs import Family, Matrix, Pattern, PositiveMap, Settings, Status, ThinMultiplier
from stepsize_solvers.single import small
from stepsize_solvers.single.barrier import MOST_STEPS as MOST_BARRIER_STEPS
from stepsize_solvers.single.blocks import BlockModel, block_start
from stepsize_solvers.single.closed_forms import Balanced, ClosedForm, uncoupled
from stepsize_solvers.single.diagonal import solve_diagonal
from stepsize_solvers.single.full import FullModel
from stepsize_solvers.single.iteration import MOST_STEPS, PATIENCE, TARGET_MARGIN, Iteration, Tuning
from stepsize_solvers.single.layers import LayeredProblem, solve_layers
from stepsize_solvers.single.model import Model, PointType
from stepsize_solvers.single.point import Point
from stepsize_solvers.single.stacks import Member, iterate_stack
from stepsize_solvers.single.starts import Start, boundary_start, full_start, inside, warm_block_start, warm_full_start
from stepsize_solvers.thin import BalancedPoint, LowRankPoint, find_low_rank, solve_balanced, solve_low_rank

# Above this multiple of the tolerance a breakdown is not a matter of rounding, and a second attempt is worth it.
_FAR = 100.0
# Beyond this ratio of second moments (a coordinate kept with probability 10⁻¹⁰, say) the diagonal of a B that is scaled
# for D near one has the same ratio, and eigenvectors of the whole B, on which the methods for full matrices rest, lose
# the small eigenvalues.  The method for blocks works with D alone.
_GRADED = 1e10
# Up to this size problems are iterated in stacks.  Measured in one run on one thread beside other work, independent
# sampling, 64 problems, times faster than one by one: 2.2× at d = 5, 1.7× at 10 and 16 (against dense Newton systems),
# 2.8× at 20, 2× at 24, 1.5× at 32, 1.1× at 40.
_LARGEST_IN_STACK = 32


@dataclass(frozen=True, eq=False)
class Report:
    """What a method hands back: D and Z up to rounding, and what it did.

    closed_form: the theorem that gave the answer, empty when a method iterated.
    thin: as in ``Outcome``.
    """

    status: Status
    D: Matrix | None
    Z: Matrix | None
    steps: int
    statistics: dict[str, Any]
    message: str = ""
    closed_form: str = ""
    thin: ThinMultiplier | None = None


def solve_condition(condition: Family, pattern: Pattern, settings: Settings, options: NativeOptions) -> Report:
    """maximise log det D subject to 𝒬(D B D) ⪯ D over the pattern."""
    assert condition.B is not None  # by the definition of Program.condition
    B, Q = sym(condition.B), condition.Q
    warm = settings.warm_start
    known = closed_form(condition, pattern)
    if known is not None:
        return known
    if pattern.direction is not None:
        return _failure("W is not numerically positive definite")
    if pattern.W is not None:
        problem = LayeredProblem.of(B, Q, pattern)
        if problem is None:
            return _failure("W is not numerically positive definite")
        return _read(*solve_layers(problem, _barrier_limits(settings), None if warm is None else warm.X))
    if pattern.is_full:
        return _full(B, Q, pattern, settings, options)
    P = Q.hadamard_matrix if pattern.is_diagonal else None
    if P is not None:
        return _diagonal(P * B, settings)
    return _blocks(B, Q, pattern, settings)


def _diagonal(M: Matrix, settings: Settings) -> Report:
    """Balancing for an M without negative entries, the path of an r×r matrix for low rank, otherwise that of x."""
    limits, warm = _barrier_limits(settings), settings.warm_start
    thin = _thin(M, limits)
    if thin is not None and thin.status is not Status.INACCURATE:
        return thin
    if thin is not None:
        limits = limits.after(thin.steps)
    known = thin.D if thin is not None and thin.D is not None else None if warm is None else warm.X
    return _read(*solve_diagonal(M, limits, None if known is None else np.diagonal(known)))


def _thin(M: Matrix, limits: Limits) -> Report | None:
    """The answer with a thin multiplier for an M that has one of the two forms; None for any other."""
    if M.min() >= 0.0:
        return _thin_report(*solve_balanced(lambda y: M @ y, M.diagonal(), limits))
    parts = find_low_rank(M)
    return None if parts is None else _thin_report(*solve_low_rank(*parts, limits))


def _thin_report(status: Status, progress: Progress[BalancedPoint] | Progress[LowRankPoint]) -> Report | None:
    best = progress.best
    if best is None:
        return None
    x = best.point.x
    F = best.point.Q / x[:, None]
    return Report(status, np.diag(x), F @ F.T, progress.steps, progress.statistics, thin=best.point.multiplier)


def _barrier_limits(settings: Settings) -> Limits:
    return Limits.of(settings, MOST_BARRIER_STEPS)


def _full(B: Matrix, Q: PositiveMap, pattern: Pattern, settings: Settings, options: NativeOptions) -> Report:
    began = time.perf_counter()
    form, upper = _closed_form(B, Q) if options.closed_forms else (None, math.inf)
    if form is not None and _suffices(form, settings):
        return _exact(form.D, form.Z, form.theorem, form.gap)
    if Q.action_range[1] > _GRADED * Q.action_range[0]:
        return _blocks(B, Q, pattern, settings)
    model = FullModel.of(B, Q)
    start: Point | Start | None = None
    if settings.warm_start is not None:
        start = warm_full_start(model, settings.warm_start)
    if start is None:
        start = boundary_start(B, Q, form)
    setup = time.perf_counter() - began
    tuning = Tuning(single_precision_from=options.single_precision_from)
    limits = Limits.of(settings, MOST_STEPS)
    report = _iterate_full(model, start, tuning, limits, upper)
    if report.D is None:
        return report
    restarted = False
    if report.status is Status.INACCURATE and not report.statistics["gap"] <= _FAR * settings.tol:
        # Broken down far from the optimum: once more from deeper inside, with plain and careful steps.
        careful = Tuning.careful()
        deeper = full_start(model, careful.start_fraction)
        second = None if deeper is None else _iterate(model, deeper, careful, limits, upper)
        if second is not None and second.statistics["gap"] < report.statistics["gap"]:
            report, restarted = second, True
    report.statistics.update(setup_time=setup, restarted=restarted)
    return report


def goes_in_stacks(condition: Family, pattern: Pattern) -> bool:
    """Whether problems of this kind are solved in stacks: D full, an entrywise map, a small size."""
    Q = condition.Q
    lowest, highest = Q.action_range
    return (
        pattern.is_full
        and Q.is_entrywise
        and Q.d <= _LARGEST_IN_STACK
        and not highest > _GRADED * lowest
        and not (Q.diagonal_plus_scaled is not None and Q.diagonal_plus_scaled.is_multiple)
    )


def solve_stack(conditions: Sequence[Family], settings: Settings, options: NativeOptions) -> list[Report]:
    """``solve_condition`` for full matrices of one size, iterated in a stack; alone what breaks down there."""
    limits = Limits.of(settings, MOST_STEPS)
    problems = [(sym(condition.B), condition.Q) for condition in conditions if condition.B is not None]
    reports = [_known(*problem, settings, options) for problem in problems]
    left = [i for i, report in enumerate(reports) if report is None]
    progress: list[Progress[Member]] = [_progress(problems[i][0].shape[0], limits, math.inf) for i in left]
    if left:
        B = np.array([problems[i][0] for i in left])
        P = np.array([problems[i][1].hadamard_matrix for i in left])
        for i, status, run in zip(left, iterate_stack(B, P, progress), progress, strict=True):
            reports[i] = _read(status, run)
    pattern = Pattern.full(len(problems[0][0]))
    return [
        _full(*problem, pattern, settings, options) if report is None or report.status is Status.INACCURATE else report
        for problem, report in zip(problems, reports, strict=True)
    ]


def _known(B: Matrix, Q: PositiveMap, settings: Settings, options: NativeOptions) -> Report | None:
    """The answer of theorems A and B, if that is the optimum."""
    form = _closed_form(B, Q)[0] if options.closed_forms else None
    return _exact(form.D, form.Z, form.theorem, form.gap) if form is not None and _suffices(form, settings) else None


def _suffices(form: ClosedForm, settings: Settings) -> bool:
    """A closed form is exact or far away; an answer within a tenth of the tolerance needs no iteration."""
    return form.exact or form.gap <= 0.1 * settings.tol


def _blocks(B: Matrix, Q: PositiveMap, pattern: Pattern, settings: Settings) -> Report:
    began = time.perf_counter()
    model = BlockModel(B, Q, pattern)
    start = None if settings.warm_start is None else warm_block_start(model, settings.warm_start)
    if start is None:
        start = block_start(model, Tuning.start_fraction)
    if start is None:
        return _failure("no strictly feasible start was found")
    setup = time.perf_counter() - began
    report = _iterate(model, start, Tuning(), Limits.of(settings, MOST_STEPS), math.inf)
    report.statistics.update(setup_time=setup)
    return report


def _no_work() -> dict[str, Any]:
    return {"cg_iterations": 0, "products": 0, "eigendecompositions": 0, "correctors": 0}


def _closed_form(B: Matrix, Q: PositiveMap) -> tuple[ClosedForm | None, float]:
    """What theorems A and B make of the problem, its optimum or a stepsize, and an upper bound on log det D."""
    form = uncoupled(B, Q)
    if form is not None:
        return form, form.upper_bound
    balanced = Balanced.of(B, Q)
    if balanced is None:
        return None, math.inf
    return None if balanced.frustrated else balanced.closed_form(), balanced.upper_bound


def _failure(message: str) -> Report:
    return Report(Status.SOLVER_ERROR, None, None, 0, {**_no_work(), "history": []}, message)


def _exact(D: Matrix, Z: Matrix, name: str, gap: float = 0.0) -> Report:
    """The report of a closed form."""
    return Report(Status.OPTIMAL, D, Z, 0, {**_no_work(), "history": [], "gap": max(0.0, gap)}, closed_form=name)


def _iterate_full(model: FullModel, start: Point | Start, tuning: Tuning, limits: Limits, upper: float) -> Report:
    """Dense Newton systems where they are faster; after a breakdown of those, and for larger sizes, the iteration.

    ``start`` is a warm start, or a stepsize on the boundary from which each method moves inside as it likes.
    """
    dense = None
    if small.applies(model.Q):
        progress: Progress[small.SmallPoint] = _progress(model.d, limits, upper)
        dense = _run_small(small.SmallIteration(model.B, model.Q, tuning, progress), start)
        if dense is not None and dense.status is not Status.INACCURATE:
            return dense
        upper = progress.upper
    first = inside(model, start, tuning.start_fraction) if isinstance(start, Start) else start
    if first is None:
        return dense or _failure("no strictly feasible start: B is not numerically positive definite")
    if dense is None:
        return _iterate(model, first, tuning, limits, upper)
    second = _iterate(model, first, tuning, limits.after(dense.steps), upper)
    if second.D is None:
        return dense
    best = second if second.statistics["gap"] < dense.statistics["gap"] else dense
    return replace(best, status=second.status, steps=dense.steps + second.steps)


def _run_small(dense: small.SmallIteration, start: Point | Start) -> Report | None:
    """What the dense Newton systems find, or None when they do not get to a first point."""
    first = dense.point(start.D, start.Z) if isinstance(start, Point) else dense.start(start.D)
    if first is None:
        return None
    status = dense.progress.run(lambda: dense.run(first))
    return _read(status, dense.progress)


def _progress(d: int, limits: Limits, upper: float) -> Progress[Any]:
    return Progress(d, limits, TARGET_MARGIN, PATIENCE, upper=upper)


def _iterate(model: Model[PointType], start: PointType, tuning: Tuning, limits: Limits, upper: float) -> Report:
    """The iteration of a model from a start, with an upper bound that is known already."""
    progress: Progress[PointType] = _progress(model.d, limits, upper)
    iteration = Iteration(model, tuning, progress)
    return _read(progress.run(lambda: iteration.run(start)), progress)


def _read(status: Status, progress: Progress[Any]) -> Report:
    """The report of an iteration: the best pair, scaled as its bounds say."""
    if progress.best is None:
        return _failure("no strictly feasible point was evaluated")
    best, bounds = progress.best.point, progress.best.bounds
    D, Z = bounds.scale * sym(best.D), bounds.dual_scale * sym(best.Z)
    return Report(status, D, Z, progress.steps, progress.statistics)


def closed_form(condition: Family, pattern: Pattern) -> Report | None:
    """The optimum where it is a formula of B alone: 𝒬 = β·identity and D full, or D = γW; None elsewhere.

    *D full.*  The constraint is D ⪯ B⁻¹/β, so D = B⁻¹/β with the multiplier Z = βB.
    *D = γW.*  γ = 1/λmax(W^{−½} 𝒬(WBW) W^{−½}), with Z = zzᵀ of the top eigenvector.
    """
    assert condition.B is not None  # by the definition of Program.condition
    B, split = condition.B, condition.Q.diagonal_plus_scaled
    if pattern.is_full and split is not None and split.is_multiple and split.beta > 0.0:
        if cholesky(B) is None:
            return None
        return _exact(sym(np.linalg.inv(B)) / split.beta, split.beta * B, "closed form D = (E[SLS])⁻¹")
    W = pattern.direction
    if W is None:
        return None
    try:
        # All eigenpairs: asked for the last one alone, LAPACK may return none when all coincide (W = B⁻¹, say).
        values, vectors = generalised_eigh(sym(condition.Q.apply(W @ B @ W)), W)
    except LinAlgError:
        return None
    top, z = float(values[-1]), vectors[:, -1]  # zᵀWz = 1, so that ⟨Z, D⟩ = d below
    return _exact(sym(W) / top, (len(W) * top) * np.multiply.outer(z, z), "closed form for a fixed direction")
