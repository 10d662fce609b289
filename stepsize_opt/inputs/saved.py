"""Results on disk: arrays and JSON text in an npz file, nothing pickled, with a digest over all of it.

``meta`` holds the fields of the result that are no arrays, as JSON; ``digest`` the SHA-256 of ``meta`` and of every
array with its name, type and shape.  A file that passes was written whole by this module and not changed since: D, its
bounds, the sketch and the structure belong together.  The digest is no signature: whoever rewrites a file on purpose
can compute it anew.  The file does not hold L, so nothing is proved again on reading; ``certify`` does that.
"""

from __future__ import annotations

import hashlib
import json
import types
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from stepsize_opt.inputs.checks import read_only
from stepsize_opt.inputs.files import atomic_write, json_text, read_arrays

_FORMAT = 4
T = TypeVar("T")


def result_path(path: str | PathLike[str]) -> Path:
    """The path with ``.npz`` at its end, added unless it is there."""
    if not isinstance(path, str | PathLike) or not Path(path).name:
        msg = f"path must be that of a file, got {path!r}"
        raise TypeError(msg)
    target = Path(path)
    return target if target.suffix.lower() == ".npz" else target.with_name(target.name + ".npz")


def save_result(path: str | PathLike[str], kind: str, meta: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """Write a result of the class named ``kind``; the old file stays until the new one is complete."""
    target = result_path(path)
    text = json_text({"format": _FORMAT, "kind": kind, **meta})
    with atomic_write(target) as file:
        np.savez_compressed(file, meta=np.array(text), digest=np.array(_digest(text, arrays)), **arrays)
    return target


def load_result(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``save_result`` wrote: meta and arrays.  Raises ValueError for anything else."""
    arrays = read_arrays(path)
    if "meta" not in arrays:
        msg = f"it was not written by {kind}.save: it holds no 'meta' entry"
        raise ValueError(msg)
    text = str(arrays.pop("meta"))
    meta = _numbers(json.loads(text))
    if meta["format"] != _FORMAT:
        msg = f"it has format {meta['format']!r}; this version reads format {_FORMAT}: solve again and save"
        raise ValueError(msg)
    if meta["kind"] != kind:
        msg = f"it holds a {meta['kind']}, not a {kind}"
        raise ValueError(msg)
    if str(arrays.pop("digest", "")) != _digest(text, arrays):
        msg = "its digest does not fit its contents: it was changed after it was written"
        raise ValueError(msg)
    return meta, {name: read_only(array) for name, array in arrays.items()}


def _digest(text: str, arrays: dict[str, Any]) -> str:
    out = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        out.update(f"\n{name} {array.dtype.str} {array.shape}\n".encode())
        out.update(np.ascontiguousarray(array).data if array.size else b"")
    return out.hexdigest()


def from_fields(cls: type[T], values: dict[str, Any], **known: Any) -> T:
    """Make a dataclass from its fields as JSON gave them; ``known`` are fields that are at hand already."""
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls) if field.name not in known]  # type: ignore[arg-type]
    return cls(**known, **{name: _typed(values[name], hints[name]) for name in names})


def _typed(value: Any, hint: Any) -> Any:
    """Turn dictionaries into the dataclasses, and lists into the tuples, that they were before JSON."""
    if value is None:
        return None
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if is_dataclass(hint) and isinstance(hint, type):
        return from_fields(hint, value)
    if get_origin(hint) is tuple:
        return tuple(_typed(item, get_args(hint)[0]) for item in value)
    return value


def _numbers(value: Any) -> Any:
    """Return what JSON gave with the infinite numbers that it held as text."""
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value
