"""The exact checker: every claim of an answer against rational arithmetic on the floats that the user gave.

Claims of one node.  X is the matrix of the goal, D under the paper's condition and H = 2D − T(D) for descent.  D is
finite, has the structure, and satisfies T(D) ⪯ D, or H ≻ 0; ``log_det`` is below
log det X, or below d log t for the largest t with X ⪰ tM⁻¹; no other D of the structure is above ``upper_bound``;
``rate``, ``descent_log_det`` and ``satisfies_condition`` are true of this D; ``optimal`` means a gap of
at most ``tol``.

Claims of n clients: the three conditions of (12) for the exact mean of the clients' matrices, ``rate``,
``descent_rate``, ``lambda_D``, and that no feasible pair has a smaller K or a larger rate than the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from stepsize_opt import BlockDiagonal, Direction, Sketch
from stepsize_opt.methods import get_method
from stepsize_opt.results import Certificate, DistributedResult, StepsizeResult
from stepsize_opt.saving import json_text
from stepsize_opt.sketches.base import plain_sketch
from stepsize_solvers.programs import is_identity
from stepsize_validation.properties.exact import (
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
from stepsize_validation.properties.stored import goal_arguments, read_sketch, read_structure, write_structure

# A lower bound "tight to rounding" is below the true logarithm by no more than this, relative to d + |log det D|.  The
# proof shifts a matrix by about d² roundings, seen through a condition number of up to 1e14: looser than any bound
# that was observed, tight enough to see a bound that is useless.
TIGHT = 1e-2
# exp and log have 50 digits here; a value beyond a bound by less than this is not told apart from it.
_DIGITS = Decimal("1e-40")

Floats = Any  # a d×d array of floats
T = TypeVar("T")


class Refused(Exception):
    """The library declined a problem that it may decline, with a clear error."""


def claim(holds: bool, false_statement: str) -> None:
    """Raise AssertionError with the statement unless it holds."""
    if not holds:
        raise AssertionError(false_statement)


def ask(call: Callable[[], T], *, may_refuse: bool) -> T:
    """The library's answer; an error for bad input is a refusal, and false for a problem that must be solved."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        if may_refuse and str(error).strip():
            raise Refused(str(error)) from error
        msg = f"a valid problem was refused: {type(error).__name__}: {error}"
        raise AssertionError(msg) from error


