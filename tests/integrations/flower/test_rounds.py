"""Rounds in one process: iterates of the numpy runner, bytes, absent and hostile clients, lost replies, errors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from integrations.flower.loop import FIRST, Loop, app_of, start
from stepsize_opt import CompressedStep, Feedback, RandK, optimal_method, optimal_stepsize
from stepsize_opt.flower import FeedbackStrategy, MissingReplies, SharedSeedStrategy, compress_mod
from stepsize_opt.flower.wire import OWN, Layout, content_bytes, own_record, pack_places, unpack_places
from stepsize_opt.problems import Federated
from stepsize_opt.sketches.draws import generators
from stepsize_validation import run, run_feedback
from stepsize_validation.data import federated_logistic, load_dataset, split

N, K, REG = 4, 8, 0.1
LINEAR: Any = {"goal": "linear", "strong_convexity": REG}


@pytest.fixture(scope="module")
def f() -> Federated:
    return federated_logistic(split(load_dataset("breast_cancer"), N, np.random.default_rng(0), "label"), REG, "ridge")


SHARED: dict[str, Callable[[Any], Any]] = {
    "det-CGD1": lambda L: optimal_stepsize(L, RandK(len(L), K)),
    "det-CGD2, momentum": lambda L: optimal_stepsize(
        L, RandK(len(L), K), algorithm="det-CGD2", **LINEAR, momentum=True
    ),
    "subspace": lambda L: optimal_method(L, K),
    "momentum": lambda L: optimal_method(L, K, **LINEAR, momentum=True),
    "momentum, convex": lambda L: optimal_method(L, K, goal="convex", momentum=True),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_draws_have_the_iterates_of_the_numpy_runner_and_send_k_floats(name: str, f: Federated) -> None:
    """x travels once to each client; afterwards 8 bytes for each float, and Flower's own around them."""
    method, rounds = SHARED[name](f.smoothness()), 30
    loop = Loop(app_of(method, f), N)
    result = start(SharedSeedStrategy(method, N, seed=3), loop, np.zeros(f.d), rounds)
    record = run(f, method, iterations=rounds, seeds=1, seed=3, client_seeds="shared")
    np.testing.assert_allclose(result.arrays["x"].numpy(), record.final_points[0], rtol=1e-12, atol=1e-14)
    floats = [result.train_metrics_clientapp[r]["floats"] for r in range(1, rounds + 1)]
    np.testing.assert_array_equal(N * np.array(floats), record.sent[0])
    sent = (2 if "det-CGD2" in name else 1) * K
    for place, (_, content) in enumerate(loop.down):
        own = own_record(content)
        assert ("arrays" in content) == ("kind" in own) == (place < N)
        if place >= N:
            assert [len(packet) for packet in own["packets"]] == [8 * sent]
            assert content_bytes(content) < 8 * sent + 500
    for _, content in loop.up:
        assert list(own_record(content)) == ["numbers"] and len(own_record(content)["numbers"]) == 8 * sent
        assert not content.array_records and content_bytes(content) < 8 * sent + 500
    for r in range(1, rounds + 1):
        measured = result.train_metrics_clientapp[r]
        for name_of, messages in (("bytes-down", loop.down), ("bytes-up", loop.up)):
            assert measured[name_of] == sum(content_bytes(content) for _, content in messages[(r - 1) * N : r * N])


@pytest.mark.parametrize("rule", ["worst-case", "measured"])
def test_feedback_has_the_iterates_of_the_numpy_runner(rule: Any, f: Federated) -> None:
    feedback = Feedback(f.smoothness(), 3, clients=N, rule=rule)
    result = start(FeedbackStrategy(feedback), Loop(app_of(feedback, f), N), np.zeros(f.d), 40)
    record = run_feedback(f, feedback, rounds=40)
    np.testing.assert_allclose(result.arrays["x"].numpy(), record.final_point, rtol=1e-11, atol=1e-13)
    found = [result.train_metrics_clientapp[r] for r in range(1, 41)]
    assert [bool(one["accepted"]) for one in found] == record.accepted.tolist()
    assert [bool(one["checked"]) for one in found] == record.checked.tolist()
    floats = 1 + feedback.setup_floats.mean + np.cumsum([0, *(one["floats"] for one in found)])
    np.testing.assert_allclose(
        floats[1:] - 1, record.floats[1:]
    )  # the first round has f(x⁰), which counts as setup there
    np.testing.assert_allclose([one["f"] for one in found], record.values[1:], rtol=1e-12)
    bounds = [one.get("bound", math.inf) for one in found]
    np.testing.assert_allclose(bounds, record.bounds, rtol=1e-9)


