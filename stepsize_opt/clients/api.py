"""The optimal stepsize and the smallest number of iterations for n clients: the public function.

Distributed det-CGD1, x⁺ = x − (D/n) Σ Sᵢ∇fᵢ(x), and det-CGD2, x⁺ = x − (1/n) Σ Tᵢ D∇fᵢ(x), reach E‖∇f‖² ≤ ε² (in the
norm of D/det(D)^{1/d}) within K steps under the conditions of Corollary 1 of the paper, called (12) and (12′):

    D L D ⪯ D,     λ_D ≤ min{ n/K, nε² det(D)^{1/d}/(4Δ^inf) },     K ≥ 12Δ⁰/(det(D)^{1/d} ε²).

The derivations are in ``docs/distributed.md``; each module ``distributed_*`` states what it uses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from stepsize_opt.clients.conditions import (
    CentredMap,
    ClientGroup,
    Conditions,
    dominating_factor,
    exp_up,
    exponent_above,
)
from stepsize_opt.clients.fit import Direction, Fitted, binding_conditions, check_range, fit_K, fit_some_K, fit_whole
from stepsize_opt.clients.programs import Translation, without_redundant_clients
from stepsize_opt.clients.result import DistributedCertificate, DistributedResult, TightResult
from stepsize_opt.clients.search import Search
from stepsize_opt.clients.targets import Targets, log_fraction
from stepsize_opt.clients.theorem3 import tighten
from stepsize_opt.inputs import (
    SMOOTHNESS_REMEDY,
    Structure,
    check_positive_definite,
    dense,
    pattern_of,
    read_matrix,
    solve_settings,
    whole_number,
)
from stepsize_opt.node import ALGORITHMS
from stepsize_opt.proofs import UNIT, Enclosed, Pair
from stepsize_opt.sketches import Sketch
from stepsize_solvers import get_solver
from stepsize_solvers.programs import Matrix, Pattern, SolverStats, Status, Vector, connected_labels

# A diagonal entry of L in scaled coordinates: its fourth power is still a float.
_LEAST_ENTRY = 2.0**-250

__all__ = ["DistributedCertificate", "DistributedResult", "TightResult", "optimal_distributed_stepsize"]


def optimal_distributed_stepsize(
    smoothness: Sequence[Any],
    sketch: Sketch | Sequence[Sketch],
    *,
    epsilon2: float,
    initial_gap: float,
    delta_inf: float,
    iterations: int | None = None,
    mean_smoothness: Any = None,
    algorithm: str = "det-CGD1",
    structure: Structure = "full",
    solver: str = "auto",
    tol: float = 1e-6,
    tight: bool = False,
    verbose: bool = False,
    time_limit: float | None = None,
    max_iters: int | None = None,
    **options: Any,
) -> DistributedResult:
    """The globally optimal D and the smallest K under the distributed conditions (12) or (12′), with a proof.

    Without ``iterations`` the smallest K comes from the one convex program without K,

        maximise log det D   subject to   D ⪯ L⁻¹,   λ_D ≤ nε² min{1/(12Δ⁰), 1/(4Δ^inf)} det(D)^{1/d},

    because K ≥ 12Δ⁰/(det(D)^{1/d}ε²) is tight at the optimum.  K is then rounded up to a whole number and D rescaled,
    so that all of (12) holds exactly for the K returned.  With ``iterations=K`` the D of largest determinant is found
    for that K; a K for which (12) has no solution gets the status ``infeasible`` and the smallest K that has one.

    Parameters
    ----------
    smoothness : the clients' matrices L₁, …, L_n, each d×d symmetric positive semidefinite.
    sketch : the law of every Sᵢ (or Tᵢ), or one sketch for each client.
    epsilon2, initial_gap, delta_inf : ε² > 0, Δ⁰ = f(x⁰) − f^inf ≥ 0 and Δ^inf = f^inf − (1/n)Σfᵢ^inf ≥ 0.
    iterations : K, a whole number; None finds the smallest.
    mean_smoothness : L of f = (1/n)Σfᵢ, positive definite; None takes (1/n)ΣLᵢ.
    algorithm : ``"det-CGD1"`` for (12), ``"det-CGD2"`` for (12′).
    structure : ``"full"``, ``"diagonal"``, ``"scalar"``, ``BlockDiagonal(sizes)`` or ``Direction(W)``.
    solver : ``"auto"`` (the project's own), or a name from :func:`available_solvers`.
    tol : the certified relative excess of K over the best possible that is asked for.
    tight : also minimise K under the bound of Theorem 3 itself, over the multiples of the D found.
    verbose, time_limit, max_iters, options : as in :func:`optimal_stepsize`; ``time_limit`` is for the whole call,
        ``max_iters`` for each of the programs that it solves.

    Returns
    -------
    DistributedResult with ``D``, ``K``, ``lambda_D``, ``rate``, ``binding``, ``gap``, ``status`` and ``certificate``.

    Raises
    ------
    ValueError, TypeError : for input that is not as described; the message names the argument.
    SolverUnavailable : for a solver that is not installed or has no licence.
    RuntimeError : when no solver returned a usable matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK
    >>> from stepsize_opt.distributed import optimal_distributed_stepsize
    >>> clients = [np.diag([1.0, 2.0]), np.diag([3.0, 1.0])]
    >>> result = optimal_distributed_stepsize(clients, RandK(2, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.5)
    >>> result.status, result.K
    ('optimal', 306)
    """
    settings = solve_settings(tol=tol, verbose=verbose, time_limit=time_limit, max_iters=max_iters, options=options)
    if algorithm not in ALGORITHMS:
        msg = f"algorithm must be one of {', '.join(map(repr, ALGORITHMS))}, got {algorithm!r}"
        raise ValueError(msg)
    requested = None if iterations is None else whole_number("iterations", iterations)
    if requested is not None:
        check_range("iterations", log_fraction(Fraction(requested)))
    matrices, sketches, mean = _read_clients(smoothness, sketch, mean_smoothness)
    targets = Targets(epsilon2, initial_gap, delta_inf, len(matrices))
    pattern = pattern_of(structure, len(matrices[0]))
    if solver not in ("auto", "native"):
        get_solver(solver)  # raises for an unknown or absent solver before any work
    # det(D)^{1/d} enters K once directly and once through λ_D, so the program must be twice as exact as K.
    settings = replace(settings, tol=settings.tol / 4.0)
    conditions, linear, notes = _reduce(matrices, sketches, mean, pattern, algorithm)
    search = Search(conditions, Translation.of(conditions, linear), solver, settings)
    K = requested if requested is not None else (1 if targets.initial_gap == 0.0 else None)
    answer = _answer(search, targets, K, requested, tol)
    nonzeros = tuple(answer[1] * s.expected_nonzeros for s in sketches)
    result = _result(search, targets, answer, notes, nonzeros, tol)
    result = replace(
        result,
        algorithm=algorithm,
        sketch=", ".join(dict.fromkeys(map(str, sketches))),
        structure=str(structure),
        iterations_requested=requested,
    )
    if tight:
        homogeneous = search.homogeneous[1] if search.homogeneous is not None else None
        bound = None if homogeneous is None else homogeneous.at_variance(0.0)
        result = replace(result, tight=tighten(conditions, targets, answer[0], result.K, bound))
    return result


Answer = tuple[Fitted, int, DistributedCertificate, Status, str]


def _answer(search: Search, targets: Targets, K: int | None, requested: int | None, tol: float) -> Answer:
    """(D, K, certificate, status, message) for a given K, or for the smallest one when K is None."""
    if K is not None:
        fitted, certificate = _given(search, targets, K)
        if certificate.feasible:
            return fitted, K, certificate, _status(search, certificate, tol), ""
        if requested is None:
            msg = "the conditions could not be proved for K = 1"
            raise RuntimeError(msg)
    fitted, smallest, certificate = _smallest(search, targets)
    if requested is None:
        return fitted, smallest, certificate, _status(search, certificate, tol), ""
    if requested < certificate.smallest_K:
        message = f"K = {requested} is proved too small; the smallest K that works is {smallest}"
        return fitted, smallest, certificate, Status.INFEASIBLE, message
    message = f"K = {requested} could not be decided: {smallest} works, below {certificate.smallest_K} nothing does"
    return fitted, smallest, certificate, _unproved(search), message


def _given(search: Search, targets: Targets, K: int) -> tuple[Fitted, DistributedCertificate]:
    log_c, log_factor = targets.log_share(K), targets.log_det_factor
    direction = _needed(search.best_direction(log_c, log_factor), search)
    fitted = fit_K(search.conditions, targets, direction, K)
    if fitted is None:
        fitted = fit_K(search.conditions, targets, _plain(search), K)
    if fitted is None:
        raise _not_repaired(search)
    upper = search.upper_bound(_rounded_up(log_c), _rounded_up(log_factor))
    # For a given K the certificate says how much larger det(D)^{1/d} could be; it does not look for smaller K.
    return fitted, DistributedCertificate(targets.enough(K, fitted.tau), fitted.log_tau, upper, 1)


def _smallest(search: Search, targets: Targets) -> tuple[Fitted, int, DistributedCertificate]:
    direction = _needed(search.best_direction(math.inf, targets.log_kappa), search)
    for candidate in (direction, None):
        W = candidate or _plain(search)
        free = fit_some_K(search.conditions, targets, W)
        whole = None if free is None else fit_whole(search.conditions, targets, W, free)
        if whole is not None:
            break
    if free is None or whole is None:
        raise _not_repaired(search)
    upper = search.upper_bound(math.inf, _rounded_up(targets.log_kappa))
    best = targets.least_iterations(exp_up(upper)) if math.isfinite(upper) else 1
    K, fitted = whole
    return fitted, K, DistributedCertificate(True, free.log_tau, upper, best)


def _rounded_up(log_value: float) -> float:
    """At least the exact logarithm that the argument is a rounding of: :func:`log_fraction` adds two logarithms."""
    return log_value + 8.0 * UNIT * (1.0 + abs(log_value))


def _needed(direction: Direction | None, search: Search) -> Direction:
    if direction is None:
        msg = f"no solver returned a stepsize for d = {search.conditions.d}: {'; '.join(search.notes) or 'no point'}"
        raise RuntimeError(msg)
    return direction


def _plain(search: Search) -> Direction:
    """A direction that needs no solver, for when its answer is of no use: W, or the diagonal of L inverted."""
    search.notes.append(f"the answer of {_names(search)} was of no use, a plain direction took its place")
    pattern = search.conditions.pattern
    W = np.diag(1.0 / np.diagonal(search.conditions.L.value)) if pattern.W is None else pattern.W
    return _needed(Direction.of(search.conditions, W), search)


def _not_repaired(search: Search) -> RuntimeError:
    return RuntimeError(f"the answer of {_names(search)} could not be repaired to a feasible stepsize")


def _names(search: Search) -> str:
    return " + ".join(dict.fromkeys(run.solver_name for run in search.runs)) or "no solver"


def _status(search: Search, certificate: DistributedCertificate, tol: float) -> Status:
    return Status.OPTIMAL if certificate.gap <= tol else _unproved(search)


def _unproved(search: Search) -> Status:
    """Why there is no proof of optimality: a limit, an interruption, or accuracy."""
    stopped = [s for s in search.statuses if s in (Status.USER_LIMIT, Status.INTERRUPTED)]
    return stopped[0] if stopped else Status.INACCURATE


def _result(
    search: Search, targets: Targets, answer: Answer, notes: list[str], nonzeros: tuple[float, ...], tol: float
) -> DistributedResult:
    fitted, K, certificate, status, message = answer
    if not message and status is not Status.OPTIMAL:
        message = "; ".join([status.meaning, status.remedy, *dict.fromkeys(search.failures)])
    D = search.conditions.lift(fitted.D)
    D.setflags(write=False)
    runs = search.runs
    stats = SolverStats(
        solver_name=_names(search),
        solve_time=math.fsum(run.solve_time or 0.0 for run in runs),
        setup_time=math.fsum(run.setup_time or 0.0 for run in runs),
        num_iters=sum(run.num_iters or 0 for run in runs),
        extra_stats={"runs": [run.extra_stats for run in runs]},
    )
    return DistributedResult(
        status=status.value,
        D=D,
        K=K,
        lambda_D=fitted.variance,
        rate=fitted.tau,
        binding=binding_conditions(search.conditions, targets, fitted, K),
        certificate=certificate,
        targets=targets,
        numbers_per_client=nonzeros,
        solver_stats=stats,
        reductions=tuple([*notes, *search.notes]),
        algorithm="",
        sketch="",
        structure="",
        tol=tol,
        message=message,
    )


def _read_clients(
    smoothness: Sequence[Any], sketch: Sketch | Sequence[Sketch], mean: Any
) -> tuple[list[Matrix], list[Sketch], Matrix | None]:
    """The clients' matrices, one sketch for each, and L if it is not their mean."""
    if isinstance(smoothness, np.ndarray) and smoothness.ndim == 2:
        msg = "smoothness must be the list of the clients' matrices; for one client pass [L]"
        raise ValueError(msg)
    matrices = [_dense(f"smoothness[{i}]", value) for i, value in enumerate(smoothness)]
    if not matrices:
        msg = "smoothness must hold at least one matrix"
        raise ValueError(msg)
    d = len(matrices[0])
    sketches = [sketch] * len(matrices) if isinstance(sketch, Sketch) else list(sketch)
    if len(sketches) != len(matrices):
        msg = f"sketch must be one sketch or one for each of the {len(matrices)} clients, got {len(sketches)}"
        raise ValueError(msg)
    for i, (L, s) in enumerate(zip(matrices, sketches, strict=True)):
        if not isinstance(s, Sketch):
            msg = f"sketch must hold Sketch objects such as RandK(d, k), got {type(s).__name__}"
            raise TypeError(msg)
        if len(L) != d:
            msg = f"smoothness[{i}] is {len(L)}×{len(L)} but smoothness[0] is {d}×{d}"
            raise ValueError(msg)
        if s.d != d:
            msg = f"sketch is for d={s.d} but the clients' matrices are {d}×{d}"
            raise ValueError(msg)
        if dominating_factor(L) is None:
            low = float(np.linalg.eigvalsh(L)[0])
            msg = f"smoothness[{i}] must be positive semidefinite, but its smallest eigenvalue is {low:.3g}"
            raise ValueError(msg)
    if mean is not None:
        mean = _dense("mean_smoothness", mean)
        if len(mean) != d:
            msg = f"mean_smoothness is {len(mean)}×{len(mean)} but the clients' matrices are {d}×{d}"
            raise ValueError(msg)
        check_positive_definite("mean_smoothness", mean, SMOOTHNESS_REMEDY)
    return matrices, sketches, mean


def _dense(name: str, value: Any) -> Matrix:
    return dense(read_matrix(name, value))


def _reduce(
    matrices: list[Matrix], sketches: list[Sketch], mean: Matrix | None, pattern: Pattern, algorithm: str
) -> tuple[Conditions, bool, list[str]]:
    """The conditions in scaled coordinates without redundant clients, whether they are linear in A, and notes."""
    notes: list[str] = []
    scale = _common_scaling(_diagonal(matrices, mean), sketches)
    if np.any(scale != 1.0):
        notes.append("diagonal scaling")
    scaled = [scale[:, None] * M * scale for M in matrices]
    L = _enclosed_mean(scaled) if mean is None else Enclosed(scale[:, None] * mean * scale, np.zeros_like(mean))
    _check_scaled(L.value, scaled)
    if mean is None:
        check_positive_definite("the mean of the clients' matrices", L.value, SMOOTHNESS_REMEDY)
    # Where the scaling took an entry below the normal floats it lost bits, all of them below 2⁻¹⁰⁰⁰.
    L = Enclosed(L.value, L.error + 2.0**-1000)
    by_sketch: dict[Sketch, list[Matrix]] = {}
    for M, s in zip(scaled, sketches, strict=True):
        if np.any(M) and not s.untouched.all():  # no variance otherwise
            by_sketch.setdefault(s, []).append(M)
    exponent = max((exponent_above(M) for members in by_sketch.values() for M in members), default=0)
    groups = [ClientGroup(CentredMap.of(s), np.ldexp(np.array(members), -exponent)) for s, members in by_sketch.items()]
    if pattern.W is not None:
        W = np.ldexp(pattern.W, -exponent_above(pattern.W)) / scale[:, None] / scale
        pattern = Pattern(pattern.sizes, np.ldexp(W, -exponent_above(W)))
    sketch_last = algorithm == "det-CGD1"
    if sketch_last and groups and all(pattern.commutes_with(g.map.full) for g in groups):
        if not pattern.is_full:  # a full D has the better linear form
            sketch_last = False
            notes.append("the sketches commute with D: (12) is (12′)")
    conditions = Conditions(L, tuple(groups), sketch_last, pattern, scale, exponent)
    conditions = replace(conditions, groups=tuple(g for g in groups if conditions.noisy(g).size))
    conditions, equal, dominated = without_redundant_clients(conditions)
    if equal:
        notes.append(f"{equal} clients equal to others")
    if dominated:
        notes.append(f"{dominated} clients dominated by others")
    linear = sketch_last and pattern.is_full
    if linear:
        notes.append("(12) is linear in A = DLD")
    return conditions, linear, notes


def _diagonal(matrices: list[Matrix], mean: Matrix | None) -> Vector:
    """The diagonal of L to rounding; raises ValueError when an entry is zero."""
    if mean is not None:
        return np.diagonal(mean)
    diagonals = np.array([np.diagonal(M) for M in matrices])
    top = diagonals.max(axis=0)
    if not top.all():
        check_positive_definite("the mean of the clients' matrices", np.diag(top), SMOOTHNESS_REMEDY)
    return np.asarray(top * np.mean(diagonals / top, axis=0))  # a sum might overflow


def _enclosed_mean(matrices: list[Matrix]) -> Enclosed:
    """(1/n)ΣLᵢ with a bound on its rounding: the sum in twice the working precision, then a division."""
    n = len(matrices)
    total = sum((Pair.exact(M) for M in matrices[1:]), Pair.exact(matrices[0])).rounded()
    value = total.value / n
    return Enclosed(value, (total.error / n) * (1.0 + 4.0 * UNIT) + UNIT * np.abs(value))


def _check_scaled(L: Matrix, clients: list[Matrix]) -> None:
    """Raise ValueError for a problem that no scaling brings into the range of floats."""
    diagonal = np.diagonal(L)
    if not (_LEAST_ENTRY < diagonal.min() and diagonal.max() < 1.0 / _LEAST_ENTRY):
        msg = (
            f"a sketch couples coordinates with smoothness from {diagonal.min():.3g} to {diagonal.max():.3g} (scaled), "
            "too far apart for float64; choose other units for the coordinates"
        )
        raise ValueError(msg)
    for i, M in enumerate(clients):
        if not np.isfinite(M).all():
            msg = f"smoothness[{i}] is too large beside mean_smoothness for float64; is mean_smoothness in other units?"
            raise ValueError(msg)


def _common_scaling(diagonal: Vector, sketches: list[Sketch]) -> Vector:
    """Powers of two Λ, constant on coordinates that some sketch couples, that bring the diagonal of ΛLΛ near one."""
    d = len(diagonal)
    coupled = np.eye(d, dtype=bool)
    for s in dict.fromkeys(sketches):
        labels = s.map.groups
        coupled |= labels[:, None] == labels
    labels = connected_labels(coupled)
    mean = np.bincount(labels, weights=np.log2(diagonal)) / np.bincount(labels)
    return np.asarray(np.ldexp(1.0, np.rint(-0.5 * mean).astype(np.intc)))[labels]
