"""The referee: every claim of an answer against exact rational arithmetic on the floats that the user gave.

Claims of one node: D is finite, has the structure asked for and satisfies E[SDLDS] ⪯ D (or D E[TLT] D ⪯ D);
``log_det`` ≤ log det D; no feasible D has a larger log det than ``upper_bound``; ``optimal`` means feasible with a gap
of at most ``tol``.  Claims of n clients: the three conditions of (12) for the exact mean of the clients' matrices,
``rate``, ``descent_rate``, ``lambda_D``, and that no feasible pair has a smaller K or a larger rate than the bounds
say; for the guarantee ``descent``, H = 2D − DLD ≻ 0 and (12) with det H in the place of det D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

import numpy as np

from stepsize_opt import (
    BlockDiagonal,
    Certificate,
    Direction,
    DistributedResult,
    Sketch,
    StepsizeResult,
    get_method,
)
from stepsize_solvers.programs import is_identity
from stepsize_validation.attack.protocol import Verdict, claim
from stepsize_validation.referee import (
    Rational,
    centred_second_moment,
    combine,
    condition_slack,
    definiteness,
    is_positive_semidefinite,
    log,
    log_det,
    moment,
    product,
    rational,
    second_moment,
)

# A lower bound "tight to rounding" is below the true logarithm by no more than this, relative to d + |log det D|.  The
# proof shifts a matrix by about d² roundings, seen through a condition number of up to 1e14: looser than any bound
# that was observed, tight enough to see a bound that is useless.
TIGHT = 1e-2

Floats = Any  # a d×d array of floats


@dataclass(frozen=True, eq=False)
class Node:
    """The problem of one node."""

    L: Floats
    sketch: Sketch
    algorithm: str = "det-CGD1"
    structure: Any = "full"

    def __str__(self) -> str:
        return f"d = {self.sketch.d}, {self.sketch}, {self.algorithm}, {self.structure}"

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``optimal_stepsize`` takes."""
        return {"L": self.L, "sketch": self.sketch, "algorithm": self.algorithm, "structure": self.structure}

    def allows(self, D: Rational) -> bool:
        """Whether D ≻ 0 satisfies the condition of the algorithm."""
        slack = condition_slack(D, rational(self.L), self.sketch, self.algorithm)
        return definiteness(D).det > 0 and is_positive_semidefinite(slack)


def judge_result(node: Node, result: StepsizeResult, rivals: Sequence[Floats] = ()) -> Verdict:
    """Judge the answer of ``optimal_stepsize``; ``rivals`` are other stepsizes that no bound may fall below."""
    D = np.array(result.D)
    claim(bool(np.isfinite(D).all()), "D has entries that are not finite")
    claim(has_structure(D, node.structure), f"D has not the structure {node.structure}")
    judge_certificate(node, D, result.certificate, rivals)
    claim(result.certificate.feasible, "the D returned is not claimed to be feasible")
    if result.status != "optimal":
        return Verdict.UNPROVED
    claim(result.gap <= result.tol, f"optimal with a gap of {result.gap:.3g} above tol = {result.tol:g}")
    return Verdict.OK


def judge_certificate(node: Node, D: Floats, certificate: Certificate, rivals: Sequence[Floats] = ()) -> None:
    """Judge what is said about a given D, feasible or not."""
    exact = rational(D)
    value = log_det(exact) if definiteness(exact).det > 0 else None
    if certificate.feasible:
        claim(value is not None, "feasible, but D is not positive definite")
        claim(node.allows(exact), "feasible, but D violates its condition in exact arithmetic")
    if value is not None and math.isfinite(certificate.log_det):
        claim(
            Decimal(certificate.log_det) <= value, f"log_det {certificate.log_det!r} is above log det D = {value:.20g}"
        )
        slack = Decimal(TIGHT) * (len(D) + abs(value))
        claim(not certificate.feasible or value - Decimal(certificate.log_det) <= slack, "log_det is not tight")
    judge_bound(node, certificate.upper_bound, [D, *rivals])


