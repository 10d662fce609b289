"""Compute the tables and numbers that ``fill.py`` writes into the pages: ``BLOCKS`` has a function for each name."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stepsize_opt.certificates import LARGEST
from stepsize_opt.inputs.checks import LARGE
from stepsize_validation.bench.plots import draw_all
from stepsize_validation.bench.results import Results, absent, all_tables, competing, settings_text, summary, within
from stepsize_validation.experiments import versus

DOCS = Path(__file__).resolve().parent
BLOCKS: dict[str, Callable[[], str]] = {}
SETS = ["a1a", "phishing", "mushrooms", "australian_scale", "heart_scale", "w1a"]
METHODS = ["det-CGD2, optimal", "det-CGD1, optimal", "det-CGD1, optimal, descent", "subspace"]
SHOWN = [
    versus.FEEDBACK,
    versus.EIGENBASIS,
    versus.MOMENTUM,
    versus.EF21,
    "PowerSGD, rank 1",
    "GIANT",
    "L-BFGS, metric of L",
    versus.LBFGS,
]
# The cases of large models that the page shows; docs/results/scale.csv has all.
SCALE = [
    "det-CGD2, r = 16",
    "diagonal, r = 16",
    "subspace, r = 16",
    "diagonal, one-hot data",
    "det-CGD2, r = 128",
    "diagonal, r = 128",
    "subspace, r = 128",
]


def block(function: Callable[[], str]) -> Callable[[], str]:
    """Register a function under its name, with hyphens."""
    BLOCKS[function.__name__.strip("_").replace("_", "-")] = function
    return function


def stored(name: str) -> Path:
    """Return the file of a stored table."""
    return DOCS / "results" / f"{name}.csv"


@functools.cache
def read(name: str) -> Any:
    """Return a stored table."""
    return pd.read_csv(stored(name), comment="#")


def markdown(table: Any, index: str = "") -> str:
    """Return a table in Markdown: text as it is, columns to the right, the index named."""
    rows = [[index, *table.columns], *table.reset_index().astype(str).to_numpy().tolist()]
    head, *body = [re.sub(r" {2,}", " ", f"| {' | '.join(map(str, row))} |") for row in rows]
    return "\n".join([head, "|:---" + "|---:" * table.shape[1] + "|", *body])


def grouped(number: float) -> str:
    """Return a whole number with its digits in groups of three."""
    return f"{number:,.0f}".replace(",", "\u202f")


def factor(number: float) -> str:
    """Return a factor with two digits."""
    return f"{number:.0f}" if number >= 10.0 else f"{number:.1f}"


def seconds(number: float) -> str:
    """Return a time with two digits."""
    if number < 1.0:
        return f"{1e3 * number:.0f} ms" if number >= 0.01 else f"{1e3 * number:.2g} ms"
    return f"{number:.0f} s" if number >= 10.0 else f"{number:.1f} s"


def power_of_ten(number: float, digits: int = 0) -> str:
    """Return a number as a formula, such as 4·10⁻³."""
    leading, power = f"{number:.{digits}e}".split("e")
    return f"${leading}\\cdot10^{{{int(power)}}}$"


def span(values: Any) -> str:
    """Return the smallest and the largest value."""
    return f"{values.min():.2f} to {values.max():.2f}"


def draw() -> None:
    """Draw the figures of experiment (f) and of the solver benchmark."""
    versus.draw({"figure": read("figure")}, "", DOCS / "results" / "floats.png")
    draw_all(_bench(), DOCS / "benchmark")


# Experiment (f): against what people tune


@functools.cache
def _panels() -> Any:
    """Return the floats of every method in every panel."""
    return versus.by_panel(read("floats"))


def _shown() -> Any:
    """Return the floats to 1e-6 by data set and method, for the smaller λ and rows split at random."""
    rows = _panels().query(f"λ == {versus.REGULARISATIONS[0]} and split == 'shuffled'")
    return rows.pivot_table(index="data", columns="method", values="1e-06", sort=False, dropna=False)[SHOWN]


@block
def _versus() -> str:
    return markdown(_shown().map(lambda floats: "—" if np.isnan(floats) else f"{floats:.0f}"), "data")


@block
def _panels_count() -> str:
    return str(len(_panels()[["data", "λ", "split"]].drop_duplicates()))


@block
def _ranking() -> str:
    return markdown(versus.ranking(_panels()).set_index("method").map("{:.3g}".format), "method")


@block
def _conditions() -> str:
    """Return the condition numbers at x*, and the floats over those of tuned EF21, for the smaller λ."""
    λ = versus.REGULARISATIONS[0]
    numbers = read("conditions").query(f"λ == {λ}").set_index("data")[["coordinates", "L", "shuffled"]]
    ratios = versus.over_ef21(_panels(), "1e-06").reset_index()
    own = ratios.query(f"λ == {λ} and split == 'shuffled'").set_index("data")[versus.FEEDBACK]
    table = numbers.rename(columns={"L": "metric of $L$", "shuffled": "metric of one client"})
    return markdown(table.assign(**{"feedback / EF21": own}).map("{:.3g}".format), "data")


def _quantile(level: str, share: float) -> str:
    return f"{versus.over_ef21(_panels(), level)[versus.FEEDBACK].quantile(share):.2f}"


def _over_feedback(method: str) -> str:
    """Return the median of the floats of a method over those of feedback in the metric of one client, to 1e-6."""
    ratios = versus.over_ef21(_panels(), "1e-06")
    return f"{(ratios[method] / ratios[versus.FEEDBACK]).median():.1f}"


BLOCKS |= {
    **{f"own-{place}": functools.partial(_quantile, level, 0.5) for place, level in enumerate(versus.NAMES)},
    **{f"own-least-{place}": functools.partial(_quantile, level, 0.0) for place, level in enumerate(versus.NAMES)},
    **{f"own-most-{place}": functools.partial(_quantile, level, 1.0) for place, level in enumerate(versus.NAMES)},
    "lbfgs": functools.partial(_over_feedback, versus.LBFGS),
    "lbfgs-metric": functools.partial(_over_feedback, "L-BFGS, metric of L"),
    "giant": functools.partial(_over_feedback, "GIANT"),
    "momentum-floats": functools.partial(_over_feedback, versus.MOMENTUM),
    "powersgd": functools.partial(_over_feedback, "PowerSGD, rank 1"),
}


@block
def _wins() -> str:
    """Return in how many panels feedback needs fewer floats than tuned EF21, at each level."""
    counts = [(versus.over_ef21(_panels(), level)[versus.FEEDBACK] < 1.0).sum() for level in versus.NAMES]
    return " / ".join(map(str, counts))


@block
def _used() -> str:
    rows = read("floats").query(f"method == '{versus.MOMENTUM}'")
    used = 100.0 * (rows["1e-06"] - rows["setup"]) / (rows["guarantee"] - rows["setup"])
    return f"{used.min():.0f} to {used.max():.0f} %"


# Experiments (a) to (e)


def _limit_runs() -> Any:
    """Return the runs of (e) by method and data, with the subspace method of the goal descent only."""
    runs = read("runs").query("experiment == 'e' and goal not in ('euclidean', 'linear')")
    method = runs["method"].str.replace("^subspace.*", "subspace", regex=True)
    return runs.assign(method=method).set_index(["method", "data"])


@block
def _matrix() -> str:
    runs = _limit_runs()
    cgd, rows = runs.loc["CGD"], {}
    for method in METHODS:
        own = runs.loc[method]
        guarantee, gradient = own["efficiency"] / cgd["efficiency"], cgd["euclidean"] / own["euclidean"]
        rows[method] = [f"{factor(guarantee[name])} / {factor(gradient[name])}" for name in SETS]
    return markdown(pd.DataFrame(rows, index=SETS).T)


@block
def _methods() -> str:
    gains, rows = read("gains"), {}
    for label, column in (
        ('det-CGD1, `goal="descent"`', "descent"),
        ("det-CGD1, the paper's condition alone", "paper"),
    ):
        ratios = gains[column] / gains["det-CGD2"]
        rows[label] = {f"$k = {share}$": span(ratios[gains["share"] == share]) for share in gains["share"].unique()}
    return markdown(pd.DataFrame(rows).T)


def _gain(column: str) -> str:
    """Return how much better a rate is than that of the paper's condition, for λ = 10⁻³."""
    hard = read("gains").query("λ == 1e-3")
    return span(hard[column] / hard["paper"])


