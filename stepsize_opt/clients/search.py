"""Which programs answer a distributed question, in which order, and what each answer proves.

With τ(c) = max{ det(D)^{1/d} : D ⪯ L⁻¹, λ_D ≤ c } (concave and nondecreasing in c, τ(0) = 0) every question is one c:

* K given: c = min{n/K, c*} where c* is the positive root of c = nε²τ(c)/(4Δ^inf).  Only one of the two bounds on λ_D
  counts, so the program with n/K is solved first and the one with the determinant only if its answer violates it.
* no K: c is the positive root of c = κτ(c), one program with λ_D ≤ κτ.

``step`` takes the runs so far and returns the next one, or the answer.  Its rules, in this order:

* *inverse*: D = L⁻¹, if it satisfies the bounds on λ_D: no full D is larger.
* *homogeneous*: λ_D ≤ 1 alone.  Without D ⪯ L⁻¹ the scale separates, τ(c) = √c τ(1); if the direction of the answer,
  scaled, satisfies D ⪯ L⁻¹, it is the answer, and no small number ever entered a solver.
* *joint*: D ⪯ L⁻¹ with each bound on λ_D in turn, until the other bound is slack.  Where c or κ is smaller than a
  solver takes, the program has a larger one, and *shrunk* makes the answer of that answer.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from stepsize_opt.clients.fit import Multiples
from stepsize_opt.clients.programs import ClientPrograms, homogeneous_program_is_bounded, noisy_coordinates
from stepsize_opt.proofs import Bound, Conditions, Multipliers
from stepsize_solvers import choose_solver
from stepsize_solvers.programs import Indices, Matrix, Outcome, Program, Settings, SolverStats, Status

# Rows of D of this size, beside entries of L near one, are limited by D ⪯ L⁻¹ by less than the tolerance; the smaller
# ones that a small c or κ asks for come from them.  In A = DLD, exact with any small size, small ones cost digits.
_SMALL_ROWS = 3e-9
_SMALL_ROWS_LINEAR = 1e-5
# Above this c or κ (in scaled coordinates) λ_D decides nothing: D ⪯ L⁻¹ bounds it by the condition number of L times
# the variance of a sketch.
_LOG_MOST = math.log(1e25)
# Rows smaller by more than e to this are outside the range of floats, which the fit finds out.
_LOG_SMALLEST = 650.0
_CLOSED_FORM = SolverStats("closed form", 0.0, 0.0, 0)

# log c and log κ of λ_D ≤ min{c, κτ}; +∞ for a bound that there is not.
Limits: TypeAlias = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked: the best D ⪯ L⁻¹ within the limits on λ_D, and who solves programs."""

    programs: ClientPrograms
    limits: Limits
    solver: str
    settings: Settings

    @property
    def conditions(self) -> Conditions:
        return self.programs.conditions

    @property
    def single_limits(self) -> list[Limits]:
        """The limits of the joint programs, of which each takes one."""
        log_c, log_kappa = self.limits
        single = [(log_c, math.inf), (math.inf, log_kappa)]
        return [limits for limits in single if math.isfinite(min(limits))] or [(math.inf, math.inf)]


@dataclass(frozen=True, eq=False)
class Run:
    """What one rule did.

    limits: those it was made for, None where it serves all; direction: None without a usable point; outcome: None where
    no program was solved; bounds: what its multipliers prove; multipliers, scale: those of λ_D, and the c or κ of the
    program, in scaled coordinates; remaining: log of how much smaller the c or κ asked for is.
    """

    rule: str
    limits: Limits | None
    direction: Multiples | None = None
    outcome: Outcome | None = None
    bounds: tuple[Bound, ...] = ()
    notes: tuple[str, ...] = ()
    multipliers: Multipliers | None = None
    scale: float = 1.0
    remaining: float = 0.0

    @property
    def failure(self) -> str:
        """What the solver reported as a failure, empty without one."""
        outcome = self.outcome
        return f"{outcome.stats.solver_name}: {outcome.message}" if outcome and outcome.message else ""


@dataclass(frozen=True, eq=False)
class Answer:
    """The best direction of all runs, None without one."""

    direction: Multiples | None
    notes: tuple[str, ...] = ()


Runs: TypeAlias = tuple[Run, ...]