@dataclass(frozen=True, eq=False)
class Node:
    """The problem of one node; its text is the form in which ``tests/data`` stores it."""

    L: Floats
    sketch: Sketch
    algorithm: str = "det-CGD1"
    structure: Any = "full"
    goal: str = "paper"
    strong_convexity: Any = None

    def __repr__(self) -> str:
        return json_text(self.plain())

    def plain(self) -> dict[str, Any]:
        """The problem in words and numbers, and arrays."""
        words = {"sketch": plain_sketch(self.sketch), "structure": write_structure(self.structure)}
        return {**self.arguments, **words}

    @staticmethod
    def read(plain: dict[str, Any]) -> Node:
        """The problem of a stored text."""
        L = np.array(plain["L"])
        goal = goal_arguments(plain["goal"], plain["strong_convexity"])
        structure = read_structure(plain["structure"])
        return Node(L, read_sketch(plain["sketch"], len(L)), plain["algorithm"], structure, **goal)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``optimal_stepsize``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def is_metric(self) -> bool:
        """Whether the matrix of the goal is H."""
        return self.goal in ("descent", "euclidean", "linear")

    @cached_property
    def floor(self) -> Rational | None:
        """M of X ⪰ tM⁻¹, or None where the goal is a determinant."""
        d = self.sketch.d
        if self.goal == "euclidean":
            return rational(np.eye(d))
        if self.goal != "linear":
            return None
        M = self.strong_convexity
        return rational(M if isinstance(M, np.ndarray) else M * np.eye(d))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A stepsize as exact numbers, with what a goal needs of it."""

    node: Node
    D: Rational

    @staticmethod
    def of(node: Node, D: Floats) -> Candidate:
        return Candidate(node, rational(D))

    @cached_property
    def is_positive(self) -> bool:
        return definiteness(self.D).det > 0

    @cached_property
    def slack(self) -> Rational:
        """D − T(D)."""
        return condition_slack(self.D, rational(self.node.L), self.node.sketch, self.node.algorithm)

    @cached_property
    def metric(self) -> Rational:
        """H = 2D − T(D)."""
        return combine((1, self.D), (1, self.slack))

    def satisfies_condition(self) -> bool:
        return self.is_positive and is_positive_semidefinite(self.slack)

    def is_feasible(self) -> bool:
        """Whether D satisfies what the goal asks of it."""
        return definiteness(self.metric).det > 0 if self.node.is_metric else self.satisfies_condition()

    def reaches(self, value: Decimal) -> bool:
        """Whether log det X, or d log t, is at least the value."""
        X = self.metric if self.node.is_metric else self.D
        if self.node.floor is None:
            return definiteness(X).det > 0 and log_det(X) >= value
        return self.is_above_floor(X, Fraction(Context(prec=50).exp(value / len(X))))

    def exceeds(self, value: Decimal) -> bool:
        """Whether D is feasible and its value above the given one by more than the digits of this checker."""
        beyond = value + abs(value) * _DIGITS + _DIGITS
        return not value.is_infinite() and self.reaches(beyond) and self.is_feasible()

    def is_above_floor(self, X: Rational, t: Fraction) -> bool:
        """X ⪰ tM⁻¹, that is MXM ⪰ tM."""
        M = self.node.floor
        assert M is not None
        return is_positive_semidefinite(combine((1, product(product(M, X), M)), (-t, M)))


def judge(node: Node, result: StepsizeResult, rivals: Sequence[Floats] = ()) -> None:
    """Check the answer of ``optimal_stepsize``; no bound may fall below ``rivals``, other stepsizes."""
    D, certificate = np.array(result.D), result.certificate
    claim(bool(np.isfinite(D).all()), "D has entries that are not finite")
    claim(has_structure(D, node.structure), f"D has not the structure {node.structure}")
    one = Candidate.of(node, D)
    claim(certificate.feasible, "the D returned is not claimed to be feasible")
    claim(one.is_feasible(), "D violates its condition in exact arithmetic")
    judge_value(one, certificate)
    judge_rates(one, result)
    judge_bound(node, certificate.upper_bound, D, rivals)
    if result.status == "optimal":
        claim(result.gap <= result.tol, f"optimal with a gap of {result.gap:.3g} above tol = {result.tol:g}")


def judge_certificate(node: Node, D: Floats, certificate: Certificate, rivals: Sequence[Floats] = ()) -> None:
    """Check what a certificate claims about a given D, feasible or not."""
    one = Candidate.of(node, D)
    claim(not certificate.feasible or one.is_feasible(), "feasible, but D violates its condition in exact arithmetic")
    if certificate.feasible:
        judge_value(one, certificate)
    elif one.is_positive and math.isfinite(certificate.log_det):
        claim(one.reaches(Decimal(certificate.log_det)), f"log_det {certificate.log_det!r} is too large")
    judge_bound(node, certificate.upper_bound, D, rivals)


def judge_value(one: Candidate, certificate: Certificate) -> None:
    """``log_det`` is below the value of D, and not far below."""
    value = Decimal(certificate.log_det)
    claim(one.reaches(value), f"log_det {certificate.log_det!r} is too large")
    slack = Decimal(TIGHT) * (len(one.D) + abs(value))
    claim(not one.reaches(value + slack), "log_det is not tight")


def judge_rates(one: Candidate, result: StepsizeResult) -> None:
    """The numbers that a result reports of its D besides the certificate."""
    claim(one.reaches(log(Fraction(result.rate)) * result.d), f"rate {result.rate!r} is too large")
    claim(not result.satisfies_condition or one.satisfies_condition(), "satisfies_condition is false")
    if math.isfinite(result.descent_log_det):
        true = definiteness(one.metric).det > 0 and Decimal(result.descent_log_det) <= log_det(one.metric)
        claim(true, f"descent_log_det {result.descent_log_det!r} is above log det H")


def judge_bound(node: Node, upper: float, D: Floats, rivals: Sequence[Floats]) -> None:
    """``upper`` must not be NaN, nor below the value of D, or of a rival that is feasible as an exact multiple of W."""
    claim(not math.isnan(upper), "the upper bound is not a number")
    claim(upper > -math.inf, "the upper bound is minus infinity")
    for one in (D, *rivals):
        if np.isfinite(one).all() and has_structure(one, node.structure):
            exact = rational(one) if one is D else _multiple(one, node.structure)
            above = Candidate(node, exact).exceeds(Decimal(upper))
            claim(not above, f"upper bound {upper!r} is below the value of a feasible D")
    if node.goal == "paper" and math.isfinite(upper):
        judge_known_optima(node, upper)


def judge_known_optima(node: Node, upper: float) -> None:
    """Where the paper's problem has a closed form, the bound must not fall below it."""
    if node.structure == "full" and is_identity(get_method(node.algorithm).condition(node.sketch.map).outer):
        # T(D) = DBD ⪯ D is D ⪯ B⁻¹, and B = T(I).
        identity = rational(np.eye(node.sketch.d))
        best = -log_det(moment(node.algorithm, identity, rational(node.L), partial(second_moment, node.sketch)))
        claim(Decimal(upper) >= best, f"upper bound {upper!r} is below the optimum {best:.20g} = −log det T(I)")
    ray = _ray(node)
    if ray is not None:
        # γW with log det(γW) = upper·(1 + tiny) is beyond the bound, so it must not be feasible.
        W = rational(ray)
        exponent = (Decimal(upper) - log_det(W)) / len(W) + Decimal("1e-20")
        beyond = Candidate(node, combine((Fraction(Context(prec=50).exp(exponent)), W)))
        claim(not beyond.is_feasible(), f"upper bound {upper!r} is below log det γW of a feasible γW")


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


