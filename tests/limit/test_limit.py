"""The limit, which nothing is above, and the subspace method, which reaches it: draws, means, directions, messages."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from shared.goals import GOALS, arguments_of
from shared.large import diagonal, exact_smoothness, exact_stepsize
from stepsize_opt import (
    BernQ,
    CompressedStep,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    SystematicSampling,
    certify,
    compression_limit,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.goals import METRIC_GOALS
from stepsize_opt.inputs.matrices import dense
from stepsize_opt.limit import floor_probabilities
from stepsize_opt.proofs import Unproved
from stepsize_opt.results import CompressionLimit, SubspaceMethod
from stepsize_opt.sketches.diagonal import rounded_to_budget
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
    transpose,
)
from stepsize_validation.properties.strategies import Matrix, probabilities, problems, smoothness_matrices


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


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_what_the_limit_takes_from_one_number_is_never_too_large(x: float, y: float) -> None:
    """λmax(LM⁻¹) and its trace are x/y, exactly; with momentum their roots."""
    L, quotient = np.array([[x]]), Fraction(x) / Fraction(y)
    for M in (y, np.array([[y]])):
        plain, root = (LimitBounds.of(L, 0.0, M, momentum=momentum) for momentum in (False, True))
        assert plain.trace is not None and root.trace is not None
        assert max(Fraction(plain.top), Fraction(plain.trace)) <= quotient
        assert max(Fraction(root.top), Fraction(root.trace)) ** 2 <= quotient


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


# ----------------------------------------------------------------
# the subspace method: exact draws, exact means, proved directions, messages

CASES = [("descent", "eigenvectors"), ("descent", "root"), ("euclidean", "eigenvectors"), ("linear", "eigenvectors")]
every_case = pytest.mark.parametrize(("goal", "basis"), CASES)


def _asked(goal: str, L: Matrix) -> dict[str, Any]:
    return arguments_of(goal, 0.5 * L + 0.1 * np.linalg.eigvalsh(L)[0] * np.eye(len(L)))


def _outcomes(method: SubspaceMethod) -> list[tuple[Fraction, list[list[Fraction]]]]:
    """Every J with its probability, as the rational matrix G = A_J A_Jᵀ."""
    weights, diagonals = method.sketch.support()
    A = rational(method.directions)
    out = []
    for w, s in zip(weights, diagonals, strict=True):
        part = [[x if taken else Fraction(0) for x, taken in zip(row, s > 0.0, strict=True)] for row in A]
        out.append((Fraction(float(w)), product(part, transpose(part))))
    return out


@every_case
@given(L=smoothness_matrices(max_d=5, max_condition=1e4), share=st.floats(0.02, 1.0))
@settings(max_examples=12, deadline=None)
def test_mean_and_second_moment_by_enumeration(goal: str, basis: str, L: Matrix, share: float) -> None:
    """GᵀLG ⪯ G for every draw and D ⪯ E[G], in rational arithmetic for the floats returned; D is E[G] to rounding."""
    method = optimal_method(L, share * len(L), **_asked(goal, L), basis=basis)
    outcomes, exact = _outcomes(method), rational(L)
    assert sum(w for w, _ in outcomes) == 1
    for _, G in outcomes:
        assert is_positive_semidefinite(combine((1, G), (-1, product(product(G, exact), G))))
    mean = combine(*outcomes)
    assert is_positive_semidefinite(combine((1, mean), (-1, rational(method.D))))
    moment = combine(*[(w, product(product(G, exact), G)) for w, G in outcomes])
    for matrix in (mean, moment):
        floats = np.array([[float(x) for x in row] for row in matrix])
        np.testing.assert_allclose(floats, method.D, rtol=0, atol=1e-9 * np.abs(method.D).max())
    assert 0.0 <= 1.0 - method.efficiency <= 1e-7
    assert method.rate <= compression_limit(L, method.k, **_asked(goal, L)).upper


@given(p=st.lists(probabilities, min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_systematic_sampling_is_exact(p: list[float]) -> None:
    """Inclusion probabilities and sizes, in rational arithmetic; P is that of the law."""
    sketch = SystematicSampling(p)
    weights, outcomes = sketch.support()
    taken = outcomes > 0.0
    exact = [Fraction(float(w)) for w in weights]
    for j in range(sketch.d):
        assert sum(w for w, row in zip(exact, taken, strict=True) if row[j]) == Fraction(float(sketch.p[j]))
    total = sum(Fraction(float(x)) for x in sketch.p)
    assert set(taken.sum(axis=1).tolist()) <= {math.floor(total), math.ceil(total)}
    P = (outcomes * weights[:, None]).T @ outcomes
    np.testing.assert_allclose(sketch.second_moment_matrix, P, rtol=1e-13)
    assert np.all(sketch.p >= np.array(p)) and np.all(sketch.p <= np.array(p) + 2.0**-53)


@given(
    h=st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=60).map(np.array),
    k=st.floats(0.01, 1.0) | st.integers(1, 60).map(float),
)
def test_probabilities_add_up_to_the_budget(h: Matrix, k: float) -> None:
    k = min(k, float(len(h)))
    wanted = np.minimum(h * (k / h.sum()), 1.0)
    p = rounded_to_budget(wanted, k)
    assert 0 <= Fraction(k) - sum(Fraction(float(x)) for x in p) < Fraction(1, 2**50)
    if k == int(k):
        assert sum(Fraction(float(x)) for x in p) == k  # so that every draw has exactly k directions
    assert p.min() > 0.0 and p.max() <= 1.0
    if wanted.sum() >= k * (1.0 - 1e-12):
        np.testing.assert_allclose(p, wanted, rtol=0, atol=1e-12)


def test_equal_probabilities_of_every_size_and_budget() -> None:
    """Rounded up they exceed the budget by a few multiples, which no factor below 1 takes off: one in nine hung."""
    for d in range(1, 120):
        for k in range(1, d + 1):
            p = rounded_to_budget(np.full(d, k / d), float(k))
            assert sum((p * 2.0**53).astype(np.int64).tolist()) == k * 2**53 and p.max() <= 1.0
            assert np.abs(p - k / d).max() <= d * 2.0**-50


@pytest.mark.parametrize("basis", ["eigenvectors", "root"])
@pytest.mark.parametrize("power", [4, 6, 20])
def test_every_basis_reaches_the_limit_whatever_the_units(basis: str, power: int) -> None:
    rng = np.random.default_rng(power)
    scale = 10.0 ** rng.uniform(-power, power, 5)
    L = scale[:, None] * random_smoothness(rng, 5, 1e3) * scale
    assert optimal_method((L + L.T) / 2.0, 2.5, basis=basis).efficiency >= 1.0 - 1e-9


@every_case
@pytest.mark.parametrize("k", [0.4, 1, 2.5, 5])
def test_floats_per_round(goal: str, basis: str, k: float) -> None:
    L = random_smoothness(np.random.default_rng(4), 5, 100.0)
    method = optimal_method(L, k, **_asked(goal, L), basis=basis)
    rng = np.random.default_rng(0)
    draws = [method.draw(rng) for _ in range(200)]
    assert {draw.size for draw in draws} == ({int(k)} if k == int(k) else {math.floor(k), math.ceil(k)})
    if k == 5:  # no compression: the step L⁻¹∇f
        g = np.arange(5.0)
        np.testing.assert_allclose(method.decode(method.encode(g, draws[0]), draws[0]), np.linalg.solve(L, g))


def test_messages() -> None:
    """Rows of a batch, sums of clients' messages, and the same step by CompressedStep."""
    L, rng = random_smoothness(np.random.default_rng(5), 6, 30.0), np.random.default_rng(0)
    method = optimal_method(L, 2.5)
    gradients = rng.standard_normal((3, 6))
    draw = method.draw(np.random.default_rng(7))
    numbers = method.encode(gradients, draw)
    assert numbers.shape == (3, draw.size)
    A = method.directions[:, draw]
    np.testing.assert_allclose(method.decode(numbers, draw), gradients @ A @ A.T)
    step = method.decode(numbers.mean(axis=0), draw)
    np.testing.assert_allclose(step, A @ (A.T @ gradients.mean(axis=0)))
    other = CompressedStep(method.sketch, method.factors)
    same = other.draw(np.random.default_rng(7))
    np.testing.assert_allclose(other.decode(other.encode(gradients.mean(axis=0), same), same), step, rtol=1e-12)


