"""``plan``: every method for a problem, a budget and an accuracy, with its rounds, its floats and its work."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.goals import METRIC_GOALS, Goal, GoalName, coordinates_sent, goal_class
from stepsize_opt.inputs.checks import items, positive_number
from stepsize_opt.limit import compression_limit, optimal_method, read_limit
from stepsize_opt.methods import CompressedStep, DetCGD1, DetCGD2, Feedback, Method, default_floats
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.planning.questions import Budget, Problem, check_known_bound, read_solving
from stepsize_opt.proofs import Unproved, exp_up
from stepsize_opt.records import completed
from stepsize_opt.sketches.base import Sketch
from stepsize_opt.sketches.diagonal import Identity, RandK
from stepsize_opt.smoothness import NeedsDense
from stepsize_opt.tables import Case, Measured, Progress, Row, Table, best_first, solve_cases
from stepsize_solvers.programs import Status

_SHARES = (0.25, 0.5)  # of the floats per round that are allowed: the k of the table, besides these and k = 1
Shape: TypeAlias = Literal["full", "diagonal", "scalar"]
# The cheapest, and the best of what (12) allows.
_INDEPENDENT: tuple[tuple[Method, Shape], ...] = ((DetCGD1(), "diagonal"), (DetCGD2(), "full"))
_COLUMNS = ("method", "stepsize", "seeds", "sketch", "rounds", "floats", "client", "server", "share of limit")
_WORK = "client, server: multiplications per round beyond the gradient"
_MEASURED = "k, setup: floats of each client per round, at most, and before the first unless everybody knows L"


def plan(
    problem: Any,
    budget: float | Budget | None = None,
    *,
    epsilon2: float | None = None,
    accuracy: float | None = None,
    goal: GoalName | Goal | Sequence[GoalName | Goal] = "descent",
    initial_gap: float | None = None,
    delta_inf: float | None = None,
    strong_convexity: Any = None,
    sketches: Sequence[Sketch] | None = None,
    on_progress: Progress | None = None,
    solving: Mapping[str, Any] | None = None,
) -> Table:
    """Tell which method to run: rounds, floats sent, work and efficiency of each, and the best within a budget.

    The rows are gradient descent, det-CGD1 (with the best descent metric, and for ``"descent"`` under the paper's
    condition), det-CGD2 and the subspace method, with k = 1 and with a quarter, half and all of the floats allowed.
    Clients with shared seeds have the rows of one node, and det-CGD1 and det-CGD2 with independent draws and the
    largest k in addition.  For a large L that is not formed, the rows are those that need no d×d matrix: gradient
    descent, det-CGD1 with a diagonal D, and for a dense factor det-CGD2 with a full D (``descent``) and the subspace
    method.  ``Feedback`` is not ranked: it stands below the rows, in ``measured``, with the k of ``from_client`` or the
    largest that is allowed.

    Parameters
    ----------
    problem : array-like or sparse matrix of shape (d, d), sequence of these, LowRankPlusDiagonal or Objective
        The smoothness matrix L, dense or a LowRankPlusDiagonal, a sequence of the clients' matrices, or an objective of
        ``stepsize_opt.problems``, whose L is taken by its factor when d is above 4096 and ``smoothness.of`` knows one.
    budget
        Floats that a client may send per round on average, at most d; d by default.  ``Budget(per_round, total,
        rounds)`` also limits the floats of all rounds and the rounds.
    epsilon2
        ε², the accuracy for the mean of E‖∇f‖² (weighted for ``"descent"``, plain for ``"euclidean"``).
    accuracy
        The accuracy for E f(x) − f* of ``"linear"``.
    goal : str, FloorGoal or sequence of these
        One of ``"descent"``, ``"euclidean"``, ``"linear"``, a ``FloorGoal`` of your own, or several of them.
    initial_gap
        Δ⁰ = f(x⁰) − f^inf; found from x⁰ = 0 when the problem is an objective.
    delta_inf
        Δ^inf of the clients; without it there are no rows with independent draws.  Found for a federated objective.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M ⪯ ∇²f of ``"linear"``: a matrix or a number; taken from an objective that knows one, and never above it.
    sketches
        Sketches to take in place of rand-k.
    on_progress : callable, optional
        Called with the number of rows done, of all rows, and the name of the next before each is solved.
    solving
        Settings of the solve of each row, as ``optimal_stepsize`` takes them: ``{"tol": 1e-3, "time_limit": 10}``.

    Returns
    -------
    Table
        Its ``best`` is the row to take, the first: ``best.compressor`` runs it, ``best.result`` holds D and its proof.
        It sends the fewest floats within the budget; rows that differ by less than one round count as equal, and the
        fewest rounds decide.

    Raises
    ------
    ValueError, TypeError
        For arguments that are not as described, missing, or not used by the goals.

    See Also
    --------
    compare : the stepsizes for one sketch.
    compare_distributed : the stepsizes for clients.
    optimal_method : the subspace method.
    Feedback : error feedback, which is measured and not ranked.

    Examples
    --------
    >>> from stepsize_opt import plan
    >>> answer = plan([[2.0, 1.0], [1.0, 3.0]], 1, epsilon2=1e-3, initial_gap=1.0)
    >>> answer.best.method, answer.best.rounds
    ('subspace', 8945)
    """
    goals = _read_goals(goal)
    numbers = {"epsilon2": epsilon2, "accuracy": accuracy, "strong_convexity": strong_convexity}
    _refuse_unused(goals, numbers)
    given = Problem.read(problem, initial_gap, delta_inf)
    allowed = _read_budget(budget, given.d)
    settings = read_solving(solving)
    planned = [_rows_of(one, given, numbers, settings) for one in goals]
    ks = _ks(allowed.per_round or given.d)
    laws = _read_sketches(sketches, given.d, ks)
    ks = sorted({*ks, *(law.expected_rank for law in laws)})
    cases = [case for one in planned for case in one.cases(laws, ks, allowed.rounds)]
    rows, left_out = solve_cases(cases, on_progress)
    limits = {one.goal.name: one.limits(ks) for one in planned}
    measured, not_measured = solve_cases([*_feedback(given, max(ks))])
    notes = [_WORK, _MEASURED if measured else "", given.note, *left_out, *not_measured]
    notes += [*_notes(given, planned, laws, rows), *_unbounded(limits)]
    rows = [row for name in limits for row in _sorted(rows, name, allowed, given.senders)]
    senders = "one node" if given.senders == 1 else f"{given.senders} clients"
    title = f"Plan for d = {given.d}, {senders}, {allowed}"
    return Table(tuple(rows), _COLUMNS, title, "", limits, tuple(filter(None, notes)), tuple(measured))


def _sorted(rows: Sequence[Row], goal: str, budget: Budget, senders: int) -> list[Row]:
    """Return the rows of a goal: the best first, then those within the budget, fewest floats first.

    Rounds are whole numbers.  Rows that without their last round send less than the fewest floats count as equal to
    it, and the fewest rounds decide: the subspace method sends the same in all at every k.
    """
    marked = [replace(row, within_budget=budget.holds(row)) for row in rows if row.goal == goal]
    ordered = best_first(marked, lambda row: (row.floats, row.rounds))
    inside = [row for row in ordered if row.within_budget]
    near = [row for row in inside if row.floats - senders * row.k <= inside[0].floats]
    best = min(near, key=lambda row: (row.rounds, row.floats), default=None)
    return ordered if best is None else [best, *(row for row in ordered if row is not best)]


def _notes(given: Problem, planned: Sequence[Rows], laws: Sequence[Sketch], rows: Sequence[Row]) -> Iterator[str]:
    """Yield what the table leaves out, and which rows are not optimal."""
    unfinished = [row for row in rows if row.status != Status.OPTIMAL.value]
    if unfinished:
        kinds = ", ".join(sorted({row.status for row in unfinished}))
        yield f"{len(unfinished)} of {len(rows)} rows rest on a D above the tolerance ({kinds}): their rounds hold"
    if not laws:
        yield (
            "det-CGD1 and det-CGD2 with rand-k are left out: it sends at least one float per round, more than the "
            "budget; sketches=[IndependentSampling(p)] sends fewer"
        )
    if not given.L.is_formed and given.senders > 1:
        yield "independent draws are left out: their condition takes dense matrices"
    if given.clients and given.delta_inf is None:
        yield "independent draws are left out: their condition needs delta_inf"
    if given.clients and all(one.goal.with_condition() is None for one in planned):
        yield "independent draws are left out: their condition bounds the norm of goal='descent' only"


def _unbounded(limits: Mapping[str, Sequence[object]]) -> Iterator[str]:
    reason = "no finite bound is proved; with a sparse factor of L it needs a dense matrix"
    for name, pairs in limits.items():
        if not pairs:
            yield f"the limit for goal={name!r} is left out: {reason}"


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of one goal: each a case that solves and describes a method.

    accuracy: ε² of the gradient, or of f − f* for ``linear``; solving: the settings of each solve.
    """

    given: Problem
    goal: Goal
    accuracy: float
    solving: Mapping[str, Any]

    def rounds(self, rate: float, goal: Goal | None = None) -> int:
        """Return the smallest K that a rate of this or another goal guarantees; raise Unproved for a rate of 0."""
        if not rate > 0.0:
            msg = "no rate above 0 is proved of its D in float64"
            raise Unproved(msg)
        return (goal or self.goal).rounds(rate, self.accuracy, self.given.initial_gap)

    def limits(self, ks: Sequence[float]) -> tuple[tuple[float, int], ...]:
        """Return each k with the rounds at its limit, below which no method without memory has a guarantee."""
        bounds = [read_limit(self.given.L, k, self.goal).upper_bound for k in ks]
        rates = [exp_up(bound / self.given.d) for bound in bounds]
        return tuple((k, self.rounds(rate)) for k, rate in zip(ks, rates, strict=True) if math.isfinite(rate))

    def cases(self, laws: Sequence[Sketch], ks: Sequence[float], rounds: int | None) -> Iterator[Case[Row]]:
        """Yield the rows of the goal, for sketches, floats per round, and rounds within which k is wanted."""
        given, goal = self.given, self.goal
        paper = goal.with_condition()
        plain = paper or goal  # the same best γI, and the same best D without a sketch
        first, second = DetCGD1(), DetCGD2()
        yield self.node(first, "γI", Identity(given.d), plain, "scalar", "GD")
        if given.L.is_formed:
            yield self.node(second, "L⁻¹, uncompressed", Identity(given.d), plain)
        for sketch in laws:
            if not given.L.is_formed:
                yield self.node(first, "diagonal", sketch, plain, "diagonal")
            else:
                yield self.node(first, "γI", sketch, plain, "scalar")
                if paper is not None:
                    yield self.node(first, paper.name, sketch, paper)
                yield self.node(first, goal.name, sketch, goal)
            if given.L.is_formed or paper is not None:
                yield self.node(second, "optimal", sketch, goal)
        momentum = goal.with_momentum(given.d)
        for k in sorted({*ks, *self._enough(rounds)}):
            yield self.subspace(k, goal)
            if momentum is not None:
                yield self.subspace(k, momentum)
        if laws and given.clients and paper is not None and given.delta_inf is not None:
            # They need orders of magnitude more in all, and most with small k: one k shows it, and a solve takes
            # seconds.
            largest = max(laws, key=lambda sketch: sketch.expected_nonzeros)
            for method, structure in _INDEPENDENT:
                yield self.independent(method, structure, largest)

    def _enough(self, rounds: int | None) -> list[float]:
        """Return the smallest whole k with which the subspace method needs at most so many rounds, if there is one."""
        if rounds is None:
            return []

        def reached(k: int) -> bool:
            try:
                return self.rounds(compression_limit(self.given.L, k, goal=self.goal).value) <= rounds
            except (NeedsDense, Unproved):
                return False

        k = bisect_left(range(1, self.given.d + 1), True, key=reached) + 1
        return [float(k)] if k <= self.given.d else []

    def node(
        self,
        method: Method,
        label: str,
        sketch: Sketch,
        goal: Goal,
        structure: Shape = "full",
        name: str | None = None,
    ) -> Case[Row]:
        """Return the row of a stepsize for one sketch."""

        def make() -> Row:
            asked: dict[str, Any] = {"algorithm": method, "structure": structure, "goal": goal, **self.solving}
            result = completed(optimal_stepsize(self.given.L, sketch, **asked))
            rate = result.guaranteed_rate
            more = {"compressor": result.compressor(), **result.columns()}
            return self.row(shown, label, rate, self.rounds(rate), **more)

        shown = name or method.name
        return f"{shown}, {label}, {sketch}", make

    def subspace(self, k: float, goal: Goal) -> Case[Row]:
        """Return the row of the subspace method, for the goal of the table or that of the same name with momentum."""

        def make() -> Row:
            method = optimal_method(self.given.L, k, goal=goal)
            optimal = method.certificate.is_optimal(self.solving["tol"])
            return self.row(
                method.name,
                "momentum" if goal.momentum else "optimal",
                method.rate,
                self.rounds(method.rate, goal),
                sketch=f"k = {k:g}",
                k=k,
                share_of_limit=None if goal.momentum else method.efficiency,
                gap=method.certificate.gap,
                status=(Status.OPTIMAL if optimal else Status.INACCURATE).value,
                result=method,
                compressor=method,
            )

        return f"subspace method{' with momentum' if goal.momentum else ''}, k = {k:g}", make

    def independent(self, method: Method, structure: Shape, sketch: Sketch) -> Case[Row]:
        """Return the row of clients whose draws are independent."""
        given = self.given
        numbers = {"epsilon2": self.accuracy, "initial_gap": given.initial_gap, "delta_inf": given.delta_inf}

        def make() -> Row:
            asked: dict[str, Any] = {"algorithm": method, "structure": structure, **numbers, **self.solving}
            result = completed(optimal_distributed_stepsize(given.clients, sketch, **asked))
            more = {**result.columns(), "seeds": "independent"}
            compressor = CompressedStep.of(result.D, sketch, method)
            return self.row(method.name, structure, result.rate, result.K, compressor=compressor, **more)

        return f"independent {method.name}, {structure}, {sketch}", make

    def row(self, method: str, stepsize: str, rate: float, rounds: int, *, k: float, **more: Any) -> Row:
        """Return the row of a method with the floats it sends and its work."""
        client, server = _work(method, stepsize, self.given, k)
        return Row(
            goal=self.goal.name,
            method=method,
            stepsize=stepsize,
            k=k,
            rate=rate,
            rounds=rounds,
            floats=coordinates_sent(rounds, self.given.senders * k),
            more={"client": client, "server": server},
            **{"seeds": self.given.sharing, **more},
        )


