"""The native solver behind the common contract: choose the method for a program, run it, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsize_solvers.numerics import NativeOptions, blas_threads, cholesky, eigh, sym
from stepsize_solvers.programs import (
    Constraint,
    DiagonalPlusScaled,
    LogDetProgram,
    Matrix,
    Outcome,
    PositiveMap,
    ScaledPattern,
    Settings,
    Solver,
    SolverStats,
    Status,
    UnsupportedProgram,
)
from stepsize_solvers.single import small
from stepsize_solvers.single.barrier import Path
from stepsize_solvers.single.blocks import GeneralModel, general_start
from stepsize_solvers.single.closed_forms import Balanced, ClosedForm, uncoupled
from stepsize_solvers.single.diagonal import DiagonalPoint, solve_diagonal
from stepsize_solvers.single.full import FullModel
from stepsize_solvers.single.iteration import Iteration, Progress
from stepsize_solvers.single.layers import LayeredPoint, LayeredProblem, solve_layers
from stepsize_solvers.single.model import Model, P
from stepsize_solvers.single.point import Point
from stepsize_solvers.single.starts import (
    Start,
    boundary_start,
    full_start,
    inside,
    warm_full_start,
    warm_general_start,
)

# Above this multiple of the tolerance a breakdown is not a matter of rounding, and a second attempt is worth it.
_FAR = 100.0
# Below this ratio of diagonal entries (a coordinate kept with probability 10⁻¹⁰, say) eigenvectors of the whole B, on
# which the methods for full matrices rest, lose the small eigenvalues; the general method works with D alone.
_GRADED = 1e-10
_CAREFUL: dict[str, Any] = {
    "start_fraction": 0.5,
    "step_fraction": 0.85,
    "corrector_below": 0.0,
    "neighbourhood": 0.05,
    "single_precision_from": 10**9,
    "cg_accuracy": 0.3,
}


@dataclass(frozen=True, eq=False)
class Report:
    """What a method hands back to the solver."""

    status: Status
    D: Matrix | None
    duals: tuple[Matrix, ...]
    steps: int
    statistics: dict[str, Any]
    message: str = ""


@dataclass(frozen=True)
class Limits:
    """Iteration cap, moment to stop, and where progress lines go."""

    max_iters: int
    deadline: float
    log: Callable[[str], None] | None


def _is_single(con: Constraint) -> bool:
    """Whether the constraint is 𝒬(D B D) ⪯ D."""
    return con.Q is not None and con.a == 1.0 and con.C is None and con.c == 0.0


class NativeSolver(Solver):
    """Interior-point method without lifts: one d×d dual a constraint, Newton systems by conjugate gradients."""

    name = "native"

    def unavailable(self) -> str | None:
        return None

    def unsupported(self, program: LogDetProgram) -> str | None:
        if isinstance(program.pattern, ScaledPattern):
            if len(program.constraints) != 1 or not _is_single(program.constraints[0]):
                return "for D = Diag(γᵢWᵢ) the native solver takes the one constraint 𝒬(D B D) ⪯ D"
            return None
        for j, con in enumerate(program.constraints):
            if con.C is None and con.c == 0.0 and con.a <= 0.0:
                return f"constraint {j} has no positive term, so no D is strictly feasible"
        if all(con.Q is None and con.a >= 0.0 for con in program.constraints):
            return "no constraint bounds D from above, so log det D is unbounded"
        return None

    def solve(self, program: LogDetProgram, settings: Settings) -> Outcome:
        reason = self.unsupported(program)
        if reason is not None:
            raise UnsupportedProgram(reason)
        began = time.perf_counter()
        options = NativeOptions.from_extra(settings.extra)
        limits = Limits(
            options.max_iters if settings.max_iters is None else settings.max_iters,
            settings.deadline,
            print if settings.verbose else None,
        )
        with blas_threads(program.d):
            report = self._dispatch(program, settings, options, limits)
        setup = float(report.statistics.pop("setup_time", 0.0))
        total = time.perf_counter() - began
        stats = SolverStats(self.name, total - setup, setup, report.steps, {"steps": report.steps, **report.statistics})
        return Outcome(report.status, report.D, report.duals, stats, report.message)

    # ---------------------------------------------------------------- choice of the method

    def _dispatch(self, program: LogDetProgram, settings: Settings, options: NativeOptions, limits: Limits) -> Report:
        con = program.constraints[0]
        single = len(program.constraints) == 1 and _is_single(con)
        if isinstance(program.pattern, ScaledPattern):
            if len(program.pattern.sizes) == 1:
                return _scaled(program.pattern.W, con)
            return _layers(program.pattern, con, settings, limits)
        if single and con.Q is not None and con.B is not None:
            B = sym(con.B)
            if program.pattern.is_full:
                return self._full(program, B, con.Q, settings, options, limits)
            P_matrix = con.Q.hadamard_matrix
            if max(program.pattern.sizes) == 1 and P_matrix is not None:
                return self._diagonal(P_matrix * B, settings, limits)
        return self._general(program, settings, options, limits)

    def _full(
        self,
        program: LogDetProgram,
        B: Matrix,
        Q: PositiveMap,
        settings: Settings,
        options: NativeOptions,
        limits: Limits,
    ) -> Report:
        began = time.perf_counter()
        if isinstance(Q, DiagonalPlusScaled) and not Q.alpha.any() and Q.beta > 0.0:
            exact = _multiple_of_inverse(B, Q.beta)
            if exact is not None:
                return exact
        form, upper = _closed_form(B, Q) if options.closed_forms else (None, np.inf)
        if form is not None:
            # A closed form is exact or far away; an answer within a tenth of the tolerance needs no iteration.
            if form.exact or form.gap <= 0.1 * settings.tol:
                statistics = {"history": [(form.log_det, form.upper_bound)], "gap": max(form.gap, 0.0)}
                statistics = {**_no_work(), **statistics, "closed_form": True}
                return Report(Status.OPTIMAL, form.D, (form.Z,), 0, statistics, "closed form")
        diagonal = B.diagonal()
        if diagonal.min() < _GRADED * diagonal.max():
            return self._general(program, settings, options, limits)
        model = FullModel.of(B, Q)
        start: Point | Start | None = None
        if settings.warm_start is not None:
            start = warm_full_start(model, *settings.warm_start)
        if start is None:
            start = boundary_start(B, Q, form)
        setup = time.perf_counter() - began
        report = _iterate_full(model, start, settings, options, limits, upper)
        if report.D is None:
            return report
        restarted = False
        if report.status is Status.INACCURATE and not report.statistics["gap"] <= _FAR * settings.tol:
            # Broken down far from the optimum: once more from deeper inside, with plain and careful steps.
            careful = replace(options, **_CAREFUL)
            deeper = full_start(model, careful.start_fraction)
            second = None if deeper is None else _iterate(model, deeper, settings, careful, limits, upper)
            if second is not None and second.statistics["gap"] < report.statistics["gap"]:
                report, restarted = second, True
        report.statistics.update(setup_time=setup, closed_form=False, restarted=restarted)
        return report

    def _general(self, program: LogDetProgram, settings: Settings, options: NativeOptions, limits: Limits) -> Report:
        began = time.perf_counter()
        model = GeneralModel(program)
        start = None if settings.warm_start is None else warm_general_start(model, *settings.warm_start)
        if start is None:
            start = general_start(model, options.start_fraction)
        if start is None:
            return _failure("no strictly feasible start was found")
        setup = time.perf_counter() - began
        report = _iterate(model, start, settings, options, limits, np.inf)
        report.statistics.update(setup_time=setup)
        return report

    def _diagonal(self, M: Matrix, settings: Settings, limits: Limits) -> Report:
        start = None if settings.warm_start is None else np.diagonal(settings.warm_start[0])
        return _read_path(solve_diagonal(M, settings.tol, limits.max_iters, limits.deadline, limits.log, start))


# ---------------------------------------------------------------------- the pieces that need no state


def _no_work() -> dict[str, Any]:
    return {"cg_iterations": 0, "products": 0, "eigendecompositions": 0, "correctors": 0}


def _closed_form(B: Matrix, Q: PositiveMap) -> tuple[ClosedForm | None, float]:
    """What theorems A and B make of the problem, its optimum or a stepsize, and an upper bound on log det D."""
    form = uncoupled(B, Q)
    if form is not None:
        return form, form.upper_bound
    balanced = Balanced.of(B, Q)
    if balanced is None:
        return None, np.inf
    return None if balanced.frustrated else balanced.closed_form(), balanced.upper_bound


def _failure(message: str) -> Report:
    return Report(Status.SOLVER_ERROR, None, (), 0, {**_no_work(), "history": []}, message)


def _iterate_full(
    model: FullModel,
    start: Point | Start,
    settings: Settings,
    options: NativeOptions,
    limits: Limits,
    upper: float,
) -> Report:
    """Dense Newton systems where they are faster; after a breakdown of those, and for larger sizes, the iteration.

    ``start`` is a warm start, or a stepsize on the boundary from which each method moves inside as it likes.
    """
    dense = None
    if small.applies(model.Q):
        progress: Progress[small.SmallPoint] = Progress(upper=upper)
        dense = _run_small(small.SmallIteration(model.B, model.Q, options, settings.tol, progress), start, limits)
        if dense is not None and dense.status is not Status.INACCURATE:
            return dense
        upper = progress.upper
    first = inside(model, start, options.start_fraction) if isinstance(start, Start) else start
    if first is None:
        return dense or _failure("no strictly feasible start: B is not numerically positive definite")
    if dense is None:
        return _iterate(model, first, settings, options, limits, upper)
    left = replace(limits, max_iters=limits.max_iters - dense.steps)
    second = _iterate(model, first, settings, options, left, upper)
    if second.D is None:
        return dense
    best = second if second.statistics["gap"] < dense.statistics["gap"] else dense
    return replace(best, status=second.status, steps=dense.steps + second.steps)


def _run_small(dense: small.SmallIteration, start: Point | Start, limits: Limits) -> Report | None:
    """What the dense Newton systems find, or None when they do not get to a first point."""
    first = dense.point(start.D, start.Z) if isinstance(start, Point) else dense.start(start.D)
    if first is None:
        return None
    return _run(lambda: dense.run(first, limits.max_iters, limits.deadline, limits.log), dense.progress, dense.d)


def _iterate(
    model: Model[P], start: P, settings: Settings, options: NativeOptions, limits: Limits, upper: float
) -> Report:
    """The iteration of a model from a start, with its limits and an upper bound that is known already."""
    progress: Progress[P] = Progress(upper=upper)
    iteration = Iteration(model, options, settings.tol, progress)
    return _run(lambda: iteration.run(start, limits.max_iters, limits.deadline, limits.log), progress, model.d)


def _run(run: Callable[[], Status], progress: Progress[P], d: int) -> Report:
    """Run an iteration that records its progress; an interruption returns the best pair so far."""
    try:
        status = run()
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    best = progress.best
    if best is None:
        return _failure("stopped before the first point was evaluated")
    duals = best.bounds.dual_scale * sym(best.point.Z)
    statistics = {
        "correctors": progress.correctors,
        "cg_iterations": progress.counters.cg_iterations,
        "products": round(progress.counters.products),
        "eigendecompositions": progress.counters.eigendecompositions,
        "history": progress.history,
        "gap": best.bounds.width / d,
    }
    stack = (duals,) if duals.ndim == 2 else tuple(duals)
    return Report(status, best.bounds.scale * sym(best.point.D), stack, progress.steps, statistics)


def _layers(pattern: ScaledPattern, con: Constraint, settings: Settings, limits: Limits) -> Report:
    """D = Diag(γ₁W₁, …, γ_mW_m)."""
    assert con.Q is not None and con.B is not None
    problem = LayeredProblem.of(sym(con.B), con.Q, pattern)
    if problem is None:
        return _failure("W is not numerically positive definite")
    start = None if settings.warm_start is None else settings.warm_start[0]
    return _read_path(solve_layers(problem, settings.tol, limits.max_iters, limits.deadline, limits.log, start))


def _read_path(path: Path[DiagonalPoint] | Path[LayeredPoint]) -> Report:
    """The best point of a central path."""
    best = path.best
    if best is None:
        return _failure("no strictly feasible start was found")
    statistics = {**_no_work(), "history": path.history, "gap": best.bounds.width / len(best.D)}
    return Report(path.status, best.bounds.scale * best.D, (best.Z,), path.steps, statistics)


def _multiple_of_inverse(B: Matrix, beta: float) -> Report | None:
    """𝒬 = β·identity: the constraint is D ⪯ B⁻¹/β, so D = B⁻¹/β with the dual Z = βB."""
    K = cholesky(B)
    if K is None:
        return None
    D = sym(np.linalg.inv(B)) / beta
    log_det = float(np.linalg.slogdet(D)[1])
    return Report(
        Status.OPTIMAL,
        D,
        (beta * B,),
        0,
        {**_no_work(), "history": [(log_det, log_det)], "gap": 0.0, "closed_form": True},
        "closed form",
    )


def _scaled(W: Matrix, con: Constraint) -> Report:
    """D = γW: γ = 1/λmax(W^{-½} 𝒬(W B W) W^{-½}), with the dual d·xxᵀ of the top eigenvector, xᵀDx = 1."""
    assert con.Q is not None and con.B is not None
    K = cholesky(sym(W))
    if K is None:
        return _failure("W is not numerically positive definite")
    half = np.linalg.solve(K, con.Q.apply(W @ con.B @ W))
    M = sym(np.linalg.solve(K, half.T))
    w, U = eigh(M)
    top = float(w[-1])
    D = sym(W) / top
    x = np.linalg.solve(K.T, U[:, -1]) * np.sqrt(top)
    d = W.shape[0]
    log_det = float(np.linalg.slogdet(D)[1])
    return Report(
        Status.OPTIMAL,
        D,
        (d * np.multiply.outer(x, x),),
        0,
        {**_no_work(), "eigendecompositions": 1, "history": [(log_det, log_det)], "gap": 0.0, "closed_form": True},
        "closed form",
    )