def answered(question: Question, runs: Runs = ()) -> tuple[Answer, Runs]:
    """Find the direction whose best multiple is optimal up to the gap; runs of an earlier question serve again."""
    while True:
        found = step(question, runs)
        if isinstance(found, Answer):
            return found, runs
        runs = (*runs, found)


def step(question: Question, runs: Runs) -> Run | Answer:
    """Return the next run, or the answer of those there are."""
    for rule in (_inverse, _homogeneous, _joint):
        found = rule(question, runs)
        if found is not None:
            return found
    return _best(question, runs)


def upper_bound(runs: Runs, limits: Limits) -> float:
    """Return the best proved bound on log τ within the limits."""
    log_c, log_kappa = limits
    bounds = (bound for run in runs for bound in run.bounds)
    return min((min(bound.at_lambda(log_c), bound.at_factor(log_kappa)) for bound in bounds), default=math.inf)


def statistics(runs: Runs) -> SolverStats:
    """Return the statistics of all runs together."""
    return SolverStats.combined([run.outcome.stats for run in runs if run.outcome], "runs")


def all_notes(runs: Runs) -> list[str]:
    """Return the notes of all runs, each once."""
    return list(dict.fromkeys(note for run in runs for note in (*run.notes, run.failure) if note))


def failures(runs: Runs) -> list[str]:
    """Return what the solvers reported as failures, once each."""
    return list(dict.fromkeys(run.failure for run in runs if run.failure))


def plain_run(conditions: Conditions, runs: Runs) -> Run:
    """Return a direction that needs no solver, for when its answer is of no use: W, or the diagonal of L inverted."""
    W = conditions.pattern.W
    direction = Multiples.of(conditions, np.diag(1.0 / np.diagonal(conditions.L.hi)) if W is None else W)
    note = f"the answer of {statistics(runs).solver_name} was of no use, a plain direction took its place"
    return Run("plain", None, direction, notes=(note,))


def _of(runs: Runs, rule: str, limits: Limits | None) -> list[Run]:
    return [run for run in runs if run.rule == rule and run.limits == limits]


# ---------------------------------------------------------------- the rules


def _inverse(question: Question, runs: Runs) -> Run | Answer | None:
    for run in _of(runs, "inverse", question.limits):
        return None if run.direction is None else Answer(run.direction)
    conditions = question.conditions
    if not conditions.pattern.is_full:
        return None
    inverse: Matrix = np.asarray(np.linalg.inv(conditions.L.hi), dtype=np.float64)
    direction = Multiples.of(conditions, inverse)
    if direction is None or direction.log_scale(*question.limits) < direction.log_largest:
        return Run("inverse", question.limits)
    program = question.programs.program(with_inverse=True)
    duals = tuple(np.eye(family.rows)[None] for family in program.families)
    outcome = Outcome(Status.OPTIMAL, inverse, duals, _CLOSED_FORM)
    run = Run("inverse", question.limits, outcome=outcome, notes=("closed form D = L⁻¹",))
    return _read(question, run, program, direction)


def _homogeneous(question: Question, runs: Runs) -> Run | Answer | None:
    for run in _of(runs, "homogeneous", None):
        if run.direction is None or not _separates(question, runs, run, run.direction):
            return None
        return Answer(run.direction, ("D ⪯ L⁻¹ is slack: the scale separates from the direction",))
    conditions, programs = question.conditions, question.programs
    # Along one direction λ_D ≤ 1 is enough unless λ vanishes, which the closed form finds out.
    W = conditions.pattern.direction if conditions.groups else None
    if not (W is not None or homogeneous_program_is_bounded(conditions)):
        return Run("homogeneous", None)
    program = programs.program(with_inverse=False, c=1.0)
    closed = _of_one_client(programs, program) if W is None else _along_direction(programs, program, W)
    if closed is None and W is not None:
        return Run("homogeneous", None)
    outcome, notes = closed or (_solved(question, program), ())
    return _read(question, Run("homogeneous", None, outcome=outcome, notes=notes), program)


def _separates(question: Question, runs: Runs, run: Run, direction: Multiples) -> bool:
    """Return whether a multiple of the homogeneous direction is the answer: its scale is all that is left open."""
    log_scale = direction.log_scale(*question.limits)
    gap = upper_bound(runs, question.limits) - (direction.log_rate + log_scale)
    # A solve that got stuck is not the last word while the program with D ⪯ L⁻¹ has the same answer.
    inaccurate = run.outcome is not None and run.outcome.status is Status.INACCURATE
    return log_scale < direction.log_largest and not (inaccurate and gap > 4.0 * question.settings.tol)


