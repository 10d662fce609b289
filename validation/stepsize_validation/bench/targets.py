"""What the benchmarks report: a number that was measured against a number that was wanted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What was measured, what was wanted, and whether it holds; the texts are as printed."""

    name: str
    measured: str
    wanted: str
    holds: bool
