"""Files that survive being killed while they are written: plain arrays and JSON text in an npz, replaced atomically."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt.inputs import atomic_write

# What numpy, zipfile and json raise for files that were cut, changed or written by others.
_UNREADABLE = (
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    NotImplementedError,
    OverflowError,
    MemoryError,
)


class CheckpointError(ValueError):
    """A file from which a run or a study cannot go on."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"checkpoint {path} {reason}; remove the file, or name another, to start afresh")


def write_checkpoint(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write ``meta`` (as JSON) and ``arrays``; a reader sees the old file or the new one, never a part of it.

    Raises ValueError for an array named ``meta``, TypeError for a ``meta`` that JSON cannot hold.
    """
    if "meta" in arrays:
        msg = "arrays must not hold an entry named 'meta'"
        raise ValueError(msg)
    text = json.dumps(dict(meta))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        np.savez(file, meta=np.array(text), **arrays)


def read_checkpoint(
    path: Path, meta: Sequence[str] = (), arrays: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``write_checkpoint`` wrote: the entries of ``meta``, and the arrays.

    Raises CheckpointError for a file of another kind, a damaged one, and one without the entries and arrays named;
    FileNotFoundError when there is none.
    """
    try:
        # Opened here, because np.load leaves a file that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            stored = {name: data[name] for name in data.files}
        entries = dict(json.loads(str(stored.pop("meta"))))
    except _UNREADABLE as error:
        raise CheckpointError(path, f"is not a checkpoint of this project, or damaged ({error})") from error
    absent = [name for name in meta if name not in entries] + [name for name in arrays if name not in stored]
    if absent:
        raise CheckpointError(path, f"lacks {', '.join(absent)}")
    return entries, stored
