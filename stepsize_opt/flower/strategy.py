"""The server's side: clients that share their draws, without memory or with momentum; and error feedback."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
import secrets
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from logging import INFO, WARNING
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from stepsize_opt.flower.replicas import ACCEPTED, BACK, UNCHECKED, first_replica, read_method, save_replica
from stepsize_opt.flower.replies import Bound, Reader, Reply
from stepsize_opt.flower.wire import ARRAYS, CONFIG, LOSS, OWN, content_bytes, own_record
from stepsize_opt.inputs.checks import check_one_of, real_number, whole_number
from stepsize_opt.methods import RUNNING, Feedback, MeasuredStepsize
from stepsize_solvers.programs import Vector

_TURNS = 10  # a client is forgotten by default when it is away for as many of its turns


class MissingReplies(RuntimeError):
    """Some clients did not send what a round needs, and the strategy was not told to go on without them.

    Attributes
    ----------
    reasons : dict
        The reason of each node: no reply, the last line of its error, or what its reply lacks.
    result : flwr.serverapp.strategy.Result
        x and the metrics of the rounds before.

    Examples
    --------
    See ``SharedSeedStrategy``.
    """

    def __init__(self, text: str, reasons: Mapping[int, str], result: Result) -> None:
        super().__init__(text)
        self.reasons, self.result = dict(reasons), result


class Rounds(Strategy):
    """Rounds in which the server publishes packets, and every client moves its own replica by them."""

    runs_feedback: ClassVar[bool]

    def __init__(
        self,
        method: Any,
        min_available_nodes: int | None = None,
        *,
        fraction_train: float = 1.0,
        weighted_by_key: str | None = None,
        missing: Literal["raise", "reweight"] = "raise",
        evaluate: bool = False,
        seed: int = 0,
    ) -> None:
        check_one_of("missing", missing, ("raise", "reweight"))
        self.method = read_method(method)
        if isinstance(self.method, Feedback) is not self.runs_feedback:
            msg = f"{method!r} is for {'SharedSeed' if self.runs_feedback else 'Feedback'}Strategy"
            raise TypeError(msg)
        nodes = getattr(self.method, "clients", None) if min_available_nodes is None else min_available_nodes
        self.min_available_nodes = whole_number("min_available_nodes", nodes)
        self.fraction_train = real_number("fraction_train", fraction_train)
        if not 0.0 < self.fraction_train <= 1.0:
            msg = f"fraction_train must be above 0 and at most 1, got {fraction_train}"
            raise ValueError(msg)
        self.weighted_by_key, self.missing, self.evaluate, self.seed = weighted_by_key, missing, evaluate, seed

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
        log(INFO, "\t├──> %s nodes, %s of them in a round", self.min_available_nodes, self.fraction_train)
        log(INFO, "\t└──> weighted by %s, missing replies: %s", self.weighted_by_key, self.missing)

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

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the step of a round; return where it ends and the metrics, or nothing where no reply counts."""
        found = self._collect(self._asked, replies, training=True)
        if not found:
            return None, None
        metrics = self._result.train_metrics_clientapp[server_round] = self._step(found)
        self._result.arrays = self.replica.layout.record(self.replica.point(training=False))
        return self._result.arrays, metrics

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of the clients' metrics at x."""
        found = self._collect(self._asked if self.evaluate else [], replies, training=False)
        if not found:
            return None
        metrics = self._result.evaluate_metrics_clientapp[server_round] = self._means(found, {})
        return metrics

    @abstractmethod
    def _step(self, found: dict[int, Reply]) -> MetricRecord:
        """Publish the step that the replies make, and return the metrics of the round."""

    def _begin(self, arrays: ArrayRecord) -> None:
        self.replica: Any = first_replica(self.method, arrays, self.seed)
        self._reader = Reader(self.replica.layout, self.replica.floats, self.weighted_by_key, self.runs_feedback)
        self._bound, self._result = Bound(self.replica.layout), Result(arrays=arrays)
        # Clients tell by it whether what they keep belongs to this run of the strategy.
        self._session = secrets.token_bytes(6)
        self._versions: dict[int, int] = {}
        # Of feedback: what the clients remember, and their losses at the last checked point.
        self._memories: dict[int, Vector] = {}
        self._values: dict[int, float] = {}
        self._packets: deque[bytes] = deque(maxlen=2)  # feedback publishes twice in a round
        self._nodes: list[int] = []
        self._sampling = np.random.default_rng((self.seed, 1))

    def _choose(self, grid: Grid) -> list[int]:
        """The clients of a round in ascending order, once enough of them are connected."""
        _, nodes = sample_nodes(grid, 1 if self._nodes else self.min_available_nodes, sample_size=1)
        connected = sorted(nodes)
        self._nodes = self._nodes or connected[: self.min_available_nodes]
        if self.fraction_train == 1.0:
            return self._nodes
        count = max(1, int(self.fraction_train * len(connected)))
        return [connected[i] for i in sorted(self._sampling.choice(len(connected), count, replace=False))]

    def _messages(self, nodes: list[int], kind: str, server_round: int, config: ConfigRecord) -> list[Message]:
        self._last = kind, server_round, config
        settings = ConfigRecord({**config, "server-round": server_round})
        contents = [RecordDict({**self._news(node), CONFIG: settings}) for node in nodes]
        self._bytes["bytes-down"] += sum(map(content_bytes, contents))
        pairs = zip(contents, nodes, strict=True)
        return [Message(content, dst_node_id=node, message_type=kind) for content, node in pairs]

    def _news(self, node: int) -> dict[str, Any]:
        """The packets that a client has not seen; all of the replica where it has none, or missed more than two."""
        asked = {LOSS: True} if self._asks_loss(node, training=True) else {}
        common = {"session": self._session, "version": self.replica.version, **asked}
        missed = self.replica.version - self._versions.get(node, -1)
        if node not in self._versions:
            common["memory"] = self._memories[node].tobytes() if node in self._memories else b""
        elif missed <= len(self._packets):
            packets = {"packets": list(self._packets)[-missed:]} if missed else {}
            return {OWN: ConfigRecord({**common, **packets})}
        arrays, fields = save_replica(self.replica)
        return {ARRAYS: arrays, OWN: ConfigRecord({**common, **fields})}

    def _asks_loss(self, node: int, *, training: bool) -> bool:
        """For feedback: at y from everybody; at the last checked point from those who did not send it."""
        return self.runs_feedback and (not training or node not in self._values)

    def _publish(self, packet: bytes) -> None:
        self.replica.apply(packet)
        self._packets.append(packet)

    # ---------------------------------------------------------------- replies of the clients

    def _collect(self, nodes: list[int], replies: Iterable[Message], *, training: bool) -> dict[int, Reply]:
        """The replies that count, in the order of the nodes, so that sums round in the same way whoever was faster."""
        answers = self._complete({reply.metadata.src_node_id: reply for reply in replies}, nodes)
        good: dict[int, Reply] = {}
        reasons: dict[int, str] = {}
        for node in nodes:
            try:
                asked = self._asks_loss(node, training=training)
                good[node] = self._reader.read(answers.get(node), training=training, loss_asked=asked)
            except ValueError as error:
                reasons[node] = str(error)
        if training:
            self._bound.update(good)
        reasons |= self._bound.refused(good, training=training)
        good = {node: reply for node, reply in good.items() if node not in reasons}
        # Whoever failed gets everything anew: what it remembers may not be what the server has of it.
        self._versions = {node: version for node, version in self._versions.items() if node not in reasons}
        self._versions |= dict.fromkeys(good, self.replica.version)
        self._bytes["bytes-up"] += sum(content_bytes(answers[node].content) for node in good)
        if reasons:
            named = "; ".join(f"{node}: {reason}" for node, reason in reasons.items())
            text = f"round {self._last[1]}: {len(good)} of {len(nodes)} clients sent what is needed ({named})"
            if self.missing == "raise":
                raise MissingReplies(text, reasons, self._result)
            log(WARNING, "%s; the round goes on without the others, which no certificate covers", text)
        return good

    def _complete(self, answers: dict[int, Message], nodes: list[int]) -> dict[int, Message]:
        """Ask the nodes again that lost their state, with all that they need."""
        replied = (node for node in nodes if node in answers and not answers[node].has_error())
        lost = [node for node in replied if "lost" in own_record(answers[node].content)]
        if not lost:
            return answers
        log(WARNING, "nodes %s lost their state and get it again; were they restarted?", lost)
        self._versions = {node: version for node, version in self._versions.items() if node not in lost}
        again = self._grid.send_and_receive(self._messages(lost, *self._last), timeout=self._timeout)
        return answers | {reply.metadata.src_node_id: reply for reply in again}

    def _means(self, replies: Mapping[int, Reply], own: Mapping[str, Any]) -> MetricRecord:
        """The weighted means of the metrics that all clients sent, numbers or lists of one length, and those given."""
        weights, all_metrics = [one.weight for one in replies.values()], [one.metrics for one in replies.values()]
        shared = set.intersection(*map(set, all_metrics)) - {self.weighted_by_key}
        with np.errstate(over="ignore", invalid="ignore"):
            means = {
                name: np.average([metrics[name] for metrics in all_metrics], axis=0, weights=weights).tolist()
                for name in sorted(shared)
                if len({metrics[name].shape for metrics in all_metrics}) == 1
            }
        return MetricRecord({**means, "clients": len(replies), **self._bytes, **own})


