"""``plan``: every method for a problem, a budget and an accuracy, with its rounds, its numbers and its work."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from stepsize_opt.clients import optimal_distributed_stepsize
from stepsize_opt.inputs import completed, items, positive_number, refuse_options
from stepsize_opt.limit import CRITERIA, CompressionLimit, compression_limit
from stepsize_opt.methods import (
    CompressedStep,
    Compressor,
    DetCGD1,
    DetCGD2,
    Method,
    optimal_method,
)
from stepsize_opt.node import Guarantee, coordinates_sent, iterations_needed, linear_iterations, optimal_stepsize
from stepsize_opt.operators import LowRankPlusDiagonal
from stepsize_opt.planning.problem import Problem
from stepsize_opt.planning.table import Budget, Plan, PlanRow
from stepsize_opt.proofs import Unproved
from stepsize_opt.sketches import Identity, RandK, Sketch
from stepsize_solvers.programs import Settings, Status

_SHARES = (0.25, 0.5, 1.0)  # of the numbers a round that are allowed: the k of the table, beside k = 1
Shape: TypeAlias = Literal["full", "diagonal", "scalar"]
_INDEPENDENT: tuple[tuple[Method, Shape], ...] = (
    (DetCGD1(), "diagonal"),
    (DetCGD2(), "full"),
)  # the cheapest, and the best of what (12) allows


@dataclass(frozen=True)
class Case:
    """A row to be made: what is solved when, in words."""

    name: str
    make: Callable[[], PlanRow]


@dataclass(frozen=True)
class Named:
    """The words of a row."""

    method: str
    stepsize: str
    seeds: str
    sketch: str

    def filled(
        self,
        given: Problem,
        goal: Goal,
        k: float,
        rounds: int,
        efficiency: float | None,
        result: Any,
        compressor: Compressor,
        status: str,
    ) -> PlanRow:
        """The row with its numbers."""
        client, server = _work(self, given, k)
        return PlanRow(
            criterion=goal.criterion,
            **vars(self),
            k=k,
            rounds=rounds,
            numbers=coordinates_sent(rounds, given.senders * k),
            client_work=client,
            server_work=server,
            efficiency=efficiency,
            status=status,
            result=result,
            compressor=compressor,
        )


@dataclass(frozen=True, eq=False)
class Goal:
    """A criterion with the accuracy it is asked for: ε² of the gradient, or of f − f* for ``linear``.

    tol: the certified gap up to which a row is ``optimal``.
    """

    criterion: str
    target: float
    initial_gap: float
    lower: Any
    tol: float

    @property
    def arguments(self) -> dict[str, Any]:
        """For functions that take criterion and lower."""
        return {"criterion": self.criterion, "lower": self.lower if self.criterion == "linear" else None}

    def rounds(self, rate: float) -> int:
        """The smallest K that a rate guarantees; raises Unproved for a rate of 0."""
        if not rate > 0.0:
            msg = "no rate above 0 is proved of its D in float64"
            raise Unproved(msg)
        needed = linear_iterations if self.criterion == "linear" else iterations_needed
        return needed(rate, self.target, self.initial_gap)


# Arguments of the functions behind the rows that differ from row to row, or would make of a row another one.
_SET_BY_PLAN = ("algorithm", "structure", "guarantee", "seeds", "tight", "iterations", "mean_smoothness", "warm_start")


def plan(
    problem: Any,
    budget: float | None = None,
    *,
    epsilon2: float | None = None,
    accuracy: float | None = None,
    criterion: str | Sequence[str] = "det",
    initial_gap: float | None = None,
    delta_inf: float | None = None,
    lower: Any = None,
    total: float | None = None,
    rounds: int | None = None,
    sketches: Sequence[Sketch] | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Plan:
    """Which method to run: rounds, numbers sent, work and efficiency of each, and the best within a budget.

    Gradient descent, det-CGD1 (with the best descent metric, and for ``"det"`` under the paper's condition), det-CGD2
    and the subspace method, with k = 1, and with a quarter, half and all of the numbers allowed a round.  With clients
    the rows with shared seeds are those of one node; det-CGD1 and det-CGD2 with independent draws and the largest k
    stand beside them.  For a large L that is not formed, the rows are those that need no d×d matrix: gradient descent,
    det-CGD1 with a diagonal D, and for a dense factor det-CGD1 and det-CGD2 with a full D (``det``) and the subspace
    method; for ``euclidean`` and ``linear`` the best diagonal D is a multiple of I.

    Parameters
    ----------
    problem
        The smoothness matrix L, dense or a LowRankPlusDiagonal, a sequence of the clients' matrices, or an objective of
        ``stepsize_opt.problems``, whose L is not formed when d is above 4096.
    budget
        Numbers that a client may send a round on average, at most d; d by default.
    epsilon2
        ε², the goal for the mean of E‖∇f‖² (weighted for ``"det"``, plain for ``"euclidean"``).
    accuracy
        The goal for E f(x) − f* of ``"linear"``.
    criterion
        One of ``"det"``, ``"euclidean"``, ``"linear"``, or several of them.
    initial_gap
        Δ⁰ = f(x⁰) − f^inf; found from x⁰ = 0 when the problem is an objective.
    delta_inf
        Δ^inf of the clients; without it there are no rows with independent draws.  Found for a federated objective.
    lower
        M ⪯ ∇²f of ``"linear"``: a matrix or a number; taken from an objective that knows one, and never above it.
    total
        Numbers that all senders together may send in all rounds.
    rounds
        The most rounds allowed.
    sketches
        Sketches to take in place of rand-k.
    on_progress
        Called with the number of rows done, of all rows, and the name of the next before each is solved.
    options
        Of ``optimal_stepsize`` and ``optimal_distributed_stepsize`` for each row: ``time_limit``, ``tol``, ``solver``.

    Returns
    -------
    Plan
        Its ``best`` is the row to take: ``best.compressor`` runs it, ``best.result`` holds D and its proof.

    Raises
    ------
    ValueError, TypeError
        For arguments that are not as described, missing, or not used by the criteria.

    Examples
    --------
    >>> from stepsize_opt import plan
    >>> answer = plan([[2.0, 1.0], [1.0, 3.0]], 1, epsilon2=1e-3, initial_gap=1.0)
    >>> answer.best.method, answer.best.rounds
    ('subspace', 8945)
    """
    refuse_options("plan", options, _SET_BY_PLAN)
    if on_progress is not None and not callable(on_progress):
        msg = f"on_progress must be a function, got {on_progress!r}"
        raise TypeError(msg)
    criteria = _criteria(criterion)
    _refuse_unused(criteria, epsilon2=epsilon2, accuracy=accuracy, lower=lower)
    given = Problem.read(problem, initial_gap, delta_inf, lower, linear="linear" in criteria)
    limits = _budget(budget, total, rounds, given.d)
    tol = positive_number("tol", options.get("tol", Settings.tol))
    goals = [_goal(name, given, epsilon2, accuracy, tol) for name in criteria]
    ks = _ks(min(given.d, given.d if limits.numbers is None else limits.numbers))
    laws = _read_sketches(sketches, given.d, ks)
    ks = sorted({*ks, *(law.expected_rank for law in laws)})
    cases = [case for goal in goals for case in _cases(given, goal, laws, ks, rounds, options)]
    rows, left_out = [], []
    for done, case in enumerate(cases):
        if on_progress is not None:
            on_progress(done, len(cases), case.name)
        try:
            rows.append(case.make())
        except Unproved as error:  # the other methods have an answer all the same
            left_out.append(f"{case.name} is left out: {error}")
    if on_progress is not None:
        on_progress(len(cases), len(cases), "")
    reached = {goal.criterion: _limits(given, goal, ks) for goal in goals}
    notes = [*([given.note] if given.note else []), *left_out, *_notes(given, goals, laws, rows)]
    if any(len(reached[goal.criterion]) < len(ks) for goal in goals if given.has_limit(goal.criterion)):
        notes.append("the limit is left out where float64 does not prove it")
    return Plan(tuple(rows), limits, given.d, given.senders, reached, tuple(notes))


def _notes(given: Problem, goals: Sequence[Goal], laws: Sequence[Sketch], rows: Sequence[PlanRow]) -> Iterator[str]:
    """What the table leaves out, and which rows are not optimal."""
    unfinished = [row for row in rows if row.status != Status.OPTIMAL.value]
    if unfinished:
        kinds = ", ".join(sorted({row.status for row in unfinished}))
        yield f"{len(unfinished)} of {len(rows)} rows rest on a D above the tolerance ({kinds}): their rounds hold"
    if not laws:
        yield (
            "det-CGD1 and det-CGD2 are left out: rand-k sends at least one number a round, more than the budget; "
            "sketches=[IndependentSampling(p)] sends fewer"
        )
    if given.is_large and given.senders > 1:
        yield "independent draws are left out: their condition takes dense matrices"
    if given.clients and given.delta_inf is None:
        yield "independent draws are left out: their condition needs delta_inf"
    if given.clients and "det" not in {goal.criterion for goal in goals}:
        yield "independent draws are left out: their condition is one of the criterion det"
    if not all(given.has_limit(goal.criterion) for goal in goals):
        yield "the limit of det is left out: with a sparse factor of L it is not known without a dense matrix"


def _cases(
    given: Problem, goal: Goal, laws: Sequence[Sketch], ks: Sequence[float], rounds: int | None, options: dict[str, Any]
) -> Iterator[Case]:
    """The rows of one criterion."""
    d = given.d

    def node(
        method: Method,
        label: str,
        sketch: Sketch,
        guarantee: Guarantee,
        structure: Shape = "full",
        name: str | None = None,
    ) -> Case:
        shown = name or method.name

        def make() -> PlanRow:
            shape: dict[str, Any] = {"structure": structure, "guarantee": guarantee, **goal.arguments}
            result = completed(optimal_stepsize(given.L, sketch, algorithm=method, **shape, **options))
            K = goal.rounds(result.guaranteed_rate)
            step = CompressedStep.of(result.D, sketch, method)
            row = Named(shown, label, given.sharing, str(sketch))
            share = result.efficiency if math.isfinite(result.limit) else None
            return row.filled(given, goal, sketch.expected_nonzeros, K, share, result, step, result.status)

        return Case(f"{shown}, {label}, {sketch}", make)

    # The descent metric is never worse than the paper's condition, whose criterion is det.
    paper: Guarantee = "condition" if goal.criterion == "det" else "descent"
    yield node(DetCGD1(), "γI", Identity(d), paper, "scalar", "GD")
    for sketch in laws:
        if given.is_large:
            yield node(DetCGD1(), "diagonal", sketch, "condition", "diagonal")
            if goal.criterion == "det" and given.has_limit("det"):
                yield node(DetCGD1(), "descent", sketch, "descent")
                yield node(DetCGD2(), "optimal", sketch, "condition")
            continue
        if goal.criterion == "det":
            yield node(DetCGD1(), "condition", sketch, "condition")
        yield node(DetCGD1(), "descent", sketch, "descent")
        yield node(DetCGD2(), "optimal", sketch, "descent")
    if given.has_directions(goal.criterion):
        exact = [] if rounds is None else [k for k in [_enough(given, goal, rounds)] if k is not None]
        for k in sorted({*ks, *exact}):
            yield _subspace(given, goal, k)
    if laws and given.clients and goal.criterion == "det" and given.delta_inf is not None:
        # They need orders of magnitude more in all, and most with small k: one k shows it, and a solve takes seconds.
        largest = max(laws, key=lambda sketch: sketch.expected_nonzeros)
        for method, structure in _INDEPENDENT:
            yield _independent(given, goal, given.delta_inf, method, structure, largest, options)


def _subspace(given: Problem, goal: Goal, k: float) -> Case:
    def make() -> PlanRow:
        method = optimal_method(given.L, k, **goal.arguments)
        row = Named(method.name, "optimal", given.sharing, f"k = {k:g}")
        status = Status.OPTIMAL if method.certificate.is_optimal(goal.tol) else Status.INACCURATE
        rounds = goal.rounds(method.rate)
        return row.filled(given, goal, k, rounds, method.efficiency, method, method, status.value)

    return Case(f"subspace method, k = {k:g}", make)


def _independent(
    given: Problem,
    goal: Goal,
    delta_inf: float,
    method: Method,
    structure: Shape,
    sketch: Sketch,
    options: dict[str, Any],
) -> Case:
    def make() -> PlanRow:
        result = optimal_distributed_stepsize(
            given.clients,
            sketch,
            epsilon2=goal.target,
            initial_gap=goal.initial_gap,
            delta_inf=delta_inf,
            algorithm=method,
            structure=structure,
            **options,
        )
        step = CompressedStep.of(completed(result).D, sketch, method)
        row = Named(method.name, structure, "independent", str(sketch))
        return row.filled(given, goal, sketch.expected_nonzeros, result.K, None, result, step, result.status)

    return Case(f"independent {method.name}, {structure}, {sketch}", make)


def _work(row: Named, given: Problem, k: float) -> tuple[float, float]:
    """Multiplications a round of a client and of the server beyond the gradient.

    det-CGD1: the server multiplies D, of which it needs k columns.  det-CGD2: a client needs k rows of D∇f.  Subspace:
    k directions on both sides.  A diagonal D or γI has one number a coordinate.  The D and the directions of a large L
    are applied as a whole, by two products with a factor of r columns.
    """
    if row.stepsize in ("γI", "diagonal"):
        return (k, 0.0) if row.method == DetCGD2.name else (0.0, k)
    product = given.d * (2.0 * given.L.rank if isinstance(given.L, LowRankPlusDiagonal) else k)
    if row.method == DetCGD1.name:
        return 0.0, product
    return product, 0.0 if row.method == DetCGD2.name else product


def _criteria(criterion: str | Sequence[str]) -> list[str]:
    names = [criterion] if isinstance(criterion, str) else [str(name) for name in items("criterion", criterion)]
    unknown = [name for name in names if name not in CRITERIA]
    if unknown or not names or len(set(names)) < len(names):
        known = ", ".join(map(repr, CRITERIA))
        msg = f"criterion must be one or several of {known}, each once, got {', '.join(names) or 'none'}"
        raise ValueError(msg)
    return names


def _refuse_unused(criteria: Sequence[str], **given: Any) -> None:
    """Raise ValueError for a goal that none of the criteria uses."""
    used = {name for one in criteria for name in (("accuracy", "lower") if one == "linear" else ("epsilon2",))}
    for name, value in given.items():
        if value is not None and name not in used:
            whose = "criterion='det' and criterion='euclidean'" if name == "epsilon2" else "criterion='linear'"
            msg = f"{name} is for {whose}, which is not asked for: leave it out"
            raise ValueError(msg)


def _goal(criterion: str, given: Problem, epsilon2: float | None, accuracy: float | None, tol: float) -> Goal:
    name, value = ("accuracy", accuracy) if criterion == "linear" else ("epsilon2", epsilon2)
    if value is None:
        msg = f"criterion={criterion!r} needs {name}"
        raise ValueError(msg)
    if criterion == "linear" and given.lower is None:
        msg = (
            "criterion='linear' needs lower: an M ⪯ ∇²f, a matrix or a number μ > 0; an objective that is strongly "
            "convex (a logistic regression with penalty='ridge') knows its own"
        )
        raise ValueError(msg)
    return Goal(criterion, positive_number(name, value), given.initial_gap, given.lower, tol)


def _budget(numbers: float | None, total: float | None, rounds: int | None, d: int) -> Budget:
    if numbers is not None and positive_number("budget", numbers) > d:
        msg = f"budget is numbers a round and at most d={d}, got {numbers}; total=N limits the numbers in all"
        raise ValueError(msg)
    return Budget(numbers, total, rounds)


def _ks(most: float) -> list[float]:
    """The numbers a round of the table: one, and a quarter, half and all of what is allowed."""
    shares = {float(max(1, round(share * most))) for share in _SHARES[:-1]} if most >= 1.0 else set()
    return sorted({most, *(k for k in shares | {1.0} if k <= most)})


def _read_sketches(sketches: Sequence[Sketch] | None, d: int, ks: Sequence[float]) -> list[Sketch]:
    """The sketches given, or rand-k for each whole k."""
    if sketches is None:
        return [RandK(d, k) for k in sorted({int(k) for k in ks if k >= 1.0})]
    out: list[Sketch] = []
    for i, sketch in enumerate(items("sketches", sketches)):
        if not isinstance(sketch, Sketch) or sketch.d != d:
            msg = f"sketches[{i}] must be a sketch of d={d} coordinates, got {sketch!r}"
            raise ValueError(msg)
        out.append(sketch)
    return out


def _enough(given: Problem, goal: Goal, rounds: int) -> float | None:
    """The smallest whole k with which the subspace method needs at most so many rounds; None without one."""

    def reached(k: int) -> bool:
        limit = _limit(given, goal, k)
        return limit is not None and goal.rounds(limit.value) <= rounds

    k = bisect_left(range(1, given.d + 1), True, key=reached) + 1
    return float(k) if k <= given.d else None


def _limits(given: Problem, goal: Goal, ks: Sequence[float]) -> tuple[tuple[float, int], ...]:
    """Return each k with the rounds at its limit, below which no method without memory has a guarantee."""
    found = [(k, _limit(given, goal, k)) for k in ks]
    return tuple((k, goal.rounds(limit.upper)) for k, limit in found if limit is not None)


def _limit(given: Problem, goal: Goal, k: float) -> CompressionLimit | None:
    """Return the limit of k floats per round; None where it is not known, or not proved in float64."""
    if not given.has_limit(goal.criterion):
        return None
    try:
        return compression_limit(given.L, k, **goal.arguments)
    except Unproved:
        return None