def test_feedback_in_coordinates_ends_at_the_rounding_of_f(f: Federated) -> None:
    """Without L; the rounds that remain send nothing, and one timeout is for all messages."""
    feedback = Feedback(None, 20, clients=N)
    loop = Loop(app_of(feedback, f), N)
    result = start(FeedbackStrategy(feedback), loop, np.zeros(f.d), 800, timeout=7.0)
    assert loop.timeouts == {7.0}
    made = len(result.train_metrics_clientapp)
    checks = sum(one["checked"] for one in result.train_metrics_clientapp.values())
    assert made < 800 and len(loop.down) == N * (made + checks)
    assert np.linalg.norm(f.gradient(result.arrays["x"].numpy()[None])) < 1e-6


def test_float32_arrays_of_several_shapes_stay_as_they_are(f: Federated) -> None:
    """All replicas round alike; a newcomer in round 3 has the same x as the others."""
    method = SHARED["momentum"](f.smoothness())
    loop = Loop(app_of(method, f), N)
    result = start(SharedSeedStrategy(method, N, evaluate=True), loop, np.zeros(f.d, np.float32), 20, timeout=7.0)
    x = result.arrays["x"].numpy()
    record = run(f, method, iterations=20, seeds=1, seed=0, client_seeds="shared")
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, record.final_points[0], atol=1e-6)
    last = result.evaluate_metrics_clientapp[20]["loss"]  # the clients evaluate x
    assert last == pytest.approx(f.value(record.final_points)[0], rel=1e-5) and loop.timeouts == {7.0}
    layout = Layout.of(ArrayRecord({"a": Array(np.zeros((2, 3), np.float32)), "b": Array(np.zeros(4))}), 10)
    x = np.linspace(0.1, 0.9, 10)
    again = layout.vector(layout.record(x))
    assert layout.dtype == np.float64
    np.testing.assert_array_equal(again, layout.rounded(x))
    np.testing.assert_array_equal(again, [*x[:6].astype(np.float32), *x[6:]])


def test_feedback_sends_k_floats_up_and_the_union_down(f: Federated) -> None:
    feedback = Feedback(f.smoothness(), 3, clients=N)
    loop = Loop(app_of(feedback, f), N)
    result = start(FeedbackStrategy(feedback), loop, np.zeros(f.d), 6)
    start_of = np.cumsum([0, N, 2 * N, N, 2 * N, N, 2 * N])  # f is evaluated in every second round
    sizes: list[int] = []  # of the packets of the last round
    for r in range(6):
        down, up = (part[start_of[r] : start_of[r + 1]] for part in (loop.down, loop.up))
        trained = [own_record(content) for _, content in up[:N]]
        assert all(("loss" in content["metrics"]) == (r == 0) for _, content in up[:N])
        assert all(len(one["numbers"]) == 24 and len(one["places"]) == 4 for one in trained)  # 30 bits for 3 places
        union = np.unique([unpack_places(one["places"], 3, f.d) for one in trained])
        change = 12 + 8 * len(union) + len(pack_places(union, f.d))  # W, the number of places, values and places
        for _, content in down[N:]:  # to evaluate
            assert "arrays" not in content and [len(one) for one in own_record(content)["packets"]] == [change]
        for _, content in up[N:]:
            assert not content.array_records and not own_record(content)
            assert "loss" in content["metrics"]
        for _, content in down[:N]:  # to train: where x moves, and c
            assert "arrays" in content if r == 0 else [len(one) for one in own_record(content)["packets"]] == sizes
        sizes = [9] if len(down) == 2 * N else [change, 9]
        measured = result.train_metrics_clientapp[r + 1]
        assert measured["bytes-down"] == sum(content_bytes(content) for _, content in down)
        assert measured["bytes-up"] == sum(content_bytes(content) for _, content in up)


