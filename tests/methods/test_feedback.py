"""Feedback: f never rises, the constants of the theorem, the basis, states and messages."""

from __future__ import annotations

import math
import pickle
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepsize_opt import EstimatedSmoothness, Feedback, LowRankPlusDiagonal
from stepsize_opt.methods import FeedbackClient, FeedbackMessage, FeedbackServer, exchange, largest
from stepsize_opt.methods.feedback import MEASURED, SETTLED, SUFFICIENT
from stepsize_opt.problems import Federated, Quadratic
from stepsize_validation import run_feedback
from stepsize_validation.data import federated_logistic, load_dataset, random_smoothness, split

KINDS = [(rule, places) for rule in ("worst-case", "measured") for places in ("own", "shared")]
every_kind = pytest.mark.parametrize(("rule", "places"), KINDS)


def _label_sorted(n: int = 10, penalty: str = "ridge") -> Federated:
    parts = split(load_dataset("breast_cancer"), n, np.random.default_rng(0), "label")
    return federated_logistic(parts, 1e-3, penalty)


def _begin(feedback: Feedback, d: int, f0: float) -> tuple[FeedbackServer, list[FeedbackClient]]:
    """A server at 0 and all clients."""
    return feedback.server(np.zeros(d), f0), [feedback.client(i) for i in range(feedback.clients)]


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
    server, clients = _begin(feedback, d, start)
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
    server, clients = _begin(feedback, f.d, float(f.value(np.zeros(f.d))))
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
    server, clients = _begin(feedback, d, 0.0)
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
    server, clients = _begin(feedback, 5, float(f.value(np.zeros(5))))
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
    single, other = (run_feedback(one, Feedback(f.smoothness(), 2), rounds=50) for one in (f.clients[0], f))
    np.testing.assert_allclose(single.values, other.values, rtol=1e-12)
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
        bound = feedback.residual_bound(float(smallest), f.d)
        z = other.propose(np.mean([client.memory for client in clients], axis=0), bound)
        np.testing.assert_allclose(z, y, rtol=1e-10, atol=1e-12)
        assert other.residual == pytest.approx(one.residual)
        values = f.value(y[None]) if one.checks else None
        assert one.decide(values) == other.decide(values)


@every_kind
def test_a_pickled_run_goes_on_to_the_same_bits(rule: Any, places: Any) -> None:
    f = _label_sorted(3)
    feedback = Feedback(f.smoothness(), 2, clients=3, rule=rule, places=places)

    def go(server: Any, clients: list[Any], rounds: int) -> None:
        for _ in range(rounds):
            y = _round(server, clients, f.client_gradients(server.x[None])[0])
            server.decide(f.value(y[None]) if server.checks else None)

    server, clients = _begin(feedback, f.d, float(f.value(np.zeros(f.d))))
    go(server, clients, 17)
    again, others = pickle.loads(pickle.dumps((server, clients)))
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
    wrong = EstimatedSmoothness(scale * f.smoothness(), 1.0, "test")
    record = run_feedback(f, Feedback(wrong, 5, clients=2), rounds=400)
    assert record.values[-1] < 0.15 * record.values[0]


def test_basis_is_orthonormal_in_every_form_of_L() -> None:
    rng = np.random.default_rng(0)
    U = rng.normal(size=(9, 2))
    own = rng.uniform(0.1, 3.0, 9)
    thin = [LowRankPlusDiagonal(U, 0.3), LowRankPlusDiagonal(U, own)]
    for L in (*thin, thin[1].todense()):
        for basis in ("eigenvectors", "root"):
            feedback = Feedback(L, 2, basis=basis)  # type: ignore[arg-type]
            A = np.column_stack([feedback.step(row) for row in np.eye(9)])
            transposed = np.column_stack([feedback.coefficients(row) for row in np.eye(9)])
            np.testing.assert_allclose(A.T @ (L @ np.eye(9)) @ A, np.eye(9), atol=1e-12)
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
    for L, floats in ((None, 0), (np.ones((3, 3)) + np.eye(3), 6), (np.diag([1.0, 2.0]), 2), (thin, 18)):
        assert Feedback(L, 1, clients=3).setup_floats == (floats, floats)


# ----------------------------------------------------------------
# feedback under bad messages and huge numbers: a refused round changes nothing, and no honest number ends a run


L = np.diag([1.0, 4.0, 9.0, 16.0])
GRADIENTS = np.array([[1.0, -2.0, 3.0, 0.5], [0.3, 0.2, -1.0, 2.0]])
D, K = 4, 2


