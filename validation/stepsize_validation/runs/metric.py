"""The descent metric of a run, and what its steps show of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh

from stepsize_opt.methods import Method
from stepsize_opt.problems import Federated, Objective
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class DescentMetric:
    """The descent metric H of a run: 2D − T(D) on one node; Theorem 3 has 2D − DLD and counts the variance apart.

    Clients that share their draws are one node.
    """

    D: Matrix
    H: Matrix
    L: Matrix
    one_node: bool

    @staticmethod
    def of(
        objective: Objective | Federated,
        D: Matrix,
        sketch: Sketch,
        method: Method,
        *,
        one_node: bool,
    ) -> DescentMetric:
        L = objective.smoothness()
        H = method.descent_metric(D, L, sketch) if one_node else 2.0 * D - D @ L @ D
        return DescentMetric(D, H, L, one_node)

    def norms(self, gradient: Matrix) -> Vector:
        """Return ‖g‖²_H for each seed."""
        return np.asarray(np.einsum("sd,sd->s", gradient, gradient @ self.H))

    def decrease(self, gradient: Matrix, along: Matrix, step: Matrix) -> Vector:
        """Return 2⟨g, step⟩ − ‖v‖²_L for each seed: v is the step on one node, Dg (``along``) with clients."""
        v = step if self.one_node else along
        return np.asarray(2.0 * np.einsum("sd,sd->s", gradient, step) - np.einsum("sd,sd->s", v, v @ self.L))

    @cached_property
    def eigenvalues(self) -> Vector:
        """Of H, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.H), dtype=np.float64)

    @property
    def rate(self) -> float:
        """det(H)^{1/d}; 0 when H is not positive definite."""
        return math.exp(float(np.log(self.eigenvalues).mean())) if self.eigenvalues[0] > 0.0 else 0.0

    @property
    def condition(self) -> float:
        """The largest eigenvalue of D⁻¹T(D) = 2I − D⁻¹H, less its rounding."""
        largest = float(eigh(2.0 * self.D - self.H, self.D, eigvals_only=True)[-1])
        return largest - len(self.D) * float(np.finfo(float).eps) * float(np.linalg.cond(self.D))
