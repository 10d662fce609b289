"""Families of inequalities as a problem of the interior-point iteration: their starts, steps, centring and systems.

X stays strictly feasible, so every iterate is an answer; the multipliers prove an upper bound at every iterate
(``.point``), so the iteration stops on a gap, not on residuals.  Primal and dual steps have lengths of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.families.dense import dense_solver
from stepsize_solvers.families.newton import newton_system, solve_by_cg
from stepsize_solvers.families.point import FamilyState, Model, Point, congruence
from stepsize_solvers.interior.driver import Drive, Rules
from stepsize_solvers.numerics.linalg import cholesky, sym
from stepsize_solvers.numerics.progress import Bounds, Limits, Progress
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import Matrix, Stack, Status

# Iterate until the gap is this fraction of tol, so that an independent check passes too; give up after so many steps
# without a better gap; a healthy solve takes 10 to 30 steps.
_TARGET_MARGIN = 0.5
_PATIENCE = 15
MOST_STEPS = 120
# The lengths of a step come from its own primal and dual boundaries, of which it takes this fraction.
_RULES = Rules(predictor=True, step_fraction=1.0, least_sigma=1e-3, short=0.0, shortest=1e-3)
_STEP_FRACTION = 0.95
# μ stays above this fraction of the squared gradient of the Lagrangian, relative to that of log det X alone, for so
# many steps: where the gradient does not shrink, both go round in a circle.
_FOLLOWED = 0.1
_STEPS_FOLLOWED = 40
# A step is shortened when the smallest complementarity product falls below this fraction of μ.
_NEIGHBOURHOOD = 1e-6
# Relative residual of the Newton system, and cap of its iterations; the bound holds for inexact steps too.
_CG_ACCURACY = 1e-3
_MOST_ITERATIONS = 300
# After a solve with more iterations than this, factorise instead where memory allows.
_SLOW_CG = 60
# A warm start adds this share of the multipliers on the central path to the given ones.
_CENTRED = 0.3


def iterate(model: Model, start: Point, limits: Limits) -> tuple[Status, Progress[Point]]:
    """Steps from a strictly feasible point."""
    progress: Progress[Point] = Progress(model.program.d, limits, _TARGET_MARGIN, _PATIENCE)
    drive = Drive(Families(model, progress), progress)
    return progress.run(lambda: drive.run(start)), progress


@dataclass
class Families:
    """The problem; slow: conjugate gradients have once taken many iterations."""

    model: Model
    progress: Progress[Point]
    slow: bool = False
    rules: Rules = _RULES

    def mu(self, p: Point) -> float:
        return sum(float(np.sum(state.s)) for state in p.states) / self.model.program.total_size

    def bounds(self, p: Point, near: bool = True) -> Bounds:
        return Bounds(p.log_det, self.model.upper_bound(p))

    def least_target(self, p: Point, steps: int) -> float:
        """A μ that outruns the gradient of the Lagrangian leaves multipliers too small to hold X back for good."""
        if steps >= _STEPS_FOLLOWED:
            return 0.0
        d = self.model.program.d
        held = sum(state.minus_adjoint(state.Z) for state in p.states)
        outside = float(np.linalg.norm(self.model.project(np.eye(d) - held))) / math.sqrt(d)
        return min(self.mu(p), _FOLLOWED * outside**2)

    def system(self, p: Point) -> FamilySystem:
        return FamilySystem(self.model, p, self._linear_solver(p), self.mu(p))

    def moved(self, p: Point, step: FamilyStep, length: float) -> Point | None:
        primal, dual = (length * part for part in step.lengths(_STEP_FRACTION))
        duals = tuple(sym(s.Z + dual * z) for s, z in zip(p.states, step.dZ, strict=True))
        X = sym(p.C @ (np.eye(len(p.C)) + primal * step.Y) @ p.C.T)
        return self.model.point(X, duals)

    def is_near_path(self, p: Point, before: Point) -> bool:
        return min(float(np.min(state.s)) for state in p.states) > _NEIGHBOURHOOD * self.mu(p)

    def fallback(self, p: Point) -> None:
        """None: there is no other formulation."""

    def details(self, p: Point) -> dict[str, str]:
        return {"mu": f"{self.mu(p):.2e}"}

    def _linear_solver(self, p: Point) -> Callable[[Matrix], Matrix]:
        """rhs ↦ Y with 𝓗(Y) = rhs: a factorisation for few unknowns or where conjugate gradients have become slow."""
        model, progress = self.model, self.progress
        if model.program.pattern.unknowns <= (Sizes.FAMILIES_DENSE_AFTER_SLOW if self.slow else Sizes.FAMILIES_DENSE):
            dense = dense_solver(model, p)
            if dense is not None:
                return dense
        system = newton_system(model, p, self.slow)
        # A residual ρ of the Newton system weakens the bound by about ρ²/2, which must stay below the gap.
        width = math.inf if progress.best is None else progress.best.bounds.width
        gap = min(1.0, max(width, progress.limits.tol * model.program.d)) / model.program.d
        accuracy = min(_CG_ACCURACY, 0.1 * math.sqrt(gap))

        def solve(rhs: Matrix) -> Matrix:
            before = progress.work.cg_iterations
            Y = solve_by_cg(system, rhs, accuracy, _MOST_ITERATIONS, progress.work)
            self.slow = self.slow or progress.work.cg_iterations - before > _SLOW_CG
            return Y

        return solve


@dataclass(frozen=True, eq=False)
class FamilySystem:
    """Newton's system of a point; solve: rhs ↦ 𝓗⁻¹(rhs)."""

    model: Model
    p: Point
    solve: Callable[[Matrix], Matrix]
    mu: float

    def step(self, s: float, before: FamilyStep | None = None) -> FamilyStep:
        model, p = self.model, self.p
        rhs = np.eye(model.program.d)
        if before is None:
            return FamilyStep.of(model, p, self.solve(rhs), s, None)
        states, root = p.states, model.program.root
        corrections = [
            _correction(state, before.Y, dF, dZ, root)
            for state, dF, dZ in zip(states, before.dF, before.dZ, strict=True)
        ]
        for state, correction in zip(states, corrections, strict=True):
            rhs = rhs - state.minus_adjoint(s * state.inverse - correction)
        return FamilyStep.of(model, p, self.solve(model.project(rhs)), s, corrections)

    def longest(self, step: FamilyStep) -> float:
        """1: the step knows its two lengths."""
        return 1.0

    def share_left(self, step: FamilyStep) -> float:
        primal, dual = step.lengths(1.0)
        triples = zip(self.p.states, step.dF, step.dZ, strict=True)
        left = sum(float(np.sum((s.F + primal * x) * (s.Z + dual * z))) for s, x, z in triples)
        return left / (self.mu * self.model.program.total_size)


