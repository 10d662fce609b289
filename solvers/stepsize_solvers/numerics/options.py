"""What a caller may choose of the project's own methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class NativeOptions:
    """Options of the native solver, given by name in ``Settings.extra``.

    closed_forms: try the closed forms first, and start from them where they beat the powers.
    single_precision_from: size from which directions, and points far from the end, are computed in single precision.
    """

    closed_forms: bool = True
    single_precision_from: int = 48

    @staticmethod
    def from_extra(extra: Mapping[str, Any]) -> NativeOptions:
        """Options with the given overrides; an unknown name is an error that lists the known ones."""
        if not extra:
            return NativeOptions()
        known = [f.name for f in fields(NativeOptions)]
        unknown = sorted(set(extra) - set(known))
        if unknown:
            limits = "tol, time_limit and max_iters are arguments of the call"
            msg = f"unknown native option {', '.join(unknown)}; known: {', '.join(known)}; {limits}"
            raise ValueError(msg)
        return NativeOptions(**dict(extra))
