"""A grid in one process: it calls the client app itself, and may lose replies, states and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from stepsize_opt.flower import compress_mod
from stepsize_opt.problems import Federated

FIRST = 100  # the id of node 0

# A Message can be made only in a process that Flower started, which sets these; it has no public way to set them.
TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def app_of(method: Any, f: Federated, **changes: Callable[[Any, Message], Any]) -> ClientApp:
    """The app whose client i has fᵢ; ``changes`` of "gradient" or "metrics" are given the answer and the message."""
    app = ClientApp(mods=[compress_mod(lambda context: method)])

    def answer(name: str, value: Any, message: Message) -> Any:
        return changes[name](value, message) if name in changes else value

    def metrics(message: Message, context: Context) -> RecordDict:
        x, i = message.content["arrays"]["x"].numpy(), int(context.node_config["partition-id"])
        found = {"loss": float(f.clients[i].value(x[None].astype(float))[0]), "num-examples": i + 1, "both": [i, 1]}
        return RecordDict({"metrics": MetricRecord(answer("metrics", found, message))})

    @app.train()
    def train(message: Message, context: Context) -> Message:
        x, i = message.content["arrays"]["x"].numpy(), int(context.node_config["partition-id"])
        gradient = {"x": f.clients[i].gradient(x[None].astype(float))[0].astype(x.dtype)}
        arrays = {name: Array(part) for name, part in answer("gradient", gradient, message).items()}
        return Message(
            RecordDict({"arrays": ArrayRecord(arrays), **metrics(message, context).metric_records}), reply_to=message
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(metrics(message, context), reply_to=message)

    return app


class Loop:
    """Nodes 100, 101, …; ``silent(call, node)`` loses replies, and all messages and replies are kept."""

    def __init__(self, app: ClientApp, n: int, silent: Callable[[int, int], bool] = lambda call, node: False) -> None:
        self.app, self.silent, self.calls = app, silent, 0
        self.contexts = {FIRST + i: self.fresh(i) for i in range(n)}
        self.down: list[tuple[int, RecordDict]] = []
        self.up: list[tuple[int, RecordDict]] = []
        self.timeouts: set[float | None] = set()

    @staticmethod
    def fresh(i: int) -> Context:
        return Context(1, FIRST + i, {"partition-id": i}, RecordDict(), {})

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked, replies = list(messages), []
        self.timeouts.add(timeout)
        self.calls += bool(asked)
        for message in asked:
            node = message.metadata.dst_node_id
            self.down.append((node, message.content))
            try:
                reply = self.app(message, self.contexts[node])
            except Exception as error:
                reply = Message(Error(0, str(error)), reply_to=message)
            if not self.silent(self.calls, node):
                replies.append(reply)
                self.up.append((node, reply.content if reply.has_content() else RecordDict()))
        return replies


def start(strategy: Any, loop: Loop, x: Any, rounds: int, **options: Any) -> Any:
    return strategy.start(loop, ArrayRecord({"x": Array(np.asarray(x))}), num_rounds=rounds, **options)
