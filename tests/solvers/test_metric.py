"""The metric aX − 𝒬(XBX) as objective: the program, its cvxpy form, the own method and its pieces."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from shared.native_problems import all_maps, rand_k, spectrum
from stepsize_solvers import available_solvers, get_solver
from stepsize_solvers.metric.newton import Curvature, DenseSystem, KrylovSystem, ListedUnknowns, listed
from stepsize_solvers.metric.patterned import Patterned
from stepsize_solvers.metric.point import MetricPoint, curvature_loss
from stepsize_solvers.metric.starts import best_multiple, start
from stepsize_solvers.metric.whitened import Whitening
from stepsize_solvers.numerics import Counters, nesterov_todd
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Family,
    Metric,
    Outcome,
    Pattern,
    PositiveMap,
    Program,
    Settings,
    Status,
    UnsupportedProgram,
    WarmStart,
)

Matrix = NDArray[np.float64]
NATIVE = get_solver("native")
D = 6
MAPS = all_maps(D)
B = spectrum(D, 1e3)
W = np.diag(1.0 / np.arange(1.0, D + 1.0))
PATTERNS = {
    "full": Pattern.full(D),
    "diagonal": Pattern((1,) * D),
    "blocks": Pattern((2, 4)),
    "direction": Pattern((D,), W),
    "directions": Pattern((1, 5), W),
}
every_map = pytest.mark.parametrize("name", MAPS)
every_pattern = pytest.mark.parametrize("shape", PATTERNS)


def metric_of(X: Matrix, Q: PositiveMap, B: Matrix = B) -> Matrix:
    """2X − 𝒬(XBX)."""
    G = 2.0 * X - Q.apply(X @ B @ X)
    return np.asarray(0.5 * (G + G.T))


def log_det(M: Matrix) -> float:
    sign, value = np.linalg.slogdet(M)
    assert sign > 0
    return float(value)


def answer(outcome: Outcome) -> Matrix:
    assert outcome.X is not None
    return outcome.X


def point(shape: str, name: str) -> MetricPoint:
    """A point away from the optimum."""
    left = Family(MAPS[name], B, a=2.0)
    X = start(Metric(left), PATTERNS[shape], None)
    assert X is not None
    p = MetricPoint.of(left, PATTERNS[shape], 0.8 * X)
    assert p is not None
    return p


# ---------------------------------------------------------------- the program


@pytest.mark.parametrize(
    ("left", "floor", "words"),
    [
        (Family(rand_k(3, 1), np.eye(3), a=1.0, c=1.0), None, "without factors and without the terms"),
        (Family(rand_k(3, 1), np.eye(3), factors=np.eye(3)[None], c=1.0), None, "without factors"),
        (Family(rand_k(3, 1), np.eye(3), a=2.0), np.eye(2), "must have shape"),
    ],
)
def test_a_metric_of_another_form_is_refused(left: Family, floor: Matrix | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Metric(left, floor)


def test_a_program_needs_inequalities_or_a_metric_of_its_size() -> None:
    with pytest.raises(ValueError, match="unbounded"):
        Program((), Pattern.full(3))
    with pytest.raises(ValueError, match="d=3"):
        Program((), Pattern.full(2), objective=Metric(Family(rand_k(3, 1), np.eye(3), a=2.0)))
    program = Program.descent(np.eye(3), rand_k(3, 1))
    assert program.condition is None
    assert program.total_size == 3


# ---------------------------------------------------------------- derivatives


@every_map
@every_pattern
def test_the_loss_of_the_bound_is_that_over_the_pattern(shape: str, name: str) -> None:
    """½⟨g, K⁻¹g⟩ is the largest ⟨g, X⟩ − ½⟨X, BXR + RXB⟩ over the X of the pattern, at most that over all matrices."""
    p, pattern, rng = point(shape, name), PATTERNS[shape], np.random.default_rng(3)
    over = listed(MAPS[name], pattern, 100)
    assert over is not None
    basis = Patterned(Family(MAPS[name], B, a=2.0), pattern, over)(p.D, p.Y)
    assert basis is not None and basis.over is not None
    frame, over = basis.frame, basis.over

    def random_member() -> Matrix:
        A = rng.standard_normal((D, D))
        return np.asarray(frame.project(A + A.T))

    def gain(X: Matrix) -> float:
        return float(np.vdot(g, X)) - float(np.vdot(X, frame.left(X) @ basis.Rt))

    g = random_member()
    loss = basis.loss(g)
    best = over.matrix(np.linalg.solve(over.curvature(frame, basis.Rt), over.vector(g)))
    assert gain(best) == pytest.approx(loss, rel=1e-9)
    assert all(gain(best + t * random_member()) < loss for t in (1e-3, 1e-1, 1.0))
    assert loss <= curvature_loss(frame, basis.Rt, g) * (1.0 + 1e-9)


@every_map
@every_pattern
def test_gradient_and_newton_system_are_derivatives(shape: str, name: str) -> None:
    p, pattern, Q = point(shape, name), PATTERNS[shape], MAPS[name]
    X = p.frame.project(np.diag(np.linspace(0.5, 1.5, D)) + 0.3)
    h = 1e-5
    change = p.frame.change(X)
    values = [log_det(metric_of(p.D + s * change, Q)) for s in (-h, 0.0, h)]
    slope, curvature = (values[2] - values[0]) / (2.0 * h), (values[2] - 2.0 * values[1] + values[0]) / h**2
    assert np.vdot(p.gradient, X) == pytest.approx(slope, rel=1e-6, abs=1e-7)
    krylov = KrylovSystem(p, 1.0, False, 0.0, Counters())
    assert np.vdot(X, krylov(X)) == pytest.approx(-curvature, rel=1e-3)
    over = listed(Q, pattern, 100)
    assert over is not None
    rotated = MetricPoint.of(Family(Q, B, a=2.0), pattern, p.D, rotated=pattern.is_full)
    assert rotated is not None
    dense = DenseSystem.of(rotated, over)
    assert dense is not None
    step = dense.solve(rotated.gradient)
    again = KrylovSystem(rotated, 1.0, False, 0.0, Counters())
    np.testing.assert_allclose(again(step), rotated.gradient, rtol=0, atol=1e-7 * np.abs(rotated.gradient).max())


@pytest.mark.parametrize("name", [name for name, Q in MAPS.items() if Q.hadamard_matrix is not None])
def test_the_two_dense_systems_of_a_diagonal_agree(name: str) -> None:
    p = point("diagonal", name)
    direct = listed(MAPS[name], PATTERNS["diagonal"], 100)
    assert direct is not None
    stacked, at = ListedUnknowns.of(MAPS[name], PATTERNS["diagonal"]), Curvature(p.frame, p.root, p.Yt, p.Rt)
    np.testing.assert_allclose(direct.system(at), stacked.system(at), rtol=1e-9, atol=1e-9)


@every_map
@every_pattern
def test_the_bound_holds_at_any_point(shape: str, name: str) -> None:
    p, Q = point(shape, name), MAPS[name]
    best = log_det(metric_of(answer(NATIVE.solve(Program.descent(B, Q, PATTERNS[shape]), Settings(tol=1e-9))), Q))
    bounds = p.bounds(p.loss)
    assert bounds.lower <= best <= bounds.upper + 1e-9


def test_the_best_multiple_is_the_best() -> None:
    m = np.geomspace(1e-3, 2.0, 7)
    gamma = best_multiple(m, 2.0)
    around = gamma * (1.0 + np.array([-1e-4, 0.0, 1e-4]))
    values = [float(np.log(g * (2.0 - g * m)).sum()) for g in around]
    assert max(values) == values[1]


# ---------------------------------------------------------------- answers


@every_map
@every_pattern
def test_native_agrees_with_cvxpy_within_the_gaps(shape: str, name: str) -> None:
    Q, program = MAPS[name], Program.descent(B, MAPS[name], PATTERNS[shape])
    own = NATIVE.solve(program, Settings(tol=1e-7))
    assert own.status is Status.OPTIMAL
    assert PATTERNS[shape].contains(answer(own))
    value = log_det(metric_of(answer(own), Q))
    other = get_solver("clarabel").solve(program, Settings(tol=1e-6))
    conic = log_det(metric_of(PATTERNS[shape].nearest(answer(other)), Q))
    # The interval of the own method contains the optimum, so no point is above it, and cvxpy's is not far below.
    assert conic <= value + 1e-7 * D
    assert conic >= value - 1e-4


@every_map
@pytest.mark.parametrize("shape", ["full", "diagonal", "blocks"])
def test_optimality_conditions(shape: str, name: str) -> None:
    Q, outcome = MAPS[name], NATIVE.solve(Program.descent(B, MAPS[name], PATTERNS[shape]), Settings(tol=1e-12))
    X = answer(outcome)
    Y = np.linalg.inv(metric_of(X, Q))
    half = B @ X @ Q.adjoint(Y)
    np.testing.assert_allclose(outcome.duals[-1][0], Y, rtol=1e-6, atol=1e-6 * np.abs(Y).max())
    np.testing.assert_allclose(PATTERNS[shape].blocks(2.0 * Y - half - half.T), 0.0, atol=2e-5 * np.abs(Y).max())


@pytest.mark.parametrize("solver", [s.name for s in available_solvers() if s.available and s.name != "native"])
def test_every_back_end_takes_the_metric(solver: str) -> None:
    chosen = get_solver(solver)
    Q = rand_k(4, 2)
    L = spectrum(4, 50.0)
    own = log_det(metric_of(answer(NATIVE.solve(Program.descent(L, Q), Settings(tol=1e-9))), Q, L))
    outcome = chosen.solve(Program.descent(L, Q), Settings())
    assert log_det(metric_of(answer(outcome), Q, L)) == pytest.approx(own, abs=1e-4)
    Y = outcome.duals[-1][0]  # a multiple of G⁻¹
    product = Y @ metric_of(answer(outcome), Q, L)
    np.testing.assert_allclose(product / product[0, 0], np.eye(4), atol=1e-2)


@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_a_multiple_of_the_identity_has_the_inverse(beta: float) -> None:
    Q = DiagonalPlusScaled(np.zeros(D), beta)
    outcome = NATIVE.solve(Program.descent(B, Q), Settings())
    assert outcome.stats.extra_stats["closed_form"] == "closed form"
    np.testing.assert_allclose(answer(outcome), np.linalg.inv(B) / beta, rtol=1e-9)


def test_scalars_and_one_direction_need_no_step() -> None:
    outcome = NATIVE.solve(Program.descent(np.array([[4.0]]), rand_k(1, 1)), Settings())
    np.testing.assert_allclose(answer(outcome), [[0.25]])
    outcome = NATIVE.solve(Program.descent(B, rand_k(D, 2), PATTERNS["direction"]), Settings())
    assert (outcome.status, outcome.stats.num_iters) == (Status.OPTIMAL, 0)


@pytest.mark.parametrize("k", [1, 15, 45])
def test_few_steps_on_larger_problems(k: int) -> None:
    L = spectrum(60, 1e3)
    outcome = NATIVE.solve(Program.descent(L, rand_k(60, k)), Settings())
    assert outcome.status is Status.OPTIMAL
    extra = outcome.stats.extra_stats
    assert (extra["steps"] <= 8, extra["cg_iterations"] <= 40, extra["gap"] <= 1e-6) == (True, True, True)


def test_single_precision_changes_nothing_that_is_returned() -> None:
    L, Q = spectrum(60, 1e4), rand_k(60, 10)
    values = []
    for size in (1, 1000):
        outcome = NATIVE.solve(Program.descent(L, Q), Settings(tol=1e-8, extra={"single_precision_from": size}))
        assert outcome.status is Status.OPTIMAL
        values.append(log_det(metric_of(answer(outcome), Q, L)))
    assert values[0] == pytest.approx(values[1], abs=60 * 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["directions", "diagonal", "blocks"])
@pytest.mark.parametrize("criterion", ["log det", "t"])
def test_patterns_of_larger_matrices(shape: str, criterion: str) -> None:
    d = 64
    pattern = {
        "directions": Pattern((30, 34), np.diag(np.linspace(1.0, 2.0, d))),
        "diagonal": Pattern((1,) * d),
        "blocks": Pattern((8,) * 8),
    }[shape]
    program = Program.descent(spectrum(d, 1e3), rand_k(d, 16), pattern, floor=np.eye(d) if criterion == "t" else None)
    outcome = NATIVE.solve(program, Settings())
    assert (outcome.status, outcome.stats.extra_stats["gap"] <= 1e-6) == (Status.OPTIMAL, True)


@every_pattern
def test_a_warm_start_is_used(shape: str) -> None:
    program = Program.descent(B, rand_k(D, 2), PATTERNS[shape])
    cold = NATIVE.solve(program, Settings(tol=1e-9))
    warm = NATIVE.solve(program, Settings(tol=1e-6, warm_start=WarmStart(answer(cold), cold.duals)))
    assert (warm.status, warm.stats.num_iters) == (Status.OPTIMAL, 0)


def test_a_limit_ends_the_solve_with_a_point_inside() -> None:
    outcome = NATIVE.solve(Program.descent(B, rand_k(D, 2)), Settings(max_iters=1))
    assert outcome.status is Status.USER_LIMIT
    log_det(metric_of(answer(outcome), rand_k(D, 2)))


def test_inequalities_beside_a_metric_go_to_cvxpy() -> None:
    condition = Program.single(B, rand_k(D, 2))
    program = Program(condition.families, condition.pattern, objective=Metric(Family(rand_k(D, 2), B, a=2.0)))
    with pytest.raises(UnsupportedProgram, match="beside inequalities"):
        NATIVE.solve(program, Settings())
    outcome = get_solver("clarabel").solve(program, Settings())
    Q, X = rand_k(D, 2), answer(outcome)
    assert np.linalg.eigvalsh(X - Q.apply(X @ B @ X))[0] >= -1e-6
    both = log_det(metric_of(X, Q))
    free = log_det(metric_of(answer(NATIVE.solve(Program.descent(B, Q), Settings())), Q))
    under = log_det(metric_of(answer(NATIVE.solve(condition, Settings())), Q))
    assert under - 1e-4 <= both <= free + 1e-6


# ---------------------------------------------------------------- the largest t


def value_of(X: Matrix, Q: PositiveMap, floor: Matrix) -> float:
    """The t of X."""
    return float(eigvalsh(metric_of(X, Q), floor)[0])


@every_map
@every_pattern
def test_the_largest_t_agrees_with_cvxpy(shape: str, name: str) -> None:
    Q, pattern = MAPS[name], PATTERNS[shape]
    floor = np.linalg.inv(B)
    floor = 0.5 * (floor + floor.T)
    program = Program.descent(B, Q, pattern, floor=floor)
    own, other = NATIVE.solve(program, Settings()), get_solver("clarabel").solve(program, Settings())
    assert own.status is Status.OPTIMAL
    assert len(own.duals) == len(other.duals) == 1
    t, conic = (value_of(pattern.nearest(answer(o)), Q, floor) for o in (own, other))
    assert conic <= t * (1.0 + 1e-6)
    assert conic >= t * (1.0 - 1e-2)


@pytest.mark.parametrize(("d", "k"), [(40, 10), (60, 1), (60, 15), (60, 54)])
def test_few_steps_to_the_largest_t(d: int, k: int) -> None:
    """And few iterations: a preconditioner that is wrong where an inequality is tight takes hundreds at the end."""
    outcome = NATIVE.solve(Program.descent(spectrum(d, 1e3), rand_k(d, k), floor=np.eye(d)), Settings())
    extra = outcome.stats.extra_stats
    assert (outcome.status, extra["steps"] <= 15, extra["cg_iterations"] <= 200) == (Status.OPTIMAL, True, True)


@every_map
@every_pattern
def test_both_paths_to_the_largest_t_agree(shape: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, found = Program.descent(B, MAPS[name], PATTERNS[shape], floor=np.eye(D)), []
    for unknowns in (1000, 0):
        monkeypatch.setattr("stepsize_solvers.metric.solve._MOST_UNKNOWNS_FIRST", unknowns)
        monkeypatch.setattr("stepsize_solvers.metric.solve._MOST_UNKNOWNS_SECOND", unknowns)
        outcome = NATIVE.solve(program, Settings())
        assert outcome.status is Status.OPTIMAL
        found.append(value_of(answer(outcome), MAPS[name], np.eye(D)))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@every_map
@every_pattern
def test_a_step_solves_its_equations(shape: str, name: str) -> None:
    """K X − G′*[dZ] = r, G′[X] − E dt + W dZ W = c and ⟨E, dZ⟩ = 0, for two right-hand sides."""
    p, rng = point(shape, name), np.random.default_rng(4)
    basis = Whitening(Family(MAPS[name], B, a=2.0), PATTERNS[shape], single=False)(p.D, p.Y)
    assert basis is not None

    def random_matrix(definite: bool) -> Matrix:
        A = rng.standard_normal((D, D))
        return np.asarray(A @ A.T if definite else A + A.T)

    frame, K = basis.frame, basis.K
    scaling = nesterov_todd(random_matrix(definite=True), random_matrix(definite=True))
    assert scaling is not None
    E = random_matrix(definite=True)
    W, system = scaling.G @ scaling.G.T, basis.system(scaling, E, Counters())
    for _ in range(2):
        r, c = frame.project(random_matrix(definite=False)), random_matrix(definite=False)
        found = system.solve(r, c, 1e-9)
        left = frame.slope(found.X) - E * found.dt + W @ found.dZ @ W - c
        assert np.abs(left).max() <= 1e-6 * np.abs(c).max()
        assert np.abs(found.X - K.solve(r + frame.coslope(found.dZ))).max() <= 1e-6 * np.abs(found.X).max()
        assert abs(float(np.vdot(E, found.dZ))) <= 1e-6 * np.abs(found.dZ).max() * np.abs(E).sum()


def test_the_identity_and_M_equal_L_contract_at_once() -> None:
    Q = DiagonalPlusScaled.identity(D)
    floor = np.linalg.inv(B)
    outcome = NATIVE.solve(Program.descent(B, Q, floor=0.5 * (floor + floor.T)), Settings())
    K = np.linalg.cholesky(B)
    assert np.linalg.eigvalsh(K.T @ metric_of(answer(outcome), Q) @ K)[0] == pytest.approx(1.0, abs=1e-9)
