"""What the server and every client hold alike: x and what belongs to it, moved by the packets of the server.

A packet holds what one step needs: the mean of the floats that the clients sent; or, for feedback, what changed in
s and then where x moves.  The server applies its packets to a replica of its own, with the same operations, so
that all replicas are equal.  ``version`` counts the packets: a client that missed up to two gets them, any other x.

A replica has x; ``floats``, how many of a gradient are sent; ``point``, where the app computes its gradient or
evaluates; ``encode``, what is sent of a gradient and remembered of it; ``apply``, the step of a packet; and
``fields``, all but x and the version, for ``load_replica``.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from stepsize_opt.flower.wire import Layout, pack_places, require, unpack_places
from stepsize_opt.methods import Feedback, State, exchange, largest, read_compressor
from stepsize_opt.sketches.draws import generators
from stepsize_solvers.programs import Indices, Vector

_CHANGE, _DECISION = struct.Struct("<dI"), struct.Struct("<Bd")

# Where a round ends: at the last checked point, at y, which is then the last checked point, or at y without a check.
BACK, ACCEPTED, UNCHECKED = range(3)


@dataclass(eq=False)
class _Point:
    """The method, x in the types of the app's arrays, and how many packets were applied."""

    method: Any
    layout: Layout
    x: Vector
    version: int


