"""What travels in Flower's messages: where the random numbers stand, and vectors as records of arrays."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from stepsize_opt.methods import Compressor
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
    """The arrays of a record as one vector, in their order, row by row.

    Raises ValueError unless it has d numbers, TypeError unless they are floating.
    """
    parts = [array.numpy().reshape(-1) for array in arrays.values()]
    x = np.concatenate(parts) if parts else np.zeros(0)
    if x.size != d:
        msg = f"the arrays {list(arrays)} hold {x.size} numbers, but the compressor is for d={d}"
        raise ValueError(msg)
    if any(part.dtype.kind != "f" for part in parts):
        msg = f"the arrays {list(arrays)} must hold floating-point numbers: steps are not whole numbers"
        raise TypeError(msg)
    return x


def check_like(gradient: ArrayRecord, x: ArrayRecord) -> None:
    """Raise ValueError unless two records have arrays of the same names and shapes in the same order."""
    found, wanted = ([(name, tuple(array.shape)) for name, array in one.items()] for one in (gradient, x))
    if found != wanted:
        msg = f"the gradient must have the arrays of x, {wanted}, in their order; got {found}"
        raise ValueError(msg)


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


def numbers_of(content: RecordDict) -> Vector | None:
    """The numbers of a reply; None when ``compress_mod`` did not put them there."""
    record = content.array_records.get(ARRAYS)
    return None if record is None or _NUMBERS not in record else np.asarray(record[_NUMBERS].numpy())


def check_compressor(value: object) -> Compressor:
    """Raise TypeError for what is not a compressor."""
    if not isinstance(value, Compressor):
        known = "CompressedStep.of(D, sketch) or optimal_method(L, k)"
        msg = f"the compressor must be a method such as {known}, got {value!r}"
        raise TypeError(msg)
    return value
