"""The primal-dual iteration: predictor-corrector steps until the gap is certified or a limit is reached.

X stays strictly feasible, so every iterate is an answer; the multipliers prove an upper bound at every iterate
(``.point``), so the iteration stops on a gap, not on residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.families.dense import MAX_UNKNOWNS, SMALL, dense_solver, unknowns
from stepsize_solvers.families.newton import OutOfTime, newton_system, solve_by_cg
from stepsize_solvers.families.point import FamilyState, Model, Point, congruence
from stepsize_solvers.numerics import Bounds, Limits, Progress, sym
from stepsize_solvers.programs import Family, Matrix, Stack, Status

# Iterate until the gap is this fraction of tol, so that an independent check passes too; give up after so many steps
# without a better gap; a healthy solve takes 10 to 30 steps.
_TARGET_MARGIN = 0.5
_PATIENCE = 15
MOST_STEPS = 120
# Fraction of the way to the boundary that a step takes.
_STEP_FRACTION = 0.95
# The centring σ is the cube of the complementarity left by the plain step, but of no less than this.
_CENTRING_FLOOR = 0.1
# μ stays above this fraction of the squared gradient of the Lagrangian, relative to that of log det X alone, for so
# many steps: where the gradient does not shrink, both go round in a circle.
_FOLLOWED = 0.1
_STEPS_FOLLOWED = 40
# A step is shortened when the smallest complementarity product falls below this fraction of μ.
_NEIGHBOURHOOD = 1e-6
# Relative residual of the Newton system, and cap of its iterations; the bound holds for inexact steps too.
_CG_ACCURACY = 1e-3
_MAX_CG = 300
# After a solve with more iterations than this, factorise instead where memory allows.
_SLOW_CG = 60


@dataclass
class Work:
    """One solve as it goes; slow: conjugate gradients have once taken many iterations."""

    progress: Progress[Point]
    slow: bool = False

    @staticmethod
    def of(model: Model, limits: Limits) -> Work:
        return Work(Progress(model.program.d, limits, _TARGET_MARGIN, _PATIENCE))

    @property
    def width(self) -> float:
        """The width of the best interval so far."""
        best = self.progress.best
        return math.inf if best is None else best.bounds.width


def iterate(model: Model, start: Point, work: Work) -> Status:
    """Steps from a strictly feasible point; the best one is kept in ``work``."""
    return work.progress.run(lambda: _iterate(model, start, work))


def _iterate(model: Model, p: Point, work: Work) -> Status:
    length = 0.0
    while True:
        details = {"mu": f"{_mu(model, p):.2e}", "step": f"{length:.3f}"}
        status = work.progress.examine(p, Bounds(p.value, model.upper_bound(p)), details)
        if status is not None:
            return status
        try:
            found = _step(model, p, work)
        except OutOfTime:
            return Status.USER_LIMIT
        if found is None:
            return Status.INACCURATE
        p, length = found
        work.progress.steps += 1


def _mu(model: Model, p: Point) -> float:
    return sum(float(np.sum(state.s)) for state in model.bounded(p)) / model.size


def _step(model: Model, p: Point, work: Work) -> tuple[Point, float] | None:
    """One predictor-corrector step (Mehrotra); the new point and the shorter of its two lengths."""
    d = model.program.d
    families = model.program.families[int(model.metric) :]
    states = model.bounded(p)
    mu = _mu(model, p)
    solve = _linear_solver(model, p, work)
    rhs = model.gradient(p)
    plain = _FamilyStep.of(model, p, solve(rhs), 0.0, None)
    primal, dual = plain.lengths(states, 1.0)
    # The complementarity that the plain step would leave, cubed: Mehrotra's choice of the centring.
    left = sum(
        float(np.sum((s.F + primal * x) * (s.Z + dual * z))) for s, x, z in zip(states, plain.dF, plain.dZ, strict=True)
    )
    sigma = min(1.0, max(left / (mu * model.size), _CENTRING_FLOOR)) ** 3
    # A μ that outruns the gradient of the Lagrangian leaves multipliers too small to hold X back for good.
    held = sum(model.minus_adjoint(f, s, p.C, s.Z) for f, s in zip(families, states, strict=True))
    outside = float(np.linalg.norm(model.project(rhs - held))) / math.sqrt(d)
    if work.progress.steps < _STEPS_FOLLOWED:
        sigma = max(sigma, min(1.0, _FOLLOWED * outside**2 / mu))
    corrections = [
        _correction(model, f, s, p.C, plain.Y, x, z)
        for f, s, x, z in zip(families, states, plain.dF, plain.dZ, strict=True)
    ]
    for family, state, correction in zip(families, states, corrections, strict=True):
        inverse = state.V @ state.V.transpose(0, 2, 1)
        rhs = rhs - model.minus_adjoint(family, state, p.C, sigma * mu * inverse - correction)
    step = _FamilyStep.of(model, p, solve(model.project(rhs)), sigma * mu, corrections)
    primal, dual = step.lengths(states, _STEP_FRACTION)
    for _ in range(30):
        Z = (*p.duals[: int(model.metric)], *(sym(s.Z + dual * z) for s, z in zip(states, step.dZ, strict=True)))
        X = sym(p.C @ (np.eye(d) + primal * step.Y) @ p.C.T)
        new = model.point(X, Z)
        if new is not None and _centred(model, new):
            return new, min(primal, dual)
        primal *= 0.8
        dual *= 0.8
    return None


def _linear_solver(model: Model, p: Point, work: Work) -> Callable[[Matrix], Matrix]:
    """rhs ↦ Y with 𝓗(Y) = rhs: a factorisation for few unknowns or where conjugate gradients have become slow."""
    size = unknowns(model)
    if 0 < size <= SMALL or (work.slow and 0 < size <= MAX_UNKNOWNS):
        dense = dense_solver(model, p)
        if dense is not None:
            return dense
    system = newton_system(model, p, work.slow)
    # A residual ρ of the Newton system weakens the bound by about ρ²/2, which must stay below the gap.
    gap = min(1.0, max(work.width, work.progress.limits.tol * model.program.d)) / model.program.d
    accuracy = min(_CG_ACCURACY, 0.1 * math.sqrt(gap))

    def solve(rhs: Matrix) -> Matrix:
        Y, iterations = solve_by_cg(system, rhs, accuracy, _MAX_CG, work.progress.limits.deadline)
        work.progress.counters.cg_iterations += iterations
        work.slow = work.slow or iterations > _SLOW_CG
        return Y

    return solve


@dataclass(frozen=True, eq=False)
class _FamilyStep:
    """Y with the changes of all F_j and Z_j that belong to it; longest: the largest step that keeps all F_j ⪰ 0."""

    Y: Matrix
    dF: list[Stack]
    dZ: list[Stack]
    longest: float

    @staticmethod
    def of(model: Model, p: Point, Y: Matrix, target: float, corrections: list[Stack] | None) -> _FamilyStep:
        """dZ = target·F⁻¹ − Z − G F′(Y) G − correction."""
        changes = [
            model.derivative(family, state, p.C, Y)
            for family, state in zip(model.program.families, p.states, strict=True)
        ]
        longest = min(_longest_whitened(p.states, changes), _longest_single(Y))
        dF, dZ = changes[int(model.metric) :], []
        for i, (state, change) in enumerate(zip(model.bounded(p), dF, strict=True)):
            dual = target * (state.V @ state.V.transpose(0, 2, 1)) - state.Z - state.G @ change @ state.G
            dZ.append(sym(dual if corrections is None else dual - corrections[i]))
        return _FamilyStep(Y, dF, dZ, longest)

    def lengths(self, states: Sequence[FamilyState], fraction: float) -> tuple[float, float]:
        """Primal and dual step lengths: the fraction of the way to the boundary, at most 1."""
        return min(fraction * self.longest, 1.0), min(fraction * _longest_dual(states, self.dZ), 1.0)


def _correction(model: Model, family: Family, state: FamilyState, C: Matrix, Y: Matrix, dF: Stack, dZ: Stack) -> Stack:
    """The second-order part of the complementarity along a step, as a change of Z.

    In the Nesterov–Todd frame F and Z are both Diag(√s), and the product of their changes is divided by the mean of
    √s_a and √s_b.  The curvature F₂ of F itself adds G F₂ G: F₂ = −Hᵀ𝒬(C YΛY Cᵀ)H for a quadratic family, and
    c′ ((tr Y)²/root − tr Y²)/2 · I for the determinant.
    """
    root = np.sqrt(np.sqrt(state.s))
    frame = state.V * root[:, None, :]
    back = state.F @ state.V / root[:, None, :]
    product = congruence_each(frame, dF) @ congruence_each(back, dZ)
    v = root**2
    product = (product + product.transpose(0, 2, 1)) / (v[:, :, None] + v[:, None, :])
    out = frame @ product @ frame.transpose(0, 2, 1)
    if state.Lam is not None:
        curved = congruence(family.H, family.Q.apply(sym(C @ Y @ state.Lam @ Y @ C.T)))
        out = out - state.G @ curved @ state.G
    if state.slope:
        root_size = model.program.root
        bend = 0.5 * state.slope * (float(np.trace(Y)) ** 2 / root_size - float(np.sum(Y * Y)))
        out = out + bend * (state.G @ state.G)
    return np.asarray(out)


def _centred(model: Model, p: Point) -> bool:
    smallest = min(float(np.min(state.s)) for state in model.bounded(p))
    return smallest > _NEIGHBOURHOOD * _mu(model, p)


def _longest_single(Y: Matrix) -> float:
    """The largest a with I + aY ⪰ 0."""
    low = float(np.linalg.eigvalsh(Y)[0])
    return math.inf if low >= 0.0 else -1.0 / low


def _longest_whitened(states: Sequence[FamilyState], dF: list[Stack]) -> float:
    """The largest a with F_j + a dF_j ⪰ 0 for all j: F_j⁻¹ = V Vᵀ."""
    low = min(float(np.linalg.eigvalsh(congruence_each(s.V, x)).min()) for s, x in zip(states, dF, strict=True))
    return math.inf if low >= 0.0 else -1.0 / low


def _longest_dual(states: Sequence[FamilyState], dZ: list[Stack]) -> float:
    """The largest a with Z_j + a dZ_j ⪰ 0: with V⁻¹ = VᵀF, Z_j = V Diag(s) Vᵀ whitens to I."""
    low = math.inf
    for s, z in zip(states, dZ, strict=True):
        back = s.F @ s.V / np.sqrt(s.s)[:, None, :]
        low = min(low, float(np.linalg.eigvalsh(congruence_each(back, z)).min()))
    return math.inf if low >= 0.0 else -1.0 / low


def congruence_each(V: Stack, M: Stack) -> Stack:
    """V_jᵀ M_j V_j."""
    return sym(V.transpose(0, 2, 1) @ M @ V)
