"""Objectives: gradients against finite differences, smoothness matrices against the definition, infima."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.exact import inverse, rational
from shared.small_data import small_data
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.infimum import Infimum, find_federated_infimum, find_infimum
from stepsize_opt.problems.objectives import Layered, LeastSquares, LogisticRegression, Quadratic
from stepsize_opt.problems.softmax import SoftmaxRegression
from stepsize_validation.data import (
    Dataset,
    federated_logistic,
    layered_logistic,
    load_dataset,
    logistic_regression,
    random_quadratic,
    split,
)
from stepsize_validation.data.shared_rows import Rows


def objectives() -> dict[str, Any]:
    data = small_data()
    rng = np.random.default_rng(1)
    parts = split(small_data(m=31), 4, rng, "dirichlet")
    return {
        "logistic, dense": logistic_regression(data, 0.1),
        "softmax": SoftmaxRegression(small_data().A, np.arange(len(small_data().b)) % 3, 3, 0.1),
        "logistic, sparse": logistic_regression(small_data(sparse_rows=True), 0.1),
        "logistic, ridge": logistic_regression(small_data(sparse_rows=True), 0.1, "ridge"),
        "quadratic": random_quadratic([0.1, 1.0, 5.0, 20.0], rng),
        "least squares": LeastSquares(data.A, data.b, 0.05),
        "layers": layered_logistic(data, 0.1, 3),
        "federated, stacked": federated_logistic(parts, 0.1),
        "federated, ridge": Federated(tuple(logistic_regression(p, 0.1, "ridge") for p in parts)),
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
def test_smoothness_matrix_bounds_the_function(name: str) -> None:
    """f(y) ≤ f(x) + ⟨∇f(x), y − x⟩ + ½‖y − x‖²_L, near and far."""
    f = objectives()[name]
    L = f.smoothness()
    rng = np.random.default_rng(3)
    X = rng.standard_normal((200, f.d))
    step = rng.standard_normal((200, f.d)) * np.exp(rng.uniform(-6.0, 2.0, (200, 1)))
    model = f.value(X) + np.sum(f.gradient(X) * step, axis=1) + 0.5 * np.sum(step @ L * step, axis=1)
    assert np.all(f.value(X + step) <= model + 1e-12 * (1.0 + np.abs(model)))
    assert np.all(f.value(X) >= f.lower_bound)


@pytest.mark.parametrize("name", objectives())
def test_the_lower_bound_on_the_hessian_bounds_the_function(name: str) -> None:
    """f(y) ≥ f(x) + ⟨∇f(x), y − x⟩ + ½‖y − x‖²_M, near and far, and 0.9 M + 0.1 L is too much for some of them."""
    f = objectives()[name]
    M = f.strong_convexity()
    rng = np.random.default_rng(4)
    X = rng.standard_normal((400, f.d)) * np.exp(rng.uniform(-1.0, 4.0, (400, 1)))
    step = rng.standard_normal((400, f.d)) * np.exp(rng.uniform(-6.0, 2.0, (400, 1)))
    model = f.value(X) + np.sum(f.gradient(X) * step, axis=1) + 0.5 * np.sum(step @ M * step, axis=1)
    rounding = 1e-12 * (1.0 + np.abs(model) + np.abs(f.value(X)))
    assert np.all(f.value(X + step) >= model - rounding)
    assert np.linalg.eigvalsh(f.smoothness() - M)[0] >= -1e-12
    if name.endswith("ridge"):
        more = model + 0.05 * np.sum(step @ (f.smoothness() - M) * step, axis=1)
        assert np.any(f.value(X + step) < more - rounding)


def test_the_infimum_of_a_strongly_convex_function_is_proved_to_rounding() -> None:
    for name in ("logistic, ridge", "quadratic", "least squares", "federated, ridge"):
        found = find_infimum(objectives()[name])
        assert found.found - 1e-8 <= found.proved <= found.found
    assert find_infimum(objectives()["logistic, dense"]).proved == 0.0


def test_logistic_smoothness_is_the_paper_formula_and_data_stay_sparse() -> None:
    data = small_data(sparse_rows=True)
    f = logistic_regression(data, 0.1)
    A = data.A.toarray()
    np.testing.assert_allclose(f.smoothness(), A.T @ A / (4 * data.m) + 0.2 * np.eye(data.d), rtol=1e-14)
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


def test_rows_with_common_parts_are_multiplied_as_two_factors() -> None:
    rng = np.random.default_rng(0)
    scales = rng.standard_normal(200)
    cases = {
        2: one_hot(200, (3, 2, 4, 3, 2, 3, 2, 2)),  # categories
        1: sparse.csr_array(rng.standard_normal((200, 21)) * (rng.random((200, 21)) < 0.3)),  # nothing in common
        0: rng.standard_normal((200, 21)),  # dense
    }
    for kind, A in cases.items():
        rows = Rows.of(A, scales)
        dense = scales[:, None] * (A.toarray() if kind else A)
        assert len(rows.factors) == max(kind, 1)
        Y, W = rng.standard_normal((21, 4)), rng.standard_normal((200, 4))
        np.testing.assert_allclose(rows @ Y, dense @ Y, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(rows.T @ W, dense.T @ W, rtol=1e-12, atol=1e-12)
        assert rows.size <= (0.7 if kind == 2 else 1.0) * np.count_nonzero(dense)


def test_repeated_rows_count_as_often_as_they_occur() -> None:
    A = one_hot(60, (2, 3, 2))  # at most 12 distinct rows
    b = np.where(np.random.default_rng(1).random(60) < 0.5, 1.0, -1.0)
    f, X = logistic_regression(Dataset("one-hot", A, b), 0.1), np.random.default_rng(2).standard_normal((3, 7))
    assert f.margins(X).shape[0] <= 24
    losses = np.logaddexp(0.0, -b[:, None] * (A.toarray() @ X.T)).mean(axis=0)
    np.testing.assert_allclose(f.value(X), losses + 0.1 * np.sum(X**2 / (1 + X**2), axis=1), rtol=1e-13)


def test_no_smaller_matrix_serves_a_quadratic() -> None:
    f = random_quadratic([1.0, 2.0, 3.0], np.random.default_rng(0))
    assert f.value(f.minimiser[None])[0] == 0.0
    np.testing.assert_array_equal(f.smoothness(), f.H)
    with pytest.raises(ValueError, match="positive semidefinite"):
        Quadratic(-np.eye(2), np.zeros(2))


def test_client_gradients_agree_with_the_clients() -> None:
    parts = split(small_data(m=33), 5, np.random.default_rng(0), "dirichlet")
    f = federated_logistic(parts, 0.1)
    X = np.random.default_rng(1).standard_normal((4, f.d))
    expected = np.stack([client.gradient(X) for client in f.clients], axis=1)
    np.testing.assert_allclose(f.client_gradients(X), expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(f.smoothness(), np.mean(f.client_smoothness(), axis=0))


def test_infimum_brackets_a_known_minimum() -> None:
    f = random_quadratic([0.5, 2.0, 9.0], np.random.default_rng(4))
    found = find_infimum(f)
    assert found.proved == 0.0 <= found.found < 1e-8
    with pytest.raises(ValueError, match="found must be finite and not lie below proved"):
        Infimum(1.0, 0.5)
    twice = Federated((f, Quadratic(f.H, f.minimiser + 1.0)))
    both = find_federated_infimum(twice)
    # f = ¼(‖x − a‖² + ‖x − a − 1‖²) in the norm of H has its minimum ⅛‖1‖²_H between the two; both clients reach 0.
    assert both.delta_inf == pytest.approx(0.125 * float(np.sum(f.H)), rel=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LogisticRegression(np.eye(3), np.ones(2), 0.1), "b must have one entry for each"),
        (lambda: LogisticRegression(np.eye(3), np.ones(3), 0.0), "reg must be a finite positive number"),
        (lambda: LogisticRegression(np.eye(3), np.ones(3), 0.1, "lasso"), "penalty must be one of 'nonconvex'"),
        (lambda: LogisticRegression(np.diag([1.0, np.nan]), np.ones(2), 0.1), "A must be finite"),
        (lambda: LeastSquares(sparse.csr_array(np.diag([1.0, np.inf])), np.ones(2)), "A must be finite"),
        (lambda: LeastSquares(np.eye(2), np.array([1.0, np.nan])), "b must be finite"),
        (lambda: Quadratic(np.eye(3), np.zeros(2)), "minimiser must have shape"),
        (lambda: SoftmaxRegression(np.eye(3), np.array([0, 1, 3]), 3, 0.1), "labels must be 3 whole numbers from 0 to"),
        (lambda: SoftmaxRegression(np.full((2, 2), np.inf), np.array([0, 1]), 2, 0.1), "A must be finite"),
        (lambda: Layered(()), "at least one objective"),
        (lambda: layered_logistic(small_data(), 0.1, 7), "layers must be from 1"),
        (lambda: Federated(()), "at least one objective"),
        (
            lambda: Federated((Quadratic(np.eye(2), np.zeros(2)), Quadratic(np.eye(3), np.zeros(3)))),
            "common dimension",
        ),
    ],
)
def test_errors_name_the_argument(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_the_proved_bound_is_below_a_minimum_of_data_that_are_large_beside_their_residuals() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        A = 1.0 + 0.1 * rng.standard_normal((30, 1))
        b = 1e7 * A[:, 0] + rng.standard_normal(30)
        rows = [(Fraction(x), Fraction(y)) for x, y in zip(A[:, 0].tolist(), b.tolist(), strict=True)]
        best = sum(x * y for x, y in rows) / sum(x * x for x, _ in rows)
        least = sum((x * best - y) ** 2 for x, y in rows) / 60
        found = find_infimum(LeastSquares(A, b))
        assert Fraction(found.proved) <= least and found.found - found.proved < 1e-6


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


def test_what_is_proved_of_the_infimum_is_true_where_m_has_no_digit_left() -> None:
    t = np.linspace(0.0, 1.0, 30)
    A, b = np.vander(t, 10), 1e3 * np.sin(7.0 * t)
    assert find_infimum(LeastSquares(A, b)).proved <= _least_squares_minimum(A, b, 0.0)
    steep = random_quadratic(np.geomspace(1.0, 1e-10, 6), np.random.default_rng(0))
    assert find_infimum(Quadratic(steep.H, 1e6 * steep.minimiser)).proved <= 0.0


def test_a_start_and_a_number_of_steps_are_read() -> None:
    f = Quadratic(np.eye(2), np.ones(2))
    assert find_infimum(f, [0.0, 0.0]).found == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match=r"start must have shape \(2,\)"):
        find_infimum(f, np.zeros(3))
    with pytest.raises(ValueError, match="iterations must be a whole number of at least 1"):
        find_infimum(f, iterations=-1)


@pytest.mark.parametrize("name", list(objectives()))
@pytest.mark.parametrize("shape", [(-1,), (2, -2), (2, 1)])
def test_points_of_another_shape_are_refused(name: str, shape: tuple[int, ...]) -> None:
    f = objectives()[name]
    X = np.zeros([f.d if n == -1 else f.d + 1 if n == -2 else n for n in shape])
    for function in (f.value, f.gradient):
        with pytest.raises(ValueError, match="X must hold points as rows"):
            function(X)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dataset("x", [[1.0], [2.0]], ["a", "b"]), "b must hold real numbers"),
        (lambda: LeastSquares(sparse.csr_array(np.eye(2) * 1j), np.ones(2)), "A must hold real numbers"),
        (
            lambda: SoftmaxRegression(sparse.eye_array(2), np.array([0, 1]), 2, 0.1),
            r"A must be a dense matrix: A\.toarr",
        ),
        (lambda: Federated(Quadratic(np.eye(2), np.zeros(2))), "clients must be a list of objectives, got Quadratic"),
        (lambda: find_federated_infimum(Quadratic(np.eye(2), np.zeros(2))), "objective must be Federated"),
        (lambda: split(small_data(), 2, 0), "rng must be a numpy Generator"),
        (lambda: load_dataset(None), "name must be the name of a data set"),
    ],
)
def test_objects_of_another_kind_are_named(build: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        build()


def test_lists_and_generators_are_read() -> None:
    data = Dataset("two", [[1, 0], [0, 2]], [1, -1])
    assert data.A.dtype == data.b.dtype == np.float64
    assert Federated(Quadratic(np.eye(2), np.zeros(2)) for _ in range(3)).n == 3
    with pytest.raises(ValueError, match="at least one row"):
        LeastSquares(np.zeros((0, 3)), np.zeros(0))


@pytest.mark.parametrize("seed", range(6))
def test_what_is_proved_of_the_infimum_of_clients_is_true(seed: int) -> None:
    """Two quadratics whose minima lie far apart along a flat direction: f(0) tells nothing of their rounding."""
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    H = (Q * [1.0, 1.0, 10.0 ** -rng.uniform(4.0, 10.0)]) @ Q.T
    x = 10.0 ** rng.uniform(4.0, 9.0) * Q[:, 2]
    f = Federated((Quadratic((H + H.T) / 2.0, x), Quadratic((H + H.T) / 2.0, -x)))
    exact, place = rational(f.clients[0].H), [Fraction(value) for value in x.tolist()]
    least = sum(place[i] * exact[i][j] * place[j] for i in range(3) for j in range(3)) / 2
    assert Fraction(find_infimum(f).proved) <= least


@pytest.mark.parametrize("reg", [1e-10, 1e-8, 1e-6, 0.1])
@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_what_is_proved_of_the_infimum_of_one_row_is_true(kind: str, reg: float) -> None:
    """One row a = 1: by Newton's method with 50 digits, started where it ends, so that nothing but rounding is left."""
    with localcontext(Context(prec=50)):
        x, weight = Decimal(10), Decimal(reg)
        # With two classes the weights are ±x/2, and ½λ‖·‖² is a quarter of λx².
        weight = weight if kind == "logistic" else weight / 2
        for _ in range(200):
            slope = -1 / (1 + x.exp()) + weight * x
            x -= slope / ((-x).exp() / (1 + (-x).exp()) ** 2 + weight)
        least = (1 + (-x).exp()).ln() + weight * x * x / 2
    if kind == "logistic":
        found = find_infimum(LogisticRegression(np.ones((1, 1)), np.ones(1), reg, "ridge"), [float(x)])
    else:
        softmax = SoftmaxRegression(np.ones((1, 1)), np.array([0]), 2, reg)
        found = find_infimum(softmax, [float(x) / 2.0, -float(x) / 2.0])
    assert Decimal(found.proved) <= least
    assert found.proved > 0.0 or reg < 1e-6


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


def test_layers_are_read_as_clients_are() -> None:
    f = Layered(Quadratic(np.eye(3), np.zeros(3)) for _ in range(2))
    assert (f.d, tuple(f.sizes)) == (6, (3, 3))
    with pytest.raises(TypeError, match="layers must be a list of objectives, got Quadratic"):
        Layered(Quadratic(np.eye(3), np.zeros(3)))  # type: ignore[arg-type]


def test_data_in_a_file_stay_there(tmp_path: Any) -> None:
    A = np.memmap(tmp_path / "A", dtype=np.float64, mode="w+", shape=(4, 2))
    A[:] = np.arange(8.0).reshape(4, 2)
    assert LeastSquares(A, np.ones(4)).A is A
    assert SoftmaxRegression(A, np.array([0, 1, 0, 1]), 2, 0.1).A is A
