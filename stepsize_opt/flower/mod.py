"""The client's side: x comes from the client's own state, and the gradient that the app returns leaves as k floats."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict

from stepsize_opt.flower.replicas import FeedbackReplica, Replica, load_replica, read_method, save_replica
from stepsize_opt.flower.wire import ARRAYS, LOSS, OWN, own_record, require

ClientAppCallable = Callable[[Message, Context], Message]

# What the client keeps in Context.state: x, and all else under OWN.
_X = f"{OWN}-x"


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
        news, kept = own_record(message.content), own_record(context.state)
        if not news:
            return call_next(message, context)
        memory: Any = news.get("memory", kept.get("memory"))
        known = "memory" in news or kept.get("session") == news["session"]
        replica = _replica(read_method(compressor(context)), message.content, context.state) if known else None
        if replica is None:
            return Message(RecordDict({OWN: ConfigRecord({"lost": True})}), reply_to=message)
        training = message.metadata.message_type.startswith(MessageType.TRAIN)
        others = {name: record for name, record in message.content.items() if name != OWN}
        arrays = replica.layout.record(replica.point(training=training))
        message.content = RecordDict({**others, ARRAYS: arrays})
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        metrics, sent = dict(reply.content.metric_records), {}
        if training:
            numbers, memory = replica.encode(_gradient(replica, reply.content), memory)
            sent = {OWN: ConfigRecord(numbers)}
            if isinstance(replica, FeedbackReplica) and LOSS not in news:
                metrics = {name: _without_loss(record) for name, record in metrics.items()}
        context.state[_X], fields = save_replica(replica)
        context.state[OWN] = ConfigRecord({**fields, "session": news["session"], "memory": memory})
        reply.content = RecordDict({**sent, **metrics})
        return reply

    return mod


def _replica(method: Any, content: RecordDict, state: RecordDict) -> Replica | None:
    """Return the replica as the message leaves it; None where the client does not have what the packets build on."""
    news = own_record(content)
    if "kind" in news:
        return load_replica(method, content.array_records[ARRAYS], news)
    packets = news.get("packets", [])
    replica = load_replica(method, state.array_records[_X], own_record(state))
    if replica.version + len(packets) != news["version"]:
        return None
    for packet in packets:
        replica.apply(packet)
    return replica


def _gradient(replica: Replica, answer: RecordDict) -> Any:
    arrays = answer.array_records
    require(ARRAYS in arrays, f"the train function must return the gradient under {ARRAYS!r}, got {list(answer)}")
    return replica.layout.vector(arrays[ARRAYS])


def _without_loss(record: MetricRecord) -> MetricRecord:
    return MetricRecord({name: value for name, value in record.items() if name != LOSS})
