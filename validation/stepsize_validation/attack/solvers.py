"""Every solver on the same problem: each answer feasible, and no solver's bound below another's answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepsize_opt import StepsizeResult, available_solvers, optimal_stepsize
from stepsize_validation.attack.protocol import Kind, Verdict, claim
from stepsize_validation.attack.referee import Node, judge_result
from stepsize_validation.referee import random_problem


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


def draw(rng: np.random.Generator) -> EverySolver:
    problem = random_problem(rng, 8, 1e8)
    return EverySolver(Node(problem.L, problem.sketch))


KIND = Kind("solvers", "every solver on the same problem: feasible answers, bounds that agree", 0.1, draw)
