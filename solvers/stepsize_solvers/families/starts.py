"""Starting points: a good direction moved inside, with multipliers on the central path or from a nearby problem."""

from __future__ import annotations

import math

import numpy as np

from stepsize_solvers.families.point import Model, Point, congruence
from stepsize_solvers.numerics import cholesky, sym
from stepsize_solvers.programs import Family, Matrix, Program, Stack

# A warm start adds this share of the multipliers on the central path to the given ones.
_CENTRED = 0.3
# Least slope of the objective, for each dimension, by which a start's multipliers are sized.
_LEAST_SLOPE = 0.1
# The rows of X that all constraints bound start at up to so many powers of ten below the others.
_POWERS = 14


def start_point(model: Model, fraction: float, candidates: list[Matrix]) -> Point | None:
    """A strictly feasible multiple of a good direction with multipliers Z_j = μF_j⁻¹ of the right size."""
    for direction in candidates:
        scale = fraction * largest_scale(model, direction)
        if not (0.0 < scale < math.inf):
            continue
        p = model.point(scale * direction, None)
        if p is None:
            continue
        Q = sum(
            float(np.trace(model.project(model.minus_adjoint(f, s, p.C, s.Z, s.Rt))))
            for f, s in zip(model.program.families[int(model.metric) :], model.bounded(p), strict=True)
        )
        # With Z_j = μF_j⁻¹ the dual residual, the objective's gradient less μQ, is smallest in trace for tr/tr Q; a
        # start beyond the maximum of a metric still needs a μ > 0.
        slope = max(float(np.trace(model.gradient(p))), _LEAST_SLOPE * model.program.d)
        return model.point(p.X, None, slope / Q if Q > 0.0 else 1.0)
    return None


def with_duals(model: Model, p: Point, duals: tuple[Stack, ...]) -> Point | None:
    """The point with the given multipliers of the first families, made regular by a share of Z_j = μF_j⁻¹."""
    warm = [*duals, *(0.0 * Z for Z in p.duals[len(duals) :])]
    # μ of the given multipliers at this point; the share of the centred ones is small where they are well inside.
    pairs = list(zip(warm, p.states, strict=True))[int(model.metric) :]
    mu = sum(float(np.sum(Z * s.F)) for Z, s in pairs) / model.size
    return model.point(
        p.X, tuple(Z + (_CENTRED * mu) * (s.V @ s.V.transpose(0, 2, 1)) for Z, s in zip(warm, p.states, strict=True))
    )


def directions(model: Model) -> list[Matrix]:
    """Directions to start from: the optimum if all constraints were one, then the plainest of the pattern."""
    program = model.program
    plain = program.pattern.member
    if program.pattern.W is not None:
        return [plain]
    if _has_free_rows(program):
        return [_two_scales(model), plain]
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


def _is_simple(family: Family) -> bool:
    """Whether the constraint is X ⪯ M."""
    return family.B is None and family.is_plain and not family.e


def _rows(family: Family) -> np.ndarray:
    """The rows of X that decide a constraint, as True; the smaller set where XBX allows two."""
    weights = np.diagonal(family.weights()) > 0.0
    if family.B is None or not family.is_plain:
        return weights
    return min((weights, np.diagonal(family.B) > 0.0), key=np.sum)


def _has_free_rows(program: Program) -> bool:
    """Whether some rows of X are decided by constraints X ⪯ M alone: they may be far larger than the others."""
    others = [_rows(f) for f in program.families if not _is_simple(f)]
    return 0 < len(others) < len(program.families) and not np.logical_or.reduce(others).all()


def _two_scales(model: Model) -> Matrix:
    """The best multiple of (M⁻¹ + θN)⁻¹ over powers θ of ten, N the geometric mean B # Σ𝒬*(HHᵀ), or the sum itself."""
    program, d = model.program, model.program.d
    simple, N = np.zeros((d, d)), np.zeros((d, d))
    for family in program.families:
        weights = family.weights()
        if _is_simple(family):
            simple += weights
            continue
        bounded = np.flatnonzero(_rows(family) & (np.diagonal(weights) > 0.0))
        if not bounded.size:  # 𝒬(φ(X)) vanishes where the factors look: the constraint says nothing
            continue
        rows = np.ix_(bounded, bounded)
        N[rows] += weights[rows] if family.B is None else _geometric_mean(family.B[rows], weights[rows])
    found: list[tuple[float, Matrix]] = []
    for power in range(_POWERS):
        X = np.linalg.inv(sym(simple + 10.0**power * N))
        X = sym(program.pattern.blocks(X))
        scale, basis = largest_scale(model, X), model.basis(X)
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


def largest_scale(model: Model, X: Matrix) -> float:
    """The largest t with tX feasible; 0 when X is not positive definite."""
    program = model.program
    basis = model.basis(X)
    if basis is None:
        return 0.0
    tops = []
    for family in program.families:
        M = X if family.B is None else X @ family.B @ X
        tops.append(float(np.linalg.eigvalsh(congruence(family.H, family.Q.apply(sym(M))))[:, -1].max()))
    return program.largest_scale(basis[1], tops)
