"""Compare the runs of an experiment: steps and floats to a level, verdicts, and what the optimal D saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from stepsize_opt.methods import DetCGD2
from stepsize_solvers.programs import Vector
from stepsize_validation.experiments.spec import Experiment, Tables
from stepsize_validation.runs import first_below

# A quotient of fewer steps than this tells little: one step more or less changes it by more than a tenth.
_ENOUGH_STEPS = 10
_PANEL = ["data", "variant"]


def compared(experiment: Experiment, tables: Tables) -> Tables:
    """Return what the runs of an experiment tell: ``savings``, ``to level`` and ``verdicts``."""
    saved = savings(experiment, tables)
    counts = verdicts(experiment, tables["runs"])
    return {"savings": saved, "to level": runs_to_level(tables, saved), "verdicts": counts}


def savings(experiment: Experiment, tables: Tables) -> pd.DataFrame:
    """Return, for each panel and goal, iterations of the best of the paper's choices over those of the optimal D.

    ``predicted`` compares the iterations that the theory guarantees, ``observed`` the steps of the same two choices to
    the level, where both reach it after enough steps; otherwise ``why not observed`` has the reason.  (Not of the
    fastest: G_K is in the norm of each D, and a poor D may start below any level.)  Under the condition only choices
    that satisfy it count; in the descent metric every D with H ≻ 0 competes, with the rate of its H.  ``det-CGD1 only``
    leaves det-CGD2 out of the paper's.  Above 1 the optimal D saves; below 1 the paper's best is det-CGD2, whose
    condition allows more than det-CGD1's there.  The gaps are certified: the saving against the true optima is at least
    predicted/(1 + gap of the paper's choice) and at most predicted·(1 + gap of ours).  ``final f`` is f(x^K) minus the
    f^inf found, on average (negative where a run went below it): a better guarantee need not be a better run.
    """
    runs, curves = tables["runs"], _by_run(tables)
    rows = [
        _saving(experiment, panel, curves, goal)
        for _, panel in runs[runs["goal"].isin(["paper", "descent"])].groupby(_PANEL, sort=False)
        for goal in panel.loc[panel["ours"], "goal"].unique()
    ]
    return pd.DataFrame(rows)


def _by_run(tables: Tables) -> Any:
    return tables["curves"].groupby([*_PANEL, "method"])


def _curve(curves: Any, run: Any, column: str) -> Vector:
    """Return a column of the curve that belongs to a row of ``runs``."""
    found: Vector = curves.get_group((run.data, run.variant, run.method))[column].to_numpy()
    return found


def _saving(experiment: Experiment, panel: Any, curves: Any, goal: str) -> dict[str, Any]:
    """Compare the best of the paper's choices in a panel with the best of this project's, for one goal."""
    descent = goal == "descent"
    panel = panel.assign(cost=(1.0 / panel["descent_rate"]).fillna(panel["cost"]) if descent else panel["cost"])
    allowed = panel["feasible"] | (descent & panel["descent_rate"].notna())
    papers = panel[~panel["ours"] & allowed & panel.apply(experiment.comparable, axis=1)]
    own = panel[panel["ours"] & (panel["goal"] == goal)]
    paper, ours = papers.loc[papers["cost"].idxmin()], own.loc[own["cost"].idxmin()]
    means = [_curve(curves, run, "metric" if descent else "weighted") for run in (paper, ours)]
    level = _level(experiment, float(ours.epsilon2), means)
    theirs, mine = (first_below(mean, level) for mean in means)
    why = _why_not_observed(theirs, mine)
    return {
        "experiment": experiment.name,
        "data": ours.data,
        "variant": ours.variant,
        "goal": goal,
        "method": ours.method,
        "best of the paper": paper.method,
        "predicted": paper.cost / ours.cost,
        "predicted, det-CGD1 only": papers.loc[papers["algorithm"] != DetCGD2.name, "cost"].min() / ours.cost,
        "observed": float("nan") if why or not theirs or not mine else theirs / mine,
        "why not observed": why,
        "final f, paper": paper.excess,
        "final f, ours": ours.excess,
        "level": level,
        "gap, paper": paper.gap,
        "gap, ours": ours.gap,
    }


def _level(experiment: Experiment, epsilon2: float, means: list[Vector]) -> float:
    """Return the ε² at which two curves are compared: that of the panel; where the experiment asks for it, or a curve
    starts below it, the smallest level that both have reached."""
    reached = max(float(mean[-1]) for mean in means)
    if experiment.level_reached:
        return max(epsilon2, reached)
    return min(epsilon2, reached) if min(float(mean[0]) for mean in means) <= epsilon2 else epsilon2


def _why_not_observed(theirs: int | None, mine: int | None) -> str:
    """Return why steps to the level are no measure of a saving; empty where they are."""
    if theirs is None or mine is None:
        missing = ["the paper's"] * (theirs is None) + ["the optimal D"] * (mine is None)
        return f"level not reached by {' and '.join(missing)}"
    return f"{theirs} steps against {mine}: too few to compare" if min(theirs, mine) < _ENOUGH_STEPS else ""


def runs_to_level(tables: Tables, saved: Any) -> pd.DataFrame:
    """Return ``runs`` for readers, with steps and floats until G_K ≤ level (missing when not reached in the steps run).

    All curves of a panel have one level, the largest at which two of them are compared.
    """
    runs, curves = tables["runs"], _by_run(tables)
    runs = runs.join(saved.groupby(_PANEL)["level"].max(), on=_PANEL)
    runs["level"] = runs[["level", "epsilon2"]].max(axis=1)
    for name, column in (("K", "weighted"), ("K (Euclidean)", "euclidean")):
        steps = [first_below(_curve(curves, run, column), run.level) for run in runs.itertuples()]
        runs[name] = pd.array(steps, dtype="Int64")
    by_condition = runs["goal"] == "paper"
    satisfied = runs["feasible"].map({True: "proved", False: "not satisfied"})
    runs["condition"] = satisfied.where(by_condition, "not needed")
    runs["floats"] = runs["K"] * runs["floats_per_round"]
    runs["rate"] = runs["rate"].where(by_condition & runs["feasible"])
    runs["verdict"] += runs["feasible"].map({True: "", False: " (no guarantee)"})
    names = {"descent_rate": "descent rate", "theory": "theory K", "descent_verdict": "verdict, descent"}
    columns = "data variant method ours rate descent_rate efficiency gap condition theory level K floats".split()
    checked = ["K (Euclidean)", "observed", "upper", "bound", "verdict", "descent_verdict", "excess"]
    return runs[columns + checked].rename(columns={**names, "excess": "f(x^K) − f^inf"})


def verdicts(experiment: Experiment, runs: pd.DataFrame) -> pd.DataFrame:
    """Count the verdicts on each kind of bound: of the condition, for choices that satisfy it and for those that do
    not, of the goals euclidean and linear, and of the descent metric, for every choice that has one."""
    found = [("descent metric", verdict) for verdict in runs["descent_verdict"].dropna()]
    for run in runs.itertuples():
        if run.goal == "paper":
            found.append(("condition" if run.feasible else "condition not satisfied", run.verdict))
        elif run.goal != "descent":
            found.append((f"goal {run.goal}", run.verdict))
    counts = pd.DataFrame(found, columns=["bounds", "verdict"]).value_counts().unstack(fill_value=0)
    counts = counts.reindex(columns=["holds", "undecided", "violated", "diverged"], fill_value=0).reset_index()
    counts.insert(0, "experiment", experiment.name)
    return counts.rename_axis(columns=None)


def all_hold(runs: pd.DataFrame) -> bool:
    """Return whether no run violates the bound of a guarantee that it satisfies, or of its descent metric."""
    violated = runs["feasible"] & runs["verdict"].isin(["violated", "diverged"])
    outside = violated | (runs["descent_verdict"] == "violated")
    return not np.any(outside.to_numpy())
