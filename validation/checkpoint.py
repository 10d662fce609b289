"""Files that survive being killed while they are written: plain arrays and JSON text in an npz, replaced atomically."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_checkpoint(path: Path, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write ``meta`` (as JSON) and ``arrays``; a reader sees the old file or the new one, never a part of it.

    Raises ValueError for an array named ``meta``, TypeError for a ``meta`` that JSON cannot hold.
    """
    if "meta" in arrays:
        msg = "arrays must not hold an entry named 'meta'"
        raise ValueError(msg)
    text = json.dumps(dict(meta))
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because only a rename within a file system is atomic.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, meta=np.array(text), **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What :func:`write_checkpoint` wrote; raises ValueError for a file of another kind."""
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = {name: data[name] for name in data.files}
        return dict(json.loads(str(arrays.pop("meta")))), arrays
    except (KeyError, zipfile.BadZipFile, EOFError, ValueError, AttributeError) as error:
        msg = f"{path} is not a checkpoint of this project: {error}"
        raise ValueError(msg) from error
