"""What runs against what: stepsizes that are ready to run, and the panels that compare them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_opt.limit import compression_limit
from stepsize_opt.methods import Method, SubspaceMethod
from stepsize_opt.node import StepsizeResult
from stepsize_opt.problems import Federated, FederatedInfimum, Infimum, Objective
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True, eq=False)
class Choice:
    """A method with its stepsize, ready to run.

    label: as in the figures' legend; ours: not among the paper's choices.
    guarantee: what D was chosen for and its curve is drawn in: the method's condition, weighted by D, or the descent
    metric, weighted by H = 2D − T(D).  rate: det(D)^{1/d} or det(H)^{1/d}; feasible: whether D is proved to satisfy its
    guarantee (the condition, or H ≻ 0), so that the theorem speaks.  The descent metric of every choice is checked.
    gap: certified distance from the optimum of its structure, None for a stepsize that is not an optimum.
    criterion: by which D was chosen; the curve of one other than ``det`` is the plain mean of ‖∇f‖².
    efficiency: its rate over the limit for as many floats per round, None where there is no such limit.
    theory_iterations: iterations that the theory asks for, where they are not 2Δ⁰/(rate ε²) (distributed methods).
    lambda_D: of the distributed methods.
    """

    label: str
    algorithm: str | Method
    D: Matrix
    sketch: Sketch
    rate: float
    feasible: bool
    ours: bool = False
    gap: float | None = None
    theorem: int = 1
    theory_iterations: float | None = None
    lambda_D: float | None = None
    guarantee: str = "condition"
    criterion: str = "det"
    efficiency: float | None = None

    @staticmethod
    def of(label: str, result: StepsizeResult, sketch: Sketch, *, ours: bool = False, theorem: int = 1) -> Choice:
        """A result as a choice; a label that says optimal keeps the word only with the certificate for it."""
        if result.status != "optimal":
            label = label.replace("optimal", "not certified")
        return Choice(
            label,
            result.algorithm,
            result.D,
            sketch,
            result.rate,
            result.certificate.feasible,
            ours,
            result.gap,
            theorem,
            guarantee=result.guarantee,
            criterion=result.criterion,
            efficiency=result.efficiency,
        )

    @staticmethod
    def subspace(method: SubspaceMethod) -> Choice:
        """The subspace method, whose D satisfies E[GᵀLG] ⪯ D by its proof."""
        return Choice(
            f"subspace, {method.criterion}",
            method,
            method.D,
            method.sketch,
            method.rate,
            feasible=True,
            ours=True,
            gap=method.certificate.gap,
            guarantee="condition" if method.criterion == "det" else "descent",
            criterion=method.criterion,
            efficiency=method.efficiency,
        )

    @property
    def cost(self) -> float:
        """Iterations that the theory asks for, in units that do not round: whole numbers of a short run would hide a
        saving of a few per cent."""
        return 1.0 / self.rate if self.theory_iterations is None else self.theory_iterations


@dataclass(frozen=True, eq=False)
class Panel:
    """One panel of a figure: an objective with bounds on its infimum, and the choices that are compared on it.

    epsilon2: the ε² that the tables ask for.
    """

    experiment: str
    dataset: str
    variant: str
    objective: Objective | Federated
    choices: tuple[Choice, ...]
    infimum: Infimum | FederatedInfimum
    epsilon2: float


def cgd(L: Matrix, sketch: Sketch) -> Choice:
    """CGD with a scalar smoothness constant: γ = 1/((1 + ω) λmax(L)) (Khirirat et al., as in the paper)."""
    # E[S D L D S] ⪯ γ²λmax(L) E[S²] ⪯ γ²λmax(L)(1 + ω) I = γI; two ulp down, so that rounding cannot lift it.
    gamma = (1.0 - 2.0 * np.finfo(float).eps) / ((1.0 + sketch.omega) * float(np.linalg.eigvalsh(L)[-1]))
    efficiency = gamma / compression_limit(L, sketch.expected_rank).upper
    return Choice("CGD", "CGD", gamma * np.eye(len(L)), sketch, gamma, feasible=True, efficiency=efficiency)
