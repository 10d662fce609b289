"""The public functions of the single-node problem: its solution, and its program for cvxpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.goals import Goal, GoalName
from stepsize_opt.inputs.checks import solve_settings
from stepsize_opt.inputs.structures import Direction, Structure
from stepsize_opt.large.solve import LargeQuestion, large_problem, needs_dense, read_direction, solve_large
from stepsize_opt.methods import Algorithm
from stepsize_opt.node.pieces import check_start, chosen_solver, processes, solve_all, start_of
from stepsize_opt.node.question import Question
from stepsize_opt.node.reductions import reduce_problem
from stepsize_opt.node.result import StepsizeResult, assemble, result_of
from stepsize_opt.sketches.base import Sketch
from stepsize_opt.smoothness import proved_smoothness
from stepsize_solvers import SolverChoice
from stepsize_solvers.conic.model import choose_lift, conic_model
from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import Program, Settings, is_identity


def optimal_stepsize(
    L: Any,
    sketch: Sketch | str,
    *,
    algorithm: Algorithm = "det-CGD1",
    structure: Structure = "full",
    goal: GoalName | Goal = "paper",
    strong_convexity: Any = None,
    momentum: bool = False,
    solver: SolverChoice = "auto",
    tol: float = 1e-6,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    warm_start: StepsizeResult | None = None,
    n_jobs: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> StepsizeResult:
    """Find the globally optimal matrix stepsize of det-CGD1 or det-CGD2, with a proof.

    Solves, for det-CGD1 (x⁺ = x − D S ∇f(x)),

        maximise log det D   subject to   E[S D L D S] ⪯ D

    (condition (3) of the paper), and for det-CGD2 (x⁺ = x − T D ∇f(x)) the same under E[D T L T D] ⪯ D (condition
    (4)), whose full-matrix solution is D = (E[TLT])⁻¹.  The best D minimises the iterations that Theorem 1
    guarantees, 2Δ⁰/(det(D)^{1/d} ε²).

    Other goals need no condition: every D with H = 2D − T(D) ≻ 0, T(D) the left-hand side of the condition, has
    E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_H, and the best D maximises det H or a t with H ⪰ tM⁻¹ (docs/theory.md).

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d), LowRankPlusDiagonal or EstimatedSmoothness
        Smoothness matrix, symmetric positive definite: array, nested list, pandas frame or scipy sparse matrix.  For a
        ``LowRankPlusDiagonal`` ``result.D`` is an operator and nothing of size d×d is formed.
        From an ``EstimatedSmoothness`` the result is labelled ``certified=False``: its proofs are about the estimate.
    sketch
        The distribution of S (or T), for example ``RandK(d, k)``, or its text ``"randk:8"``.
    algorithm : str or Method
        ``"det-CGD1"``, ``"det-CGD2"``, or another name or method that ``get_method`` takes.
    structure : str, BlockDiagonal or Direction
        ``"full"``, ``"diagonal"``, ``"scalar"``, ``BlockDiagonal(sizes)`` or ``Direction(W)``.
    goal : str or Goal
        ``"paper"``, the problem above: bounds the mean of E‖∇f‖² in the norm of D, scaled to determinant one.
        ``"descent"``, the largest det H: bounds that mean in the norm of H and never needs more rounds than
        ``"paper"``.  ``"euclidean"``, the largest t with H ⪰ tI: bounds the mean of E‖∇f‖² in the Euclidean norm.
        ``"linear"``, the largest t with H ⪰ tM⁻¹, for strongly convex f: E f(x^K) − f* ≤ (1 − t)^K Δ⁰.
        ``"convex"``, for convex f, needs ``momentum=True``.  Or a ``Goal`` of your own.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M of ``"linear"``, 0 ≺ M ⪯ ∇²f: a d×d matrix, or a number μ for μI.
    momentum
        For a method that keeps two vectors (docs/momentum.md): the largest t with H ⪰ t²𝒫(M⁻¹).  ``"linear"`` has
        E f(x^K) − f* ≤ 2(1 − t)^K Δ⁰ then, ``"convex"`` (M = I) E f(x^K) − f* ≤ 2‖x⁰ − x*‖²/(t²K(K + 3)) in the
        Euclidean norm.  ``result.compressor()`` has its rounds.
    solver : str or Solver
        ``"auto"``, a name from ``available_solvers``, or a solver; never switched silently.
    tol
        The certified gap asked for.
    verbose
        Print the progress of the solver.
    time_limit
        Seconds for the whole call (reductions, models and all solves), or None for no limit.  The step that a solver is
        in and the certificate come on top.  Solvers reached through cvxpy run in a process of their own, which is ended
        soon after the limit and whose start counts.
    max_iters
        Iterations of each solve, at least 1, or None for the solver's default.  A limit never raises an error: the best
        answer so far is returned with its certificate and the status ``user_limit``.  Without a point from the solver,
        D is the best multiple of a plain matrix, as ``message`` explains.  Ctrl-C during a solve does the same, with
        the status ``interrupted``, and raises no KeyboardInterrupt.
    warm_start
        The StepsizeResult of a nearby problem of the same size; the native solver starts from it.
    n_jobs
        Processes for problems that fall into many components, as in joblib: −1 for one on each core, −2 for one
        less, and so on, but at least one.  None, the default, is one unless ``joblib.parallel_config`` sets another:
        ``with parallel_config(backend="dask"):`` solves the components on a Dask cluster.
    options
        The solver's own options, by its own names; cvxpy solvers also take ``"lift"`` and ``"objective"``.

    Returns
    -------
    StepsizeResult with a feasible ``D``, its ``certificate``, ``rate``, ``status`` and ``solver_stats``.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described; the message names the argument and the fix.
    SolverUnavailable
        For a solver that is not installed or has no licence.
    RuntimeError
        When no solver returned a positive definite matrix.

    See Also
    --------
    certify : check a stepsize of your own.
    compare : the optima beside the directions of the paper.
    compression_limit : the best rate over all sketches and stepsizes.
    optimal_distributed_stepsize : the same for clients.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> result = optimal_stepsize(np.diag([1.0, 4.0]), RandK(2, 1))
    >>> result.status, [round(x, 6) for x in np.diag(result.D).tolist()]
    ('optimal', [0.5, 0.125])
    """
    settings = solve_settings(tol=tol, verbose=verbose, time_limit=time_limit, max_iters=max_iters, options=options)
    choice, workers = chosen_solver(solver, settings), processes(n_jobs)
    question = Question.read(L, sketch, algorithm, structure, goal, strong_convexity, momentum)
    check_start(warm_start, question)
    if not question.L.is_formed:
        return _large_stepsize(question, settings)
    with blas_threads(question.d):
        reduction = reduce_problem(question)
        tasks = [(component, start_of(component, warm_start)) for component in reduction.components]
        solved = solve_all(tasks, (choice, settings), workers)
        return assemble(question, reduction, solved, settings)


def _large_stepsize(question: Question, settings: Settings) -> StepsizeResult:
    """Return the answer for an L that is not to be made dense.

    T(D) = D𝒫(L)D has D ⪯ 𝒫(L)⁻¹ for its condition, and H ⪯ 𝒫(L)⁻¹ for every D; the goal tells which D of that set is
    best.  Raises NeedsDense for what has no answer without a dense matrix.
    """
    sketch, structure, goal, method = question.sketch, question.structure, question.goal, question.method
    method.check([sketch])
    if not isinstance(goal.M, float | None):
        msg = "strong_convexity that is a matrix"
        raise needs_dense(msg)
    problem = large_problem(question.L.factored(), sketch.map)
    w = read_direction(structure.W, sketch.d) if isinstance(structure, Direction) else None
    split = sketch.map.diagonal_plus_scaled
    commutes = split is not None and (structure == "diagonal" or w is not None or split.is_multiple)
    condition = method.condition(sketch.map, commutes=commutes or structure == "scalar")
    best = goal.under_inverse(structure)
    if best is None or not is_identity(condition.outer):
        msg = f"structure={str(structure)!r} with {method.name}, {sketch} and goal={goal.name!r}"
        raise needs_dense(msg)
    log_limit = question.log_limit(())  # before the solve: it refuses an M that is not below L
    answer = solve_large(LargeQuestion(problem, str(best) if w is None else "direction", w), settings)
    answer = answer.scaled(-problem.power)
    return result_of(
        question,
        settings,
        certificate=goal.combine([goal.of_inverse(answer.certificate)]),
        log_limit=log_limit,
        status=answer.status,
        remarks=[problem.remark],
        descent_log_det=answer.descent_log_det,
        stepsize=answer.D,
        multiplier=None,
        solver_stats=answer.stats,
        reductions=tuple(words for words in (condition.words, problem.words) if words),
        satisfies_condition=True,
    )


@dataclass(frozen=True, eq=False)
class CvxpyForm:
    """A cvxpy problem and the stepsize in it.

    Attributes
    ----------
    problem : cvxpy.Problem
        Maximises what the goal maximises: log det D, log det H, or t.
    D : cvxpy.Expression
        The d×d stepsize matrix, with the structure asked for.

    Examples
    --------
    See ``to_cvxpy``.
    """

    problem: Any
    D: Any


def to_cvxpy(
    L: Any,
    sketch: Sketch | str,
    *,
    algorithm: Algorithm = "det-CGD1",
    structure: Structure = "full",
    goal: GoalName | Goal = "paper",
    strong_convexity: Any = None,
    lift: str = "compact",
) -> CvxpyForm:
    """Return the program that ``optimal_stepsize`` solves, as a cvxpy problem in D itself, unscaled and in one piece.

    What cvxpy returns is neither repaired nor proved: hand ``form.D.value`` to ``certify``, whose ``largest_scale``
    is how much to shrink a D that rounding has put outside.

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d)
        Smoothness matrix, symmetric positive definite.
    sketch
        The distribution of S (or T).
    algorithm : str or Method
        ``"det-CGD1"``, ``"det-CGD2"``, or another method, as in ``optimal_stepsize``.
    structure : str, BlockDiagonal or Direction
        ``"full"``, ``"diagonal"``, ``"scalar"``, ``BlockDiagonal(sizes)`` or ``Direction(W)``.
    goal : str or Goal
        What is maximised, as in ``optimal_stepsize``.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M of ``"linear"``: a d×d matrix, or a number μ for μI.
    lift
        ``"compact"``, or ``"quadratic"`` for rand-k and independent sampling: smaller, and less robust for a D that is
        diagonal or a multiple of a direction.

    Raises
    ------
    ValueError, TypeError
        As ``optimal_stepsize``, and for a lift that does not apply.

    See Also
    --------
    optimal_stepsize : solve the program, with a proof.
    certify : prove what a solver returned.

    Examples
    --------
    The best D whose first coordinate moves by at most a tenth of its gradient:

    >>> import cvxpy as cp
    >>> import numpy as np
    >>> from stepsize_opt import RandK, to_cvxpy
    >>> form = to_cvxpy(np.array([[2.0, 1.0], [1.0, 3.0]]), RandK(2, 1))
    >>> small = cp.Problem(form.problem.objective, [*form.problem.constraints, form.D[0, 0] <= 0.1])
    >>> _ = small.solve(solver="CLARABEL")
    >>> [round(float(x), 4) for x in np.diagonal(form.D.value)]
    [0.1, 0.1718]
    """
    question = Question.read(L, sketch, algorithm, structure, goal, strong_convexity)
    smoothness = proved_smoothness(question.L).formed()
    smoothness.log_det()
    B = smoothness.todense()
    question.goal.check(B, np.arange(question.d))
    condition = question.method.condition(question.sketch.map)
    program = question.goal.program(Program.single(condition.inner.apply(B), condition.outer, question.pattern()))
    model = conic_model(program, choose_lift(program, lift))
    return CvxpyForm(model.problem, model.X)
