"""The whole range of float64: L near its ends, coordinates of very different scale, probabilities close to zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from stepsize_opt import IndependentSampling, StepsizeResult
from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind, Verdict, ask, claim
from stepsize_validation.attack.referee import Node
from stepsize_validation.attack.single import Solve
from stepsize_validation.referee import combine, condition_slack, definiteness, rational

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


def draw(rng: np.random.Generator) -> Scaled:
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


KIND = Kind("scales", "L from 1e-320 to 1e320, coordinates of different scale, tiny probabilities", 3.0, draw)
