"""The descent metric H(D) = 2D − 𝒬(DBD): what is proved of it against rational arithmetic, and its theory."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.exact import (
    combine,
    descent_metric,
    inner,
    inverse,
    is_positive_semidefinite,
    log,
    log_det,
    product,
    rational,
)
from shared.strategies import problems, seeds
from stepsize_opt.proofs import Descent, DescentBounds
from stepsize_opt.proofs.arithmetic import Pair, Plain
from stepsize_opt.proofs.certificate import Multiplier
from stepsize_opt.sketches import Identity, RandK, Sketch
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Pattern, Program, Settings, Status
from stepsize_validation.data import random_smoothness

Matrix = NDArray[np.float64]
NATIVE = get_solver("native")


def metric(D: Matrix, L: Matrix, sketch: Sketch) -> Matrix:
    """2D − E[SDLDS] in floats."""
    H = 2.0 * D - sketch.map.apply(D @ L @ D)
    return np.asarray(0.5 * (H + H.T))


def symmetric(M: Matrix) -> Matrix:
    return np.asarray(0.5 * (M + M.T))


def patterns(rng: np.random.Generator, L: Matrix) -> Iterator[Pattern]:
    """One of each kind that the size allows."""
    d = len(L)
    yield Pattern.full(d)
    yield Pattern((1,) * d)
    if d > 1:
        yield Pattern((1, d - 1))
        yield Pattern((d,), symmetric(np.linalg.inv(L)))
        yield Pattern((1, d - 1), np.diag(rng.uniform(0.5, 2.0, d)))


def best_of_quadratic(Y: Matrix, L: Matrix, sketch: Sketch, pattern: Pattern) -> Matrix:
    """A D of the pattern near the maximiser of 2⟨Y, D⟩ − ⟨𝒬*(Y), DLD⟩, by least squares over a basis of the pattern."""
    R, d = sketch.map.adjoint(Y), len(L)
    basis = []
    for a in range(d):
        for b in range(a, d):
            E = np.zeros((d, d))
            E[a, b] = E[b, a] = 1.0
            basis.append(pattern.blocks(E))
    if pattern.W is not None:
        basis = [
            pattern.blocks(np.where(np.add.outer(pattern.labels, pattern.labels) == 2 * i, pattern.W, 0.0))
            for i in range(len(pattern.sizes))
        ]
    basis = [E for E in basis if E.any()]
    A = np.array([[np.vdot(R, E @ L @ F + F @ L @ E) for F in basis] for E in basis])
    x = np.linalg.lstsq(A, np.array([2.0 * np.vdot(Y, E) for E in basis]), rcond=None)[0]
    return symmetric(np.tensordot(x, np.array(basis), 1))


# C of the proof has CᵀBC and CᵀRC within 2⁻²⁰ of what they should be, which enters twice.
_SLACK = 4.0 * 2.0**-20


def _is_exact(pattern: Pattern) -> bool:
    """Whether a poor Y gets the maximum over the pattern itself; free blocks get it with a Y near the best one."""
    return pattern.is_full or pattern.W is not None


@pytest.mark.parametrize("arithmetic", [Pair, Plain])
@given(problems(5, 1e6), seeds)
@settings(max_examples=40)
def test_both_ends_of_log_det_hold_in_rational_arithmetic(
    arithmetic: type[Pair | Plain], problem: tuple[Matrix, Sketch], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    L, sketch = problem
    d = len(L)
    exact_L = rational(L)
    for pattern in patterns(rng, L):
        program = Program.descent(L, sketch.map, pattern)
        outcome = NATIVE.solve(program, Settings(tol=1e-9))
        assert outcome.X is not None
        best = pattern.nearest(outcome.X)
        certificate = Descent(program, best, arithmetic).bounds(outcome.duals[-1][0])
        value = log_det(descent_metric(rational(best), exact_L, sketch))
        assert certificate.lower <= value <= certificate.upper
        if arithmetic is Pair:
            assert certificate.upper - certificate.lower <= 1e-8 * d
        # A poor stepsize and a poor Y: the bound is weaker, and no less true.
        poor = pattern.nearest(best * (1.0 + 0.3 * rng.random()))
        at = Descent(program, poor, arithmetic)
        noise = rng.standard_normal((d, d))
        Y = symmetric(np.linalg.inv(metric(best, L, sketch)))
        root = np.linalg.cholesky(Y)
        Y = symmetric(root @ (np.eye(d) + 0.2 * noise @ noise.T) @ root.T) * float(10.0 ** rng.uniform(-3, 3))
        bound = at.log_det_bound(Y)
        assert value <= bound
        if at.log_det > -np.inf:
            assert at.log_det <= log_det(descent_metric(rational(poor), exact_L, sketch))
        found = Multiplier.near(sketch.map, Y, arithmetic)
        assert found is not None
        used = found.Z.rounded().value  # this Y ≻ 0 itself, so not rounded
        Z = rational(used)
        reached = best_of_quadratic(used, L, sketch, pattern)
        energy = inner(Z, descent_metric(rational(reached), exact_L, sketch))
        if energy > 0:
            # The bound of this Z is at least what is reached, and not much more where it is the exact maximum.
            weakest = d * log(energy / d) - log_det(Z)
            assert weakest <= bound
            if _is_exact(pattern):
                assert bound <= float(weakest) + (_SLACK if arithmetic is Pair else 1e-3) * d


@given(problems(4, 1e5), seeds)
@settings(max_examples=25)
def test_both_ends_of_t_hold_in_rational_arithmetic(problem: tuple[Matrix, Sketch], seed: int) -> None:
    rng = np.random.default_rng(seed)
    L, sketch = problem
    d = len(L)
    exact_L = rational(L)
    for pattern in patterns(rng, L):
        for M in (0.25, L):
            exact_M = rational(0.25 * np.eye(d)) if isinstance(M, float) else exact_L
            floor = 4.0 * np.eye(d) if isinstance(M, float) else symmetric(np.linalg.inv(L))
            program = Program.descent(L, sketch.map, pattern, floor=floor)
            outcome = NATIVE.solve(program, Settings(tol=1e-6))
            assert outcome.X is not None
            X, Y = pattern.nearest(outcome.X), outcome.duals[-1][0]
            certificate = Descent(program, X).floor_bounds(Y, M)
            assert 0.0 < certificate.lower <= certificate.upper <= certificate.lower * (1.0 + 2e-6)
            H = descent_metric(rational(X), exact_L, sketch)
            raised = product(product(exact_M, H), exact_M)
            assert is_positive_semidefinite(combine((1, raised), (-Fraction(certificate.lower), exact_M)))
            # Any Y ⪰ 0 bounds t by ⟨Y, H⟩/⟨Y, M⁻¹⟩ at the D that makes it largest.
            noise = rng.standard_normal((d, d))
            poor = symmetric(Y + 0.1 * np.trace(Y) / d * (np.eye(d) + noise @ noise.T))
            bound = Descent(program, X).floor_bound(poor, M)
            found = Multiplier.near(sketch.map, poor, Pair)
            assert found is not None
            used = found.Z.rounded().value  # this Y ≻ 0 itself, so not rounded
            Z = rational(used)
            reached = best_of_quadratic(used, L, sketch, pattern)
            energy = inner(Z, descent_metric(rational(reached), exact_L, sketch))
            weakest = energy / inner(Z, inverse(exact_M))
            assert weakest <= Fraction(bound)
            assert certificate.lower <= bound
            assert not _is_exact(pattern) or bound <= float(weakest) * (1.0 + _SLACK)


def test_a_matrix_that_may_be_rounded_is_proved_for_all_it_may_be() -> None:
    rng = np.random.default_rng(0)
    sketch = RandK(4, 2)
    L = random_smoothness(rng, 4, 100.0)
    slack = 1e-6 * np.ones(4)
    program = Program.descent(L, sketch.map, B_slack=slack)
    outcome = NATIVE.solve(program, Settings(tol=1e-9))
    assert outcome.X is not None
    certificate = Descent(program, outcome.X).bounds(None)
    for sign in (-1, 1):
        moved = combine((1, rational(L)), (sign, rational(np.diag(slack))))
        best = NATIVE.solve(Program.descent(L + sign * np.diag(slack), sketch.map), Settings(tol=1e-9)).X
        assert best is not None
        assert certificate.lower <= log_det(descent_metric(rational(outcome.X), moved, sketch))
        assert log_det(descent_metric(rational(best), moved, sketch)) <= certificate.upper


def test_what_is_not_proved_is_not_said() -> None:
    L, sketch = random_smoothness(np.random.default_rng(1), 3, 10.0), RandK(3, 1)
    program = Program.descent(L, sketch.map)
    far = Descent(program, 10.0 * np.linalg.inv(L)).bounds(None)
    assert (far.lower, far.upper) == (-np.inf, np.inf)
    at = Descent(program, symmetric(0.1 * np.linalg.inv(L)))
    assert at.log_det_bound(np.full((3, 3), np.nan)) == np.inf
    assert at.log_det_bound(-np.eye(3)) == np.inf
    assert at.floor_bound(np.zeros((3, 3)), 1.0) == np.inf
    t = at.largest(1.0)
    assert t > 0.0
    assert not at.exceeds(t * (1.0 + 1e-9), 1.0)
    assert not at.exceeds(at.largest(L) * (1.0 + 1e-9), L)
    assert Descent(Program.descent(L, sketch.map, Pattern((1, 2))), at.at.D).log_det == -np.inf  # not the pattern
    with pytest.raises(ValueError, match=r"Program\.descent"):
        Descent(Program.single(L, sketch.map), np.eye(3))
    with pytest.raises(ArithmeticError, match="contradict"):
        DescentBounds(1.0, 0.0)


# ---------------------------------------------------------------- theory


def optimum(L: Matrix, sketch: Sketch, pattern: Pattern | None = None) -> DescentBounds:
    """The certified interval of log det H*."""
    program = Program.descent(L, sketch.map, pattern)
    outcome = NATIVE.solve(program, Settings(tol=1e-7))
    assert outcome.X is not None
    assert outcome.status is Status.OPTIMAL
    return Descent(program, program.pattern.nearest(outcome.X)).bounds(outcome.duals[-1][0], 1e-7)


def best_t(L: Matrix, sketch: Sketch, M: Matrix) -> DescentBounds:
    program = Program.descent(L, sketch.map, floor=symmetric(np.linalg.inv(M)))
    outcome = NATIVE.solve(program, Settings(tol=1e-6))
    assert outcome.X is not None
    return Descent(program, symmetric(outcome.X)).floor_bounds(outcome.duals[-1][0], M)


def under_condition(L: Matrix, sketch: Sketch) -> Matrix:
    """A D inside condition (3) next to its optimum."""
    X = NATIVE.solve(Program.single(L, sketch.map), Settings()).X
    assert X is not None
    return symmetric(X) * (1.0 - 1e-9)


@given(problems(), seeds, st.floats(0.0, 1.0))
def test_the_metric_is_matrix_concave(problem: tuple[Matrix, Sketch], seed: int, share: float) -> None:
    L, sketch = problem
    rng = np.random.default_rng(seed)
    A, B = (symmetric(rng.standard_normal(L.shape)) for _ in range(2))
    middle = metric(share * A + (1.0 - share) * B, L, sketch)
    chord = share * metric(A, L, sketch) + (1.0 - share) * metric(B, L, sketch)
    assert np.linalg.eigvalsh(middle - chord)[0] >= -1e-10 * (1.0 + np.abs(chord).max())


@settings(max_examples=40)
@given(problems(max_d=5))
def test_the_metric_is_above_D_under_the_condition_and_its_optimum_above_the_other(
    problem: tuple[Matrix, Sketch],
) -> None:
    L, sketch = problem
    d, D = len(L), under_condition(L, sketch)
    H = metric(D, L, sketch)
    assert np.linalg.eigvalsh(H - D)[0] >= -1e-8 * np.linalg.eigvalsh(D)[-1]
    free = optimum(L, sketch)
    condition = np.linalg.slogdet(D)[1]
    assert free.upper >= np.linalg.slogdet(H)[1] - 1e-9
    assert free.upper >= condition
    for W in (np.eye(d), np.diag(1.0 / np.diagonal(L)), symmetric(np.linalg.inv(L))):
        root = np.linalg.cholesky(W)
        inside = np.linalg.solve(root, np.linalg.solve(root, sketch.map.apply(W @ L @ W)).T)
        gamma = 1.0 / np.linalg.eigvalsh(symmetric(inside))[-1]
        assert condition >= d * np.log(gamma) + np.linalg.slogdet(W)[1] - 1e-5 * d
        assert optimum(L, sketch, Pattern((d,), W)).lower <= free.upper


@settings(max_examples=30)
@given(problems(max_d=5))
def test_no_sketch_beats_the_uncompressed_step(problem: tuple[Matrix, Sketch]) -> None:
    L, sketch = problem
    assert optimum(L, sketch).lower <= -np.linalg.slogdet(L)[1] + 1e-8
    assert best_t(L, sketch, L).lower <= 1.0


@pytest.mark.parametrize("sketch", [RandK(4, 4), Identity(4)])
def test_everything_sent_gives_the_inverse_and_contracts_at_once(sketch: Sketch) -> None:
    L = random_smoothness(np.random.default_rng(2), 4, 1e3)
    found = optimum(L, sketch)
    assert found.lower == pytest.approx(-np.linalg.slogdet(L)[1], abs=1e-9)
    t = best_t(L, sketch, L)
    assert t.lower <= 1.0 + 1e-12
    assert t.lower == pytest.approx(1.0, abs=1e-6)
    assert t.upper == pytest.approx(1.0, abs=1e-6)


@settings(max_examples=30)
@given(seeds, st.integers(2, 6))
def test_invariant_under_scaling_and_permutation_and_monotone_in_k(seed: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    L = random_smoothness(rng, d, 1e3)
    k = int(rng.integers(1, d))
    base = optimum(L, RandK(d, k))
    scale, order = np.exp(rng.uniform(-2.0, 2.0, d)), rng.permutation(d)
    scaled = optimum(L * np.multiply.outer(scale, scale), RandK(d, k))
    shift = 2.0 * float(np.log(scale).sum())
    assert scaled.lower + shift == pytest.approx(base.lower, abs=3e-7 * d)
    permuted = optimum(L[np.ix_(order, order)], RandK(d, k))
    assert permuted.lower == pytest.approx(base.lower, abs=3e-7 * d)
    assert optimum(L, RandK(d, k + 1)).upper >= base.lower
    assert best_t(L, RandK(d, k + 1), L).upper >= best_t(L, RandK(d, k), L).lower
