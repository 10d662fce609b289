"""The server's side: x⁺ = x − decode of the mean of the clients' numbers."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterable
from logging import INFO, WARNING
from time import sleep
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from stepsize_opt.flower.wire import ARRAYS, CONFIG, GENERATOR, check_compressor, flat, like, numbers_of, pack, unpack
from stepsize_opt.inputs import whole_number
from stepsize_opt.methods import Compressor
from stepsize_opt.sketches import generators
from stepsize_solvers.programs import Vector

_SECONDS_BETWEEN_LOOKS = 1.0
_REASON = 200  # letters of an error that a client sends; a traceback would hide who failed


class MissingReplies(RuntimeError):
    """Some clients sent no numbers in a round, and the strategy was not told to go on without them.

    Examples
    --------
    See ``SharedSeedStrategy``.
    """


class SharedSeedStrategy(Strategy):
    """Compressed gradient descent over n clients that share their draws: each sends k floats per round.

    In every round all clients get x and the state of the generator, draw the same S, and send the numbers
    of their gradients (``compress_mod``); x⁺ = x − decode(mean of the numbers).  That is the method of one node with
    f = (1/n) Σ fᵢ, and its certificate holds.  The iterates are those of ``stepsize_validation.run`` with
    ``client_seeds="shared"`` and the same seed.

    Once n nodes have connected, the n with the smallest ids are the clients, the same in all rounds.  There are no
    evaluation rounds; ``start(evaluate_fn=…)`` evaluates on the server.

    Parameters
    ----------
    compressor
        ``CompressedStep`` or the subspace method, the same as the clients'.
    clients
        Their number n.
    seed
        Of the draws.
    missing
        What happens when clients send an error, nothing, or something other than k finite numbers: ``"raise"`` raises
        ``MissingReplies``; ``"reweight"`` takes the mean over the others and says so in the log and in the metrics
        ``clients``.  In such a round the step is one for another f, which no certificate covers.  When none of them
        sent its numbers, it raises in both cases.

    Notes
    -----
    The metrics of a round: ``clients``, who replied; ``numbers``, how many numbers each of them sent; ``bytes-up`` and
    ``bytes-down``, the content of all replies and of all messages as Flower counts it, with its headers.

    Raises
    ------
    ValueError, TypeError
        For something that is not a compressor, a number of clients below 1, or another word for ``missing``.

    Examples
    --------
    The page "Use it in your training loop" of the documentation has a whole app.

    >>> from stepsize_opt import optimal_method
    >>> from stepsize_opt.flower import SharedSeedStrategy, compress_mod
    >>> step = optimal_method([[2.0, 1.0], [1.0, 3.0]], 1)
    >>> mod = compress_mod(lambda context: step)  # for ClientApp(mods=[mod])
    >>> SharedSeedStrategy(step, clients=4, missing="reweight").clients
    4
    """

    def __init__(self, compressor: Compressor, clients: int, *, seed: int = 0, missing: str = "raise") -> None:
        if missing not in ("raise", "reweight"):
            msg = f"missing must be 'raise' or 'reweight', got {missing!r}"
            raise ValueError(msg)
        self.compressor, self.missing = check_compressor(compressor), missing
        self.clients = whole_number("clients", clients)
        self._rng = generators(seed, 1)[0]
        self._nodes: list[int] = []
        self._arrays = ArrayRecord()
        self._state, self._bytes_down = b"", 0

    def summary(self) -> None:
        """Log what the strategy does."""
        log(INFO, "\t├──> %s clients share their draws, d = %s", self.clients, self.compressor.d)
        log(INFO, "\t└──> missing replies: %s", self.missing)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round: x, and the state of the generator with which all clients draw."""
        flat(arrays, self.compressor.d)  # refuses an x of the wrong size before it travels
        while not self._nodes:
            connected = sorted(grid.get_node_ids())
            if len(connected) >= self.clients:
                self._nodes = connected[: self.clients]
            else:
                log(INFO, "Waiting for clients: %s of %s connected", len(connected), self.clients)
                sleep(_SECONDS_BETWEEN_LOOKS)
        # aggregate_train is not given x.
        self._arrays, self._state = arrays, pack(self._rng)
        sent = ConfigRecord({**config, "server-round": server_round, GENERATOR: self._state})
        content = RecordDict({ARRAYS: arrays, CONFIG: sent})
        self._bytes_down = self.clients * _bytes(content)
        return [Message(content, dst_node_id=node, message_type=MessageType.TRAIN) for node in self._nodes]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """x⁺ and the metrics of the round; raises MissingReplies as ``missing`` says."""
        answers = {reply.metadata.src_node_id: reply for reply in replies}
        rng = unpack(self._state)
        draw = self.compressor.draw(rng)
        size = self.compressor.encode(np.zeros(self.compressor.d), draw).size
        # In the order of the nodes, so that sums round in the same way whoever was faster.
        found = {node: _numbers(answers.get(node), size) for node in self._nodes}
        good = {node: numbers for node, numbers in found.items() if not isinstance(numbers, str)}
        if len(good) < self.clients:
            told = "; ".join(f"{node}: {reason}" for node, reason in found.items() if node not in good)
            text = f"round {server_round}: {len(good)} of {self.clients} clients sent their numbers ({told})"
            if self.missing == "raise" or not good:
                raise MissingReplies(text)
            log(WARNING, "%s; the mean is over those who did, which no certificate covers", text)
        self._rng = rng
        numbers = np.array(list(good.values()))
        x = flat(self._arrays, self.compressor.d) - self.compressor.decode(numbers.mean(axis=0), draw)
        metrics: dict[str, Any] = {
            "clients": len(good),
            "numbers": int(numbers.shape[1]),
            "bytes-up": sum(_bytes(answers[node].content) for node in good),
            "bytes-down": self._bytes_down,
        }
        return like(self._arrays, x), MetricRecord(metrics)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: clients do not evaluate."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing to aggregate."""
        return None


def _numbers(reply: Message | None, size: int) -> Vector | str:
    """The ``size`` finite numbers of a reply, or why it does not count."""
    if reply is None:
        return "no reply"
    if reply.has_error():
        return str(reply.error.reason)[:_REASON]
    numbers = numbers_of(reply.content)
    if numbers is None:
        return "a reply without compressed numbers; is compress_mod among the mods of its ClientApp?"
    if numbers.shape != (size,):
        return f"{numbers.size} numbers instead of {size}; is its compressor that of the server?"
    return numbers if np.isfinite(numbers).all() else "numbers that are not finite"


def _bytes(content: RecordDict) -> int:
    return sum(record.count_bytes() for record in content.values())
