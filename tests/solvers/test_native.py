"""Answers of the native solver: the condition 𝒬(DBD) ⪯ D, its hard inputs, patterns and fallbacks, and the metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from shared.lagrangian import gap, inequalities
from shared.native_problems import all_maps, all_patterns, rand_k, spectrum
from stepsize_solvers import native
from stepsize_solvers.interior import driver
from stepsize_solvers.native import NativeSolver
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Outcome,
    Pattern,
    PositiveMap,
    Program,
    Settings,
    Status,
)

Matrix = NDArray[np.float64]


def solve(B: Matrix, Q: PositiveMap, pattern: Pattern | None = None, **options: Any) -> Outcome:
    extra = options.pop("extra", {"closed_forms": False})
    return NativeSolver().solve(Program.single(B, Q, pattern), Settings(extra=extra, **options))


def value(outcome: Outcome) -> float:
    assert outcome.X is not None
    return float(np.linalg.slogdet(outcome.X)[1])


def excess(B: Matrix, Q: PositiveMap, outcome: Outcome, pattern: Pattern | None = None) -> float:
    """The gap of the returned pair by the formula of the theory, after checking that D is feasible to rounding."""
    program, D = Program.single(B, Q, pattern), outcome.X
    assert D is not None and program.pattern.contains(D)
    root = np.linalg.cholesky(D)
    inside = np.linalg.solve(root, np.linalg.solve(root, Q.apply(D @ B @ D)).T)
    # D and D B D are rounded, relative to D by up to 6·10⁻¹⁴ cond(D) in 1500 random problems of these sizes.
    assert np.linalg.eigvalsh(inside)[-1] < 1.0 + 1e-12 + 1e-13 * np.linalg.cond(D)
    return gap(program, outcome)


@pytest.fixture(params=["small", "general"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Solve small problems by dense Newton systems, or by the iteration for any size."""
    if request.param == "general":
        monkeypatch.setattr(native, "_condition_unknowns", lambda *_: None)
    return str(request.param)


@pytest.mark.parametrize("name", all_maps(3))
@pytest.mark.parametrize(("d", "condition"), [(3, 1e4), (8, 100.0), (8, 1e3), (16, 1e4)])
@pytest.mark.parametrize("tol", [1e-3, 1e-6, 1e-8, 1e-9])
def test_the_tolerance_is_met(path: str, name: str, d: int, condition: float, tol: float) -> None:
    """The bound of the returned multiplier proves the gap, so both paths find the same optimum."""
    B, Q = spectrum(d, condition, d), all_maps(d)[name]
    outcome = solve(B, Q, tol=tol)
    assert outcome.status is Status.OPTIMAL
    assert excess(B, Q, outcome) <= tol and outcome.stats.extra_stats["gap"] <= tol
    assert (outcome.stats.extra_stats["cg_iterations"] == 0) == (path == "small")


@given(st.integers(1, 25), st.integers(0, 10_000), st.floats(0.0, 8.0), st.booleans(), st.data())
@settings(max_examples=100)
def test_random_problems(d: int, seed: int, decades: float, closed_forms: bool, data: st.DataObject) -> None:
    B, Q = spectrum(d, 10.0**decades, seed), rand_k(d, data.draw(st.integers(1, d)))
    outcome = solve(B, Q, extra={"closed_forms": closed_forms})
    assert outcome.status is Status.OPTIMAL
    assert excess(B, Q, outcome) <= 1e-6


