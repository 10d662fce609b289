"""The descent metric of a run, and what its steps show of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import eigh
from scipy.sparse.linalg import aslinearoperator

from stepsize_opt import smoothness
from stepsize_opt.methods import Method, SubspaceMethod
from stepsize_opt.operators import DiagonalStepsize, LowRankStepsize, StepsizeOperator
from stepsize_opt.problems import Federated, Objective
from stepsize_opt.sketches import BernQ, Identity, IndependentSampling, RandK, Sketch
from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_solvers.programs import Matrix, Vector, is_identity


@dataclass(frozen=True, eq=False)
class DescentMetric:
    """The descent metric H of a run: 2D − T(D) on one node; Theorem 3 has 2D − DLD and counts the variance apart.

    Clients that share their draws are one node.  For an operator D, H and L are operators as well; H is then None
    where T(D) has no such form, and its eigenvalues are not computed.
    """

    D: Any
    H: Any
    L: Any
    one_node: bool

    @staticmethod
    def of(
        objective: Objective | Federated,
        D: Matrix | StepsizeOperator,
        sketch: Sketch,
        method: Method,
        *,
        one_node: bool,
    ) -> DescentMetric:
        if isinstance(D, StepsizeOperator):
            L = smoothness.of(objective)
            moment = moment_operator(method, D, L, sketch) if one_node else D @ aslinearoperator(L) @ D
            return DescentMetric(D, None if moment is None else 2.0 * D - moment, L, one_node)
        L = objective.smoothness()
        H = method.descent_metric(D, L, sketch) if one_node else 2.0 * D - D @ L @ D
        return DescentMetric(D, H, L, one_node)

    def norms(self, gradient: Matrix) -> Vector | float:
        """Return ‖g‖²_H for each seed; NaN where there is no H."""
        if self.H is None:
            return math.nan
        return np.asarray(np.einsum("sd,sd->s", gradient, gradient @ self.H))

    def decrease(self, gradient: Matrix, along: Matrix, step: Matrix) -> Vector:
        """Return 2⟨g, step⟩ − ‖v‖²_L for each seed: v is the step on one node, Dg (``along``) with clients."""
        v = step if self.one_node else along
        return np.asarray(2.0 * np.einsum("sd,sd->s", gradient, step) - np.einsum("sd,sd->s", v, v @ self.L))

    @cached_property
    def eigenvalues(self) -> Vector:
        """Of H, ascending; one NaN for an H that is not an array."""
        if not isinstance(self.H, np.ndarray):
            return np.array([math.nan])
        return np.asarray(np.linalg.eigvalsh(self.H), dtype=np.float64)

    @property
    def rate(self) -> float:
        """det(H)^{1/d}; 0 when H is not positive definite, NaN when its eigenvalues are not computed."""
        return math.exp(float(np.log(self.eigenvalues).mean())) if not self.eigenvalues[0] <= 0.0 else 0.0

    @property
    def condition(self) -> float:
        """The largest eigenvalue of D⁻¹T(D) = 2I − D⁻¹H, less its rounding; NaN when it is not computed."""
        if not isinstance(self.H, np.ndarray):
            return math.nan
        largest = float(eigh(2.0 * self.D - self.H, self.D, eigvals_only=True)[-1])
        return largest - len(self.D) * float(np.finfo(float).eps) * float(np.linalg.cond(self.D))


def moment_operator(method: Method, D: StepsizeOperator, L: Any, sketch: Sketch) -> Any:
    """Return T(D) by its products, for a D and an L (array or operator) that are not formed.

    None where it has no such form: it is D𝒫(L)D with 𝒫(L) = Diag(α∘diag L) + βL for det-CGD2, and for det-CGD1
    with a sketch that commutes with D; for det-CGD1 with a D and an L that are diagonal plus low rank it is
    Diag(α∘diag DLD) + βDLD.  For the subspace method it is D itself: AᵀLA = I makes GᵀLG = G.
    """
    if isinstance(method, SubspaceMethod):
        return D
    if not isinstance(sketch, RandK | IndependentSampling | BernQ | Identity):
        return None  # the map of another distribution may itself be d×d
    split = sketch.map.diagonal_plus_scaled
    if split is None:
        return None
    commutes = isinstance(D, DiagonalStepsize) or not split.alpha.any()
    if not is_identity(method.condition(sketch.map, commutes=commutes).outer):
        if not isinstance(D, LowRankStepsize) or not isinstance(L, LowRankPlusDiagonal) or sparse.issparse(L.U):
            return None
        inside: Any = D @ aslinearoperator(L) @ D
        return aslinearoperator(sparse.diags_array(split.alpha * D.energies(L))) + split.beta * inside
    own: Any = aslinearoperator(sparse.diags_array(split.alpha * L.diagonal()))
    return D @ (own + split.beta * aslinearoperator(L)) @ D