# ----------------------------------------------------------------
# the subspace method of a LowRankPlusDiagonal: law and rate of the dense one, directions that are applied


def large(d: int, r: int, spread: float = 1.0) -> LowRankPlusDiagonal:
    """Columns and diagonal of sizes from 10^−spread to 1."""
    rng = np.random.default_rng(d)
    U = rng.standard_normal((d, r)) * 10.0 ** rng.uniform(-spread, 0.0, r)
    return LowRankPlusDiagonal(U, 10.0 ** rng.uniform(-spread, 0.0, d))


def exact_directions(method: SubspaceMethod) -> Rational:
    """A = c Diag(t)(I + BZBᵀ), B = [Diag(t)U  E], for the floats."""
    A, d = method.directions, method.d
    t = diagonal(A.t)
    B = [[*row, *first] for row, first in zip(product(t, rational(A.U)), rational(np.eye(d)[:, : A.e]), strict=True)]
    inner = combine((1, rational(np.eye(d))), (1, product(B, product(rational(A.Z), transpose(B)))))
    return product(rational(A.c * np.eye(d)), product(t, inner))


@settings(max_examples=40)
@given(st.integers(1, 5), st.integers(1, 3), st.floats(0.0, 4.0), st.floats(0.2, 1.0), st.sampled_from(METRIC_GOALS))
def test_what_is_proved_holds_in_exact_arithmetic(d: int, r: int, spread: float, share: float, goal: str) -> None:
    L = large(d, r, spread)
    if goal != "descent":
        L = LowRankPlusDiagonal(L.U, float(L.shift[0]))
    mu = 0.5 * float(L.shift[0]) if goal == "linear" else None
    method = optimal_method(L, share * d, goal=goal, strong_convexity=mu)
    exact = exact_smoothness(L)
    A, D, identity = exact_directions(method), exact_stepsize(method.D), rational(np.eye(d))
    gram = product(transpose(A), product(exact, A))
    assert is_positive_semidefinite(combine((1, identity), (-1, gram)))
    assert is_positive_semidefinite(combine((-1, rational((1.0 - method.defect) * np.eye(d))), (1, gram)))
    mean = product(A, product(diagonal(method.sketch.p), transpose(A)))
    assert is_positive_semidefinite(combine((1, mean), (-1, D)))
    floor = Fraction(mu or 1.0)
    assert Decimal(method.certificate.log_det) <= log_det(D) + d * log(floor)
    if goal == "descent":
        limit = -log_det(exact) + d * log(Fraction(share * d) / d)
        assert limit <= Decimal(method.certificate.upper_bound)
    else:
        dense = compression_limit(L.todense(), share * d, goal=goal, strong_convexity=mu)
        assert method.certificate.upper_bound >= dense.certificate.log_det - 1e-12  # that of a rounded L
    assert method.efficiency > 1.0 - 1e-7


