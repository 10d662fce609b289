"""``certify`` on stepsizes next to the boundary and elsewhere, with multipliers of any quality, in every structure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from properties.study import deadline, examples
from stepsize_opt import certify, optimal_stepsize
from stepsize_validation.properties.exact import combine, rational
from stepsize_validation.properties.judges import Candidate, Node, Refused, ask, claim, has_structure, judge_certificate
from stepsize_validation.properties.strategies import (
    hard_sketches,
    hard_smoothness,
    random_smoothness,
    seeds,
    structures,
)

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
@examples(80, share=0.15)
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