BLOCKS |= {
    "descent-gain": functools.partial(_gain, "descent"),
    "same-d-gain": functools.partial(_gain, "paper D, descent"),
}


@block
def _savings() -> str:
    saved, rows = read("savings").query("goal == 'descent'"), {}
    for experiment, title in (("a", "(a) rand-1"), ("b", "(b) rand-$d/4$"), ("d", "(d) layers")):
        own = saved[saved["experiment"] == experiment].drop_duplicates("data").set_index("data")
        rows[title] = _predicted_observed(own)[SETS]
    return markdown(pd.DataFrame(rows).T)


def _predicted_observed(saved: Any) -> Any:
    observed = saved["observed"].map("{:.2f}".format).replace("nan", "–")
    return saved["predicted"].map("{:.2f}".format) + " / " + observed


@block
def _verdicts() -> str:
    counts = read("verdicts").groupby("bounds", sort=False)[["holds", "undecided", "violated", "diverged"]].sum()
    return markdown(counts.astype(str), "bounds of")


@block
def _lower_f() -> str:
    own = read("savings").query(
        "experiment == 'b' and goal == 'descent' and data in ('a1a', 'phishing', 'mushrooms', 'w1a')"
    )
    return f"{(own['final f, paper'] < own['final f, ours']).sum()} of {len(own)}"