def judge_bound(node: Node, upper: float, rivals: Sequence[Floats]) -> None:
    """``upper`` must not fall below log det of any rival that is feasible and has the structure, nor be NaN."""
    claim(not math.isnan(upper), "the upper bound is not a number")
    if math.isinf(upper):
        claim(upper > 0, "the upper bound is minus infinity")
        return
    for rival in rivals:
        if not np.isfinite(rival).all() or not has_structure(rival, node.structure):
            continue
        exact = rational(rival)
        if definiteness(exact).det > 0 and (value := log_det(exact)) > Decimal(upper):
            claim(not node.allows(exact), f"upper bound {upper!r} is below log det = {value:.20g} of a feasible D")
    if node.structure == "full" and is_identity(get_method(node.algorithm).condition(node.sketch.map).outer):
        # T(D) = DBD ⪯ D is D ⪯ B⁻¹, and B = T(I).
        identity = rational(np.eye(node.sketch.d))
        best = -log_det(moment(node.algorithm, identity, rational(node.L), partial(second_moment, node.sketch)))
        claim(Decimal(upper) >= best, f"upper bound {upper!r} is below the optimum {best:.20g} = −log det T(I)")
    ray = _ray(node)
    if ray is not None:
        W = rational(ray)
        # γW with log det(γW) = upper·(1 + tiny) is beyond the bound, so it must not be feasible.
        d = len(W)
        exponent = (Decimal(upper) - log_det(W)) / d + Decimal("1e-20")
        gamma = Fraction(Context(prec=50).exp(exponent))
        claim(not node.allows(combine((gamma, W))), f"upper bound {upper!r} is below log det γW of a feasible γW")


def _ray(node: Node) -> Floats | None:
    """W when the structure is D = γW."""
    if node.structure == "scalar":
        return np.eye(node.sketch.d)
    structure = node.structure
    return structure.W if isinstance(structure, Direction) and len(structure.sizes or ()) == 1 else None


def has_structure(D: Floats, structure: Any) -> bool:
    """Whether D has the structure; a direction is compared to a few roundings, because γW is rounded."""
    d = len(D)
    if isinstance(structure, Direction):
        W, sizes = structure.W, structure.sizes or (d,)
        ends = np.cumsum(sizes)
        return _is_block_diagonal(D, sizes) and all(
            _is_multiple(D[e - n : e, e - n : e], W[e - n : e, e - n : e]) for e, n in zip(ends, sizes, strict=True)
        )
    if structure == "scalar":
        return bool(np.array_equal(D, D[0, 0] * np.eye(d)))
    sizes = structure.sizes if isinstance(structure, BlockDiagonal) else ((1,) * d if structure == "diagonal" else (d,))
    return bool(np.array_equal(D, D.T)) and _is_block_diagonal(D, sizes)


def _is_block_diagonal(D: Floats, sizes: Sequence[int]) -> bool:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return not np.any(D[labels[:, None] != labels])


def _is_multiple(D: Floats, W: Floats) -> bool:
    gamma = D[0, 0] / W[0, 0]
    return bool(np.all(np.abs(D - gamma * W) <= 8.0 * np.finfo(float).eps * np.abs(gamma * W)))


