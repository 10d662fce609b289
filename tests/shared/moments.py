"""The listed law of a sketch, and T(D), H and V(D) of a method in floating point, by the formula that it states."""

from __future__ import annotations

import numpy as np

from stepsize_opt import Method, Sketch
from stepsize_opt.methods import get_method
from stepsize_solvers.programs import Matrix, Vector


def listed(sketch: Sketch) -> tuple[Vector, Matrix]:
    """Return the weights (R,) and the outcomes as dense matrices (R, d, d)."""
    weights, outcomes = sketch.support()
    return weights, outcomes if outcomes.ndim == 3 else outcomes[:, :, None] * np.eye(sketch.d)


def second_moment(algorithm: str | Method, D: Matrix, L: Matrix, sketch: Sketch) -> Matrix:
    """T(D) = E[GᵀLG]."""
    return np.asarray(get_method(algorithm).moment(D, L, lambda M: sketch.second_moment(0.5 * (M + M.T))))


def descent_metric(algorithm: str | Method, D: Matrix, L: Matrix, sketch: Sketch) -> Matrix:
    """H = 2D − T(D)."""
    return 2.0 * D - second_moment(algorithm, D, L, sketch)


def variance(algorithm: str | Method, D: Matrix, L: Matrix, sketch: Sketch) -> Matrix:
    """V(D) = E[(G − D)ᵀL(G − D)]."""
    return np.asarray(get_method(algorithm).moment(D, L, lambda M: sketch.centered_second_moment(0.5 * (M + M.T))))