@dataclass(frozen=True, eq=False)
class FamilyStep:
    """Y with the changes of all F_j and Z_j; primal, dual: the largest lengths that keep all F_j, all Z_j ⪰ 0."""

    Y: Matrix
    dF: list[Stack]
    dZ: list[Stack]
    primal: float
    dual: float

    @staticmethod
    def of(model: Model, p: Point, Y: Matrix, target: float, corrections: list[Stack] | None) -> FamilyStep:
        """dZ = target·F⁻¹ − Z − G F′(Y) G − correction."""
        dF, dZ, whitened = [state.derivative(Y) for state in p.states], [], []
        for i, (state, change) in enumerate(zip(p.states, dF, strict=True)):
            dual = target * state.inverse - state.Z - state.G @ change @ state.G
            dZ.append(sym(dual if corrections is None else dual - corrections[i]))
            # F⁻¹ = VVᵀ, and with V⁻¹ = VᵀF Z = V Diag(s) Vᵀ whitens to I.
            whitened.append(congruence_each(state.F @ state.V / np.sqrt(state.s)[:, None, :], dZ[-1]))
        primal = _longest([Y, *(congruence_each(s.V, change) for s, change in zip(p.states, dF, strict=True))])
        return FamilyStep(Y, dF, dZ, primal, _longest(whitened))

    def lengths(self, fraction: float) -> tuple[float, float]:
        """Primal and dual step lengths: the fraction of the way to the boundary, at most 1."""
        return min(fraction * self.primal, 1.0), min(fraction * self.dual, 1.0)


