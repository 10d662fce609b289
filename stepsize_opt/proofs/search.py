"""Search for a proof: try candidates that give away more and more until one is proved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from stepsize_opt.proofs.roundings import UNIT

Candidate = TypeVar("Candidate")
Proof = TypeVar("Proof")


def first_proved(candidates: Iterable[Candidate], prove: Callable[[Candidate], Proof | None]) -> Proof | None:
    """Return the proof of the first candidate that has one, or None; later candidates are not tried."""
    return next((proof for proof in map(prove, candidates) if proof is not None), None)


def losses(first: float, last: float, factor: float = 4.0) -> Iterator[float]:
    """Yield the relative losses first, factor·first, factor²·first, … up to ``last``; after 0 comes a rounding."""
    loss = first
    while loss <= last:
        yield loss
        loss = max(factor * loss, UNIT)