def _start(places: Any = "own") -> tuple[FeedbackServer, list[FeedbackMessage]]:
    """A server, and the messages of two clients for its first round."""
    feedback = Feedback(L, K, clients=2, places=places)
    first, second = feedback.client(0), feedback.client(1)
    one = first.message(GRADIENTS[0])
    other = second.message(GRADIENTS[1], one.places if places == "shared" else None)
    return feedback.server(np.ones(D), 1.0), [one, other]


def _seen(one: FeedbackServer | FeedbackClient) -> dict[str, Any]:
    """All that a server or a client holds besides its Feedback, as plain values."""
    held = {name: value for name, value in vars(one).items() if name != "feedback"}
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in held.items()}


UNREADABLE: list[tuple[str, str, Any]] = [
    ("own", "values", np.array([np.nan, 1.0])),
    ("own", "values", np.ones((2, 1))),
    ("own", "values", np.ones(1)),
    ("own", "values", "12"),
    # Differences of small or unsigned types wrap around.
    ("own", "places", np.array([0, 1], dtype=np.uint8)),
    ("own", "places", np.array([100, -100], dtype=np.int8)),
    ("own", "places", np.array([1, 1])),
    ("own", "places", np.array([-1, 1])),
    ("own", "places", np.array([1, 4])),
    ("own", "places", np.array([0.0, 1.0])),
    ("own", "places", np.array([[0, 1]])),
    ("own", "places", None),
    ("own", "must come from a client", 0.5),
    *(("shared", "", residual) for residual in (-1e-300, math.nan, None, "1", True)),
]


@pytest.mark.parametrize(("places", "part", "value"), UNREADABLE)
def test_a_refused_message_leaves_everything_as_it_was(places: str, part: str, value: Any) -> None:
    """The message before it is not counted either: a retry has the bits of a server that never saw the bad one."""
    (server, messages), (other, _) = _start(places), _start(places)
    before, change = _seen(server), {part if part in ("values", "places") else "residual": value}
    with pytest.raises((ValueError, TypeError), match=rf"messages\[1\].*{part}"):
        server.proposal([messages[0], replace(messages[1], **change)])
    assert _seen(server) == before
    np.testing.assert_array_equal(server.proposal(messages), other.proposal(messages))
    assert server.decide() == other.decide()
    assert _seen(server) == _seen(other) and server.bound == other.bound


def _huge(messages: list[FeedbackMessage]) -> list[FeedbackMessage]:
    return [replace(message, values=np.full(K, 1.7e308), places=np.arange(K)) for message in messages]


def _elsewhere(messages: list[FeedbackMessage]) -> list[FeedbackMessage]:
    return [messages[0], replace(messages[1], places=np.setdiff1d(np.arange(D), messages[0].places))]


# The places, what was called before, what is refused, and what the error names.
REFUSED: list[tuple[str, list[Any], Any, str]] = [
    ("own", [], lambda server, messages: server.decide(0.0), "proposal"),
    ("own", [], lambda server, messages: server.proposal(messages[:1]), "2 clients"),
    ("shared", [], lambda server, messages: server.proposal(_elsewhere(messages)), "places of client 0"),
    *[("own", [], lambda server, messages, r=r: server.propose(np.ones(D), r), "residual") for r in (-1.0, math.nan)],
    ("own", [], lambda server, messages: server.propose(np.ones(3), 0.0), r"\bs must have shape"),
    ("own", ["proposal"], lambda server, messages: server.propose(np.ones(D), 0.0), "decide"),
    ("own", ["proposal"], lambda server, messages: server.decide(0.5), "values"),
    ("own", ["careful", "proposal"], lambda server, messages: server.decide([1.0, 2.0, 3.0]), "2 clients"),
    # Values that overflow together.
    ("own", ["huge", "decide"], lambda server, messages: server.proposal(_huge(messages)), r"\bs must"),
]


@pytest.mark.parametrize(("places", "before", "call", "words"), REFUSED)
def test_a_refused_call_leaves_the_server_as_it_was(places: str, before: list[str], call: Any, words: str) -> None:
    server, messages = _start(places)
    server.careful = "careful" in before
    if {"proposal", "huge"} & set(before):
        server.proposal(_huge(messages) if "huge" in before else messages)
    if "decide" in before:
        server.decide()
    seen = _seen(server)
    with pytest.raises((ValueError, TypeError), match=words):
        call(server, messages)
    assert _seen(server) == seen


