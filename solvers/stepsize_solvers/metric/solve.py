"""maximise log det G(D), or t with G(D) ⪰ tE, over a pattern: damped Newton steps until the certified gap is reached.

log det G(D) has no constraint: its maximiser is the analytic centre of {G ⪰ 0}.  The largest t is the end of the path
of maximisers of t/ν + log det(G(D) − tE), ν → 0, along which the bound of ``.point`` exceeds t by νd.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from stepsize_solvers.metric.newton import DenseSystem, KrylovSystem, System, listed
from stepsize_solvers.metric.path import Path, PathPoint
from stepsize_solvers.metric.point import MetricPoint
from stepsize_solvers.metric.starts import start
from stepsize_solvers.numerics import Limits, NativeOptions, Progress, cholesky, eigh, lower_solve, sym
from stepsize_solvers.programs import Hadamard, Matrix, Metric, Outcome, Pattern, Program, Settings, SolverStats, Status
from stepsize_solvers.single import effective_beta

MOST_STEPS = 200
# An independent check of the pair adds rounding: stop at this fraction of the tolerance.
_MARGIN = 0.5
_PATIENCE = 40
# Up to so many unknowns the dense system is the faster one.
_MOST_UNKNOWNS = 80
# Along the path to the largest t the condition of the system grows like 1/ν, which only a factorisation bears.
_MOST_UNKNOWNS_OF_PATH = 1000
# For a full D the primal-dual path is faster than the dense systems beyond this size (0.1 s and 0.2 s at d = 16);
# should it break down, those get a try up to the second.
_LARGEST_DENSE_PATH = 12
_LARGEST_SECOND_PATH = 44
# While the loss is this many times what is asked for, nobody needs it exactly.
_FAR = 30.0
# Below this decrement Newton's full step stays inside and converges quadratically.
_CLOSE = 0.25
# Beyond it the step goes to where the objective rises by at most this fraction of its first slope.
_FLAT = 0.2
_TRIALS = 40  # of a step length; two or three are usual
# Up to this size the number of calls counts, beyond it the number of operations.
_SIZE_FOR_CALLS = 30
# Reduction of ν from a central point: 556 steps on 24 problems of d ≤ 10 where 0.1 takes 483, but 36 at d = 64 where
# 0.1 does not come back to the path in 40.
_SHRINK = 0.3


class MetricStep(NamedTuple):
    """The Newton step: X of the frame, the change τ of t, and the decrement."""

    X: Matrix
    tau: float
    decrement: float


def solve_metric(program: Program, settings: Settings, options: NativeOptions) -> Outcome:
    """The answer for a program that has a metric with a quadratic term as its objective and no inequality."""
    began = time.perf_counter()
    metric = program.objective
    assert metric is not None and metric.left.B is not None  # the caller has looked
    exact = _multiple_of_inverse(metric, program.pattern)
    if exact is not None:
        outcome = _outcome(Status.OPTIMAL, exact, began, began, None)
        return (
            outcome if metric.floor is None else replace(outcome, duals=(_lowest(exact, metric, settings.tol)[None],))
        )
    warm = None if settings.warm_start is None else settings.warm_start.X
    D = start(metric, program.pattern, warm if warm is None or warm.shape == (program.d, program.d) else None)
    setup = time.perf_counter()
    if D is None:
        return _outcome(Status.SOLVER_ERROR, None, began, setup, None)
    limits = Limits.of(settings, MOST_STEPS)
    if metric.floor is not None and program.pattern.is_full and program.d > _LARGEST_DENSE_PATH:
        path: Progress[PathPoint] = Progress(program.d, limits, _MARGIN, _PATIENCE)
        follower = Path(metric, path)
        status = path.run(lambda: follower.run(D))
        if status is not Status.INACCURATE or program.d > _LARGEST_SECOND_PATH:
            return _outcome(status, None if path.best is None else path.best.point, began, setup, path)
    progress: Progress[MetricPoint] = Progress(program.d, limits, _MARGIN, _PATIENCE)
    method = Method(metric, program.pattern, progress, options)
    status = progress.run(lambda: method.run(D))
    return _outcome(status, None if progress.best is None else progress.best.point, began, setup, progress)


def _outcome(
    status: Status, point: MetricPoint | PathPoint | None, began: float, setup: float, progress: Progress[Any] | None
) -> Outcome:
    steps = 0 if progress is None else progress.steps
    extra = {} if progress is None else progress.statistics
    name = "the inverse" if progress is None and point is not None else ""
    stats = SolverStats(
        "native", time.perf_counter() - setup, setup - began, steps, {"steps": steps, "closed_form": name, **extra}
    )
    if point is None:
        return Outcome(Status.SOLVER_ERROR, None, (), stats, "no start with a positive definite metric was found")
    return Outcome(status, point.D, (point.Y[None],), stats)


def _multiple_of_inverse(metric: Metric, pattern: Pattern) -> MetricPoint | None:
    """𝒬 = β·identity and D full: G(D) is largest in the Loewner order at D = (a/2β)B⁻¹, for every criterion."""
    left, split = metric.left, metric.left.Q.diagonal_plus_scaled
    if split is None or split.alpha.any() or not split.beta > 0.0 or not pattern.is_full:
        return None
    assert left.B is not None
    if cholesky(left.B) is None:
        return None
    D = sym(np.linalg.inv(left.B)) * (0.5 * left.a / split.beta)
    return MetricPoint.of(Metric(left), pattern, D)


def _lowest(p: MetricPoint, metric: Metric, tol: float) -> Matrix:
    """The multiplier of G(D) ⪰ tE where D is largest in the Loewner order: the lowest direction, and a little of G⁻¹.

    vvᵀ alone has a singular image 𝒬*(vvᵀ); with δG⁻¹ the bound exceeds t by at most δd.
    """
    assert metric.floor is not None
    K = cholesky(metric.floor)
    if K is None:
        return p.Y
    w, U = eigh(sym(lower_solve(K, lower_solve(K, p.frame.change(p.Gt)).T)))
    v = np.linalg.solve(K.T, U[:, 0])
    return np.asarray(np.multiply.outer(v, v) + (0.1 * tol * w[0] / p.d) * p.Y)


class Method:
    """One solve."""

    def __init__(self, metric: Metric, pattern: Pattern, progress: Progress[MetricPoint], options: NativeOptions):
        self.pattern, self.progress = pattern, progress
        Q, P = metric.left.Q, metric.left.Q.hadamard_matrix
        if progress.d <= _SIZE_FOR_CALLS and P is not None:
            # One product, cheaper in calls than the structured maps.
            Q = Hadamard(P)
            metric = replace(metric, left=replace(metric.left, Q=Q))
        self.metric = metric
        self.over = listed(Q, pattern, _MOST_UNKNOWNS if metric.floor is None else _MOST_UNKNOWNS_OF_PATH)
        self.beta = effective_beta(Q)
        self.single = progress.d >= options.single_precision_from
        self.nu = math.inf

    def point(self, D: Matrix, t: float) -> MetricPoint | None:
        rotated = self.over is None or self.pattern.is_full
        return MetricPoint.of(self.metric, self.pattern, D, t, rotated)

    def system(self, p: MetricPoint, single: bool) -> System | None:
        if self.over is None:
            # The loss after the step is about half of this, or a few times as much.
            floor = 0.1 * self.progress.limits.tol * p.d if p.Et is None else 0.0
            return KrylovSystem(p, self.beta, single, floor, self.progress.counters)
        return DenseSystem.of(p, self.over)

    def run(self, D: Matrix) -> Status:
        """Newton steps from D until the gap is certified or a limit is reached; INACCURATE after a breakdown."""
        progress, p, decrement, length = self.progress, self.point(D, 0.0), math.inf, 0.0
        single = self.single
        while p is not None:
            details = {"decrement": f"{decrement:.2e}", "step": f"{length:.3f}"}
            status = progress.examine(p, p.bounds(self.loss(p)), details)
            if status is not None:
                return status
            system = self.system(p, single)
            if system is None:
                break
            step = self.direction(p, system)
            decrement, length = step.decrement, self.length(p, step)
            if length == 0.0 and single:
                single = False  # single precision does not reach further
                continue
            if length == 0.0:
                break
            p = self.point(p.D + p.frame.change(length * step.X), p.t + length * step.tau)
            progress.steps += 1
        return Status.INACCURATE

    def loss(self, p: MetricPoint) -> float:
        """The loss of the bound, or infinity while it is far above what is asked for."""
        wanted = self.progress.limits.tol * p.d if p.Et is None else p.d
        return math.inf if p.rough_loss > _FAR * wanted else p.loss

    def direction(self, p: MetricPoint, system: System) -> MetricStep:
        """The Newton step; ν is reduced from central points."""
        X = system.solve(p.gradient)
        if p.Et is None:
            return MetricStep(X, 0.0, math.sqrt(max(float(np.vdot(p.gradient, X)), 0.0)))
        YEY = sym(p.Yt @ p.Et @ p.Yt)
        cross = -p.frame.coslope(YEY)
        answer = system.solve(cross)
        pivot = float(np.vdot(p.Et, YEY)) - float(np.vdot(cross, answer))
        if not math.isfinite(self.nu):
            self.nu = 1.0 / p.weight
        while True:
            slope = 1.0 / self.nu - p.weight
            tau = (slope - float(np.vdot(cross, X))) / pivot
            step = X - tau * answer
            decrement = math.sqrt(max(float(np.vdot(p.gradient, step)) + slope * tau, 0.0))
            least = 0.1 * self.progress.limits.tol * max(p.t, 1e-300) / p.d
            if decrement >= _CLOSE or self.nu <= least:
                return MetricStep(step, tau, decrement)
            self.nu = max(_SHRINK * self.nu, least)

    def length(self, p: MetricPoint, step: MetricStep) -> float:
        """The maximiser of the objective along the step, roughly; 0 when no step goes up."""
        X, tau, decrement = step
        if decrement < _CLOSE:
            return 1.0
        first, second = p.frame.slope(X), p.frame.bend(X)
        if p.Et is not None:
            first = first - tau * p.Et
        gain = 0.0 if p.Et is None else tau / self.nu
        # Along the path to the largest t, steps end close to the boundary; 1/(1 + decrement) is inside by theory.
        a, low, high = 1.0 if p.Et is None else 1.0 / (1.0 + decrement), 0.0, math.inf
        for _ in range(_TRIALS):
            K = cholesky(p.Gt + a * first + (a * a) * second)
            if K is None:
                high, a = a, 0.5 * (low + a)
                continue
            along = lower_solve(K, lower_solve(K, first + (2.0 * a) * second).T)
            slope = float(np.trace(along)) + gain
            if abs(slope) <= _FLAT * decrement**2:  # which is the slope at 0
                return a
            low, high = (a, high) if slope > 0.0 else (low, a)
            curvature = float(np.vdot(along, along)) - 2.0 * float(np.trace(lower_solve(K, lower_solve(K, second).T)))
            a += slope / curvature
            if not low < a < high:
                a = 0.5 * (low + high) if high < math.inf else 2.0 * low
        return low
