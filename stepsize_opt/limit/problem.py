"""The problem behind a limit: a budget k and a goal for an L, whatever its kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepsize_opt.certificate_files import Question
from stepsize_opt.goals import Goal
from stepsize_opt.inputs import positive_number
from stepsize_opt.proofs import Certificate, Unproved
from stepsize_opt.sketches import SystematicSampling
from stepsize_opt.smoothness import Smoothness
from stepsize_solvers.programs import Vector

SMALLEST_BUDGET = 1e-100  # below it underflow counts beside products with D ≈ (k/d)L⁻¹


class Subspace(NamedTuple):
    """Directions A with AᵀLA ⪯ I, the sketch that draws columns J of them, and D ⪯ E[A_J A_Jᵀ] with its certificate.

    defect: a bound on ‖AᵀLA − I‖; weights: w of the update of z, with momentum.
    """

    directions: Any
    sketch: SystematicSampling
    D: Any
    certificate: Certificate
    defect: float
    weights: Vector | None = None


@dataclass(frozen=True, eq=False)
class LimitProblem(ABC):
    """A checked L, budget k and goal, of ``METRIC_GOALS``, or of ``MOMENTUM_GOALS`` with momentum."""

    L: Smoothness
    k: float
    goal: Goal

    @property
    def question(self) -> Question:
        """L and M for a certificate file."""
        return Question.of(self.L.formed().matrix if self.L.is_formed else self.L, self.goal.M)

    @property
    @abstractmethod
    def upper_bound(self) -> float:
        """d log of the limit, from above."""

    @abstractmethod
    def best(self) -> tuple[Any, Vector, Certificate]:
        """D that attains the limit, the probabilities of its directions (empty if not known) and its certificate."""

    @abstractmethod
    def subspace(self, basis: str) -> Subspace:
        """The parts of the subspace method with the directions of a basis."""

    def unproved(self, reason: str) -> Unproved:
        """Return the error for a D that float64 does not prove: a tiny budget is named before anything else."""
        if self.k < SMALLEST_BUDGET:
            reason = f"k must be at least {SMALLEST_BUDGET}, got {self.k}: for less nothing can be proved in float64"
        return Unproved(reason)


def read_budget(k: object, d: int) -> float:
    """Return k as a float; raise ValueError or TypeError unless 0 < k ≤ d."""
    budget = positive_number("k", k)
    if budget > d:
        msg = f"k must be at most d={d}, got {k}: with d floats per round the step L⁻¹∇f itself can be sent"
        raise ValueError(msg)
    return budget


def equal_probabilities(d: int, k: float) -> Vector:
    """h of the largest det D: k/d for all."""
    return np.full(d, k / d)


def floor_probabilities(values: Vector, k: float) -> Vector:
    """h of the largest t with D ⪰ tM⁻¹, and among these of the largest det D, from the eigenvalues ℓ of LM⁻¹.

    h ≥ tℓ with t = min(k/Σℓ, 1/max ℓ).  Where 1/max ℓ is the smaller, part of the budget k is left: maximise Σ log h
    subject to tℓ ≤ h ≤ 1 and Σh = k, which has h = clip(c, tℓ, 1) with one number c.
    """
    top, total = float(values.max()), float(values.sum())
    if k * top <= total:
        return np.asarray(np.minimum(values * (k / total), 1.0))
    least = values / top
    if k >= len(values):
        return np.ones_like(least)
    # With c between the m-th and the next largest entry, the m largest stay and the others are c.
    falling = np.sort(least)[::-1]
    kept = np.concatenate([[0.0], np.cumsum(falling)[:-1]])
    level = (k - kept) / (len(values) - np.arange(len(values)))
    m = int(np.argmax(level >= falling))  # there is one: k > Σℓ/max ℓ makes the last level larger than its entry
    return np.asarray(np.clip(level[m], least, 1.0))