def _feedback(given: Problem, most: float) -> Iterator[Case[Measured]]:
    """Yield feedback with at most so many floats per round and client.

    A client sends k entries, their k places at half a float each, and a value of f.
    """
    k = min(default_floats(given.d), int((most - 1.0) / 1.5))

    def make() -> Measured:
        given.L.orthonormal_directions("eigenvectors")  # refused where float64 does not prove them
        feedback = Feedback(given.L, k, clients=given.senders)
        work = given.L.multiplications(given.d)
        return Measured(
            method="feedback",
            sketch=f"top-{k}",
            seeds=given.sharing,
            k=1.5 * k + 1.0,
            compressor=feedback,
            more={"setup": feedback.setup_floats.mean, "client": work, "server": work},
        )

    if k >= 1:
        yield f"feedback, k = {k}", make


def _work(method: str, stepsize: str, given: Problem, k: float) -> tuple[float, float]:
    """Return the multiplications per round of a client and of the server beyond the gradient.

    det-CGD1: the server multiplies D, of which it needs k columns.  det-CGD2: a client needs k rows of D∇f.  Subspace:
    k directions on both sides.  A diagonal D or γI has one number a coordinate.  The D and the directions of a large L
    are applied as a whole, by two products with a factor of r columns.
    """
    if stepsize in ("γI", "diagonal"):
        return (k, 0.0) if method == DetCGD2.name else (0.0, k)
    product = given.L.multiplications(k)
    if method == DetCGD1.name:
        return 0.0, product
    return product, 0.0 if method == DetCGD2.name else product


