"""maximise log det G(D), or t with G(D) ⪰ tE, over a pattern, until the certified gap is reached.

log det G(D) has no constraint: its maximiser is the analytic centre of {G ⪰ 0}, found by damped Newton steps.  The
largest t is the end of a path (``.path``).
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from stepsize_solvers.metric.newton import DenseSystem, KrylovSystem, System, listed
from stepsize_solvers.metric.path import BasisMaker, Path, PathPoint, Problem
from stepsize_solvers.metric.patterned import Patterned
from stepsize_solvers.metric.point import MetricPoint
from stepsize_solvers.metric.starts import start
from stepsize_solvers.metric.whitened import Whitening
from stepsize_solvers.numerics import Limits, NativeOptions, Progress, cholesky, eigh, lower_solve, sym
from stepsize_solvers.programs import (
    Family,
    Hadamard,
    Matrix,
    Metric,
    Outcome,
    Pattern,
    Program,
    Settings,
    SolverStats,
    Status,
)
from stepsize_solvers.single import effective_beta

MOST_STEPS = 200
# An independent check of the pair adds rounding: stop at this fraction of the tolerance.
_MARGIN = 0.5
_PATIENCE = 40
# A path takes 7 to 20 steps, most of which narrow the interval; beyond this it is the next basis's turn.
_PATIENCE_ON_A_PATH = 20
# Up to so many unknowns the dense system is the faster one.
_MOST_UNKNOWNS = 80
# The path with conjugate gradients is the faster one beyond so many unknowns; should it break down, or take more
# iterations in a step than this (3 to 50 are usual), the dense systems get a try up to the second.
_MOST_UNKNOWNS_FIRST = 80
_MOST_UNKNOWNS_SECOND = 2100
_MANY_ITERATIONS = 500
# While the loss is this many times what is asked for, nobody needs it exactly.
_FAR = 30.0
# Below this decrement Newton's full step stays inside and converges quadratically.
_CLOSE = 0.25
# Beyond it the step goes to where the objective rises by at most this fraction of its first slope.
_FLAT = 0.2
_TRIALS = 40  # of a step length; two or three are usual
# Up to this size the number of calls counts, beyond it the number of operations.
_SIZE_FOR_CALLS = 30


def solve_metric(program: Program, settings: Settings, options: NativeOptions) -> Outcome:
    """Solve a program made by ``Program.descent``."""
    began = time.perf_counter()
    metric, d = program.objective, program.d
    assert metric is not None
    left, floor = metric.left, metric.floor
    known = _known(left, program.pattern, floor, settings.tol)
    if known is not None:
        return _outcome(Status.OPTIMAL, known, began, began, None)
    P = left.Q.hadamard_matrix
    if d <= _SIZE_FOR_CALLS and P is not None:
        left = replace(left, Q=Hadamard(P))  # one product, cheaper in calls than the structured maps
    warm = None if settings.warm_start is None else settings.warm_start.X
    D = start(Metric(left), program.pattern, warm if warm is None or warm.shape == (d, d) else None)
    setup = time.perf_counter()
    if D is None:
        return _outcome(Status.SOLVER_ERROR, None, began, setup, None)
    limits = Limits.of(settings, MOST_STEPS)
    if floor is None:
        progress: Progress[MetricPoint] = Progress(d, limits, _MARGIN, _PATIENCE)
        method = Method(left, program.pattern, progress, options)
        status = progress.run(lambda: method.run(D))
        best = None if progress.best is None else progress.best.point
        return _outcome(status, None if best is None else (best.D, best.Y), began, setup, progress)
    problem = Problem(left, floor)
    status, path = _follow(problem, program.pattern, D, limits, options)
    cold = start(Metric(left), program.pattern, None) if status is Status.INACCURATE and warm is not None else None
    if cold is not None:
        # Where G of the warm start is nearly singular, the path breaks down at its first step.
        status, second = _follow(problem, program.pattern, cold, limits.after(path.steps), options)
        path = _better(path, second)
    point = None if path.best is None else path.best.point
    return _outcome(status, None if point is None else (point.D, point.Z), began, setup, path)


def _better(first: Progress[PathPoint], second: Progress[PathPoint]) -> Progress[PathPoint]:
    """Return the second path with the better pair and the steps of both."""
    second.steps += first.steps
    if second.best is None or first.statistics["gap"] < second.statistics["gap"]:
        second.best = first.best
    return second


def _follow(
    problem: Problem, pattern: Pattern, D: Matrix, limits: Limits, options: NativeOptions
) -> tuple[Status, Progress[PathPoint]]:
    """Follow the path from D in one basis after the other until one of them ends it."""
    left, d = problem.metric, len(D)
    over = listed(left.Q, pattern, _MOST_UNKNOWNS_SECOND)
    bases: list[BasisMaker] = [Whitening(left, pattern, single=False)]
    if d >= options.single_precision_from:
        bases = [Whitening(left, pattern, single=True), *bases]
    if over is not None:
        dense = Patterned(left, pattern, over)
        first = listed(left.Q, pattern, _MOST_UNKNOWNS_FIRST) is not None
        bases = [dense, *bases] if first else [*bases, dense]
    path: Progress[PathPoint] = Progress(d, limits, _MARGIN, _PATIENCE_ON_A_PATH)
    status = Status.INACCURATE
    for basis in bases:
        path.stalled = 0
        follower = Path(problem, basis, path, math.inf if over is None else _MANY_ITERATIONS)
        status = path.run(lambda follower=follower: follower.run(D))  # type: ignore[misc]
        if status is not Status.INACCURATE:
            break
    return status, path


def _outcome(
    status: Status, answer: tuple[Matrix, Matrix] | None, began: float, setup: float, progress: Progress[Any] | None
) -> Outcome:
    """The outcome of D and its multiplier."""
    steps = 0 if progress is None else progress.steps
    extra = {} if progress is None else progress.statistics
    name = "closed form" if progress is None and answer is not None else ""
    stats = SolverStats(
        "native", time.perf_counter() - setup, setup - began, steps, {"steps": steps, "closed_form": name, **extra}
    )
    if answer is None:
        return Outcome(Status.SOLVER_ERROR, None, (), stats, "no start with a positive definite metric was found")
    D, Z = answer
    return Outcome(status, D, (Z[None],), stats)


def _known(left: Family, pattern: Pattern, floor: Matrix | None, tol: float) -> tuple[Matrix, Matrix] | None:
    """D with its multiplier where there is a closed form.

    𝒬 = β·identity and D full: aD − βDBD is largest in the Loewner order at D = (a/2β)B⁻¹, for every floor.
    """
    split = left.Q.diagonal_plus_scaled
    assert left.B is not None
    if split is None or not split.is_multiple or not split.beta > 0.0 or not pattern.is_full:
        return None
    if cholesky(left.B) is None:
        return None
    D = sym(np.linalg.inv(left.B)) * (0.5 * left.a / split.beta)
    inverse = left.B * (split.beta / (0.5 * left.a))
    Y = inverse * (2.0 / left.a) if floor is None else _lowest(D, inverse, floor, tol)
    return None if Y is None else (D, Y)


def _lowest(G: Matrix, inverse: Matrix, floor: Matrix, tol: float) -> Matrix | None:
    """The multiplier of G ⪰ tE where G is the largest in the Loewner order: the lowest direction, and a little of G⁻¹.

    vvᵀ alone has a singular image 𝒬*(vvᵀ); with δG⁻¹ the bound exceeds t by at most δd.
    """
    K = cholesky(floor)
    if K is None:
        return None
    w, U = eigh(sym(lower_solve(K, lower_solve(K, G).T)))
    v = np.linalg.solve(K.T, U[:, 0])
    return np.asarray(np.multiply.outer(v, v) + (0.1 * tol * w[0] / len(G)) * inverse)


class Method:
    """One solve."""

    def __init__(self, left: Family, pattern: Pattern, progress: Progress[MetricPoint], options: NativeOptions):
        self.left, self.pattern, self.progress = left, pattern, progress
        self.over = listed(left.Q, pattern, _MOST_UNKNOWNS)
        self.beta = effective_beta(left.Q)
        self.single = progress.d >= options.single_precision_from

    def point(self, D: Matrix) -> MetricPoint | None:
        return MetricPoint.of(self.left, self.pattern, D, self.over is None or self.pattern.is_full)

    def system(self, p: MetricPoint, single: bool, far: bool) -> System | None:
        if self.over is None:
            # The loss after the step is about half of this, or a few times as much.
            floor = 0.1 * self.progress.limits.tol * p.d
            return KrylovSystem(p, self.beta, single, floor, self.progress.counters, far)
        return DenseSystem.of(p, self.over)

    def run(self, D: Matrix) -> Status:
        """Newton steps from D until the gap is certified or a limit is reached; INACCURATE after a breakdown."""
        progress, p, decrement, length = self.progress, self.point(D), math.inf, 0.0
        single = self.single
        while p is not None:
            details = {"decrement": f"{decrement:.2e}", "step": f"{length:.3f}"}
            status = progress.examine(p, p.bounds(self.loss(p)), details)
            if status is not None:
                return status
            system = self.system(p, single, far=decrement > 1.0)
            if system is None:
                break
            X = system.solve(p.gradient)
            decrement = math.sqrt(max(float(np.vdot(p.gradient, X)), 0.0))
            length = self.length(p, X, decrement)
            if length == 0.0 and single:
                single = False  # single precision does not reach further
                continue
            if length == 0.0:
                break
            p = self.point(p.D + p.frame.change(length * X))
            progress.steps += 1
        return Status.INACCURATE

    def loss(self, p: MetricPoint) -> float:
        """The loss of the bound, or infinity while it is far above what is asked for."""
        return math.inf if p.rough_loss > _FAR * self.progress.limits.tol * p.d else p.loss

    def length(self, p: MetricPoint, X: Matrix, decrement: float) -> float:
        """The maximiser of the objective along the step, roughly; 0 when no step goes up."""
        if decrement < _CLOSE:
            return 1.0
        first, second = p.frame.slope(X), p.frame.bend(X)
        a, low, high = 1.0, 0.0, math.inf
        for _ in range(_TRIALS):
            K = cholesky(p.Gt + a * first + (a * a) * second)
            if K is None:
                high, a = a, 0.5 * (low + a)
                continue
            along = lower_solve(K, lower_solve(K, first + (2.0 * a) * second).T)
            slope = float(np.trace(along))
            if abs(slope) <= _FLAT * decrement**2:  # which is the slope at 0
                return a
            low, high = (a, high) if slope > 0.0 else (low, a)
            curvature = float(np.vdot(along, along)) - 2.0 * float(np.trace(lower_solve(K, lower_solve(K, second).T)))
            a += slope / curvature
            if not low < a < high:
                a = 0.5 * (low + high) if high < math.inf else 2.0 * low
        return low