def _multiple(D: Floats, structure: Any) -> Rational:
    """Diag(γᵢWᵢ) next to D without the rounding of its entries, for a direction; else D."""
    if not isinstance(structure, Direction):
        return rational(D)
    exact, W = rational(D), rational(structure.matrix())
    first = np.repeat(np.cumsum([0, *(structure.sizes or ())])[:-1], structure.sizes or ())
    return [[exact[i][i] / W[i][i] * entry for entry in row] for i, row in zip(first.tolist(), W, strict=True)]


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

    @property
    def arguments(self) -> dict[str, Any]:
        """What ``optimal_distributed_stepsize`` takes."""
        names = {"matrices": "smoothness", "sketches": "sketch", "mean": "mean_smoothness"}
        return {names.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}

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
        """det D, whose root is the rate; 0 unless D ≻ 0."""
        return definiteness(self.D).det

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


def judge_distributed(problem: Clients, result: DistributedResult, rivals: Sequence[DistributedResult] = ()) -> None:
    """Check the answer of ``optimal_distributed_stepsize``; ``rivals`` are other answers to the same problem."""
    D = np.array(result.D)
    claim(bool(np.isfinite(D).all()), "D has entries that are not finite")
    claim(has_structure(D, problem.structure), f"D has not the structure {problem.structure}")
    point = DistributedPoint(problem, rational(D))
    n, d, K = len(problem.matrices), len(D), result.K
    epsilon2, initial_gap, delta_inf = map(Fraction, (problem.epsilon2, problem.initial_gap, problem.delta_inf))
    claim(isinstance(K, int) and K >= 1, f"K = {K!r} is not a whole number of at least 1")
    certificate = result.certificate
    claim(certificate.feasible, "the pair (D, K) is not claimed to be feasible")
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
    fewer = result.iterations()
    claim(
        1 <= fewer <= K and fewer * max(metric, rate) * epsilon2 >= 12 * initial_gap, f"{fewer} iterations are too few"
    )
    claim(result.smallest_K <= K, f"smallest_K = {result.smallest_K} is above the K returned, {K}")
    if problem.iterations is not None and result.status == "infeasible":
        claim(problem.iterations < result.smallest_K, "infeasible is claimed without a proof that K is too small")
    elif problem.iterations is not None and result.status == "optimal":
        claim(K == problem.iterations, f"K = {K} was returned for iterations = {problem.iterations}")
    _judge_bounds(problem, result, [result, *rivals])
    if result.status == "optimal":
        claim(result.gap <= result.tol, f"optimal with a gap of {result.gap:.3g} above tol = {result.tol:g}")


def _judge_bounds(problem: Clients, result: DistributedResult, rivals: Sequence[DistributedResult]) -> None:
    """No feasible pair beats the bounds: every rival's D must have a smaller rate and its K be at least smallest_K."""
    upper, smallest = result.certificate.upper_bound, result.smallest_K
    claim(not math.isnan(upper), "the upper bound is not a number")
    for rival in rivals:
        claim(rival.K >= smallest, f"smallest_K = {smallest} is above the feasible K = {rival.K}")
        value = log(DistributedPoint(problem, rational(np.array(rival.D))).det)
        claim(value <= Decimal(upper), f"upper bound {upper!r} is below log det = {value:.20g} of a feasible D")
