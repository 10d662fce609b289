"""The client's side: the gradient that a ClientApp returns leaves as k numbers."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message, RecordDict

from stepsize_opt.flower.wire import ARRAYS, CONFIG, GENERATOR, check_compressor, check_like, flat, message_of, unpack
from stepsize_opt.methods import Compressor

ClientAppCallable = Callable[[Message, Context], Message]


def compress_mod(
    compressor: Callable[[Context], Compressor],
) -> Callable[[Message, Context, ClientAppCallable], Message]:
    """A mod for ``ClientApp(mods=[…])`` that sends what ``compressor`` makes of the gradient instead of the gradient.

    The app's train function gets x under ``message.content["arrays"]`` and returns ∇fᵢ(x) under the same name, with the
    same arrays in the same order.  The mod draws with the state of the generator that ``SharedSeedStrategy`` put into
    the message, so that all clients draw the same, a client that comes back as well.  Metrics of the reply stay;
    replies to messages of other strategies pass unchanged.

    Parameters
    ----------
    compressor
        Makes the compressor from the context, say from a file that ``context.run_config`` names: ``CompressedStep``
        or the subspace method, the same as the server's.

    Examples
    --------
    See ``SharedSeedStrategy``.
    """

    if not callable(compressor):
        msg = "compressor must be a function of the context: compress_mod(lambda context: step)"
        raise TypeError(msg)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        config = message.content.config_records.get(CONFIG)
        state = None if config is None else config.get(GENERATOR)
        reply = call_next(message, context)
        if not isinstance(state, bytes) or reply.has_error():
            return reply
        step = check_compressor(compressor(context))
        answer = reply.content.array_records.get(ARRAYS)
        if answer is None:
            msg = f"the train function must return the gradient under {ARRAYS!r}, got {list(reply.content)}"
            raise ValueError(msg)
        check_like(answer, message.content.array_records[ARRAYS])
        gradient = flat(answer, step.d)
        numbers = step.encode(gradient, step.draw(unpack(state)))
        sent = RecordDict({ARRAYS: message_of(numbers.astype(gradient.dtype))})
        for name, metrics in reply.content.metric_records.items():
            sent[name] = metrics
        reply.content = sent
        return reply

    return mod
