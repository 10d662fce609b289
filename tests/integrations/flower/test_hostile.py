"""One hostile client: whatever it replies, the run is that of the others, to the last bit, or ends with a reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from integrations.flower.loop import FIRST, Loop, app_of, start
from stepsize_opt import Feedback, optimal_method
from stepsize_opt.flower import FeedbackStrategy, MissingReplies, SharedSeedStrategy
from stepsize_opt.flower.wire import OWN, own_record
from stepsize_opt.problems import Federated
from stepsize_validation.data import federated_logistic, load_dataset, split

N, K, HOSTILE, ROUNDS = 4, 3, FIRST + 1, 5
Change = Callable[[RecordDict], Any]


@pytest.fixture(scope="module")
def f() -> Federated:
    return federated_logistic(split(load_dataset("breast_cancer"), N, np.random.default_rng(0), "label"), 0.1, "ridge")


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


def shared_run(f: Federated, grid: Callable[[Any], Loop], **options: Any) -> Any:
    method = optimal_method(f.smoothness(), K)
    strategy = SharedSeedStrategy(method, N, weighted_by_key="weight", **options)
    return start(strategy, grid(weighted_app(method, f)), np.zeros(f.d), ROUNDS)


def feedback_run(f: Federated, grid: Callable[[Any], Loop], **options: Any) -> Any:
    method = Feedback(f.smoothness(), K, clients=N)
    strategy = FeedbackStrategy(method, weighted_by_key="weight", **options)
    return start(strategy, grid(weighted_app(method, f)), np.zeros(f.d), ROUNDS)


def weighted_app(method: Any, f: Federated) -> Any:
    return app_of(method, f, metrics=lambda found, message: {**found, "weight": 1.0})


def without_it(app: Any) -> Loop:
    return Loop(app, N, silent=lambda call, node: node == HOSTILE)


RUNS = {"shared": shared_run, "feedback": feedback_run}
CASES = [("shared", name) for name in REPLIES] + [("feedback", name) for name in REPLIES | FEEDBACK_REPLIES]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_hostile_reply_counts_as_none(kind: str, name: str, f: Federated) -> None:
    change = (REPLIES | FEEDBACK_REPLIES)[name]
    result = RUNS[kind](f, lambda app: Hostile(app, change, "train"), missing="reweight")
    expected = RUNS[kind](f, without_it, missing="reweight")
    np.testing.assert_array_equal(result.arrays["x"].numpy(), expected.arrays["x"].numpy())
    assert [result.train_metrics_clientapp[r]["clients"] for r in range(1, ROUNDS + 1)] == [N - 1] * ROUNDS
    with pytest.raises(MissingReplies, match=rf"round 1: 3 of 4 .*\({HOSTILE}: ") as caught:
        RUNS[kind](f, lambda app: Hostile(app, change, "train"))
    assert list(caught.value.reasons) == [HOSTILE] and len(str(caught.value)) < 600


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, -(2**62)])
def test_a_loss_at_y_beyond_the_bound_rejects_y(loss: Any, f: Federated) -> None:
    result = feedback_run(f, lambda app: Hostile(app, metrics(loss=loss), "evaluate"), missing="reweight")
    assert [result.train_metrics_clientapp[r]["accepted"] for r in range(1, ROUNDS + 1)] == [1] + [0] * (ROUNDS - 1)
    assert not result.arrays["x"].numpy().any()


def test_a_weight_beyond_the_bound_does_not_set_the_means_of_the_evaluation(f: Federated) -> None:
    """Its metrics alone were the means of all."""
    change = metrics(weight=1e300, accuracy=1.0)
    result = shared_run(f, lambda app: Hostile(app, change, "evaluate"), missing="reweight", evaluate=True)
    assert result.evaluate_metrics_clientapp[ROUNDS]["clients"] == N - 1
    assert "accuracy" not in result.evaluate_metrics_clientapp[ROUNDS]


@pytest.mark.parametrize("change", [metrics(loss=None), metrics(loss=[1.0]), lambda content: Error(1, "gone")])
def test_a_client_without_a_loss_at_y_is_left_out_of_f(change: Change, f: Federated) -> None:
    """The others check every second round, in which x goes on from the one before."""
    result = feedback_run(f, lambda app: Hostile(app, change, "evaluate"), missing="reweight")
    assert [result.train_metrics_clientapp[r]["clients"] for r in range(1, ROUNDS + 1)] == [N, N - 1, N, N - 1, N]
    assert result.arrays["x"].numpy().any()


def test_one_client_alone_ends_nothing_either(f: Federated) -> None:
    """With nobody to compare, only what overflows is refused."""
    alone = Federated(f.clients[:1])
    for size in (1e100, 1.7e308):
        change = own(numbers=floats(size, size, size))
        method = Feedback(alone.smoothness(), K)

        class Alone(Hostile):
            def get_node_ids(self) -> Any:
                return [HOSTILE]

        grid = Alone(app_of(method, f), change, "train")
        result = start(FeedbackStrategy(method, missing="reweight"), grid, np.zeros(f.d), ROUNDS)
        assert not result.arrays or np.isfinite(result.arrays["x"].numpy()).all()


@pytest.mark.parametrize("more", [{"acc": [1.0, 2.0]}, {"acc": []}, {"acc": math.nan}, {"acc": 1.7e308}, {"f": 3.0}])
def test_metrics_of_the_app_never_end_a_run(more: Any, f: Federated) -> None:
    result = feedback_run(f, lambda app: Hostile(app, metrics(**more), "train"), missing="reweight")
    assert [result.train_metrics_clientapp[r]["clients"] for r in range(1, ROUNDS + 1)] == [N] * ROUNDS
    assert result.train_metrics_clientapp[ROUNDS]["f"] < 0.7


def test_floats_of_honest_clients_are_far_below_the_bound(f: Federated) -> None:
    """One client with data in a unit 1000 times smaller, and clients with losses 1e9 times larger, all count."""
    method = Feedback(f.smoothness(), K, clients=N)

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