@pytest.mark.parametrize("d", [7, 300, 70_000])
def test_places_survive(d: int) -> None:
    rng = np.random.default_rng(d)
    for count in (1, 3, d // 20 + 1, d // 2, d):
        places = np.sort(rng.choice(d, count, replace=False))
        packed = pack_places(places, d)
        assert len(packed) <= -(-d // 8)
        np.testing.assert_array_equal(unpack_places(packed, count, d), places)
    for wrong in (np.array([5, 5]), np.array([5, 3]), np.array([0, 2, 4])):
        with pytest.raises(ValueError, match="places that are not 2 ascending ones below"):
            unpack_places(wrong.astype("<u4" if d > 1 << 16 else "<u2").tobytes(), 2, d)


# ---------------------------------------------------------------- absent clients, lost replies, lost states


def partial_feedback(feedback: Feedback, f: Federated, present: list[list[int]], weights: Any) -> Any:
    """The rounds once more, by the formulas: memories of all, f over those present, ρ only where all are."""
    memories: dict[int, Any] = {}
    x, c = np.zeros(f.d), 1.0
    for clients in present:
        for i in clients:
            t, e = feedback.coefficients(f.clients[i].gradient(x[None])[0]), memories.setdefault(i, np.zeros(f.d))
            J = np.argsort(np.abs(t - e))[-feedback.k :]
            e[J] = t[J]
        s = sum(weights[i] * e for i, e in memories.items()) / sum(weights[i] for i in memories)
        y = x - c * feedback.step(s)
        before, after = (
            np.average([f.clients[i].value(z[None])[0] for i in clients], weights=[weights[i] for i in clients])
            for z in (x, y)
        )
        if before - after >= 0.2 * c * (s @ s):
            x, c = y, 1.1 * c
        else:
            c = max(0.5 * c, min(c, 0.5))
    return x


@pytest.mark.parametrize("weighted", [False, True])
def test_feedback_with_sampled_clients(weighted: bool, f: Federated) -> None:
    """Absent clients keep their memory, and s is the mean over all that ever took part."""
    feedback, rounds = Feedback(f.smoothness(), 3, clients=N), 60
    loop = Loop(app_of(feedback, f), N)
    key = "num-examples" if weighted else None
    strategy = FeedbackStrategy(feedback, fraction_train=0.5, seed=5, weighted_by_key=key)
    result = start(strategy, loop, np.zeros(f.d), rounds)
    nodes = [node - FIRST for node, _ in loop.down]
    present = [nodes[4 * r : 4 * r + 2] for r in range(rounds)]
    assert all(nodes[4 * r + 2 : 4 * r + 4] == present[r] for r in range(rounds))  # the same train and evaluate
    assert len({tuple(one) for one in present}) > 3
    weights = np.arange(1, N + 1) if weighted else np.ones(N)
    x = result.arrays["x"].numpy()
    np.testing.assert_allclose(x, partial_feedback(feedback, f, present, weights), rtol=1e-9, atol=1e-12)
    assert np.average([one.value(x[None])[0] for one in f.clients], weights=weights) < 0.4
    assert all("bound" not in one for one in result.train_metrics_clientapp.values())
    # x comes whole to a newcomer, and to a client that missed more than two packets.
    whole = [node for node, content in loop.down if "arrays" in content]
    assert set(whole) == set(loop.contexts) and len(whole) < len(loop.down) / 2
    for node, context in loop.contexts.items():
        assert len(own_record(context.state)["memory"]) == 8 * f.d, node


def test_sampled_clients_of_momentum_catch_up(f: Federated) -> None:
    """Whoever missed one or two means gets them, any other x and z; the step is that of the clients present."""
    method = SHARED["momentum"](f.smoothness())
    loop = Loop(app_of(method, f), N)
    result = start(SharedSeedStrategy(method, N, fraction_train=0.5, seed=1), loop, np.zeros(f.d), 40)
    nodes = [node - FIRST for node, _ in loop.down]
    state, rng = method.start(np.zeros(f.d)), generators(1, 1)[0]
    for r in range(40):
        draw, y = method.draw(rng), method.point(state)
        gradient = np.mean([f.clients[i].gradient(y[None])[0] for i in nodes[2 * r : 2 * r + 2]], axis=0)
        state = method.advance(state, method.encode(gradient, draw), draw)
    np.testing.assert_allclose(result.arrays["x"].numpy(), state.x, rtol=1e-10, atol=1e-13)
    missed = [len(own_record(content)["packets"]) for _, content in loop.down if "arrays" not in content]
    assert set(missed) == {1, 2} and any("arrays" in content for _, content in loop.down[4 * N :])


def test_a_reply_that_is_lost_is_not_remembered(f: Federated) -> None:
    """The client changed its memory, the server did not hear of it: the client takes it back."""
    feedback = Feedback(f.smoothness(), 3, clients=N)
    loop = Loop(app_of(feedback, f), N, silent=lambda call, node: node == FIRST + 1 and call in (3, 5, 8))
    strategy = FeedbackStrategy(feedback, missing="reweight")
    result = start(strategy, loop, np.zeros(f.d), 31)
    found = [result.train_metrics_clientapp[r] for r in range(1, 32)]
    # Call 3 evaluates y in round 2; calls 5 and 8 train in rounds 4 and 6, from an x that is not checked.
    assert [one["clients"] for one in found][:7] == [4, 3, 4, 3, 4, 3, 4]
    assert [one["checked"] for one in found][:7] == [0, 1, 0, 1, 0, 1, 0] and found[-1]["checked"]
    for node, context in loop.contexts.items():
        kept = own_record(context.state)
        np.testing.assert_array_equal(np.frombuffer(kept["memory"]), strategy._memories[node])
    np.testing.assert_allclose(
        result.train_metrics_clientapp[31]["f"], run_feedback(f, feedback, rounds=500).values[-1], atol=1e-4
    )


@pytest.mark.parametrize("name", ["subspace", "momentum", "feedback"])
def test_a_node_that_lost_its_state_gets_it_again_in_the_same_round(name: str, f: Federated) -> None:
    """And a second strategy of the same run begins anew."""
    method = Feedback(f.smoothness(), 3, clients=N) if name == "feedback" else SHARED[name](f.smoothness())
    strategy: Any = FeedbackStrategy if name == "feedback" else SharedSeedStrategy

    class Restarted(Loop):
        def send_and_receive(self, messages: Any, **options: Any) -> Any:
            if self.calls in (7, 12):
                self.contexts[FIRST + 2] = self.fresh(2)
            return super().send_and_receive(messages, **options)

    app = app_of(method, f)
    grids = [once := Loop(app, N), once, Restarted(app, N)]
    first, second, third = (start(strategy(method, N), grid, np.zeros(f.d), 15).arrays["x"].numpy() for grid in grids)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, third)


# ---------------------------------------------------------------- clients that stay away, rounds without replies


@pytest.mark.parametrize("forget_after", [4, 11, 12])
def test_the_memory_of_a_client_that_stays_away_is_forgotten(forget_after: int, f: Federated) -> None:
    """After ``forget_after`` rounds s is the mean over the others; a client that comes back begins anew.

    One that came back in the very next round sent the change of what the server had just forgotten.
    """
    feedback = Feedback(f.smoothness(), 3, clients=N)
    away = range(4, 26)  # calls; the first three make two rounds, then two make one: rounds 3 to 13 miss node 101
    loop = Loop(app_of(feedback, f), N, silent=lambda call, node: node == FIRST + 1 and call in away)
    totals = []

    class Watched(FeedbackStrategy):
        def _remember(self, found: Any) -> None:
            super()._remember(found)
            memories = {node: memory.copy() for node, memory in self._memories.items()}
            totals.append((self.replica.weight, self.replica.total.copy(), memories))

    start(Watched(feedback, missing="reweight", forget_after=forget_after), loop, np.zeros(f.d), 16)
    weights = [weight for weight, _, _ in totals]
    absent = max(11 - forget_after, 0)  # last seen in round 2, away until round 13
    assert weights == [4] * (13 - absent) + [3] * absent + [4] * 3
    for _, total, memories in totals:
        np.testing.assert_allclose(total, sum(memories.values()), rtol=1e-12, atol=1e-15)
    for node, context in loop.contexts.items():
        kept = own_record(context.state)
        np.testing.assert_array_equal(np.frombuffer(kept["memory"]), totals[-1][2][node])


@pytest.mark.parametrize(
    ("name", "calls", "skipped"), [("subspace", {4, 5, 6}, [4, 5, 6]), ("feedback", {5}, [4]), ("feedback", {7}, [5])]
)
def test_a_round_without_replies_is_skipped(name: str, calls: set[int], skipped: list[int], f: Federated) -> None:
    """The others are the rounds of a run without it; of feedback, one begins where f was not checked, and one does."""
    method = Feedback(f.smoothness(), 3, clients=N) if name == "feedback" else SHARED[name](f.smoothness())
    kind: Any = FeedbackStrategy if name == "feedback" else SharedSeedStrategy

    def made(rounds: int, silent: Any) -> Any:
        loop = Loop(app_of(method, f), N, silent=silent)
        return start(kind(method, N, missing="reweight"), loop, np.zeros(f.d), rounds)

    skipping, plain = made(12 + len(calls), lambda call, node: call in calls), made(12, lambda call, node: False)
    np.testing.assert_array_equal(skipping.arrays["x"].numpy(), plain.arrays["x"].numpy())
    assert [r for r in range(1, 13 + len(calls)) if r not in skipping.train_metrics_clientapp] == skipped


def test_a_round_without_values_at_y_rejects_y(f: Federated) -> None:
    feedback = Feedback(f.smoothness(), 3, clients=N)
    loop = Loop(app_of(feedback, f), N, silent=lambda call, node: call == 3)  # at y of round 2
    result = start(FeedbackStrategy(feedback, missing="reweight"), loop, np.zeros(f.d), 30)
    accepted = [result.train_metrics_clientapp[r]["accepted"] for r in range(1, 31)]
    assert accepted[1] == 0 and sum(accepted) > 15 and result.train_metrics_clientapp[30]["f"] < 0.3


def test_missing_replies_carry_x_the_history_and_the_cause(f: Federated) -> None:
    method = SHARED["subspace"](f.smoothness())

    def failing(gradient: Any, message: Any) -> Any:
        if message.content["config"]["server-round"] == 4 and message.metadata.dst_node_id == FIRST + 2:
            msg = "Exception ray::ClientAppActor\n" + 300 * "preamble " + "\nValueError: gradient must be finite\n\n"
            raise RuntimeError(msg)
        return gradient

    strategy = SharedSeedStrategy(method, N, evaluate=True)
    with pytest.raises(MissingReplies) as caught:
        start(strategy, Loop(app_of(method, f, gradient=failing), N), np.zeros(f.d), 9)
    expected = start(SharedSeedStrategy(method, N), Loop(app_of(method, f), N), np.zeros(f.d), 3)
    assert caught.value.reasons == {FIRST + 2: "ValueError: gradient must be finite"}
    assert "102: ValueError: gradient must be finite" in str(caught.value) and "preamble" not in str(caught.value)
    result = caught.value.result
    np.testing.assert_array_equal(result.arrays["x"].numpy(), expected.arrays["x"].numpy())
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [1, 2, 3]
    for r, metrics in expected.train_metrics_clientapp.items():
        assert result.train_metrics_clientapp[r]["loss"] == metrics["loss"]


def test_an_error_that_another_mod_answers_is_the_cause(f: Federated) -> None:
    method = SHARED["subspace"](f.smoothness())

    def refuse(message: Message, context: Any, call_next: Any) -> Message:
        return Message(Error(7, "no data"), reply_to=message)

    app = ClientApp(mods=[compress_mod(lambda context: method), refuse])
    app.train()(lambda message, context: message)
    with pytest.raises(MissingReplies) as caught:
        start(SharedSeedStrategy(method, N), Loop(app, N), np.zeros(f.d), 1)
    assert caught.value.reasons == dict.fromkeys(range(FIRST, FIRST + N), "no data")


# ---------------------------------------------------------------- weights, metrics, errors


def test_weights_and_metrics_of_the_clients(f: Federated) -> None:
    """f = Σ aᵢfᵢ / Σ aᵢ; numbers and lists are averaged with the same weights."""
    method = CompressedStep.of(0.1 * np.eye(f.d), RandK(f.d, K))
    strategy = SharedSeedStrategy(method, N, weighted_by_key="num-examples")
    result = start(strategy, Loop(app_of(method, f), N), np.zeros(f.d), 3)
    x, rng, weights = np.zeros(f.d), generators(0, 1)[0], np.arange(1, N + 1)
    for _ in range(3):
        loss = np.average([one.value(x[None])[0] for one in f.clients], weights=weights)
        draw = method.draw(rng)
        gradient = np.average([one.gradient(x[None])[0] for one in f.clients], axis=0, weights=weights)
        x = x - method.decode(method.encode(gradient, draw), draw)
    np.testing.assert_allclose(result.arrays["x"].numpy(), x, rtol=1e-12, atol=1e-15)
    metrics = result.train_metrics_clientapp[3]
    assert metrics["loss"] == pytest.approx(loss, rel=1e-12)
    assert metrics["both"] == pytest.approx([np.average(np.arange(N), weights=weights), 1.0])
    assert "num-examples" not in metrics


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gradient": lambda g, m: {"y": g["x"]}}, r"in their order; got \[\('y', \(30,\)\)\]"),
        ({"gradient": lambda g, m: {"x": g["x"][:5]}}, r"in their order; got \[\('x', \(5,\)\)\]"),
        ({"gradient": lambda g, m: {"x": g["x"].astype(int)}}, "floating-point"),
        ({"gradient": lambda g, m: {"x": g["x"] * math.nan}}, "must be finite|0 finite ones of 3 numbers"),
        ({"metrics": lambda own, m: {"n": 1.0}}, "the metric 'loss', a number; got None"),
        ({"metrics": lambda own, m: {"loss": math.inf, "n": 1.0}}, "'loss' must be finite, got inf"),
        ({"metrics": lambda own, m: {"loss": 1.0, "n": 0}}, "must be positive and finite, got 0"),
        ({}, "the metric 'n', a number; got None"),
    ],
)
def test_a_client_that_sends_something_else_is_named_with_the_reason(changes: Any, reason: str, f: Federated) -> None:
    feedback, key = Feedback(f.smoothness(), 3, clients=N), None if "gradient" in changes else "n"
    loop = Loop(app_of(feedback, f, **changes), N)
    with pytest.raises(MissingReplies, match=rf"round 1: 0 of 4 clients sent what is needed \(100: .*{reason}"):
        start(FeedbackStrategy(feedback, weighted_by_key=key), loop, np.zeros(f.d), 2)


