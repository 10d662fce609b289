"""``certify`` on stepsizes next to the boundary and elsewhere, with multipliers of any quality, in every structure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from stepsize_opt import certify, optimal_stepsize
from stepsize_opt.problems import random_smoothness
from stepsize_validation.attack import draws
from stepsize_validation.attack.protocol import Kind, Verdict, ask, claim
from stepsize_validation.attack.referee import Node, has_structure, judge_certificate
from stepsize_validation.referee import combine, rational

# largest_scale is a float that rounds a proved scale: true to some roundings times the condition number of D.
SCALE_TRUE_TO = Fraction(1, 10**9)


@dataclass(frozen=True, eq=False)
class Certify:
    """D is built from the optimum: itself, next to it, or random, then multiplied by ``factor``."""

    node: Node
    kind: str
    factor: float
    G: Any
    multiplier: str

    def __str__(self) -> str:
        return f"{self.node}, D {self.kind} · {self.factor:.17g}, multiplier {self.multiplier}"

    def attack(self) -> Verdict:
        node, full = self.node, Node(self.node.L, self.node.sketch, self.node.algorithm)
        best = optimal_stepsize(**node.arguments)
        D = self._stepsize(np.array(best.D), np.array(optimal_stepsize(**full.arguments).D))
        options: dict[str, Any] = {"structure": node.structure} if self.multiplier == "solve" else {}
        if self.multiplier != "solve":
            options["dual"] = self._dual(np.array(best.dual))
        judged = node if self.multiplier == "solve" else full
        inside = has_structure(D, judged.structure)
        kept = D.copy(), node.L.copy()
        check = ask(lambda: certify(D, node.L, node.sketch, algorithm=node.algorithm, **options), may_refuse=not inside)
        claim(np.array_equal(D, kept[0]) and np.array_equal(node.L, kept[1]), "certify changed the caller's arrays")
        certificate = check.certificate
        judge_certificate(judged, D, certificate, [np.array(best.D)])
        if certificate.feasible:
            lower, upper = certificate.log_det, certificate.upper_bound
            claim(lower <= upper, f"D is feasible, but log_det {lower!r} is above upper_bound {upper!r}")
        if np.linalg.eigvalsh(D)[0] > 1e-6 * np.linalg.eigvalsh(D)[-1]:
            self._judge_scale(full, D, check.largest_scale)
        return Verdict.OK

    def _stepsize(self, best: Any, best_full: Any) -> Any:
        D = {"optimal": best, "full optimal": best_full, "random": self.G @ self.G.T}.get(self.kind)
        if D is None:  # next to the optimum
            D = best * (1.0 + 1e-13 * (self.G + self.G.T))
        return 0.5 * self.factor * (D + D.T)

    def _dual(self, Z: Any) -> Any:
        if self.multiplier == "own":
            return Z
        if self.multiplier == "noise":
            return self.G + self.G.T
        if self.multiplier == "tiny":
            return 1e-320 * np.eye(len(Z))
        return Z + 1e-3 * np.trace(Z) * (self.G @ self.G.T)

    def _judge_scale(self, node: Node, D: Any, scale: float) -> None:
        """tD is feasible just below t = largest_scale and not much above; 0 would say that no multiple of D is."""
        claim(math.isfinite(scale) and scale > 0.0, f"largest_scale is {scale!r} for a positive definite D")
        t, exact = Fraction(scale), rational(D)
        claim(node.allows(combine((t * (1 - SCALE_TRUE_TO), exact))), f"{scale!r}·D is not feasible")
        claim(not node.allows(combine((t * Fraction(11, 10), exact))), f"largest_scale {scale!r} is too small")


def draw(rng: np.random.Generator) -> Certify:
    d = draws.size(rng, 6)
    multiplier = str(rng.choice(["solve", "own", "noise", "tiny", "own with noise"]))
    structure = draws.structure(rng, d) if multiplier == "solve" else "full"
    node = Node(draws.smoothness(rng, d, 1e6), draws.sketch(rng, d), draws.algorithm(rng), structure)
    kind = str(rng.choice(["optimal", "next to optimal", "full optimal", "random"]))
    roundings = 2.0**-52 * float(rng.integers(-4, 5))
    factor = {0: 1.0, 1: 1.0 + roundings, 2: 1.0 + 10.0 ** rng.uniform(-15.0, -3.0)}.get(int(rng.integers(0, 4)))
    if factor is None:
        factor = float(10.0 ** rng.uniform(-60.0, 60.0)) if rng.random() < 0.2 else float(rng.uniform(0.1, 2.0))
    G = random_smoothness(rng, d, 1e3) if kind == "random" else rng.standard_normal((d, d))
    return Certify(node, kind, factor, G, multiplier)


KINDS = (Kind("certify", "stepsizes next to the boundary, multipliers of any quality, in every structure", 3.0, draw),)
