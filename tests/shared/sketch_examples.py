"""One fixed sketch of every kind, for tests that sample each thousands of times."""

from __future__ import annotations

import numpy as np

from stepsize_opt import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
)

LINE = np.array([0.6, 0.8])
# The two projections on orthogonal lines, doubled: each sends one float.
FINITE = FiniteSketch(2.0 * np.array([np.outer(LINE, LINE), np.eye(2) - np.outer(LINE, LINE)]), [0.5, 0.5])

EXAMPLES: dict[str, Sketch] = {
    "identity": Identity(3),
    "randk": RandK(5, 2),
    "randk, all": RandK(3, 3),
    "bernq": BernQ(0.4, 3),
    "bernq, layers": BernQ([0.5, 0.25], [2, 3]),
    "independent": IndependentSampling([0.2, 0.5, 1.0]),
    "systematic": SystematicSampling([0.2, 0.5, 1.0, 0.75]),
    "support": DiagonalSketch([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [1.0, 1.0, 1.0]], [0.25, 0.25, 0.5]),
    "finite": FINITE,
    "gaussian": Gaussian(4, 2),
    "layers, diagonal": LayerWise([RandK(3, 1), BernQ(0.5, 2)]),
    "layers, mixed": LayerWise([FINITE, RandK(2, 1)]),
    "layers, gaussian": LayerWise([Gaussian(2, 1), IndependentSampling([0.3])]),
    "one coordinate": RandK(1, 1),
}
