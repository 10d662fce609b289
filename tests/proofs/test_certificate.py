"""The certificate is never wrong: exact rational checks, bad multipliers, points on either side of the boundary."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.exact import (
    combine,
    inner,
    log,
    log_det,
    product,
    rational,
    satisfies_condition,
    second_moment,
    transpose,
)
from shared.reference_problems import random_smoothness
from shared.strategies import problems, seeds, sketches, smoothness_matrices
from stepsize_opt import BlockDiagonal, Direction, Gaussian, Identity, RandK, certify, optimal_stepsize
from stepsize_opt.proofs.arithmetic import Pair, Plain
from stepsize_opt.proofs.certificate import Certificate, certify_point, upper_bound
from stepsize_opt.proofs.conditions import exp_down, exp_up
from stepsize_opt.proofs.evaluation import Evaluation, log_det_conjugate
from stepsize_opt.proofs.repairs import repair
from stepsize_solvers.programs.maps import DiagonalPlusScaled
from stepsize_solvers.programs.patterns import Pattern
from stepsize_solvers.programs.program import Family, Program

EXACT_KINDS = ("Identity", "RandK", "BernQ", "IndependentSampling", "Gaussian")


@st.composite
def exact_problems(draw: st.DrawFn, max_condition: float = 1e8):
    L = draw(smoothness_matrices(max_d=5, max_condition=max_condition, rescaled=True))
    return L, draw(sketches(L.shape[0], *EXACT_KINDS))


@settings(max_examples=60, deadline=None)
@given(exact_problems(), st.sampled_from(["det-CGD1", "det-CGD2"]))
def test_returned_stepsize_is_feasible_in_exact_arithmetic(problem, algorithm: str) -> None:
    L, sketch = problem
    result = optimal_stepsize(L, sketch, algorithm=algorithm)
    assert result.certificate.feasible
    assert satisfies_condition(result.D, L, sketch, algorithm)
    assert Decimal(result.log_det) <= log_det(rational(result.D))


@settings(max_examples=60, deadline=None)
@given(exact_problems(1e4), seeds, st.floats(-14, -1), st.booleans())
def test_feasible_is_never_claimed_wrongly(problem, seed: int, exponent: float, outside: bool) -> None:
    """A random D moved to a relative distance 10^exponent on either side of the boundary."""
    L, sketch = problem
    rng = np.random.default_rng(seed)
    G = rng.standard_normal(L.shape)
    program = Program.single(L, sketch.map)
    inside = repair(program, G @ G.T + 0.1 * np.eye(len(L)))
    assert inside is not None
    D = inside.D * (1.0 + (1 if outside else -1) * 10.0**exponent)
    for arithmetic in (Plain, Pair):
        if Evaluation(program, D, arithmetic).feasible:
            assert satisfies_condition(D, L, sketch, "det-CGD1")
        if outside and exponent > -9:
            assert not Evaluation(program, D, arithmetic).feasible


@given(st.integers(1, 12), st.floats(0.0, 12.0), seeds)
def test_conjugate_of_a_diagonal_pattern(d: int, spread: float, seed: int) -> None:
    """−Σ log Q_jj, from above and tight to rounding; nothing is said where a Q_jj is not proved positive."""
    rng = np.random.default_rng(seed)
    Q = random_smoothness(d, 10.0, seed) * np.outer(*[10.0 ** rng.uniform(-spread, spread, d)] * 2)
    Q = 0.5 * (Q + Q.T)
    pattern = Pattern((1,) * d)
    exact = -sum(log(Fraction(float(x))) for x in Q.diagonal())
    for arithmetic in (Plain, Pair):
        bound = log_det_conjugate(pattern, arithmetic.exact(Q), lambda block, s: None)
        assert bound is not None
        assert exact <= Decimal(bound) <= exact + Decimal("1e-13") * (d + abs(exact))
    Q[0, 0] = 0.0
    assert log_det_conjugate(pattern, Plain.exact(Q), lambda block, s: None) is None


def _exact_bound(L, sketch, D, Z) -> Decimal:
    """s − log det Q − d with the best scale, in rational arithmetic, for condition (3)."""
    d = len(L)
    L_, D_, Z_ = rational(L), rational(D), rational(Z)
    R = second_moment(sketch, Z_)
    half = product(product(R, D_), L_)
    Q = combine((1, half), (1, transpose(half)), (-1, Z_))
    s = inner(R, product(product(D_, L_), D_))
    # min over t of t s − log det(tQ) − d, attained at t = d/s
    return d * (log(s) - log(Fraction(d))) - log_det(Q)


@settings(max_examples=60, deadline=None)
@given(exact_problems(1e6), seeds, st.floats(-8, 0))
def test_upper_bound_is_never_below_its_exact_value(problem, seed: int, noise: float) -> None:
    L, sketch = problem
    assume(not isinstance(sketch, Gaussian) or sketch.d > 1)
    result = optimal_stepsize(L, sketch)
    rng = np.random.default_rng(seed)
    N = rng.standard_normal(L.shape) * 10.0**noise * np.linalg.norm(result.dual)
    # Far enough inside the cone to be proved positive semidefinite as it is: the bound is that of this matrix.
    size = np.linalg.norm(result.dual)
    Z = result.dual + N @ N.T / size + 1e-6 * size * np.eye(len(L))
    Z = 0.5 * (Z + Z.T)
    program = Program.single(L, sketch.map)
    for arithmetic in (Plain, Pair):
        bound = upper_bound(Evaluation(program, result.D, arithmetic), Z)
        if math.isfinite(bound):
            assert Decimal(bound) >= _exact_bound(L, sketch, result.D, Z)


@settings(max_examples=60, deadline=None)
@given(problems(), seeds)
def test_bad_multipliers_give_weak_but_valid_bounds(problem, seed: int) -> None:
    L, sketch = problem
    rng = np.random.default_rng(seed)
    program = Program.single(L, sketch.map)
    best = optimal_stepsize(L, sketch)
    for Z in (rng.standard_normal(L.shape), np.eye(len(L)), -np.eye(len(L)), np.full(L.shape, np.nan)):
        reference = rng.standard_normal(L.shape)
        for D in (best.D, reference @ reference.T + 1e-3 * np.eye(len(L))):
            assert upper_bound(Evaluation(program, D), Z @ Z.T if np.all(np.isfinite(Z)) else Z) >= best.log_det


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
    log_det = mean * d
    with localcontext(prec=40):
        exact = (Decimal(log_det) / d).exp()
    assert Decimal(exp_down(log_det / d)) <= exact <= Decimal(exp_up(log_det / d))
    assert exp_up(log_det / d) <= exp_down(log_det / d) * (1.0 + 1e-12) + 1e-322


def test_rates_at_the_ends_of_the_range() -> None:
    assert exp_down(-math.inf) == exp_down(-800.0) == 0.0 < exp_up(-800.0) < 1e-322
    assert math.isfinite(exp_down(math.inf)) and exp_up(math.inf) == math.inf


def test_repair_refuses_what_cannot_be_repaired() -> None:
    program = Program.single(np.eye(3), DiagonalPlusScaled.identity(3))
    assert repair(program, -np.eye(3)) is None
    assert repair(program, np.full((3, 3), np.nan)) is None
    assert repair(program, np.diag([1.0, 1.0, 0.0])) is None


@pytest.mark.parametrize("scale", [1e-3, 0.5, 1.0, 7.0, 1e4])
def test_repair_lands_on_the_boundary_from_any_scale(scale: float) -> None:
    L = random_smoothness(8, 1e3, 0)
    program = Program.single(L, RandK(8, 3).map)
    D = repair(program, scale * np.linalg.inv(L + np.eye(8)))
    assert D is not None
    assert D.feasible
    assert 0.0 <= D.margin < 1e-11


@pytest.mark.parametrize("condition", [1e1, 1e4, 1e8, 1e11])
def test_repair_spends_no_more_than_its_loss(condition: float) -> None:
    """Plain arithmetic finds the boundary within ``loss`` or as closely as verified arithmetic does."""
    L = random_smoothness(8, condition, 0)
    program = Program.single(L, RandK(8, 3).map)
    D = np.linalg.inv(L + 1e-3 * np.diag(np.diagonal(L)))
    exact, quick = repair(program, D), repair(program, D, 1e-9)
    assert exact is not None and quick is not None
    assert exact.feasible and quick.feasible
    assert exact.log_det is not None and quick.log_det is not None
    # The proof itself costs a distance, the estimate of that distance is right up to a small factor.
    proof = max(exact.margin, 1e-13)
    assert (exact.log_det - quick.log_det) / 8 <= 1e-9 + 8.0 * proof


@pytest.mark.parametrize(("condition", "plain"), [(1e2, True), (1e11, False)])
def test_twice_the_precision_only_where_plain_arithmetic_proves_too_little(condition: float, plain: bool) -> None:
    L = random_smoothness(8, condition, 0)
    program = Program.single(L, RandK(8, 3).map)
    found = repair(program, np.linalg.inv(L + 1e-3 * np.diag(np.diagonal(L))), 1e-9)
    assert found is not None
    assert (found.arithmetic is Plain) == plain


def test_a_bound_that_plain_arithmetic_leaves_too_weak_is_taken_again() -> None:
    L = random_smoothness(6, 1e7, 1)
    program = Program.single(L, RandK(6, 3).map)
    result = optimal_stepsize(L, RandK(6, 3))
    D = (1.0 - 1e-6) * result.D  # so that plain arithmetic proves it feasible
    plain = Evaluation(program, D, Plain)
    weak, strong = upper_bound(plain, result.dual), upper_bound(Evaluation(program, D), result.dual)
    assert strong < weak
    assert certify_point(plain, result.dual, tol=0.0).upper_bound == strong
    assert certify_point(plain, result.dual, tol=1e-5).upper_bound == weak


def test_only_programs_with_the_one_condition_are_certified() -> None:
    family = Family(DiagonalPlusScaled.identity(2), np.eye(2), c=1.0)
    with pytest.raises(ValueError, match="the one condition"):
        Evaluation(Program((family,), Pattern.full(2)), np.eye(2))


def test_scaled_pattern_is_checked() -> None:
    W = np.diag([1.0, 2.0, 3.0])
    program = Program.single(np.eye(3), DiagonalPlusScaled.identity(3), Pattern((3,), W))
    assert Evaluation(program, 0.3 * W).feasible
    assert not Evaluation(program, 0.1 * np.eye(3)).feasible


class TestCertify:
    """``certify`` on a user's own D."""

    L = random_smoothness(6, 1e2, 3)
    sketch = RandK(6, 2)

    def test_optimum_with_and_without_its_multiplier(self) -> None:
        result = optimal_stepsize(self.L, self.sketch)
        for check in (
            certify(result.D, self.L, self.sketch, dual=result.dual),
            certify(result.D, self.L, self.sketch, solve=True),
        ):
            assert check.feasible
            assert check.gap <= 1e-6
            assert check.largest_scale == pytest.approx(1.0, abs=1e-9)

    def test_half_and_double(self) -> None:
        result = optimal_stepsize(self.L, self.sketch)
        half = certify(0.5 * result.D, self.L, self.sketch, dual=result.dual)
        assert half.feasible
        assert half.margin == pytest.approx(0.5, abs=1e-9)
        assert half.largest_scale == pytest.approx(2.0, abs=1e-8)
        assert half.gap == pytest.approx(math.log(2.0), abs=1e-5)
        assert half.gap_when_scaled <= 1e-6
        double = certify(2.0 * result.D, self.L, self.sketch, dual=result.dual)
        assert not double.feasible
        assert double.margin == pytest.approx(-1.0, abs=1e-8)
        assert double.gap == math.inf
        assert double.largest_scale == pytest.approx(0.5, abs=1e-8)
        assert double.gap_when_scaled <= 1e-6

    def test_a_direction_that_is_not_optimal(self) -> None:
        check = certify(0.01 * np.eye(6), self.L, self.sketch, solve=True)
        best = optimal_stepsize(self.L, self.sketch)
        scalar = optimal_stepsize(self.L, self.sketch, structure="scalar")
        assert check.gap_when_scaled == pytest.approx(math.log(best.rate / scalar.rate), abs=2e-6)

    def test_det_cgd2(self) -> None:
        result = optimal_stepsize(self.L, self.sketch, algorithm="det-CGD2")
        assert certify(result.D, self.L, self.sketch, algorithm="det-CGD2", dual=result.dual).gap <= 1e-9
        assert "yes, proved (margin" in repr(certify(result.D, self.L, self.sketch, algorithm="det-CGD2"))

    @pytest.mark.parametrize(
        ("structure", "message"),
        [
            (
                "diagonal",
                r"structure diagonal: its entry \(0, 1\) is .* instead of 0; certify it with structure='full'",
            ),
            (BlockDiagonal((5, 1)), r"structure block\(5,1\): its entry \(0, 5\) is .* instead of 0"),
            ("scalar", "structure scalar: it is not a multiple of the identity"),
            (Direction(np.diag([1.0, 2, 3, 4, 5, 6])), "structure direction: it is not of the form γW"),
        ],
        ids=str,
    )
    def test_a_stepsize_outside_the_structure_is_refused(self, structure, message: str) -> None:
        D = optimal_stepsize(self.L, self.sketch).D
        with pytest.raises(ValueError, match=message):
            certify(D, self.L, self.sketch, structure=structure)

    @pytest.mark.parametrize(
        "structure",
        ["full", "diagonal", "scalar", BlockDiagonal((4, 2)), Direction(L), Direction(1e-30 * np.linalg.inv(L))],
        ids=str,
    )
    @pytest.mark.parametrize("solved", [True, False])
    def test_the_bound_is_one_over_a_set_that_contains_the_stepsize(self, structure, solved: bool) -> None:
        result = optimal_stepsize(self.L, self.sketch, structure=structure)
        dual = None if solved else result.dual
        check = certify(result.D, self.L, self.sketch, structure=structure, dual=dual, solve=solved)
        assert check.feasible
        assert check.gap <= 2e-6
        assert Decimal(check.certificate.upper_bound) >= log_det(rational(result.D))

    def test_rounded_multiples_of_a_direction_stay_below_their_bound(self) -> None:
        """γW is rounded entry by entry: log det may exceed that of the exact best multiple, never the bound."""
        W = random_smoothness(6, 1e10, 4)
        for seed in range(20):
            M = random_smoothness(6, 10.0, seed)
            result = optimal_stepsize(M, Identity(6), structure=Direction(W))
            assert Decimal(result.certificate.upper_bound) >= log_det(rational(result.D))

    def test_indefinite_stepsize(self) -> None:
        check = certify(np.diag([1.0, 1, 1, 1, 1, -1]), self.L, self.sketch)
        assert not check.feasible
        assert check.largest_scale == 0.0
        assert check.margin == -math.inf

    def test_sizes_are_checked(self) -> None:
        with pytest.raises(ValueError, match="D is 2×2 but L is 6×6"):
            certify(np.eye(2), self.L, self.sketch)
        with pytest.raises(ValueError, match="dual is 3×3 but L is 6×6"):
            certify(np.eye(6), self.L, self.sketch, dual=np.eye(3))