def _joint(question: Question, runs: Runs) -> Run | None:
    for limits in question.single_limits:
        done = _of(runs, "joint", limits) + _of(runs, "shrunk", limits)
        if not done:
            return _joint_run(question, limits)
        last = done[-1]
        if last.direction is None:
            continue
        if last.remaining < 0.0 and last.rule == "joint":
            rows = noisy_coordinates(question.conditions)
            # The factor that the powers of ``_least_scale`` leave out is known now.
            excess = math.log(np.diagonal(last.direction.W)[rows].max() / _small_rows(question.programs))
            if excess < 1.0 or len(done) > 1:
                return _shrunk(question, last, last.direction, rows)
            return _joint_run(question, limits, excess)
        # The other bound is slack (to rounding): this program alone has decided.
        if last.direction.log_scale(*question.limits) >= last.direction.log_scale(*limits) - 1e-9:
            return None
    return None


def _best(question: Question, runs: Runs) -> Answer:
    candidates = [run.direction for run in runs if run.direction is not None]
    if not candidates and any(run.outcome and run.outcome.status is Status.USER_LIMIT for run in runs):
        # A limit of the user's is no error: a plain direction has a feasible multiple, and its gap is reported.
        return Answer(Multiples.of(question.conditions, question.conditions.pattern.member))
    return Answer(max(candidates, key=lambda known: known.best_log_rate(*question.limits), default=None))


# ---------------------------------------------------------------- the programs


def _small_rows(programs: ClientPrograms) -> float:
    return _SMALL_ROWS_LINEAR if programs.linear else _SMALL_ROWS


def _joint_run(question: Question, limits: Limits, excess: float = 0.0) -> Run:
    """Solve the program with D ⪯ L⁻¹ and λ_D ≤ c or λ_D ≤ κτ, whichever is finite.

    excess: log of how much larger than small the rows of an earlier answer were.
    """
    conditions, programs = question.conditions, question.programs
    if conditions.pattern.direction is not None:
        return _largest_multiple(question, limits, conditions.pattern.direction)
    by_c = math.isfinite(limits[0])
    # In scaled coordinates, and no closer to zero than a solver takes.
    shift = -conditions.log_clients.high + (0.0 if by_c else conditions.log_scale.high)
    asked = min(limits) + shift
    if asked > _LOG_MOST or not conditions.groups:
        program = programs.program(with_inverse=True)
        return _read(question, Run("joint", limits, outcome=_solved(question, program)), program)
    # Rows of size r have λ_D ~ r² and λ_D/τ ~ r^(2−|R|/d).
    power = 2.0 if by_c else 2.0 - len(noisy_coordinates(conditions)) / conditions.d
    least = power * (math.log(_small_rows(programs)) - excess)
    scale = math.exp(max(asked, least))
    bound = {"c": scale} if by_c else {"kappa": scale}
    program = programs.program(with_inverse=True, **bound)
    run = Run("joint", limits, outcome=_solved(question, program), scale=scale, remaining=min(0.0, asked - least))
    return _read(question, run, program)


def _shrunk(question: Question, run: Run, found: Multiples, rows: Indices) -> Run:
    """Make the answer for a small c or κ of that for a larger one: only rows R of D that λ_D sees become smaller.

    With the rows F that it does not see, D = [E + G D_R Gᵀ, G D_R; D_R Gᵀ, D_R].  D_R → sD_R multiplies λ_D by s²
    and det D by s^|R|, and D⁻¹ gains (1/s − 1)D_R⁻¹ ⪰ 0, so D ⪯ L⁻¹ stays.  Where D_R is so small that D ⪯ L⁻¹ no
    longer limits it, E and G do not change with c, and the multipliers of λ_D grow by 1/s².
    """
    assert run.limits is not None
    conditions, (log_c, log_kappa) = question.conditions, run.limits
    share = len(rows) / conditions.d
    excess = (0.5 * (log_c - found.log_lambda), (log_kappa + found.log_rate - found.log_lambda) / (2.0 - share))
    s = math.exp(max(min(0.0, *excess), -_LOG_SMALLEST))
    others = np.setdiff1d(np.arange(conditions.d), rows)
    D = found.W.copy()
    R, F, FR = np.ix_(rows, rows), np.ix_(others, others), np.ix_(others, rows)
    G = np.linalg.solve(D[R], D[FR].T).T
    D[F] -= (1.0 - s) * (G @ D[FR].T)
    D[R] *= s
    D[FR] *= s
    D[np.ix_(rows, others)] = D[FR].T
    smaller = Multiples.of(conditions, D)
    if smaller is None:
        return Run("shrunk", run.limits, found)
    assert run.multipliers is not None
    multipliers = Multipliers(tuple(U / s for U in run.multipliers.clients), run.multipliers.inverse)
    bounds = question.programs.bounds(multipliers, smaller.W, rows)
    note = "the scale separates for the coordinates that λ_D sees"
    return Run("shrunk", run.limits, smaller, bounds=tuple(bounds), notes=(note,))


