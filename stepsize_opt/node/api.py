"""The public functions of the single-node problem: solve it, certify a given D, compare the choices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsize_opt.inputs import (
    Direction,
    EstimatedSmoothness,
    Structure,
    Symmetric,
    dense,
    pattern_of,
    pattern_with,
    read_matrix,
    solve_settings,
)
from stepsize_opt.limit import LimitBounds
from stepsize_opt.methods import Algorithm, get_method
from stepsize_opt.node.goals import Criterion, Goal, Guarantee
from stepsize_opt.node.large import large_stepsize, refuse_operator
from stepsize_opt.node.reductions import Component, descent_program, reduce_problem, separate
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.node.solve import SolverPath, assemble, processes, solve_all, solver_attempts, start_of
from stepsize_opt.operators import LowRankPlusDiagonal
from stepsize_opt.proofs import (
    Certificate,
    Descent,
    Evaluation,
    InBasis,
    Plain,
    certify_point,
    exp_down,
    repair,
    repair_in_basis,
)
from stepsize_opt.sketches import Sketch
from stepsize_solvers import SolverChoice
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Matrix


def optimal_stepsize(
    L: Any,
    sketch: Sketch,
    *,
    algorithm: Algorithm = "det-CGD1",
    structure: Structure = "full",
    guarantee: Guarantee = "condition",
    criterion: Criterion = "det",
    lower: Any = None,
    solver: SolverChoice = "auto",
    solver_path: SolverPath | None = None,
    tol: float = 1e-6,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    warm_start: StepsizeResult | None = None,
    n_jobs: int = 1,
    reduce: bool = True,
    **options: Any,
) -> StepsizeResult:
    """The globally optimal matrix stepsize of det-CGD1 or det-CGD2, with a proof.

    Solves, for det-CGD1 (x⁺ = x − D S ∇f(x)),

        maximise log det D   subject to   E[S D L D S] ⪯ D,  D ≻ 0            (paper, condition (3) and Proposition 1)

    and for det-CGD2 (x⁺ = x − T D ∇f(x)) the same under E[D T L T D] ⪯ D (condition (4)), whose full-matrix solution
    is D = (E[TLT])⁻¹.  The best D minimises the iterations that Theorem 1 guarantees, 2Δ⁰/(det(D)^{1/d} ε²).

    With ``guarantee="descent"`` no condition is asked for: every D with H = 2D − T(D) ≻ 0, T(D) the left-hand side of
    the condition, has E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_H, and the best D maximises a criterion of H (docs/theory.md).

    Parameters
    ----------
    L
        Smoothness matrix, d×d symmetric positive definite: array, nested list, pandas frame or scipy sparse matrix;
        or a ``LowRankPlusDiagonal``, for which ``result.D`` is an operator and nothing of size d×d is formed.
        From an ``EstimatedSmoothness`` the result is labelled ``certified=False``: its proofs are about the estimate.
    sketch
        The law of S (or T), for example ``RandK(d, k)``.
    algorithm
        ``"det-CGD1"``, ``"det-CGD2"``, or another name or method that ``get_method`` takes.
    structure
        ``"full"``, ``"diagonal"``, ``"scalar"``, ``BlockDiagonal(sizes)`` or ``Direction(W)``.
    guarantee
        ``"condition"``, the paper's, or ``"descent"``; then ``certificate.feasible`` means that H ≻ 0 is
        proved, and ``satisfies_condition`` tells whether T(D) ⪯ D is proved, too.
    criterion
        Of the matrix of the guarantee, D under the condition and H for ``"descent"``: ``"det"``, its log det, for the
        weighted mean of E‖∇f‖²; ``"euclidean"``, the largest t with D ⪰ tI or H ⪰ tI, for the plain mean of E‖∇f‖²;
        ``"linear"``, the largest t with D ⪰ tM⁻¹ or H ⪰ tM⁻¹, for E f(x^K) − f* ≤ (1 − t)^K Δ⁰.
        ``"convex"``, for convex f, replaces the condition by 𝒫(D) ⪯ L⁻¹ and maximises log det D: the mean of
        E f(xᵏ) − f* over K iterates is at most ‖x⁰ − x*‖²_{D⁻¹}/(2K).  It goes with x⁺ = x − D S ∇f(x), and with
        det-CGD2 where sketch and D commute.
    lower
        M of ``"linear"``, 0 ≺ M ⪯ ∇²f: a d×d matrix, or a number μ for μI.
    solver
        ``"auto"``, a name from ``available_solvers``, or a solver; never switched silently.
    solver_path
        As in cvxpy, an ordered list of names or (name, options) pairs; the first that reaches ``tol`` wins.
    tol
        The certified gap asked for.
    verbose
        Print the progress of the solver.
    time_limit
        Seconds for the whole call (reductions, building and compiling models, all solves), a finite positive
        number, or None for no limit.  The certificate of the answer comes on top, and so does the step that a solver
        is in.  Solvers reached through cvxpy run in a process of their own that is ended soon after the limit (1 s or a
        tenth of it later); to start it takes about 2 s of the limit.  Up to d = 10 they do without (but not sdpa).
    max_iters
        Iterations of each solve, a whole number of at least 1, or None for the solver's default.
        A limit never raises an error: the best answer so far is returned with the status ``user_limit`` and its
        certificate.  Where the solver handed over no point, D is the best multiple of a plain matrix (of W for a
        ``Direction``), and ``message`` says so.
    warm_start
        The StepsizeResult of a nearby problem of the same size; the native solver starts from it.
    n_jobs
        Processes for problems that fall into many components, as in joblib: −1 for one on each core, −2 for one
        less, and so on, but at least one.
    reduce
        Use the exact reductions (connected components, commuting sketches, closed forms) before any solver.
    options
        Handed to the solver under its own names; cvxpy solvers also take ``lift`` and ``objective``.

    Returns
    -------
    StepsizeResult with a feasible ``D``, its ``certificate``, ``rate``, ``status`` and ``solver_stats``.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described; the message names the argument and the remedy.
    SolverUnavailable
        For a solver that is not installed or has no licence.
    RuntimeError
        When no solver returned a positive definite matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> result = optimal_stepsize(np.diag([1.0, 4.0]), RandK(2, 1))
    >>> result.status, [round(x, 6) for x in np.diag(result.D).tolist()]
    ('optimal', [0.5, 0.125])
    """
    settings = solve_settings(tol=tol, verbose=verbose, time_limit=time_limit, max_iters=max_iters, options=options)
    method = get_method(algorithm)
    workers = processes(n_jobs)
    goal = Goal.read(guarantee, criterion, lower, getattr(sketch, "d", 0))
    if warm_start is not None and not isinstance(warm_start, StepsizeResult):
        msg = f"warm_start must be a StepsizeResult of an earlier call or None, got {type(warm_start).__name__}"
        raise TypeError(msg)
    attempts = solver_attempts(solver, solver_path, settings)
    matrix, estimated = (L.matrix, L.note) if isinstance(L, EstimatedSmoothness) else (L, "")
    smoothness = read_problem(matrix, sketch, dense_only=False)
    large = large_stepsize(smoothness, sketch, method, structure, goal, settings)
    if large is not None:
        return large
    pattern = pattern_of(structure, sketch.d)
    method.check([sketch], scalar=pattern.is_scalar, clients=False)
    seen = goal.method(method, pattern, sketch.map)
    with blas_threads(sketch.d):
        reduction = reduce_problem(smoothness, sketch.map, pattern, seen, goal=goal, split=reduce)
        starts = [start_of(component, warm_start) for component in reduction.components]
        pieces = solve_all(list(zip(reduction.components, starts, strict=True)), attempts, reduce, workers)
        result = assemble(reduction, pieces, sketch, method, structure, goal, settings.tol)
    if settings.verbose:
        print(f"proved {result.log_det / result.d:14.9f} {result.gap:9.2e}")
    return replace(result, estimated=estimated) if estimated else result


def optimal_stepsize_path(L: Any, sketches: Sequence[Sketch] | Sketch, **options: Any) -> list[StepsizeResult]:
    """The optimal stepsizes along a path of problems, each started from the one before.

    Parameters
    ----------
    L
        One smoothness matrix for all sketches, or a list of matrices of one size (several λ, say).
    sketches
        A list of sketches (k = 1 … d, say), or one for all matrices; two lists must have the same length.
    options
        As in ``optimal_stepsize``; limits are for each problem.

    Returns
    -------
    One result for each problem, in order; ``solver_stats.num_iters`` shows what the warm start saves.
    """
    several = isinstance(L, list | tuple) and len(L) > 0 and np.ndim(L[0]) == 2
    matrices = list(L) if several else [L]
    laws = [sketches] if isinstance(sketches, Sketch) else list(sketches)
    if not laws:
        msg = "sketches must name at least one sketch"
        raise ValueError(msg)
    length = max(len(matrices), len(laws))
    if len(matrices) not in (1, length) or len(laws) not in (1, length):
        msg = f"a path needs as many matrices as sketches, or one of either; got {len(matrices)} and {len(laws)}"
        raise ValueError(msg)
    results: list[StepsizeResult] = []
    for i in range(length):
        matrix, sketch = matrices[i % len(matrices)], laws[i % len(laws)]
        results.append(optimal_stepsize(matrix, sketch, warm_start=results[-1] if results else None, **options))
    return results


def read_problem(L: Any, sketch: Sketch, *, dense_only: bool = True) -> Symmetric:
    """L as a checked matrix of the sketch's size; raises TypeError or ValueError for what does not fit."""
    if not isinstance(sketch, Sketch):
        msg = f"sketch must be a Sketch such as RandK(d, k), got {type(sketch).__name__}; parse_sketch reads text"
        raise TypeError(msg)
    refuse_operator(L, dense_only)
    smoothness = L if isinstance(L, LowRankPlusDiagonal) else read_matrix("L", L)
    if smoothness.shape[0] != sketch.d:
        msg = f"sketch is for d={sketch.d} but L is {smoothness.shape[0]}×{smoothness.shape[0]}"
        raise ValueError(msg)
    return smoothness


