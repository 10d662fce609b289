"""Draw the runs of the demonstration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stepsize_validation.figures import Line, draw_panels
from stepsize_validation.runs import Run, log_steps

_POINTS = 300


def demo_figure(path: Path, title: str, runs: Mapping[str, Run], data: str, sketch: str) -> None:
    """Draw one panel with the mean of G_K over the seeds of each run; the optimal D of det-CGD1 is drawn thicker."""
    lines = []
    for label, record in runs.items():
        means = record.metric_means() if label.endswith("descent") else record.weighted_means()
        k = log_steps(record.iterations, _POINTS)
        error = 2.0 * means.std(axis=0) / max(1.0, record.seeds - 1.0) ** 0.5
        lines.append(Line(label, "det-CGD1, optimal" in label, k, means.mean(axis=0)[k - 1], error[k - 1]))
    y_label = "$G_K$, weighted by $D$ (descent: $H$)"
    draw_panels({f"{data}, {sketch}": lines}, path, title=title, x_label="iterations K", y_label=y_label)
