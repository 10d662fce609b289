"""The client's side: x comes from the client's own state, and the gradient that the app returns leaves as k floats."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from stepsize_opt.flower.replicas import FeedbackReplica, Replica, SharedDraws, load_replica, read_method, save_replica
from stepsize_opt.flower.wire import ARRAYS, LOSS, OWN, own_record, pack_places, require

ClientAppCallable = Callable[[Message, Context], Message]

# What the client keeps in Context.state: x, the rest of the replica, and its memory of feedback.
_X, _REPLICA, _MEMORY = f"{OWN}-x", f"{OWN}-replica", f"{OWN}-memory"


def compress_mod(compressor: Callable[[Context], Any]) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """Return a mod for ``ClientApp(mods=[…])`` that sends k floats of the gradient, and keeps x at the client.

    The train function finds x under ``message.content["arrays"]`` as in every Flower app (with momentum the point y at
    which the gradient is needed), and returns ∇fᵢ there under the same name, with the same arrays in the same order.
    For feedback it also returns fᵢ as the metric ``"loss"``, and so does the evaluate function; the first is sent only
    where the strategy asks for it.  Other metrics reach the strategy as they are, and messages of other strategies pass
    unchanged.

    x, z, the generator and the memory of feedback are in ``context.state``, which Flower keeps from round to round; a
    node that lost them asks for them, and the strategy sends them in the same round.

    Parameters
    ----------
    compressor
        Makes the method from the context, say from a file that ``context.run_config`` names; the same as the server's.

    Examples
    --------
    See ``SharedSeedStrategy`` and ``FeedbackStrategy``.
    """

    if not callable(compressor):
        msg = "compressor must be a function of the context: compress_mod(lambda context: step)"
        raise TypeError(msg)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        news = own_record(message.content)
        if not news:
            return call_next(message, context)
        replica = _replica(read_method(compressor(context)), message.content, context.state)
        if replica is None:
            return Message(RecordDict({OWN: ConfigRecord({"lost": True})}), reply_to=message)
        training = message.metadata.message_type.startswith(MessageType.TRAIN)
        others = {name: record for name, record in message.content.items() if name != OWN}
        arrays = replica.layout.record(replica.point(training=training))
        message.content = RecordDict({**others, ARRAYS: arrays})
        reply = call_next(message, context)
        context.state[_X], fields = save_replica(replica)
        context.state[_REPLICA] = ConfigRecord({**fields, "session": news["session"]})
        if reply.has_error():
            return reply
        sent = {OWN: ConfigRecord(_encoded(replica, reply.content, context.state))} if training else {}
        metrics = dict(reply.content.metric_records)
        if training and isinstance(replica, FeedbackReplica) and LOSS not in news:
            metrics = {name: _without_loss(record) for name, record in metrics.items()}
        reply.content = RecordDict({**sent, **metrics})
        return reply

    return mod


def _replica(method: Any, content: RecordDict, state: RecordDict) -> Replica | None:
    """Return the replica as the message leaves it; None where the client does not have what the message builds on."""
    news, kept = own_record(content), own_record(state, _REPLICA)
    known = kept.get("session") == news["session"]
    if "memory" in news:
        state[_MEMORY] = ConfigRecord({"memory": news["memory"]})
    elif not known:
        return None  # the server counts on a state that is gone
    if "kind" in news:
        return load_replica(method, content.array_records[ARRAYS], news)
    replica, packets = load_replica(method, state.array_records[_X], kept), news.get("packets", [])
    if replica.version + len(packets) != news["version"]:
        return None
    for packet in packets:
        replica.apply(packet)
    return replica


def _encoded(replica: Replica, answer: RecordDict, state: RecordDict) -> dict[str, Any]:
    """Return what is sent of the gradient."""
    arrays, kind = answer.array_records, replica.layout.dtype
    require(ARRAYS in arrays, f"the train function must return the gradient under {ARRAYS!r}, got {list(answer)}")
    gradient = replica.layout.vector(arrays[ARRAYS])
    if isinstance(replica, SharedDraws):
        return {"numbers": replica.encode(gradient).astype(kind).tobytes()}
    kept = own_record(state, _MEMORY)["memory"]
    memory = np.frombuffer(kept).copy() if kept else np.zeros(replica.layout.d)
    places, values = replica.encode(gradient, memory)
    state[_MEMORY] = ConfigRecord({"memory": memory.tobytes()})
    return {"numbers": values.tobytes(), "places": pack_places(places, replica.layout.d)}


def _without_loss(record: MetricRecord) -> MetricRecord:
    return MetricRecord({name: value for name, value in record.items() if name != LOSS})
