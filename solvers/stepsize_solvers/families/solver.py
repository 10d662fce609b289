"""The project's own solver of max-det programs: a primal-dual interior-point method without any lift.

X stays strictly feasible, so every iterate is an answer; the multipliers prove an upper bound at every iterate
(:mod:`stepsize_solvers.families.point`), so the iteration stops on a gap, not on residuals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from stepsize_solvers.families.agreement import agreement
from stepsize_solvers.families.cuts import solve_by_cuts, worth_cutting
from stepsize_solvers.families.dense import MAX_UNKNOWNS, SMALL, dense_solver, unknowns
from stepsize_solvers.families.newton import OutOfTime, newton_system, solve_by_cg
from stepsize_solvers.families.point import FamilyState, Model, Point, congruence
from stepsize_solvers.families.program import Family, MaxDetOutcome, MaxDetProgram, Stack
from stepsize_solvers.numerics import blas_threads, cholesky, sym
from stepsize_solvers.programs import BlockPattern, Matrix, Settings, SolverStats, Status

# A warm start adds this share of the multipliers on the central path to the given ones.
_CENTRED = 0.3
# Where the iteration gets stuck it starts again from its best X, at these fractions of the way to the boundary.
_RESTARTS = (0.9, 0.99)
# The rows of X that all constraints bound start at up to so many powers of ten below the others.
_POWERS = 14


@dataclass(frozen=True)
class MaxDetOptions:
    """Options of the solver; ``Settings.extra`` may override any of them by name.

    start_fraction: the start lies at this fraction of the way to the boundary; closer starts take short first steps.
    target_margin: iterate until the gap is this fraction of tol, so that an independent check passes too.
    step_fraction: fraction of the way to the boundary that a step takes.
    centring_floor: the centring σ is the cube of the complementarity left by the plain step, but of no less than this.
    neighbourhood: a step is shortened when the smallest complementarity product falls below this fraction of μ.
    cg_accuracy: relative residual of the Newton system; the bound holds for inexact steps too.
    max_cg: cap of conjugate gradient iterations in one solve.
    slow_cg: after a solve with more iterations than this, factorise instead where memory allows.
    stall_limit: give up after so many steps without a better gap.
    max_iters: steps when the settings give no limit; a healthy solve takes 10 to 30.
    """

    start_fraction: float = 0.5
    target_margin: float = 0.5
    step_fraction: float = 0.95
    centring_floor: float = 0.1
    neighbourhood: float = 1e-6
    cg_accuracy: float = 1e-3
    max_cg: int = 300
    slow_cg: int = 60
    stall_limit: int = 15
    max_iters: int = 120

    @staticmethod
    def from_extra(extra: Mapping[str, Any]) -> MaxDetOptions:
        """Options with the given overrides; an unknown name is an error that lists the known ones."""
        known = {f.name for f in fields(MaxDetOptions)}
        unknown = sorted(set(extra) - known)
        if unknown:
            msg = f"unknown native option {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            raise ValueError(msg)
        return MaxDetOptions(**dict(extra))


@dataclass
class _Best:
    """The best point so far by its bound, and the work done."""

    point: Point
    lower: float
    upper: float
    iterations: int = 0
    cg_iterations: int = 0
    stalled: int = 0
    slow: bool = False


def solve_maxdet(program: MaxDetProgram, settings: Settings) -> MaxDetOutcome:
    """Solve; never raises for a numerical failure, which is a status."""
    options = MaxDetOptions.from_extra(settings.extra)
    begin = time.perf_counter()
    split = agreement(program)
    if split is not None:
        inside = _solve(split.program, settings, options, begin)
        if inside.X is None:
            return inside
        return replace(inside, X=split.point(inside.X), duals=(split.duals(inside.duals[0]),))
    return _solve(program, settings, options, begin)


def _solve(program: MaxDetProgram, settings: Settings, options: MaxDetOptions, begin: float) -> MaxDetOutcome:
    model = Model(program)
    largest = max([program.d, *(f.factors.shape[2] for f in program.families)])
    with blas_threads(largest):
        if worth_cutting(program):
            cut = _solve_by_cuts(model, settings, options, begin)
            if cut is not None:
                return cut
        start = _start(model, options.start_fraction, _directions(model))
        if start is None:
            stats = SolverStats("native", time.perf_counter() - begin, 0.0, 0)
            return MaxDetOutcome(Status.SOLVER_ERROR, None, (), stats, "no strictly feasible start was found")
        best = _Best(start, start.log_det, model.upper_bound(start))
        status = _iterate(model, start, best, settings, options)
        for fraction in _RESTARTS:
            # Steps that go in circles leave a good X with poor multipliers.
            again = _start(model, fraction, [best.point.X]) if status is Status.INACCURATE else None
            if again is not None:
                best.stalled = 0
                status = _iterate(model, again, best, settings, options)
    stats = SolverStats(
        "native",
        solve_time=time.perf_counter() - begin,
        setup_time=0.0,
        num_iters=best.iterations,
        extra_stats={"cg_iterations": best.cg_iterations, "gap": (best.upper - best.lower) / program.d},
    )
    return MaxDetOutcome(status, best.point.X, best.point.duals, stats)


def _solve_by_cuts(model: Model, settings: Settings, options: MaxDetOptions, begin: float) -> MaxDetOutcome | None:
    """The outcome of the method of cuts; None when it has no start or gets stuck."""

    def inner(
        program: MaxDetProgram,
        limits: Settings,
        X: Matrix,
        duals: tuple[Stack, ...] | None,
        fraction: float,
    ) -> tuple[Status, Point | None, int, int]:
        small = Model(program)
        start = _start(small, fraction, [X])
        if start is not None and duals is not None:
            start = _with_duals(small, start, duals) or start
        if start is None:
            return Status.SOLVER_ERROR, None, 0, 0
        best = _Best(start, start.log_det, small.upper_bound(start))
        status = _iterate(small, start, best, limits, options)
        return status, best.point, best.iterations, best.cg_iterations

    for direction in _directions(model):
        if not 0.0 < _largest_scale(model, direction) < math.inf:
            continue
        status, found = solve_by_cuts(model.program, settings, direction, inner)
        if not found.duals or status is Status.INACCURATE:
            continue  # the rounds got stuck: the whole program is dearer but does not depend on them
        stats = SolverStats(
            "native",
            solve_time=time.perf_counter() - begin,
            setup_time=0.0,
            num_iters=found.iterations,
            extra_stats={
                "cg_iterations": found.cg_iterations,
                "gap": (found.upper - found.lower) / model.program.d,
                "rounds": found.rounds,
            },
        )
        return MaxDetOutcome(status, found.X, found.duals, stats)
    return None


def _iterate(model: Model, p: Point, best: _Best, settings: Settings, options: MaxDetOptions) -> Status:
    d = model.program.d
    limit = settings.max_iters if settings.max_iters is not None else options.max_iters
    try:
        while best.upper - best.lower > options.target_margin * settings.tol * d:
            if best.iterations >= limit or time.perf_counter() > settings.deadline:
                return Status.USER_LIMIT
            if best.stalled >= options.stall_limit:
                return Status.INACCURATE
            found = _step(model, p, options, settings, best)
            if found is None:
                return Status.INACCURATE
            p, length = found
            best.iterations += 1
            _keep(model, p, best)
            if settings.verbose:
                gap = (best.upper - best.lower) / d
                print(f"{best.iterations:4d}  gap {gap:9.2e}  μ {_mu(model, p):8.1e}  step {length:.3f}")
    except OutOfTime:
        return Status.USER_LIMIT
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    return Status.OPTIMAL


def _keep(model: Model, p: Point, best: _Best) -> None:
    upper = model.upper_bound(p)
    better = upper - p.log_det < best.upper - best.lower
    best.stalled = 0 if better else best.stalled + 1
    if better:
        best.point, best.lower, best.upper = p, p.log_det, upper


def _mu(model: Model, p: Point) -> float:
    return sum(float(np.sum(state.s)) for state in p.states) / model.program.total_size


def _step(
    model: Model, p: Point, options: MaxDetOptions, settings: Settings, best: _Best
) -> tuple[Point, float] | None:
    """One predictor-corrector step (Mehrotra); the new point and the shorter of its two lengths."""
    d = model.program.d
    families = model.program.families
    mu = _mu(model, p)
    solve = _linear_solver(model, p, options, settings, best)
    plain = _Direction.of(model, p, solve(np.eye(d)), 0.0, None)
    primal, dual = plain.lengths(p, 1.0)
    # The complementarity that the plain step would leave, cubed: Mehrotra's choice of the centring.
    left = sum(
        float(np.sum((s.F + primal * x) * (s.Z + dual * z)))
        for s, x, z in zip(p.states, plain.dF, plain.dZ, strict=True)
    )
    sigma = min(1.0, max(left / (mu * model.program.total_size), options.centring_floor)) ** 3
    corrections = [
        _correction(model, f, s, p.C, plain.Y, x, z)
        for f, s, x, z in zip(families, p.states, plain.dF, plain.dZ, strict=True)
    ]
    rhs = np.eye(d)
    for family, state, correction in zip(families, p.states, corrections, strict=True):
        inverse = state.V @ state.V.transpose(0, 2, 1)
        rhs -= model.minus_adjoint(family, state, p.C, sigma * mu * inverse - correction)
    step = _Direction.of(model, p, solve(model.project(rhs)), sigma * mu, corrections)
    primal, dual = step.lengths(p, options.step_fraction)
    for _ in range(30):
        Z = tuple(sym(s.Z + dual * z) for s, z in zip(p.states, step.dZ, strict=True))
        X = sym(p.C @ (np.eye(d) + primal * step.Y) @ p.C.T)
        new = model.point(X, Z)
        if new is not None and _centred(model, new, options):
            return new, min(primal, dual)
        primal *= 0.8
        dual *= 0.8
    return None


def _linear_solver(
    model: Model, p: Point, options: MaxDetOptions, settings: Settings, best: _Best
) -> Callable[[Matrix], Matrix]:
    """rhs ↦ Y with 𝓗(Y) = rhs: a factorisation for few unknowns or where conjugate gradients have become slow."""
    size = unknowns(model)
    if 0 < size <= SMALL or (best.slow and 0 < size <= MAX_UNKNOWNS):
        dense = dense_solver(model, p)
        if dense is not None:
            return dense
    system = newton_system(model, p, best.slow)
    # A residual ρ of the Newton system weakens the bound by about ρ²/2, which must stay below the gap.
    gap = min(1.0, max(best.upper - best.lower, settings.tol * model.program.d)) / model.program.d
    accuracy = min(options.cg_accuracy, 0.1 * math.sqrt(gap))

    def solve(rhs: Matrix) -> Matrix:
        Y, iterations = solve_by_cg(system, rhs, accuracy, options.max_cg, settings.deadline)
        best.cg_iterations += iterations
        best.slow = best.slow or iterations > options.slow_cg
        return Y

    return solve


@dataclass(frozen=True, eq=False)
class _Direction:
    """Y with the changes of all F_j and Z_j that belong to it."""

    Y: Matrix
    dF: list[Stack]
    dZ: list[Stack]

    @staticmethod
    def of(model: Model, p: Point, Y: Matrix, target: float, corrections: list[Stack] | None) -> _Direction:
        """dZ = target·F⁻¹ − Z − G F′(Y) G − correction."""
        dF, dZ = [], []
        for i, (family, state) in enumerate(zip(model.program.families, p.states, strict=True)):
            change = model.derivative(family, state, p.C, Y)
            dual = target * (state.V @ state.V.transpose(0, 2, 1)) - state.Z - state.G @ change @ state.G
            dF.append(change)
            dZ.append(sym(dual if corrections is None else dual - corrections[i]))
        return _Direction(Y, dF, dZ)

    def lengths(self, p: Point, fraction: float) -> tuple[float, float]:
        """Primal and dual step lengths: the fraction of the way to the boundary, at most 1."""
        primal = min(_longest_whitened(p, self.dF), _longest_single(self.Y))
        return min(fraction * primal, 1.0), min(fraction * _longest_dual(p, self.dZ), 1.0)


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
        curved = congruence(family.factors, family.Q.apply(sym(C @ Y @ state.Lam @ Y @ C.T)))
        out = out - state.G @ curved @ state.G
    if state.slope:
        root_size = model.program.root
        bend = 0.5 * state.slope * (float(np.trace(Y)) ** 2 / root_size - float(np.sum(Y * Y)))
        out = out + bend * (state.G @ state.G)
    return np.asarray(out)


def _centred(model: Model, p: Point, options: MaxDetOptions) -> bool:
    smallest = min(float(np.min(state.s)) for state in p.states)
    return smallest > options.neighbourhood * _mu(model, p)


def _longest_single(Y: Matrix) -> float:
    """The largest a with I + aY ⪰ 0."""
    low = float(np.linalg.eigvalsh(Y)[0])
    return math.inf if low >= 0.0 else -1.0 / low


def _longest_whitened(p: Point, dF: list[Stack]) -> float:
    """The largest a with F_j + a dF_j ⪰ 0 for all j: F_j⁻¹ = V Vᵀ."""
    low = min(float(np.linalg.eigvalsh(congruence_each(s.V, x)).min()) for s, x in zip(p.states, dF, strict=True))
    return math.inf if low >= 0.0 else -1.0 / low


def _longest_dual(p: Point, dZ: list[Stack]) -> float:
    """The largest a with Z_j + a dZ_j ⪰ 0: with V⁻¹ = VᵀF, Z_j = V Diag(s) Vᵀ whitens to I."""
    low = math.inf
    for s, z in zip(p.states, dZ, strict=True):
        back = s.F @ s.V / np.sqrt(s.s)[:, None, :]
        low = min(low, float(np.linalg.eigvalsh(congruence_each(back, z)).min()))
    return math.inf if low >= 0.0 else -1.0 / low


def congruence_each(V: Stack, M: Stack) -> Stack:
    """V_jᵀ M_j V_j."""
    return sym(V.transpose(0, 2, 1) @ M @ V)


def _start(model: Model, fraction: float, directions: list[Matrix]) -> Point | None:
    """A strictly feasible multiple of a good direction with multipliers Z_j = μF_j⁻¹ of the right size."""
    for direction in directions:
        scale = fraction * _largest_scale(model, direction)
        if not (0.0 < scale < math.inf):
            continue
        p = model.point(scale * direction, None)
        if p is None:
            continue
        Q = sum(
            float(np.trace(model.project(model.minus_adjoint(f, s, p.C, s.Z, s.Rt))))
            for f, s in zip(model.program.families, p.states, strict=True)
        )
        # With Z_j = μF_j⁻¹ the dual residual I − μQ is smallest in trace for μ = d/tr Q.
        return model.point(p.X, None, model.program.d / Q if Q > 0.0 else 1.0)
    return None


def _with_duals(model: Model, p: Point, duals: tuple[Stack, ...]) -> Point | None:
    """The point with the given multipliers of the first families, made regular by a share of Z_j = μF_j⁻¹."""
    warm = [*duals, *(0.0 * Z for Z in p.duals[len(duals) :])]
    # μ of the given multipliers at this point; the share of the centred ones is small where they are well inside.
    mu = sum(float(np.sum(Z * s.F)) for Z, s in zip(warm, p.states, strict=True)) / model.program.total_size
    return model.point(
        p.X, tuple(Z + (_CENTRED * mu) * (s.V @ s.V.transpose(0, 2, 1)) for Z, s in zip(warm, p.states, strict=True))
    )


def _directions(model: Model) -> list[Matrix]:
    """Directions to start from: the optimum if all constraints were one, then the plainest of the pattern."""
    program = model.program
    pattern = program.pattern
    if not isinstance(pattern, BlockPattern):
        return [pattern.W]
    plain = np.eye(program.d)
    if _has_free_rows(program):
        return [_two_scales(model, pattern), plain]
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
    return [model.program.pattern.project(sym(direction)), plain]  # type: ignore[union-attr]


def _is_simple(family: Family) -> bool:
    """Whether the constraint is X ⪯ M."""
    return family.B is None and family.is_plain and not family.e


def _rows(family: Family) -> np.ndarray:
    """The rows of X that decide a constraint, as True; the smaller set where XBX allows two."""
    weights = np.diagonal(family.weights()) > 0.0
    if family.B is None or not family.is_plain:
        return weights
    return min((weights, np.diagonal(family.B) > 0.0), key=np.sum)


def _has_free_rows(program: MaxDetProgram) -> bool:
    """Whether some rows of X are decided by constraints X ⪯ M alone: they may be far larger than the others."""
    others = [_rows(f) for f in program.families if not _is_simple(f)]
    return 0 < len(others) < len(program.families) and not np.logical_or.reduce(others).all()


def _two_scales(model: Model, pattern: BlockPattern) -> Matrix:
    """The best multiple of (M⁻¹ + θN)⁻¹ over powers θ of ten, N the geometric mean B # Σ𝒬*(HHᵀ), or the sum itself."""
    program, d = model.program, model.program.d
    simple, N = np.zeros((d, d)), np.zeros((d, d))
    for family in program.families:
        weights = family.weights()
        if _is_simple(family):
            simple += weights
            continue
        rows = np.ix_(*2 * (np.flatnonzero(_rows(family) & (np.diagonal(weights) > 0.0)),))
        N[rows] += weights[rows] if family.B is None else _geometric_mean(family.B[rows], weights[rows])
    found: list[tuple[float, Matrix]] = []
    for power in range(_POWERS):
        X = np.linalg.inv(sym(simple + 10.0**power * N))
        X = sym(X if pattern.is_full else pattern.project(X))
        scale, basis = _largest_scale(model, X), model.basis(X)
        if basis is not None and 0.0 < scale < math.inf:
            found.append((basis[1] + d * math.log(scale), X))
    return max(found, key=lambda item: item[0])[1] if found else np.eye(d)


def _geometric_mean(A: Matrix, B: Matrix) -> Matrix:
    """A # B up to rounding, for positive semidefinite A and B."""
    w, U = np.linalg.eigh(sym(B))
    root = np.sqrt(np.maximum(w, 1e-14 * w[-1]))
    half, inverse = U * root, U / root
    v, W = np.linalg.eigh(sym(inverse.T @ A @ inverse))
    half = half @ W
    return np.asarray((half * np.sqrt(np.maximum(v, 0.0))) @ half.T)


def _largest_scale(model: Model, X: Matrix) -> float:
    """The largest t with tX feasible; 0 when X is not positive definite."""
    program = model.program
    basis = model.basis(X)
    if basis is None:
        return 0.0
    tops = []
    for family in program.families:
        M = X if family.B is None else X @ family.B @ X
        tops.append(float(np.linalg.eigvalsh(congruence(family.factors, family.Q.apply(sym(M))))[:, -1].max()))
    return program.largest_scale(basis[1], tops)