# A goal that is given by its name is a class until its M is known.
Asked: TypeAlias = Goal | type[Goal]


def _read_goals(goal: Any) -> list[Asked]:
    """Return goals without memory that have a limit, and rounds that start from Δ⁰."""
    given: list[Any] = [goal] if isinstance(goal, str | Goal) else items("goal", goal)
    known: dict[str, Asked] = {name: goal_class(name) for name in METRIC_GOALS}
    found = [one if isinstance(one, Goal) else known.get(str(one)) for one in given]
    planned = [aim for aim in found if aim is not None and aim.has_limit and not aim.momentum]
    if len({aim.name for aim in planned if aim.words.arguments[1] == "initial_gap"}) < len(given):
        names = ", ".join(one.name if isinstance(one, Goal) else str(one) for one in given)
        choice = ", ".join(map(repr, known))
        msg = f"goal must be one or several of {choice}, or a FloorGoal without momentum, each once, got {names}"
        raise ValueError(msg)
    return planned


def _arguments(goal: Asked) -> tuple[str, ...]:
    """Return the arguments of ``plan`` that a goal uses; an object has its own M."""
    takes_curvature = isinstance(goal, type) and goal.takes_curvature
    return (*goal.words.arguments, "strong_convexity") if takes_curvature else goal.words.arguments