def hard_matrices(d: int) -> dict[str, Matrix]:
    rng = np.random.default_rng(0)
    few = rng.standard_normal((d // 2, d))
    binary = (rng.random((60, d)) < 0.3).astype(float)
    binary[:, -3:] = binary[:, :3]
    return {
        "nearly singular": few.T @ few + 1e-8 * np.eye(d),
        "duplicate columns": binary.T @ binary / 240.0 + 2e-3 * np.eye(d),
        "equal correlations": np.full((d, d), 0.7) + 0.3 * np.eye(d),
        "every direction active": np.eye(d),
    }


@pytest.mark.parametrize("name", hard_matrices(6))
@pytest.mark.parametrize(("d", "k"), [(10, 1), (10, 4), (10, 9), (20, 1), (20, 5), (20, 15)])
def test_hard_matrices(path: str, name: str, d: int, k: int) -> None:
    B, Q = hard_matrices(d)[name], rand_k(d, k)
    outcome = solve(B, Q)
    assert outcome.status is Status.OPTIMAL
    if name != "nearly singular":  # whose multiplier, of condition 10¹⁰, is beyond plain arithmetic
        assert excess(B, Q, outcome) <= 1e-6


def test_a_singular_matrix_is_reported() -> None:
    assert solve(np.ones((5, 5)), rand_k(5, 5)).status is not Status.OPTIMAL


def test_an_impossible_tolerance_is_reported(path: str) -> None:
    B, Q = spectrum(10, 1e3), rand_k(10, 3)
    outcome = solve(B, Q, tol=1e-18)
    assert outcome.status in (Status.INACCURATE, Status.USER_LIMIT)
    assert excess(B, Q, outcome) < 1e-8


def test_single_precision_changes_nothing_that_is_returned() -> None:
    B, Q, values = spectrum(60, 1e4), rand_k(60, 10), []
    for size in (1, 1000):
        outcome = solve(B, Q, tol=1e-8, extra={"closed_forms": False, "single_precision_from": size})
        assert outcome.status is Status.OPTIMAL and excess(B, Q, outcome) <= 1e-8
        values.append(value(outcome))
    assert values[0] == pytest.approx(values[1], abs=60 * 1e-8)


# ---------------------------------------------------------------- breakdowns


@pytest.mark.parametrize("calls", [0, 2])
@pytest.mark.parametrize("d", [10, 60])
def test_a_breakdown_hands_over_to_the_next_formulation(d: int, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conjugate gradients take over from factorised systems, double precision from single, at once or after a while."""
    B, Q, original = spectrum(d, 1e3), rand_k(d, 3), driver.Drive.next

    def broken(self: Any, p: Any) -> Any:
        first = self.problem.unknowns is not None if d == 10 else self.problem.single
        return None if first and self.progress.steps >= calls else original(self, p)

    monkeypatch.setattr(driver.Drive, "next", broken)
    outcome = solve(B, Q)
    assert outcome.status is Status.OPTIMAL and outcome.stats.extra_stats["cg_iterations"] > 0
    assert excess(B, Q, outcome) <= 1e-6
    limited = solve(B, Q, max_iters=4)
    assert limited.status is Status.USER_LIMIT and limited.stats.num_iters == 4


# ---------------------------------------------------------------- patterns


@pytest.mark.parametrize("name", [*all_maps(6), "large rand-k"])
@pytest.mark.parametrize("sizes", [(1,) * 6, (2, 3, 1)])
def test_patterns(name: str, sizes: tuple[int, ...]) -> None:
    if name == "large rand-k":
        sizes = tuple(10 * n for n in sizes) if max(sizes) > 1 else (1,) * 60
    d = sum(sizes)
    B, Q = spectrum(d, 1e3), rand_k(d, d // 3) if d == 60 else all_maps(6)[name]
    outcome = solve(B, Q, Pattern(sizes), tol=1e-8)
    assert outcome.status is Status.OPTIMAL
    assert excess(B, Q, outcome, Pattern(sizes)) <= 1e-8


def test_one_direction_is_scaled_to_the_boundary() -> None:
    B, Q, W = spectrum(5, 50.0), rand_k(5, 2), spectrum(5, 10.0, 2)
    program = Program.single(B, Q, Pattern((5,), W))
    outcome = NativeSolver().solve(program, Settings())
    assert outcome.X is not None
    np.testing.assert_allclose(outcome.X, outcome.X[0, 0] / W[0, 0] * W)
    (F,) = inequalities(program, program.families[0], outcome.X)
    ((Z,),) = outcome.duals
    assert abs(np.linalg.eigvalsh(F)[0]) < 1e-12
    assert (np.vdot(Z, F), np.vdot(Z, outcome.X)) == pytest.approx((0.0, 5.0), abs=1e-10)


# ---------------------------------------------------------------- the metric G = 2X − 𝒬(XBX) as objective


LEFT = spectrum(6, 1e3)
INVERSE = sym(np.linalg.inv(LEFT))


def metric_of(X: Matrix | None, B: Matrix, Q: PositiveMap) -> Matrix:
    assert X is not None
    return sym(2.0 * X - Q.apply(X @ B @ X))


def optimal(program: Program, tol: float = 1e-6) -> Outcome:
    outcome = NativeSolver().solve(program, Settings(tol=tol))
    assert outcome.status is Status.OPTIMAL and outcome.X is not None
    assert program.pattern.contains(outcome.X)
    return outcome


@pytest.mark.parametrize("name", all_maps(6))
@pytest.mark.parametrize("shape", all_patterns(6))
@pytest.mark.parametrize("floor", [INVERSE, np.eye(6)], ids=["inverse", "identity"])
def test_both_paths_to_the_largest_t_agree(
    shape: str, name: str, floor: Matrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    Q, found = all_maps(6)[name], []
    program = Program.descent(LEFT, Q, all_patterns(6)[shape], floor=floor)
    for unknowns in (1000, 0):
        monkeypatch.setattr(Sizes, "DENSE_UNKNOWNS", unknowns)
        found.append(float(eigvalsh(metric_of(optimal(program).X, LEFT, Q), floor)[0]))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@pytest.mark.parametrize(
    ("B", "Q", "expected"),
    [
        (LEFT, DiagonalPlusScaled.identity(6), INVERSE),
        (LEFT, DiagonalPlusScaled(np.zeros(6), 4.0), INVERSE / 4.0),
        (np.array([[4.0]]), rand_k(1, 1), np.array([[0.25]])),
    ],
)
def test_closed_forms_of_the_metric(B: Matrix, Q: PositiveMap, expected: Matrix) -> None:
    outcome = optimal(Program.descent(B, Q))
    assert outcome.stats.num_iters == 0 and outcome.stats.extra_stats["closed_form"]
    np.testing.assert_allclose(outcome.X, expected, rtol=1e-9)


LARGE = {
    "directions": Pattern((30, 34), np.diag(np.linspace(1.0, 2.0, 64))),
    "diagonal": Pattern((1,) * 64),
    "blocks": Pattern((8,) * 8),
    "blocks with 1640 unknowns": Pattern((40, 40)),  # none of which is listed
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("criterion", ["log det", "t"])
def test_patterns_of_larger_matrices(shape: str, criterion: str) -> None:
    pattern = LARGE[shape]
    d = pattern.d
    program = Program.descent(
        spectrum(d, 1e3), rand_k(d, d // 4), pattern, floor=np.eye(d) if criterion == "t" else None
    )
    outcome = optimal(program)
    assert outcome.stats.extra_stats["gap"] <= 1e-6
    assert outcome.stats.num_iters is not None and outcome.stats.num_iters <= 20