@dataclass(frozen=True, eq=False)
class Clients:
    """The problem of n clients."""

    matrices: tuple[Floats, ...]
    sketches: tuple[Sketch, ...]
    epsilon2: float
    initial_gap: float
    delta_inf: float
    algorithm: str = "det-CGD1"
    structure: Any = "full"
    mean: Floats | None = None
    iterations: int | None = None
    guarantee: str = "condition"

    def __str__(self) -> str:
        laws = ", ".join(dict.fromkeys(map(str, self.sketches)))
        return (
            f"n = {len(self.matrices)}, d = {len(self.matrices[0])}, {laws}, {self.algorithm}, {self.structure}, "
            f"{self.guarantee}, "
            f"ε² = {self.epsilon2:g}, Δ⁰ = {self.initial_gap:g}, Δ^inf = {self.delta_inf:g}, K = {self.iterations}"
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``optimal_distributed_stepsize`` takes."""
        return {
            "smoothness": list(self.matrices),
            "sketch": list(self.sketches),
            "epsilon2": self.epsilon2,
            "initial_gap": self.initial_gap,
            "delta_inf": self.delta_inf,
            "mean_smoothness": self.mean,
            "algorithm": self.algorithm,
            "structure": self.structure,
            "iterations": self.iterations,
            "guarantee": self.guarantee,
        }

    def smoothness(self) -> Rational:
        """L as given, or the exact mean of the Lᵢ."""
        if self.mean is not None:
            return rational(self.mean)
        share = Fraction(1, len(self.matrices))
        return combine(*[(share, rational(M)) for M in self.matrices])


@dataclass(frozen=True, eq=False)
class DistributedPoint:
    """A stepsize of n clients with what (12) needs of it."""

    problem: Clients
    D: Rational

    def _minus_quadratic(self, a: int) -> Rational:
        """aD − DLD."""
        return combine((a, self.D), (-1, product(product(self.D, self.problem.smoothness()), self.D)))

    def descends(self) -> bool:
        """D ≻ 0 and D L D ⪯ D."""
        return definiteness(self.D).det > 0 and is_positive_semidefinite(self._minus_quadratic(1))

    @cached_property
    def metric_det(self) -> Fraction:
        """det(2D − DLD); 0 unless 2D − DLD ≻ 0."""
        return definiteness(self._minus_quadratic(2)).det

    @property
    def det(self) -> Fraction:
        """The determinant whose root is the rate of the guarantee asked for."""
        return self.metric_det if self.problem.guarantee == "descent" else definiteness(self.D).det

    def variance_at_most(self, c: Fraction) -> bool:
        """λ_D ≤ c: for Lᵢ ⪰ 0 this is cLᵢ − Lᵢ Vᵢ Lᵢ ⪰ 0, because Lᵢ^½VᵢLᵢ^½ vanishes on the null space of Lᵢ."""
        problem, L = self.problem, self.problem.smoothness()
        centred: dict[Sketch, Rational] = {}
        for sketch in problem.sketches:
            if sketch not in centred:
                centred[sketch] = moment(problem.algorithm, self.D, L, partial(centred_second_moment, sketch))
        pairs = zip(problem.matrices, problem.sketches, strict=True)
        for matrix, sketch in {(M.tobytes(), law): (M, law) for M, law in pairs}.values():
            client = rational(matrix)
            slack = combine((c, client), (-1, product(product(client, centred[sketch]), client)))
            if not is_positive_semidefinite(slack):
                return False
        return True


def judge_distributed(problem: Clients, result: DistributedResult, rivals: Sequence[DistributedResult] = ()) -> Verdict:
    """Judge the answer of ``optimal_distributed_stepsize``; ``rivals`` are other answers to the same problem."""
    D = np.array(result.D)
    claim(bool(np.isfinite(D).all()), "D has entries that are not finite")
    claim(has_structure(D, problem.structure), f"D has not the structure {problem.structure}")
    point = DistributedPoint(problem, rational(D))
    n, d, K = len(problem.matrices), len(D), result.K
    epsilon2, initial_gap, delta_inf = map(Fraction, (problem.epsilon2, problem.initial_gap, problem.delta_inf))
    claim(isinstance(K, int) and K >= 1, f"K = {K!r} is not a whole number of at least 1")
    certificate = result.certificate
    claim(certificate.feasible, "the pair (D, K) is not claimed to be feasible")
    if problem.guarantee == "condition":
        claim(point.descends(), "D L D ⪯ D is false for the exact mean of the clients' matrices")
    claim(0 < Fraction(result.rate) ** d <= point.det, f"rate {result.rate!r} is above that of D")
    metric = Fraction(result.descent_rate)
    claim(metric**d <= point.metric_det, f"descent_rate {result.descent_rate!r} is above det(2D − DLD)^(1/d)")
    claim(point.variance_at_most(Fraction(result.lambda_D)), f"lambda_D = {result.lambda_D!r} is below the true λ_D")
    # Both are bounds on the true numbers, proved above: what holds for them holds for D.
    variance, rate = Fraction(result.lambda_D), Fraction(result.rate)
    claim(variance * K <= n, "λ_D ≤ n/K is false")
    claim(4 * variance * delta_inf <= n * epsilon2 * rate, "λ_D ≤ nε² det(D)^{1/d}/(4Δ^inf) is false")
    claim(K * rate * epsilon2 >= 12 * initial_gap, f"K = {K} is below 12Δ⁰/(det(D)^(1/d) ε²)")
    fewer = result.iterations
    claim(
        1 <= fewer <= K and fewer * max(metric, rate) * epsilon2 >= 12 * initial_gap, f"{fewer} iterations are too few"
    )
    claim(certificate.smallest_K <= K, f"smallest_K = {certificate.smallest_K} is above the K returned, {K}")
    if problem.iterations is not None and result.status == "infeasible":
        claim(problem.iterations < certificate.smallest_K, "infeasible is claimed without a proof that K is too small")
    elif problem.iterations is not None and result.status == "optimal":
        claim(K == problem.iterations, f"K = {K} was returned for iterations = {problem.iterations}")
    _judge_bounds(problem, result, [result, *rivals])
    if result.status == "infeasible":
        return Verdict.OK
    if result.status != "optimal":
        return Verdict.UNPROVED
    claim(result.gap <= result.tol, f"optimal with a gap of {result.gap:.3g} above tol = {result.tol:g}")
    return Verdict.OK


def _judge_bounds(problem: Clients, result: DistributedResult, rivals: Sequence[DistributedResult]) -> None:
    """No feasible pair beats the bounds: every rival's D must have a smaller rate and its K be at least smallest_K."""
    upper, smallest = result.certificate.upper_bound, result.certificate.smallest_K
    claim(not math.isnan(upper), "the upper bound is not a number")
    for rival in rivals:
        claim(rival.K >= smallest, f"smallest_K = {smallest} is above the feasible K = {rival.K}")
        value = log(DistributedPoint(problem, rational(np.array(rival.D))).det) / len(rival.D)
        claim(value <= Decimal(upper), f"upper bound {upper!r} is below the log rate {value:.20g} of a feasible D")
