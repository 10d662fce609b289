"""Feedback under bad messages and huge numbers: a refused round changes nothing, and no honest number ends a run."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepsize_opt import Feedback
from stepsize_opt.methods import FeedbackMessage, FeedbackServer, exchange, largest

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


def _seen(server: FeedbackServer) -> dict[str, Any]:
    state = server.state()
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in state.items()}


UNREADABLE: list[tuple[str, dict[str, Any]]] = [
    ("finite", {"values": np.array([np.nan, 1.0])}),
    ("finite", {"values": np.array([np.inf, 1.0])}),
    ("2 floats, got shape", {"values": np.ones((2, 1))}),
    ("2 floats, got shape", {"values": np.ones(3)}),
    ("2 floats, got shape", {"values": np.ones(1)}),
    ("2 floats, got shape", {"values": 1.0}),
    ("real numbers", {"values": np.array([1j, 2.0])}),
    ("real numbers", {"values": "12"}),
    ("real numbers", {"values": [True, False]}),
    ("array of numbers", {"values": [[1.0], [1.0, 2.0]]}),
    ("ascending", {"places": np.array([3, 1], dtype=np.uint8)}),
    ("ascending", {"places": np.array([0, 1], dtype=np.uint8)}),
    ("ascending", {"places": np.array([2, -100], dtype=np.int8)}),
    ("ascending", {"places": np.array([100, -100], dtype=np.int8)}),
    ("ascending", {"places": np.array([1, 1])}),
    ("ascending", {"places": np.array([2, 1])}),
    ("ascending", {"places": np.array([-1, 1])}),
    ("ascending", {"places": np.array([1, 4])}),
    ("ascending", {"places": np.array([0.0, 1.0])}),
    ("ascending", {"places": np.array([[0, 1]])}),
    ("ascending", {"places": np.array([False, True])}),
    ("ascending", {"places": None}),
    ("must come from a client", {"residual": 0.5}),
]


@pytest.mark.parametrize(("reason", "change"), UNREADABLE)
def test_a_refused_message_leaves_everything_as_it_was(reason: str, change: dict[str, Any]) -> None:
    """The message before it is not counted either: a retry has the bits of a server that never saw the bad one."""
    (server, messages), (other, _) = _start(), _start()
    before = _seen(server)
    with pytest.raises((ValueError, TypeError), match=rf"messages\[1\].*{reason}"):
        server.proposal([messages[0], replace(messages[1], **change)])
    assert _seen(server) == before
    np.testing.assert_array_equal(server.proposal(messages), other.proposal(messages))
    assert server.decide() == other.decide()
    assert _seen(server) == _seen(other) and server.bound == other.bound


@pytest.mark.parametrize("residual", [-1e9, -1e-300, math.nan, None, "1", True, 1j, np.ones(2)])
def test_a_residual_that_no_client_sends_is_refused(residual: Any) -> None:
    (server, messages), (other, _) = _start("shared"), _start("shared")
    before = _seen(server)
    with pytest.raises((ValueError, TypeError), match=r"messages\[1\]"):
        server.proposal([messages[0], replace(messages[1], residual=residual)])
    assert _seen(server) == before
    np.testing.assert_array_equal(server.proposal(messages), other.proposal(messages))


def test_places_of_another_client_are_refused_with_shared_places() -> None:
    server, messages = _start("shared")
    others = np.setdiff1d(np.arange(D), messages[0].places)
    with pytest.raises(ValueError, match="the places of client 0"):
        server.proposal([messages[0], replace(messages[1], places=others)])
    assert not server.s.any()


@pytest.mark.parametrize("residual", [-1.0, math.nan, "1"])
def test_propose_reads_the_residual_of_its_caller(residual: Any) -> None:
    server, _ = _start()
    before = _seen(server)
    with pytest.raises((ValueError, TypeError), match="residual must be"):
        server.propose(np.ones(D), residual)
    assert _seen(server) == before


def test_values_that_overflow_together_are_refused() -> None:
    server, messages = _start()
    huge = [replace(message, values=np.full(K, 1.7e308), places=np.arange(K)) for message in messages]
    server.proposal(huge)
    server.decide()
    before = _seen(server)
    with pytest.raises(ValueError, match="s must be finite"):
        server.proposal(huge)
    assert _seen(server) == before


@pytest.mark.parametrize("places", ["own", "shared"])
@pytest.mark.parametrize("size", [1e153, 1e200, 1e300])
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
    before = client.state()
    with pytest.warns(RuntimeWarning, match="sends no change"):
        message = client.message(np.array(gradient))
    assert not message.values.any() and message.residual == math.inf
    assert {name: np.array(value).tolist() for name, value in client.state().items()} == {
        name: np.array(value).tolist() for name, value in before.items()
    }
    assert client.message(np.array([1.7e308, 1.0])).values.tolist() == [1.0]


@pytest.mark.parametrize("bad", [np.array([0]), np.array([5, 6]), np.array([0, 1], dtype=np.uint8)])
def test_bad_places_leave_the_client_as_it_was(bad: Any) -> None:
    client = Feedback(None, 2, places="shared").client(0)
    with pytest.raises(ValueError, match="places must be an array of 2 ascending"):
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


def test_values_are_refused_in_a_round_without_a_check() -> None:
    server, messages = _start()
    server.proposal(messages)
    with pytest.raises(ValueError, match="values must be left out"):
        server.decide(0.5)
    assert server.rounds == 0 and server.decide() and server.checks


def test_y_that_is_not_finite_is_rejected_whatever_f_is_there() -> None:
    feedback = Feedback(1e-300 * np.eye(2), 1)
    server = feedback.server(np.zeros(2), 1.0)
    y = server.propose(np.array([1e200, 0.0]), 0.0)
    assert not np.isfinite(y).all()
    assert not server.decide() and not server.x.any()  # x stays, and the next round is checked
    server.propose(np.array([1e200, 0.0]), 0.0)
    assert not server.decide(-1.7e308) and not server.x.any()


def test_values_of_another_number_of_clients_do_not_end_the_round() -> None:
    server, messages = _start()
    server.careful = True
    server.proposal(messages)
    with pytest.raises(ValueError, match="one value for each of the 2 clients"):
        server.decide([1.0, 2.0, 3.0])
    assert server.rounds == 0 and server.decide([0.1, 0.1]) and server.rounds == 1


def test_a_mean_of_the_largest_floats_is_finite() -> None:
    feedback = Feedback(None, 1, clients=3)
    assert feedback.server(np.ones(2), [1.7e308] * 3).f == pytest.approx(1.7e308)


def test_servers_at_different_points_differ() -> None:
    feedback = Feedback(None, 1)
    one, other = feedback.server(np.ones(2), 1.0), feedback.server(np.zeros(2), 1.0)
    assert one != other and len({one, other}) == 2


@pytest.mark.parametrize(
    "name", ["f", "c", "residual", "decrease", "unchecked", "rounds", "settled", "s", "checked", "careful", "status"]
)
def test_a_bad_state_is_refused_as_a_whole(name: str) -> None:
    server, messages = _start()
    server.proposal(messages)
    server.decide()
    saved = server.state()
    fresh, _ = _start()
    before = _seen(fresh)
    with pytest.raises((ValueError, TypeError)):
        fresh.load_state({**saved, name: "x"})
    assert _seen(fresh) == before


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
