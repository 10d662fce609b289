"""What travels in Flower's messages: vectors as the arrays of a model, places as bytes."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from stepsize_solvers.programs import Indices, Vector

# Names of records: the app's settings, the app's arrays, and what strategy and mod tell each other.
CONFIG, ARRAYS, OWN = "config", "arrays", "stepsize-opt"
LOSS = "loss"  # the metric of fᵢ, and what the strategy calls it when it asks for it


def require(holds: bool, reason: str) -> None:
    """Raise ValueError with the reason unless it holds."""
    if not holds:
        raise ValueError(reason)


@dataclass(frozen=True)
class Layout:
    """How a vector is cut into the arrays of a model: (name, shape, type) of each, in their order, row by row."""

    parts: tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]

    @staticmethod
    def of(arrays: ArrayRecord, d: int | None = None) -> Layout:
        """Raise ValueError unless the arrays hold d numbers (None: any), TypeError unless they are floating."""
        layout = Layout(tuple((name, tuple(one.shape), np.dtype(one.dtype)) for name, one in arrays.items()))
        if not arrays or any(kind.kind != "f" for _, _, kind in layout.parts):
            msg = f"the arrays {list(arrays)} must hold floating-point numbers: steps are not whole numbers"
            raise TypeError(msg)
        held = f"the arrays {list(arrays)} hold {layout.d} numbers"
        require(d in (None, layout.d), f"{held}, but the compressor is for d={d}")
        return layout

    @property
    def d(self) -> int:
        return sum(math.prod(shape) for _, shape, _ in self.parts)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the floats that are sent; sums over clients would overflow in less than float32."""
        return np.result_type(*(kind for _, _, kind in self.parts), np.float32)

    def vector(self, arrays: ArrayRecord) -> Vector:
        """Return the arrays as one vector of float64; raise ValueError unless their names and shapes are these."""
        wanted, got = ([part[:2] for part in one.parts] for one in (self, Layout.of(arrays)))
        require(got == wanted, f"the gradient must have the arrays of x, {wanted}, in their order; got {got}")
        return np.concatenate([array.numpy().reshape(-1) for array in arrays.values()]).astype(np.float64)

    def record(self, x: Vector) -> ArrayRecord:
        """Return a vector as arrays of these names, shapes and types."""
        return ArrayRecord({name: Array(piece) for name, piece in self._pieces(x)})

    def rounded(self, x: Vector) -> Vector:
        """Return what ``record`` keeps of a vector."""
        return np.concatenate([piece.reshape(-1) for _, piece in self._pieces(x)]).astype(np.float64)

    def _pieces(self, x: Vector) -> Iterator[tuple[str, Any]]:
        start = 0
        for name, shape, kind in self.parts:
            end = start + math.prod(shape)
            yield name, x[start:end].reshape(shape).astype(kind)
            start = end


def pack_places(places: Indices, d: int) -> bytes:
    """Return ascending places below d as a list, or as one bit for each of d where that is shorter."""
    bits = np.zeros(d, dtype=bool)
    bits[places] = True
    return min(places.astype(_place_type(d)).tobytes(), np.packbits(bits).tobytes(), key=len)


def unpack_places(packed: bytes, count: int, d: int) -> Indices:
    """Return what ``pack_places`` was given; raise ValueError unless it is ``count`` ascending places below d."""
    listed = len(packed) == count * _place_type(d).itemsize
    data = np.frombuffer(packed, dtype=_place_type(d) if listed else np.uint8)
    places = (data if listed else np.flatnonzero(np.unpackbits(data))).astype(np.intp)
    complete = len(places) == count and (listed or len(packed) == -(-d // 8))
    ascending = bool(np.all(np.diff(places, append=d) > 0))
    require(complete and ascending, f"places that are not {count} ascending ones below {d}")
    return places


def _place_type(d: int) -> np.dtype[Any]:
    return np.dtype("<u2" if d <= 1 << 16 else "<u4")


def content_bytes(part: Any) -> int:
    """The bytes of a content as Flower stores and sends it: records and arrays, each with its header."""
    return len(part.deflate()) + sum(content_bytes(child) for child in (part.children or {}).values())


def own_record(records: RecordDict) -> dict[str, Any]:
    """The entries of the record of strategy and mod; none where it is absent."""
    return dict(records.config_records.get(OWN) or {})