@block
def _clients() -> str:
    runs = read("runs").query("experiment == 'c'")
    runs = runs[runs["variant"].str.startswith("n = 10,")]
    methods = ["DCGD", "DCGD-mat", "D-det-CGD1, diagonal", "D-det-CGD1, full", "D-det-CGD2, full"]
    rounds = runs.pivot(index="data", columns="method", values="theory")[methods].map("{:.2e}".format)
    saved = read("savings").query("experiment == 'c' and goal == 'paper'").drop_duplicates("data").set_index("data")
    table = rounds.assign(**{"saving: predicted / observed": _predicted_observed(saved)})
    return markdown(table.loc[[name for name in SETS if name in table.index]], "data")


@block
def _momentum() -> str:
    lines = (DOCS / "results" / "momentum.txt").read_text(encoding="utf-8").split("\n\n")[-1].strip().splitlines()
    rows = [line for line in lines if "| 0.001 |" in line]
    return "\n".join(re.sub(r"^(\|[^|]*\|)[^|]*\|", r"\1", line) for line in (*lines[:2], *rows))


@block
def _factors() -> str:
    factors = read("factors")
    counts = pd.crosstab(factors["verdict"], factors["factor"])
    return markdown(counts.rename(columns="{:g} L".format).astype(str), "verdict for the stepsize of")


@block
def _margins() -> str:
    table = read("margins").iloc[::-1]
    rows = {}
    for margin in table.to_dict("records"):
        least, most = re.findall(r"[\d.]+|inf", margin["rows per coordinate"])
        name = f"{float(least):g} or more" if most == "inf" else f"{float(least):g} to {float(most):g}"
        worst = margin["margin, 95 %"]
        enough = f"{np.ceil(20.0 * worst) / 20.0:.3g}" if worst < 5.0 else "do not estimate $L$ from so few"
        rows[name] = {
            "worst margin": f"{worst:.2f}",
            "on": f"{margin['data']}, {margin['sketch']}",
            "divide by": enough,
        }
    return markdown(pd.DataFrame(rows).T, "rows per coordinate")


# Which goal runs best