@pytest.mark.parametrize("places", ["own", "shared"])
@pytest.mark.parametrize("size", [1e153, 1e300])
def test_huge_gradients_of_honest_clients_end_nothing(size: float, places: Any) -> None:
    """f(x) = size |x|²/2 over 10 001 coordinates, two clients with this f: c falls until a step is accepted."""
    d = 10_001
    feedback = Feedback(None, 1, clients=2, places=places)
    x0 = np.zeros(d)
    x0[:3] = 1.0

    def value(x: Any) -> float:
        return 0.5 * size * float(x @ x) if np.abs(x).max() < 1e2 else math.inf

    server, clients = feedback.server(x0, value(x0)), [feedback.client(i) for i in range(2)]
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.filterwarnings("ignore", "a gradient or its change is not finite")  # at points that are not checked
        for made in range(1, 1200):
            one = clients[server.chooser].message(size * server.x)
            given = one.places if places == "shared" else None
            other = clients[1 - server.chooser].message(size * server.x, given)
            y = server.proposal([one, other])
            server.decide([value(y), value(y)] if server.checks else None)
            assert server.rounds == made and math.isfinite(server.f)
    assert server.f < 0.7 * value(x0)


@pytest.mark.parametrize("gradient", [[-1.7e308, 0.0], [math.nan, 1.0], [math.inf, 0.0]])
def test_a_change_that_is_not_finite_is_not_sent(gradient: list[float]) -> None:
    client = Feedback(None, 1).client(0)
    client.message(np.array([1.7e308, 0.0]))
    before = _seen(client)
    with pytest.warns(RuntimeWarning, match="sends no change"):
        message = client.message(np.array(gradient))
    assert not message.values.any() and message.residual == math.inf
    assert _seen(client) == before
    assert client.message(np.array([1.7e308, 1.0])).values.tolist() == [1.0]


@pytest.mark.parametrize("bad", [np.array([0]), np.array([5, 6]), np.array([0, 1], dtype=np.uint8)])
def test_bad_places_leave_the_client_as_it_was(bad: Any) -> None:
    client = Feedback(None, 2, places="shared").client(0)
    with pytest.raises(ValueError, match="places"):
        client.message(np.ones(3), bad)
    assert client.message(np.ones(5)).places.shape == (2,)  # the size of the gradient was not remembered


@pytest.mark.parametrize("places", ["own", "shared"])
def test_a_client_without_a_finite_gradient_leaves_the_others_and_the_bound_unknown(places: Any) -> None:
    server, messages = _start(places)
    given = messages[0].places if places == "shared" else None
    with pytest.warns(RuntimeWarning, match="sends no change"):
        nothing = server.feedback.client(1).message(np.full(D, math.nan), given)
    server.proposal([messages[0], nothing])
    np.testing.assert_array_equal(server.s[messages[0].places], messages[0].values / 2)
    assert server.bound == math.inf and server.decide() and server.settled == 0


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan, [0.5, -math.inf], [math.inf, -math.inf]])
def test_values_that_are_not_finite_lead_back_to_the_checked_point(value: Any) -> None:
    server, messages = _start()
    x = server.x
    server.proposal(messages)
    assert server.decide() and server.x is not x
    server.proposal(messages)
    assert not server.decide(value)
    assert server.x is x is server.checked and server.careful
    assert (server.f, server.decrease, server.settled, server.rounds) == (1.0, 0.0, 0, 2)


def test_y_that_is_not_finite_is_rejected_whatever_f_is_there() -> None:
    feedback = Feedback(1e-300 * np.eye(2), 1)
    server = feedback.server(np.zeros(2), 1.0)
    y = server.propose(np.array([1e200, 0.0]), 0.0)
    assert not np.isfinite(y).all()
    assert not server.decide() and not server.x.any()  # x stays, and the next round is checked
    server.propose(np.array([1e200, 0.0]), 0.0)
    assert not server.decide(-1.7e308) and not server.x.any()


def test_a_mean_of_the_largest_floats_is_finite() -> None:
    feedback = Feedback(None, 1, clients=3)
    assert feedback.server(np.ones(2), [1.7e308] * 3).f == pytest.approx(1.7e308)


def test_servers_at_different_points_differ() -> None:
    feedback = Feedback(None, 1)
    one, other = feedback.server(np.ones(2), 1.0), feedback.server(np.zeros(2), 1.0)
    assert one != other and len({one, other}) == 2


def test_one_exchange() -> None:
    """What was sent moves from the rest to the memory, as it was rounded; it is the formula of all clients."""
    rng = np.random.default_rng(0)
    t, memory = rng.standard_normal(9), rng.standard_normal(9)
    before = memory.copy()
    places, values, rest = exchange(
        t, memory, lambda sizes: largest(sizes, 4), lambda values: values.astype(np.float32)
    )
    sizes = np.abs(t - before)
    assert values.dtype == np.float32 and np.all(np.diff(places) > 0)
    assert sizes[places].min() >= np.delete(sizes, places).max()
    np.testing.assert_array_equal(memory[places], before[places] + values)
    np.testing.assert_array_equal(np.delete(memory, places), np.delete(before, places))
    np.testing.assert_allclose(memory + rest, t, atol=1e-15)
    assert 0.0 < np.abs(rest[places]).max() < 1e-6
