"""Every guarantee and criterion: the descent metric, the largest t of X ⪰ tM⁻¹, the condition for convex f.

X is the matrix of the guarantee, D under the condition and H = 2D − T(D) for ``descent``.  Claims: D has the structure;
it satisfies the condition, or H ≻ 0, or 𝒫(D) ⪯ L⁻¹ for ``convex``; ``log_det`` is below log det X, or below d log t for
the largest t with X ⪰ tM⁻¹; no other D of the structure is above ``upper_bound``; ``rate``, ``descent_log_det``,
``descent_t`` and ``satisfies_condition`` are true of this D; ``optimal`` means a gap of at most ``tol``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import eigh

from stepsize_opt import StepsizeResult, optimal_stepsize
from stepsize_opt.problems import random_smoothness
from stepsize_validation.attack import draws
from stepsize_validation.attack.nodes import RIVAL_TOL, Solve
from stepsize_validation.attack.protocol import Kind, Verdict, claim
from stepsize_validation.attack.referee import TIGHT, Node, has_structure
from stepsize_validation.referee import (
    Rational,
    combine,
    condition_slack,
    definiteness,
    is_positive_semidefinite,
    log,
    log_det,
    product,
    rational,
    second_moment,
)

GOALS = (
    ("descent", "det"),
    ("descent", "euclidean"),
    ("descent", "linear"),
    ("condition", "euclidean"),
    ("condition", "linear"),
    ("condition", "convex"),
)
# exp and log of the referee have 50 digits; a t beyond a bound by less than this is not told apart from it.
_DIGITS = Decimal("1e-40")


@dataclass(frozen=True, eq=False)
class Candidate:
    """A stepsize as exact numbers, with what a goal needs of it."""

    node: Node
    D: Rational

    @staticmethod
    def of(node: Node, D: Any) -> Candidate:
        return Candidate(node, rational(D))

    @cached_property
    def slack(self) -> Rational:
        """D − T(D)."""
        return condition_slack(self.D, rational(self.node.L), self.node.sketch, self.node.algorithm)

    @cached_property
    def metric(self) -> Rational:
        """H = 2D − T(D)."""
        return combine((1, self.D), (1, self.slack))

    def satisfies_condition(self) -> bool:
        return definiteness(self.D).det > 0 and is_positive_semidefinite(self.slack)

    def is_convex_step(self) -> bool:
        """D ≻ 0 and 𝒫(D) ⪯ L⁻¹, that is L𝒫(D)L ⪯ L."""
        L = rational(self.node.L)
        inner = product(product(L, second_moment(self.node.sketch, self.D)), L)
        return definiteness(self.D).det > 0 and is_positive_semidefinite(combine((1, L), (-1, inner)))


@dataclass(frozen=True, eq=False)
class Goal(Solve):
    """``optimal_stepsize`` with a guarantee and a criterion; M: of ``linear``, or the identity of ``euclidean``."""

    M: Any = None

    @property
    def guarantee(self) -> str:
        return str(self.options["guarantee"])

    @property
    def criterion(self) -> str:
        return str(self.options["criterion"])

    def __str__(self) -> str:
        return f"{self.node}, {self.guarantee}, {self.criterion}{self.note}"

    def attack(self) -> Verdict:
        result = self.solve()
        return self.judge(result, self.rivals(result))

    def rivals(self, result: StepsizeResult) -> list[Any]:
        """Other stepsizes of the same structure: a finer solve, and the optimum of the condition."""
        found = []
        # A program for t is solved to a tenth of a millionth; beyond, its solvers stall on flat optima.
        tol = RIVAL_TOL if self.M is None else 1e-7
        for options in ({**self.options, "tol": tol, "warm_start": result}, {}):
            try:
                found.append(np.array(optimal_stepsize(**self.node.arguments, **options).D))
            except (ValueError, RuntimeError):
                continue
        return found

    def judge(self, result: StepsizeResult, rivals: Sequence[Any] = ()) -> Verdict:
        """Every claim of an answer, and that no rival is above its bound."""
        D, node, certificate = np.array(result.D), self.node, result.certificate
        claim(bool(np.isfinite(D).all()), "D has entries that are not finite")
        claim(has_structure(D, node.structure), f"D has not the structure {node.structure}")
        one = Candidate.of(node, D)
        claim(certificate.feasible and self.allows(one), "D is not feasible in exact arithmetic, or not said to be")
        claim(self.reaches(one, Decimal(certificate.log_det)), f"log_det {certificate.log_det!r} is too large")
        slack = Decimal(TIGHT) * (result.d + abs(Decimal(certificate.log_det)))
        claim(not self.reaches(one, Decimal(certificate.log_det) + slack), "log_det is not tight")
        self._judge_rates(one, result)
        claim(not math.isnan(certificate.upper_bound), "the upper bound is not a number")
        for rival in (D, *rivals):
            other = Candidate.of(node, rival)
            above = has_structure(rival, node.structure) and self.exceeds(other, Decimal(certificate.upper_bound))
            claim(not above, f"upper bound {certificate.upper_bound!r} is below the value of a feasible D")
        if result.status != "optimal":
            return Verdict.UNPROVED
        claim(result.gap <= result.tol, f"optimal with a gap of {result.gap:.3g} above tol = {result.tol:g}")
        return Verdict.OK

    def _judge_rates(self, one: Candidate, result: StepsizeResult) -> None:
        """What is said of this D beside its certificate."""
        rate = Fraction(result.rate) * (1 - Fraction(1, 10**12))  # math.exp is true to a few units in the last place
        claim(self.reaches(one, log(rate) * result.d), f"rate {result.rate!r} is too large")
        claim(not result.satisfies_condition or one.satisfies_condition(), "satisfies_condition is false")
        if math.isfinite(result.descent_log_det):
            true = definiteness(one.metric).det > 0 and Decimal(result.descent_log_det) <= log_det(one.metric)
            claim(true, f"descent_log_det {result.descent_log_det!r} is above log det H")
        if result.descent_t is not None:
            claim(self._above_floor(one.metric, Fraction(result.descent_t)), "H ⪰ descent_t M⁻¹ is false")

    def allows(self, one: Candidate) -> bool:
        """Whether D is feasible."""
        if self.criterion == "convex":
            return one.is_convex_step()
        return one.satisfies_condition() if self.guarantee == "condition" else definiteness(one.metric).det > 0

    def reaches(self, one: Candidate, value: Decimal) -> bool:
        """Whether log det X, or d log t, is at least the value."""
        X = one.metric if self.guarantee == "descent" else one.D
        if self.M is None:
            return definiteness(X).det > 0 and log_det(X) >= value
        return self._above_floor(X, Fraction(Context(prec=50).exp(value / len(X))))

    def exceeds(self, one: Candidate, value: Decimal) -> bool:
        """Whether D is feasible and its value above the given one by more than the digits of the referee."""
        return (
            not value.is_infinite() and self.reaches(one, value + abs(value) * _DIGITS + _DIGITS) and self.allows(one)
        )

    def _above_floor(self, X: Rational, t: Fraction) -> bool:
        """X ⪰ tM⁻¹, that is MXM ⪰ tM."""
        M = rational(self.M)
        return is_positive_semidefinite(combine((1, product(product(M, X), M)), (-t, M)))


def draw(rng: np.random.Generator) -> Goal:
    d = draws.size(rng, 6)
    guarantee, criterion = GOALS[int(rng.integers(len(GOALS)))]
    # The condition for convex f is proved for det-CGD1.
    algorithm = "det-CGD1" if criterion == "convex" else draws.algorithm(rng)
    # A program for t needs a D that float64 tells from singular: its best D may be near that for a wide spectrum.
    L = draws.smoothness(rng, d, 1e8 if criterion in ("det", "convex") else 1e5)
    node = Node(L, draws.sketch(rng, d), algorithm, draws.structure(rng, d, 1e4))
    lower, M, note = _floor(rng, L) if criterion == "linear" else (None, np.eye(d), "")
    options = {"guarantee": guarantee, "criterion": criterion, **({} if lower is None else {"lower": lower})}
    return Goal(node, options=options, note=note, M=M if criterion in ("euclidean", "linear") else None)


def _floor(rng: np.random.Generator, L: Any) -> tuple[Any, Any, str]:
    """A lower bound on ∇²f as the user gives it, as a matrix, and in words: L, a number, or any matrix below L."""
    kind, d = int(rng.integers(3)), len(L)
    if kind == 0:
        return L, L, ", M = L"
    if kind == 1:
        mu = float(np.linalg.eigvalsh(L)[0] * rng.uniform(0.01, 0.99))
        return mu, mu * np.eye(d), f", M = {mu:.3g}·I"
    W = random_smoothness(rng, d, float(1e3 ** rng.random()))
    M = W * float(rng.uniform(0.1, 0.99) / eigh(W, L, eigvals_only=True)[-1])
    return M, M, ", M below L"


KINDS = (Kind("goals", "the descent metric and every criterion, with every law, structure and algorithm", 3.0, draw),)
