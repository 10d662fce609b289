"""The best descent metric of all methods that send k floats per round, and the method that attains it."""

from __future__ import annotations

from typing import Any

from stepsize_opt.goals import METRIC_GOALS, Goal, GoalName
from stepsize_opt.inputs.checks import check_one_of
from stepsize_opt.limit.answers import CompressionLimit, SubspaceMethod
from stepsize_opt.limit.problem import FormedLimit, LimitProblem, ThinLimit, read_budget
from stepsize_opt.smoothness import BASES, proved_smoothness


def compression_limit(
    L: Any, k: float, *, goal: GoalName | Goal = "descent", strong_convexity: Any = None, momentum: bool = False
) -> CompressionLimit:
    """Compute the best rate of a method that sends k floats per round, over all sketches and stepsizes.

    Of all methods x⁺ = x − G∇f(x) with a random G of expected rank at most k, drawn independently of ∇f(x), the best
    metric D in E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D solves

        maximise the rate of D   subject to   D ⪯ L⁻¹,  tr(LD) ≤ k,

    which has a closed form (docs/limit.md): (k/d)L⁻¹ for ``descent``, tM⁻¹ with t = min(k/tr(LM⁻¹), 1/λmax(LM⁻¹)) for
    ``euclidean`` (M = I) and ``linear``; budget that is left in the second case goes where det D gains most.
    The limit is one of a single step: momentum, which has memory, is not bound by it.  With ``momentum=True`` it is the
    limit t = min(k/tr((LM⁻¹)^½), λmax(LM⁻¹)^{−½}) of methods with momentum (docs/momentum.md).

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d) or LowRankPlusDiagonal
        Smoothness matrix, symmetric positive definite: array, nested list, pandas frame, scipy sparse matrix, or a
        LowRankPlusDiagonal, which is not made dense: ``descent`` needs a dense U, ``euclidean`` and ``linear`` one that
        is dense or without negative entries, ``linear`` a number for ``strong_convexity``; momentum a dense U and
        equal entries of the diagonal.
    k
        Floats per round on average, 0 < k ≤ d; it need not be whole.
    goal : str or Goal
        ``"descent"``, det(D)^{1/d}, for the weighted mean of E‖∇f‖²; ``"euclidean"``, the largest t with D ⪰ tI, for
        the mean in the Euclidean norm; ``"linear"``, the largest t with D ⪰ tM⁻¹, for E f(x^K) − f* ≤ (1 − t)^K Δ⁰.
        Or a ``FloorGoal`` of your own.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M of ``"linear"``, 0 ≺ M ⪯ ∇²f: a d×d matrix, or a number μ for μI.
    momentum
        For methods that keep two vectors: goal ``"linear"``, E f(x^K) − f* ≤ 2(1 − t)^K Δ⁰, or ``"convex"``,
        E f(x^K) − f* ≤ 2‖x⁰ − x*‖²/(t²K(K + 3)).

    Returns
    -------
    CompressionLimit with ``value``, its proved upper end ``upper``, ``D``, ``probabilities`` and ``floats_sent``.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described, a singular L, or k > d; the message names the argument and the fix.

    See Also
    --------
    optimal_method : the method that attains the limit.
    optimal_stepsize : the best D for a sketch that is given.
    plan : all methods within a budget.

    Examples
    --------
    >>> from stepsize_opt import compression_limit
    >>> limit = compression_limit([[1.0, 0.0], [0.0, 4.0]], 1)
    >>> round(limit.value, 6), round(limit.floats_sent, 6)
    (0.25, 4.0)
    """
    return read_limit(L, k, goal, strong_convexity, momentum=momentum).best()


def optimal_method(
    L: Any,
    k: float,
    *,
    goal: GoalName | Goal = "descent",
    strong_convexity: Any = None,
    basis: str | None = None,
    momentum: bool = False,
) -> SubspaceMethod:
    """Return the subspace method for L, the best that sends k floats per round, without memory or with momentum.

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d) or LowRankPlusDiagonal
        Smoothness matrix, symmetric positive definite.
    k
        Floats per round on average, 0 < k ≤ d; it need not be whole.
    goal : str or Goal
        ``"descent"``, ``"euclidean"`` or ``"linear"``, with momentum ``"linear"`` or ``"convex"``, as in
        ``compression_limit``.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M of ``"linear"``, 0 ≺ M ⪯ ∇²f: a d×d matrix, or a number μ for μI.
    momentum
        Return the method that keeps two vectors.
    basis
        Where the directions come from.  ``"eigenvectors"`` of L (of LM⁻¹ for ``linear``), which ``euclidean`` and
        ``linear`` need.  For ``descent`` every L-orthonormal basis has the same guarantee; default ``"root"``, L^{−½}.
        A LowRankPlusDiagonal has ``"root"`` for ``descent`` and ``"eigenvectors"`` for the other goals, which need
        equal entries of the diagonal.

    Returns
    -------
    SubspaceMethod
        With ``directions``, ``probabilities``, ``D``, ``rate``, and its rounds as messages; for a
        LowRankPlusDiagonal ``directions`` and ``D`` are operators, and nothing of size d×d is formed.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described, a singular L, k > d, or a basis that does not reach the limit.

    See Also
    --------
    compression_limit : the limit that it attains.
    optimal_stepsize : the best D for a sketch that is given.
    plan : all methods within a budget.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import optimal_method
    >>> method = optimal_method([[2.0, 1.0], [1.0, 3.0]], 1)
    >>> draw = method.draw(np.random.default_rng(0))
    >>> numbers = method.encode(np.array([1.0, -1.0]), draw)
    >>> numbers.size, method.decode(numbers, draw).size, round(method.rate, 6)
    (1, 2, 0.223607)
    """
    problem = read_limit(L, k, goal, strong_convexity, momentum=momentum)
    # Of the bases for descent, the root had the smallest gradient norms in most runs on data (docs/limit.md).
    only = None if problem.goal.is_determinant else "eigenvectors"
    wanted = (only or "root") if basis is None else basis
    check_one_of("basis", wanted, BASES)
    if only not in (None, wanted):
        msg = f"goal={goal!r} needs basis={only!r}, the only one that reaches its limit, got {basis!r}"
        raise ValueError(msg)
    return problem.subspace(wanted)


def read_limit(
    L: Any, k: object, goal: object, strong_convexity: Any = None, *, momentum: bool = False
) -> LimitProblem:
    """Read the arguments of ``compression_limit``; raise ValueError or TypeError for what is not as described there."""
    smoothness = proved_smoothness(L)
    budget = read_budget(k, smoothness.d)
    asked = Goal.read(goal, strong_convexity, smoothness.d, momentum)
    if not asked.has_limit:
        known = ", ".join(map(repr, METRIC_GOALS))
        msg = f"goal must be {known} or a FloorGoal, whose limits are known, got {asked.name!r}"
        raise ValueError(msg)
    if smoothness.is_formed:
        return FormedLimit.of(smoothness.formed(), budget, asked)
    return ThinLimit.of(smoothness.factored(), budget, asked)