def test_server_and_clients_need_the_same_method(f: Federated) -> None:
    L = f.smoothness()
    ours, theirs = Feedback(L, 3, clients=N), Feedback(L, 5, clients=N)
    for method, reason in (
        (theirs, "5 finite ones of 5 numbers instead of 3; is its method that of the server"),
        (optimal_method(L, 3), "the server runs Feedback, but compress_mod was given SubspaceMethod"),
        (Feedback(L[:9, :9], 3), r"hold 30 numbers, but the compressor is for d=9"),
    ):
        with pytest.raises(MissingReplies, match=reason):
            start(FeedbackStrategy(ours), Loop(app_of(method, f), N), np.zeros(f.d), 1)
    with pytest.raises(ValueError, match=r"hold 29 numbers, but the compressor is for d=30"):
        start(FeedbackStrategy(ours), Loop(app_of(ours, f), N), np.zeros(29), 1)


@pytest.mark.parametrize("k", [3, 30])
def test_a_client_whose_gradient_is_not_finite_sends_no_change(k: int, f: Federated) -> None:
    """Where x was not checked; the rounds are those of the numpy clients."""
    feedback = Feedback(f.smoothness(), k, clients=N)

    def broken(r: int, i: int) -> bool:
        return (r, i) in {(2, 1), (6, 0), (6, 3)}

    def gradient(found: Any, message: Any) -> Any:
        r, i = message.content["config"]["server-round"], message.metadata.dst_node_id - FIRST
        return {"x": found["x"] * (math.nan if broken(r, i) else 1.0)}

    result = start(FeedbackStrategy(feedback), Loop(app_of(feedback, f, gradient=gradient), N), np.zeros(f.d), 20)
    clients, server = (
        [feedback.client(i) for i in range(N)],
        feedback.server(np.zeros(f.d), f.value(np.zeros((1, f.d)))),
    )
    for r in range(1, 21):
        gradients = f.client_gradients(server.x[None])[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            messages = [
                client.message(gradients[i] * (math.nan if broken(r, i) else 1.0)) for i, client in enumerate(clients)
            ]
        y = server.proposal(messages)
        metrics = result.train_metrics_clientapp[r]
        assert ("bound" in metrics) == math.isfinite(server.bound) and metrics["clients"] == N
        server.decide(f.value(y[None]) if server.checks else None)
    np.testing.assert_allclose(result.arrays["x"].numpy(), server.checked, rtol=1e-11, atol=1e-13)


# ----------------------------------------------------------------
# one hostile client: whatever it replies, the run is that of the others, to the last bit, or ends with a reason


FEW, HOSTILE, ROUNDS = 3, FIRST + 1, 5
Change = Callable[[RecordDict], Any]


class Hostile(Loop):
    """A grid in which one node replies what ``change`` makes of its reply: a content, or an error."""

    def __init__(self, app: Any, change: Change, phase: str) -> None:
        super().__init__(app, N)
        self.change, self.phase = change, phase

    def send_and_receive(self, messages: Any, **options: Any) -> Any:
        return [self._altered(reply) for reply in super().send_and_receive(messages, **options)]

    def _altered(self, reply: Message) -> Message:
        hostile = reply.metadata.src_node_id == HOSTILE and self.phase in reply.metadata.message_type
        if not hostile:
            return reply
        changed = self.change(reply.content)
        if isinstance(changed, Error):
            return Message(error=changed, metadata=reply.metadata)
        return Message(content=changed, metadata=reply.metadata)


def own(**entries: Any) -> Change:
    """Entries of the record of the mod; None removes one."""

    def change(content: RecordDict) -> RecordDict:
        kept = {name: entry for name, entry in (own_record(content) | entries).items() if entry is not None}
        return RecordDict({**content.metric_records, OWN: ConfigRecord(kept)})

    return change


def metrics(**entries: Any) -> Change:
    def change(content: RecordDict) -> RecordDict:
        kept = {name: entry for name, entry in (dict(content["metrics"]) | entries).items() if entry is not None}
        return RecordDict({**content.config_records, "metrics": MetricRecord(kept)})

    return change


def floats(*values: float) -> bytes:
    return np.array(values).tobytes()


TYPES: list[Any] = [7, 7.5, "seven", True, [7, 8, 9], [7.0], ["a"], [b"a"], [True]]
REPLIES: dict[str, Change] = {
    **{f"numbers {entry!r}": own(numbers=entry) for entry in TYPES},
    "no numbers": own(numbers=None),
    "empty": own(numbers=b""),
    "part of a float": own(numbers=b"x"),
    "too few": own(numbers=floats(1.0, 2.0)),
    "too many": own(numbers=floats(*range(4))),
    "40 MB": own(numbers=bytes(40_000_000)),
    "NaN": own(numbers=floats(1.0, math.nan, 1.0)),
    "infinite": own(numbers=floats(1.0, -math.inf, 1.0)),
    **{f"floats of {size:g}": own(numbers=floats(0.1, -size, 0.1)) for size in (1.7e308, 1e155, 1e100, 1e7)},
    "an unknown entry": own(more=1),
    "nothing": lambda content: RecordDict(),
    "metrics alone": lambda content: RecordDict({**content.metric_records}),
    "metrics for entries": lambda content: RecordDict({**content.metric_records, OWN: MetricRecord({"numbers": 1.0})}),
    "arrays for entries": lambda content: RecordDict({OWN: ArrayRecord({"numbers": Array(np.ones(3))})}),
    "lost for ever": lambda content: RecordDict({OWN: ConfigRecord({"lost": True})}),
    "lost, and numbers": own(lost="yes"),
    "an error": lambda content: Error(1, "Traceback\n  line 1\nValueError: out of memory\n"),
    "an error without a reason": lambda content: Error(1),
    "an error of 10 MB": lambda content: Error(1, "x" * 10_000_000),
    **{f"weight {entry!r}": metrics(weight=entry) for entry in (None, 0, -1.0, math.nan, math.inf, 1e300, [1.0], [])},
}
FEEDBACK_REPLIES: dict[str, Change] = {
    **{f"places {entry!r}": own(places=entry) for entry in TYPES},
    "no places": own(places=None),
    "no bytes of places": own(places=b""),
    "repeated places": own(places=np.array([1, 1, 2], dtype="<u2").tobytes()),
    "descending places": own(places=np.array([3, 2, 1], dtype="<u2").tobytes()),
    "places above d": own(places=np.array([1, 2, 30], dtype="<u2").tobytes()),
    "all bits": own(places=b"\xff" * 4),
    **{
        f"loss {entry!r}": metrics(loss=entry)
        for entry in (None, math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 2**62, [1.0], [], [[]][0])
    },
}


def hostile_run(kind: str, f: Federated, grid: Callable[[Any], Loop], **options: Any) -> Any:
    """A run in which all clients have one weight."""
    strategy: Any = SharedSeedStrategy if kind == "shared" else FeedbackStrategy
    method: Any = optimal_method(f.smoothness(), FEW) if kind == "shared" else Feedback(f.smoothness(), FEW, clients=N)
    app = app_of(method, f, metrics=lambda found, message: {**found, "weight": 1.0})
    return start(strategy(method, N, weighted_by_key="weight", **options), grid(app), np.zeros(f.d), ROUNDS)


def feedback_run(f: Federated, change: Change, phase: str) -> Any:
    return hostile_run("feedback", f, lambda app: Hostile(app, change, phase), missing="reweight")


CASES = [("shared", name) for name in REPLIES] + [("feedback", name) for name in REPLIES | FEEDBACK_REPLIES]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_hostile_reply_counts_as_none(kind: str, name: str, f: Federated) -> None:
    change = (REPLIES | FEEDBACK_REPLIES)[name]
    result = hostile_run(kind, f, lambda app: Hostile(app, change, "train"), missing="reweight")
    expected = hostile_run(
        kind, f, lambda app: Loop(app, N, silent=lambda call, node: node == HOSTILE), missing="reweight"
    )
    np.testing.assert_array_equal(result.arrays["x"].numpy(), expected.arrays["x"].numpy())
    assert [result.train_metrics_clientapp[r]["clients"] for r in range(1, ROUNDS + 1)] == [N - 1] * ROUNDS
    with pytest.raises(MissingReplies, match=rf"round 1: 3 of 4 .*\({HOSTILE}: ") as caught:
        hostile_run(kind, f, lambda app: Hostile(app, change, "train"))
    assert list(caught.value.reasons) == [HOSTILE] and len(str(caught.value)) < 600


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, -(2**62)])
def test_a_loss_at_y_beyond_the_bound_rejects_y(loss: Any, f: Federated) -> None:
    result = feedback_run(f, metrics(loss=loss), "evaluate")
    assert [result.train_metrics_clientapp[r]["accepted"] for r in range(1, ROUNDS + 1)] == [1] + [0] * (ROUNDS - 1)
    assert not result.arrays["x"].numpy().any()


