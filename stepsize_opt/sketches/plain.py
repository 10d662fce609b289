"""The plain form of sketches, for JSON files: their text, or a dictionary with the arrays that their class takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepsize_opt.sketches.any_diagonal import DiagonalSketch
from stepsize_opt.sketches.base import Sketch
from stepsize_opt.sketches.general import FiniteSketch, LayerWise
from stepsize_opt.sketches.text import parse_sketch


def plain_sketch(sketch: Sketch) -> Any:
    """Return the plain form of a sketch; ``sketch_of_plain`` reads it."""
    if isinstance(sketch, LayerWise):
        return {"layers": [[layer.d, plain_sketch(layer)] for layer in sketch.layers]}
    if isinstance(sketch, FiniteSketch):
        return {"finite": sketch.matrices.tolist(), "weights": sketch.weights.tolist()}
    if not isinstance(sketch, DiagonalSketch):
        return sketch.text
    try:
        weights, vectors = sketch.support()
    except ValueError:  # only its moments are known
        return {"moments": sketch.second_moment_matrix.tolist(), "nonzeros": sketch.expected_nonzeros}
    return {"support": vectors.tolist(), "weights": weights.tolist()}


def sketch_of_plain(plain: Any, d: int) -> Sketch:
    """Return the sketch of dimension d; one that was given by its moments cannot be sampled."""
    if isinstance(plain, str):
        return parse_sketch(plain, d)
    if "moments" in plain:
        return DiagonalSketch.from_moments(np.array(plain["moments"]), _no_sampler, plain.get("nonzeros"))
    if "layers" in plain:
        return LayerWise([sketch_of_plain(layer, size) for size, layer in plain["layers"]])
    weights = np.array(plain["weights"])
    if "support" in plain:
        vectors = np.array(plain["support"])
        return _with_arrays(DiagonalSketch.from_support(vectors, weights), vectors=vectors, weights=weights)
    matrices = np.array(plain["finite"])
    return _with_arrays(FiniteSketch(matrices, weights), matrices=matrices, weights=weights)


def _with_arrays(sketch: Sketch, **arrays: Any) -> Sketch:
    """Return the sketch with exactly these arrays, because its class divides their sums out and rounds once more."""
    sketch.__setstate__({**vars(sketch), **arrays})
    return sketch


def _no_sampler(rng: np.random.Generator, count: int) -> Any:
    msg = "this sketch was read from a file that holds its moments and not its sampler: build it again to draw from it"
    raise ValueError(msg)