def _of_one_client(programs: ClientPrograms, program: Program) -> tuple[Outcome, tuple[str, ...]] | None:
    """Solve (12′) with one client: D = 𝒞(L)⁻¹ # L₁⁻¹ with the multiplier I; None for other programs."""
    d, family = programs.conditions.d, program.families[0]
    single = len(program.families) == 1 and family.count == 1 and family.is_plain
    if not (single and program.pattern.is_full and programs.is_squared(program) and not programs.linear):
        return None
    # M = L₁⁻¹ = H⁻ᵀH⁻¹ is the largest M with HᵀMH ⪯ I.
    inverse = programs.inverses[0][0]
    if inverse.shape[1] < d:
        return None
    outcome = Outcome(Status.OPTIMAL, inverse @ inverse.T, (np.eye(d)[None],), _CLOSED_FORM)
    return outcome, ("closed form 𝒞(L)⁻¹ # L₁⁻¹ for one client",)


_FOR_DIRECTION = "closed form for a fixed direction"


def _along_direction(programs: ClientPrograms, program: Program, W: Matrix) -> tuple[Outcome, tuple[str, ...]] | None:
    """Find D = γW with γ = λ_W^{−½}: the multiplier is vvᵀ, v the top vector; None where λ_W vanishes."""
    top, duals = 0.0, [np.zeros((f.count, f.rows, f.rows)) for f in program.families]
    for i, family in enumerate(program.families):
        values, vectors = np.linalg.eigh(family.images(W))
        j = int(np.argmax(values[:, -1]))
        if values[j, -1] > top:
            top, v = float(values[j, -1]), vectors[j, :, -1]
            duals = [np.zeros_like(dual) for dual in duals]
            duals[i][j] = 0.5 * programs.conditions.d * np.outer(v, v)
    if top <= 0.0:
        return None
    return Outcome(Status.OPTIMAL, W / math.sqrt(top), tuple(duals), _CLOSED_FORM), (_FOR_DIRECTION,)


def _largest_multiple(question: Question, limits: Limits, W: Matrix) -> Run:
    """Find D = γW with D ⪯ L⁻¹ active: the multiplier is the top eigenvector of L^½WL^½."""
    program = question.programs.program(with_inverse=True)
    H = program.families[0].H[0]
    values, vectors = np.linalg.eigh(H.T @ W @ H)
    v = vectors[:, -1]
    outcome = Outcome(Status.OPTIMAL, W / float(values[-1]), (np.outer(v, v)[None],), _CLOSED_FORM)
    return _read(question, Run("joint", limits, outcome=outcome, notes=(_FOR_DIRECTION,)), program)


def _solved(question: Question, program: Program) -> Outcome:
    solver, _ = choose_solver(program, question.solver)
    return solver.solve(program, question.settings)


def _read(question: Question, run: Run, program: Program, direction: Multiples | None = None) -> Run:
    """Return the run of a program with the direction of its point and the bounds of its multipliers."""
    programs, outcome = question.programs, run.outcome
    assert outcome is not None
    if direction is None and outcome.X is not None:
        direction = Multiples.of(programs.conditions, programs.stepsize(outcome.X, program))
    if direction is None:
        return run
    begin = time.perf_counter()
    multipliers = programs.multipliers(outcome, program, run.scale)
    bounds = tuple(programs.bounds(multipliers, direction.W))
    own = {**outcome.stats.extra_stats, "certificate_time": time.perf_counter() - begin}
    outcome = replace(outcome, stats=replace(outcome.stats, extra_stats=own))
    return replace(run, direction=direction, outcome=outcome, bounds=bounds, multipliers=multipliers)
