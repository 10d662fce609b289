"""Results that are kept on disk and reused as long as what they depend on is the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import __version__
from stepsize_validation.runs import CheckpointError, read_checkpoint, write_checkpoint

# Of what is kept: to be changed with the contents of a curve or a table.
_FORMAT = 2


def kept(
    path: Path, key: dict[str, Any], make: Callable[[], Any], good: Callable[[Any], bool] = lambda value: True
) -> Any:
    """The value in the file if it was made for this key (and this version) and is still good, else a new one."""
    full = with_version(key)
    try:
        meta, _ = read_checkpoint(path, meta=("key", "value"))
    except (CheckpointError, FileNotFoundError):  # a file that is damaged is as good as none
        meta = {}
    if meta.get("key") == full and good(meta["value"]):
        return meta["value"]
    value = plain(make())
    write_checkpoint(path, {"key": full, "value": value}, {})
    return value


def with_version(key: dict[str, Any]) -> dict[str, Any]:
    """A key as JSON gives it back, with the version of the library."""
    return {**plain(key), "version": __version__, "format": _FORMAT}


def file_name(text: str) -> str:
    """A name for a file: letters, digits, dots and hyphens, with subscripts as digits."""
    ascii_text = text.translate(str.maketrans("₁₂₃⁻¹ᵢ−γ*", "123-1i-gs"))
    return re.sub(r"[^A-Za-z0-9.]+", "-", ascii_text).strip("-")


def plain(value: Any) -> Any:
    """Numbers, strings, lists and dictionaries only, as JSON gives them back."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
