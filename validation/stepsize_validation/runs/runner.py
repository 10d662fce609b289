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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsize_opt.inputs import check_memory, check_one_of, real_array, whole_number
from stepsize_opt.methods import Feedback, Method, get_method, is_scalar
from stepsize_opt.problems import Federated, Objective
from stepsize_opt.results import DistributedResult, StepsizeResult, SubspaceMethod
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import Indices, Matrix, Vector
from stepsize_validation.runs.arguments import count_senders, rate_of, read_sketches, read_stepsize
from stepsize_validation.runs.metric import DescentMetric
from stepsize_validation.runs.momentum import Mover, WithMomentum, WithoutMemory, momentum_of, seeds_of_momentum
from stepsize_validation.runs.record import MomentumRun, Run, log_steps
from stepsize_validation.runs.sampling import SketchStream

# Steps at which f itself is recorded; gradients give the norms at every step, values cost extra.
_VALUE_STEPS = 60
# H ≻ 0 makes E f(xᵏ) ≤ f(x⁰) and D ≺ 2L⁻¹, so E‖∇f(xᵏ)‖²_D ≤ 4 E[f(xᵏ) − f^inf] ≤ 4Δ⁰.  By Markov's inequality a value
# 10⁹ times as large has probability below 10⁻⁹: the run has diverged.
_DIVERGED = 4e9
# Numbers recorded at every step and for every seed.
_PER_STEP = ("norms", "euclidean", "descent", "metric_norms", "decrease", "sent")


class Divergence(FloatingPointError):
    """A run whose iterates left every region that its theorem allows.

    Examples
    --------
    See ``run``.
    """


def run(
    objective: Objective | Federated,
    D: Any,
    sketch: Sketch | Sequence[Sketch] | None = None,
    *,
    algorithm: str | Method | None = None,
    iterations: int = 1000,
    seeds: int = 8,
    seed: int = 0,
    client_seeds: str | None = None,
    start: Vector | None = None,
    progress: bool = False,
    on_divergence: str = "raise",
) -> Run:
    """Run a method from ``start`` (default 0) with independent sketches for each seed, all seeds in one product.

    Parameters
    ----------
    objective
        One node, or a ``Federated`` objective for the distributed methods.
    D
        What ``optimal_stepsize``, ``optimal_distributed_stepsize`` or ``optimal_method`` returned, which knows its
        sketch and method; or a stepsize matrix, d×d, symmetric (as ``stepsize_opt.certify`` judges it) and positive
        definite.  The operator of a large model is refused: loop over ``result.compressor()``.
    sketch
        The sketch, or one for each client; needed for a matrix.
    algorithm
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
    progress
        Show a bar on standard error.
    on_divergence
        ``"raise"`` raises ``Divergence``; ``"stop"`` returns the steps before it.

    Raises
    ------
    ValueError
        For arguments of the wrong shape or name, a start where f is not finite or lies below its bound.
    Divergence
        See ``on_divergence``.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK
    >>> from stepsize_opt.problems import Quadratic
    >>> from stepsize_validation import run
    >>> f = Quadratic(np.diag([1.0, 4.0]), np.ones(2))
    >>> record = run(f, np.diag([0.5, 0.125]), RandK(2, 1), iterations=100, seeds=4)
    >>> record.squared_norms.shape, float(record.bits()[-1])
    ((4, 100), 6400.0)
    """
    if isinstance(D, Feedback):
        msg = "run is for methods with a stepsize: run_feedback(objective, feedback, rounds=…) runs a Feedback"
        raise TypeError(msg)
    momentum = momentum_of(D, sketch, algorithm)
    if momentum is not None:
        client_seeds = seeds_of_momentum(objective, client_seeds)
    if client_seeds is None:
        client_seeds = D.seeds if isinstance(D, DistributedResult) else "independent"
    D, sketch, algorithm = _question(D, sketch, algorithm)
    sketches = read_sketches(objective, sketch)
    senders = count_senders(client_seeds, sketches)
    D = read_stepsize(D, objective.d)
    method = get_method(algorithm)
    method.check(sketches, scalar=is_scalar(D), clients=isinstance(objective, Federated))
    check_one_of("on_divergence", on_divergence, ("raise", "stop"))
    iterations, seeds = whole_number("iterations", iterations), whole_number("seeds", seeds)
    check_memory(f"the record of {iterations} iterations with {seeds} seeds", 8 * len(_PER_STEP) * iterations * seeds)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        msg = f"seed must be a whole number of at least 0, got {seed!r}"
        raise ValueError(msg)
    x0 = np.zeros(objective.d) if start is None else real_array("start", start)
    state = _State.fresh(objective, x0, iterations, seeds)
    one_node = not isinstance(objective, Federated) or client_seeds == "shared"
    metric = DescentMetric.of(objective, D, sketches, method, one_node=one_node)
    mover: Mover = WithoutMemory(method, method.factors(D, objective.smoothness))
    if momentum is not None:
        mover = WithMomentum(momentum, momentum.start(state.X))
    drawn = sketches[:1] if senders > 1 else sketches
    stream = SketchStream(drawn, seeds, int(seed))
    with _bar(progress, f"{method}, {seeds} seeds", iterations) as advance:
        stopped = _loop(objective, D, metric, mover, state, stream, senders, advance)
    if stopped is not None and on_divergence == "raise":
        msg = (
            f"{method} diverged at iteration {stopped}: D is outside its stepsize condition, or L is not a "
            "smoothness matrix of the objective"
        )
        raise Divergence(msg)
    record = state.record(method.name, objective, drawn, metric, stopped)
    if not isinstance(mover, WithMomentum):
        return record
    name = f"{method.name} with momentum"
    return replace(record, algorithm=name, momentum=MomentumRun(mover.rounds, x0, mover.state))


