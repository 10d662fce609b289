"""Convex f: bounds from multipliers of any quality, in rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from numpy.typing import NDArray

from shared.exact import (
    combine,
    is_positive_semidefinite,
    log_det,
    product,
    rational,
    second_moment,
)
from shared.strategies import problems, seeds
from stepsize_opt.proofs import ConvexStep, norm_from_above
from stepsize_opt.sketches import Sketch
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Pattern, Program, Settings

Matrix = NDArray[np.float64]
NATIVE = get_solver("native")


def symmetric(M: Matrix) -> Matrix:
    return np.asarray(0.5 * (M + M.T))


def patterns(L: Matrix) -> list[Pattern]:
    d = len(L)
    return [Pattern.full(d), Pattern((1,) * d), Pattern((d,), symmetric(np.linalg.inv(L)))]


def disturbed(Z: Matrix, rng: np.random.Generator) -> Matrix:
    noise = rng.standard_normal(Z.shape)
    return symmetric(Z + 0.1 * np.trace(Z) / len(Z) * noise @ noise.T) * float(10.0 ** rng.uniform(-1, 1))


@given(problems(5, 1e4), seeds)
@settings(max_examples=10)
def test_both_ends_for_convex_f(problem: tuple[Matrix, Sketch], seed: int) -> None:
    rng = np.random.default_rng(seed)
    L, sketch = problem
    exact = rational(L)
    for pattern in patterns(L):
        H = np.linalg.cholesky(L)
        outcome = NATIVE.solve(Program.convex(H, sketch.map, pattern), Settings(tol=1e-8))
        assert outcome.X is not None
        step = ConvexStep(Program.single(L, sketch.map, pattern), outcome.X).repaired()
        assert step is not None and step.feasible
        U = symmetric(H @ outcome.duals[0][0] @ H.T)
        found, D = step.certificate(U), rational(step.D)
        # 𝒫(D) ⪯ L⁻¹ if and only if L𝒫(D)L ⪯ L.
        image = product(product(exact, second_moment(sketch, D)), exact)
        assert is_positive_semidefinite(combine((1, exact), (-1, image)))
        assert found.log_det <= log_det(D) <= found.upper_bound
        assert found.gap <= 1e-6
        assert step.bound(disturbed(U, rng)) >= float(log_det(D))
        assert step.bound(np.full_like(U, np.nan)) == math.inf
        assert not step.elsewhere(1.001 * step.D).feasible


def test_a_norm_in_the_inverse_is_bounded_from_above() -> None:
    rng = np.random.default_rng(7)
    for condition in (1e2, 1e8):
        basis = np.linalg.qr(rng.standard_normal((6, 6)))[0]
        D = symmetric(basis @ np.diag(np.geomspace(1.0, 1.0 / condition, 6)) @ basis.T)
        v = rng.standard_normal(6)
        below = 0.5 / condition
        bound = norm_from_above(D, v, below)
        x = solve(D, v)
        exact = sum(Fraction(a) * b for a, b in zip(v.tolist(), x, strict=True))
        assert exact <= Fraction(bound) <= exact * Fraction(1 + 1e-9)


def solve(D: Matrix, v: Matrix) -> list[Fraction]:
    """D⁻¹v by elimination in rational numbers."""
    n = len(D)
    rows = [[Fraction(x) for x in row] + [Fraction(y)] for row, y in zip(D.tolist(), v.tolist(), strict=True)]
    for k in range(n):
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(n):
            if i != k:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return [row[n] for row in rows]