class SharedSeedStrategy(Rounds):
    """Compressed gradient descent over n clients that share their draws: k floats up and k floats down in a round.

    All clients hold x (with momentum also z) and the generator.  In a round each draws the same S and sends k floats of
    its gradient (``compress_mod``); the server sends their mean, and every client makes the step itself.  That is the
    method of one node with f = (1/n) Σ fᵢ, and its certificate holds.  The iterates are those of
    ``stepsize_validation.run`` with ``client_seeds="shared"`` and the same seed.  A newcomer, and a client that missed
    more than two rounds, gets x, z and the generator.

    Parameters
    ----------
    method : CompressedStep, SubspaceMethod or StepsizeResult
        ``CompressedStep``, the method of ``optimal_method``, or a result with ``compressor()``; the same as the
        clients'.
    min_available_nodes
        The number n of clients.  Once n nodes have connected, the n with the smallest ids are the clients.
    fraction_train
        The fraction of the connected nodes that takes part in a round, drawn at random (at least one); below 1, nodes
        that connect later take part as well.
    weighted_by_key
        The metric of a client's reply that is its weight aᵢ, such as ``"num-examples"``: f = Σ aᵢfᵢ / Σ aᵢ, and L has
        to be a bound for this f.  By default all weights are equal.
    missing
        What happens when clients send an error, nothing, or something other than k finite floats within the bound:
        ``"raise"`` raises ``MissingReplies``; ``"reweight"`` takes the mean over the others and logs it, and skips a
        round in which nobody sent what is needed.
    evaluate
        Whether the clients of a round evaluate x after it, with the evaluate function of the app.
    seed
        Of the draws, and of the clients that are sampled.

    Notes
    -----
    A float, loss or weight is refused above 10⁶ times the median over the clients (10⁶ where that is below 1) of the
    largest that each sent in the run.  This catches broken clients; a client that lies within the bound is believed.

    A step over a part of the clients (``fraction_train``, ``"reweight"``) is one for another f, which no certificate
    covers.

    The metrics of a round: the means of the clients' own metrics; ``clients``, who replied; ``floats``, how many each
    of them sent; ``bytes-up`` and ``bytes-down``, the content of all replies and of all messages as Flower sends it,
    with its headers.

    Raises
    ------
    ValueError, TypeError
        For something that is not a compressor, fewer nodes than 1, a fraction outside (0, 1], or another word for
        ``missing``.

    Examples
    --------
    The page "Flower" of the documentation has whole apps.

    >>> from stepsize_opt import optimal_method
    >>> from stepsize_opt.flower import SharedSeedStrategy, compress_mod
    >>> step = optimal_method([[2.0, 1.0], [1.0, 3.0]], 1)
    >>> mod = compress_mod(lambda context: step)  # for ClientApp(mods=[mod])
    >>> SharedSeedStrategy(step, min_available_nodes=4, missing="reweight").min_available_nodes
    4
    """

    runs_feedback = False

    def _step(self, found: dict[int, Reply]) -> MetricRecord:
        """Publish the mean of the clients' floats."""
        replies = list(found.values())
        mean = np.average([one.values for one in replies], axis=0, weights=[one.weight for one in replies])
        self._publish(mean.astype(self.replica.layout.dtype).tobytes())
        return self._means(found, {"floats": self.replica.floats})


