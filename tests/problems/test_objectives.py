"""Objectives: gradients against finite differences, smoothness matrices against the definition, infima."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
from scipy import sparse

from shared.small_data import small_data
from stepsize_opt.inputs import checks
from stepsize_opt.problems import (
    Federated,
    Layered,
    LeastSquares,
    LogisticRegression,
    Quadratic,
    SoftmaxRegression,
    find_federated_infimum,
    find_infimum,
)
from stepsize_validation.data import (
    DATA_VARIABLE,
    Dataset,
    available_datasets,
    datasets,
    federated_logistic,
    layered_logistic,
    load_dataset,
    logistic_regression,
    random_quadratic,
    random_smoothness,
    split,
)
from stepsize_validation.data.datasets import signs
from stepsize_validation.properties.exact import inverse, rational


def objectives() -> dict[str, Any]:
    data = small_data()
    rng = np.random.default_rng(1)
    parts = split(small_data(m=31), 4, rng, "dirichlet")
    return {
        "logistic, dense": LogisticRegression(data.A, data.b, 0.1),
        "logistic, repeated rows": logistic_regression(data, 0.1),
        "softmax": SoftmaxRegression(data.A, np.arange(data.m) % 3, 3, 0.1),
        "logistic, sparse": LogisticRegression(sparse.csr_array(data.A), data.b, 0.1),
        "logistic, ridge": logistic_regression(small_data(sparse_rows=True), 0.1, "ridge"),
        "quadratic": random_quadratic([0.1, 1.0, 5.0, 20.0], rng),
        "least squares": LeastSquares(data.A, data.b, 0.05),
        "layers": layered_logistic(data, 0.1, 3),
        "federated, stacked": federated_logistic(parts, 0.1),
        "federated, ridge": federated_logistic(parts, 0.1, "ridge"),
        "federated, mixed": Federated((LeastSquares(data.A, data.b), logistic_regression(data, 0.1))),
    }


@pytest.mark.parametrize("name", list(objectives()))
def test_gradients_are_those_of_the_values(name: str) -> None:
    f = objectives()[name]
    X = np.random.default_rng(2).standard_normal((3, f.d))
    h = 1e-5  # near ε^{1/3}: central differences are then right to about 1e-10
    for j in range(f.d):
        step = np.zeros(f.d)
        step[j] = h
        slope = (f.value(X + step) - f.value(X - step)) / (2.0 * h)
        np.testing.assert_allclose(f.gradient(X)[:, j], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", objectives())
def test_the_bounds_on_the_hessian_bound_the_function(name: str) -> None:
    """½‖y − x‖²_M ≤ f(y) − f(x) − ⟨∇f(x), y − x⟩ ≤ ½‖y − x‖²_L, near and far; 0.9 M + 0.1 L is too much for a ridge."""
    f = objectives()[name]
    L, M, rng = f.smoothness(), f.strong_convexity(), np.random.default_rng(4)
    X = rng.standard_normal((400, f.d)) * np.exp(rng.uniform(-1.0, 4.0, (400, 1)))
    step = rng.standard_normal((400, f.d)) * np.exp(rng.uniform(-6.0, 2.0, (400, 1)))
    linear = f.value(X) + np.sum(f.gradient(X) * step, axis=1)
    above, below = (linear + 0.5 * np.sum(step @ bound * step, axis=1) for bound in (L, M))
    rounding = 1e-12 * (1.0 + np.abs(above) + np.abs(f.value(X)))
    assert np.all(f.value(X + step) <= above + rounding)
    assert np.all(f.value(X + step) >= below - rounding)
    assert np.all(f.value(X) >= f.lower_bound)
    assert np.linalg.eigvalsh(L - M)[0] >= -1e-12
    if name.endswith("ridge"):
        assert np.any(f.value(X + step) < 0.9 * below + 0.1 * above - rounding)


def test_the_infimum_of_a_strongly_convex_function_is_proved_to_rounding() -> None:
    for name in ("logistic, ridge", "quadratic", "least squares", "federated, ridge"):
        found = find_infimum(objectives()[name])
        assert found.found - 1e-8 <= found.proved <= found.found
    assert find_infimum(objectives()["logistic, dense"]).proved == 0.0


def test_sparse_data_stay_sparse() -> None:
    data = small_data(sparse_rows=True)
    f = logistic_regression(data, 0.1)
    assert sparse.issparse(f.signed_rows) and f.signed_rows.nnz == data.A.nnz


def test_logistic_values_are_right_far_from_the_data() -> None:
    """Margins from −10³ to 10³: no overflow, and the losses of log(1 + exp(−z)) to rounding."""
    margins = np.array([-1000.0, -40.0, -1.0, 0.0, 1.0, 40.0, 1000.0])
    f = LogisticRegression(np.eye(7), np.ones(7), 1e-9)
    losses = np.logaddexp(0.0, -margins).mean()
    np.testing.assert_allclose(f.value(margins[None])[0], losses, rtol=1e-7)  # the regulariser adds at most 7λ
    gradient = -1.0 / (7.0 * (1.0 + np.exp(np.minimum(margins, 700.0))))
    np.testing.assert_allclose(f.gradient(margins[None])[0], gradient, atol=3e-9)


def one_hot(m: int, sizes: tuple[int, ...], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return sparse.csr_array(np.hstack([np.eye(size)[rng.integers(size, size=m)] for size in sizes]))


def test_repeated_rows_count_as_often_as_they_occur() -> None:
    A = one_hot(60, (2, 3, 2))  # at most 12 distinct rows
    b = np.where(np.random.default_rng(1).random(60) < 0.5, 1.0, -1.0)
    f, X = logistic_regression(Dataset("one-hot", A, b), 0.1), np.random.default_rng(2).standard_normal((3, 7))
    assert f.margins(X).shape[0] <= 24
    losses = np.logaddexp(0.0, -b[:, None] * (A.toarray() @ X.T)).mean(axis=0)
    np.testing.assert_allclose(f.value(X), losses + 0.1 * np.sum(X**2 / (1 + X**2), axis=1), rtol=1e-13)


def test_client_gradients_agree_with_the_clients() -> None:
    parts = split(small_data(m=33), 5, np.random.default_rng(0), "dirichlet")
    f = federated_logistic(parts, 0.1)
    X = np.random.default_rng(1).standard_normal((4, f.d))
    expected = np.stack([client.gradient(X) for client in f.clients], axis=1)
    np.testing.assert_allclose(f.client_gradients(X), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(f.smoothness(), np.mean(f.client_smoothness(), axis=0))


@pytest.mark.parametrize("unit", [1.0, 1e-11, 1e-30])
def test_infima_in_any_unit_of_f(unit: float) -> None:
    clients = tuple(Quadratic(np.array([[unit]]), np.array([x])) for x in (1.0, -1.0))
    assert find_federated_infimum(Federated(clients)).delta_inf == pytest.approx(0.5 * unit, rel=1e-6)


def _least_squares_minimum(A: Any, b: Any, reg: float) -> Fraction:
    """min (1/2m)‖Ax − b‖² + (λ/2)‖x‖² in rational arithmetic: ½(‖b‖²/m − vᵀx) with (AᵀA/m + λI)x = v = Aᵀb/m."""
    rows, m = rational(A), len(b)
    right = [Fraction(float(value)) for value in b]
    v = [sum(rows[i][j] * right[i] for i in range(m)) / m for j in range(len(rows[0]))]
    H = [
        [sum(row[j] * row[k] for row in rows) / m + (Fraction(reg) if j == k else 0) for k in range(len(v))]
        for j in range(len(v))
    ]
    x = [sum(p * q for p, q in zip(row, v, strict=True)) for row in inverse(H)]
    return (sum(value * value for value in right) / m - sum(p * q for p, q in zip(v, x, strict=True))) / 2


@pytest.mark.parametrize("reg", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_proved_of_the_infimum_is_true(seed: int, reg: float) -> None:
    """Condition numbers up to 10⁹ and data large beside their residuals, where Cholesky's M⁻¹ has no digit right."""
    rng = np.random.default_rng(seed)
    U, V = np.linalg.qr(rng.standard_normal((15, 4)))[0], np.linalg.qr(rng.standard_normal((4, 4)))[0]
    A = (U * np.geomspace(1.0, 10.0 ** -rng.uniform(0.0, 9.0), 4)) @ V.T
    b = rng.standard_normal(15) + 10.0 ** rng.uniform(0.0, 6.0)
    found = find_infimum(LeastSquares(A, b, reg))
    assert Fraction(found.proved) <= _least_squares_minimum(A, b, reg)


