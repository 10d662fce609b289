"""What does not fit into memory is refused before it is allocated."""

from __future__ import annotations

import math
import os

# Every check, factorisation or solve here holds at least so many matrices of the size of D at once.
_AT_ONCE = 3
# Above this d a d×d matrix takes more than 128 MiB, and none is formed where there is another way.
LARGE = 4096
_MOST_FLOAT = 10**308  # larger whole numbers are no floats


def memory_size() -> int | None:
    """Bytes that this process can hold: the machine's memory or the limit set for the process; None when unknown."""
    sizes: list[int] = []
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        import resource
    except ImportError:  # only Unix has it
        return min(sizes, default=None)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        sizes.append(soft)
    return min(sizes, default=None)


def check_memory(what: str, size: int, remedy: str = "") -> None:
    """Raise ValueError when ``what`` takes more bytes than there is memory; ``remedy`` ends its message."""
    most = memory_size()
    if most is not None and size > most:
        needed = size / 1e9 if size < _MOST_FLOAT else math.inf
        msg = f"{what} would take {needed:.3g} GB, but there are {most / 1e9:.3g} GB of memory{remedy}"
        raise ValueError(msg)


def check_dense(what: str, d: int) -> None:
    """Raise ValueError when there is no memory to work with a dense d×d matrix of float64."""
    check_memory(f"{what}, dense {d}×{d}, with the copies that every step makes", _AT_ONCE * 8 * d * d)
