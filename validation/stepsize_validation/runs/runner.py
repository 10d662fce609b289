"""One runner for all the methods, for several seeds at once.

A method moves by x⁺ = x − (1/n) Σ Gᵢ∇fᵢ(x) with n clients, one node being one client; ``stepsize_opt.methods`` defines
what G is.
Theorem 1 of the paper bounds, for a D that satisfies the condition of its method on one node,

    G_K = (1/K) Σ_{k<K} E‖∇f(xᵏ)‖²_{D/det(D)^{1/d}} ≤ 2(f(x⁰) − f^inf)/(det(D)^{1/d} K),

and every D with H = 2D − T(D) ≻ 0 has the same with H in place of D (docs/theory.md).  Both norms are recorded, with
momentum at the points y where it evaluates the gradient (docs/momentum.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from stepsize_opt import Sketch
from stepsize_opt.inputs.checks import check_objective, check_one_of, real_array, whole_number
from stepsize_opt.inputs.matrices import dense, read_matrix
from stepsize_opt.large.stepsizes import StepsizeOperator
from stepsize_opt.methods import CompressedStep, Compressor, Feedback, Method, get_method
from stepsize_opt.problems import Federated, Objective
from stepsize_opt.results import DistributedResult, StepsizeResult
from stepsize_opt.sketches.base import sketch_of_each
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.runs.metric import DescentMetric
from stepsize_validation.runs.record import MomentumRun, Run
from stepsize_validation.runs.sampling import samples

# H ≻ 0 makes E f(xᵏ) ≤ f(x⁰) and D ≺ 2L⁻¹, so E‖∇f(xᵏ)‖²_D ≤ 4 E[f(xᵏ) − f^inf] ≤ 4Δ⁰.  By Markov's inequality a value
# 10⁹ times as large has probability below 10⁻⁹: the run has diverged.
_DIVERGED = 4e9


class Divergence(FloatingPointError):
    """A run whose iterates left every region that its theorem allows.

    Examples
    --------
    See ``run``.
    """


def run(
    objective: Objective | Federated,
    D: Any,
    sketch: Sketch | str | Sequence[Sketch | str] | None = None,
    *,
    algorithm: str | Method | None = None,
    iterations: int = 1000,
    seeds: int = 8,
    seed: int = 0,
    client_seeds: str | None = None,
    start: Vector | None = None,
    on_divergence: str = "raise",
) -> Run:
    """Run a method from ``start`` (default 0) with independent sketches for each seed, all seeds in one product.

    Parameters
    ----------
    objective
        One node, or a ``Federated`` objective for the distributed methods.
    D : StepsizeResult, DistributedResult, SubspaceMethod, array-like or sparse matrix of shape (d, d)
        What ``optimal_stepsize``, ``optimal_distributed_stepsize`` or ``optimal_method`` returned, which knows its
        sketch and method; or a stepsize matrix, symmetric (as ``stepsize_opt.certify`` judges it) and positive
        definite.  The operator of a large model is refused: loop over ``result.compressor()``.
    sketch
        The sketch, or one for each client; needed for a matrix.
    algorithm : str or Method, optional
        ``"det-CGD1"``, the default for a matrix, ``"det-CGD2"``, or what ``get_method`` takes.
    iterations
        K, the number of rounds.
    seeds
        The number of independent runs.
    seed
        Determines the samples of all runs: the same seed gives the same bits.
    client_seeds
        ``"independent"``, the default for a matrix: every client draws its own sketch.  ``"shared"``: all clients draw
        the same S in each round, so that (1/n)ΣS∇fᵢ = S∇f and the run obeys the guarantee of one node with f, for
        ``check_rate``.  A ``DistributedResult`` has its own.
    start
        x⁰, default 0.
    on_divergence
        ``"raise"`` raises ``Divergence``; ``"stop"`` returns the steps before it.

    Raises
    ------
    ValueError
        For arguments of the wrong shape or name, a start where f is not finite or lies below its bound.
    Divergence
        See ``on_divergence``.

    See Also
    --------
    run_feedback : run a ``Feedback``.
    check_rate : whether runs keep the predicted rate.
    stepsize_opt.certify : what is proved of a matrix.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK
    >>> from stepsize_opt.problems import Quadratic
    >>> from stepsize_validation import run
    >>> f = Quadratic(np.diag([1.0, 4.0]), np.ones(2))
    >>> record = run(f, np.diag([0.5, 0.125]), RandK(2, 1), iterations=100, seeds=4)
    >>> record.squared_norms.shape, float(record.floats()[-1])
    ((4, 100), 100.0)
    """
    if isinstance(D, Feedback):
        msg = "run takes a stepsize; run_feedback(objective, feedback, rounds=…) runs a Feedback"
        raise TypeError(msg)
    if hasattr(D, "gradient") and not hasattr(objective, "gradient"):
        msg = "objective and D are swapped: run(objective, D) takes the objective first"
        raise TypeError(msg)
    check_objective("objective", objective)
    check_one_of("on_divergence", on_divergence, ("raise", "stop"))
    federated = isinstance(objective, Federated)
    if client_seeds is not None and not federated:
        msg = f"client_seeds={client_seeds!r} is for the clients of a Federated objective, and this one is one node"
        raise ValueError(msg)
    own = _own(D)
    rounds = own.rounds
    other = sketch not in (None, own.sketch) or str(algorithm or own.algorithm) != str(own.algorithm)
    if rounds is not None and other:
        msg = "a subspace method and a result with momentum have a sketch and a method of their own: leave out both"
        raise ValueError(msg)
    if client_seeds is None:
        client_seeds = own.client_seeds
    if rounds is not None and rounds.memory is not None and federated and client_seeds == "independent":
        msg = "momentum is proved for one node, and clients with independent draws are none: use client_seeds='shared'"
        raise ValueError(msg)
    sketches = _read_sketches(objective, own.sketch if sketch is None else sketch)
    _check_client_seeds(client_seeds, sketches)
    stepsize = _read_stepsize(own.D, objective.d)
    name = str(own.algorithm)
    if rounds is None:
        method = get_method(own.algorithm if algorithm is None else algorithm)
        method.check(sketches)
        rounds, name = CompressedStep(sketches[0], method.factors(stepsize, objective.smoothness)), method.name
    iterations, seeds = whole_number("iterations", iterations), whole_number("seeds", seeds)
    x0 = np.zeros(objective.d) if start is None else real_array("start", start)
    if x0.shape != (objective.d,):
        msg = f"start must have shape ({objective.d},), got {x0.shape}"
        raise ValueError(msg)
    one_node = not federated or client_seeds == "shared"
    metric = DescentMetric(stepsize, objective, sketches, rounds.factors, one_node)
    title = name if rounds.memory is None else f"{name} with momentum"
    record = Run.empty(title, metric, x0, iterations, seeds)
    record = _filled(record, rounds, whole_number("seed", seed, 0))
    if record.diverged_at is not None and on_divergence == "raise":
        msg = (
            f"{name} diverged at iteration {record.diverged_at}: D is outside its stepsize condition, or L is not a "
            "smoothness matrix of the objective"
        )
        raise Divergence(msg)
    return record


class _Own(NamedTuple):
    """What the second argument of ``run`` brings with it.

    rounds: what a subspace method and a result with momentum run, whose guarantee holds for these alone.
    """

    D: Any
    sketch: Any = None
    algorithm: str | Method = "det-CGD1"
    client_seeds: str = "independent"
    rounds: Compressor | None = None


def _own(D: Any) -> _Own:
    if isinstance(D, DistributedResult):
        return _Own(D.D, D.sketches, D.method, D.seeds)
    if isinstance(D, StepsizeResult):
        rounds = D.compressor() if D.momentum else None
        return _Own(D.D, D.sketch, D.method, "shared" if D.momentum else "independent", rounds)
    if isinstance(D, Compressor):
        answer: Any = D
        return _Own(answer.D, D.sketch, D.name, "independent" if D.memory is None else "shared", D)
    return _Own(D)


def _read_sketches(objective: Objective | Federated, sketch: Any) -> tuple[Sketch, ...]:
    """Return one sketch for each client; raises TypeError or ValueError for what is none, a wrong number or size."""
    if sketch is None:
        msg = "run needs sketch when D is a matrix: only a result knows its own"
        raise TypeError(msg)
    n = objective.n if isinstance(objective, Federated) else 1
    return tuple(sketch_of_each(sketch, n, objective.d))


def _check_client_seeds(client_seeds: str, sketches: Sequence[Sketch]) -> None:
    """Raise ValueError for another word, or a draw that clients with different sketches cannot share."""
    check_one_of("client_seeds", client_seeds, ("independent", "shared"))
    if client_seeds == "shared" and any(one != sketches[0] for one in sketches):
        msg = "client_seeds='shared' takes one sketch for all clients: different laws cannot have the same draw"
        raise ValueError(msg)


def _read_stepsize(D: Any, d: int) -> Matrix:
    """Return D as a positive definite array; raises ValueError or TypeError for any other."""
    if isinstance(D, StepsizeOperator):
        msg = "run takes D as a matrix, and this D is an operator: pass D.todense(), or loop over result.compressor()"
        raise TypeError(msg)
    out = dense(read_matrix("D", D))
    if out.shape != (d, d):
        msg = f"D must have shape ({d}, {d}) as the objective has d={d}, got {out.shape}"
        raise ValueError(msg)
    try:
        np.linalg.cholesky(out)
    except np.linalg.LinAlgError as error:
        msg = "D must be symmetric positive definite"
        raise ValueError(msg) from error
    return out


def _filled(record: Run, rounds: Compressor, seed: int) -> Run:
    """Run until the end or until divergence, and return the record."""
    metric, objective = record.metric, record.metric.objective
    senders = len(metric.sketches) if metric.one_node else 1  # clients that send with one and the same draw
    state, start = rounds.start(record.final_points), record.final_points[0]
    record.values[:, 0] = objective.value(state.x)
    limit = _DIVERGED * _initial_gap(record.start_value, objective.lower_bound) / record.rate
    # A diverging run overflows before it is stopped; that is reported once, not by warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        for k, sample in enumerate(islice(samples(record.drawn, record.seeds, seed), record.iterations)):
            parts = _gradients(objective, rounds.point(state))
            gradient = parts.mean(axis=1)
            # The mean of the clients' messages is the message of the mean when they share their draw.
            step, along = rounds.steps(gradient[:, None] if senders > 1 else parts, sample.mean)
            _write(record, k, gradient, step)
            # Written so that NaN is a divergence, and an infinite norm is one whatever the limit.
            if not np.all((record.squared_norms[:, k] <= limit) & np.isfinite(record.squared_norms[:, k])):
                record = record.until(k)
                break
            state = rounds.moved(state, step, along)
            record.sent[:, k] = senders * rounds.messages * sample.sent
            record.values[:, k + 1] = objective.value(state.x)
    momentum = None if rounds.memory is None else MomentumRun(rounds, start, state)
    return replace(record, final_points=state.x, momentum=momentum)


def _write(record: Run, k: int, gradient: Matrix, step: Matrix) -> None:
    """Write down the norms of the gradients of step k, shape (s, d), and what the steps decrease."""
    metric, rate = record.metric, record.rate
    along: Matrix = gradient @ metric.D
    record.squared_norms[:, k] = np.einsum("sd,sd->s", gradient, along) / rate
    record.euclidean[:, k] = np.einsum("sd,sd->s", gradient, gradient)
    record.metric_norms[:, k] = metric.norms(gradient)
    record.descent[:, k] = np.einsum("sd,sd->s", gradient, step) / rate
    record.decrease[:, k] = metric.decrease(gradient, along, step)


def _gradients(objective: Objective | Federated, X: Matrix) -> Matrix:
    """Return ∇fᵢ at the rows of X, shape (s, n, d); one node is one client."""
    return objective.client_gradients(X) if isinstance(objective, Federated) else objective.gradient(X)[:, None]


def _initial_gap(value: float, lower_bound: float) -> float:
    """Return f(x⁰) minus the lower bound of f; raises ValueError unless f(x⁰) is finite and not below the bound."""
    # A sum of many terms that ends at the bound may round to less.
    rounding = 1e-12 * (1.0 + abs(value))
    if not (math.isfinite(value) and value >= lower_bound - rounding):
        msg = (
            f"f(start) must be finite and not below the objective's lower_bound, got f(start) = {value!r} and "
            f"lower_bound = {lower_bound!r}"
        )
        raise ValueError(msg)
    return max(value - lower_bound, rounding)