def test_a_weight_beyond_the_bound_does_not_set_the_means_of_the_evaluation(f: Federated) -> None:
    """Its metrics alone were the means of all."""
    change = metrics(weight=1e300, accuracy=1.0)
    result = hostile_run("shared", f, lambda app: Hostile(app, change, "evaluate"), missing="reweight", evaluate=True)
    assert result.evaluate_metrics_clientapp[ROUNDS]["clients"] == N - 1
    assert "accuracy" not in result.evaluate_metrics_clientapp[ROUNDS]


@pytest.mark.parametrize("change", [metrics(loss=None), metrics(loss=[1.0]), lambda content: Error(1, "gone")])
def test_a_client_without_a_loss_at_y_is_left_out_of_f(change: Change, f: Federated) -> None:
    """The others check every second round, in which x goes on from the one before."""
    result = feedback_run(f, change, "evaluate")
    assert [result.train_metrics_clientapp[r]["clients"] for r in range(1, ROUNDS + 1)] == [N, N - 1, N, N - 1, N]
    assert result.arrays["x"].numpy().any()


def test_one_client_alone_ends_nothing_either(f: Federated) -> None:
    """With nobody to compare, only what overflows is refused."""
    alone = Federated(f.clients[:1])
    for size in (1e100, 1.7e308):
        change = own(numbers=floats(size, size, size))
        method = Feedback(alone.smoothness(), FEW)

        class Alone(Hostile):
            def get_node_ids(self) -> Any:
                return [HOSTILE]

        grid = Alone(app_of(method, f), change, "train")
        result = start(FeedbackStrategy(method, missing="reweight"), grid, np.zeros(f.d), ROUNDS)
        assert not result.arrays or np.isfinite(result.arrays["x"].numpy()).all()


