"""The descent metric H(D) = 2D − 𝒬(DBD): both ends of what is proved hold in rational arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stepsize_opt import RandK, Sketch
from stepsize_opt.proofs import Descent, inverses
from stepsize_opt.proofs.arithmetic import Enclosed, Pair
from stepsize_opt.proofs.duals import Multiplier
from stepsize_opt.proofs.inverses import exceeds_inverse, largest_floor
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Pattern, Program, Settings
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import (
    Rational,
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
from stepsize_validation.properties.strategies import problems, seeds

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
    if pattern.W is None:
        units = np.eye(d * d).reshape(-1, d, d)
        basis = [E for E in pattern.blocks(units + units.swapaxes(1, 2)) if E.any()]
    else:
        basis = [np.where(pattern.labels[:, None] == i, pattern.W, 0.0) for i in range(len(pattern.sizes))]
    A = np.array([[np.vdot(R, E @ L @ F + F @ L @ E) for F in basis] for E in basis])
    x = np.linalg.lstsq(A, np.array([2.0 * np.vdot(Y, E) for E in basis]), rcond=None)[0]
    return symmetric(np.tensordot(x, np.array(basis), 1))


# C of the proof has CᵀBC and CᵀRC within 2⁻²⁰ of what they should be, which enters twice.
_SLACK = 4.0 * 2.0**-20


def reached_energy(
    Y: Matrix, L: Matrix, sketch: Sketch, pattern: Pattern, arithmetic: type[Pair | Enclosed]
) -> tuple[Rational, Fraction]:
    """The multiplier that the proof makes of Y ≻ 0, and ⟨Y, H(D)⟩ at the D of the pattern that makes it largest."""
    found = Multiplier.near(sketch.map, Y, arithmetic)
    assert found is not None
    used = found.Z.rounded().value  # Y itself, so not rounded
    reached = rational(best_of_quadratic(used, L, sketch, pattern))
    return rational(used), inner(rational(used), descent_metric(reached, rational(L), sketch))


def _is_exact(pattern: Pattern) -> bool:
    """Whether a poor Y gets the maximum over the pattern itself; free blocks get it with a Y near the best one."""
    return pattern.is_full or pattern.W is not None


@pytest.mark.parametrize("arithmetic", [Pair, Enclosed])
@given(problems(5, 1e6), seeds)
@settings(max_examples=40)
def test_both_ends_of_log_det_hold_in_rational_arithmetic(
    arithmetic: type[Pair | Enclosed], problem: tuple[Matrix, Sketch], seed: int
) -> None:
    rng, (L, sketch) = np.random.default_rng(seed), problem
    d, exact_L = len(L), rational(L)
    for pattern in patterns(rng, L):
        program, single = Program.descent(L, sketch.map, pattern), Program.single(L, sketch.map, pattern)
        outcome = NATIVE.solve(program, Settings(tol=1e-9))
        assert outcome.X is not None
        best = pattern.nearest(outcome.X)
        certificate = Descent(single, best, arithmetic).certificate(outcome.duals[-1][0])
        value = log_det(descent_metric(rational(best), exact_L, sketch))
        assert certificate.log_det <= value <= certificate.upper_bound
        if arithmetic is Pair:  # beyond a condition number of 1e5 the rounding of D itself counts
            assert certificate.upper_bound - certificate.log_det <= max(1e-8, 1e-13 * np.linalg.cond(L)) * d
        # A poor stepsize and a poor Y: the bound is weaker, and no less true.
        poor = pattern.nearest(best * (1.0 + 0.3 * rng.random()))
        at = Descent(single, poor, arithmetic)
        noise = rng.standard_normal((d, d))
        Y = symmetric(np.linalg.inv(metric(best, L, sketch)))
        root = np.linalg.cholesky(Y)
        Y = symmetric(root @ (np.eye(d) + 0.2 * noise @ noise.T) @ root.T) * float(10.0 ** rng.uniform(-3, 3))
        bound = at.log_det_bound(Y)
        assert value <= bound
        if at.lower > -np.inf:
            assert at.lower <= log_det(descent_metric(rational(poor), exact_L, sketch))
        Z, energy = reached_energy(Y, L, sketch, pattern, arithmetic)
        if energy > 0:
            # The bound of this Z is at least what is reached, and not much more where it is the exact maximum.
            weakest = d * log(energy / d) - log_det(Z)
            assert weakest <= bound
            if _is_exact(pattern):
                # Enclosed arithmetic loses digits to the condition of L.
                slack = _SLACK if arithmetic is Pair else max(_SLACK, 1e-8 * np.linalg.cond(L))
                assert bound <= float(weakest) + slack * d


@given(problems(4, 1e5), seeds)
@settings(max_examples=25)
def test_both_ends_of_t_hold_in_rational_arithmetic(problem: tuple[Matrix, Sketch], seed: int) -> None:
    rng, (L, sketch) = np.random.default_rng(seed), problem
    d, exact_L = len(L), rational(L)
    for pattern in patterns(rng, L):
        for M in (0.25, L):
            exact_M = rational(0.25 * np.eye(d)) if isinstance(M, float) else exact_L
            floor = 4.0 * np.eye(d) if isinstance(M, float) else symmetric(np.linalg.inv(L))
            program = Program.descent(L, sketch.map, pattern, floor=floor)
            outcome = NATIVE.solve(program, Settings(tol=1e-6))
            assert outcome.X is not None
            X, Y = pattern.nearest(outcome.X), outcome.duals[-1][0]
            at = Descent(Program.single(L, sketch.map, pattern), X)
            certificate, lower = at.floor_certificate(Y, M), at.largest(M)
            assert lower > 0.0 and certificate.log_rate <= log(Fraction(lower)) and certificate.gap <= 2e-6
            H = descent_metric(rational(X), exact_L, sketch)
            raised = product(product(exact_M, H), exact_M)
            assert is_positive_semidefinite(combine((1, raised), (-Fraction(lower), exact_M)))
            # Any Y ⪰ 0 bounds t by ⟨Y, H⟩/⟨Y, M⁻¹⟩ at the D that makes it largest.
            noise = rng.standard_normal((d, d))
            poor = symmetric(Y + 0.1 * np.trace(Y) / d * (np.eye(d) + noise @ noise.T))
            bound = at.floor_bound(poor, M)
            Z, energy = reached_energy(poor, L, sketch, pattern, Pair)
            weakest = energy / inner(Z, inverse(exact_M))
            assert weakest <= Fraction(bound)
            assert lower <= bound
            assert not _is_exact(pattern) or bound <= float(weakest) * (1.0 + _SLACK)


def test_a_matrix_that_may_be_rounded_is_proved_for_all_it_may_be() -> None:
    sketch, slack = RandK(4, 2), 1e-6 * np.ones(4)
    L = random_smoothness(np.random.default_rng(0), 4, 100.0)
    program = Program.descent(L, sketch.map, B_slack=slack)
    outcome = NATIVE.solve(program, Settings(tol=1e-9))
    assert outcome.X is not None
    certificate = Descent(Program.single(L, sketch.map, B_slack=slack), outcome.X).certificate(None)
    for sign in (-1, 1):
        moved = combine((1, rational(L)), (sign, rational(np.diag(slack))))
        best = NATIVE.solve(Program.descent(L + sign * np.diag(slack), sketch.map), Settings(tol=1e-9)).X
        assert best is not None
        assert certificate.log_det <= log_det(descent_metric(rational(outcome.X), moved, sketch))
        assert log_det(descent_metric(rational(best), moved, sketch)) <= certificate.upper_bound


def test_poor_stepsizes_and_multipliers_prove_nothing() -> None:
    L, sketch = random_smoothness(np.random.default_rng(1), 3, 10.0), RandK(3, 1)
    program = Program.single(L, sketch.map)
    far = Descent(program, 10.0 * np.linalg.inv(L)).certificate(None)
    assert (far.feasible, far.log_det, far.upper_bound) == (False, -np.inf, np.inf)
    at = Descent(program, symmetric(0.1 * np.linalg.inv(L)))
    assert at.log_det_bound(np.full((3, 3), np.nan)) == np.inf
    assert at.log_det_bound(-np.eye(3)) == np.inf
    assert at.floor_bound(np.zeros((3, 3)), 1.0) == np.inf
    t = at.largest(1.0)
    assert t > 0.0
    assert not exceeds_inverse(at.metric, t * (1.0 + 1e-9), 1.0)
    assert not exceeds_inverse(at.metric, at.largest(L) * (1.0 + 1e-9), L)
    assert Descent(Program.single(L, sketch.map, Pattern((1, 2))), at.D).lower == -np.inf  # not the pattern
    with pytest.raises(ValueError, match="one condition"):
        Descent(Program.descent(L, sketch.map), np.eye(3))


def _exceeds_inverse(H: Matrix, t: float, M: Matrix) -> bool:
    """H ⪰ tM⁻¹, which is MHM ⪰ tM."""
    floor = rational(M)
    return is_positive_semidefinite(combine((1, product(product(floor, rational(H)), floor)), (-Fraction(t), floor)))


@pytest.mark.parametrize("number", [True, False])
@given(seed=seeds)
@settings(max_examples=40)
def test_the_t_of_graded_matrices_is_found_and_proved(number: bool, seed: int) -> None:
    """In units that lie far apart the smallest eigenvalue of CᵀHC, M = CCᵀ, is lost to rounding, but t is not."""
    rng, d = np.random.default_rng(seed), 4
    even = [random_smoothness(rng, d, 10.0) for _ in range(2)]
    units = np.ldexp(1.0, rng.integers(-45, 45, d))
    H, M = even[0] / np.outer(units, units), even[1] * np.outer(units, units)
    t = largest_floor(Enclosed.exact(H), 3.0 if number else M)
    floor = 3.0 * np.eye(d) if number else M
    assert _exceeds_inverse(H, t, floor) and not _exceeds_inverse(H, t * (1.0 + 1e-6), floor)


def test_the_t_of_nearly_singular_matrices_is_lowered_until_it_is_proved() -> None:
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    H = symmetric((Q * np.geomspace(1e-13, 1.0, 4)) @ Q.T)
    M = symmetric((Q * [1.0, 2.0, 3.0, 4.0]) @ Q.T)
    t = largest_floor(Enclosed.exact(H), M)
    assert 1e-15 < t < 1e-13 and _exceeds_inverse(H, t, M)
    assert largest_floor(Enclosed.exact(-H), M) == 0.0 == largest_floor(Enclosed.exact(H), -M)


@given(t=st.floats(0.01, 100.0))
def test_the_root_in_the_proof_of_t_is_no_smaller_than_that_of_t(t: float) -> None:
    """[ M  rI ; rI  H ] ⪰ 0 proves H ⪰ r²M⁻¹: r² ≥ t is needed without rounding."""
    blocks = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inverses, "is_proved_definite", lambda A: blocks.append(A) or True)
        exceeds_inverse(Enclosed.exact(np.eye(1)), t, np.eye(1))
    (whole,) = blocks
    assert (Fraction(whole.value[0, 1]) - Fraction(whole.error[0, 1])) ** 2 >= Fraction(t)
