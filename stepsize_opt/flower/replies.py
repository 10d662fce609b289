"""Replies of clients, read strictly: whatever a client sends becomes a ``Reply`` or a ValueError with the reason.

A reply is read completely before anything changes.  Floats, losses and weights also have a bound that depends on the
other clients: a reply that overflows sums, or moves x out of sight, is refused as one that is not finite.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Message

from stepsize_opt.flower.wire import LOSS, Layout, own_record, require, unpack_places
from stepsize_solvers.programs import Indices, Vector

# A client may send RATIO times the median of the clients, or RATIO where the median is below 1.  Gradients of clients
# with data of one kind differ by far less; above it are units mixed up, memory damaged or attacks.
RATIO = 1e6
_MEASURED = ("the largest float", f"the metric {LOSS!r}", "the weight")
_REASON = 200  # letters of an error that a client sends


@dataclass(frozen=True, eq=False)
class Reply:
    """What counts of a reply: its metrics, its weight, its loss, and from training its floats with their places.

    The loss is 0 where nobody asked for it; a client of feedback that sends no change has no floats.
    """

    metrics: dict[str, Any]
    weight: float
    loss: float
    values: Vector
    places: Indices

    @property
    def sizes(self) -> Vector:
        """What the bound is about: the largest float, the loss and the weight."""
        return np.array([np.abs(self.values).max(initial=0.0), abs(self.loss), self.weight])


@dataclass(frozen=True, eq=False)
class Reader:
    """What the replies of a run must have; ``floats`` of a gradient in training."""

    layout: Layout
    floats: int
    weighted_by_key: str | None
    feedback: bool

    def read(self, reply: Message | None, *, training: bool, loss_asked: bool) -> Reply:
        """Return what counts of a reply; raises ValueError with the reason for any other."""
        if reply is None or reply.has_error():
            raise ValueError("no reply" if reply is None else _last_line(reply.error.reason))
        metrics = _metrics(reply)
        weight = 1.0 if self.weighted_by_key is None else _number(metrics, self.weighted_by_key)
        require(0 < weight < math.inf, f"the metric {self.weighted_by_key!r} must be positive and finite, got {weight}")
        loss = _number(metrics, LOSS) if loss_asked else 0.0
        if not training:  # at y the loss may be infinite or NaN, which rejects y
            return Reply(metrics, weight, loss, np.empty(0), np.empty(0, dtype=np.intp))
        require(math.isfinite(loss), f"the metric {LOSS!r} must be finite, got {loss}")
        sent, wanted = own_record(reply.content), ("numbers", "places") if self.feedback else ("numbers",)
        require("numbers" in sent, "a reply without numbers; is compress_mod among the mods of its ClientApp?")
        typed = set(sent) == set(wanted) and all(type(part) is bytes for part in sent.values())
        require(
            typed, f"a reply must have {wanted} as bytes, got { {name: type(part) for name, part in sent.items()} }"
        )
        if self.feedback and not any(sent.values()):  # a gradient that is not finite: no change
            return Reply(metrics, weight, loss, np.empty(0), np.empty(0, dtype=np.intp))
        values = self._values(sent["numbers"])
        places = unpack_places(sent["places"], self.floats, self.layout.d) if self.feedback else np.arange(self.floats)
        return Reply(metrics, weight, loss, values, places)

    def _values(self, numbers: bytes) -> Vector:
        """Return the floats of a gradient."""
        values = np.frombuffer(numbers, dtype=self.layout.dtype).astype(np.float64)
        finite = int(np.isfinite(values).sum())
        found = f"{finite} finite ones of {len(values)} numbers instead of {self.floats}"
        require(finite == len(values) == self.floats, f"{found}; is its method that of the server?")
        return values


def _metrics(reply: Message) -> dict[str, Any]:
    """Return all metrics as arrays of float64."""
    metrics = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
    try:
        return {name: np.asarray(value, dtype=np.float64) for name, value in metrics.items()}
    except (OverflowError, TypeError, ValueError) as error:
        msg = f"metrics that are not floats: {error}"
        raise ValueError(msg) from None


def _number(metrics: Mapping[str, Any], name: str) -> float:
    value = metrics.get(name)
    found = None if value is None else value.tolist()
    require(isinstance(found, float), f"the reply must have the metric {name!r}, a number; got {found}")
    return float(metrics[name])


def _last_line(reason: Any) -> str:
    """Return the last line of an error, where a traceback has its cause."""
    lines = [line.strip() for line in str(reason).splitlines() if line.strip()]
    return lines[-1][-_REASON:] if lines else "an error without a reason"


class Bound:
    """The largest float, loss and weight that count, from the largest of each client in the run so far."""

    def __init__(self, layout: Layout) -> None:
        self._sizes: dict[int, Vector] = {}
        # Squares, and sums of weights times floats, stay finite below it.
        self._root = math.sqrt(np.finfo(layout.dtype).max)
        self.most: Vector = np.full(3, self._root)

    def update(self, replies: Mapping[int, Reply]) -> None:
        """Set the bound by these replies from training, and remember those that it does not refuse."""
        sizes = {node: np.maximum(self._sizes.get(node, 0.0), reply.sizes) for node, reply in replies.items()}
        ordered = np.sort(list((self._sizes | sizes).values()), axis=0)
        if not len(ordered):
            return
        # The lower median: of two clients the one with less, so that one of them alone does not set the bound.
        median = ordered[(len(ordered) - 1) // 2]
        self.most = RATIO * np.clip(median, 1.0, self._root / RATIO)
        above = self.refused(replies, training=True)
        self._sizes |= {node: size for node, size in sizes.items() if node not in above}

    def refused(self, replies: Mapping[int, Reply], *, training: bool) -> dict[int, str]:
        """Return the reason for each reply above the bound; a loss from evaluation may be above it."""
        most = self.most if training else np.array([math.inf, math.inf, self.most[2]])
        above = {node: np.flatnonzero(reply.sizes > most) for node, reply in replies.items()}
        return {node: self._reason(replies[node].sizes, which[0]) for node, which in above.items() if len(which)}

    def _reason(self, sizes: Vector, which: int) -> str:
        found = f"{_MEASURED[which]} is {sizes[which]:.3g}, above {self.most[which]:.3g}"
        return f"{found}: at most {RATIO:g} times the median of the clients counts"
