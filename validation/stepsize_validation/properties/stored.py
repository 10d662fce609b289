"""Problems stored as JSON: read a problem from its plain form, and write one.

A sketch is its text or the plain form of ``stepsize_opt.sketches``.  A structure is its name, the sizes of its blocks,
or a direction.  Floats are written with the digits that read back as the same float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepsize_opt import BlockDiagonal, Direction, Sketch, parse_sketch
from stepsize_opt.sketches.base import sketch_of_plain


def read_sketch(plain: Any, d: int) -> Sketch:
    """Build the sketch of dimension d."""
    return parse_sketch(plain, d) if isinstance(plain, str) else sketch_of_plain(plain)


def read_structure(plain: Any) -> Any:
    """Build the structure of D."""
    if isinstance(plain, str):
        return plain
    if "blocks" in plain:
        return BlockDiagonal(plain["blocks"])
    return Direction(np.array(plain["direction"]), plain["sizes"])


def write_structure(structure: Any) -> Any:
    """The plain form of a structure."""
    if isinstance(structure, str):
        return structure
    if isinstance(structure, BlockDiagonal):
        return {"blocks": structure.sizes}
    return {"direction": structure.W, "sizes": structure.sizes}


def goal_arguments(name: str, strong_convexity: Any = None) -> dict[str, Any]:
    """The arguments of ``optimal_stepsize`` for a goal; M is a number or a nested list."""
    M = np.array(strong_convexity) if isinstance(strong_convexity, list) else strong_convexity
    return {"goal": name, "strong_convexity": M}
