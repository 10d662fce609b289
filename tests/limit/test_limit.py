"""The limit: closed forms, proved intervals, and that nothing is above it."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    certify,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import METRIC_GOALS
from stepsize_opt.inputs.matrices import dense
from stepsize_opt.limit import floor_probabilities
from stepsize_opt.proofs import Unproved
from stepsize_opt.results import CompressionLimit
from stepsize_opt.smoothness import LimitBounds
from stepsize_validation.data import random_smoothness, with_spectrum
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    descent_metric,
    inner,
    is_positive_semidefinite,
    log,
    log_det,
    product,
    rational,
)
from stepsize_validation.properties.strategies import Matrix, problems, smoothness_matrices


def _below(L: Matrix) -> Matrix:
    """A matrix M between 0 and L that does not commute with L."""
    scale = np.linspace(0.2, 1.0, len(L))
    M = scale[:, None] * L * scale
    M = M / max(1.0, float(np.linalg.eigvals(np.linalg.solve(L, M)).real.max()))
    return np.asarray(0.5 * (M + M.T))


def _is_attained(limit: CompressionLimit, L: Matrix) -> bool:
    """D ⪯ L⁻¹ and tr(LD) ≤ k."""
    return _is_below(rational(limit.D), rational(L), Fraction(limit.k))


def _is_below(H: Rational, L: Rational, rank: Fraction) -> bool:
    """H ⪯ L⁻¹ and tr(LH) ≤ rank, decided in rational arithmetic."""
    return inner(L, H) <= rank and is_positive_semidefinite(combine((1, L), (-1, product(product(L, H), L))))


def _is_within_limit(D: Matrix, L: Matrix, sketch: Sketch, algorithm: str) -> bool:
    """What the theorem says of D under its condition and of H = 2D − T(D) for every D, if E[S] = I without rounding."""
    stepsize, exact = rational(D), rational(L)
    rank = Fraction(sketch.expected_rank) * (1 + Fraction(1, 2**48))  # a sum of at most d floats, rounded
    metric = descent_metric(stepsize, exact, sketch, algorithm)
    return _is_below(stepsize, exact, rank) and _is_below(metric, exact, rank)


@pytest.mark.parametrize("goal", METRIC_GOALS)
@given(L=smoothness_matrices(max_d=5, rescaled=True), share=st.floats(0.02, 1.0))
@settings(max_examples=40, deadline=None)
def test_the_interval_is_proved_and_D_is_attained(goal: str, L: Matrix, share: float) -> None:
    M = _below(L)
    limit = compression_limit(L, share * len(L), **arguments_of(goal, M))
    assert _is_attained(limit, L)
    assert 0.0 < limit.value <= limit.upper
    # Rounding of D counts relative to its smallest eigenvalue: 2⁻⁵³ times a condition number of at most 10⁶, times what
    # the proof of D ⪰ tM⁻¹ steps by.
    assert limit.gap <= 1e-6
    D = rational(limit.D)
    if goal == "descent":
        d = len(L)
        truth = d * log(Fraction(limit.k) / d) - log_det(rational(L))
        assert Decimal(limit.certificate.log_det) <= log_det(D) <= truth + Decimal("1e-40")
        assert truth <= Decimal(limit.certificate.upper_bound)
    else:
        floor = rational(M if goal == "linear" else np.eye(len(L)))
        t = Fraction(limit.value)  # D ⪰ tM⁻¹ if and only if MDM ⪰ tM
        assert is_positive_semidefinite(combine((1, product(product(floor, D), floor)), (-t, floor)))
    assert limit.probabilities.sum() == pytest.approx(limit.k)
    assert limit.probabilities.max() <= 1.0


_NEARLY_SINGULAR = np.array(
    [
        [0.9857357558725369, 0.16054258799185173, 0.4093104580758028],
        [0.16054258799185173, 0.15895149219945146, -0.3505499732533361],
        [0.4093104580758028, -0.3505499732533361, 1.4806547314180156],
    ]
)


@pytest.mark.parametrize(("goal", "momentum"), [("euclidean", False), ("convex", True)])
def test_the_budget_holds_for_the_floats_of_D_where_both_conditions_bind(goal: str, momentum: bool) -> None:
    limit = compression_limit(_NEARLY_SINGULAR, 2.4602936703585043, goal=goal, momentum=momentum)
    assert _is_attained(limit, _NEARLY_SINGULAR)


@pytest.mark.parametrize(
    ("goal", "momentum"), [*((goal, False) for goal in METRIC_GOALS), ("linear", True), ("convex", True)]
)
@given(L=smoothness_matrices(min_d=2, max_d=5, max_condition=1e12), excess=st.floats(0.0, 0.5))
@settings(max_examples=40, deadline=None)
def test_D_is_attained_next_to_a_singular_matrix(goal: str, momentum: bool, L: Matrix, excess: float) -> None:
    """From the effective rank on D ⪯ L⁻¹ and tr(LD) ≤ k bind together, and the rounding of D counts in both."""
    values = np.linalg.eigvalsh(L) ** (0.5 if momentum else 1.0)
    k = min((1.0 + excess) * float(values.sum() / values[-1]), float(len(L)))
    try:
        limit = compression_limit(L, k, momentum=momentum, **arguments_of(goal, 0.5 * np.linalg.eigvalsh(L)[0]))
    except Unproved:
        return
    assert _is_attained(limit, L)


@given(L=smoothness_matrices(max_d=6, max_condition=1e3), share=st.floats(0.02, 1.0))
@settings(max_examples=25)
def test_closed_forms(L: Matrix, share: float) -> None:
    """t = min(k/tr(M⁻¹L), 1/λmax(M⁻¹L)): from the effective rank on, more floats do not help."""
    d, k, M = len(L), share * len(L), _below(L)
    det = compression_limit(L, k)
    assert det.value == pytest.approx(share * math.exp(-np.linalg.slogdet(L)[1] / d), rel=1e-10)
    assert det.floats_sent == pytest.approx(d * math.exp(np.linalg.slogdet(L)[1] / d), rel=1e-10)  # whatever k is
    np.testing.assert_allclose(det.D @ L, share * np.eye(d), rtol=0, atol=1e-9)
    for goal, floor in (("euclidean", np.eye(d)), ("linear", M)):
        values = np.linalg.eigvals(np.linalg.solve(floor, L)).real
        limit = compression_limit(L, k, **arguments_of(goal, M))
        assert limit.value == pytest.approx(min(k / values.sum(), 1.0 / values.max()), rel=1e-10)
        everything = compression_limit(L, d, **arguments_of(goal, M)).D
        np.testing.assert_allclose(everything, np.linalg.inv(L), rtol=1e-9, atol=1e-9 / np.linalg.eigvalsh(L)[0])
        rounds = 1.0 / limit.value if goal == "euclidean" else 1.0 / -math.log1p(-limit.value)
        assert limit.floats_sent == pytest.approx(k * rounds, rel=1e-12)
        assert np.all(np.sort(limit.probabilities) >= limit.value * np.sort(values) * (1.0 - 1e-9))


@given(
    values=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8).map(np.array),
    share=st.floats(0.01, 1.0),
)
def test_left_budget_is_filled_like_water(values: Matrix, share: float) -> None:
    """h = clip(c, tℓ, 1) with Σh = k: KKT conditions of max Σ log h."""
    k = share * len(values)
    h = floor_probabilities(values, k)
    t = min(k / values.sum(), 1.0 / values.max())
    assert h.sum() == pytest.approx(k, rel=1e-12) and h.max() <= 1.0
    assert np.all(h >= t * values * (1.0 - 1e-12))
    above = h > t * values * (1.0 + 1e-9)  # not held up by its floor: all of one level
    if above.any():
        level = h[above].min()
        assert h[above].max() <= level * (1.0 + 1e-9)
        assert np.all(h[~above] >= level * (1.0 - 1e-9))


@given(problem=problems(max_d=4, max_condition=1e3), algorithm=st.sampled_from(["det-CGD1", "det-CGD2"]))
@settings(max_examples=40, deadline=None)
def test_no_optimum_is_above_the_limit(problem: tuple[Matrix, Sketch], algorithm: str) -> None:
    """H ⪯ L⁻¹ and tr(LH) ≤ E[rank S] for the metric H ⪰ D of the optimum of every sketch, in rational arithmetic."""
    L, sketch = problem
    result = optimal_stepsize(L, sketch, algorithm=algorithm)
    assert math.isnan(result.efficiency) == (not sketch.is_exactly_unbiased)
    if sketch.is_exactly_unbiased:
        assert 0.0 < result.efficiency <= 1.0
        assert _is_within_limit(result.D, L, sketch, algorithm)
    if result.efficiency > 0.9 and algorithm == "det-CGD2":
        assert not _is_within_limit(1.2 * result.D, L, sketch, algorithm)  # of which D itself is beyond the limit


@pytest.mark.parametrize("bias", [-9e-10, 9e-10])
def test_a_mean_off_by_less_than_the_slack_gains_nothing(bias: float) -> None:
    """A vector with one coin reaches the limit, so that the smallest bias in its mean would exceed it."""
    L = random_smoothness(np.random.default_rng(2), 3, 30.0)
    vectors, weights = (1.0 + bias) / 0.3 * np.array([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]), np.array([0.3, 0.7])
    exact = optimal_stepsize(L, BernQ(0.3, 3))
    for total in (1.0, 1.0 - 9e-10):
        result = optimal_stepsize(L, DiagonalSketch(vectors / total, total * weights))
        assert result.limit == pytest.approx(exact.limit, rel=1e-12)
        assert 1.0 - 1e-9 < result.efficiency <= 1.0
        finite = FiniteSketch(vectors[:, :, None] / total * np.eye(3), total * weights)
        w, matrices = finite.support()
        np.testing.assert_allclose(np.tensordot(w, matrices, axes=1), np.eye(3), rtol=0.0, atol=1e-15)
        result = optimal_stepsize(L, finite)
        assert result.limit == math.inf
        assert math.isnan(result.efficiency)


@pytest.mark.parametrize("goal", ["euclidean", "linear"])
def test_no_floor_is_above_the_limit(goal: str) -> None:
    L = random_smoothness(np.random.default_rng(1), 5, 100.0)
    M = _below(L)
    for sketch in (RandK(5, 2), Gaussian(5, 2), BernQ(0.4, [2, 3])):
        result = optimal_stepsize(L, sketch, **arguments_of(goal, M))
        limit = compression_limit(L, sketch.expected_rank, **arguments_of(goal, M))
        assert result.limit == pytest.approx(limit.upper, rel=1e-9)
        assert result.efficiency < 1.0


def test_one_coin_reaches_the_limit_and_the_limit_closes_the_gap() -> None:
    """Bern-q: D = qL⁻¹ is the limit itself, so that a multiplier that proves nothing leaves no gap."""
    L, sketch = random_smoothness(np.random.default_rng(2), 5, 30.0), BernQ(0.3, 5)
    result = optimal_stepsize(L, sketch)
    assert result.efficiency == pytest.approx(1.0, rel=1e-9) and result.efficiency <= 1.0
    assert certify(0.999 * result.D, L, sketch, dual=np.eye(5)).gap == pytest.approx(-math.log(0.999), rel=1e-6)
    # A solver that stops at once is judged by the limit: for rand-k it is far, yet no longer infinite.
    stopped = optimal_stepsize(L, RandK(5, 2), max_iters=1)
    assert stopped.certificate.gap < 2.0
    assert stopped.certificate.upper_bound <= 5.0 * math.log(stopped.limit) + 1e-9


def test_components_and_layers_have_the_limit_of_the_whole() -> None:
    blocks = [random_smoothness(np.random.default_rng(i), n, 10.0) for i, n in enumerate((2, 3, 1))]
    L = np.zeros((6, 6))
    for block, start in zip(blocks, (0, 2, 5), strict=True):
        L[start : start + len(block), start : start + len(block)] = block
    sketch = LayerWise([RandK(2, 1), RandK(3, 2), RandK(1, 1)])
    result = optimal_stepsize(L, sketch)
    assert sketch.expected_rank == 4.0
    assert result.limit == pytest.approx(compression_limit(L, 4.0).value, rel=1e-9)
    euclidean = optimal_stepsize(L, sketch, **GOALS["euclidean"])
    assert euclidean.limit == pytest.approx(compression_limit(L, 4.0, goal="euclidean").value, rel=1e-9)


def test_expected_ranks() -> None:
    projections = 2.0 * np.array([np.diag([1.0, 0.0]), np.diag([0.0, 1.0])])
    finite = FiniteSketch(projections, [0.5, 0.5])
    assert finite.expected_rank == 1.0 and not finite.is_exactly_unbiased
    assert LayerWise([Gaussian(3, 2), finite]).expected_rank == 3.0
    assert LayerWise([Gaussian(3, 2), RandK(2, 1)]).is_exactly_unbiased
    assert not LayerWise([Gaussian(3, 2), finite]).is_exactly_unbiased


def test_ranks_are_no_smaller_than_what_is_drawn_and_no_larger_than_d() -> None:
    """Eigenvalues of 10⁻¹⁰ count, because a rate may gain by them; rounded weights do not add up to more than d."""
    small = 5e-10
    vectors = np.array([[2.0 - small, small], [small, 2.0 - small]])
    assert FiniteSketch(vectors[:, :, None] * np.eye(2), [0.5, 0.5]).expected_rank == 2.0
    sketch = DiagonalSketch(vectors, [0.5, 0.5])
    assert sketch.expected_rank == 2.0
    assert optimal_stepsize(np.eye(2), sketch).efficiency <= 1.0
    thirds = DiagonalSketch(3.0 * np.eye(3), [1 / 3, 1 / 3, 1 / 3])
    assert thirds.expected_rank == 1.0
    assert optimal_stepsize(np.eye(3), thirds).efficiency == pytest.approx(1.0, rel=1e-12)
    weights = np.full(5, 0.2) / np.full(5, 0.2).sum()
    for law in (
        DiagonalSketch(np.ones((5, 3)), weights),
        FiniteSketch(np.broadcast_to(np.eye(3), (5, 3, 3)), weights),
    ):
        assert law.expected_rank == law.expected_nonzeros == 3.0


def test_bounds_are_from_above() -> None:
    """Poor numbers make the bound weak, never wrong."""
    assert LimitBounds(2, -1.0).log_bound(2.0) >= 1.0
    assert LimitBounds(2, 0.0, trace=0.0, top=0.0).log_bound(1.0) == math.inf
    assert LimitBounds(2, 0.0, trace=4.0, top=1.0).log_bound(1.0) == pytest.approx(2.0 * math.log(0.25))
    assert LimitBounds(2, 0.0).log_bound(5.0) == LimitBounds(2, 0.0).log_bound(2.0)  # no more than d


@pytest.mark.parametrize("goal", ["descent", "linear"])
@pytest.mark.parametrize("power", [20, 200])
def test_units_of_coordinates_do_not_matter(goal: str, power: int) -> None:
    """D follows the units, to the ends of float64."""
    L = random_smoothness(np.random.default_rng(4), 4, 10.0)
    scale = np.ldexp(1.0, power * np.array([-1, 0, 1, 0]))
    plain, moved = (compression_limit(A, 3, **arguments_of(goal, 0.3 * A)) for A in (L, scale[:, None] * L * scale))
    assert moved.value == pytest.approx(plain.value, rel=1e-9)
    assert moved.gap <= 1e-9
    if goal == "descent":
        np.testing.assert_array_equal(scale[:, None] * moved.D * scale, plain.D)


def test_what_float64_cannot_hold_is_refused() -> None:
    """A D that fills the budget has entries whose rounding is above t: no limit of 0 is returned."""
    scale = np.array([1e8, 1e8, 1e8, 1e-8])
    L = scale[:, None] * random_smoothness(np.random.default_rng(2), 4, 1e3) * scale
    L = (L + L.T) / 2.0
    for k in (1.0, 3.9):
        assert compression_limit(L, k, goal="euclidean").gap <= 1e-9
        assert optimal_method(L, k, goal="euclidean").certificate.gap <= 1e-9
    L = with_spectrum(np.random.default_rng(0), np.array([1e-14, 1e-14, 1e-14, 1.0]))
    for refused in (compression_limit, optimal_method):
        with pytest.raises(ValueError, match=r"L lie.*goal='euclidean'"):
            refused((L + L.T) / 2.0, 1.3, goal="euclidean")
    near = np.array([[1.0, 1.0 - 1e-14], [1.0 - 1e-14, 1.0]])
    with pytest.raises(ValueError, match=r"goal='descent'.*regulariser"):
        compression_limit(near, 1)  # and not: use 'descent'


# ----------------------------------------------------------------
# the limit of a LowRankPlusDiagonal: that of the dense matrix, within both proved intervals


@settings(max_examples=25, deadline=None)
@given(
    d=st.integers(1, 9),
    r=st.integers(1, 4),
    share=st.floats(0.05, 1.0),
    goal=st.sampled_from(["descent", "euclidean"]),
    constant=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equal_to_the_dense_limit(d: int, r: int, share: float, goal: str, constant: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((d, r)) * 10.0 ** rng.uniform(-2, 2)
    L = LowRankPlusDiagonal(U, 0.3 if constant else rng.uniform(0.1, 2.0, d))
    large, known = (compression_limit(one, share * d, goal=goal) for one in (L, L.todense()))
    # L.todense() is rounded, so the intervals meet up to that.
    assert large.value <= known.upper * (1.0 + 1e-9)
    assert known.value <= large.upper * (1.0 + 1e-9)
    assert large.gap < 1e-7
    assert large.certificate.feasible
    D, whole = large.D.todense(), dense(L.todense())
    eigenvalues = np.linalg.eigvals(whole @ D).real
    assert eigenvalues.max() <= 1.0 + 1e-9
    assert eigenvalues.sum() <= share * d * (1.0 + 1e-9)
    if goal == "euclidean":
        assert large.probabilities.size == (d if constant or d == 1 else 0)
        if large.probabilities.size:
            np.testing.assert_allclose(np.sort(eigenvalues), large.probabilities, rtol=1e-6, atol=1e-9)


def test_one_hot_data_have_the_euclidean_limit() -> None:
    U = sparse.csr_array(np.eye(6)[:, [0, 0, 1, 4]])
    L = LowRankPlusDiagonal(U, 0.5)
    for k in (1, 5):  # the trace decides, then the largest eigenvalue
        large, known = (compression_limit(one, k, goal="euclidean") for one in (L, L.todense()))
        assert large.value == pytest.approx(known.value, rel=1e-6)
        assert large.upper >= known.value
    assert "not computed" in repr(large)


def test_a_million_coordinates() -> None:
    d = 10**6
    limit = compression_limit(LowRankPlusDiagonal(np.ones((d, 1)), 1.0), d // 10)
    assert limit.value == pytest.approx(0.1 * (1.0 + d) ** (-1.0 / d), rel=1e-9)
    assert limit.gap < 1e-9


def test_a_number_below_the_hessian_scales_the_plain_limit() -> None:
    L = LowRankPlusDiagonal(np.ones((4, 1)), 1.0)
    plain = compression_limit(L, 1, goal="euclidean")
    linear, known = (compression_limit(one, 1, goal="linear", strong_convexity=0.5) for one in (L, L.todense()))
    assert linear.value == pytest.approx(0.5 * plain.value, rel=1e-14)
    assert linear.value == pytest.approx(known.value, rel=1e-12)
    assert linear.value <= 0.5 * plain.upper <= linear.upper


# ---------------------------------------------------------------- a budget below what probabilities can be


@pytest.mark.parametrize("k", [1e-300, 1e-15])
def test_a_budget_below_the_grid_of_probabilities_is_refused(k: float) -> None:
    with pytest.raises(ValueError, match=r"k .*2\.7e-15"):
        optimal_method(np.eye(5), k)
    assert optimal_method(np.eye(5), 2.7e-15).probabilities.min() > 0.0
