"""Does a run obey its theorem?  Statistics that can fail.

*Estimate.*  Every update has E[xᵏ − xᵏ⁺¹ | xᵏ] = D∇f(xᵏ), because E[S] = I.  So ⟨∇f(xᵏ), xᵏ − xᵏ⁺¹⟩ has the same mean
as ‖∇f(xᵏ)‖²_D, and its sum over a run, which is about what f decreases by, varies far less between seeds than the sum
of squared norms, which depends on how long each coordinate waits (usually several to tens of times; on a few problems
not at all).  In the descent metric H = 2D − T(D) the same holds of 2⟨∇f(xᵏ), xᵏ − xᵏ⁺¹⟩ − ‖xᵏ − xᵏ⁺¹‖²_L for
‖∇f(xᵏ)‖²_H.

*Verdict.*  The mean over the seeds has a one-sided confidence bound on either side (``confidence``: skewed sums, unseen
runs).  The right side needs f^inf, which lies between a proved lower bound and the smallest value found, and it
decreases in f^inf: so ``holds`` compares with the smaller right side (value found), ``violated`` with the larger one
(proved bound).  Neither verdict rests on an estimate of f^inf.  The estimate above takes E[S] = I and E[SMS] = 𝒫(M) for
granted, and in the metric H it stays below 2(f(x⁰) − f(x^K)) in every run of an L-smooth f; the average of the squared
norms themselves takes nothing for granted.  It has bounds of its own, and ``violated`` is also returned when these
exceed the right side: a distribution that is not the one declared shows there, given hundreds of seeds.

*What the seeds may have missed* is known from the distribution of the sketch (``Run.missing_probability``).  Where all
seeds together may have left a coordinate undrawn, with a probability above 1 − level, nothing is decided.  Otherwise
the bounds allow for a share of runs that no seed showed, with the largest left side that such runs can have (the
ceiling).  A sum of decreases of f, on one node with a D inside its condition, is nearly complete in a run that drew
every coordinate: its share is the probability that one run leaves a coordinate undrawn, and at most ``unseen_share``.
Everything else is, or contains, a product of random factors, of whose mean a few rare runs can carry all: its share is
``unseen_share``.  The ceiling is

=======================  ===================================================================
left side                ceiling
=======================  ===================================================================
decreases in H           2Δ⁰/(rate K), for each run
f(x^K) − f*              Δ⁰ times the K-th power of the largest factor of one step (``DescentMetric.growth``), for each
squared norms, c ≤ 1     2Δ⁰/(rate K) for the mean, c the largest eigenvalue of D⁻¹T(D)
squared norms, 1 < c     2Δ⁰/((2 − c) rate K) for the mean, infinite from c = 2 on
Theorem 3                its right side with λ_D of the matrix that ran, for the mean
Ψ of momentum            infinite: no bound on a single run is known, so only runs without randomness are confirmed
=======================  ===================================================================

A ceiling for the mean tells nothing of a single run: what the seeds did not show can carry the mean up to it.  So a
random run confirms a rate that is claimed beyond what D itself guarantees for no norm but that of H.

*Theorem 3* bounds min_k E r_k, r_k = ‖∇f(xᵏ)‖²_{D/det(D)^{1/d}}.  The minimum of averages over few seeds is biased
downwards, so what is checked is the weighted mean Σ w_k r_k/Σ w_k with w_k = (1 + λ_D/n)^{−k−1}, which the paper's
proof bounds by the same right side and which is never below the minimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepsize_opt.goals import GoalName
from stepsize_opt.inputs.checks import Array, check_kind, check_one_of, positive_number, real_number, whole_number
from stepsize_opt.methods import weight
from stepsize_opt.problems import FederatedInfimum, Infimum
from stepsize_solvers.programs import Tabled, Vector, plain_rows
from stepsize_validation.runs.confidence import UNKNOWN, mean_bounds, unseen_share
from stepsize_validation.runs.record import MomentumRun, Run

# One-sided confidence of each bound: with a few hundred checks in a report, fewer than one verdict is a fluke.
LEVEL = 0.999
# exp of more is beyond the range of floats.
_LARGEST_EXPONENT = math.log(np.finfo(float).max)
# Where a guarantee is an equality, sums over thousands of steps exceed it by less than this share of it.
_ROUNDING = 1e-9


@dataclass(frozen=True, repr=False)
class RateCheck(Tabled):
    """A guarantee's left side (mean over the seeds, with confidence bounds) against its right side.

    Attributes
    ----------
    statement : str
        The guarantee that was checked: ``"Theorem 1"``, or ``"goal descent"`` and the like for the descent metric;
        ``"bound of Theorem 1 (D outside its condition)"`` where the theorem promises nothing.
    observed : float
        The low-variance estimate of the left side.
    plain : float
        The average of the squared norms themselves.
    lower : float
        A lower confidence bound on the left side, at ``level``.
    upper : float
        An upper confidence bound on the left side, at ``level``.
    bound : float
        The right side with the smallest value found for f^inf.
    loose_bound : float
        The right side with the proved lower bound on f^inf, at least ``bound``.
    iterations : int
        Steps of the run.
    seeds : int
        Independent runs.
    level : float
        Confidence of each of the bounds.
    plain_lower : float
        The lower bound around ``plain``.
    plain_upper : float
        The upper one.

    Raises
    ------
    ValueError
        For a NaN among the numbers: no comparison with it means anything.

    Examples
    --------
    See ``check_rate``.
    """

    statement: str
    observed: float
    plain: float
    lower: float
    upper: float
    bound: float
    loose_bound: float
    iterations: int
    seeds: int
    level: float
    plain_lower: float = -math.inf
    plain_upper: float = math.inf

    def __post_init__(self) -> None:
        for name in ("observed", "plain", "lower", "upper", "bound", "loose_bound", "plain_lower", "plain_upper"):
            if math.isnan(getattr(self, name)):
                msg = f"{name} is NaN: the run or the bounds on f^inf hold numbers that are not finite"
                raise ValueError(msg)

    @property
    def verdict(self) -> str:
        """``violated`` (lower or plain_lower > loose_bound), ``holds`` (upper ≤ bound) or ``undecided``."""
        if max(self.lower, self.plain_lower) > self.loose_bound + _ROUNDING * abs(self.loose_bound):
            return "violated"
        return "holds" if self.upper <= self.bound else "undecided"

    def __repr__(self) -> str:
        return (
            f"{self.statement}: {self.verdict} (observed {self.observed:.4g} in [{self.lower:.4g}, "
            f"{self.upper:.4g}], bound {self.bound:.4g}, K = {self.iterations}, {self.seeds} seeds)"
        )

    def _shown(self) -> list[tuple[str, str]]:
        return plain_rows({"verdict": self.verdict, **vars(self)})


def check_rate(
    run: Run,
    infimum: Infimum | None = None,
    *,
    goal: GoalName = "paper",
    rate: float | None = None,
    level: float = LEVEL,
) -> RateCheck:
    """Check whether a run on one node obeys its guarantee.

    ===========  ==================================================================
    goal         what is checked, Δ⁰ = f(x⁰) − f^inf
    ===========  ==================================================================
    paper        (1/K) Σ E‖∇f(xᵏ)‖²_{D/det(D)^{1/d}} ≤ 2Δ⁰/(rate K), rate = det(D)^{1/d}: Theorem 1
    descent      the same with H = 2D − T(D) in place of D
    euclidean    (1/K) Σ E‖∇f(xᵏ)‖² ≤ 2Δ⁰/(rate K), rate = λmin(H)
    linear       E f(x^K) − f* ≤ (1 − rate)^K Δ⁰, rate = t with H ⪰ tM⁻¹, M ⪯ ∇²f
    ===========  ==================================================================

    A run with momentum (docs/momentum.md) knows its own guarantee, on Ψ = f(x) − f* + ½‖z − x*‖²_M for ``linear`` and
    K(K + 3)/4 (f(x) − f*) + ½‖z − x*‖²/t² for ``convex``; ``infimum`` is then needed.

    (f(x^K) − f*)/(1 − t)^K is a product of K random factors, and rare runs carry its mean.  n seeds leave room for
    unseen runs of the probability 1 − (1 − level)^{1/n}, so ``linear`` is ``undecided`` unless (1 − t)^K is larger than
    that: check it with hundreds of seeds and a K of few multiples of 1/t.  For momentum no bound on a single run is
    known, and a random run is ``violated`` or ``undecided``.

    Parameters
    ----------
    run : Run
        What ``run`` returned.
    infimum : Infimum, optional
        Bounds on f^inf; without them the smallest value of the run itself stands for the value found.
    goal : str
        As in ``stepsize_opt.optimal_stepsize``; see the table.
    rate : float, optional
        The rate that is claimed, ``result.rate``; without it the one that D has.  ``linear`` needs it.
    level : float
        Confidence of each of the two bounds.

    Raises
    ------
    ValueError
        For a run with clients that draw sketches of their own or without steps, another goal,
        a level outside (0.5, 1), or an H that is not positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK
    >>> from stepsize_opt.problems import Quadratic
    >>> from stepsize_validation import check_rate, run
    >>> f = Quadratic(np.diag([1.0, 4.0]), np.ones(2))
    >>> check_rate(run(f, np.diag([0.4, 0.1]), RandK(2, 1), iterations=100, seeds=16)).verdict
    'holds'
    """
    check_kind("run", run, Run)
    if run.clients > 1:
        msg = (
            f"check_rate is for one node, and this run has {run.clients} clients that draw sketches of their own: "
            "check_distributed_rate checks Theorem 3"
        )
        raise ValueError(msg)
    if run.momentum is not None:
        own = run.momentum.goal
        check_one_of("goal", goal, ("paper", own))  # the default, or its own
        return _check_momentum(run, run.momentum, infimum, level)
    check_one_of("goal", goal, ("paper", "descent", "euclidean", "linear"))
    bounds = Infimum(run.lower_bound, float(np.min(run.values))) if infimum is None else _seen(infimum, run)
    K = _steps(run)
    if goal == "linear":
        return _check_linear(run, bounds, rate, level)
    left = _left_sides(run, goal)
    claimed = left.rate if rate is None else positive_number("rate", rate)
    strict, loose = (2.0 * (run.start_value - value) / (claimed * K) for value in (bounds.found, bounds.proved))
    ceiling = _excess_factor(run, goal) * strict * claimed / left.rate
    right = _RightSides(strict, loose, ceiling, of_each_run=goal == "descent")
    name = _named(1, run) if goal == "paper" else f"goal {goal}"
    return _compare(name, left.over(np.full(K, 1.0 / K)), right, run, K, level)


def _check_linear(run: Run, bounds: Infimum, t: float | None, level: float) -> RateCheck:
    """Check E f(x^K) ≤ q f(x⁰) + (1 − q) f*, q = (1 − t)^K: it increases in f*, so the value found is looser."""
    if t is None:
        msg = "goal='linear' needs rate, the t of H ⪰ tM⁻¹"
        raise ValueError(msg)
    K, start = _steps(run), run.start_value - bounds.found
    kept = max(0.0, 1.0 - positive_number("rate", t)) ** K
    left = run.values[:, -1] - bounds.found
    strict = kept * start - (1.0 - kept) * (bounds.found - bounds.proved)
    with np.errstate(over="ignore"):
        most = float(np.float64(run.metric.growth) ** K) * start
    right = _RightSides(strict, kept * start + _value_rounding(run), most, of_each_run=True)
    return _compare("goal linear", _LeftSides(left, None, t), right, run, K, level)


def _check_momentum(run: Run, momentum: MomentumRun, infimum: Infimum | None, level: float) -> RateCheck:
    """Check E Ψ ≤ (1 − t)^K Ψ⁰, for convex f E Ψ ≤ Ψ⁰, at a point in place of x*: no bound on f* is used."""
    if infimum is None or infimum.point is None:
        msg = "check_rate of a run with momentum needs infimum=find_infimum(f), whose point stands for x*"
        raise ValueError(msg)
    K, rule = _steps(run), momentum.rule
    excess, start = run.values[:, -1] - infimum.found, run.start_value - infimum.found
    before = momentum.rounds.start(momentum.start[None])
    left = momentum.potential(momentum.end, excess, infimum.point)
    right = momentum.kept(K) * float(momentum.potential(before, np.array([start]), infimum.point)[0])
    loose = right + _value_rounding(run) * (1.0 if rule.strong else weight(K))
    name = f"momentum, goal {momentum.goal}"
    return _compare(name, _LeftSides(left, None, rule.t), _RightSides(right, loose, math.inf), run, K, level)


def _value_rounding(run: Run) -> float:
    """Return the rounding of a difference of two values of f: at the optimum it is no violation."""
    return 1e-12 * (1.0 + abs(run.start_value))


def _is_inside(run: Run) -> bool:
    """Return whether D satisfies the condition T(D) ⪯ D, up to rounding."""
    return run.metric.condition <= 1.0 + _ROUNDING


def _excess_factor(run: Run, goal: str) -> float:
    """Return how far the mean of the goal ``paper`` can exceed the bound of Theorem 1: 1 for T(D) ⪯ D.

    T(D) ⪯ cD gives H ⪰ (2 − c)D, and the squared norms in H have the bound 2Δ⁰/K.
    """
    if goal != "paper" or _is_inside(run):
        return 1.0
    return 1.0 / (2.0 - run.metric.condition) if run.metric.condition < 2.0 else math.inf


class _LeftSides(NamedTuple):
    """Squared norms in a matrix of that rate, and their estimate where there is one, of each seed and step: (s, K).

    decreases: the estimate is what f decreases by, of which a run that drew every coordinate shows most.
    """

    norms: Array
    estimate: Array | None
    rate: float
    decreases: bool = False

    def over(self, weights: Vector) -> _LeftSides:
        """Return the weighted sums of each seed, shape (s,)."""
        estimate = None if self.estimate is None else self.estimate @ weights
        return self._replace(norms=self.norms @ weights, estimate=estimate)


class _RightSides(NamedTuple):
    """The right side by the value found for f^inf and by the proved bound, and the largest left side of a run.

    ceiling: what D itself guarantees, whatever rate is claimed, of each run or of their mean; see the table at the top.
    """

    strict: float
    loose: float
    ceiling: float
    of_each_run: bool = False

    def unseen(self, share: float) -> float:
        """Return how far unseen runs of this share move the mean towards the ceiling."""
        if self.of_each_run:
            return share
        return 0.0 if self.ceiling <= self.strict * (1.0 + _ROUNDING) else 1.0


def _left_sides(run: Run, goal: str) -> _LeftSides:
    """Return both sides; raise ValueError for an H that is not positive definite."""
    one_node = run.clients == 1
    if goal == "paper":
        return _LeftSides(run.squared_norms, run.descent, run.rate, one_node and _is_inside(run))
    norms, rate = run.norms("metric"), run.descent_rate
    if goal == "euclidean":
        return _LeftSides(run.euclidean, None, run.metric.smallest)
    return _LeftSides(norms, run.decrease / rate, rate, one_node)


def check_distributed_rate(
    run: Run,
    clients: int,
    lambda_D: float,
    infimum: FederatedInfimum,
    *,
    level: float = LEVEL,
) -> RateCheck:
    """Check whether a run with clients obeys Theorem 3.

    With r_k = ‖∇f(xᵏ)‖² in the norm of D/det(D)^{1/d},

        min_k E r_k ≤ 2(1 + λ_D/n)^K Δ⁰/(det(D)^{1/d} K) + 2λ_D Δ^inf/(det(D)^{1/d} n).

    The right side is decreasing in f^inf, because (1 + x)^K ≥ Kx, and in every fᵢ^inf; it is infinite where the power
    leaves the range of floats.

    Parameters
    ----------
    run : Run
        What ``run`` returned.
    clients : int
        Their number n.
    lambda_D : float
        λ_D of the matrix that ran, from ``distributed_lambda``.
    infimum : FederatedInfimum
        Bounds on f^inf and on (1/n) Σ fᵢ^inf.
    level : float
        Confidence of each of the two bounds.

    Raises
    ------
    ValueError
        For a run without steps or with another number of clients, a level outside (0.5, 1), or a λ_D that is negative
        or not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK
    >>> from stepsize_opt.problems import Federated, Quadratic, find_federated_infimum
    >>> from stepsize_validation import check_distributed_rate, distributed_lambda, run
    >>> f = Federated((Quadratic(np.eye(2), np.zeros(2)), Quadratic(np.eye(2), np.ones(2))))
    >>> D, sketch = 0.01 * np.eye(2), RandK(2, 1)
    >>> record = run(f, D, sketch, iterations=100, seeds=16)
    >>> lambda_D = distributed_lambda(D, np.eye(2), [np.eye(2), np.eye(2)], sketch, "det-CGD1")
    >>> check_distributed_rate(record, 2, lambda_D, find_federated_infimum(f)).verdict
    'holds'
    """
    check_kind("run", run, Run)
    if not 0.0 <= real_number("lambda_D", lambda_D) < math.inf:
        msg = f"lambda_D must be a finite number of at least 0, got {lambda_D!r}"
        raise ValueError(msg)
    whole_number("clients", clients)
    if run.clients != clients:
        msg = f"clients={clients}, but the run has {run.clients}; with shared seeds it is one node, for check_rate"
        raise ValueError(msg)
    if not isinstance(infimum, FederatedInfimum):
        msg = f"infimum must be what find_federated_infimum returns, got {infimum!r}"
        raise TypeError(msg)
    K, left, whole = _steps(run), _left_sides(run, "paper"), _seen(infimum.whole, run)
    weights = np.exp(-np.log1p(lambda_D / clients) * np.arange(1, K + 1))
    weights /= weights.sum()

    def right(lambda_D: float, whole: float, parts: float) -> float:
        growth, gap = lambda_D / clients, run.start_value - whole
        exponent = K * math.log1p(growth)
        power = math.exp(exponent) if exponent < _LARGEST_EXPONENT else math.inf
        start = power / K * gap if gap != 0.0 else 0.0
        return 2.0 * (start + growth * (whole - parts)) / left.rate

    strict = right(lambda_D, whole.found, infimum.clients.found)
    loose = right(lambda_D, whole.proved, infimum.clients.proved)
    ceiling = right(run.metric.lambda_D, whole.found, infimum.clients.found)
    # Decreasing weights count as 1/w₀ rounds of equal weight.
    rounds = 1.0 / float(weights[0])
    return _compare(_named(3, run), left.over(weights), _RightSides(strict, loose, ceiling), run, rounds, level)


def _seen(infimum: object, run: Run) -> Infimum:
    """Return the bounds on f^inf, among them, from above, the smallest value of the run itself."""
    if not isinstance(infimum, Infimum):
        msg = f"infimum must be what find_infimum returns, or Infimum(proved, found), got {infimum!r}"
        raise TypeError(msg)
    return Infimum(infimum.proved, max(infimum.proved, min(infimum.found, float(np.min(run.values)))))


def _steps(run: Run) -> int:
    if run.iterations < 1:
        msg = "the run must have at least one step"
        raise ValueError(msg)
    return run.iterations


def _named(theorem: int, run: Run) -> str:
    """Name a theorem, and whether D satisfies its condition."""
    return f"Theorem {theorem}" if _is_inside(run) else f"bound of Theorem {theorem} (D outside its condition)"


def _compare(statement: str, left: _LeftSides, right: _RightSides, run: Run, rounds: float, level: float) -> RateCheck:
    """Compare the left side of each seed, shape (s,), over ``rounds`` rounds with the right side."""
    if not 0.5 < level < 1.0:
        msg = f"level must be between 0.5 and 1, got {level!r}"
        raise ValueError(msg)
    estimate = left.norms if left.estimate is None else left.estimate
    around, around_plain = mean_bounds(estimate, level), mean_bounds(left.norms, level)
    if run.missing_probability(run.seeds * rounds) > 1.0 - level:
        around = around_plain = UNKNOWN
    elif run.is_random:
        largest = unseen_share(run.seeds, level)
        share = min(largest, run.missing_probability(rounds)) if left.decreases else largest
        around = around.with_unseen(run.seeds, share, right.unseen(share), right.ceiling)
        around_plain = around_plain.with_unseen(run.seeds, largest, right.unseen(largest), right.ceiling)
    return RateCheck(
        statement,
        float(estimate.mean()),
        float(left.norms.mean()),
        *around,
        right.strict,
        right.loose,
        run.iterations,
        run.seeds,
        level,
        *around_plain,
    )
