"""Theorems A and B: optimality conditions where they are exact, valid bounds where they are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.native_problems import one_direction, rand_k, spectrum
from stepsize_solvers.closed_forms import Balanced, ClosedForm, balanced_vector, sign_pattern, uncoupled
from stepsize_solvers.native import NativeSolver
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs.contract import Outcome, Settings, Status
from stepsize_solvers.programs.maps import DiagonalPlusScaled, Hadamard, PositiveMap, ScaledPlusTrace, hadamard
from stepsize_solvers.programs.program import Program

Matrix = NDArray[np.float64]


def correlation(d: int, seed: int, smallest: float | None = None) -> Matrix:
    """A random correlation matrix; (1 − t) C + t I if its smallest eigenvalue is given."""
    C = np.corrcoef(np.random.default_rng(seed).standard_normal((d, 3 * d)))
    w = float(np.linalg.eigvalsh(C)[0])
    t = 0.0 if smallest is None else (smallest - w) / (1.0 - w)
    return sym((1.0 - t) * C + t * np.eye(d))


def factor_model(d: int) -> Matrix:
    rng = np.random.default_rng(0)
    f = rng.uniform(0.8, 1.2, d)
    return np.multiply.outer(f, f) + np.diag(rng.uniform(0.02, 0.06, d))


def solve(B: Matrix, Q: PositiveMap, tol: float = 1e-8, closed_forms: bool = False) -> Outcome:
    outcome = NativeSolver().solve(Program.single(B, Q), Settings(tol=tol, extra={"closed_forms": closed_forms}))
    assert outcome.status is Status.OPTIMAL
    return outcome


def iterate(B: Matrix, Q: PositiveMap, tol: float = 1e-8) -> float:
    """log det of the iteration's answer, without closed forms."""
    return float(np.linalg.slogdet(solve(B, Q, tol).X)[1])


def stationarity(B: Matrix, Q: PositiveMap, D: Matrix, Z: Matrix) -> float:
    """Largest entry of D^½(D⁻¹ + Z − BDR − RDB)D^½, relative to the identity that D⁻¹ becomes."""
    half = B @ D @ Q.adjoint(Z)
    root = np.linalg.cholesky(D)
    return float(np.abs(root.T @ (np.linalg.inv(D) + Z - half - half.T) @ root).max())


def scalar(alpha: float, beta: float) -> DiagonalPlusScaled:
    return DiagonalPlusScaled(np.array([alpha]), beta)


NONNEGATIVE = np.random.default_rng(7).random((14, 7))
SPREAD = spectrum(7, 1e4)
ALPHA = np.array([2.0, 3.0, 5.0, 4.0])
# B, 𝒬 and the optimal D, or None where the closed form itself has to tell it.
FORMS: dict[str, tuple[Matrix, PositiveMap, Matrix | None]] = {
    "one number": (np.array([[3.0]]), scalar(1.0, 1.0), np.array([[1.0 / 6.0]])),
    "one small number": (np.array([[3e-8]]), scalar(1.0, 1.0), np.array([[1e8 / 6.0]])),
    "one large number": (np.array([[3e8]]), scalar(1.0, 1.0), np.array([[1e-8 / 6.0]])),
    "multiple of the identity": (SPREAD, DiagonalPlusScaled(np.zeros(7), 2.0), 0.5 * np.linalg.inv(SPREAD)),
    "theorem A": (correlation(12, 0, 0.55), rand_k(12, 1), np.eye(12) / 12.0),
    "theorem A, unequal": (correlation(4, 3, 0.8), DiagonalPlusScaled(ALPHA, 0.0), np.diag(1.0 / ALPHA)),
    "theorem B": (NONNEGATIVE.T @ NONNEGATIVE / 7.0 + 0.1 * np.eye(7), rand_k(7, 4), None),
    **{f"theorem B, factor model, k = {k}": (factor_model(40), rand_k(40, k), None) for k in (1, 10, 30)},
}


@pytest.mark.parametrize("name", FORMS)
def test_closed_forms_are_reported_without_a_step_and_reached_by_the_iteration(name: str) -> None:
    B, Q, expected = FORMS[name]
    d, exact = len(B), solve(B, Q, closed_forms=True)
    assert exact.X is not None and exact.stats.num_iters == 0 and exact.stats.extra_stats["closed_form"]
    if expected is not None:
        np.testing.assert_allclose(exact.X, expected, rtol=1e-8, atol=1e-9 * np.abs(expected).max())
    iterated = solve(B, Q, 1e-10)
    assert np.linalg.slogdet(iterated.X)[1] == pytest.approx(np.linalg.slogdet(exact.X)[1], abs=1e-8 * d)
    np.testing.assert_allclose(iterated.X, exact.X, atol=1e-4 * np.abs(exact.X).max())


# ---------------------------------------------------------------- theorem A


