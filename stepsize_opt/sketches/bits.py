"""How communication is counted in bits."""

from __future__ import annotations

# A number is sent as it is computed, in double precision (IEEE float64).
BITS_PER_NUMBER = 64
BITS_NOTE = (
    f"bits = numbers sent × {BITS_PER_NUMBER} (float64); which coordinates they are follows from random seeds that "
    "sender and receiver share, and costs nothing"
)