def _correction(state: FamilyState, Y: Matrix, dF: Stack, dZ: Stack, root_size: float) -> Stack:
    """The second-order part of the complementarity along a step, as a change of Z.

    In the Nesterov–Todd frame F and Z are both Diag(√s), and the product of their changes is divided by the mean of
    √s_a and √s_b.  The curvature F₂ of F itself adds G F₂ G: F₂ = −Hᵀ𝒬(C YΛY Cᵀ)H for a quadratic family, and
    c′ ((tr Y)²/root − tr Y²)/2 · I for the determinant.
    """
    half, v = state.half, np.sqrt(state.s)
    back = state.F @ state.V / np.sqrt(v)[:, None, :]
    product = congruence_each(half, dF) @ congruence_each(back, dZ)
    product = (product + product.mT) / (v[:, :, None] + v[:, None, :])
    out = half @ product @ half.mT
    if state.Lam is not None:
        family, C = state.family, state.C
        curved = congruence(family.H, family.Q.apply(sym(C @ Y @ state.Lam @ Y @ C.T)))
        out = out - state.G @ curved @ state.G
    if state.slope:
        bend = 0.5 * state.slope * (float(np.trace(Y)) ** 2 / root_size - float(np.sum(Y * Y)))
        out = out + bend * (state.G @ state.G)
    return np.asarray(out)


def _longest(whitened: Iterable[Stack]) -> float:
    """The largest a with I + aM ⪰ 0 for every matrix M of every stack."""
    low = min(float(np.linalg.eigvalsh(M).min()) for M in whitened)
    return math.inf if low >= 0.0 else -1.0 / low


def congruence_each(V: Stack, M: Stack) -> Stack:
    """V_jᵀ M_j V_j."""
    return sym(V.mT @ M @ V)


# ---------------------------------------------------------------- starts


def start_point(
    model: Model, fraction: float, candidates: list[Matrix], duals: tuple[Stack, ...] | None = None
) -> Point | None:
    """A multiple of the first direction that goes: a fraction of the largest feasible one.

    Its multipliers are Z_j = μF_j⁻¹ of the right size, or the given ones of the first families where those will do.
    """
    for direction in candidates:
        scale = fraction * largest_scale(model, direction)
        if not (0.0 < scale < math.inf):
            continue
        p = model.point(scale * direction, None)
        if p is None:
            continue
        Q = sum(float(np.trace(model.project(state.minus_adjoint(state.Z)))) for state in p.states)
        # With Z_j = μF_j⁻¹ the dual residual I − μQ is smallest in trace for d/tr Q.
        central = model.point(p.X, None, model.program.d / Q if Q > 0.0 else 1.0)
        if central is None or duals is None:
            return central
        return _with_duals(model, central, duals) or central
    return None


def _with_duals(model: Model, p: Point, duals: tuple[Stack, ...]) -> Point | None:
    """The point with the given multipliers of the first families, made regular by a share of Z_j = μF_j⁻¹."""
    warm = [*duals, *(0.0 * Z for Z in p.duals[len(duals) :])]
    # μ of the given multipliers at this point; the share of the centred ones is small where they are well inside.
    mu = sum(float(np.sum(Z * s.F)) for Z, s in zip(warm, p.states, strict=True)) / model.program.total_size
    return model.point(p.X, tuple(Z + (_CENTRED * mu) * s.inverse for Z, s in zip(warm, p.states, strict=True)))


def directions(model: Model) -> list[Matrix]:
    """Directions to start from: the optimum if all constraints were one, then the plainest of the pattern."""
    program = model.program
    plain = program.pattern.member
    if program.pattern.W is not None:
        return [plain]
    total = sum((f.weights() for f in program.families), np.zeros((program.d, program.d)))
    quadratic = [f.B for f in program.families if f.B is not None]
    K = cholesky(sym(total))
    if K is None:
        return [plain]
    K_inverse = np.linalg.inv(K)
    direction = K_inverse.T @ K_inverse
    if quadratic:
        # X B X = M⁻¹ has the solution K⁻ᵀ (K⁻¹BK⁻ᵀ)^{−½} K⁻¹ with M = KKᵀ.
        w, U = np.linalg.eigh(sym(K_inverse @ sum(quadratic[1:], quadratic[0]) @ K_inverse.T))
        if w[0] <= 1e-12 * w[-1]:  # a singular B leaves the direction unbounded
            return [plain]
        half = K_inverse.T @ U
        direction = (half / np.sqrt(w)) @ half.T
    return [program.pattern.blocks(sym(direction)), plain]


def largest_scale(model: Model, X: Matrix) -> float:
    """The largest t with tX feasible; 0 when X is not positive definite."""
    program = model.program
    basis = model.basis(X)
    if basis is None:
        return 0.0
    tops = [float(np.linalg.eigvalsh(family.images(X))[:, -1].max()) for family in program.families]
    return program.largest_scale(basis[1], tops)
