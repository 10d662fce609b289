"""A digest of what a value holds: equal contents give equal digests, in every process and on every machine."""

from __future__ import annotations

import hashlib
from dataclasses import fields
from typing import Any

import numpy as np
from scipy import sparse


def digest(value: object) -> str:
    """SHA-256, in hexadecimal, of a value's content and kinds.

    Takes numbers, strings, None, arrays, scipy sparse matrices, tuples and lists of such, and objects of classes that
    are dataclasses themselves: their class and their fields count, or what a method ``digest_parts`` returns instead.
    Raises TypeError for anything else, because an object whose content is not known cannot be told from another.
    """
    hasher = hashlib.sha256()
    _feed(hasher, value)
    return hasher.hexdigest()


def _feed(hasher: Any, value: object) -> None:
    """Each part is written with its kind and its length, so that different values never give the same bytes."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value).encode()
        hasher.update(f"{type(value).__name__} {len(text)} ".encode() + text)
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        hasher.update(f"array {value.dtype.str} {value.shape} ".encode() + value.tobytes())
    elif sparse.issparse(value):
        # A new matrix with sorted indices and without duplicates: the same matrix may be stored in several ways.
        A: Any = sparse.csr_array(value, copy=True)
        A.sum_duplicates()
        _feed(hasher, ("sparse", *A.shape, A.data, A.indices.astype(np.int64), A.indptr.astype(np.int64)))
    elif isinstance(value, tuple | list):
        hasher.update(f"list {len(value)} ".encode())
        for part in value:
            _feed(hasher, part)
    elif hasattr(value, "digest_parts"):
        _feed_object(hasher, value, value.digest_parts())
    elif "__dataclass_fields__" in vars(type(value)):
        _feed_object(hasher, value, [getattr(value, field.name) for field in fields(value)])  # type: ignore[arg-type]
    else:
        msg = (
            f"cannot take a digest of {value!r}: {type(value).__name__} must be a dataclass of numbers, texts, arrays "
            "and such dataclasses, or have a method digest_parts() that returns them"
        )
        raise TypeError(msg)


def _feed_object(hasher: Any, value: object, parts: Any) -> None:
    _feed(hasher, [f"{type(value).__module__}.{type(value).__qualname__}", *parts])
