"""Experiment (f): the methods of this project against what people tune.

Ridge logistic regression, f − f* against the floats that one client sends (``baselines`` counts them).  A tuned
method has 13 stepsizes, and counts with the best one at each level; the runs that find it are not counted.  The setup
of a method, what is known of L and has to be sent once, is in a column of its own.  Random methods count with the
median of their seeds.  The clients have equally many rows, and f is the same for all n: gradient descent, PowerSGD and
methods with shared seeds depend on the mean gradient only, and run once for all n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stepsize_opt.goals import LinearGoal
from stepsize_opt.limit import optimal_method
from stepsize_opt.methods import Feedback
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.plots import Style, styles_of
from stepsize_opt.problems import Federated, LogisticRegression, find_infimum
from stepsize_opt.sketches import RandK
from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.data import Dataset, federated_logistic, logistic_regression, split
from stepsize_validation.experiments import baselines
from stepsize_validation.experiments.baselines import Trace, floats_until
from stepsize_validation.experiments.spec import Experiment, Figure, Plan, Tables
from stepsize_validation.figures import file_pyplot, save_figure
from stepsize_validation.runs import log_steps, run, run_feedback

Generators = list[np.random.Generator]

REGULARISATIONS = (1e-3, 1e-2)
SHARES = (20, 4)  # k = d/20 and d/4
CLIENTS = (1, 10, 100)
LEVELS = (1e-2, 1e-4, 1e-6)
# Stepsizes times λmax(L); the best ones lie inside on nearly all panels.
MULTIPLES: Vector = np.exp2(np.arange(-3, 10, dtype=np.float64))
# A smaller model has more rounds to reach a level: its k is 1, not d/20.
_SMALL, _SMALL_FACTOR = 33, 2.5
_SEEDS = 5
_RANK = 4
# The figure has a panel of this setting for each of the first six data sets.
_SHOWN_REG, _SHOWN_SHARE, _SHOWN_CLIENTS, _PANELS = 1e-3, 20, 10, 6
_POINTS = 80
_PROBLEM = ["data", "d", "λ", "share", "k"]
_SETTING = [*_PROBLEM, "clients", "split"]
_NAMES = [f"{level:g}" for level in LEVELS]
_UNTUNED = "L-BFGS"
FEEDBACK, MOMENTUM = "feedback, eigenbasis", "momentum subspace"
_DRAWN = (
    FEEDBACK,
    "feedback, rank 4",
    MOMENTUM,
    "det-CGD1, optimal D",
    "EF21, top-k",
    "PowerSGD, rank 1",
    _UNTUNED,
    "Nesterov",
)


@dataclass(frozen=True, eq=False)
class Entry:
    """What one method did.

    stepsizes: multiples of 1/λmax(L), for a tuned method; setup: floats sent once, before the first round.
    rate, factor: E f(x^K) − f* ≤ factor (1 − rate)^K Δ⁰ is proved; a rate of 0 stands for no guarantee.
    """

    method: str
    trace: Trace
    ours: bool = False
    stepsizes: Vector | None = None
    setup: float = 0.0
    rate: float = 0.0
    factor: float = 1.0

    def floats(self, level: float) -> float:
        """Return the floats to a level, with the stepsize that is best for it."""
        return floats_until(self.trace.floats, self.trace.excess[:, self.trace.best(level)], level)

    def guaranteed(self, level: float) -> float:
        """Return the floats to a level that are proved to suffice in the mean."""
        if self.rate == 0.0:
            return math.nan
        per_round = float(self.trace.floats[1])
        return per_round * LinearGoal.rounds(self.rate, level, self.factor * float(self.trace.excess[0, 0]))

    def row(self) -> dict[str, Any]:
        """Return the row of the table ``floats``; a level that is not reached is missing."""
        last = self.trace.best(LEVELS[-1])
        reached = {name: self.floats(level) for name, level in zip(_NAMES, LEVELS, strict=True)}
        return {
            "method": self.method,
            "ours": self.ours,
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
                "ours": self.ours,
                "floats": floats[rounds],
                "excess": np.nanmin(self.trace.excess[rounds], axis=1),
                "bound": bound if self.rate else math.nan,
            }
        )


@dataclass(frozen=True, eq=False)
class Problem:
    """One objective with k floats per round; methods start from zero and end at the last level or with the budget."""

    f: LogisticRegression
    k: int
    budget: float
    seeds: int
    seed: int

    @cached_property
    def L(self) -> Matrix:
        return self.f.smoothness()

    @cached_property
    def least(self) -> float:
        """The smallest f that was found; its proved distance from f* is far below the last level."""
        return find_infimum(self.f).found

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

    def excess(self, X: Matrix) -> Vector:
        return self.f.value(X) - self.least

    def trace(self, points: Iterable[Matrix], floats: float, seeds: int = 1) -> Trace:
        return baselines.trace(
            points, self.excess, self.start, floats=floats, budget=self.budget, level=LEVELS[-1], seeds=seeds
        )

    def tuned(self, name: str, method: Callable[[Vector], Iterator[Matrix]], floats: float, seeds: int = 1) -> Entry:
        """Run a method, a function of the stepsizes of its runs, with all stepsizes and seeds."""
        points = method(np.tile(self.stepsizes, seeds))
        return Entry(name, self.trace(points, floats, seeds), stepsizes=MULTIPLES)

    def proved(self, name: str, answer: Any) -> Entry:
        """Run an answer for one node; E f(x^K) − f* ≤ (1 − rate)^K Δ⁰, with momentum twice that."""
        record = run(self.f, answer, iterations=int(self.budget / self.k), seeds=self.seeds, seed=self.seed)
        floats = np.concatenate([[0.0], record.floats()])
        excess = np.median(record.values - self.least, axis=0)
        factor = 2.0 if answer.momentum else 1.0
        return Entry(name, Trace(floats, excess[:, None]), ours=True, setup=self.whole, rate=answer.rate, factor=factor)


def feedback_trace(problem: Problem, f: Federated, feedback: Feedback) -> Trace:
    """Run error feedback with a measured stepsize to the budget, which the setup is not part of."""
    setup = feedback.setup_floats.mean
    record = run_feedback(f, feedback, floats=problem.budget + setup)
    floats = record.floats - setup + baselines.PLACE * record.places
    within = floats <= problem.budget
    return Trace(floats[within], (record.values - problem.least)[within, None])


def one_node(problem: Problem) -> list[Entry]:
    """Run what depends on the mean gradient only."""
    f, x, k, rng = problem.f, problem.start, problem.k, np.random.default_rng(problem.seed)
    goal: Any = {"goal": "linear", "strong_convexity": f.strong_convexity()}
    momentum = optimal_method(problem.L, k, **goal, momentum=True)
    subspace = optimal_method(problem.L, k, **goal)
    matrix = optimal_stepsize(problem.L, RandK(f.d, k), **goal)
    evaluations = baselines.lbfgs(f.value, f.gradient, x, int(problem.budget / (f.d + 1)))
    nesterov = partial(baselines.nesterov, f.gradient, x, mu=f.curvature_from_below)
    cgd = partial(baselines.cgd, f.gradient, x, k=k, rng=rng)
    power_sgd = partial(baselines.power_sgd, f.gradient, x, rank=1, rng=rng)
    return [
        problem.proved(MOMENTUM, momentum),
        problem.proved("subspace", subspace),
        problem.proved("det-CGD1, optimal D", matrix),
        problem.tuned("PowerSGD, rank 1", power_sgd, sum(baselines.power_sgd_shape(f.d)), problem.seeds),
        problem.tuned("CGD, rand-k", cgd, k, problem.seeds),
        problem.tuned("gradient descent", partial(baselines.gradient_descent, f.gradient, x), f.d),
        problem.tuned("Nesterov", nesterov, f.d),
        Entry(_UNTUNED, problem.trace(evaluations, f.d + 1)),
    ]


def with_clients(problem: Problem, parts: Iterable[Dataset]) -> list[Entry]:
    """Run the methods whose clients send what is largest on their own rows."""
    f, x, k = federated_logistic(tuple(parts), problem.f.reg, "ridge"), problem.start, problem.k
    entries = [
        problem.tuned("EF21, top-k", partial(baselines.ef21, f.client_gradients, x, k=k), (1.0 + baselines.PLACE) * k),
        problem.tuned("EF14, top-k", partial(baselines.ef14, f.client_gradients, x, k=k), (1.0 + baselines.PLACE) * k),
    ]
    low_rank = low_rank_bound(problem.L)
    variants: tuple[tuple[str, Any, Any, float], ...] = (
        (FEEDBACK, problem.L, "worst-case", problem.whole),
        ("feedback, eigenbasis, rule measured", problem.L, "measured", problem.whole),
        (f"feedback, rank {_RANK}", low_rank, "worst-case", low_rank.U.size),
        ("feedback, coordinates", None, "worst-case", 0.0),
    )
    for name, L, rule, setup in variants:
        feedback = Feedback(L, k, clients=f.n, rule=rule)
        entries.append(Entry(name, feedback_trace(problem, f, feedback), ours=True, setup=setup))
    return entries


def low_rank_bound(L: Matrix) -> LowRankPlusDiagonal:
    """Return the largest eigenvectors of L plus a multiple of I, above L up to rounding."""
    w, V = np.linalg.eigh(L)
    rank = min(_RANK, len(w) - 1)
    rest = w[-rank - 1]
    return LowRankPlusDiagonal(V[:, -rank:] * np.sqrt(np.maximum(w[-rank:] - rest, 0.0)), rest)


def client_counts(plan: Plan, m: int) -> list[int]:
    """Return the client counts of a plan, none above the number of rows."""
    return [n for n in ((1, 5) if plan.short else CLIENTS) if n <= m]


def parameters(data: Dataset, plan: Plan) -> range:
    """Return the places of the pairs of λ and k, one job each; a quick plan has the first."""
    return range(1 if plan.short else len(REGULARISATIONS) * len(SHARES))


def measure(data: Dataset, plan: Plan, parameter: int) -> Tables:
    """Run all methods on one data set with one λ and k.

    Columns that never occur are left out.  As many rows are kept, chosen at random, as all clients share equally.
    """
    reg, share = list(product(REGULARISATIONS, SHARES))[parameter]
    rng, counts = np.random.default_rng(plan.seed), client_counts(plan, data.m)
    rows = rng.permutation(data.m)[: data.m - data.m % max(counts)]
    used = np.flatnonzero(np.asarray(abs(data.A).sum(axis=0)).ravel())
    data = Dataset(data.name, data.A[rows][:, used], data.b[rows])
    budget = EXPERIMENT.steps(plan) * data.d * (_SMALL_FACTOR if data.d <= _SMALL else 1.0)
    f, k = logistic_regression(data, reg, "ridge"), max(1, data.d // share)
    problem = Problem(f, k, budget, min(plan.seeds, _SEEDS), plan.seed)
    runs: dict[tuple[Any, str], list[Entry]] = {("any", "any"): one_node(problem)}
    for n in counts:
        for kind in ("shuffled", "label") if n > 1 else ("shuffled",):
            runs[n, kind] = with_clients(problem, split(data, n, rng, kind))
    floats, curves = [], []
    for (n, kind), entries in runs.items():
        place = {"d": data.d, "λ": reg, "share": share, "k": k, "clients": n, "split": kind}
        floats.append(pd.DataFrame([place | entry.row() for entry in entries]))
        curves.append(pd.concat([entry.curve() for entry in entries]).assign(**place))
    return {"floats": pd.concat(floats, ignore_index=True), "curves": pd.concat(curves, ignore_index=True)}


def by_setting(table: Any) -> Any:
    """Repeat the rows that stand for any n in each setting of n and the split."""
    own, shared = table[table["clients"] != "any"], table[table["clients"] == "any"]
    settings = own[_SETTING].drop_duplicates()
    return pd.concat([own, settings.merge(shared.drop(columns=["clients", "split"]), on=_PROBLEM)], ignore_index=True)


def summarise(tables: Tables) -> Tables:
    """Return the floats and curves of the shown setting, and how often and by how much each method is best."""
    rows = by_setting(tables["floats"])
    return {"shown": shown_setting(rows), "ranking": ranking(rows), "figure": shown_curves(tables["curves"])}


def shown_curves(curves: Any) -> pd.DataFrame:
    """Return the curves of the figure: its methods on the first data sets."""
    shown = _shown(by_setting(curves))
    chosen = shown["method"].isin(_DRAWN) & shown["data"].isin(shown["data"].unique()[:_PANELS])
    columns = ["data", "d", "k", "method", "ours", "floats", "excess", "bound"]
    found: pd.DataFrame = shown.loc[chosen, columns].reset_index(drop=True)
    return found


def shown_setting(rows: Any) -> pd.DataFrame:
    """Return the floats to each level by data set and method, in the setting of the figure."""
    shown = _shown(rows)
    cells = [" / ".join(_cell(row[name]) for name in _NAMES) for _, row in shown.iterrows()]
    table = shown.assign(floats=cells).pivot(index="method", columns="data", values="floats")
    return table.loc[shown["method"].unique(), shown["data"].unique()].reset_index().rename_axis(columns=None)


def ranking(rows: Any) -> pd.DataFrame:
    """Return, for each method and level, in how many settings it needs the fewest floats, and the ratio to these.

    The ratio is the median of all settings; where a method does not reach the level, it is infinite.
    """
    found = {"setup/d": rows.groupby("method", sort=False).apply(lambda own: (own["setup"] / own["d"]).median())}
    for name in _NAMES:
        floats = rows[name].fillna(math.inf)
        least = floats.groupby([rows[key] for key in _SETTING]).transform("min")
        ratio = (floats / least).where(least < math.inf)
        found[f"best, {name}"] = (ratio == 1.0).groupby(rows["method"]).sum()
        found[f"ratio, {name}"] = ratio.groupby(rows["method"]).median()
    return pd.DataFrame(found).sort_values(f"ratio, {_NAMES[-1]}").rename_axis(index="method").reset_index()


def _shown(table: Any) -> Any:
    """Return the rows of the setting that the figure shows; of a quick plan the largest n."""
    chosen = (table["λ"] == _SHOWN_REG) & (table["share"] == _SHOWN_SHARE) & (table["split"] == "shuffled")
    table = table[chosen]
    n = _SHOWN_CLIENTS if (table["clients"] == _SHOWN_CLIENTS).any() else table["clients"].max()
    return table[table["clients"] == n]


def _cell(floats: float) -> str:
    return "—" if math.isnan(floats) else f"{floats:.0f}"


def draw(tables: Tables, title: str, path: Path) -> None:
    """Draw f − f* against the floats sent, a panel for each of the first data sets; guarantees are dashed."""
    curves = tables["figure"]
    kinds = dict(zip(curves["method"], curves["ours"], strict=True))
    styles = styles_of((method, bool(kinds[method])) for method in _DRAWN)
    names = curves["data"].unique()
    width = min(3, len(names))
    height = -(-len(names) // width)
    figure, axes = file_pyplot().subplots(
        height, width, figsize=(3.0 * width, 0.9 + 2.3 * height), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, name in zip(axes.flat, names, strict=False):
        _draw_panel(axis, curves[curves["data"] == name], styles)
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    figure.supxlabel("floats sent by one client", fontsize=10)
    figure.supylabel("$f - f^*$", fontsize=10)
    handles, labels = axes.flat[0].get_legend_handles_labels()
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
            label=method if ours or method == _UNTUNED else f"{method}, tuned",
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
    axis.set_title(f"{first['data']}, d = {first['d']}, k = {first['k']}", fontsize=10)
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
