"""Results on disk: files written whole or not at all, and what every answer shares.

A result is an npz file of arrays and JSON text, nothing pickled, with a digest over all of it.  ``meta`` holds the
fields that are no arrays, as JSON; ``digest`` the SHA-256 of ``meta`` and of every array with its name, type and
shape.  A file that passes was written whole by this module and not changed since: D, its bounds, the sketch and the
structure belong together.  The digest is no signature: whoever rewrites a file on purpose can compute it anew.  The
file does not hold L, so nothing is proved again on reading; ``certify`` does that.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from stepsize_opt.inputs.checks import read_only


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a binary file to write ``path`` with: a reader sees the old file or the whole new one, never a part of it.

    What is written goes to a file of another name in the same folder, because only a rename within a file system is
    atomic; it reaches the disk before the rename and is removed when the block raises (full disk, Ctrl-C).
    An existing file keeps its permissions, a symbolic link keeps pointing to the file replaced.
    Raises OSError for a path to something that is not a regular file, such as a device.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        msg = f"{path} is not a regular file (a folder, a device, a pipe) and is not replaced"
        raise OSError(msg)
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text with ``atomic_write``."""
    with atomic_write(path) as file:
        file.write(text.encode())


def json_text(value: Any, indent: int | None = None) -> str:
    """Return ``value`` as JSON; numpy's numbers and arrays become plain ones.

    JSON has no infinity and no NaN: they become the strings "inf", "-inf" and "nan", which ``float`` reads back.  (null
    would lose which it was, and counts as 0 or as less than every number where languages compare it.)
    """
    return json.dumps(_plain(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@contextmanager
def broken_is_value_error(
    path: Path, kind: str, errors: type[Exception] | tuple[type[Exception], ...] = Exception
) -> Iterator[None]:
    """Raise FileNotFoundError without a file at ``path``, ValueError for ``errors`` that occur while it is read.

    Readers of zip, zlib, numpy and scipy raise a dozen exceptions for damaged bytes; none of them names the file.
    """
    if not path.exists():
        msg = f"no file {path}"
        raise FileNotFoundError(msg)
    try:
        if path.is_dir():
            msg = "it is a folder; name a file"
            raise ValueError(msg)
        if path.is_file() and not path.stat().st_size:
            msg = "it is empty"
            raise ValueError(msg)
        yield
    except errors as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        msg = f"{path} cannot be read as {kind}: {reason}"
        raise ValueError(msg) from error


def read_arrays(path: Path) -> Any:
    """Return the array of an .npy file, or the arrays of an .npz file by name."""
    with path.open("rb") as file:  # numpy leaves a broken file open
        try:
            found = np.load(file, allow_pickle=False)
        except ValueError:
            msg = "it is damaged, holds Python objects, or was not written by numpy"
            raise ValueError(msg) from None
        return found if isinstance(found, np.ndarray) else dict(found)


_FORMAT = 5
T = TypeVar("T")


_OTHER_FILES = frozenset({".csv", ".html", ".json", ".mat", ".npy", ".parquet", ".pickle", ".pkl", ".txt"})


def result_path(path: str | PathLike[str]) -> Path:
    """Return the path with ``.npz`` at its end, added to a name without it.

    Raises ValueError for the suffix of another kind of file; what stands behind a point may be a number, as in "k0.5".
    """
    if not isinstance(path, str | PathLike) or not Path(path).name:
        msg = f"path must be that of a file, got {path!r}"
        raise TypeError(msg)
    target = Path(path)
    if target.suffix.lower() in _OTHER_FILES:
        msg = f"path must end in .npz or in no suffix, as a result is an npz file, got {path!r}: use {target.stem!r}"
        raise ValueError(msg)
    return target if target.suffix.lower() == ".npz" else target.with_name(target.name + ".npz")


def save_result(path: str | PathLike[str], kind: str, meta: dict[str, Any], arrays: dict[str, Any]) -> Path:
    """Write a result of the class named ``kind``; the old file stays until the new one is complete."""
    target = result_path(path)
    text = json_text({"format": _FORMAT, "kind": kind, **meta})
    with atomic_write(target) as file:
        np.savez_compressed(file, meta=np.array(text), digest=np.array(_digest(text, arrays)), **arrays)
    return target


# What fields raise that are missing, of another kind or contradict each other; all else is a fault of this library.
_FALSE_CONTENTS = (KeyError, TypeError, ValueError, ArithmeticError)


def load_result(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read what ``save_result`` wrote: meta and arrays.  Raises ValueError for anything else."""
    with broken_is_value_error(path, f"a {kind}"):
        arrays = read_arrays(path)
    with broken_is_value_error(path, f"a {kind}", _FALSE_CONTENTS):
        return _contents_of(arrays, kind)


def _contents_of(arrays: dict[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
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


class Saved(ABC):
    """An answer that is kept in a file."""

    @abstractmethod
    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what is saved: fields that JSON holds, and arrays, by name."""

    @classmethod
    @abstractmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> Self:
        """Return the result whose ``_contents`` were read."""

    def save(self, path: str | PathLike[str]) -> Path:
        """Write everything to an npz file (arrays and JSON text, nothing pickled); returns its path.

        ``.npz`` is added to a path that does not end in it.  A file that is there is replaced once the new one is
        complete.  ``D`` is one of its arrays (on a single node up to d = 4096; larger ones are saved by blocks only).
        """
        return save_result(path, type(self).__name__, *self._contents())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read what ``save`` wrote; ``.npz`` may be left out as there.

        Raises FileNotFoundError when there is no such file, ValueError for a file that is broken, of another kind, or
        was changed after it was written.  A digest ties D to its certificate, sketch and structure; it guards against
        accidents, not against someone who writes a false file on purpose.  Nothing is proved again, because the file
        does not hold L or M; for a single node, ``certify(result, L)`` proves it for yours, with ``strong_convexity=``
        for the goal ``linear``.
        """
        file = result_path(path)
        contents = load_result(file, cls.__name__)
        with broken_is_value_error(file, f"a {cls.__name__}", _FALSE_CONTENTS):
            return cls._of_contents(*contents)
