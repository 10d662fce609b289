"""Files: written whole or not at all, JSON that every reader takes, and one error for a broken file."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np


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
    """``value`` as JSON; numpy's numbers and arrays become plain ones.

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
def broken_is_value_error(path: Path, kind: str) -> Iterator[None]:
    """Raise FileNotFoundError without a file at ``path``, ValueError for whatever else goes wrong while it is read.

    Readers of zip, zlib, numpy and scipy raise a dozen exceptions for damaged bytes; none of them says which file.
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
    except Exception as error:
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