@given(st.integers(2, 8), st.integers(0, 10_000), st.floats(0.51, 0.95))
@settings(max_examples=20)
def test_theorem_a_is_exact_above_one_half(d: int, seed: int, smallest: float) -> None:
    s = np.exp(np.random.default_rng(seed).uniform(-2, 2, d))
    B, Q = sym(correlation(d, seed, smallest) * np.multiply.outer(s, s)), rand_k(d, 1)
    form = uncoupled(B, Q)
    assert form is not None and form.exact and form.gap == 0.0
    np.testing.assert_allclose(form.D, np.diag(1.0 / (d * np.diagonal(B))))
    assert stationarity(B, Q, form.D, form.Z) < 1e-10
    assert np.linalg.eigvalsh(form.Z)[0] > -1e-9 * np.abs(form.Z).max()


@given(st.integers(3, 8), st.integers(0, 10_000), st.floats(0.05, 0.45))
@settings(max_examples=15)
def test_theorem_a_does_not_hold_below_one_half(d: int, seed: int, smallest: float) -> None:
    B = correlation(d, seed, smallest)
    assert uncoupled(B, rand_k(d, 1)) is None
    assert iterate(B, rand_k(d, 1)) > -d * np.log(d) + 1e-7  # the log det of D = Diag(1/(d Bⱼⱼ))


# ---------------------------------------------------------------- theorem B


def assert_valid(B: Matrix, Q: PositiveMap, form: ClosedForm | None, tol: float) -> None:
    """The bound holds, the log det is reached, and before the repair D satisfies the first optimality condition."""
    assert form is not None
    best, d = iterate(B, Q), len(B)
    assert form.log_det - 1e-7 <= best <= form.upper_bound + 1e-7
    scale = np.exp((form.upper_bound - form.log_det) / d)
    assert stationarity(B, Q, form.D * scale, form.Z) < tol
    assert not form.exact or form.log_det == pytest.approx(best, abs=1e-6)


@given(st.integers(2, 10), st.integers(0, 10_000), st.data())
@settings(max_examples=40)
def test_theorem_b_gives_a_valid_bound(d: int, seed: int, data: st.DataObject) -> None:
    B, Q = correlation(d, seed), rand_k(d, data.draw(st.integers(1, d - 1)))
    assert_valid(B, Q, one_direction(B, Q), 1e-7)
    w = np.random.default_rng(seed).uniform(0.5, 4.0, d)
    u = balanced_vector(B, w)
    assert np.all(u > 0.0)
    np.testing.assert_allclose(u * (B @ u), w, rtol=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 6))
@settings(max_examples=20)
def test_theorem_b_with_unequal_row_sums(seed: int, d: int) -> None:
    """Independent sampling with unequal probabilities: q is not constant and the bound still holds."""
    rng = np.random.default_rng(seed)
    f = rng.uniform(0.7, 1.3, d)
    B = np.multiply.outer(f, f) + np.diag(rng.uniform(0.2, 1.0, d))
    Q = DiagonalPlusScaled(1.0 / rng.uniform(0.2, 0.8, d) - 1.0, 1.0)
    assert_valid(B, Q, one_direction(B, Q), 1e-8)


@given(st.integers(3, 10), st.integers(0, 10_000))
@settings(max_examples=20)
def test_theorem_b_is_exact_for_nonnegative_matrices_at_half(half: int, seed: int) -> None:
    d, rng = 2 * half - 1, np.random.default_rng(seed)
    A, signs = rng.uniform(0.0, 1.0, (2 * d, d)), rng.choice([-1.0, 1.0], d)
    B = sym(A.T @ A * np.multiply.outer(signs, signs) + 0.1 * np.eye(d))
    form = one_direction(B, rand_k(d, half))
    assert form is not None and form.exact and abs(form.gap) < 1e-9
    assert abs(sign_pattern(B) @ signs) == d


def test_signs_at_odds_are_not_worked_out() -> None:
    """None of the frustrated patterns is exact, so the solver iterates."""
    seen = {True: 0, False: 0}
    for seed in range(60):
        d = 3 + seed % 8
        B, Q = correlation(d, seed), rand_k(d, 1 + seed % (d - 1))
        balanced, form = Balanced.of(B, Q), one_direction(B, Q)
        assert balanced is not None and form is not None
        seen[balanced.frustrated] += 1
        assert not (balanced.frustrated and form.exact)
    assert min(seen.values()) >= 10


def test_where_no_theorem_applies() -> None:
    B = correlation(3, 0)
    assert uncoupled(np.eye(3), rand_k(3, 2)) is None
    assert uncoupled(np.eye(3), ScaledPlusTrace(3, 1.0, 1.0)) is None
    assert one_direction(B, ScaledPlusTrace(3, 1.0, 1.0)) is None
    assert one_direction(B, hadamard(np.ones((3, 3)))) is None  # P singular
    assert one_direction(np.ones((3, 3)), rand_k(3, 2)) is None  # B singular
    # P ≻ 0 whose P⁻¹1 has a negative entry
    P = np.array([[1.0, 0.9, 0.2], [0.9, 1.0, 0.7], [0.2, 0.7, 1.0]])
    assert np.linalg.solve(P, np.ones(3)).min() < 0.0
    assert one_direction(B, Hadamard(P)) is None
