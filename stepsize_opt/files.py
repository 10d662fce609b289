"""Files: reading matrices (.npy, .npz dense or scipy sparse, .csv, Matrix Market .mtx), and writing atomically."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy import io, sparse

SUFFIXES = (".npy", ".npz", ".csv", ".mtx")


def load_matrix(path: str | Path, key: str = "L") -> Any:
    """The matrix in a file; an .npz file must hold one array, an array named ``key``, or a scipy sparse matrix.

    Raises FileNotFoundError when there is no such file and ValueError when it cannot be read as a matrix.
    """
    file = Path(path)
    if not file.is_file():
        msg = f"no file {file}"
        raise FileNotFoundError(msg)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        msg = f"{file} has suffix {suffix!r}; expected one of {', '.join(SUFFIXES)}"
        raise ValueError(msg)
    try:
        if suffix == ".npy":
            return np.load(file, allow_pickle=False)
        if suffix == ".csv":
            return np.loadtxt(file, delimiter=",", ndmin=2)
        if suffix == ".mtx":
            return io.mmread(file)
        return _load_npz(file, key)
    except (ValueError, OSError, EOFError) as error:
        msg = f"{file} cannot be read as a matrix: {error}"
        raise ValueError(msg) from error


def _load_npz(file: Path, key: str) -> Any:
    with np.load(file, allow_pickle=False) as data:
        names = list(data.keys())
        if {"format", "shape", "data"} <= set(names):
            return sparse.load_npz(file)
        if key in names:
            return data[key]
        if len(names) == 1:
            return data[names[0]]
    msg = f"it holds the arrays {', '.join(names)}; expected one array or one named {key!r}"
    raise ValueError(msg)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write ``path`` with: a reader sees the old file or the whole new one, never a part of it.

    What is written goes to ``path`` + ".tmp" in the same folder, because only a rename within a file system is atomic;
    it reaches the disk before the rename and is removed when the block raises.  The name is fixed, so a process that is
    killed leaves at most this one file, which the next write to ``path`` takes over; writers of one path take turns.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    with _locked(temporary) as file:
        try:
            file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform == "win32":  # which renames closed files only, and has no such locks
                file.close()
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _locked(path: Path) -> BinaryIO:
    """The file at ``path``, created when there is none, open for writing and locked until it is closed."""
    while True:
        # Not truncated by opening: until the lock is held another writer may be at work on it.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        # The writer that held the lock has renamed or removed the file meanwhile: open the one that has the name now.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()
