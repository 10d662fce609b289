"""Attacks on ``optimal_stepsize``: laws, structures, scales, sizes, every solver, and limits of time and iterations."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from stepsize_opt import IndependentSampling, StepsizeResult, available_solvers, optimal_stepsize
from stepsize_opt.problems import random_smoothness
from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind, Verdict, ask, claim
from stepsize_validation.attack.referee import Node, judge_result
from stepsize_validation.referee import combine, condition_slack, definiteness, random_problem, rational

# A rival run is solved to this gap, so that a false bound shows when it is off by more.
RIVAL_TOL = 1e-9


@dataclass(frozen=True, eq=False)
class Solve:
    """``optimal_stepsize`` on a node; ``may_refuse`` when the problem lies at the edge of what float64 can hold."""

    node: Node
    may_refuse: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        options = "".join(f", {name} = {value}" for name, value in self.options.items())
        return f"{self.node}{options}{', ' if self.note else ''}{self.note}"

    def solve(self) -> StepsizeResult:
        """The answer; raises Refused or Wrong as ``ask`` does."""
        return ask(lambda: optimal_stepsize(**self.node.arguments, **self.options), may_refuse=self.may_refuse)

    def attack(self) -> Verdict:
        return judge_result(self.node, self.solve(), [rival] if (rival := self.rival()) is not None else [])

    def rival(self) -> Any:
        """A feasible D of the same problem from a run with a smaller tolerance, or None when that run gives up."""
        try:
            return np.array(optimal_stepsize(**self.node.arguments, tol=RIVAL_TOL).D)
        except (ValueError, RuntimeError):
            return None


def draw_laws(rng: np.random.Generator) -> Solve:
    d = draws.size(rng, 6)
    if rng.random() < 0.7:
        law = draws.sketch(rng, d, 100)
    else:  # so many terms that the rounding of their sum counts
        d = min(d, 3)
        law = draws.long_law(rng, d, int(10.0 ** rng.uniform(3.0, 4.3)))
    return Solve(Node(draws.smoothness(rng, d), law, draws.algorithm(rng)))


def draw_structures(rng: np.random.Generator) -> Solve:
    d = draws.size(rng, 8)
    L, law = draws.smoothness(rng, d), draws.sketch(rng, d)
    return Solve(Node(L, law, draws.algorithm(rng), draws.structure(rng, d)))


# Within 10^±100 everything must be solved: squares and products of three such numbers are still floats.
MUST_SOLVE = 100.0


@dataclass(frozen=True, eq=False)
class Scaled(Solve):
    """Also asks for the iterations that the answer promises, at any ε² and Δ⁰."""

    epsilon2: float = 1.0
    initial_gap: float = 1.0

    def attack(self) -> Verdict:
        verdict = super().attack()
        self._judge_iterations(self.solve())
        return verdict

    def _judge_iterations(self, result: StepsizeResult) -> None:
        """(Kε²)^d det H ≥ (2Δ⁰)^d for H = 2D − T(D) ⪰ D, and no K larger than what det D promises."""
        K = ask(lambda: result.iterations(self.epsilon2, self.initial_gap), may_refuse=True)
        d, D, node = result.d, rational(np.array(result.D)), self.node
        slack = condition_slack(D, rational(node.L), node.sketch, node.algorithm)
        det, best = definiteness(D).det, definiteness(combine((1, D), (1, slack))).det
        claim(isinstance(K, int) and K >= 1, f"iterations() returned {K!r}")
        epsilon2, needed = Fraction(self.epsilon2), (2 * Fraction(self.initial_gap)) ** d
        # rate is a float: its rounding and that of the exponential are allowed for.
        enough = (K * epsilon2 * (1 + Fraction(1, 10**9))) ** d * best >= needed
        claim(enough, f"K = {K} of iterations() does not guarantee ε²")
        less = K * (1 - Fraction(1, 10**6)) - 1
        claim(less <= 0 or (less * epsilon2) ** d * det <= needed, f"K = {K} of iterations() is too large")


def draw_scales(rng: np.random.Generator) -> Scaled:
    d = draws.size(rng, 6)
    law = draws.sketch(rng, d)
    L = draws.smoothness(rng, d, 1e6)
    least = 0.0
    if rng.random() < 0.3:
        least = float(rng.uniform(0.0, 30.0 if rng.random() < 0.3 else 8.0))
        law = IndependentSampling(np.maximum(10.0 ** -rng.uniform(0.0, least, d), 10.0**-least))
    spread = np.zeros(d)
    if law.is_diagonal and rng.random() < 0.4:
        spread = rng.uniform(-1.0, 1.0, d) * float(rng.choice([3.0, 30.0, 150.0]))
    top = float(rng.choice([30.0, 100.0, 320.0]))
    exponent = float(rng.uniform(-top, top))
    # Powers of two keep L exactly symmetric and positive definite unless entries leave the range of floats.
    half = np.rint((spread + 0.5 * exponent) * math.log2(10.0)).astype(np.intc)
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(np.ldexp(L, half[:, None]), half)
    structure = draws.structure(rng, d, 1e3)
    extreme = abs(exponent) + 2.0 * float(np.abs(spread).max()) > MUST_SOLVE or least > 8.0
    return Scaled(
        Node(scaled, law, draws.algorithm(rng), structure),
        may_refuse=extreme,
        note=f"L·10^{exponent:.0f}, coordinates 10^±{np.abs(spread).max():.0f}, p ≥ 10^−{least:.0f}",
        epsilon2=float(10.0 ** rng.uniform(-3.0, 3.0)),
        initial_gap=float(10.0 ** rng.uniform(-3.0, 3.0)),
    )


def draw_large(rng: np.random.Generator) -> Solve:
    d = int(rng.integers(10, 61)) if rng.random() < 0.3 else int(rng.integers(10, 26))
    condition = float(10.0 ** rng.uniform(0.0, 14.0))
    law = draws.named_sketch(rng, d)
    node = Node(random_smoothness(rng, d, condition), law, draws.algorithm(rng))
    # A rounded L of condition 1e12 and more may be singular to working precision, which the library says.
    return Solve(node, may_refuse=condition > 1e12, note=f"condition {condition:.1e}")


@dataclass(frozen=True, eq=False)
class EverySolver:
    node: Node

    def __str__(self) -> str:
        return str(self.node)

    def attack(self) -> Verdict:
        answers: dict[str, StepsizeResult] = {}
        for entry in available_solvers():
            if entry.available:
                try:
                    answers[entry.name] = optimal_stepsize(**self.node.arguments, solver=entry.name)
                except RuntimeError:  # documented: this solver returned no point
                    continue
        claim("native" in answers, "the native solver returned no stepsize")
        stepsizes = [np.array(answer.D) for answer in answers.values()]
        verdicts = [judge_result(self.node, answer, stepsizes) for answer in answers.values()]
        return Verdict.OK if all(verdict is Verdict.OK for verdict in verdicts) else Verdict.UNPROVED


def draw_solvers(rng: np.random.Generator) -> EverySolver:
    problem = random_problem(rng, 8, 1e8)
    return EverySolver(Node(problem.L, problem.sketch))


# Reading the model, the repair and the certificate come on top of a limit.
ON_TOP = 5.0


@dataclass(frozen=True, eq=False)
class Limited(Solve):
    def attack(self) -> Verdict:
        began = time.process_time()  # of this process, because the machine may be busy with others
        result = self.solve()
        took = time.process_time() - began
        limit = self.options.get("time_limit")
        claim(limit is None or took <= limit + ON_TOP, f"{took:.1f} s with a limit of {limit} s")
        return judge_result(self.node, result)


def draw_budgets(rng: np.random.Generator) -> Limited:
    names = [entry.name for entry in available_solvers() if entry.available]
    d = int(rng.integers(2, 21))
    node = Node(draws.smoothness(rng, d, 1e6), draws.sketch(rng, d, 8), structure=draws.structure(rng, d, 1e3))
    options = {"solver": str(rng.choice(names))}
    if rng.random() < 0.5:
        return Limited(node, options={**options, "time_limit": float(10.0 ** rng.uniform(-3.0, 0.0))})
    return Limited(node, options={**options, "max_iters": int(rng.integers(1, 20))})


KINDS = (
    Kind("laws", "laws of up to 20 000 terms, moments, matrices, nested layers", 3.0, draw_laws),
    Kind("structures", "diagonal, scalar, blocks, directions with every law and both algorithms", 3.0, draw_structures),
    Kind("scales", "L from 1e-320 to 1e320, coordinates of different scale, tiny probabilities", 3.0, draw_scales),
    Kind("large", "d up to 60, condition numbers up to 1e14", 0.3, draw_large),
    Kind("solvers", "every solver on the same problem: feasible answers, bounds that agree", 0.1, draw_solvers),
    Kind("budgets", "limits of time and iterations: an honest answer in time from every solver", 0.15, draw_budgets),
)