@dataclass(frozen=True)
class StepsizeCheck:
    """What ``certify`` found out about a given D.

    Attributes
    ----------
    certificate
        Of D as given, for the condition T(D) ⪯ D; its gap is infinite when D is infeasible.
    descent
        The same for the descent metric H = 2D − T(D): ``feasible`` means H ≻ 0, ``log_det`` is that of H, and
        ``upper_bound`` that of the best H.
    largest_scale
        The largest t for which tD is feasible (rounded down until proved).
    gap_when_scaled
        The certified gap of that tD, so how many iterations D's direction costs.
    """

    certificate: Certificate
    descent: Certificate
    largest_scale: float
    gap_when_scaled: float

    @property
    def feasible(self) -> bool:
        """Whether T(D) ⪯ D is proved."""
        return self.certificate.feasible

    @property
    def margin(self) -> float:
        """1 − λmax(D^{−½} T(D) D^{−½}), negative for an infeasible D."""
        return self.certificate.margin

    @property
    def gap(self) -> float:
        """How far D is from optimal; infinite when D is infeasible."""
        return self.certificate.gap

    @property
    def rate(self) -> float:
        """det(D)^{1/d} from below if D is proved feasible, otherwise 0: the condition guarantees nothing then."""
        return exp_down(self.certificate.log_det / self.certificate.d) if self.feasible else 0.0

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d} from below if H ≻ 0 is proved, otherwise 0."""
        return exp_down(self.descent.log_det / self.descent.d)

    def __repr__(self) -> str:
        c = self.certificate
        return (
            f"StepsizeCheck(feasible={c.feasible}, margin={c.margin:.3e}, gap={c.gap:.3e}, rate={self.rate:.9g}, "
            f"descent_rate={self.descent_rate:.9g}, descent_gap={self.descent.gap:.3e}, "
            f"largest_scale={self.largest_scale:.9g}, gap_when_scaled={self.gap_when_scaled:.3e})"
        )


def certify(
    D: Any,
    L: Any,
    sketch: Sketch,
    *,
    algorithm: Algorithm = "det-CGD1",
    structure: Structure = "full",
    dual: Any = None,
    **options: Any,
) -> StepsizeCheck:
    """Check a stepsize matrix of your own under both guarantees: is it feasible, and how far from optimal?

    Parameters
    ----------
    D
        The stepsize matrix, d×d symmetric.
    L, sketch, algorithm
        The problem, as in ``optimal_stepsize``.
    structure
        The set in which D is compared with the best, as in ``optimal_stepsize``; D must lie in it.
    dual
        A multiplier Z ⪰ 0 of the condition (for example ``result.dual``), d×d.  Any matrix gives a valid bound, a
        good one a tight bound.  None solves the problem to get one; ``options`` then go to ``optimal_stepsize``.
        The descent metric is compared with its optimum, too, which the solver ``auto`` finds under the same limits;
        with a dual given, its bound comes from H⁻¹ of this D alone.

    Returns
    -------
    StepsizeCheck.  ``feasible`` is True only when it is proved in exact arithmetic for the floats given.

    Raises
    ------
    ValueError, TypeError
        As ``optimal_stepsize``, and for a D that does not have the structure.
    """
    method = get_method(algorithm)
    smoothness = read_problem(L, sketch)
    stepsize = dense(read_matrix("D", D))
    if len(stepsize) != sketch.d:
        msg = f"D is {len(stepsize)}×{len(stepsize)} but L is {sketch.d}×{sketch.d}"
        raise ValueError(msg)
    Z: Matrix | None = None
    if dual is not None:
        Z = dense(read_matrix("dual", dual))
        if len(Z) != sketch.d:
            msg = f"dual is {len(Z)}×{len(Z)} but L is {sketch.d}×{sketch.d}"
            raise ValueError(msg)
    pattern = pattern_with(structure, stepsize)
    method.check([sketch], scalar=pattern_of(structure, sketch.d).is_scalar, clients=False)
    with blas_threads(sketch.d):
        reduction = separate(dense(smoothness), sketch.map, pattern, method, stepsize)
        found = [_check_piece(piece, stepsize, Z) for piece in reduction.components]
    certificate = Certificate.combine([piece.certificate for piece in found])
    descent = Certificate.combine([piece.descent for piece in found])
    if sketch.is_exactly_unbiased:
        limit = LimitBounds.combine(reduction.limits).log_bound(sketch.expected_rank)
        certificate, descent = certificate.bounded(limit), descent.bounded(limit)
    scale = min(piece.largest_scale for piece in found)
    if Z is None:
        # The best multiple of D's own blocks bounds D, whose entries may be rounded ones of γW.
        own = structure if pattern.W is None or not scale > 0.0 else Direction(stepsize, pattern.sizes)
        solved = optimal_stepsize(smoothness, sketch, algorithm=method, structure=own, **options)
        upper = min(solved.certificate.upper_bound, certificate.upper_bound)
        certificate = replace(certificate, upper_bound=upper)
        limits = {name: options[name] for name in _LIMITS if name in options}
        best = optimal_stepsize(
            smoothness, sketch, algorithm=method, structure=own, guarantee="descent", **limits
        ).certificate.upper_bound
        descent = replace(descent, upper_bound=min(best, descent.upper_bound))
    if scale == 0.0:
        return StepsizeCheck(certificate, descent, 0.0, math.inf)
    if not math.isfinite(scale):
        msg = "D is so small that the largest feasible multiple of it is beyond what float64 holds; scale D up"
        raise ValueError(msg)
    # log det(tD) = log det D + d log t
    gap = max(0.0, certificate.upper_bound - certificate.log_det - sketch.d * math.log(scale)) / sketch.d
    return StepsizeCheck(certificate, descent, scale, gap)


# Multiples of the scaled stepsize further from one than this are judged by a multiple that is nearer.
_NEAR_ONE = 300
# What the solve of the descent metric takes over from the options of certify.
_LIMITS = ("tol", "time_limit", "max_iters", "verbose")


def _check_piece(piece: Component, stepsize: Matrix, Z: Matrix | None) -> StepsizeCheck:
    """The check of the part D of a given stepsize that belongs to a piece, with the largest t with tD feasible.

    With X near one and D = 2ⁿX in scaled coordinates, the feasible multiples of X form an interval that starts at 0:
    a D that is far from one is feasible if 2ᵐX is for an m > n, and infeasible if 2ᵐX is for an m < n.
    """
    part, program = np.ix_(piece.indices, piece.indices), piece.program
    nothing = Certificate(False, -math.inf, -math.inf, math.inf, program.d)
    dual = None if Z is None else piece.dual_near_one(Z[part])
    X, n = piece.near_one(stepsize[part])
    inside = None if X is None else repair_in_basis(program, X) or repair(program, X)
    if X is None or inside is None:
        return StepsizeCheck(nothing, nothing, 0.0, math.inf)
    t = float(np.trace(inside.D) / np.trace(X))
    edge = math.floor(math.log2(t))
    m = n if abs(n) <= _NEAR_ONE else min(max(n, edge - 1), edge + 2)
    D = np.ldexp(X, m)
    # The finest proof first; where rows are graded, plain arithmetic may prove more, see repair.
    proofs = (InBasis(program, D), Evaluation(program, D), Evaluation(program, D, Plain))
    found = certify_point(next((at for at in proofs if at.feasible), proofs[1]), dual, (inside.D,))
    certificate = found.multiplied(n - m).rescaled(piece.scale)
    descent = nothing
    if m == n:
        metric = Descent(descent_program(program), D)
        bounds = metric.bounds(None)
        descent = Certificate(metric.feasible, 1.0 + metric.at.margin, bounds.lower, bounds.upper, program.d)
        descent = descent.rescaled(piece.scale)
    if not descent.feasible and certificate.feasible:
        descent = replace(certificate, upper_bound=math.inf)  # T(D) ⪯ D makes H ⪰ D
    # A scale beyond the range of float64 is rounded towards zero, and so stays feasible.
    with np.errstate(over="ignore"):
        largest = float(np.nextafter(np.ldexp(t, -n), 0.0)) if abs(n) > _NEAR_ONE else math.ldexp(t, -n)
    return StepsizeCheck(certificate, descent, largest, math.inf)
