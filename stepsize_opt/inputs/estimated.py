"""Smoothness matrices that are estimated: usable, and never taken for proved ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from stepsize_opt.inputs.checks import check_kind, positive_number, real_array
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True, eq=False)
class EstimatedSmoothness:
    """A matrix that was measured and may be too small: f need not be L-smooth with it.

    ``optimal_stepsize`` and ``compare`` take it in place of L and label what they return; all
    other functions refuse it.  ``matrix`` hands it over without the label, on your responsibility.

    Parameters
    ----------
    curvature : numpy.ndarray
        What was measured, d×d symmetric positive definite.
    margin : float
        The factor with which it is used, L̂ = margin · curvature.
    source : str
        How it was measured, in words.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import EstimatedSmoothness, RandK, optimal_stepsize
    >>> estimate = EstimatedSmoothness(np.eye(3), margin=1.5, source="Hessians at two points")
    >>> optimal_stepsize(estimate, RandK(3, 1)).certified
    False
    """

    certified: ClassVar[bool] = False
    curvature: Matrix
    margin: float
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "curvature", real_array("curvature", self.curvature))
        if self.curvature.ndim != 2 or self.curvature.shape[0] != self.curvature.shape[1]:
            msg = f"curvature must be a square matrix, got shape {self.curvature.shape}"
            raise ValueError(msg)
        positive_number("margin", self.margin)
        check_kind("source", self.source, str)

    @property
    def matrix(self) -> Matrix:
        """L̂ = margin · curvature, d×d."""
        return np.asarray(self.margin * self.curvature)

    @property
    def note(self) -> str:
        """What tables say of results that rest on it."""
        return f"L is estimated, certified=False ({self.source}, margin {self.margin:.3g}): no guarantee holds by proof"

    def with_margin(self, margin: float) -> EstimatedSmoothness:
        """The same measurement with another margin."""
        return EstimatedSmoothness(self.curvature, margin, self.source)

    def __repr__(self) -> str:
        d = len(self.curvature)
        return f"EstimatedSmoothness(d={d}, margin={self.margin:.3g}, source={self.source!r}, certified=False)"