def _question(D: Any, sketch: Any, algorithm: Any) -> tuple[Any, Sketch | Sequence[Sketch], str | Method]:
    """Return D, sketch and algorithm, those of a result where they are not given."""
    own: dict[str, Any] = {"sketch": None, "algorithm": "det-CGD1"}
    if isinstance(D, SubspaceMethod):
        own = {"sketch": D.sketch, "algorithm": D}
    elif isinstance(D, StepsizeResult):
        own = {"sketch": D.sketch, "algorithm": D.method}
    elif isinstance(D, DistributedResult):
        own = {"sketch": D.sketches, "algorithm": D.method}
    if sketch is None and own["sketch"] is None:
        msg = "run needs sketch when D is a matrix: only a result knows its own"
        raise TypeError(msg)
    matrix = D.D if isinstance(D, SubspaceMethod | StepsizeResult | DistributedResult) else D
    return matrix, own["sketch"] if sketch is None else sketch, own["algorithm"] if algorithm is None else algorithm


@dataclass
class _State:
    """The iterates and the records so far."""

    X: Matrix
    k: int
    norms: Matrix
    euclidean: Matrix
    descent: Matrix
    metric_norms: Matrix
    decrease: Matrix
    sent: Matrix
    values: Matrix
    value_steps: Indices

    @staticmethod
    def fresh(objective: Objective | Federated, x0: Vector, iterations: int, seeds: int) -> _State:
        if x0.shape != (objective.d,):
            msg = f"start must have shape ({objective.d},), got {x0.shape}"
            raise ValueError(msg)
        steps = np.concatenate([[0], log_steps(iterations, _VALUE_STEPS)]).astype(np.intp)
        return _State(
            X=np.tile(x0, (seeds, 1)),
            k=0,
            values=np.empty((seeds, steps.size)),
            value_steps=steps,
            **{name: np.full((seeds, iterations), math.nan) for name in _PER_STEP},
        )

    def record(
        self,
        algorithm: str,
        objective: Objective | Federated,
        drawn: Sequence[Sketch],
        metric: DescentMetric,
        stopped: int | None,
    ) -> Run:
        done, kept = slice(0, self.k), self.value_steps <= self.k
        return Run(
            algorithm=algorithm,
            squared_norms=self.norms[:, done],
            **{name: getattr(self, name)[:, done] for name in _PER_STEP if name != "norms"},
            values=self.values[:, kept],
            value_steps=self.value_steps[kept],
            final_points=self.X,
            start_value=float(self.values[0, 0]),
            lower_bound=objective.lower_bound,
            rate=rate_of(metric.D),
            descent_rate=metric.rate,
            smallest_eigenvalue=float(metric.eigenvalues[0]),
            condition=metric.condition,
            metric=metric,
            sampling=np.concatenate([sketch.sampling_probabilities for sketch in drawn]),
            diverged_at=stopped,
            clients=len(drawn),
        )


def _loop(
    objective: Objective | Federated,
    D: Matrix,
    metric: DescentMetric,
    mover: Mover,
    state: _State,
    stream: SketchStream,
    senders: int,
    advance: Any,
) -> int | None:
    """Run until the end or until divergence, whose step is returned; ``senders`` clients share each draw."""
    iterations, rate = state.norms.shape[1], rate_of(D)
    state.values[:, 0] = objective.value(state.X)
    limit = _DIVERGED * _initial_gap(float(state.values[0, 0]), objective.lower_bound) / rate
    record_at = {int(k): i for i, k in enumerate(state.value_steps)}
    # A diverging run overflows before it is stopped; that is reported once, not by warnings.
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(iterations):
            draws, t = stream.next_step()
            parts = _gradients(objective, mover.point(state.X))
            gradient = parts.mean(axis=1)
            # The mean of the clients' messages is the message of the mean when they share their draw.
            step = mover.step(gradient[:, None] if senders > 1 else parts, draws, t)
            along: Matrix = gradient @ D
            state.norms[:, k] = np.einsum("sd,sd->s", gradient, along) / rate
            state.metric_norms[:, k] = metric.norms(gradient)
            state.euclidean[:, k] = np.einsum("sd,sd->s", gradient, gradient)
            # Written so that NaN is a divergence, and an infinite norm is one whatever the limit.
            if not (np.all(state.norms[:, k] <= limit) and np.all(np.isfinite(state.norms[:, k]))):
                return k
            state.descent[:, k] = np.einsum("sd,sd->s", gradient, step) / rate
            state.decrease[:, k] = metric.decrease(gradient, along, step)
            state.sent[:, k] = senders * mover.messages * draws.sent(t)
            state.X = mover.moved(state.X, step)
            state.k = k + 1
            if state.k in record_at:
                state.values[:, record_at[state.k]] = objective.value(state.X)
            advance()
    return None


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


@contextmanager
def _bar(show: bool, text: str, total: int) -> Iterator[Any]:
    """Show a progress bar on standard error; yield the function that counts one step."""
    if not show:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda: bar.advance(task)
