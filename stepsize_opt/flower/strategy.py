"""The server's side: clients that share their draws, without memory or with momentum; and error feedback."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from time import sleep
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from stepsize_opt.flower.replicas import first_replica, read_method, save_replica
from stepsize_opt.flower.wire import ARRAYS, CONFIG, OWN, content_bytes, own_record, require, unpack_places
from stepsize_opt.inputs import check_one_of, whole_number
from stepsize_opt.methods import RUNNING, Feedback, FeedbackServer
from stepsize_solvers.programs import Vector

_SECONDS_BETWEEN_LOOKS = 1.0
_LOSS = "loss"
_Aggregated: TypeAlias = "tuple[ArrayRecord | None, MetricRecord | None]"
_REASON = 200  # letters of an error that a client sends; a traceback would hide who failed


class MissingReplies(RuntimeError):
    """Some clients did not send what a round needs, and the strategy was not told to go on without them.

    Examples
    --------
    See ``SharedSeedStrategy``.
    """


@dataclass(frozen=True, eq=False)
class Reply:
    """What counts of a client's reply: its metrics, its weight, and from training its floats with their places."""

    metrics: dict[str, Any]
    weight: float
    values: Any = None
    places: Any = None


class Rounds(Strategy):
    """Rounds in which the server publishes packets, and every client moves its own replica by them."""

    runs_feedback: ClassVar[bool]
    _timeout = 3600.0

    def __init__(
        self,
        method: Any,
        clients: int | None = None,
        *,
        seed: int = 0,
        sample: int | None = None,
        weighted_by: str | None = None,
        missing: Literal["raise", "reweight"] = "raise",
        evaluate: bool = False,
    ) -> None:
        check_one_of("missing", missing, ("raise", "reweight"))
        self.method = read_method(method)
        if isinstance(self.method, Feedback) is not self.runs_feedback:
            msg = f"{method!r} is for {'SharedSeed' if self.runs_feedback else 'Feedback'}Strategy"
            raise TypeError(msg)
        self.clients = whole_number("clients", getattr(self.method, "clients", None) if clients is None else clients)
        small = sample is None or whole_number("sample", sample) <= self.clients
        require(small, f"sample must be at most clients={self.clients}, got {sample}")
        self.seed, self.sample, self.weighted_by = seed, sample, weighted_by
        self.missing, self.evaluate = missing, evaluate

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        *args: Any,
        **options: Any,
    ) -> Result:
        """Run the rounds as every strategy of Flower does; ``timeout`` is for all messages, also those in a round."""
        self._timeout = timeout
        return super().start(grid, initial_arrays, num_rounds, timeout, *args, **options)

    def summary(self) -> None:
        """Log what the strategy does."""
        taking_part = "all" if self.sample is None else f"{self.sample} drawn in each round"
        log(INFO, "\t├──> %s clients, %s, weighted by %s", self.clients, taking_part, self.weighted_by)
        log(INFO, "\t└──> missing replies: %s", self.missing)

    # ---------------------------------------------------------------- messages to the clients

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The messages of a round: what a client needs to have x, and the app's settings."""
        if server_round == 1:
            self._begin(arrays)
        self._grid, self._asked = grid, self._choose(grid)
        self._bytes = {"bytes-up": 0, "bytes-down": 0}
        return self._messages(self._asked, MessageType.TRAIN, server_round, config)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Messages to the clients of the round, who evaluate at x; none unless ``evaluate=True``."""
        self._bytes = {"bytes-up": 0, "bytes-down": 0}
        return self._messages(self._asked, MessageType.EVALUATE, server_round, config) if self.evaluate else []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of the clients' metrics at x."""
        found = self._collect(self._asked, replies) if self.evaluate else {}
        return self._means(found, {}) if found else None

    def _begin(self, arrays: ArrayRecord) -> None:
        self.replica: Any = first_replica(self.method, arrays, self.seed)
        # Clients tell by it whether what they keep belongs to this run of the strategy.
        self._session = secrets.token_bytes(6)
        self._versions: dict[int, int] = {}
        self._packets: list[bytes] = []
        self._nodes: list[int] = []
        self._sampling = np.random.default_rng((self.seed, 1))

    def _choose(self, grid: Grid) -> list[int]:
        """The clients of a round in ascending order, once enough of them are connected."""
        needed = self.sample or 0 if self._nodes else self.clients
        while len(connected := sorted(grid.get_node_ids())) < needed:
            log(INFO, "Waiting for clients: %s of %s connected", len(connected), needed)
            sleep(_SECONDS_BETWEEN_LOOKS)
        self._nodes = self._nodes or connected[: self.clients]
        if self.sample is None:
            return self._nodes
        drawn = self._sampling.choice(len(connected), self.sample, replace=False)
        return [connected[i] for i in sorted(drawn)]

    def _messages(self, nodes: list[int], kind: str, server_round: int, config: ConfigRecord) -> list[Message]:
        self._last = kind, server_round, config
        settings = ConfigRecord({**config, "server-round": server_round})
        contents = [RecordDict({**self._news(node), CONFIG: settings}) for node in nodes]
        self._bytes["bytes-down"] += sum(map(content_bytes, contents))
        pairs = zip(contents, nodes, strict=True)
        return [Message(content, dst_node_id=node, message_type=kind) for content, node in pairs]

    def _news(self, node: int) -> dict[str, Any]:
        """The packets that a client has not seen; all of the replica where it has none, or missed too many."""
        common = {"session": self._session, "version": self.replica.version, **self._private(node)}
        missed = self.replica.version - self._versions.get(node, -1)
        if node not in self._versions or missed > len(self._packets):
            arrays, fields = save_replica(self.replica)
            return {ARRAYS: arrays, OWN: ConfigRecord({**common, **fields})}
        packets = {"packets": self._packets[len(self._packets) - missed :]} if missed else {}
        return {OWN: ConfigRecord({**common, **packets})}

    def _private(self, node: int) -> dict[str, Any]:
        """What is told to one client alone."""
        return {}

    def _publish(self, packet: bytes) -> None:
        """Apply a packet, and keep the last two, and as many before them as are shorter than x."""
        self.replica.apply(packet)
        self._packets.append(packet)
        x = self.replica.layout.d * self.replica.layout.dtype.itemsize
        while len(self._packets) > 2 and sum(map(len, self._packets)) > x:
            self._packets.pop(0)

    # ---------------------------------------------------------------- replies of the clients

    def _collect(self, nodes: list[int], replies: Iterable[Message], floats: int = 0) -> dict[int, Reply]:
        """The replies that count, in the order of the nodes, so that sums round in the same way whoever was faster."""
        answers = {reply.metadata.src_node_id: reply for reply in replies}
        lost = [node for node, one in answers.items() if not one.has_error() and "lost" in own_record(one.content)]
        if lost:
            log(WARNING, "nodes %s lost their state and get it again; were they restarted?", lost)
            self._versions = {node: version for node, version in self._versions.items() if node not in lost}
            again = self._grid.send_and_receive(self._messages(lost, *self._last), timeout=self._timeout)
            answers |= {reply.metadata.src_node_id: reply for reply in again}
        good, reasons = {}, []
        for node in nodes:
            try:
                good[node] = self._read(answers.get(node), floats)
            except ValueError as error:
                reasons.append(f"{node}: {str(error)[:_REASON]}")
            else:
                self._versions[node] = self.replica.version
                self._bytes["bytes-up"] += content_bytes(answers[node].content)
        if reasons:
            sent = f"{len(good)} of {len(nodes)} clients sent what is needed"
            text = f"round {self._last[1]}: {sent} ({'; '.join(reasons)})"
            if self.missing == "raise" or not good:
                raise MissingReplies(text)
            log(WARNING, "%s; the round goes on without the others, which no certificate covers", text)
        return good

    def _read(self, reply: Message | None, floats: int) -> Reply:
        """What counts of a reply that has to bring so many floats; raises ValueError with the reason if it does not."""
        if reply is None or reply.has_error():
            raise ValueError("no reply" if reply is None else reply.error.reason)
        records, sent, layout = reply.content.metric_records, own_record(reply.content), self.replica.layout
        metrics = {name: value for record in records.values() for name, value in record.items()}
        weight = 1.0 if self.weighted_by is None else _number(metrics, self.weighted_by)
        require(0 < weight < math.inf, f"the metric {self.weighted_by!r} must be positive and finite, got {weight}")
        loss = _number(metrics, _LOSS) if self.runs_feedback else 0.0
        if not floats:  # at y the loss may be infinite or NaN, which rejects y
            return Reply(metrics, weight)
        require(math.isfinite(loss), f"the metric {_LOSS!r} must be finite, got {loss}")
        require("numbers" in sent, "a reply without numbers; is compress_mod among the mods of its ClientApp?")
        values = np.frombuffer(sent["numbers"], dtype=layout.dtype).astype(np.float64)
        finite = int(np.isfinite(values).sum())
        found = f"{finite} finite ones of {len(values)} numbers instead of {floats}"
        require(finite == len(values) == floats, f"{found}; is its method that of the server?")
        places = unpack_places(sent["places"], floats, layout.d) if "places" in sent else None
        return Reply(metrics, weight, values, places)

    def _means(self, replies: Mapping[int, Reply], own: Mapping[str, Any]) -> MetricRecord:
        """The weighted means of the metrics that all clients sent, numbers or lists of one length, and those given."""
        weights, all_metrics = [one.weight for one in replies.values()], [one.metrics for one in replies.values()]
        shared = set.intersection(*map(set, all_metrics)) - {self.weighted_by}
        means = {
            name: np.average([metrics[name] for metrics in all_metrics], axis=0, weights=weights).tolist()
            for name in sorted(shared)
            if len({np.shape(metrics[name]) for metrics in all_metrics}) == 1
        }
        return MetricRecord({**means, "clients": len(replies), **self._bytes, **own})


