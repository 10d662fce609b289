"""Every claim about one node holds in exact arithmetic, for any sketch, structure, goal, scale and size."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import eigh

from properties.study import check_node, deadline, examples
from stepsize_opt import IndependentSampling, certify, optimal_stepsize
from stepsize_opt.goals import GOAL_NAMES
from stepsize_opt.results import StepsizeResult
from stepsize_validation.properties.exact import combine, condition_slack, definiteness, rational
from stepsize_validation.properties.judges import Candidate, Node, Refused, ask, claim, has_structure, judge_certificate
from stepsize_validation.properties.strategies import (
    hard_sketches,
    hard_smoothness,
    random_smoothness,
    seeds,
    sketches,
    structures,
)

REGRESSIONS = json.loads((Path(__file__).parents[1] / "data" / "regressions.json").read_text(encoding="utf-8"))

algorithms = st.sampled_from(["det-CGD1", "det-CGD2"])


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    d = draw(st.integers(1, 8))
    L, sketch = draw(hard_smoothness(d, 1e8)), draw(hard_sketches(d))
    return Node(L, sketch, draw(algorithms), draw(structures(d)))


@given(nodes())
@examples(100, share=0.3)
def test_the_paper_s_problem(node: Node) -> None:
    check_node(node)


@st.composite
def goals(draw: st.DrawFn) -> Node:
    """A problem of every goal but the paper's."""
    d, goal = draw(st.integers(1, 6)), draw(st.sampled_from(GOAL_NAMES[1:]))
    algorithm = draw(algorithms)
    # A program for t needs a D that float64 tells from singular: its best D may be near that for a wide spectrum.
    L = draw(hard_smoothness(d, 1e8 if goal == "descent" else 1e5))
    M = draw(floors(L)) if goal == "linear" else None
    return Node(L, draw(hard_sketches(d)), algorithm, draw(structures(d, 1e4)), goal, M)


@st.composite
def floors(draw: st.DrawFn, L: Any) -> Any:
    """A lower bound M on the Hessian: L itself, a number, or any matrix below L."""
    kind, share = draw(st.sampled_from(["number", "L", "matrix"])), draw(st.floats(0.05, 0.95))
    if kind == "L":
        return L
    if kind == "number":
        return float(np.linalg.eigvalsh(L)[0] * share)
    W = random_smoothness(np.random.default_rng(draw(seeds)), len(L), 10.0 ** draw(st.floats(0.0, 3.0)))
    return W * float(share / eigh(W, L, eigvals_only=True)[-1])


@given(goals())
@examples(60, share=0.25)
def test_every_goal(node: Node) -> None:
    check_node(node)


@pytest.mark.parametrize("stored", REGRESSIONS, ids=lambda stored: f"{stored['goal']}, {stored['why']}")
def test_problems_that_once_were_not_proved_optimal(stored: dict[str, Any]) -> None:
    result = check_node(Node.read(stored))
    assert result is not None and result.status == "optimal"


# Within 10^±100 everything must be solved: squares and products of three such numbers are still floats.
MUST_SOLVE = 100.0


@st.composite
def scaled(draw: st.DrawFn) -> tuple[Node, bool]:
    """L from 1e-320 to 1e320, coordinates of different scale, tiny probabilities; and whether it may be refused."""
    d = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(seeds))
    sketch, rarest = draw(hard_sketches(d)), 0.0
    if draw(st.booleans()):
        rarest = draw(st.floats(0.0, 8.0) | st.floats(8.0, 30.0))
        sketch = IndependentSampling(10.0 ** -(rarest * rng.random(d)))
    width = draw(st.sampled_from([0.0, 3.0, 30.0, 150.0])) if sketch.is_diagonal else 0.0
    spread = width * rng.uniform(-1.0, 1.0, d)
    exponent = draw(st.floats(-100.0, 100.0) | st.floats(-320.0, 320.0))
    # Powers of two keep L exactly symmetric and positive definite unless entries leave the range of floats.
    half = np.rint((spread + 0.5 * exponent) * math.log2(10.0)).astype(np.intc)
    with np.errstate(over="ignore", under="ignore"):
        L = np.ldexp(np.ldexp(draw(hard_smoothness(d, 1e6)), half[:, None]), half)
    extreme = abs(exponent) + 2.0 * float(np.abs(spread).max()) > MUST_SOLVE or rarest > 8.0
    return Node(L, sketch, draw(algorithms), draw(structures(d, 1e3))), extreme


@given(scaled(), st.floats(-3.0, 3.0), st.floats(-3.0, 3.0))
@examples(60, share=0.2)
def test_any_scale(problem: tuple[Node, bool], accuracy: float, gap: float) -> None:
    node, may_refuse = problem
    result = check_node(node, may_refuse=may_refuse)
    if result is not None:
        check_iterations(node, result, 10.0**accuracy, 10.0**gap)


def check_iterations(node: Node, result: StepsizeResult, epsilon2: float, initial_gap: float) -> None:
    """(Kε²)^d det H ≥ (2Δ⁰)^d for H = 2D − T(D) ⪰ D, and no K larger than what det D promises."""
    try:
        K = ask(lambda: result.iterations(epsilon2, initial_gap), may_refuse=True)
    except Refused:
        return
    claim(isinstance(K, int) and K >= 1, f"iterations() returned {K!r}")
    d, D = result.d, rational(np.array(result.D))
    slack = condition_slack(D, rational(node.L), node.sketch, node.algorithm)
    det, best = definiteness(D).det, definiteness(combine((1, D), (1, slack))).det
    needed = (2 * Fraction(initial_gap)) ** d
    claim((K * Fraction(epsilon2)) ** d * best >= needed, f"K = {K} of iterations() does not guarantee ε²")
    less = K * (1 - Fraction(1, 10**6)) - 1
    claim(less <= 0 or (less * Fraction(epsilon2)) ** d * det <= needed, f"K = {K} of iterations() is too large")


