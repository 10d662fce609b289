"""Proposition 1 and feasibility as functions that raise AssertionError where a claim is false.

Everything is decided in rational arithmetic on the floats that a problem holds.

*Proposition 1.*  T(D) = E[SDLDS] is matrix-convex in the symmetric matrix D, because L ⪰ 0 makes every DLD so and the
expectation keeps it.  Hence the D with T(D) ⪯ D, condition (3), are a convex set; for det-CGD2 the same holds of
T(D) = D E[SLS] D and condition (4).  −log det D is convex, so that the largest log det D is a convex problem.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from stepsize_opt import optimal_distributed_stepsize, optimal_stepsize
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    definiteness,
    is_positive_semidefinite,
    moment,
    rational,
    second_moment,
)
from stepsize_validation.properties.judges import (
    Candidate,
    Clients,
    DistributedPoint,
    Floats,
    Node,
    claim,
    judge,
    judge_distributed,
)

# What a stepsize is enlarged by where the enlarged one must violate its condition.
ENLARGED = Fraction(101, 100)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Two stepsizes A and B of one problem, and a share s from 0 to 1."""

    node: Node
    A: Floats
    B: Floats
    share: Fraction

    def __repr__(self) -> str:
        return f"s = {self.share}, A = {self.A.tolist()}, B = {self.B.tolist()}, problem = {self.node!r}"

    def mixed(self, A: Rational, B: Rational) -> Rational:
        """Return sA + (1 − s)B."""
        return combine((self.share, A), (1 - self.share, B))


def feasible_set_is_convex(mixture: Mixture) -> None:
    """A and B satisfy T(D) ⪯ D, so sA + (1 − s)B does; raises ValueError where A or B does not."""
    first, second = (Candidate.of(mixture.node, D) for D in (mixture.A, mixture.B))
    if not (first.satisfies_condition() and second.satisfies_condition()):
        msg = "A and B must both satisfy T(D) ⪯ D"
        raise ValueError(msg)
    between = Candidate(mixture.node, mixture.mixed(first.D, second.D))
    claim(between.satisfies_condition(), "sA + (1 − s)B violates the condition that A and B satisfy")


def moment_of(node: Node, D: Rational) -> Rational:
    """Return T(D) of the method of a problem."""
    return moment(node.algorithm, D, rational(node.L), partial(second_moment, node.sketch))


def moment_is_matrix_convex(mixture: Mixture) -> None:
    """T(sA + (1 − s)B) ⪯ s T(A) + (1 − s) T(B)."""
    T = partial(moment_of, mixture.node)
    A, B = rational(mixture.A), rational(mixture.B)
    slack = combine((1, mixture.mixed(T(A), T(B))), (-1, T(mixture.mixed(A, B))))
    claim(is_positive_semidefinite(slack), "T(sA + (1 − s)B) ⪯ s T(A) + (1 − s) T(B) is false")


def log_det_is_concave(mixture: Mixture) -> None:
    """det(sA + (1 − s)B) ≥ det(A)^s det(B)^(1 − s) for A, B ≻ 0, raised to the denominator of s."""
    A, B = rational(mixture.A), rational(mixture.B)
    p, q = mixture.share.numerator, mixture.share.denominator
    between, first, second = (definiteness(M).det for M in (mixture.mixed(A, B), A, B))
    claim(between**q >= first**p * second ** (q - p), "log det is not concave between A and B")


def returned_is_feasible(node: Node) -> None:
    """``optimal_stepsize`` returns a D that satisfies its condition, and every number that it reports is true."""
    judge(node, optimal_stepsize(**node.arguments))


def enlarged_violates(node: Node) -> None:
    """The optimal D enlarged by 1 % violates its condition: its determinant is above the proved bound."""
    D = combine((ENLARGED, rational(optimal_stepsize(**node.arguments).D)))
    claim(not Candidate(node, D).satisfies_condition(), "D enlarged by 1 % still satisfies its condition")


def clients_are_feasible(problem: Clients) -> None:
    """``optimal_distributed_stepsize`` returns D and K that satisfy (12), or (12′) for det-CGD2."""
    judge_distributed(problem, optimal_distributed_stepsize(**problem.arguments))


def enlarged_clients_violate(problem: Clients) -> None:
    """The D with the largest determinant for a given K violates (12) for this K when it is enlarged by 1 %."""
    K = optimal_distributed_stepsize(**problem.arguments).K
    result = optimal_distributed_stepsize(**replace(problem, iterations=K).arguments)
    larger = DistributedPoint(problem, combine((ENLARGED, rational(result.D))))
    n = len(problem.matrices)
    rate = ENLARGED * Fraction(result.rate)
    allowed = min(Fraction(n, K), n * Fraction(problem.epsilon2) * rate / (4 * Fraction(problem.delta_inf)))
    holds = larger.descends() and larger.variance_at_most(allowed)
    claim(not holds, f"D enlarged by 1 % still satisfies (12) for K = {K}")
