"""Experiment (f): the methods of this project against what people tune.

Ridge logistic regression, f − f* against the floats that one client sends, all of them: also those of the setup, what
has to be known of L before the first round.  Values count 1 and indices ½ (``baselines``).  A method with k floats per
round has the better k of d/20 and d/4, and a tuned method the best of its stepsizes, each time at each level; the runs
that find them are not counted.  Random methods count with the median of their seeds.  A panel is a data set, a λ and a
split of the rows among the clients: at random, or sorted by label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stepsize_opt import RandK
from stepsize_opt.goals import LinearGoal
from stepsize_opt.limit import optimal_method
from stepsize_opt.methods import Feedback
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.plots import Style, styles_of
from stepsize_opt.problems import Federated, Infimum, LogisticRegression, find_infimum
from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.data import Dataset, federated_logistic, logistic_regression, split
from stepsize_validation.experiments import baselines
from stepsize_validation.experiments.baselines import Trace, floats_until
from stepsize_validation.experiments.spec import Experiment, Figure, Plan, Tables
from stepsize_validation.figures import grid, save_figure
from stepsize_validation.runs import log_steps, run, run_feedback

REGULARISATIONS = (1e-3, 1e-2)
SHARES = (20, 4)  # k = d/20 and d/4
CLIENTS, _FEW_CLIENTS = 10, 5
SPLITS = ("shuffled", "label")
LEVELS = (1e-2, 1e-4, 1e-6)
# Stepsizes times λmax(L); the best ones lie inside on nearly all panels.
MULTIPLES: Vector = np.exp2(np.arange(-3, 10, dtype=np.float64))
LOCAL_STEPS = (1, 4, 16)
# A smaller model has more rounds to reach a level: its k is 1, not d/20.
_SMALL, _SMALL_FACTOR = 33, 2.5
_SEEDS = 3
_RANK = 4
_POINTS = 80
_PANEL = ["data", "d", "λ", "split"]
NAMES = [f"{level:g}" for level in LEVELS]
FEEDBACK, EIGENBASIS, MOMENTUM = "feedback, one client", "feedback, eigenbasis", "momentum subspace"
EF21, LBFGS = "EF21, top-k", "L-BFGS"
_UNTUNED = (LBFGS, "L-BFGS, metric of L", "GIANT")
# The figure has a panel for each of the first data sets, with the smaller λ and rows split at random.
_PANELS = 8
_DRAWN = (FEEDBACK, MOMENTUM, EF21, "PowerSGD, rank 1", LBFGS, "GIANT")


@dataclass(frozen=True, eq=False)
class Entry:
    """What one method did.

    k: floats of the gradient per round, 0 where a method has none; stepsizes: multiples of 1/λmax(L), for a tuned
    method; setup: floats sent before the first round, on average over the clients.
    rate, factor: E f(x^K) − f* ≤ factor (1 − rate)^K Δ⁰ is proved; a rate of 0 stands for no guarantee.
    """

    method: str
    trace: Trace
    k: int = 0
    ours: bool = False
    stepsizes: Vector | None = None
    setup: float = 0.0
    rate: float = 0.0
    factor: float = 1.0

    def floats(self, level: float) -> float:
        """Return the floats to a level, with the stepsize that is best for it and the setup."""
        return self.setup + floats_until(self.trace.floats, self.trace.excess[:, self.trace.best(level)], level)

    def guaranteed(self, level: float) -> float:
        """Return the floats to a level that are proved to suffice in the mean."""
        if self.rate == 0.0:
            return math.nan
        per_round = float(self.trace.floats[1])
        rounds = LinearGoal.rounds(self.rate, level, self.factor * float(self.trace.excess[0, 0]))
        return self.setup + per_round * rounds

    def row(self) -> dict[str, Any]:
        """Return the row of the table ``floats``; a level that is not reached is missing."""
        last = self.trace.best(LEVELS[-1])
        reached = {name: self.floats(level) for name, level in zip(NAMES, LEVELS, strict=True)}
        return {
            "method": self.method,
            "k": self.k,
            **{name: floats if floats < math.inf else math.nan for name, floats in reached.items()},
            "setup": self.setup,
            "guarantee": self.guaranteed(LEVELS[-1]),
            "stepsize": math.nan if self.stepsizes is None else self.stepsizes[last],
        }

    def curve(self) -> pd.DataFrame:
        """Return rows of the table ``curves``; a tuned method has the least f − f* of all its stepsizes."""
        floats = self.trace.floats
        rounds = log_steps(len(floats) - 1, _POINTS)
        bound = self.factor * self.trace.excess[0, 0] * (1.0 - self.rate) ** rounds
        return pd.DataFrame(
            {
                "method": self.method,
                "k": self.k,
                "ours": self.ours,
                "floats": self.setup + floats[rounds],
                "excess": np.nanmin(self.trace.excess[rounds], axis=1),
                "bound": bound if self.rate else math.nan,
            }
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """One objective; methods start from zero and end at the last level or with the budget."""

    f: LogisticRegression
    budget: float
    seeds: int
    seed: int

    @cached_property
    def L(self) -> Matrix:
        return self.f.smoothness()

    @cached_property
    def infimum(self) -> Infimum:
        return find_infimum(self.f)

    @property
    def least(self) -> float:
        """The smallest f that was found; its proved distance from f* is far below the last level."""
        return self.infimum.found

    @cached_property
    def stepsizes(self) -> Vector:
        return np.asarray(MULTIPLES / np.linalg.eigvalsh(self.L)[-1])

    @property
    def start(self) -> Vector:
        return np.zeros(self.f.d)

    @property
    def whole(self) -> float:
        """The floats of L, which a method needs that uses all of it."""
        return 0.5 * self.f.d * (self.f.d + 1)

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def excess(self, X: Matrix) -> Vector:
        return self.f.value(X) - self.least

    def trace(self, points: Iterable[Matrix], floats: float, seeds: int = 1) -> Trace:
        return baselines.trace(
            points, self.excess, self.start, floats=floats, budget=self.budget, level=LEVELS[-1], seeds=seeds
        )

    def tuned(
        self, name: str, method: Callable[[Vector], Iterator[Matrix]], floats: float, *, k: int = 0, seeds: int = 1
    ) -> Entry:
        """Run a method, a function of the stepsizes of its runs, with all stepsizes and seeds."""
        points = method(np.tile(self.stepsizes, seeds))
        return Entry(name, self.trace(points, floats, seeds), k, stepsizes=MULTIPLES)

    def proved(self, name: str, answer: Any, k: int) -> Entry:
        """Run an answer for one node; E f(x^K) − f* ≤ (1 − rate)^K Δ⁰, with momentum twice that."""
        record = run(self.f, answer, iterations=int(self.budget / k), seeds=self.seeds, seed=self.seed)
        floats = np.concatenate([[0.0], record.floats()])
        excess = np.median(record.values - self.least, axis=0)
        factor = 2.0 if answer.momentum else 1.0
        trace = Trace(floats, excess[:, None])
        return Entry(name, trace, k, ours=True, setup=self.whole, rate=answer.rate, factor=factor)

    def feedback(self, name: str, f: Federated, feedback: Feedback) -> Entry:
        """Run error feedback with a measured stepsize to the budget, which the setup is not part of."""
        setup = feedback.setup_floats.mean
        record = run_feedback(f, feedback, floats=self.budget + setup)
        floats = record.floats - setup + baselines.PLACE * record.places
        within = floats <= self.budget
        trace = Trace(floats[within], (record.values - self.least)[within, None])
        return Entry(name, trace, feedback.k, ours=True, setup=setup)


def of_the_mean(problem: Problem) -> Iterator[Entry]:
    """Run what depends on the mean gradient only and has no k."""
    f, x, d = problem.f, problem.start, problem.f.d
    power_sgd = partial(baselines.power_sgd, f.gradient, x, rank=1, rng=problem.rng)
    nesterov = partial(baselines.nesterov, f.gradient, x, mu=f.curvature_from_below)
    evaluations = int(problem.budget / (d + 1))
    yield problem.tuned("PowerSGD, rank 1", power_sgd, sum(baselines.power_sgd_shape(d)), seeds=problem.seeds)
    yield problem.tuned("gradient descent", partial(baselines.gradient_descent, f.gradient, x), d)
    yield problem.tuned("Nesterov", nesterov, d)
    yield Entry(LBFGS, problem.trace(baselines.lbfgs(f.value, f.gradient, x, evaluations), d + 1))
    points = baselines.lbfgs(f.value, f.gradient, x, evaluations, problem.L)
    yield Entry("L-BFGS, metric of L", problem.trace(points, d + 1), setup=problem.whole)


def sketched(problem: Problem, k: int) -> Iterator[Entry]:
    """Run what sends k floats of the mean gradient."""
    f = problem.f
    goal: Any = {"goal": "linear", "strong_convexity": f.strong_convexity()}
    yield problem.proved(MOMENTUM, optimal_method(problem.L, k, **goal, momentum=True), k)
    yield problem.proved("subspace", optimal_method(problem.L, k, **goal), k)
    yield problem.proved("det-CGD1, optimal D", optimal_stepsize(problem.L, RandK(f.d, k), **goal), k)


def local(problem: Problem, f: Federated) -> Iterator[Entry]:
    """Run what works on the rows of each client and has no k."""
    d = f.d
    yield Entry("GIANT", problem.trace(baselines.giant(f, problem.start), 2 * d + len(baselines.GIANT_LENGTHS)))
    for steps in LOCAL_STEPS:
        scaffold = partial(baselines.scaffold, f.clients, problem.start, steps=steps)
        yield problem.tuned("SCAFFOLD", scaffold, 2 * d)


def compressed(problem: Problem, f: Federated, k: int) -> Iterator[Entry]:
    """Run the methods whose clients send the k largest changes of their own gradients."""
    x, sent = problem.start, (1.0 + baselines.PLACE) * k
    yield problem.tuned(EF21, partial(baselines.ef21, f.client_gradients, x, k=k), sent, k=k)
    n, L = f.n, problem.L
    yield problem.feedback(FEEDBACK, f, Feedback.from_client(f.client_smoothness()[0], k, clients=n))
    yield problem.feedback(EIGENBASIS, f, Feedback(L, k, clients=n))
    yield problem.feedback(f"feedback, rank {_RANK}", f, Feedback(low_rank_bound(L), k, clients=n))
    yield problem.feedback("feedback, coordinates", f, Feedback(None, k, clients=n))


def low_rank_bound(L: Matrix) -> LowRankPlusDiagonal:
    """Return the largest eigenvectors of L plus a multiple of I, above L up to rounding."""
    w, V = np.linalg.eigh(L)
    rank = min(_RANK, len(w) - 1)
    rest = w[-rank - 1]
    return LowRankPlusDiagonal(V[:, -rank:] * np.sqrt(np.maximum(w[-rank:] - rest, 0.0)), rest)


def parameters(data: Dataset, plan: Plan) -> range:
    """Return the places of the λ, one job each; a quick plan has the first."""
    return range(1 if plan.short else len(REGULARISATIONS))


def measure(data: Dataset, plan: Plan, parameter: int) -> Tables:
    """Run all methods on one data set with one λ.

    Columns that never occur are left out.  As many rows are kept, chosen at random, as all clients share equally.
    """
    reg, n = REGULARISATIONS[parameter], _FEW_CLIENTS if plan.short else CLIENTS
    rng = np.random.default_rng(plan.seed)
    rows = rng.permutation(data.m)[: data.m - data.m % n]
    used = np.flatnonzero(np.asarray(abs(data.A).sum(axis=0)).ravel())
    data = Dataset(data.name, data.A[rows][:, used], data.b[rows])
    budget = EXPERIMENT.steps(plan) * data.d * (_SMALL_FACTOR if data.d <= _SMALL else 1.0)
    problem = Problem(logistic_regression(data, reg, "ridge"), budget, min(plan.seeds, _SEEDS), plan.seed)
    ks = sorted({max(1, data.d // share) for share in SHARES})
    entries = {"any": [*of_the_mean(problem), *(entry for k in ks for entry in sketched(problem, k))]}
    metrics = {}
    for kind in SPLITS:
        f = federated_logistic(split(data, n, rng, kind), reg, "ridge")
        entries[kind] = [*local(problem, f), *(entry for k in ks for entry in compressed(problem, f, k))]
        metrics[kind] = Feedback.from_client(f.client_smoothness()[0], clients=n)
    place = {"d": data.d, "λ": reg}
    floats = [place | {"split": kind} | entry.row() for kind, runs in entries.items() for entry in runs]
    curves = [entry.curve().assign(split=kind, **place) for kind, runs in entries.items() for entry in runs]
    return {
        "floats": pd.DataFrame(floats),
        "curves": pd.concat(curves, ignore_index=True),
        "conditions": pd.DataFrame([place | conditions(problem, metrics)]),
    }


def conditions(problem: Problem, metrics: dict[str, Feedback]) -> dict[str, float]:
    """Return the condition number of ∇²f(x*) in coordinates, in the metric of L and in that of one client."""
    x = problem.infimum.point
    H = baselines.ridge_hessian(problem.f, problem.start if x is None else x)
    bases = {"L": Feedback(problem.L, 1), **metrics}
    found = {"coordinates": float(np.linalg.cond(H))}
    for name, feedback in bases.items():
        A = np.column_stack([feedback.step(row) for row in np.eye(len(H))])
        found[name] = float(np.linalg.cond(A.T @ H @ A))
    return found


def by_panel(table: Any) -> Any:
    """Return a row for each panel and method, with the fewest floats of its k at each level.

    Rows that stand for any split are repeated in each.
    """
    own, shared = table[table["split"] != "any"], table[table["split"] == "any"]
    splits = own[_PANEL].drop_duplicates()
    rows = pd.concat([own, splits.merge(shared.drop(columns="split"), on=["data", "d", "λ"])], ignore_index=True)
    return rows.groupby([*_PANEL, "method"], sort=False)[[*NAMES, "setup"]].min().reset_index()


def summarise(tables: Tables) -> Tables:
    """Return how often and by how much each method is best, and the curves of the figure."""
    return {"ranking": ranking(by_panel(tables["floats"])), "figure": shown_curves(tables["curves"])}


def ranking(rows: Any) -> pd.DataFrame:
    """Return for each method and level in how many panels it is best, and its floats over those of tuned EF21.

    The ratio is the median of all panels; where a method does not reach the level, it is infinite.
    """
    found = {"setup/d": (rows["setup"] / rows["d"]).groupby(rows["method"], sort=False).median()}
    for name in NAMES:
        floats = rows[name].fillna(math.inf)
        least = floats.groupby([rows[key] for key in _PANEL]).transform("min")
        ratios = over_ef21(rows, name)
        found[f"best, {name}"] = ((floats == least) & (floats < math.inf)).groupby(rows["method"]).sum()
        found[f"ratio, {name}"] = ratios.median()
    order = f"ratio, {NAMES[-1]}"
    return pd.DataFrame(found).sort_values(order).rename_axis(index="method").reset_index()


def over_ef21(rows: Any, level: str) -> Any:
    """Return the floats over those of tuned EF21, a row for each panel and a column for each method."""
    floats = rows.fillna({level: math.inf}).pivot_table(index=_PANEL, columns="method", values=level, sort=False)
    return floats.div(floats[EF21], axis=0)


def shown_curves(curves: Any) -> pd.DataFrame:
    """Return the curves of the figure: its methods on the first data sets, each with its better k."""
    shown = curves[(curves["λ"] == REGULARISATIONS[0]) & curves["split"].isin(["any", SPLITS[0]])]
    chosen = shown["method"].isin(_DRAWN) & shown["data"].isin(shown["data"].unique()[:_PANELS])
    shown = shown[chosen]
    reached = shown[shown["excess"] <= LEVELS[-1]].groupby(["data", "method", "k"])["floats"].min()
    first = shown.groupby(["data", "method", "k"])["excess"].min().to_frame().join(reached)
    better = first.sort_values(["floats", "excess"]).reset_index().drop_duplicates(["data", "method"])
    columns = ["data", "d", "k", "method", "ours", "floats", "excess", "bound"]
    found: pd.DataFrame = shown.merge(better[["data", "method", "k"]], on=["data", "method", "k"])[columns]
    return found


def draw(tables: Tables, title: str, path: Path) -> None:
    """Draw f − f* against the floats sent, a panel for each of the first data sets; guarantees are dashed."""
    curves = tables["figure"]
    kinds = dict(zip(curves["method"], curves["ours"], strict=True))
    styles = styles_of((method, bool(kinds[method])) for method in _DRAWN)
    names = curves["data"].unique()
    figure, axes = grid(len(names), (3.0, 2.3), 0.9, sharey=True)
    for axis, name in zip(axes, names, strict=True):
        _draw_panel(axis, curves[curves["data"] == name], styles)
    figure.supxlabel("floats sent by one client", fontsize=10)
    figure.supylabel("$f - f^*$", fontsize=10)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=9, frameon=False)
    save_figure(figure, path, dpi=200)


def _draw_panel(axis: Any, curves: Any, styles: dict[str, Style]) -> None:
    for method, style in styles.items():
        own = curves[curves["method"] == method]
        ours = bool(own["ours"].any())
        look: dict[str, Any] = {"color": style.colour, "zorder": 3 if ours else 2}
        axis.plot(
            own["floats"],
            own["excess"],
            label=method if ours or method in _UNTUNED else f"{method}, tuned",
            linewidth=2.0 if ours else 1.2,
            marker=style.marker,
            markersize=4.0,
            markevery=0.25,
            **look,
        )
        if own["bound"].notna().any():
            label = "proved in the mean" if method == MOMENTUM else None
            axis.plot(own["floats"], own["bound"], linestyle=(0, (4, 2)), linewidth=1.0, label=label, **look)
    first = curves.iloc[0]
    axis.axvline(first["d"], color="0.75", linewidth=0.8, zorder=1)
    axis.set(xscale="log", yscale="log", ylim=(0.7 * LEVELS[-1], 1.5))
    axis.set_title(f"{first['data']}, d = {first['d']}", fontsize=10)
    axis.grid(visible=True, which="major", linewidth=0.4, alpha=0.5)
    axis.tick_params(which="both", labelsize=8)


EXPERIMENT = Experiment(
    name="f",
    title="(f) Against what people tune",
    settings=(),
    parameters=parameters,
    measure=measure,
    summarise=summarise,
    figures=(Figure("floats", draw),),
    # The budget of floats, in dense gradients.
    iterations=120,
    quick_iterations=40,
)
