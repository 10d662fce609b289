"""A simulation in which one of three clients fails or is hostile from round 2 on, each time in another way.

python failing_client.py shared|feedback OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from stepsize_opt import CompressedStep, Feedback, RandK
from stepsize_opt.flower import FeedbackStrategy, MissingReplies, SharedSeedStrategy, compress_mod

KIND = sys.argv[1]
METHOD: Any = CompressedStep.of(0.5 * np.eye(3), RandK(3, 2)) if KIND == "shared" else Feedback(np.eye(3), 2, clients=3)
ROUNDS = 6
# What the second client sends for its floats, by rounds.
HOSTILE: dict[int, Any] = {4: "seven", 5: np.full(2, 1e9).tobytes()}


def hostile(message: Message, context: Context, call_next: Any) -> Message:
    """A mod that changes what leaves the client, after compress_mod."""
    reply = call_next(message, context)
    now = message.content["config"]["server-round"]
    if int(context.node_config["partition-id"]) == 1 and now in HOSTILE and reply.content.config_records:
        [(name, record)] = reply.content.config_records.items()
        changed = ConfigRecord({**record, "numbers": HOSTILE[now]})
        reply.content = RecordDict({**reply.content.metric_records, name: changed})
    return reply


client, server = ClientApp(mods=[hostile, compress_mod(lambda context: METHOD)]), ServerApp()


def loss(message: Message, context: Context) -> MetricRecord:
    x = message.content["arrays"]["x"].numpy() - int(context.node_config["partition-id"])
    return MetricRecord({"loss": 0.5 * float(x @ x)})


@client.train()
def train(message: Message, context: Context) -> Message:
    place = int(context.node_config["partition-id"])
    gradient, now = message.content["arrays"]["x"].numpy() - place, message.content["config"]["server-round"]
    if place == 1 and now == 2:
        msg = "out of memory"
        raise RuntimeError(msg)
    arrays = ArrayRecord({"y" if place == 1 and now == 3 else "x": Array(gradient)})
    return Message(RecordDict({"arrays": arrays, "metrics": loss(message, context)}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    return Message(RecordDict({"metrics": loss(message, context)}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy: Any = SharedSeedStrategy if KIND == "shared" else FeedbackStrategy
    start, out = ArrayRecord({"x": Array(np.zeros(3))}), {}
    done = strategy(METHOD, 3, seed=1, missing="reweight").start(grid, start, num_rounds=ROUNDS)
    out["x"] = done.arrays["x"].numpy().tolist()
    out["clients"] = [done.train_metrics_clientapp[k]["clients"] for k in range(1, ROUNDS + 1)]
    try:
        strategy(METHOD, 3, seed=1).start(grid, start, num_rounds=3)
    except MissingReplies as error:
        out["error"], out["reasons"] = str(error), list(error.reasons.values())
        out["rounds"] = list(error.result.train_metrics_clientapp)
    Path(sys.argv[2]).write_text(json.dumps(out))


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=3, backend_config={"client_resources": {"num_cpus": 1}})