def test_what_was_refused_does_not_raise_the_bound(f: Federated) -> None:
    """Clients that break in turns would have the median after two rounds."""
    method = optimal_method(f.smoothness(), FEW)

    def broken(gradient: Any, message: Message) -> Any:
        turn = FIRST + message.content["config"]["server-round"] % N
        return {"x": gradient["x"] * (1e12 if message.metadata.dst_node_id == turn else 1.0)}

    loop = Loop(app_of(method, f, gradient=broken), N)
    result = start(SharedSeedStrategy(method, N, missing="reweight"), loop, np.zeros(f.d), ROUNDS)
    assert [result.train_metrics_clientapp[r]["clients"] for r in range(1, ROUNDS + 1)] == [N - 1] * ROUNDS


@pytest.mark.parametrize("more", [{"acc": [1.0, 2.0]}, {"acc": []}, {"acc": math.nan}, {"acc": 1.7e308}, {"f": 3.0}])
def test_metrics_of_the_app_never_end_a_run(more: Any, f: Federated) -> None:
    result = feedback_run(f, metrics(**more), "train")
    assert [result.train_metrics_clientapp[r]["clients"] for r in range(1, ROUNDS + 1)] == [N] * ROUNDS
    assert result.train_metrics_clientapp[ROUNDS]["f"] < 0.7


def test_floats_of_honest_clients_are_far_below_the_bound(f: Federated) -> None:
    """One client with data in a unit 1000 times smaller, and clients with losses 1e9 times larger, all count."""
    method = Feedback(f.smoothness(), FEW, clients=N)

    def scaled(gradient: Any, message: Message) -> Any:
        return {"x": gradient["x"] * (1e3 if message.metadata.dst_node_id == HOSTILE else 1.0)}

    result = start(FeedbackStrategy(method), Loop(app_of(method, f, gradient=scaled), N), np.zeros(f.d), ROUNDS)
    assert len(result.train_metrics_clientapp) == ROUNDS
    everybody = app_of(
        method,
        f,
        gradient=lambda gradient, message: {"x": 1e9 * gradient["x"]},
        metrics=lambda found, message: {**found, "loss": 1e9 * found["loss"]},
    )
    result = start(FeedbackStrategy(method), Loop(everybody, N), np.zeros(f.d), ROUNDS)
    assert len(result.train_metrics_clientapp) == ROUNDS
