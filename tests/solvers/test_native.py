"""Answers of the native solver under the one condition 𝒬(DBD) ⪯ D: planted optima, hard inputs, patterns, fallbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.lagrangian import gap, inequalities
from shared.native_problems import all_maps, rand_k, spectrum
from stepsize_solvers import native
from stepsize_solvers.interior import driver
from stepsize_solvers.native import NativeSolver
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs import (
    Hadamard,
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


@given(st.integers(2, 10), st.integers(0, 10_000), st.data())
@settings(max_examples=20)
def test_planted_optimum(d: int, seed: int, data: st.DataObject) -> None:
    """Choose D with D1 = 1; theorem B run backwards gives the B that makes it optimal with the multiplier 11ᵀ.

    With P1 = ρ1, c = ρ/(d+1) and DBD = A = ½(P − c11ᵀ)⁻¹ the first condition is AP = ½(I + 11ᵀ), and F1 = D1 − (P∘A)1
    = 0.  On vectors orthogonal to 1 P∘A has one eigenvalue κ for rand-k, so F ⪰ 0 when D has none below κ there.
    """
    rng = np.random.default_rng(seed)
    P = rand_k(d, data.draw(st.integers(1, d - 1))).hadamard_matrix
    A = 0.5 * np.linalg.inv(P - P[0].sum() / (d + 1.0))
    first = np.eye(d)[0] - np.eye(d)[1]
    kappa = float(first @ (P * A) @ first) / 2.0
    V = np.linalg.qr(np.column_stack([np.ones(d), rng.standard_normal((d, d - 1))]))[0][:, 1:]
    D = np.full((d, d), 1.0 / d) + (V * (max(kappa, 0.0) + rng.uniform(0.1, 2.0, d - 1))) @ V.T
    F = D - P * A
    assert np.linalg.eigvalsh(F)[0] > -1e-12
    np.testing.assert_allclose(F @ np.ones(d), 0.0, atol=1e-10)
    inverse = np.linalg.inv(D)
    outcome = solve(sym(inverse @ A @ inverse), Hadamard(P), tol=1e-8)
    assert value(outcome) == pytest.approx(np.linalg.slogdet(D)[1], abs=2e-8 * d)
    np.testing.assert_allclose(outcome.X, D, atol=1e-3)


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


def test_few_steps_of_small_problems() -> None:
    """The point of the dense method: about six steps to 10⁻⁶, whatever the map and the spectrum."""
    steps = [
        solve(spectrum(8, condition, 1), Q).stats.num_iters or 0
        for condition in (10.0, 1e3, 1e6)
        for Q in all_maps(8).values()
    ]
    assert max(steps) <= 12 and np.mean(steps) < 8.0


@pytest.mark.parametrize(("d", "k"), [(120, 90), (150, 30)])
def test_larger_sizes_in_single_precision(d: int, k: int) -> None:
    B, Q = spectrum(d, 1e3), rand_k(d, k)
    outcome = solve(B, Q)
    assert outcome.status is Status.OPTIMAL
    assert excess(B, Q, outcome) <= 1e-6


def test_single_precision_changes_nothing_that_is_returned() -> None:
    B, Q, values = spectrum(60, 1e4), rand_k(60, 10), []
    for size in (1, 1000):
        outcome = solve(B, Q, tol=1e-8, extra={"closed_forms": False, "single_precision_from": size})
        assert outcome.status is Status.OPTIMAL
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


@pytest.mark.parametrize("W", [None, spectrum(9, 10.0, 2)], ids=["free", "given"])
def test_blocks_without_coupling_are_solved_apart(W: Matrix | None) -> None:
    B, Q, whole = np.zeros((9, 9)), rand_k(9, 3), Pattern((4, 5), None if W is None else Pattern((4, 5)).blocks(W))
    B[:4, :4], B[4:, 4:] = spectrum(4, 50.0), spectrum(5, 50.0, 1)
    outcome = solve(B, Q, whole, tol=1e-9)
    assert outcome.status is Status.OPTIMAL and outcome.X is not None
    for s in whole.slices:
        rows = np.arange(s.start, s.stop)
        alone = solve(B[s, s], Q.restrict(rows), whole.restrict(rows), tol=1e-9)
        assert value(alone) == pytest.approx(np.linalg.slogdet(outcome.X[s, s])[1], abs=1e-7)


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
