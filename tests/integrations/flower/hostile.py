"""A module for a copy of the example app: its second client sends numbers that are none, then one too many."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from logistic_app import client

from stepsize_opt.flower import compress_mod


def hostile(message: Message, context: Context, call_next: Any) -> Message:
    """A mod that changes what leaves the client, after compress_mod."""
    reply = call_next(message, context)
    if int(context.node_config["partition-id"]) == 1 and reply.content.config_records:
        [(name, record)] = reply.content.config_records.items()
        numbers = np.frombuffer(record["numbers"])
        first = message.content["config"]["server-round"] == 1
        changed = np.full_like(numbers, np.nan) if first else np.append(numbers, 1.0)
        record = ConfigRecord({**record, "numbers": changed.tobytes()})
        reply.content = RecordDict({**reply.content.metric_records, name: record})
    return reply


def method(context: Context) -> Any:
    return client.method(context.run_config["method"], context.run_config["plan"])


app = ClientApp(mods=[hostile, compress_mod(method)])
app.train()(client.train)
app.evaluate()(client.evaluate)