@dataclass(eq=False)
class SharedDraws(_Point):
    """A method whose clients share their draws: x, z with momentum, and the generator of the next draw."""

    rng: np.random.Generator
    z: Vector | None

    def point(self, *, training: bool) -> Vector:
        return np.asarray(self.method.point(self.state)) if training else self.x

    @property
    def state(self) -> State:
        return State(self.x, self.z, self.version)

    @property
    def floats(self) -> int:
        return len(self._numbers(np.zeros(self.layout.d)))

    def encode(self, gradient: Vector, memory: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the floats to send; the generator stays where it is until the mean of them arrives."""
        return {"numbers": self._numbers(gradient).astype(self.layout.dtype).tobytes()}, memory

    def _numbers(self, gradient: Vector) -> Vector:
        return np.asarray(self.method.encode(gradient, self.method.draw(deepcopy(self.rng))))

    def apply(self, packet: bytes) -> None:
        numbers = np.frombuffer(packet, dtype=self.layout.dtype).astype(np.float64)
        draw = self.method.draw(self.rng)
        state = self.method.advance(self.state, numbers, draw)
        self.x, self.version = self.layout.rounded(state.x), state.rounds
        self.z = None if state.z is None else self.layout.rounded(state.z)

    def fields(self) -> dict[str, Any]:
        momentum = {} if self.z is None else {"z": self.z.astype(self.layout.dtype).tobytes()}
        return {"generator": json.dumps(self.rng.bit_generator.state), **momentum}


@dataclass(eq=False)
class FeedbackReplica(_Point):
    """Error feedback: x, the last checked point, S = Σ weights times memories, W = Σ weights, and the stepsize c.

    Two packets make a round: what changed in S, and whether x moves to y = x − cAS/W or back to the checked point.
    """

    checked: Vector
    total: Vector
    weight: float
    c: float

    @property
    def s(self) -> Vector:
        return self.total / self.weight

    def point(self, *, training: bool = False) -> Vector:
        """x to train, else y where it awaits its decision, else the last checked point."""
        if training:
            return self.x
        return self.layout.rounded(self.x - self.c * self.method.step(self.s)) if self.version % 2 else self.checked

    @property
    def ahead(self) -> bool:
        """Whether x is not the last checked point."""
        return self.x is not self.checked

    @property
    def floats(self) -> int:
        return int(self.method.k)

    def encode(self, gradient: Vector, memory: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the k largest changes with their places, and the memory with them.

        Nothing is sent of a gradient that is not finite at an x that nobody checked.
        """
        dtype, d = self.layout.dtype, self.layout.d
        e = np.frombuffer(memory).copy() if memory else np.zeros(d)
        with np.errstate(over="ignore", invalid="ignore"):
            t = self.method.coefficients(gradient)
            places, values, _ = exchange(
                t, e, lambda sizes: largest(sizes, self.floats), lambda values: values.astype(dtype)
            )
        if self.ahead and not (np.isfinite(t).all() and np.isfinite(values).all()):
            return {"numbers": b"", "places": b""}, memory
        return {"numbers": values.tobytes(), "places": pack_places(places, d)}, e.tobytes()

    def change(self, places: Indices, values: Vector, weight: float) -> bytes:
        """Return the packet of S, new at these places, and W."""
        sent = values.astype(self.layout.dtype).tobytes() + pack_places(places, self.layout.d)
        return _CHANGE.pack(weight, len(places)) + sent

    def decision(self, end: int, c: float) -> bytes:
        """Return the packet that ends a round: BACK, ACCEPTED or UNCHECKED, and c."""
        return _DECISION.pack(end, c)

    def apply(self, packet: bytes) -> None:
        if self.version % 2:
            end, c = _DECISION.unpack(packet)
            self.x = self.checked if end == BACK else self.point()
            self.checked = self.checked if end == UNCHECKED else self.x
            self.c = c
        else:
            self.weight, count = _CHANGE.unpack_from(packet)
            end = _CHANGE.size + count * self.layout.dtype.itemsize
            values = np.frombuffer(packet[_CHANGE.size : end], dtype=self.layout.dtype)
            self.total[unpack_places(packet[end:], count, self.layout.d)] = values
        self.version += 1

    def fields(self) -> dict[str, Any]:
        checked = {"checked": self.checked.astype(self.layout.dtype).tobytes()} if self.ahead else {}
        total = self.total.astype(self.layout.dtype).tobytes()
        return {"total": total, "weight": self.weight, "c": self.c, **checked}


Replica = SharedDraws | FeedbackReplica


def save_replica(replica: Replica) -> tuple[ArrayRecord, dict[str, Any]]:
    """Return x as the app's arrays, and the rest by names; a newcomer gets both, and a client keeps both."""
    kind = _kind(replica.method)
    return replica.layout.record(replica.x), {"kind": kind, "version": replica.version, **replica.fields()}


def _kind(method: Any) -> str:
    return type(method).__name__ + ("" if getattr(method, "memory", None) is None else " with momentum")


def load_replica(method: Any, arrays: ArrayRecord, fields: Mapping[str, Any]) -> Replica:
    """Return the replica that was saved; raise ValueError where the server runs another method."""
    theirs, ours = fields["kind"], _kind(method)
    require(theirs == ours, f"the server runs {theirs}, but compress_mod was given {ours}")
    layout = Layout.of(arrays, method.d)
    common = method, layout, layout.vector(arrays), int(fields["version"])

    def vector(name: str) -> Vector:
        return np.frombuffer(fields[name], dtype=layout.dtype).astype(np.float64)

    if isinstance(method, Feedback):
        checked = vector("checked") if "checked" in fields else common[2]
        return FeedbackReplica(*common, checked, vector("total"), fields["weight"], fields["c"])
    rng = np.random.Generator(np.random.PCG64())
    rng.bit_generator.state = json.loads(fields["generator"])
    return SharedDraws(*common, rng, vector("z") if "z" in fields else None)


def first_replica(method: Any, arrays: ArrayRecord, seed: int) -> Replica:
    """Return the replica before the first round."""
    layout = Layout.of(arrays, method.d)
    x = layout.vector(arrays)
    if isinstance(method, Feedback):
        return FeedbackReplica(method, layout, x, 0, x, np.zeros(layout.d), 0.0, 1.0)
    return SharedDraws(method, layout, x, 0, generators(seed, 1)[0], method.start(x).z)


def read_method(value: Any) -> Any:
    """Return the method of a result, or what is one; raise TypeError or ValueError for any other."""
    if not isinstance(value, Feedback):
        return read_compressor(value)
    hint = "places='shared' is for an all-reduce; here every client chooses its own: Feedback(L, k)"
    require(value.places == "own", hint)
    return value
