"""Files: writing whole or not at all, JSON that every reader takes, and matrices read with care.

What a reader of this module raises for a broken file is a ValueError that names the file, whatever the bytes are, and
nothing larger than the file itself is allocated on the word of its header.  No error quotes the text of a file, which
may have been named by mistake.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from scipy import sparse

from stepsize_opt.inputs.matrix_market import broken_row, read_matrix_market
from stepsize_opt.inputs.memory import check_memory

SUFFIXES = (".npy", ".npz", ".csv", ".mtx")
# Deflate packs at most 1032 bytes into one (a match of 258 bytes takes two bits).
_MOST_PACKED = 1032


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write ``path`` with: a reader sees the old file or the whole new one, never a part of it.

    What is written goes to ``path`` + ".tmp" in the same folder, because only a rename within a file system is atomic;
    it reaches the disk before the rename and is removed when the block raises (full disk, Ctrl-C).  The name is fixed,
    so a process that is killed leaves at most this one file, which the next write to ``path`` takes over; writers of
    one path take turns.  An existing file keeps its permissions, a symbolic link keeps pointing to the file replaced.
    Raises OSError for a path to something that is not a regular file, such as a device.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        msg = f"{path} is not a regular file (a folder, a device, a pipe) and is not replaced"
        raise OSError(msg)
    temporary = target.with_name(f"{target.name}.tmp")
    with _locked(temporary) as file:
        try:
            file.truncate()
            yield file
            file.flush()
            os.fsync(file.fileno())
            if target.exists():
                temporary.chmod(target.stat().st_mode & 0o777)
            if sys.platform == "win32":  # which renames closed files only, and has no such locks
                file.close()
            temporary.replace(target)
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


def read_npy(file: IO[bytes], size: int) -> Any:
    """The array of an .npy file of ``size`` bytes, read-only; raises ValueError when its header asks for more."""
    try:
        version = npy.read_magic(file)
    except ValueError:
        msg = "it does not begin as an npy file does"
        raise ValueError(msg) from None
    if version not in ((1, 0), (2, 0)):
        msg = f"npy version {version} is not known"
        raise ValueError(msg)
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = header(file)
    if dtype.hasobject:
        msg = "it holds Python objects, not numbers"
        raise ValueError(msg)
    needed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if needed > held:
        msg = f"its header declares shape {shape}, {needed} bytes, but only {held} follow"
        raise ValueError(msg)
    check_memory("it", needed)
    return np.ndarray(shape, dtype, buffer=file.read(needed), order="F" if fortran else "C")


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file by name."""
    arrays: dict[str, Any] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if info.file_size > _MOST_PACKED * info.compress_size:
                msg = f"its entry {info.filename} declares {info.file_size} bytes, more than can be packed in it"
                raise ValueError(msg)
            with archive.open(info) as member:
                arrays[info.filename.removesuffix(".npy")] = read_npy(member, info.file_size)
                if member.read(1):  # to the end, where the checksum is compared
                    msg = f"its entry {info.filename} holds more than its array"
                    raise ValueError(msg)
    return arrays


def load_matrix(path: str | Path, key: str = "L") -> Any:
    """The matrix in a file; an .npz file must hold one array, an array named ``key``, or a scipy sparse matrix.

    Raises FileNotFoundError when there is no such file and ValueError when it cannot be read as a matrix of real
    numbers.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    with broken_is_value_error(file, "a matrix"):
        if suffix not in SUFFIXES:
            msg = f"its name ends in {suffix!r}; expected one of {', '.join(SUFFIXES)}"
            raise ValueError(msg)
        if suffix == ".npz":
            matrix = _load_npz(file, key)
        else:
            matrix = {".npy": _load_npy, ".csv": _load_csv, ".mtx": _load_mtx}[suffix](file)
        if matrix.dtype.kind not in "fiub":
            msg = f"it holds entries of type {matrix.dtype}, not real numbers"
            raise ValueError(msg)
        return matrix


def _load_npy(file: Path) -> Any:
    with file.open("rb") as opened:
        return read_npy(opened, file.stat().st_size)


def _load_csv(file: Path) -> Any:
    text = file.read_text(encoding="utf-8-sig")  # spreadsheets write a mark before the first number
    lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
    if not any(lines):
        msg = "it holds no numbers"
        raise ValueError(msg)
    try:
        return np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except ValueError:
        rows = [(number, line.split(",")) for number, line in enumerate(lines, 1) if line]
        msg = broken_row(rows, "numbers with commas between them, no line of names")
        raise ValueError(msg) from None


def _load_mtx(file: Path) -> Any:
    return read_matrix_market(file.read_text(encoding="utf-8"))


def _load_npz(file: Path, key: str) -> Any:
    arrays = read_npz(file)
    if {"format", "shape", "data"} <= set(arrays):
        return _sparse(arrays)
    if key in arrays:
        return arrays[key]
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    msg = f"it holds the arrays {', '.join(arrays)}; expected one array or one named {key!r}"
    raise ValueError(msg)


def _sparse(arrays: dict[str, Any]) -> Any:
    """The matrix that scipy.sparse.save_npz wrote."""
    layout = arrays["format"].item()
    name = layout.decode("ascii") if isinstance(layout, bytes) else str(layout)
    parts = {
        "csr": ("indices", "indptr"),
        "csc": ("indices", "indptr"),
        "bsr": ("indices", "indptr"),
        "dia": ("offsets",),
        "coo": ("row", "col"),
    }
    if name not in parts:
        msg = f"sparse format {name!r} is not known"
        raise ValueError(msg)
    missing = [part for part in parts[name] if part not in arrays]
    if missing:
        msg = f"a sparse matrix in format {name!r} needs the arrays {', '.join(missing)}"
        raise ValueError(msg)
    shape = tuple(int(n) for n in arrays["shape"])
    where = tuple(arrays[part] for part in parts[name])
    if any(array.dtype.kind not in "iu" for array in where):
        msg = "its indices are not whole numbers"
        raise ValueError(msg)
    data = arrays["data"]
    build = getattr(sparse, f"{name}_array")
    matrix = build((data, where) if name == "coo" else (data, *where), shape=shape)
    if name in ("csr", "csc", "bsr"):
        matrix.check_format(full_check=True)  # an index out of range would be read outside the arrays
    return matrix