def _seen(goal: str) -> str:
    """Return the mean of ‖∇f‖² in the runs of an example, with the full D of a goal."""
    text = (DOCS / "examples" / "goals_on_data.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{goal} +full +\S+ +(\S+)", text, re.M)
    assert found is not None
    return power_of_ten(float(found[1]), digits=1)


BLOCKS |= {"euclidean-seen": lambda: _seen("euclidean"), "descent-seen": lambda: _seen("descent")}


# The first page

_CLOSED = ["γI", "γ diag⁻¹(L)", "γ L^−½", "γ L⁻¹", "det-CGD2"]


@functools.cache
def _first_page() -> Any:
    """Return the floats by panel and level, a column for each method and for the best of the closed forms."""
    table = read("first_page").melt(["data", "k", "method"], ["0.01", "0.0001", "1e-06"], "level", "floats")
    floats = table.pivot(index=["level", "data", "k"], columns="method", values="floats")
    return floats.assign(**{"best closed form": floats[_CLOSED].min(axis=1)})


def _over_optimal(method: str, level: str = "1e-06", optimal: str = "optimal D") -> Any:
    """Return the floats of a method over those of the optimal D, for each panel."""
    floats = _first_page().loc[level]
    return floats[method] / floats[optimal]


def _middle(method: str, level: str = "1e-06", optimal: str = "optimal D") -> str:
    return f"{_over_optimal(method, level, optimal).median():.1f}"


def _range(method: str) -> str:
    ratios = _over_optimal(method)
    return f"{ratios.min():.1f}–{ratios.max():.1f}"


def _panels_won(method: str) -> str:
    """Return in how many panels a method needs fewer floats than the optimal D."""
    return str((_over_optimal(method) < 1.0).sum())


def _best_k(method: str) -> str:
    """Return the median over the data sets of the floats to 1e-6 over those of the optimal D, each with its best k."""
    floats = _first_page().loc["1e-06"].groupby("data").min()
    return f"{(floats[method] / floats['optimal D']).median():.1f}"


@block
def _first_page_table() -> str:
    """Return the median, smallest and largest factor of each method at each level."""
    rows = {}
    for method in ("γI", *_CLOSED[1:], "best closed form", "optimal D of (3)", "γI, tuned", "cD, tuned"):
        ratios = {level: _over_optimal(method, level) for level in ("0.01", "0.0001", "1e-06")}
        rows[method] = {f"to {level}": _factors_text(own) for level, own in ratios.items()}
    return markdown(pd.DataFrame(rows).T, "stepsize")


def _factors_text(ratios: Any) -> str:
    values = (ratios.median(), ratios.min(), ratios.max())
    middle, least, most = ("—" if np.isinf(value) else f"{value:.2f}" for value in values)
    return f"{middle} ({least} to {most})"


BLOCKS |= {
    "first-panels": lambda: str(len(_first_page().loc["1e-06"])),
    "first-cgd": functools.partial(_middle, "γI"),
    "first-cgd-range": functools.partial(_range, "γI"),
    "first-closed": functools.partial(_middle, "best closed form"),
    "first-closed-range": functools.partial(_range, "best closed form"),
    "first-cgd-low": functools.partial(_middle, "γI", "0.01"),
    "first-closed-low": functools.partial(_middle, "best closed form", "0.01"),
    "first-cgd-best-k": functools.partial(_best_k, "γI"),
    "first-closed-best-k": functools.partial(_best_k, "best closed form"),
    "first-closed-wins": functools.partial(_panels_won, "best closed form"),
    "first-tuned-wins": functools.partial(_panels_won, "γI, tuned"),
    "first-tuned": functools.partial(_middle, "γI, tuned", optimal="cD, tuned"),
}


def _a1a(column: str) -> str:
    """Return how many times better the optimal D is than γI on a1a."""
    rows = read("demo").set_index("stepsize")[column]
    ratio = rows["γ I"] / rows["optimal, descent"]
    return f"{max(ratio, 1.0 / ratio):.1f}"