class FeedbackStrategy(Rounds):
    """Error feedback with a measured stepsize: k floats and their indices up in a round, in every second one also f.

    Each client remembers what it sent, in its state.  In a round it computes ∇fᵢ(x) and sends the k largest changes of
    Aᵀ∇fᵢ; the server sends the changes of all clients together, and every client computes y = x − cAs.  In every second
    round x moves there at once; in the others, the checks, each client sends fᵢ(y), and the next message tells whether
    x moves to y or back to the last checked point.  With all clients in every round the iterates are those of
    ``stepsize_validation.run_feedback(f, feedback)``, and from check to check f never rises.

    The memory of an absent client counts for ``forget_after`` rounds: s is the mean over all that took part in them.
    Every round with absent clients is checked: f is compared over the clients present in the round, so that f over all
    may rise, and neither the bound on ‖∇f‖ nor the one on the rounds is proved (``bound`` is missing in the metrics).

    Parameters
    ----------
    method : Feedback
        ``Feedback`` with ``places="own"``, the same as the clients'.
    min_available_nodes
        The number n of clients, by default that of the ``Feedback``.
    forget_after
        The memory of a client that was away for more rounds than this no longer counts; a client that comes back later
        begins anew.  By default ten times ``1 / fraction_train``.
    fraction_train, weighted_by_key, missing, evaluate, seed
        As in ``SharedSeedStrategy``.  The weight of a client is that of its first reply.

    Notes
    -----
    The app's train and evaluate functions return fᵢ as the metric ``"loss"``.  The one at x is sent once by each client
    that was not at the last check, the others not at all.  A client whose gradient is not finite at an x that was not
    checked sends no change.

    The result, and what ``evaluate`` is about, is the last checked point.

    The metrics of a round: those of ``SharedSeedStrategy``, with ``floats`` on average; ``checked``, 1 at a check;
    ``accepted``, 1 if x moved to y; ``f`` at the last checked point over the clients present; ``stepsize``, c;
    ``bound``, ‖s‖ + ρ ≥ ‖∇f(x)‖ in the norm of L̂⁻¹ where all clients are present.  When the steps fall below the
    rounding of f, the remaining rounds send nothing.

    Examples
    --------
    The page "Flower" of the documentation has whole apps.

    >>> from stepsize_opt import Feedback
    >>> from stepsize_opt.flower import FeedbackStrategy, compress_mod
    >>> feedback = Feedback([[2.0, 1.0], [1.0, 3.0]], 1, clients=4)
    >>> mod = compress_mod(lambda context: feedback)  # for ClientApp(mods=[mod])
    >>> FeedbackStrategy(feedback, fraction_train=0.5).forget_after
    20
    """

    runs_feedback = True

    def __init__(
        self, method: Any, min_available_nodes: int | None = None, *, forget_after: int | None = None, **options: Any
    ) -> None:
        super().__init__(method, min_available_nodes, **options)
        default = math.ceil(_TURNS / self.fraction_train)
        self.forget_after = default if forget_after is None else whole_number("forget_after", forget_after)

    def _begin(self, arrays: ArrayRecord) -> None:
        super()._begin(arrays)
        self._weights: dict[int, float] = {}
        self._seen: dict[int, int] = {}  # the round in which a client sent last
        self._rule = MeasuredStepsize()

    def _choose(self, grid: Grid) -> list[int]:
        """The clients of a round; nobody once steps fall below the rounding of f."""
        return super()._choose(grid) if self._rule.status == RUNNING else []

    def _step(self, found: dict[int, Reply]) -> MetricRecord:
        """Publish what changed and where x moves; at a check the clients evaluate y before."""
        new = {node: reply.loss for node, reply in found.items() if node not in self._values}
        self._values |= new
        self._remember(found)
        rule = self._rule
        if self.fraction_train < 1.0 or not self._all(found):
            rule.careful = True  # f over other clients is another number
        checked = rule.checks
        values = self._values_at_y(list(found)) if checked else {}
        present = {node: found[node] for node in values} or found
        complete = self._all(values if checked else found)
        residual = self._residual(present) if complete else math.inf
        size = float(np.linalg.norm(self.replica.s))
        f = self._mean(present, self._values)
        if not checked:
            end = self._advance(size, residual)
        elif rule.accepts(f, self._mean(values, values) if values else math.inf, size, residual):
            end, self._values, f = ACCEPTED, values, self._mean(values, values)
        else:
            end, rule.settled = BACK, rule.settled if complete else 0
        self._publish(self.replica.decision(end, rule.c))
        self._forget()
        floats = self.method.k + checked + len(new) / len(found)
        own = {"floats": floats, "checked": int(checked), "accepted": int(end != BACK), "f": f, "stepsize": rule.c}
        bound = {"bound": size + residual} if math.isfinite(residual) else {}
        return self._means(present, own | bound)

    def _advance(self, size: float, residual: float) -> int:
        """Move to y without values of f, unless it is not finite in the types of the arrays."""
        if np.isfinite(self.replica.point()).all():
            self._rule.advance(size, residual)
            return UNCHECKED
        self._rule.careful = True
        return BACK

    def _mean(self, nodes: Iterable[int], numbers: Mapping[int, float]) -> float:
        """The weighted mean over clients."""
        present = list(nodes)
        return float(np.average([numbers[node] for node in present], weights=[self._weights[node] for node in present]))

    def _all(self, nodes: Collection[int]) -> bool:
        """Whether these are all clients of the run."""
        return len(nodes) == len(self._memories) >= self.min_available_nodes

    def _remember(self, found: dict[int, Reply]) -> None:
        """Add the changes to the memories, and publish the sum of the memories where it changed."""
        if silent := [node for node, reply in found.items() if not len(reply.values)]:
            log(WARNING, "nodes %s send no change: their gradients are not finite at an x that was not checked", silent)
        for node, reply in found.items():
            self._weights.setdefault(node, reply.weight)
            self._memories.setdefault(node, np.zeros(self.replica.layout.d))[reply.places] += reply.values
            self._seen[node] = self._last[1]
        total: Any = sum(self._weights[node] * memory for node, memory in self._memories.items())
        places = np.flatnonzero(total.astype(self.replica.layout.dtype) != self.replica.total)
        self._publish(self.replica.change(places, total[places], sum(self._weights.values())))

    def _forget(self) -> None:
        """Forget the clients that were away for too long, from the next round on."""
        for node in [node for node, seen in self._seen.items() if self._last[1] - seen >= self.forget_after]:
            del self._seen[node], self._weights[node], self._memories[node]
            self._versions.pop(node, None)

    def _residual(self, present: Mapping[int, Reply]) -> float:
        """Return ρ, for all clients; infinite where one of them sent nothing."""
        if not all(len(reply.values) for reply in present.values()):
            return math.inf
        smallest = {node: float(np.abs(reply.values).min()) for node, reply in present.items()}
        d = self.replica.layout.d
        bound = self.method.residual_bound(self._mean(present, smallest), d)
        return float(self.method.known_residual(bound, self._rule.settled, d))

    def _values_at_y(self, nodes: list[int]) -> dict[int, float]:
        """The losses at y; infinite, which rejects y, above the bound."""
        answers = self._grid.send_and_receive(
            self._messages(nodes, MessageType.EVALUATE, *self._last[1:]), timeout=self._timeout
        )
        replies = self._collect(nodes, answers, training=False)
        most = self._bound.most[1] if np.isfinite(self.replica.point()).all() else -math.inf
        return {node: one.loss if abs(one.loss) <= most else math.inf for node, one in replies.items()}