@pytest.mark.parametrize("d", [2, 6])
def test_a_large_objective_has_a_number_below_its_hessian(d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the size up to which matrices are formed, μI stands for M; here that size is 3."""
    monkeypatch.setattr(checks, "LARGE", 3)
    H = random_smoothness(np.random.default_rng(0), d, 100.0)
    quadratic = Quadratic(H, np.ones(d))
    ridge = LogisticRegression(np.eye(d), np.ones(d), 0.1, "ridge")
    for f in (quadratic, ridge, Layered((quadratic, ridge)), Federated((quadratic, ridge))):
        found = find_infimum(f)
        assert f.curvature_from_below <= np.linalg.eigvalsh(f.strong_convexity())[0]
        assert found.found - 1e-8 <= found.proved <= found.found
    singular = Quadratic(np.diag([*np.zeros(1), *np.ones(d - 1)]), np.ones(d))
    assert singular.curvature_from_below == 0.0 == find_infimum(Layered((singular, ridge))).proved


@pytest.mark.parametrize("name", list(objectives()))
def test_a_point_is_a_vector_or_a_row(name: str) -> None:
    f = objectives()[name]
    x = np.random.default_rng(0).standard_normal(f.d)
    assert f.value(x) == f.value(x[None])[0] and np.shape(f.value(x)) == ()
    np.testing.assert_array_equal(f.gradient(x), f.gradient(x[None])[0])
    for shape in ((f.d + 1,), (), (2, f.d + 1), (2, 1)):
        for function in (f.value, f.gradient):
            with pytest.raises(ValueError, match=r"\bX\b"):
                function(np.zeros(shape))


class _Somebody:
    """An objective with nothing but what a run needs."""

    d, lower_bound = 2, 0.0

    def smoothness(self) -> Any:
        return np.eye(2)

    def value(self, X: Any) -> Any:
        return 0.5 * np.sum(X**2, axis=1)

    def gradient(self, X: Any) -> Any:
        return X


def test_of_an_objective_of_somebody_elses_its_own_bound_is_proved() -> None:
    for f in (_Somebody(), Federated((_Somebody(), _Somebody())), Layered((_Somebody(), _Somebody()))):
        assert find_infimum(f).proved == 0.0


def test_data_in_a_file_stay_there(tmp_path: Any) -> None:
    A = np.memmap(tmp_path / "A", dtype=np.float64, mode="w+", shape=(4, 2))
    A[:] = np.arange(8.0).reshape(4, 2)
    assert np.shares_memory(LeastSquares(A, np.ones(4)).A, A)
    assert np.shares_memory(SoftmaxRegression(A, np.array([0, 1, 0, 1]), 2, 0.1).A, A)


# ----------------------------------------------------------------
# data: label maps, files, and how rows are split over clients


@pytest.mark.parametrize("low_high", [(-1, 1), (0, 1), (1, 2), (2.0, 4.0)])
def test_two_valued_labels_become_signs(low_high: tuple[float, float]) -> None:
    low, high = low_high
    np.testing.assert_array_equal(signs([high, low, low, high]), [1.0, -1.0, -1.0, 1.0])
    for wrong in ([low, low], [low, high, high + 1], [low, high, np.nan], [low, np.inf], [low, np.nan, low]):
        with pytest.raises(ValueError, match="labels"):
            signs(wrong)


def test_svmlight_files_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").write_text("1 1:0.5 3:2\n2 2:1\n1 3:-1\n")
    (tmp_path / "broken").write_text("not svmlight\n")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert {"tiny", "breast_cancer", "digits"} <= set(available_datasets())
    data = load_dataset("tiny")
    assert sparse.issparse(data.A) and (data.m, data.d) == (3, 3)
    np.testing.assert_array_equal(data.b, [-1.0, 1.0, -1.0])
    np.testing.assert_array_equal(data.A.toarray(), [[0.5, 0, 2], [0, 1, 0], [0, 0, -1]])
    with pytest.raises(ValueError, match="svmlight"):
        load_dataset("broken")
    with pytest.raises(FileNotFoundError, match=r"known here: .*tiny"):
        load_dataset("absent")


def test_the_embedded_set_is_that_of_scikit_learn() -> None:
    ours, theirs = load_dataset("breast_cancer"), sklearn.datasets.load_breast_cancer()
    np.testing.assert_array_equal(ours.A, datasets._standardised(theirs.data))
    np.testing.assert_array_equal(ours.b, signs(theirs.target))
    digits = load_dataset("digits")
    assert np.all(np.ptp(digits.A, axis=0) > 0.0) and set(digits.b) == {-1.0, 1.0}


def labelled(m: int = 101) -> Dataset:
    rng = np.random.default_rng(5)
    return Dataset("x", np.arange(m)[:, None], np.where(rng.random(m) < 0.4, 1.0, -1.0))


@pytest.mark.parametrize(("kind", "used"), [("shuffled", 100), ("label", 100), ("dirichlet", 101)])
def test_every_row_goes_to_one_client(kind: str, used: int) -> None:
    """Equal parts drop the rows that are left over; a dirichlet split is uneven for a small concentration."""

    def parts_of(seed: int = 0, concentration: float = 0.5) -> list[Dataset]:
        return split(labelled(), 10, np.random.default_rng(seed), kind, concentration)

    def rows(parts: list[Dataset]) -> list[list[int]]:
        return [part.A[:, 0].tolist() for part in parts]

    parts = parts_of()
    every = [row for part in rows(parts) for row in part]
    assert len(every) == len(set(every)) == used
    assert rows(parts) == rows(parts_of()) != rows(parts_of(seed=1))
    assert kind != "label" or sum(len(set(part.b)) > 1 for part in parts) <= 1
    uneven, even = ([part.m for part in parts_of(concentration=c)] for c in (0.1, 1000.0))
    if kind == "dirichlet":
        assert min(uneven) >= 1 and np.std(uneven) > 4.0 * np.std(even)
    else:
        assert set(uneven) == {10}