@given(st.integers(10, 40), st.floats(0.0, 14.0), seeds, st.data(), algorithms)
@examples(3, share=0.015)
def test_larger_sizes(d: int, exponent: float, seed: int, data: st.DataObject, algorithm: str) -> None:
    L = random_smoothness(np.random.default_rng(seed), d, 10.0**exponent)
    # A rounded L of condition 1e12 and more may be singular to working precision.
    check_node(Node(L, data.draw(sketches(d)), algorithm), may_refuse=exponent > 12.0)


# ----------------------------------------------------------------
# ``certify`` on stepsizes next to the boundary and elsewhere, with multipliers of any quality, in every structure


# largest_scale is a float that rounds a proved scale: true to some roundings times the condition number of D.
SCALE_TRUE_TO = Fraction(1, 10**9)

# Multiples of a stepsize: itself, a few roundings to either side, just outside, and anywhere.
factors = (
    st.integers(-4, 4).map(lambda roundings: 1.0 + 2.0**-52 * roundings)
    | st.floats(-15.0, -3.0).map(lambda exponent: 1.0 + 10.0**exponent)
    | st.floats(0.1, 2.0)
    | st.floats(-60.0, 60.0).map(lambda exponent: 10.0**exponent)
)


@dataclass(frozen=True)
class Question:
    """D is built from the optimum: itself, next to it, or random, then multiplied by ``factor``."""

    node: Node
    kind: str
    factor: float
    multiplier: str
    seed: int

    def noise(self) -> Any:
        return np.random.default_rng(self.seed).standard_normal(self.node.L.shape)

    def stepsize(self, best: Any) -> Any:
        d = len(best)
        D = {
            "optimal": best,
            "next to optimal": best * (1.0 + 1e-13 * (self.noise() + self.noise().T)),
            "random": random_smoothness(np.random.default_rng(self.seed), d, 1e3),
        }[self.kind]
        return 0.5 * self.factor * (D + D.T)

    def dual(self, Z: Any) -> Any:
        G = self.noise()
        return {
            "own": Z,
            "noise": G + G.T,
            "tiny": 1e-320 * np.eye(len(Z)),
            "own with noise": Z + 1e-3 * np.trace(Z) * (G @ G.T),
        }[self.multiplier]


@st.composite
def questions(draw: st.DrawFn) -> Question:
    d = draw(st.integers(1, 6))
    multiplier = draw(st.sampled_from(["optimum", "own", "noise", "tiny", "own with noise"]))
    structure = draw(structures(d)) if multiplier == "optimum" else "full"
    algorithm = draw(st.sampled_from(["det-CGD1", "det-CGD2"]))
    node = Node(draw(hard_smoothness(d, 1e6)), draw(hard_sketches(d)), algorithm, structure)
    kind = draw(st.sampled_from(["optimal", "next to optimal", "random"]))
    return Question(node, kind, draw(factors), multiplier, draw(seeds))


@given(questions(), st.booleans())
@examples(40, share=0.15)
def test_certify(question: Question, of_full_optimum: bool) -> None:
    """``of_full_optimum``: D is made from the optimum without the structure, so that it may lack it."""
    node = question.node
    full = replace(node, structure="full")
    with deadline():
        best = optimal_stepsize(**node.arguments)
        start = optimal_stepsize(**full.arguments) if of_full_optimum else best
        D = question.stepsize(np.array(start.D))
        options: dict[str, Any] = {"structure": node.structure, "optimum": best}
        if question.multiplier != "optimum":
            options = {"dual": question.dual(np.array(best.dual))}
        kept = D.copy(), node.L.copy()
        try:
            check = ask(
                lambda: certify(D, node.L, node.sketch, algorithm=node.algorithm, **options),
                may_refuse=not has_structure(D, node.structure),
            )
        except Refused:
            return
    claim(np.array_equal(D, kept[0]) and np.array_equal(node.L, kept[1]), "certify changed the caller's arrays")
    certificate = check.certificate
    judge_certificate(node, D, certificate, [np.array(best.D)])
    if certificate.feasible:
        lower, upper = certificate.log_det, certificate.upper_bound
        claim(lower <= upper, f"D is feasible, but log_det {lower!r} is above upper_bound {upper!r}")
    if np.linalg.eigvalsh(D)[0] > 1e-6 * np.linalg.eigvalsh(D)[-1]:
        check_scale(full, D, check.largest_scale)


def check_scale(node: Node, D: Any, scale: float) -> None:
    """tD is feasible just below t = largest_scale and not much above; 0 would mean that no multiple of D is."""
    claim(math.isfinite(scale) and scale > 0.0, f"largest_scale is {scale!r} for a positive definite D")
    below, above = (
        Candidate(node, combine((Fraction(scale) * factor, rational(D))))
        for factor in (1 - SCALE_TRUE_TO, Fraction(11, 10))
    )
    claim(below.is_feasible(), f"{scale!r}·D is not feasible")
    claim(not above.is_feasible(), f"largest_scale {scale!r} is too small")