def _refuse_unused(goals: Sequence[Asked], numbers: Mapping[str, Any]) -> None:
    """Raise ValueError for an argument that none of the goals uses."""
    used = {name for goal in goals for name in _arguments(goal)}
    for name, value in numbers.items():
        if value is not None and name not in used:
            takers = [goal for goal in METRIC_GOALS if name in _arguments(goal_class(goal))]
            msg = f"{name} is for {' and '.join(f'goal={goal!r}' for goal in takers)}, not asked for: leave it out"
            raise ValueError(msg)


def _rows_of(goal: Asked, given: Problem, numbers: Mapping[str, Any], solving: Mapping[str, Any]) -> Rows:
    """Return the rows of a goal for its accuracy, with the M of the objective where none is given."""
    name, M = goal.words.arguments[0], None
    value = numbers.get(name)
    if value is None:
        msg = f"goal={goal.name!r} needs {name}"
        raise ValueError(msg)
    if "strong_convexity" in _arguments(goal):
        M = given.strong_convexity if numbers["strong_convexity"] is None else numbers["strong_convexity"]
        if M is None:
            msg = (
                f"goal={goal.name!r} needs strong_convexity: an M ⪯ ∇²f, a matrix or a number μ > 0; a strongly convex "
                "objective (a logistic regression with penalty='ridge') knows its own"
            )
            raise ValueError(msg)
    aim = goal.of(M, given.d) if isinstance(goal, type) else goal.read_again(given.d)
    if aim.takes_curvature and given.known is not None and M is not given.known:
        check_known_bound(aim.strong_convexity, given.known, given.d)
    return Rows(given, aim, positive_number(name, value), solving)


