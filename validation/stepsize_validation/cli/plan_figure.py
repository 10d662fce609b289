"""The picture of a plan: rounds against numbers sent, the limit as a line."""

from __future__ import annotations

from pathlib import Path

from stepsize_opt.planning import Plan, PlanRow
from stepsize_validation.figures import OTHERS, OURS, pyplot, save_figure

_STYLES = (*OTHERS, *OURS)


def plan_figure(plan: Plan, path: Path) -> Path:
    """One panel for each goal; a point is a method with its k, the best is circled, grey is outside the budget."""
    plt = pyplot()
    count = len(plan.goals)
    figure, axes = plt.subplots(1, count, figsize=(5.5 * count, 5.0), squeeze=False)
    names = list(dict.fromkeys(_name(row) for row in plan.rows))
    styles = {name: _STYLES[i % len(_STYLES)] for i, name in enumerate(names)}
    for axis, goal in zip(axes.flat, plan.goals, strict=True):
        limit = sorted(plan.limits[goal])
        sent = [plan.clients * k * rounds for k, rounds in limit]
        axis.plot(sent, [rounds for _, rounds in limit], color="0.4", linewidth=1, label="limit", zorder=1)
        for name in names:
            rows = [row for row in plan.rows if row.goal == goal and _name(row) == name]
            if not rows:
                continue
            colour, _, marker = styles[name]
            colours = [colour if plan.budget.holds(row) else "0.75" for row in rows]
            axis.scatter([r.numbers for r in rows], [r.rounds for r in rows], c=colours, marker=marker, zorder=2)
            axis.scatter([], [], c=colour, marker=marker, label=name)  # the legend's entry
        best = plan.best_for(goal)
        if best is not None:
            ring = {"s": 220, "facecolors": "none", "edgecolors": "black"}
            axis.scatter([best.numbers], [best.rounds], **ring, label="best within the budget", zorder=3)
        axis.set(xscale="log", yscale="log", title=f"{goal}: {plan.budget}")
        axis.set(xlabel="floats sent by all in all rounds", ylabel="rounds until the accuracy is guaranteed")
        axis.title.set_fontsize(10)
        axis.grid(visible=True, which="major", color="0.9")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=max(2, min(3, 2 * count)), fontsize=8, frameon=False)
    figure.tight_layout(rect=(0.0, 0.04 + 0.045 * -(-len(labels) // max(2, min(3, 2 * count))), 1.0, 1.0))
    save_figure(figure, path, dpi=150)
    plt.close(figure)
    return path


def _name(row: PlanRow) -> str:
    return ", ".join([row.method, row.stepsize, *(["independent draws"] if row.seeds == "independent" else [])])
