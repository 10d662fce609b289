"""Proofs in the basis of D against exact rational arithmetic: never wrong, and sharp where Cholesky is not."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.exact import (
    Rational,
    combine,
    inner,
    is_positive_definite,
    is_positive_semidefinite,
    log,
    log_det,
    product,
    rational,
    satisfies_condition,
    second_moment,
    transpose,
)
from shared.strategies import SKETCHES, problems, seeds
from stepsize_opt import Direction, Gaussian, RandK, certify, optimal_stepsize
from stepsize_opt.inputs import pattern_of
from stepsize_opt.proofs import Approximate, Enclosed, Evaluation, InBasis, Pair, Plain, repair, repair_in_basis
from stepsize_opt.proofs.basis import Basis, log_det_bounds, proved_definite
from stepsize_opt.proofs.certificate import semidefinite, upper_bound
from stepsize_opt.proofs.maps import adjoint_below, image_above
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import Matrix, Program
from stepsize_validation.data import random_smoothness, with_spectrum


def _exact(A: Approximate) -> tuple[Rational, Matrix]:
    """The middle of an enclosure as rationals, and its error."""
    if isinstance(A, Pair):
        zero = np.zeros_like(A.hi)
        middle = combine((1, rational(A.hi)), (1, rational(zero if A.lo is None else A.lo)))
        return middle, zero if A.error is None else A.error
    assert isinstance(A, Plain)
    return rational(A.value), np.zeros_like(A.value) if A.error is None else A.error


@pytest.mark.parametrize("kind", SKETCHES)
@pytest.mark.parametrize("arithmetic", [Plain, Pair])
@given(st.data(), st.lists(st.integers(-9, 9), min_size=4, max_size=4))
@settings(max_examples=10)
def test_moved_coefficients_give_a_map_on_either_side(
    kind: str, arithmetic: type[Approximate], data: st.DataObject, vector: list[int]
) -> None:
    """𝒬̄(vvᵀ) ⪰ 𝒬(vvᵀ) ⪰ 𝒬̲(vvᵀ) in exact arithmetic, apart by rounding errors only."""
    sketch = data.draw(SKETCHES[kind](4))
    v = np.array(vector, dtype=float)
    M = np.outer(v, v)
    exact = second_moment(sketch, rational(M))
    size = max(1.0, max(float(abs(x)) for row in exact for x in row))
    for sign, found in (
        (1, image_above(sketch.map, arithmetic.exact(M))),
        (-1, adjoint_below(sketch.map, arithmetic.exact(M))),
    ):
        middle, error = _exact(found)
        slack = combine((sign, middle), (-sign, exact), (1, rational(np.diag(2.0 * error.sum(axis=1)))))
        # A finite law has no smaller or larger map: its image is the second moment itself, up to the enclosure.
        assert is_positive_semidefinite(slack)
        assert max(float(abs(x)) for row in slack for x in row) <= 1e-13 * size


@given(problems(5, 1e10), seeds)
@settings(max_examples=100)
def test_a_proof_in_the_basis_holds_in_exact_arithmetic(problem: tuple[Matrix, Sketch], seed: int) -> None:
    """A random D repaired in its basis: feasible, log det right, and no further inside than with Cholesky."""
    rng = np.random.default_rng(seed)
    L, sketch = problem
    d = len(L)
    program = Program.single(L, sketch.map, pattern_of("full", d))
    D = np.linalg.inv(L + 10.0 ** rng.uniform(-10.0, 0.0) * np.diag(L.diagonal()))
    S = with_spectrum(rng, rng.uniform(0.5, 2.0, d))
    D = S @ D @ S if seed % 2 else D
    D = 0.5 * (D + D.T) + 1e-9 * np.trace(D) * np.eye(d)
    at = repair_in_basis(program, D)
    assert at is not None
    assert at.feasible and satisfies_condition(at.D, L, sketch, "det-CGD1")
    exact = log_det(rational(at.D))
    assert at.log_det is not None
    assert Decimal(at.log_det) <= exact <= Decimal(at.log_det) + Decimal("1e-13") * (d + abs(exact))
    other = repair(program, D)
    # No further from the boundary than a proof by Cholesky, but for the rounding of log det.
    assert other is None or other.log_det is None or at.log_det >= other.log_det - 1e-14 * d


@given(problems(4, 1e10), seeds, st.floats(-15.0, -1.0))
@settings(max_examples=100)
def test_a_perturbed_stepsize_is_certified_only_if_it_is_feasible(
    problem: tuple[Matrix, Sketch], seed: int, exponent: float
) -> None:
    """From the boundary outwards by 10⁻¹⁵ … 10⁻¹, as a multiple or in one direction: no false proof."""
    rng = np.random.default_rng(seed)
    L, sketch = problem
    d = len(L)
    program = Program.single(L, sketch.map, pattern_of("full", d))
    inside = repair_in_basis(program, np.asarray(np.linalg.inv(L + 1e-3 * np.diag(L.diagonal())), dtype=float))
    assume(inside is not None)
    assert inside is not None
    away = 10.0**exponent
    K = np.linalg.cholesky(inside.D)
    v = rng.standard_normal(d)
    for D in (inside.D * (1.0 + away), inside.D + away * K @ np.outer(v, v) @ K.T, inside.D * (1.0 - away)):
        D = 0.5 * (D + D.T)
        if InBasis(program, D).feasible:
            assert satisfies_condition(D, L, sketch, "det-CGD1")
    outside = inside.D * (1.0 + 1e-3)
    assert not InBasis(program, outside).feasible


def _exact_bound(problem_L: Matrix, sketch, D: Matrix, Z: Rational) -> Decimal:  # type: ignore[no-untyped-def]
    """s − log det Q − d at the best factor of Z, in rational arithmetic."""
    d = len(D)
    L_, D_ = rational(problem_L), rational(D)
    R = second_moment(sketch, Z)
    half = product(product(R, D_), L_)
    Q = combine((1, half), (1, transpose(half)), (-1, Z))
    s = inner(R, product(product(D_, L_), D_))
    return d * (log(s) - log(Fraction(d))) - log_det(Q)


@given(problems(4, 1e8), seeds)
@settings(max_examples=60)
def test_the_bound_is_never_below_its_exact_value(problem: tuple[Matrix, Sketch], seed: int) -> None:
    rng = np.random.default_rng(seed)
    L, sketch = problem
    result = optimal_stepsize(L, sketch)
    program = Program.single(L, sketch.map, pattern_of("full", len(L)))
    N = rng.standard_normal(L.shape) * 10.0 ** rng.uniform(-8.0, 0.0)
    Z = result.dual + np.linalg.norm(result.dual) * N @ N.T
    used = semidefinite(Z)
    assert used is not None
    bound = upper_bound(InBasis(program, result.D), Z)
    assert bound >= result.log_det
    middle, error = _exact(used)
    if math.isfinite(bound) and not error.any():  # Z as it stands, not raised
        exact = _exact_bound(L, sketch, result.D, middle)
        assert Decimal(bound) >= exact
    best = repair_in_basis(program, result.D)
    assert best is None or best.log_det is None or bound >= best.log_det


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_multiplier_of_low_rank_is_semidefinite_by_construction(rank: int) -> None:
    A = np.random.default_rng(rank).standard_normal((5, rank))
    Z = A @ A.T
    found = semidefinite(0.5 * (Z + Z.T))
    assert found is not None
    middle, error = _exact(found)
    np.testing.assert_allclose(found.rounded().value, Z, atol=1e-13)
    assert is_positive_definite(combine((1, middle), (1, rational(np.diag(error.sum(axis=1) + 1e-29)))))
    assert semidefinite(-np.eye(3)) is None and semidefinite(np.full((2, 2), np.nan)) is None


@pytest.mark.parametrize("seed", range(40))
def test_log_det_of_an_ill_conditioned_matrix(seed: int) -> None:
    """The factor of such a matrix has few right digits; a second one in its basis has all."""
    rng = np.random.default_rng(seed)
    A = random_smoothness(rng, 6, 10.0 ** (seed / 3.0))
    bounds = log_det_bounds(Pair.exact(A))
    if bounds is None:
        assert seed > 30
        return
    exact = log_det(rational(A))
    assert Decimal(bounds.below) <= exact <= Decimal(bounds.above)
    if seed <= 33:
        assert bounds.above - bounds.below < 1e-13 * (1.0 + abs(bounds.above))


@pytest.mark.parametrize("size", [1e-8, 1e-4, 0.01, 0.1, 0.2])
def test_log_det_from_a_coarse_basis(size: float) -> None:
    """G = I for A = I + E: the terms of second and third order count, from below and from above."""
    for seed in range(10):
        E = with_spectrum(np.random.default_rng(seed), [size, -size, 0.3 * size, -0.9 * size])
        A = np.eye(4) + E
        bounds = Basis(np.eye(4), Enclosed(A, np.zeros((4, 4)))).log_det
        assert bounds is not None
        assert Decimal(bounds.below) <= log_det(rational(A)) <= Decimal(bounds.above)
        assert bounds.above - bounds.below <= 4.0 * size * size + 1e-13
    far = np.eye(4) + with_spectrum(np.random.default_rng(0), [0.6, 0.0, 0.0, 0.0])
    assert Basis(np.eye(4), Enclosed(far, np.zeros((4, 4)))).log_det is None


@pytest.mark.parametrize("seed", range(40))
def test_definiteness_is_never_claimed_wrongly(seed: int) -> None:
    rng = np.random.default_rng(seed)
    least = float(rng.choice([-1.0, 0.0, 1.0]) * 10.0 ** rng.uniform(-17.0, -10.0))
    A = with_spectrum(rng, [least, 0.3, 0.5, 1.0, 1.0])
    if proved_definite(Enclosed(A, np.zeros_like(A))):
        assert is_positive_definite(rational(A))
    assert proved_definite(Enclosed(A + 1e-13 * np.eye(5), np.zeros_like(A))) or least < 1e-14
    assert not proved_definite(Enclosed(A, np.full_like(A, 0.1)))


@pytest.mark.parametrize("bad", [-np.eye(3), np.full((3, 3), np.nan), np.diag([1.0, 1.0, 0.0])])
def test_what_is_no_stepsize_proves_nothing(bad: Matrix) -> None:
    program = Program.single(np.eye(3), RandK(3, 1).map, pattern_of("full", 3))
    assert repair_in_basis(program, bad) is None
    at = InBasis(program, bad)
    assert not at.feasible and at.log_det is None and at.margin == -math.inf
    assert upper_bound(at, np.eye(3)) == math.inf
    assert Basis.of(Pair.exact(bad)) is None


def test_a_stepsize_outside_the_pattern_is_not_feasible() -> None:
    D = np.array([[0.2, 0.01], [0.01, 0.2]])
    assert InBasis(Program.single(np.eye(2), RandK(2, 1).map, pattern_of("full", 2)), D).feasible
    assert not InBasis(Program.single(np.eye(2), RandK(2, 1).map, pattern_of("diagonal", 2)), D).feasible


@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", "direction"])
@pytest.mark.parametrize("sketch", [RandK(40, 10), Gaussian(40, 20)], ids=str)
def test_the_last_digits_are_certified_where_cholesky_loses_them(structure: str, sketch) -> None:  # type: ignore[no-untyped-def]
    L = random_smoothness(np.random.default_rng(3), 40, 1e8)
    W = np.linalg.inv(L + 1e-3 * np.eye(40))
    form = Direction(0.5 * (W + W.T)) if structure == "direction" else structure
    result = optimal_stepsize(L, sketch, structure=form, tol=1e-10)
    assert result.status == "optimal" and result.gap <= 1e-10
    check = certify(result.D, L, sketch, structure=form, dual=result.dual)
    assert check.feasible and check.gap <= 2e-10
    assert not certify(result.D * (1.0 + 1e-8), L, sketch, structure=form, dual=result.dual).feasible


def test_theorem_b_is_certified_to_the_last_digits() -> None:
    """One large eigenvalue: the closed form is exact, and only the proof decides how much of it is left."""
    d = 150
    x = np.random.default_rng(0).standard_normal(d)
    L = np.outer(x, x) + 1e-3 * np.eye(d)
    result = optimal_stepsize(L, RandK(d, d // 4), tol=1e-10)
    assert result.status == "optimal" and result.gap <= 1e-11
    program = Program.single(L, RandK(d, d // 4).map, pattern_of("full", d))
    at = InBasis(program, result.D)
    assert at.feasible and not Evaluation(program, result.D).feasible
    assert at.margin <= 1e-12