class SharedSeedStrategy(Rounds):
    """Compressed gradient descent over n clients that share their draws: k floats up and k floats down in a round.

    All clients hold x (with momentum also z) and the generator.  In a round each draws the same S and sends k floats of
    its gradient (``compress_mod``); the server sends their mean, and every client makes the step itself.  That is the
    method of one node with f = (1/n) Σ fᵢ, and its certificate holds.  The iterates are those of
    ``stepsize_validation.run`` with ``client_seeds="shared"`` and the same seed.  A newcomer gets x, z and the
    generator; a client that was away gets the means that it missed, or x where that is shorter.

    Parameters
    ----------
    method
        ``CompressedStep``, the subspace method, the ``compressor()`` of a result with ``momentum=True``, or the result
        itself; the same as the clients'.
    clients
        Their number n.  Once n nodes have connected, the n with the smallest ids are the clients.
    seed
        Of the draws, and of the clients that are sampled.
    sample
        How many clients take part in a round, drawn from all that are connected; all n by default.
    weighted_by
        The metric of a client's reply that is its weight aᵢ, such as ``"num-examples"``: f = Σ aᵢfᵢ / Σ aᵢ, and L has
        to be a bound for this f.  By default all weights are equal.
    missing
        What happens when clients send an error, nothing, or something other than k finite numbers: ``"raise"`` raises
        ``MissingReplies``; ``"reweight"`` takes the mean over the others and logs it.  When nobody sent its numbers, it
        raises in both cases.
    evaluate
        Whether the clients of a round evaluate x after it, with the evaluate function of the app.

    Notes
    -----
    A step over a part of the clients (``sample``, ``"reweight"``) is one for another f, which no certificate covers.

    The metrics of a round: the means of the clients' own metrics; ``clients``, who replied; ``floats``, how many each
    of them sent; ``bytes-up`` and ``bytes-down``, the content of all replies and of all messages as Flower sends it,
    with its headers.

    Raises
    ------
    ValueError, TypeError
        For something that is not a compressor, a number of clients below 1, a sample above it, or another word for
        ``missing``.

    Examples
    --------
    The page "Flower" of the documentation has whole apps.

    >>> from stepsize_opt import optimal_method
    >>> from stepsize_opt.flower import SharedSeedStrategy, compress_mod
    >>> step = optimal_method([[2.0, 1.0], [1.0, 3.0]], 1)
    >>> mod = compress_mod(lambda context: step)  # for ClientApp(mods=[mod])
    >>> SharedSeedStrategy(step, clients=4, missing="reweight").clients
    4
    """

    runs_feedback = False

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> _Aggregated:
        """Publish the mean of the clients' floats; return x⁺ and the metrics of the round."""
        size = self.replica.encode(np.zeros(self.replica.layout.d)).size
        found = self._collect(self._asked, replies, size)
        weights = [reply.weight for reply in found.values()]
        mean = np.average([reply.values for reply in found.values()], axis=0, weights=weights)
        self._publish(mean.astype(self.replica.layout.dtype).tobytes())
        return self.replica.layout.record(self.replica.x), self._means(found, {"floats": size})


