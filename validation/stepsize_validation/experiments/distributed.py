"""Experiment (c): n clients, rand-1, stepsizes from conditions (12) with ε² = 10⁻⁴.

DCGD takes the scalar stepsize of Khaled and Richtárik's Corollary 1, DCGD-mat the best scalar under (12), the paper's
distributed det-CGD1 and 2 the best diagonal D; added here are the best full matrices.

*How far to run.*  Under (12) with ε² = 10⁻⁴ the certified smallest K is 10⁶ to 10¹⁰ on these data: the steps are so
small that a run of some thousand iterations does not leave x⁰.  While D ⪯ L⁻¹ is slack, the best D for ε² is
proportional to ε² (λ_D is quadratic in D, its bound linear), and K to ε⁻⁴.  So the runs use the same matrices times one
common factor c = ε²_run/ε², where ε²_run is the level that the run's K iterations can guarantee for the best full D.
The tables give K for the ε² asked for; the check of Theorem 3 uses the λ_D of the matrix that ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stepsize_opt.clients import ScalarStepsize, dcgd_stepsize, optimal_distributed_stepsize
from stepsize_opt.problems import Dataset, Federated, FederatedInfimum, find_federated_infimum, split
from stepsize_opt.sketches import RandK
from stepsize_solvers.programs import Matrix
from stepsize_validation.experiments.panels import Choice, Panel
from stepsize_validation.runs import distributed_lambda

# Descent needs D ⪯ L⁻¹; a scaled matrix keeps this distance from it, far above the rounding of an eigenvalue.
_DESCENT_MARGIN = 1e-9


@dataclass(frozen=True, eq=False)
class Setting:
    """The paper's distributed setting on one data set: rows shuffled and split equally, rand-1, Δ^inf by long runs."""

    objective: Federated
    infimum: FederatedInfimum
    initial_gap: float
    sketch: RandK
    client_L: list[Matrix]
    L: Matrix

    @staticmethod
    def of(data: Dataset, reg: float, clients: int, seed: int) -> Setting:
        """Split the data, find the infima and the smoothness matrices."""
        objective = Federated.logistic(split(data, clients, np.random.default_rng(seed)), reg)
        infimum = find_federated_infimum(objective)
        initial_gap = float(objective.value(np.zeros((1, data.d)))[0]) - infimum.whole.found
        sketch = RandK(data.d, 1)
        return Setting(objective, infimum, initial_gap, sketch, objective.client_smoothness(), objective.smoothness())

    def dcgd(self, epsilon2: float) -> ScalarStepsize:
        """The stepsize of DCGD, from the largest eigenvalues of L and of the Lᵢ."""
        return dcgd_stepsize(
            float(np.linalg.eigvalsh(self.L)[-1]),
            max(float(np.linalg.eigvalsh(Li)[-1]) for Li in self.client_L),
            self.sketch.omega,
            clients=len(self.client_L),
            epsilon2=epsilon2,
            initial_gap=self.initial_gap,
            delta_inf=self.infimum.delta_inf,
        )


def panel_c(
    data: Dataset, reg: float, clients: int, epsilon2: float, iterations: int, seed: int, time_limit: float
) -> tuple[Panel, FederatedInfimum]:
    """The panel of one data set and number of clients: rows shuffled and split equally, as in the paper.

    ``time_limit`` is for each solve; a D that is not optimal within it is feasible all the same, and its gap says how
    many iterations better it could be at most.
    """
    setting = Setting.of(data, reg, clients, seed)
    sketch, client_L, L = setting.sketch, setting.client_L, setting.L
    scalar = setting.dcgd(epsilon2)
    D = scalar.gamma * np.eye(data.d)
    choices = [Choice("DCGD", "DCGD", D, sketch, scalar.gamma, feasible=True, theorem=3, theory_iterations=scalar.K)]
    for label, algorithm, structure, ours in (
        ("DCGD-mat", "det-CGD1", "scalar", False),
        ("D-det-CGD1, diagonal", "det-CGD1", "diagonal", False),
        ("D-det-CGD2, diagonal", "det-CGD2", "diagonal", False),
        ("D-det-CGD1, full", "det-CGD1", "full", True),
        ("D-det-CGD2, full", "det-CGD2", "full", True),
    ):
        result = optimal_distributed_stepsize(
            client_L,
            sketch,
            epsilon2=epsilon2,
            initial_gap=setting.initial_gap,
            delta_inf=setting.infimum.delta_inf,
            mean_smoothness=L,
            algorithm=algorithm,
            structure=structure,
            time_limit=time_limit,
        )
        choices.append(
            Choice(
                label,
                algorithm,
                result.D,
                sketch,
                result.rate,
                feasible=result.certificate.feasible,
                ours=ours,
                gap=result.gap,
                theorem=3,
                theory_iterations=float(result.K),
            )
        )
    least = min(choice.theory_iterations or math.inf for choice in choices)
    factor = max(1.0, math.sqrt(least / iterations))
    variant = f"n = {clients}, ε² of the run {epsilon2 * factor:.2g}"
    scaled = tuple(_scaled(choice, factor, L, client_L) for choice in choices)
    return Panel("c", data.name, variant, setting.objective, scaled), setting.infimum


def _scaled(choice: Choice, factor: float, L: Matrix, client_L: list[Matrix]) -> Choice:
    """The choice with its D times the factor, or as much of it as D ⪯ L⁻¹ allows, and the λ_D of that."""
    w, V = np.linalg.eigh(L)
    root = (V * np.sqrt(w)) @ V.T
    top = float(np.linalg.eigvalsh(root @ choice.D @ root)[-1])
    c = min(factor, (1.0 - _DESCENT_MARGIN) / top)
    D = c * choice.D
    algorithm = "det-CGD2" if choice.algorithm == "det-CGD2" else "det-CGD1"
    lambda_D = distributed_lambda(D, L, client_L, choice.sketch, algorithm)
    return replace(choice, D=D, rate=c * choice.rate, lambda_D=lambda_D)
