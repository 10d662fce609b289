"""Feedback: f never rises, the constants of the theorem, the basis, states and messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt import EstimatedSmoothness, Feedback, LowRankPlusDiagonal
from stepsize_opt.methods.feedback import MEASURED, SETTLED, SUFFICIENT
from stepsize_opt.problems import Federated, Quadratic
from stepsize_validation import run_feedback
from stepsize_validation.data import federated_logistic, load_dataset, random_smoothness, split

KINDS = [(rule, places) for rule in ("worst-case", "measured") for places in ("own", "shared")]
every_kind = pytest.mark.parametrize(("rule", "places"), KINDS)


def _label_sorted(n: int = 10, penalty: str = "ridge") -> Federated:
    parts = split(load_dataset("breast_cancer"), n, np.random.default_rng(0), "label")
    return federated_logistic(parts, 1e-3, penalty)


def _round(server: Any, clients: list[Any], gradients: Any) -> Any:
    """One round up to the proposal."""
    if server.feedback.places == "own":
        return server.proposal([client.message(g) for client, g in zip(clients, gradients, strict=True)])
    first = server.chooser
    chosen = clients[first].message(gradients[first])
    others = [chosen if i == first else one.message(gradients[i], chosen.places) for i, one in enumerate(clients)]
    return server.proposal(others)


@every_kind
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_f_never_rises_at_checks_whatever_f_and_its_gradients_are(rule: Any, places: Any, data: st.DataObject) -> None:
    """Values and gradients are arbitrary numbers: discontinuous, nonconvex, even inconsistent."""
    d, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    feedback = Feedback(None, data.draw(st.integers(1, d)), clients=n, rule=rule, places=places)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    start = float(rng.normal())
    server, clients = feedback.server(np.zeros(d), start), [feedback.client(i) for i in range(n)]
    for _ in range(30):
        before, checked, checks, careful = server.f, server.checked, server.checks, server.careful
        y = _round(server, clients, rng.normal(size=(n, d)) * 10.0 ** rng.integers(-8, 8))
        value = float(rng.choice([rng.normal(), math.nan, math.inf, -math.inf, before, before - 1e-9, before + 1e-9]))
        moved = server.decide(value if checks else None)
        if not checks:
            assert moved and server.x is y and server.f == before and server.checked is checked
            assert not careful and server.checks
        elif moved:
            assert server.f == value < before and server.checked is server.x is y and not server.checks
        else:
            assert server.f == before and server.x is server.checked is checked and server.careful
    assert start - server.f >= server.decrease * (1.0 - 1e-12)


@every_kind
@pytest.mark.parametrize("penalty", ["ridge", "nonconvex"])
def test_label_sorted_clients(rule: Any, places: Any, penalty: str) -> None:
    """f never rises, and the bound holds in every round in which one is known."""
    f = _label_sorted(penalty=penalty)
    feedback = Feedback(f.smoothness(), 2, clients=10, rule=rule, places=places)
    server, clients = (
        feedback.server(np.zeros(f.d), f.value(np.zeros((1, f.d)))),
        [feedback.client(i) for i in range(10)],
    )
    values = [server.f]
    for _ in range(150):
        gradients = f.client_gradients(server.x[None])[0]
        y = _round(server, clients, gradients)
        t = feedback.coefficients(gradients.mean(axis=0))
        assert server.bound >= np.linalg.norm(t) * (1.0 - 1e-9)
        server.decide([client.value(y[None])[0] for client in f.clients] if server.checks else None)
        values.append(server.f)
    assert np.all(np.diff(values) <= 0.0) and values[-1] < 0.2 * values[0]
    assert (rule == "measured") or math.isfinite(server.bound)


@every_kind
@pytest.mark.parametrize("k", [1, 2, 3, 7])
def test_contraction_at_a_fixed_point(rule: Any, places: Any, k: int) -> None:
    """The residual of top-k shrinks by 1 − k/d, and is zero after ⌈d/k⌉ rounds, for zeros in the gradients, too."""
    d, n = 7, 3
    gradients = np.random.default_rng(k).normal(size=(n, d)) * np.array([[1, 0, 1, 1, 0, 0, 1], [0] * d, [1] * d])
    feedback = Feedback(None, k, clients=n, rule=rule, places=places)
    server, clients = feedback.server(np.zeros(d), 0.0), [feedback.client(i) for i in range(n)]
    server.careful = True
    before = np.linalg.norm(gradients, axis=1)
    for _ in range(math.ceil(d / k)):
        _round(server, clients, gradients)
        residuals = np.linalg.norm(gradients - [client.memory for client in clients], axis=1)
        if places == "own":
            assert np.all(residuals**2 <= (1.0 - k / d) * before**2 + 1e-15)
        assert server.residual >= residuals.mean() * (1.0 - 1e-12)
        before = residuals
        assert not server.decide(1.0)
    assert np.all(before == 0.0) and server.residual == 0.0
    np.testing.assert_allclose(server.s, gradients.mean(axis=0), rtol=0, atol=1e-15)


@given(seed=st.integers(0, 2**32), n=st.integers(1, 4), k=st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_settled_short_step_is_accepted(seed: int, n: int, k: int) -> None:
    """ρ ≤ ¼‖s‖ and c ≤ 2(¾ − τ) = 1.1 make every check of an L-smooth f acceptable that ends one step.

    Hence the rounds are bounded by the accepted checks, and c by ½.
    """
    assert 2.0 * (1.0 - SETTLED - max(MEASURED, SUFFICIENT * (1.0 + SETTLED) ** 2)) >= 1.0
    rng = np.random.default_rng(seed)
    parts = [Quadratic(random_smoothness(rng, 5, 100.0), rng.normal(size=5)) for _ in range(n)]
    f = Federated(tuple(parts))
    feedback = Feedback(f.smoothness(), k, clients=n)
    server, clients = feedback.server(np.zeros(5), f.value(np.zeros((1, 5)))), [feedback.client(i) for i in range(n)]
    accepted = 0
    for _ in range(60):
        y = _round(server, clients, f.client_gradients(server.x[None])[0])
        size = float(np.linalg.norm(server.s))
        settled = server.x is server.checked and server.residual <= SETTLED * size
        above_rounding = size**2 > 1e-10 * (1.0 + abs(server.f))
        must = settled and server.c <= 1.0 and above_rounding
        checks = server.checks
        moved = server.decide(f.value(y[None]) if checks else None)
        assert moved or not must
        accepted += checks and moved
        if above_rounding:
            assert server.c >= 0.5 and server.rounds <= feedback.rounds(accepted)


def test_one_client_is_one_node_and_shared_places_are_a_mean() -> None:
    f = _label_sorted(1)
    single = run_feedback(f.clients[0], Feedback(f.smoothness(), 2), rounds=50)
    np.testing.assert_allclose(
        single.values, run_feedback(f, Feedback(f.smoothness(), 2), rounds=50).values, rtol=1e-12
    )
    feedback = Feedback(None, 1, clients=2, places="shared")
    clients, gradients = [feedback.client(i) for i in range(2)], np.array([[1.0, 2.0], [3.0, 5.0]])
    one = clients[0].message(gradients[0])
    two = clients[1].message(gradients[1], one.places)
    mean = type(one)((one.values + two.values) / 2, one.places, (one.residual + two.residual) / 2)  # type: ignore[operator]
    servers = [feedback.server(np.zeros(2), 1.0) for _ in range(2)]
    assert np.array_equal(servers[0].proposal([one, two]), servers[1].proposal([mean]))
    assert one.floats == 2 and feedback.floats == 2 and Feedback(None, 1).floats == 1


@pytest.mark.parametrize("rule", ["worst-case", "measured"])
def test_a_caller_that_keeps_the_memories_makes_the_same_rounds(rule: Any) -> None:
    """propose(s, ρ) is proposal(messages) for the mean of the memories and the mean of the smallest changes."""
    f = _label_sorted()
    feedback = Feedback(f.smoothness(), 2, clients=f.n, rule=rule)
    clients, start = [feedback.client(i) for i in range(f.n)], np.zeros(f.d)
    one, other = (feedback.server(start, f.value(start[None])) for _ in range(2))
    for _ in range(40):
        messages = [client.message(g) for client, g in zip(clients, f.client_gradients(one.x[None])[0], strict=True)]
        y = one.proposal(messages)
        smallest = np.mean([np.abs(message.values).min() for message in messages])
        z = other.propose(np.mean([client.memory for client in clients], axis=0), other.residual_bound(float(smallest)))
        np.testing.assert_allclose(z, y, rtol=1e-10, atol=1e-12)
        assert other.residual == pytest.approx(one.residual)
        with pytest.raises(ValueError, match="proposal must be followed by decide"):
            other.propose(one.s, 0.0)
        values = f.value(y[None]) if one.checks else None
        assert one.decide(values) == other.decide(values)
    with pytest.raises(ValueError, match=rf"s must have shape \({f.d},\), got \(3,\)"):
        other.propose(np.zeros(3), 0.0)


@every_kind
def test_resumes_to_the_same_bits(rule: Any, places: Any) -> None:
    f = _label_sorted(3)
    feedback = Feedback(f.smoothness(), 2, clients=3, rule=rule, places=places)

    def go(server: Any, clients: list[Any], rounds: int) -> None:
        for _ in range(rounds):
            y = _round(server, clients, f.client_gradients(server.x[None])[0])
            server.decide(f.value(y[None]) if server.checks else None)

    f0 = f.value(np.zeros((1, f.d)))
    server, clients = feedback.server(np.zeros(f.d), f0), [feedback.client(i) for i in range(3)]
    go(server, clients, 17)
    again, others = feedback.server(np.zeros(f.d), f0), [feedback.client(i) for i in range(3)]
    again.load_state(server.state())
    for one, other in zip(clients, others, strict=True):
        other.load_state(one.state())
    go(server, clients, 20)
    go(again, others, 20)
    assert np.array_equal(server.x, again.x) and np.array_equal(server.s, again.s)
    assert (server.f, server.c, server.decrease, server.rounds) == (again.f, again.c, again.decrease, again.rounds)


@every_kind
def test_rounding_of_f_ends_a_run(rule: Any, places: Any) -> None:
    f = _label_sorted(2)
    record = run_feedback(f, Feedback(f.smoothness(), 10, clients=2, rule=rule, places=places), rounds=20_000)
    assert record.status == "stationary to rounding" and record.iterations < 20_000
    assert np.linalg.norm(f.gradient(record.final_point[None])) < 1e-6


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_wrong_smoothness_matrix_is_corrected(scale: float) -> None:
    """L̂ may be far too small or absent: c falls below its floor once ρ is small."""
    f = _label_sorted(2)
    record = run_feedback(
        f, Feedback(EstimatedSmoothness(scale * f.smoothness(), 1.0, "test"), 5, clients=2), rounds=400
    )
    assert record.values[-1] < 0.15 * record.values[0]


def test_basis_is_orthonormal_in_every_form_of_L() -> None:
    rng = np.random.default_rng(0)
    U = rng.normal(size=(9, 2))
    own = rng.uniform(0.1, 3.0, 9)
    thin = [LowRankPlusDiagonal(U, 0.3), LowRankPlusDiagonal(U, own)]
    for L in (*thin, thin[1].todense(), [thin[0].todense(), thin[1]]):
        for basis in ("eigenvectors", "root"):
            feedback = Feedback(L, 2, basis=basis)  # type: ignore[arg-type]
            d = feedback.d or 0
            A = np.column_stack([feedback.step(row) for row in np.eye(d)])
            transposed = np.column_stack([feedback.coefficients(row) for row in np.eye(d)])
            dense = [
                block if isinstance(block, np.ndarray) else block.todense()
                for block in (L if isinstance(L, list) else [L])
            ]
            whole = np.zeros((d, d))
            for i, block in enumerate(dense):
                whole[9 * i : 9 * i + 9, 9 * i : 9 * i + 9] = block
            np.testing.assert_allclose(A.T @ whole @ A, np.eye(d), atol=1e-12)
            np.testing.assert_allclose(transposed, A.T, atol=1e-14)


def test_the_record_of_a_run() -> None:
    f = _label_sorted(2)
    feedback = Feedback(f.smoothness(), 3, clients=2)
    record = run_feedback(f, feedback, floats=865)
    assert 860.0 < record.floats[-1] <= 865.0 and record.places[-1] == 3.0 * record.iterations
    assert record.floats[-1] == 466.0 + 3.0 * record.iterations + record.checked.sum()
    with pytest.raises(ValueError, match="floats"):
        run_feedback(f, feedback, floats=466)
    assert np.all(np.diff(record.decrease) >= 0.0)
    assert np.array_equal(record.accepted & record.checked, np.diff(record.values) < 0.0)


def test_bad_input() -> None:
    for arguments in ({"rule": "none"}, {"places": "all"}, {"basis": "qr"}, {"clients": 0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            Feedback(np.eye(2), 1, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be"):
        Feedback(np.eye(2), 3)
    feedback = Feedback(np.eye(2), 1, clients=2)
    client, server = feedback.client(0), feedback.server(np.zeros(2), 1.0)
    with pytest.raises(ValueError, match="from 0 to 1"):
        feedback.client(2)
    with pytest.raises(ValueError, match="shape"):
        client.message(np.zeros(3))
    with pytest.raises(ValueError, match="finite"):
        feedback.server(np.zeros(2), math.nan)
    with pytest.raises(ValueError, match="decide must follow proposal"):
        server.decide(0.0)
    message = client.message(np.ones(2))
    with pytest.raises(ValueError, match="2 clients, got 1"):
        server.proposal([message])
    server.proposal([message, message])
    with pytest.raises(ValueError, match="between two rounds"):
        server.state()
    with pytest.raises(ValueError, match="clients of the Feedback"):
        run_feedback(Quadratic(np.eye(2), np.ones(2)), feedback)


def test_the_metric_of_one_client() -> None:
    """A of the largest eigenvectors of L₁ and the next eigenvalue; of a small L₁ all of it."""
    f = _label_sorted(4)
    L1 = f.client_smoothness()[0]
    feedback = Feedback.from_client(L1, clients=4)
    assert (feedback.k, feedback.clients, feedback.certified) == (1, 4, False)
    w, V = np.linalg.eigh(L1)
    w[: -feedback.L.matrix.U.shape[1]] = w[-5]
    A = np.column_stack([feedback.step(row) for row in np.eye(f.d)])
    np.testing.assert_allclose(A @ A.T, (V / w) @ V.T, rtol=1e-9, atol=1e-9 / w[0])
    assert feedback.setup_floats == (121 / 4, 121)
    small = Feedback.from_client(np.diag([1.0, 2.0, 3.0]), 2, clients=2)
    assert small.k == 2 and small.setup_floats == (1.5, 3)
    record = run_feedback(f, feedback, floats=600.0)
    assert record.floats[0] == 1 + 121 / 4 and record.values[-1] < 0.2 * record.values[0]
    for bad in (np.diag([1.0, 1.0, 0.0, 0.0, 0.0, 0.0]), np.ones((2, 3))):
        with pytest.raises(ValueError, match="L1"):
            Feedback.from_client(bad)
    with pytest.raises(ValueError, match="rank"):
        Feedback.from_client(L1, rank=0)


def test_the_floats_of_a_setup() -> None:
    """A dense L is its triangle, a diagonal one its diagonal, a factor of r columns one pass with r + 1 vectors."""
    thin = LowRankPlusDiagonal(np.ones((6, 2)), 1.0)
    for L, floats in (
        (None, 0),
        (np.ones((3, 3)) + np.eye(3), 6),
        (np.diag([1.0, 2.0]), 2),
        (thin, 18),
        ([thin, np.eye(2)], 20),
    ):
        assert Feedback(L, 1, clients=3).setup_floats == (floats, floats)