def _read_budget(budget: float | Budget | None, d: int) -> Budget:
    if budget is not None and not isinstance(budget, Budget):
        budget = Budget(positive_number("budget", budget))
    allowed = budget or Budget()
    if allowed.per_round is not None and allowed.per_round > d:
        msg = (
            f"budget is floats per round and at most d={d}, got {allowed.per_round:g}; "
            "Budget(total=N) limits the floats in all"
        )
        raise ValueError(msg)
    return allowed


def _ks(most: float) -> list[float]:
    """Return the floats per round of the table: one, and a quarter, half and all of what is allowed."""
    shares = (float(max(1, round(share * most))) for share in _SHARES)
    return sorted({most, *(k for k in (1.0, *shares) if k <= most)})


def _read_sketches(sketches: Sequence[Sketch] | None, d: int, ks: Sequence[float]) -> list[Sketch]:
    """Return the sketches given, or rand-k for each whole k."""
    if sketches is None:
        return [RandK(d, k) for k in sorted({int(k) for k in ks if k >= 1.0})]
    out: list[Sketch] = []
    for i, sketch in enumerate(items("sketches", sketches)):
        if not isinstance(sketch, Sketch) or sketch.d != d:
            msg = f"sketches[{i}] must be a sketch of d={d} coordinates, got {sketch!r}"
            raise ValueError(msg)
        out.append(sketch)
    return out