def _rounds(pattern: str) -> str:
    """Return a number of rounds that the example of clients prints."""
    found = re.search(rf"{pattern} +(\d+)", (DOCS / "examples" / "federated.txt").read_text(encoding="utf-8"))
    assert found is not None
    return grouped(float(found[1]))


def _native(what: str, case: str = "d = 40") -> float:
    return float(read("native").set_index(["what", "case"])["value"][what, case])


BLOCKS |= {
    "a1a-guarantee": lambda: _a1a("rounds"),
    "a1a-gradient": lambda: _a1a("mean_squared_gradient"),
    "a1a-excess": lambda: _a1a("final_gap"),
    "dcgd-rounds": lambda: _rounds("textbook DCGD"),
    "shared-rounds": lambda: _rounds("a shared sketch"),
    "native-40": lambda: seconds(_native("clarabel: native seconds")),
    "clarabel-40": lambda: seconds(_native("clarabel: processor seconds")),
}


@block
def _infeasible() -> str:
    margins = -read("native").query("what == 'clarabel: margin'")["value"]
    return f"{power_of_ten(margins.min())} to {power_of_ten(margins.max())}"


# The benchmark page


@functools.cache
def _bench() -> Results:
    return Results.read(DOCS / "benchmark")


def _bench_table(name: str) -> str:
    table = next(table for table in all_tables(_bench()) if table.title.startswith(name))
    return f"{table.text}\n\n{markdown(table.frame, str(table.frame.index.name))}"


BLOCKS |= {
    f"bench-{name.lower().replace(' ', '-')}": functools.partial(_bench_table, name)
    for name in ("Solvers", "Size", "Real data")
}
BLOCKS["bench-summary"] = lambda: " ".join(summary(_bench()))
BLOCKS["bench-settings"] = lambda: settings_text(_bench())


@block
def _bench_door() -> str:
    """Return each solver's time at d = 40 and how far its own point lies outside the feasible set."""
    rungs = within(competing(_bench()), _bench().settings.main_target).query("problem == 'd=40'")
    own = rungs.drop_duplicates("solver").set_index("solver")
    outside = own["raw_violation"].map(lambda distance: f"{distance:.0e}" if distance > 1e-15 else "feasible")
    table = pd.DataFrame({"processor time": own["seconds"].map(seconds), "its own D is outside by": outside})
    gone = pd.DataFrame.from_dict(absent(_bench()), orient="index", columns=["processor time"])
    return markdown(pd.concat([table, gone]).fillna("–"), "solver")


@block
def _call() -> str:
    rows = read("native").query("what == 'call: times faster than a cvxpy model'").set_index("case")
    milliseconds = rows["note"].str.extract(r"^(\S+) ms", expand=False)
    return markdown(pd.DataFrame({"milliseconds": milliseconds, "times faster": rows["value"].map("{:.3g}".format)}).T)


@block
def _clarabel() -> str:
    table = read("native").query("study == 'clarabel'").pivot(index="what", columns="case", values="value")
    names = {"clarabel: native seconds": "this package", "clarabel: processor seconds": "cvxpy model with Clarabel"}
    shown = table.loc[list(names)].map(seconds).rename(index=names)
    shown.loc["Clarabel's $D$ is infeasible by"] = (-table.loc["clarabel: margin"]).map("{:.0e}".format)
    return markdown(shown)


@block
def _scale() -> str:
    rows = read("scale")
    rows = rows.join(rows["case"].str.extract(r"^(?P<name>.*), d = (?P<d>\d+)$")).dropna(subset="d")
    tables = rows.pivot(index=["what", "name"], columns="d", values="value")
    shown = tables.loc["scale: processor seconds"].map(seconds).rename(columns=lambda d: f"$d = 10^{len(d) - 1}$")
    shown["peak memory"] = tables.loc["scale: GiB"].iloc[:, -1].map("{:.2g} GiB".format)
    return markdown(shown.loc[SCALE])