class FeedbackStrategy(Rounds):
    """Error feedback with a measured stepsize: k floats, their places and two values of f up in a round.

    Each client remembers what it sent, in its state.  In a round it computes ∇fᵢ(x) and fᵢ(x) and sends the k largest
    changes of Aᵀ∇fᵢ; the server sends the changes of all clients together, every client computes y = x − cAs and sends
    fᵢ(y); the next message tells whether x moves there.  With all clients in every round the iterates are those of
    ``stepsize_validation.run_feedback(f, feedback)``, and f never rises.

    Clients that are absent keep their memory, and the server goes on using it: s is the mean over all that ever took
    part.  f is then compared at x and y over the clients present in the round, so that f over all may rise, and
    neither the bound on ‖∇f‖ nor the one on the rounds is proved (``bound`` is missing in the metrics).

    Parameters
    ----------
    method
        ``Feedback`` with ``places="own"``, the same as the clients'.
    clients
        Their number n, by default that of the ``Feedback``; the first round waits until n nodes have connected.
    seed
        Of the clients that are sampled; feedback itself is not random.
    sample, weighted_by, missing, evaluate
        As in ``SharedSeedStrategy``.  The weight of a client is that of its first reply.

    Notes
    -----
    The app's train and evaluate functions return fᵢ as the metric ``"loss"``.

    The metrics of a round: those of ``SharedSeedStrategy``; ``accepted``, 1 if x moved; ``f`` over the clients present
    at the new x; ``stepsize``, c; ``bound``, ‖s‖ + ρ ≥ ‖∇f(x)‖ in the norm of L̂⁻¹ where all clients are present.  When
    the steps fall below the rounding of f, the remaining rounds send nothing.

    Examples
    --------
    The page "Flower" of the documentation has whole apps.

    >>> from stepsize_opt import Feedback
    >>> from stepsize_opt.flower import FeedbackStrategy, compress_mod
    >>> feedback = Feedback([[2.0, 1.0], [1.0, 3.0]], 1, clients=4)
    >>> mod = compress_mod(lambda context: feedback)  # for ClientApp(mods=[mod])
    >>> FeedbackStrategy(feedback, sample=2).clients
    4
    """

    runs_feedback = True

    def _begin(self, arrays: ArrayRecord) -> None:
        super()._begin(arrays)
        self._memories: dict[int, Vector] = {}
        self._weights: dict[int, float] = {}
        self._received: dict[int, int] = {}
        self._rule: FeedbackServer | None = None

    def _private(self, node: int) -> dict[str, Any]:
        """Which of its messages arrived last, and its memory if it lost it."""
        if node not in self._received:
            return {}
        memory = {} if node in self._versions else {"memory": self._memories[node].tobytes()}
        return {"received": self._received[node], **memory}

    def _choose(self, grid: Grid) -> list[int]:
        """The clients of a round; nobody once steps fall below the rounding of f."""
        return [] if self._rule is not None and self._rule.status != RUNNING else super()._choose(grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> _Aggregated:
        """Publish what changed, let the clients evaluate y, and decide; return x⁺ and the metrics of the round."""
        if not self._asked:
            return None, None
        found = self._collect(self._asked, replies, self.method.k)
        self._remember(found)
        messages = self._messages(list(found), MessageType.EVALUATE, *self._last[1:])
        answers = self._grid.send_and_receive(messages, timeout=self._timeout)
        values = self._collect(list(found), answers)
        present = {node: found[node] for node in values}
        rule, accepted = self._decide(present, values)
        own = {"floats": self.method.k + 2, "accepted": int(accepted), "f": rule.f, "stepsize": rule.c}
        bound = {"bound": rule.bound} if math.isfinite(rule.bound) else {}
        return self.replica.layout.record(self.replica.x), self._means(present, own | bound)

    def _remember(self, found: dict[int, Reply]) -> None:
        """Add the changes to the memories and to their sum, and publish the sum where it changed."""
        for node, reply in found.items():
            self._weights.setdefault(node, reply.weight)
            self._memories.setdefault(node, np.zeros(self.replica.layout.d))[reply.places] += reply.values
            self._received[node] = self.replica.version
        places = np.unique([reply.places for reply in found.values()])
        total = sum(self._weights[node] * memory[places] for node, memory in self._memories.items())
        self._publish(self.replica.change(places, total, sum(self._weights.values())))

    def _decide(self, present: dict[int, Reply], values: dict[int, Reply]) -> tuple[FeedbackServer, bool]:
        """Accept or reject y by f over the clients that are present, and publish which."""
        weights = [self._weights[node] for node in present]

        def mean(numbers: Iterable[float]) -> float:
            return float(np.average(list(numbers), weights=weights))

        f = mean(reply.metrics[_LOSS] for reply in present.values())
        rule = self._rule = self._rule or self.method.server(self.replica.x, f)
        everybody = len(present) == len(self._memories) >= self.clients
        smallest = mean(np.abs(reply.values).min() for reply in present.values())
        rule.propose(self.replica.s, rule.residual_bound(smallest) if everybody else math.inf)
        rule.f = f
        accepted = rule.decide(mean(reply.metrics[_LOSS] for reply in values.values()))
        if not everybody:
            rule.rejections = 0  # that all places were sent since x moved is not known of the absent
        self._publish(self.replica.decision(accepted=accepted, c=rule.c))
        rule.x = self.replica.x
        return rule, accepted


def _number(metrics: Mapping[str, Any], name: str) -> float:
    value = metrics.get(name)
    require(isinstance(value, int | float), f"the reply must have the metric {name!r}, a number; got {value!r}")
    return float(metrics[name])
