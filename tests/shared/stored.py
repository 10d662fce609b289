"""Problems stored as JSON: read a problem from its plain form, and write one.

A sketch is its text (``randk:2``), or a dictionary with the arrays that its class takes.  A structure is its name, the
sizes of its blocks, or a direction.  Floats are written with the digits that read back as the same float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shared import goals
from stepsize_opt import (
    BlockDiagonal,
    DiagonalSketch,
    Direction,
    FiniteSketch,
    LayerWise,
    Sketch,
    parse_sketch,
)

# The goals of stored problems; ``linear`` also takes its M.
GOALS: dict[str, dict[str, str]] = {
    **goals.GOALS,
    "condition-euclidean": {"guarantee": "condition", "criterion": "euclidean"},
    "condition-linear": {"guarantee": "condition", "criterion": "linear"},
}


def never_drawn(rng: np.random.Generator, count: int) -> Any:
    """Stand in for the sampler of a sketch given by its moments; a solve or a proof must not call it."""
    msg = "a certificate must not draw from the sketch"
    raise AssertionError(msg)


def read_sketch(plain: Any, d: int) -> Sketch:
    """Build the sketch of dimension d."""
    if isinstance(plain, str):
        return parse_sketch(plain, d)
    if "moments" in plain:
        return DiagonalSketch.from_moments(np.array(plain["moments"]), never_drawn)
    if "layers" in plain:
        return LayerWise([read_sketch(layer, size) for size, layer in plain["layers"]])
    if "support" in plain:
        return DiagonalSketch.from_support(np.array(plain["support"]), plain["weights"])
    return FiniteSketch(np.array(plain["finite"]), plain["weights"])


def write_sketch(sketch: Sketch) -> Any:
    """The plain form of a sketch."""
    if isinstance(sketch, LayerWise):
        return {"layers": [[layer.d, write_sketch(layer)] for layer in sketch.layers]}
    if isinstance(sketch, FiniteSketch):
        return {"finite": sketch.matrices.tolist(), "weights": sketch.weights.tolist()}
    if not isinstance(sketch, DiagonalSketch):
        return sketch.text
    try:
        weights, vectors = sketch.support()
    except ValueError:  # only its moments are known
        return {"moments": sketch.second_moment_matrix.tolist()}
    return {"support": vectors.tolist(), "weights": weights.tolist()}


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
        return {"blocks": list(structure.sizes)}
    return {"direction": np.array(structure.W).tolist(), "sizes": structure.sizes and list(structure.sizes)}


def goal_arguments(name: str, strong_convexity: Any = None) -> dict[str, Any]:
    """The arguments of ``optimal_stepsize`` for a goal; M is a number or a nested list."""
    lower = np.array(strong_convexity) if isinstance(strong_convexity, list) else strong_convexity
    return {**GOALS[name], "lower": lower}