def _slowest() -> Any:
    """Return the slowest k of each d: its time, and that in units of one eigh."""
    rows = read("growth").query("what == 'eigh by size'")
    rows = rows.assign(d=rows["case"].str.extract(r"(d = \d+)", expand=False))
    slowest = rows.loc[rows.groupby("d", sort=False)["value"].idxmax()].set_index("d")
    taken = slowest["note"].str.extract(r"^(\S+) s", expand=False).astype(float)
    return pd.DataFrame({"seconds": taken.map(seconds), "eigh": slowest["value"].map("{:.0f}".format)})


@block
def _growth() -> str:
    return markdown(_slowest().T)


def _verified(d: int) -> str:
    """Return the shortest and the longest processor time of verify.py."""
    times = read("certificates").query(f"case.str.endswith('d = {d}')")["value"]
    return f"{seconds(times.min())} to {seconds(times.max())}"


BLOCKS |= {
    "largest-dense": lambda: str(LARGE),
    "largest-file": lambda: str(LARGEST),
    "growth-1000": lambda: str(_slowest().loc["d = 1000", "seconds"]),
    "verify-30": lambda: _verified(30),
    "verify-200": lambda: _verified(200),
}


# The training page


@functools.cache
def _study() -> Any:
    """Return the runs of docs/training."""
    table = pd.read_csv(DOCS / "training" / "full.csv", comment="#")
    return table.assign(tuned=table["tuned"].notna())


def _medians(column: str, budget: int) -> Any:
    """Return the medians over the seeds at a budget; a value that is missing in most runs is missing."""
    table = _study().query("budget == @budget")
    values = table[column].fillna(np.inf).groupby([table["method"], table["problem"]]).median().unstack()
    return values.loc[table["method"].unique(), table["problem"].unique()].replace(np.inf, np.nan)


@block
def _training_full() -> str:
    """Return the losses at both budgets, and the accuracy at the larger one."""
    small, large = (
        _medians("loss", budget).clip(lower=0.0).map("{:.1e}".format).replace("nan", "—") for budget in (10, 30)
    )
    accuracy = (100.0 * _medians("accuracy", 30)).map(", {:.1f} %".format).replace(", nan %", "")
    return markdown(small + " / " + large + accuracy, "method")


def _leads() -> str:
    """Return by how much feedback is below the best tuned baseline for each problem, or above it."""
    losses, table = _medians("loss", 30), _study()
    baselines = losses.loc[table.loc[table["tuned"], "method"].unique()]
    feedback = losses.loc["feedback"].fillna(losses.loc["feedback, rank 4 estimated"])
    said = []
    for case, value in feedback.items():
        ratio, best = float(baselines[case].min() / value), baselines[case].idxmin()
        side = f"{ratio:.2g} times below" if ratio > 1.0 else f"{1.0 / ratio:.2g} times above"
        said.append(f"{case} {side} {best}")
    return ", ".join(said)


BLOCKS |= {"training-lead-30": _leads}


# The Flower page


@block
def _flower_bytes() -> str:
    rows = read("flower").query("table == 'bytes'")
    sent = rows["up"].map("{:.1f}".format) + " / " + rows["down"].map("{:.1f}".format)
    case = rows["problem"].replace("logistic", "random") + ", " + rows["level"].map("{:g}".format)
    cells = rows.assign(case=case, sent=sent.where(np.isfinite(rows["up"]), "—"))
    table = cells.pivot(index="method", columns="case", values="sent").loc[rows["method"].unique(), case.unique()]
    setup = rows.drop_duplicates("method").set_index("method")["setup"].map("{:.1f}".format)
    return markdown(table.assign(setup=setup), "method")


def _gap(case: str) -> str:
    """Return the gap over the living clients after 60 rounds, as a power of ten."""
    gaps = read("flower").query("table == 'forgotten'").set_index("method")["gap"]
    return power_of_ten(gaps[case], digits=1)


BLOCKS |= {
    "flower-alive": lambda: _gap("nobody dies"),
    "flower-never": lambda: _gap("never forgotten"),
    "flower-forgotten": lambda: _gap("forgotten after 20 rounds"),
}
