"""What travels in Flower's messages: where the random numbers stand, and vectors as records of arrays."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from stepsize_solvers.programs import Vector

# Names in the messages: the record with the server's settings, the record with arrays, the state of the generator.
CONFIG, ARRAYS, GENERATOR = "config", "arrays", "generator"
_NUMBERS = "numbers"


def pack(rng: np.random.Generator) -> bytes:
    """The state of a PCG64 generator in 37 bytes, from which ``unpack`` makes an equal generator."""
    state: Any = rng.bit_generator.state
    inner = state["state"]
    return b"".join(
        number.to_bytes(size, "big")
        for number, size in (
            (inner["state"], 16),
            (inner["inc"], 16),
            (state["has_uint32"], 1),
            (state["uinteger"], 4),
        )
    )


def unpack(packed: bytes) -> np.random.Generator:
    """A generator in the state that ``pack`` wrote; raises ValueError for another number of bytes."""
    if len(packed) != 37:
        msg = f"the state of a generator has 37 bytes, got {len(packed)}"
        raise ValueError(msg)
    parts = [int.from_bytes(packed[a:b], "big") for a, b in ((0, 16), (16, 32), (32, 33), (33, 37))]
    bits = np.random.PCG64()
    state: Any = bits.state
    state["state"]["state"], state["state"]["inc"], state["has_uint32"], state["uinteger"] = parts
    bits.state = state
    return np.random.Generator(bits)


def flat(arrays: ArrayRecord, d: int) -> Vector:
    """The arrays of a record as one vector, in their order, row by row; raises ValueError unless it has d numbers."""
    x = np.concatenate([array.numpy().reshape(-1) for array in arrays.values()])
    if x.size != d:
        msg = f"the arrays {list(arrays)} hold {x.size} numbers, but the compressor is for d={d}"
        raise ValueError(msg)
    return x


def like(arrays: ArrayRecord, x: Vector) -> ArrayRecord:
    """A vector as arrays of the names, shapes and types of a record."""
    out, done = {}, 0
    for name, array in arrays.items():
        old = array.numpy()
        out[name] = Array(x[done : done + old.size].reshape(old.shape).astype(old.dtype))
        done += old.size
    return ArrayRecord(out)


def message_of(numbers: Vector) -> ArrayRecord:
    return ArrayRecord({_NUMBERS: Array(np.ascontiguousarray(numbers))})


def numbers_of(arrays: ArrayRecord) -> Vector:
    return np.asarray(arrays[_NUMBERS].numpy())
