"""The paper's experiments as data: which stepsizes run on which objective with which sketch.

(a) one node, rand-1: CGD, CGD-mat, det-CGD1 with γ₁diag⁻¹(L), γ₂L⁻¹, γ₃L^{−½}, det-CGD2 with its optimum; and det-CGD1
    with its own optimum, which the paper could not compute.
(b) one node, rand-τ for τ = d/4, d/2, 3d/4: CGD, CGD-mat, both methods with D₂* (the optimum of det-CGD2); and det-CGD1
    with its own optimum.  D₂* need not satisfy det-CGD1's condition: whether it does is checked and recorded.
(c) n clients, rand-1 (``distributed_experiment``).
(d) layers: Bern-q against rand-k at equal bits, and no compression ("compression for free").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepsize_opt.inputs import Direction
from stepsize_opt.node import StepsizeResult, certify, compare, optimal_stepsize
from stepsize_opt.problems import Dataset, Federated, Layered, LogisticRegression, Objective
from stepsize_opt.sketches import BernQ, Identity, LayerWise, RandK, Sketch
from stepsize_solvers.programs import Matrix

DATASETS = ("a1a", "phishing", "mushrooms", "australian_scale", "heart_scale", "w1a")
EXPERIMENTS = ("a", "b", "c", "d")


@dataclass(frozen=True, eq=False)
class Choice:
    """A method with its stepsize, ready to run.

    label: as in the figures' legend; ours: not among the paper's choices.
    rate: det(D)^{1/d}; feasible: whether D is proved to satisfy the method's condition, so that the theorem speaks.
    gap: certified distance from the optimum of its structure, None for a stepsize that is not an optimum.
    theory_iterations: iterations that the theory asks for, where they are not 2Δ⁰/(rate ε²) (distributed methods).
    lambda_D: of the distributed methods.
    """

    label: str
    algorithm: str
    D: Matrix
    sketch: Sketch
    rate: float
    feasible: bool
    ours: bool = False
    gap: float | None = None
    theorem: int = 1
    theory_iterations: float | None = None
    lambda_D: float | None = None

    @staticmethod
    def of(label: str, result: StepsizeResult, sketch: Sketch, *, ours: bool = False, theorem: int = 1) -> Choice:
        """A result as a choice; a label that says optimal keeps the word only with the certificate for it."""
        certificate = result.certificate
        if result.status != "optimal":
            label = label.replace("optimal", "not certified")
        return Choice(
            label, result.algorithm, result.D, sketch, result.rate, certificate.feasible, ours, result.gap, theorem
        )


@dataclass(frozen=True, eq=False)
class Panel:
    """One panel of a figure: an objective and the choices that are compared on it."""

    experiment: str
    dataset: str
    variant: str
    objective: Objective | Federated
    choices: tuple[Choice, ...]


def cgd(L: Matrix, sketch: Sketch) -> Choice:
    """CGD with a scalar smoothness constant: γ = 1/((1 + ω) λmax(L)) (Khirirat et al., as in the paper)."""
    # E[S D L D S] ⪯ γ²λmax(L) E[S²] ⪯ γ²λmax(L)(1 + ω) I = γI; two ulp down, so that rounding cannot lift it.
    gamma = (1.0 - 2.0 * np.finfo(float).eps) / ((1.0 + sketch.omega) * float(np.linalg.eigvalsh(L)[-1]))
    return Choice("CGD", "CGD", gamma * np.eye(len(L)), sketch, gamma, feasible=True)


def panel_a(data: Dataset, reg: float) -> Panel:
    """Experiment (a): rand-1."""
    objective = LogisticRegression.from_dataset(data, reg)
    L, sketch = objective.smoothness(), RandK(data.d, 1)
    rows = {(row.method, row.stepsize): row.result for row in compare(L, sketch).rows}
    named = [
        ("CGD-mat", ("det-CGD1", "γ I"), False),
        ("det-CGD1, γ₁ diag⁻¹(L)", ("det-CGD1", "γ diag⁻¹(L)"), False),
        ("det-CGD1, γ₂ L⁻¹", ("det-CGD1", "γ L⁻¹"), False),
        ("det-CGD1, γ₃ L^(−1/2)", ("det-CGD1", "γ L^(-1/2)"), False),
        ("det-CGD2, optimal", ("det-CGD2", "optimal"), False),
        ("det-CGD1, optimal", ("det-CGD1", "optimal"), True),
    ]
    choices = [Choice.of(label, rows[key], sketch, ours=ours) for label, key, ours in named]
    return Panel("a", data.name, "rand-1", objective, (cgd(L, sketch), *choices))


def taus(d: int) -> tuple[int, int, int]:
    """The integer parts of d/4, d/2 and 3d/4."""
    return max(1, d // 4), max(1, d // 2), max(1, 3 * d // 4)


def panel_b(data: Dataset, reg: float, tau: int) -> Panel:
    """Experiment (b): rand-τ."""
    objective = LogisticRegression.from_dataset(data, reg)
    L, sketch = objective.smoothness(), RandK(data.d, tau)
    scalar = optimal_stepsize(L, sketch, structure="scalar")
    second = optimal_stepsize(L, sketch, algorithm="det-CGD2")
    first = optimal_stepsize(L, sketch)
    check = certify(second.D, L, sketch, dual=first.dual)
    choices = (
        cgd(L, sketch),
        Choice.of("CGD-mat", scalar, sketch),
        Choice("det-CGD1, D₂*", "det-CGD1", second.D, sketch, second.rate, check.feasible),
        Choice.of("det-CGD2, optimal", second, sketch),
        Choice.of("det-CGD1, optimal", first, sketch, ours=True),
    )
    return Panel("b", data.name, f"rand-{tau}", objective, choices)


def panel_d(data: Dataset, reg: float, layers: int, fraction: float) -> Panel:
    """Experiment (d): a layer-separable objective; every compressed method sends ``fraction`` of the numbers.

    Rand-k takes kᵢ = ⌈fraction·dᵢ⌉ of each layer; Bern-q takes the one q that sends as much on average.
    """
    objective = Layered.logistic(data, reg, layers)
    L, sizes = objective.smoothness(), objective.sizes
    k = [max(1, math.ceil(fraction * size)) for size in sizes]
    rand: Sketch = LayerWise([RandK(size, one) for size, one in zip(sizes, k, strict=True)])
    bern = BernQ(sum(k) / sum(sizes), sizes)
    diagonal = Direction(np.diag(1.0 / np.diagonal(L)), sizes)
    choices = (
        Choice.of("no compression", optimal_stepsize(L, Identity(data.d), algorithm="det-CGD2"), Identity(data.d)),
        Choice.of("det-CGD2, Bern-q", optimal_stepsize(L, bern, algorithm="det-CGD2"), bern),
        Choice.of("det-CGD2, rand-k", optimal_stepsize(L, rand, algorithm="det-CGD2"), rand),
        Choice.of("det-CGD1, rand-k, γᵢ diag⁻¹(Lᵢ)", optimal_stepsize(L, rand, structure=diagonal), rand, theorem=2),
        Choice.of("det-CGD1, rand-k, optimal", optimal_stepsize(L, rand), rand, ours=True),
    )
    return Panel("d", data.name, f"{layers} layers, q = {sum(k) / sum(sizes):.3g}", objective, choices)
