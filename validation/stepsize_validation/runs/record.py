"""What a run leaves behind: gradient norms, values and numbers sent, for each seed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stepsize_opt import Sketch
from stepsize_opt.inputs.checks import check_memory, check_one_of, real_array, real_number
from stepsize_opt.methods import Compressor, Momentum, State, weight
from stepsize_opt.plots import GUARANTEE, STYLES, Curve, axes_or_new, log_axes
from stepsize_solvers.programs import Indices, Matrix, Tabled, Vector, plain_rows
from stepsize_validation.runs.metric import DescentMetric

# What is recorded at every step and for every seed.
_PER_STEP = ("squared_norms", "euclidean", "descent", "metric_norms", "decrease", "sent")


@dataclass(frozen=True, eq=False)
class MomentumRun:
    """What a method with momentum runs, where it started and where it ended.

    For every w and K rounds E Ψ ≤ kept(K) times Ψ at the start.  Ψ = f(x) − f(w) + ½‖z − w‖²_{M̂}, for convex f
    K(K + 3)/4 (f(x) − f(w)) + ½‖z − w‖²_{M̂}/t².
    """

    rounds: Compressor
    start: Vector
    end: State

    @property
    def rule(self) -> Momentum:
        """t, and whether f is strongly convex."""
        assert self.rounds.memory is not None
        return self.rounds.memory

    @property
    def goal(self) -> str:
        """``"linear"`` or ``"convex"``."""
        return "linear" if self.rule.strong else "convex"

    def potential(self, state: State, excess: Vector, point: Vector) -> Vector:
        """Return Ψ of the rows of a state."""
        distance = 0.5 * self.rounds.squared_distance(state.z - point)
        if self.rule.strong:
            return np.asarray(excess + distance)
        return np.asarray(weight(state.rounds) * excess + distance / self.rule.t**2)

    def kept(self, rounds: int) -> float:
        """Return (1 − t)^K; 1 for convex f, whose Ψ has a weight that grows."""
        return (1.0 - self.rule.t) ** rounds if self.rule.strong else 1.0


@dataclass(frozen=True, eq=False, repr=False)
class Run(Tabled):
    """The record of a run of K steps for s seeds.

    Attributes
    ----------
    algorithm : str
        The method.
    squared_norms : numpy.ndarray
        ‖∇f(xᵏ)‖²_{D/det(D)^{1/d}}, shape (s, K).
    euclidean : numpy.ndarray
        ‖∇f(xᵏ)‖², shape (s, K).
    descent : numpy.ndarray
        ⟨∇f(xᵏ), xᵏ − xᵏ⁺¹⟩/det(D)^{1/d}, shape (s, K); E[S] = I makes its mean that of ``squared_norms``.
    metric_norms : numpy.ndarray
        ‖∇f(xᵏ)‖²_H in the descent metric H of the run, shape (s, K): 2D − T(D) on one node, 2D − DLD with clients,
        whose variance Theorem 3 counts apart.
    decrease : numpy.ndarray
        2⟨∇f(xᵏ), xᵏ − xᵏ⁺¹⟩ − ‖v‖²_L, shape (s, K), v = xᵏ − xᵏ⁺¹ on one node and D∇f(xᵏ) with clients; its mean is
        that of ``metric_norms``.  On one node L-smoothness keeps it below 2(f(xᵏ) − f(xᵏ⁺¹)).
    sent : numpy.ndarray
        Numbers sent in each round by all clients together, shape (s, K); for a sketch that is not diagonal their mean.
    values : numpy.ndarray
        f(x⁰), …, f(xᴷ), shape (s, K + 1).
    final_points : numpy.ndarray
        xᴷ, shape (s, d).
    metric : DescentMetric
        H with the matrices that it is made of.
    diverged_at : int or None
        The step at which the run was stopped because it diverged; K is then the number of steps recorded.
    momentum : MomentumRun or None
        With momentum, its rounds, x⁰ and the last (x, z); gradients above are then those at yᵏ in place of xᵏ.

    Examples
    --------
    See ``run``.
    """

    algorithm: str
    squared_norms: Matrix
    euclidean: Matrix
    descent: Matrix
    metric_norms: Matrix
    decrease: Matrix
    sent: Matrix
    values: Matrix
    final_points: Matrix
    metric: DescentMetric
    diverged_at: int | None = None
    momentum: MomentumRun | None = None

    @staticmethod
    def empty(name: str, metric: DescentMetric, x0: Vector, K: int, seeds: int) -> Run:
        """Return a record of K steps in which nothing is written yet; raises ValueError where memory ends."""
        check_memory(f"the record of {K} iterations with {seeds} seeds", 8 * (len(_PER_STEP) + 1) * K * seeds)
        arrays: dict[str, Any] = {name: np.full((seeds, K), math.nan) for name in _PER_STEP}
        points = np.tile(x0, (seeds, 1))
        values = np.full((seeds, K + 1), math.nan)
        return Run(algorithm=name, **arrays, values=values, final_points=points, metric=metric)

    def until(self, k: int) -> Run:
        """Return the record of the first k steps of a run that diverged then."""
        arrays = {name: getattr(self, name)[:, :k] for name in _PER_STEP}
        return replace(self, **arrays, values=self.values[:, : k + 1], diverged_at=k)

    def __repr__(self) -> str:
        clients = f", {self.clients} clients" if self.clients > 1 else ""
        mean = f", mean G_K = {self.means()[:, -1].mean():.4g}" if self.iterations else ""
        diverged = "" if self.diverged_at is None else f", diverged at step {self.diverged_at}"
        steps = f"K = {self.iterations} steps, {self.seeds} seeds"
        return f"Run({self.algorithm}{clients}, {steps}, rate = {self.rate:.6g}{mean}{diverged})"

    def _shown(self) -> list[tuple[str, str]]:
        sizes = {"clients": self.clients, "seeds": self.seeds, "steps": self.iterations}
        means = {"floats sent": self.sent.sum(axis=1).mean(), "f at the end": self.values[:, -1].mean()}
        numbers = {"rate": self.rate, "f at the start": self.start_value, **means, "diverged at": self.diverged_at}
        return plain_rows({"method": self.algorithm, **sizes, **numbers})

    @property
    def iterations(self) -> int:
        """K, the steps that were made."""
        return int(self.squared_norms.shape[1])

    @property
    def seeds(self) -> int:
        """s, the independent runs."""
        return int(self.squared_norms.shape[0])

    @property
    def drawn(self) -> tuple[Sketch, ...]:
        """The sketches that were drawn, one for each client; one for clients with shared seeds, which are one node."""
        return self.metric.drawn

    @property
    def lower_bound(self) -> float:
        """A proved bound on f^inf."""
        return self.metric.objective.lower_bound

    @property
    def clients(self) -> int:
        """Clients that draw sketches of their own; 1 on one node and with shared seeds, which is the same method."""
        return len(self.drawn)

    @property
    def start_value(self) -> float:
        """f(x⁰)."""
        return float(self.values[0, 0])

    @property
    def rate(self) -> float:
        """det(D)^{1/d}."""
        return self.metric.rate

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d}; 0 when H is not positive definite."""
        return self.metric.descent_rate

    @property
    def sampling(self) -> Vector:
        """``sampling_probabilities`` of the sketches that were drawn."""
        return np.concatenate([sketch.sampling_probabilities for sketch in self.drawn])

    @property
    def is_random(self) -> bool:
        """Whether runs can differ: some sketch is not the identity."""
        return bool(np.any(self.sampling < 1.0))

    def missing_probability(self, rounds: float) -> float:
        """Bound the probability that ``rounds`` rounds leave some coordinate or outcome of a sketch undrawn."""
        return min(1.0, float(np.sum((1.0 - self.sampling) ** rounds)))

    def norms(self, which: str = "weighted") -> Matrix:
        """Return ‖∇f(xᵏ)‖² of each seed and step, shape (s, K).

        ``"weighted"``: in the norm of D/det(D)^{1/d}; ``"metric"``: of H/det(H)^{1/d}, with ValueError unless H ≻ 0;
        ``"euclidean"``.
        """
        check_one_of("which", which, ("weighted", "metric", "euclidean"))
        if which != "metric":
            return self.squared_norms if which == "weighted" else self.euclidean
        if not self.descent_rate > 0.0:
            msg = "H = 2D − T(D) is not positive definite: the descent metric of this D promises nothing"
            raise ValueError(msg)
        return self.metric_norms / self.descent_rate

    def means(self, which: str = "weighted") -> Matrix:
        """Return the means of ``norms`` over the steps before k, for k = 1 … K: G_k for ``"weighted"``."""
        return np.asarray(np.cumsum(self.norms(which), axis=1) / np.arange(1, self.iterations + 1))

    def floats(self) -> Vector:
        """Return the floats sent in the first k rounds, k = 1 … K, on average over the seeds."""
        return np.asarray(np.cumsum(self.sent.mean(axis=0)))

    def plot(
        self, ax: Any = None, *, show: str = "weighted", infimum: float | None = None, label: str | None = None
    ) -> Any:
        """Draw a run against the floats that it sent: the mean over the seeds with two standard errors.

        A dashed line of the same colour is the guarantee.  Runs that are drawn on the same axes have different styles.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where to draw; a new figure by default.
        show : str
            ``"weighted"``, running means of ‖∇f‖² in the norm of D scaled to determinant 1; ``"metric"``, in that of
            H = 2D − T(D); ``"euclidean"``, in the Euclidean norm; ``"excess"``, f − f^inf.
        infimum : float, optional
            f^inf; the smallest value of the run by default.  The guarantee 2Δ⁰/(rate K) depends on it.
        label : str, optional
            The name of the curve; the method by default.

        Returns
        -------
        matplotlib.axes.Axes
        """
        ax, name = axes_or_new(ax), self.algorithm if label is None else label
        curve = self.curve(show, infimum, log_steps(self.iterations, _POINTS))
        drawn = sum(not text.endswith(GUARANTEE) for text in ax.get_legend_handles_labels()[1])
        # Solid, because the dashed line is the guarantee.
        style = STYLES[drawn % len(STYLES)]._replace(line="-")
        curve.plot(ax, style, label=name, shift=drawn / len(STYLES))
        log_axes(ax, "floats sent", _SHOWN[show])
        ax.legend(fontsize=8, frameon=False)
        return ax

    def curve(self, show: str = "weighted", infimum: float | None = None, steps: Indices | None = None) -> Curve:
        """Return what ``plot`` draws after some of the steps, by default all."""
        check_one_of("show", show, tuple(_SHOWN))
        least = float(np.min(self.values)) if infimum is None else real_number("infimum", infimum)
        k = np.arange(1, self.iterations + 1)
        floats, values = self.floats(), self.values[:, 1:] - least if show == "excess" else self.means(show)
        if steps is not None:
            k, floats, values = steps, floats[steps - 1], values[:, steps - 1]
        return Curve.over_seeds(floats, values, self._guarantee(show, k, self.start_value - least))

    def _guarantee(self, show: str, steps: Indices, start: float) -> Vector | None:
        """Return what is guaranteed after so many steps, from f(x⁰) − f^inf; None where nothing is.

        With clients that draw sketches of their own the bound has more terms (``check_distributed_rate``).
        """
        if show == "excess":
            if self.momentum is None or not self.momentum.rule.strong:
                return None
            return np.array([2.0 * start * self.momentum.kept(int(K)) for K in steps])
        rate = {"weighted": self.rate, "metric": self.descent_rate, "euclidean": self.metric.smallest}[show]
        broken = show == "weighted" and self.metric.condition > 1.0
        if broken or not rate > 0.0 or self.momentum is not None or self.clients > 1:
            return None
        return np.asarray(2.0 * start / (rate * steps), dtype=np.float64)


# What ``Run.plot`` shows, with the label of its axis.
_SHOWN = {
    "weighted": "mean of ‖∇f‖², norm of D",
    "metric": "mean of ‖∇f‖², norm of H",
    "euclidean": "mean of ‖∇f‖², Euclidean",
    "excess": "f − f^inf",
}
_POINTS = 300  # of a drawn curve


def first_below(curve: Vector, level: float) -> int | None:
    """Return the smallest k = 1 … K with curve[k−1] ≤ level, or None when the curve never gets there.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation import first_below
    >>> first_below(np.array([4.0, 2.0, 1.0]), 2.0)
    2
    """
    values = real_array("curve", curve, finite=False)
    if values.ndim != 1:
        msg = f"curve must be a list of numbers, got shape {values.shape}"
        raise ValueError(msg)
    below = np.flatnonzero(values <= real_number("level", level))
    return int(below[0]) + 1 if below.size else None


def log_steps(iterations: int, count: int) -> Indices:
    """Return at most ``count`` whole numbers from 1 to ``iterations``, evenly spread on a log scale, with both ends."""
    return np.unique(np.rint(np.geomspace(1, iterations, count)).astype(np.intp))
