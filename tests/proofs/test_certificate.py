"""The certificate is never wrong: exact rational checks, bad multipliers, points on either side of the boundary."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.reference_problems import random_smoothness
from stepsize_opt import BlockDiagonal, Direction, Gaussian, Identity, RandK, Sketch, certify, optimal_stepsize
from stepsize_opt.proofs import (
    UNIT,
    Approximate,
    Enclosed,
    Evaluation,
    InBasis,
    Pair,
    exp_down,
    exp_up,
    losses,
    repair,
    repair_in_basis,
)
from stepsize_opt.proofs.basis import Basis, log_det_bounds, proved_definite
from stepsize_opt.proofs.certificate import Certificate
from stepsize_opt.proofs.duals import Multiplier, log_det_conjugate, semidefinite
from stepsize_opt.proofs.maps import adjoint_below, image_above
from stepsize_solvers.programs import DiagonalPlusScaled, Family, Matrix, Pattern, Program
from stepsize_validation.data import with_spectrum
from stepsize_validation.properties.exact import (
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
from stepsize_validation.properties.strategies import SKETCHES, problems, seeds

# The three proofs that D satisfies 𝒬(DLD) ⪯ D.
PROOFS: dict[str, Callable[[Program, Matrix], Any]] = {
    "plain": partial(Evaluation, arithmetic=Enclosed),
    "pair": partial(Evaluation, arithmetic=Pair),
    "in the basis of D": InBasis,
}
every_proof = pytest.mark.parametrize("proof", PROOFS.values(), ids=PROOFS.keys())


def exact_middle(A: Approximate) -> tuple[Rational, Matrix]:
    """The middle of an enclosure as rationals, and its error."""
    if isinstance(A, Pair):
        zero = np.zeros_like(A.hi)
        middle = combine((1, rational(A.hi)), (1, rational(zero if A.lo is None else A.lo)))
        return middle, zero if A.error is None else A.error
    assert isinstance(A, Enclosed)
    return rational(A.value), np.zeros_like(A.value) if A.error is None else A.error


@pytest.mark.parametrize("kind", SKETCHES)
@pytest.mark.parametrize("arithmetic", [Enclosed, Pair])
@given(st.data(), st.lists(st.integers(-9, 9), min_size=4, max_size=4))
@settings(max_examples=10)
def test_moved_coefficients_give_a_map_on_either_side(
    kind: str, arithmetic: type[Approximate], data: st.DataObject, vector: list[int]
) -> None:
    """𝒬̄(vvᵀ) ⪰ 𝒬(vvᵀ) ⪰ 𝒬̲(vvᵀ) in exact arithmetic, apart by rounding errors only."""
    sketch = data.draw(SKETCHES[kind](4))
    M = np.outer(vector, vector).astype(float)
    exact = second_moment(sketch, rational(M))
    size = max(1.0, max(float(abs(x)) for row in exact for x in row))
    for sign, moved in ((1, image_above), (-1, adjoint_below)):
        middle, error = exact_middle(moved(sketch.map, arithmetic.exact(M)))
        slack = combine((sign, middle), (-sign, exact), (1, rational(np.diag(2.0 * error.sum(axis=1)))))
        # A finite law has no smaller or larger map: its image is the second moment itself, up to the enclosure.
        assert is_positive_semidefinite(slack)
        assert max(float(abs(x)) for row in slack for x in row) <= 1e-13 * size


# ---------------------------------------------------------------- feasible stepsizes


@every_proof
@given(problems(4, 1e8), seeds, st.floats(-15.0, -1.0))
@settings(max_examples=60)
def test_feasible_is_never_claimed_wrongly(
    proof: Callable[[Program, Matrix], Any], problem: tuple[Matrix, Sketch], seed: int, exponent: float
) -> None:
    """From the boundary outwards by 10⁻¹⁵ … 10⁻¹ and inwards, as a multiple or in one direction: no false proof."""
    rng, (L, sketch) = np.random.default_rng(seed), problem
    program, G = Program.single(L, sketch.map), rng.standard_normal(L.shape)
    start = G @ G.T + 0.1 * np.eye(len(L)) if seed % 2 else np.linalg.inv(L + 1e-3 * np.diag(L.diagonal()))
    inside = repair_in_basis(program, start)
    assume(inside is not None)
    assert inside is not None
    away, v = 10.0**exponent, np.linalg.cholesky(inside.D) @ rng.standard_normal(len(L))
    for D in (inside.D * (1.0 + away), inside.D * (1.0 - away), inside.D + away * np.outer(v, v)):
        D = 0.5 * (D + D.T)
        assert not proof(program, D).feasible or satisfies_condition(D, L, sketch, "det-CGD1")
    assert not proof(program, inside.D * (1.0 + 1e-3)).feasible
    assert exponent <= -9.0 or not proof(program, inside.D * (1.0 + away)).feasible


@given(problems(5, 1e10), seeds)
@settings(max_examples=100)
def test_a_repair_in_the_basis_holds_in_exact_arithmetic(problem: tuple[Matrix, Sketch], seed: int) -> None:
    """A random D repaired in its basis: feasible, log det right, and no further inside than with Cholesky."""
    rng, (L, sketch) = np.random.default_rng(seed), problem
    d, program = len(L), Program.single(L, sketch.map)
    D = np.linalg.inv(L + 10.0 ** rng.uniform(-10.0, 0.0) * np.diag(L.diagonal()))
    S = with_spectrum(rng, rng.uniform(0.5, 2.0, d))
    D = S @ D @ S if seed % 2 else D
    D = 0.5 * (D + D.T) + 1e-9 * np.trace(D) * np.eye(d)
    at = repair_in_basis(program, D)
    assert at is not None and at.log_det is not None
    assert at.feasible and satisfies_condition(at.D, L, sketch, "det-CGD1")
    exact = log_det(rational(at.D))
    assert Decimal(at.log_det) <= exact <= Decimal(at.log_det) + Decimal("1e-13") * (d + abs(exact))
    other = repair(program, D)
    # No further from the boundary than a proof by Cholesky, but for the rounding of log det.
    assert other is None or other.log_det is None or at.log_det >= other.log_det - 1e-14 * d


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1.0, 7.0, 1e4])
def test_repair_lands_on_the_boundary_from_any_scale(scale: float) -> None:
    L = random_smoothness(8, 1e3, 0)
    D = repair(Program.single(L, RandK(8, 3).map), scale * np.linalg.inv(L + np.eye(8)))
    assert D is not None and D.feasible
    assert 0.0 <= D.margin < 1e-11


@pytest.mark.parametrize(("condition", "plain"), [(1e1, True), (1e2, True), (1e4, None), (1e8, None), (1e11, False)])
def test_repair_spends_no_more_than_its_loss(condition: float, plain: bool | None) -> None:
    """Plain arithmetic finds the boundary within ``loss`` or as closely as verified arithmetic, which is used else."""
    L = random_smoothness(8, condition, 0)
    program, D = Program.single(L, RandK(8, 3).map), np.linalg.inv(L + 1e-3 * np.diag(np.diagonal(L)))
    exact, quick = repair(program, D), repair(program, D, 1e-9)
    assert exact is not None and quick is not None and exact.log_det is not None and quick.log_det is not None
    assert exact.feasible and quick.feasible
    # The proof itself costs a distance, the estimate of that distance is right up to a small factor.
    assert (exact.log_det - quick.log_det) / 8 <= 1e-9 + 8.0 * max(exact.margin, 1e-13)
    assert plain is None or (quick.arithmetic is Enclosed) == plain


@pytest.mark.parametrize("bad", [-np.eye(3), np.full((3, 3), np.nan), np.diag([1.0, 1.0, 0.0])])
def test_what_is_no_stepsize_proves_nothing(bad: Matrix) -> None:
    program = Program.single(np.eye(3), RandK(3, 1).map)
    assert repair(program, bad) is None and repair_in_basis(program, bad) is None
    at = InBasis(program, bad)
    assert not at.feasible and at.log_det is None and at.margin == -math.inf
    assert at.upper_bound(np.eye(3)) == math.inf
    assert Basis.of(Pair.exact(bad)) is None


@every_proof
def test_a_stepsize_outside_the_pattern_is_not_feasible(proof: Callable[[Program, Matrix], Any]) -> None:
    D, W = 0.2 * np.eye(3) + 0.01, np.diag([1.0, 2.0, 3.0])
    full, diagonal, direction = (
        Program.single(np.eye(3), DiagonalPlusScaled.identity(3), pattern)
        for pattern in (Pattern.full(3), Pattern((1, 1, 1)), Pattern((3,), W))
    )
    assert proof(full, D).feasible and not proof(diagonal, D).feasible
    assert proof(direction, 0.3 * W).feasible and not proof(direction, 0.1 * np.eye(3)).feasible
    other = Program((Family(DiagonalPlusScaled.identity(3), np.eye(3), c=1.0),), Pattern.full(3))
    with pytest.raises(ValueError, match="the one condition"):
        proof(other, D)


# ---------------------------------------------------------------- upper bounds


def exact_bound(L: Matrix, D: Matrix, Z: Rational, R: Rational) -> Decimal:
    """s − log det Q − d at the best factor of Z and R ⪯ 𝒬*(Z), in rational arithmetic."""
    d, L_, D_ = len(D), rational(L), rational(D)
    half = product(product(R, D_), L_)
    Q = combine((1, half), (1, transpose(half)), (-1, Z))
    s = inner(R, product(product(D_, L_), D_))
    return d * (log(s) - log(Fraction(d))) - log_det(Q)


@every_proof
@given(problems(4, 1e8), seeds, st.floats(-8.0, 0.0))
@settings(max_examples=60)
def test_the_bound_is_never_below_its_exact_value(
    proof: Callable[[Program, Matrix], Any], problem: tuple[Matrix, Sketch], seed: int, noise: float
) -> None:
    rng, (L, sketch) = np.random.default_rng(seed), problem
    result = optimal_stepsize(L, sketch)
    at = proof(Program.single(L, sketch.map), result.D)
    N = rng.standard_normal(L.shape) * 10.0**noise
    Z = result.dual + np.linalg.norm(result.dual) * (N @ N.T + 1e-6 * (seed % 2) * np.eye(len(L)))
    used = Multiplier.near(sketch.map, Z, at.arithmetic)
    assert used is not None
    bound = at.upper_bound(Z)
    assert bound >= result.log_det
    if math.isfinite(bound):  # it holds for all that is enclosed: Z may be raised, and 𝒬* lowered
        (middle, _), (image, _) = exact_middle(used.Z), exact_middle(used.R)
        assert Decimal(bound) >= exact_bound(L, result.D, middle, image)
    # A poor multiplier, or none, gives a weak bound or none, at any D.
    reference = rng.standard_normal(L.shape)
    other = proof(Program.single(L, sketch.map), reference @ reference.T + 1e-3 * np.eye(len(L)))
    thin = np.outer(reference[0], reference[0])
    for poor in (reference @ reference.T, thin, np.eye(len(L)), -np.eye(len(L)), np.full(L.shape, np.nan)):
        assert min(at.upper_bound(poor), other.upper_bound(poor)) >= result.log_det


@given(st.integers(1, 12), st.floats(0.0, 12.0), seeds)
def test_conjugate_of_a_diagonal_pattern(d: int, spread: float, seed: int) -> None:
    """−Σ log Q_jj, from above and tight to rounding; none where a Q_jj is not proved positive."""
    rng = np.random.default_rng(seed)
    Q = random_smoothness(d, 10.0, seed) * np.outer(*[10.0 ** rng.uniform(-spread, spread, d)] * 2)
    Q = 0.5 * (Q + Q.T)
    exact = -sum(log(Fraction(float(x))) for x in Q.diagonal())
    for arithmetic in (Enclosed, Pair):
        bound = log_det_conjugate(Pattern((1,) * d), arithmetic.exact(Q), lambda block, s: None)
        assert bound is not None
        assert exact <= Decimal(bound) <= exact + Decimal("1e-13") * (d + abs(exact))
    Q[0, 0] = 0.0
    assert log_det_conjugate(Pattern((1,) * d), Enclosed.exact(Q), lambda block, s: None) is None


@given(seeds, st.sampled_from([(4,), (1, 3), (2, 2), (1, 1, 2)]))
@settings(max_examples=20)
def test_conjugate_of_multiples_of_blocks(seed: int, sizes: tuple[int, ...]) -> None:
    """log det W + Σ dᵢ log(dᵢ/⟨Qᵢᵢ, Wᵢ⟩), from above and tight to rounding."""
    Q, plain = random_smoothness(4, 10.0, seed), Pattern(sizes)
    pattern = Pattern(sizes, plain.blocks(random_smoothness(4, 10.0, seed + 1)))
    assert pattern.W is not None
    exact = log_det(rational(pattern.W))
    for s in pattern.slices:
        Q_i, W_i = rational(Q[s, s]), rational(pattern.W[s, s])
        exact += len(W_i) * log(len(W_i) / inner(Q_i, W_i))
    for arithmetic in (Enclosed, Pair):
        bound = log_det_conjugate(pattern, arithmetic.exact(Q))
        assert bound is not None and exact <= Decimal(bound) <= exact + Decimal("1e-12")


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_a_multiplier_of_low_rank_is_semidefinite_by_construction(rank: int) -> None:
    A = np.random.default_rng(rank).standard_normal((5, rank))
    Z = A @ A.T
    found = semidefinite(0.5 * (Z + Z.T))
    assert found is not None
    middle, error = exact_middle(found)
    np.testing.assert_allclose(found.rounded().value, Z, atol=1e-13)
    assert is_positive_definite(combine((1, middle), (1, rational(np.diag(error.sum(axis=1) + 1e-29)))))
    assert semidefinite(-np.eye(3)) is None and semidefinite(np.full((2, 2), np.nan)) is None


def test_a_bound_that_plain_arithmetic_leaves_too_weak_is_taken_again() -> None:
    L = random_smoothness(6, 1e7, 1)
    program, result = Program.single(L, RandK(6, 3).map), optimal_stepsize(L, RandK(6, 3))
    D = (1.0 - 1e-6) * result.D  # so that plain arithmetic proves it feasible
    plain = Evaluation(program, D, Enclosed)
    weak, strong = plain.upper_bound(result.dual), Evaluation(program, D).upper_bound(result.dual)
    assert strong < weak
    assert plain.certificate(result.dual, tol=0.0).upper_bound == strong
    assert plain.certificate(result.dual, tol=1e-5).upper_bound == weak


def test_the_search_for_a_proof_ends_at_the_last_loss_and_leaves_zero() -> None:
    assert list(losses(1.0, 8.0, 2.0)) == [1.0, 2.0, 4.0, 8.0]
    assert list(losses(0.0, 4.0 * UNIT, 2.0)) == [0.0, UNIT, 2.0 * UNIT, 4.0 * UNIT]
    assert list(losses(math.nan, 1.0)) == []


def test_gap_of_certificates() -> None:
    assert Certificate(True, 0.0, 1.0, 3.0, 4).gap == 0.5
    assert Certificate(False, -1.0, 1.0, 3.0, 4).gap == math.inf
    assert Certificate(True, 0.0, 1.0, math.inf, 4).gap == math.inf
    assert not Certificate(False, -1.0, 1.0, 1.0, 4).is_optimal(1.0)
    both = Certificate.combine([Certificate(True, 0.1, 1.0, 2.0, 2), Certificate(True, 0.0, 3.0, 3.5, 1)])
    assert (both.feasible, both.margin, both.d) == (True, 0.0, 3)
    assert (both.log_det, both.upper_bound) == (math.nextafter(4.0, 0.0), math.nextafter(5.5, 6.0))


@given(st.floats(-760.0, 690.0), st.integers(1, 10**6))
def test_rates_are_rounded_to_the_side_that_is_proved(mean: float, d: int) -> None:
    """log det/d is a rounded quotient, and exp makes of its rounding a relative error of |log det/d| roundings."""
    context, total = Context(prec=40), mean * d
    exact = context.exp(context.divide(Decimal(total), Decimal(d)))
    assert Decimal(exp_down(total / d)) <= exact <= Decimal(exp_up(total / d))
    assert exp_up(total / d) <= exp_down(total / d) * (1.0 + 1e-12) + 1e-322
    assert exp_down(-math.inf) == exp_down(-800.0) == 0.0 < exp_up(-800.0) < 1e-322
    assert math.isfinite(exp_down(math.inf)) and exp_up(math.inf) == math.inf


# ---------------------------------------------------------------- log det and definiteness in a basis


@given(seeds, st.floats(0.0, 13.0))
@settings(max_examples=60)
def test_log_det_of_an_ill_conditioned_matrix(seed: int, decades: float) -> None:
    """The factor of such a matrix has few right digits; a second one in its basis has all, up to condition 10¹¹."""
    A = random_smoothness(6, 10.0**decades, seed)
    bounds = log_det_bounds(Pair.exact(A))
    assert bounds is not None or decades > 10.0
    if bounds is not None:
        assert Decimal(bounds.low) <= log_det(rational(A)) <= Decimal(bounds.high)
        assert decades > 11.0 or bounds.high - bounds.low < 1e-13 * (1.0 + abs(bounds.high))


@given(seeds, st.sampled_from([1e-8, 1e-4, 0.01, 0.1, 0.2]))
@settings(max_examples=50)
def test_log_det_from_a_coarse_basis(seed: int, size: float) -> None:
    """G = I for A = I + E: the terms of second and third order count, from below and from above."""
    rng, zero = np.random.default_rng(seed), np.zeros((4, 4))
    A = np.eye(4) + with_spectrum(rng, [size, -size, 0.3 * size, -0.9 * size])
    bounds = Basis(np.eye(4), Enclosed(A, zero)).log_det
    assert bounds is not None
    assert Decimal(bounds.low) <= log_det(rational(A)) <= Decimal(bounds.high)
    assert bounds.high - bounds.low <= 4.0 * size * size + 1e-13
    far = np.eye(4) + with_spectrum(rng, [0.6, 0.0, 0.0, 0.0])
    assert Basis(np.eye(4), Enclosed(far, zero)).log_det is None


@given(seeds, st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-17.0, -10.0))
@settings(max_examples=60)
def test_definiteness_is_never_claimed_wrongly(seed: int, sign: float, exponent: float) -> None:
    least = sign * 10.0**exponent
    A = with_spectrum(np.random.default_rng(seed), [least, 0.3, 0.5, 1.0, 1.0])
    assert not proved_definite(Enclosed.exact(A)) or is_positive_definite(rational(A))
    assert proved_definite(Enclosed(A + 1e-13 * np.eye(5), np.zeros_like(A))) or least < 1e-14
    assert not proved_definite(Enclosed(A, np.full_like(A, 0.1)))


# ---------------------------------------------------------------- certificates of answers


@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", "direction"])
@pytest.mark.parametrize("sketch", [RandK(40, 10), Gaussian(40, 20)], ids=str)
def test_the_last_digits_are_certified_where_cholesky_loses_them(structure: str, sketch: Sketch) -> None:
    L = random_smoothness(40, 1e8, 3)
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
    program = Program.single(L, RandK(d, d // 4).map)
    at = InBasis(program, result.D)
    assert at.feasible and at.margin <= 1e-12 and not Evaluation(program, result.D).feasible


L6, SKETCH = random_smoothness(6, 1e2, 3), RandK(6, 2)


@pytest.mark.parametrize(
    "structure",
    ["full", "diagonal", "scalar", BlockDiagonal((4, 2)), Direction(L6), Direction(1e-30 * np.linalg.inv(L6))],
    ids=str,
)
@pytest.mark.parametrize("solved", [True, False])
def test_the_bound_is_one_over_a_set_that_contains_the_stepsize(structure: Any, solved: bool) -> None:
    result = optimal_stepsize(L6, SKETCH, structure=structure)
    known: dict[str, Any] = {"optimum": result} if solved else {"dual": result.dual}
    check = certify(result.D, L6, SKETCH, structure=structure, **known)
    assert check.feasible and check.gap <= 2e-6
    assert Decimal(check.certificate.upper_bound) >= log_det(rational(result.D))


@pytest.mark.parametrize("seed", range(20))
def test_rounded_multiples_of_a_direction_stay_below_their_bound(seed: int) -> None:
    """γW is rounded entry by entry: log det may exceed that of the exact best multiple, never the bound."""
    structure = Direction(random_smoothness(6, 1e10, 4))
    result = optimal_stepsize(random_smoothness(6, 10.0, seed), Identity(6), structure=structure)
    assert Decimal(result.certificate.upper_bound) >= log_det(rational(result.D))