@pytest.mark.parametrize("goal", METRIC_GOALS)
@pytest.mark.parametrize(("d", "r", "k"), [(1, 1, 1), (7, 1, 2), (12, 5, 3.5), (9, 9, 9), (4, 6, 2), (20, 2, 19)])
def test_the_round_and_the_rate_are_those_of_the_dense_method(d: int, r: int, k: float, goal: str) -> None:
    L = LowRankPlusDiagonal(large(d, r).U, 0.3)
    mu = 0.2 if goal == "linear" else None
    method = optimal_method(L, k, goal=goal, strong_convexity=mu)
    everything = np.arange(d)
    A = method.decode(np.eye(d), everything).T
    np.testing.assert_allclose(A.T @ L.todense() @ A, np.eye(d), atol=1e-10)
    np.testing.assert_allclose(method.encode(np.eye(d), everything), A, atol=1e-12)
    np.testing.assert_allclose(method.directions @ np.eye(d), A, atol=1e-12)
    np.testing.assert_allclose(method.directions.T @ np.eye(d), A.T, atol=1e-12)
    dense = optimal_method(L.todense(), k, goal=goal, strong_convexity=mu)
    assert method.rate == pytest.approx(dense.rate, rel=1e-8)
    np.testing.assert_allclose(np.sort(method.probabilities), np.sort(dense.probabilities), atol=1e-8)
    if goal != "descent":
        mean = (A * method.probabilities) @ A.T
        assert np.linalg.eigvalsh(mean)[0] * (mu or 1.0) == pytest.approx(method.rate, rel=1e-8)
    draw = method.draw(np.random.default_rng(0))
    g = np.linspace(-1.0, 1.0, 2 * d).reshape(2, d)
    np.testing.assert_allclose(method.encode(g, draw), g @ A[:, draw], atol=1e-11)
    np.testing.assert_allclose(method.decode(g[:, draw], draw), g[:, draw] @ A[:, draw].T, atol=1e-11)


def test_it_is_proved_for_condition_numbers_far_from_one() -> None:
    rng = np.random.default_rng(0)
    L = LowRankPlusDiagonal(rng.standard_normal((20_000, 16)), np.full(20_000, 1e-3))  # condition 2·10⁷
    method = optimal_method(L, 200)
    assert method.defect < 1e-5
    assert 1.0 - 1e-5 < method.efficiency <= 1.0


@pytest.mark.parametrize("goal", METRIC_GOALS)
def test_a_factor_of_zeros_leaves_a_multiple_of_the_identity(goal: str) -> None:
    mu = 0.25 if goal == "linear" else None
    method = optimal_method(LowRankPlusDiagonal(np.zeros((3, 2)), 0.5), 1.5, goal=goal, strong_convexity=mu)
    assert method.rate == pytest.approx(mu or 1.0, rel=1e-12)
    np.testing.assert_allclose(method.probabilities, 0.5)


@pytest.mark.parametrize("shape", [(100, 4), (4, 6), (1, 2)])
@pytest.mark.parametrize("own", [1e-2, 1e-4])
def test_columns_that_depend_on_others_cost_no_digits(shape: tuple[int, int], own: float) -> None:
    """The part of Z that 𝒢 does not see was ½, beside 1/γ elsewhere: its rounding was multiplied by γ."""
    U = np.random.default_rng(0).standard_normal(shape)
    if shape[0] > shape[1]:
        U[:, -1] = U[:, 0]
    assert optimal_method(LowRankPlusDiagonal(U, own), 1).efficiency >= 1.0 - 1e-5
