"""One curve of an experiment as it is stored: what it is, what was found, and its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepsize_solvers.programs import Indices, Matrix, Vector
from stepsize_validation.runs import Run, log_steps, read_checkpoint, write_checkpoint

# Points of each stored curve and seed; between them a running mean on a log axis is a straight line.
_POINTS = 300


class PanelName(NamedTuple):
    """What tells one panel from another."""

    experiment: str
    dataset: str
    variant: str


@dataclass(frozen=True, eq=False)
class Curve:
    """One stored curve: ``meta`` says what it is and what was found, the arrays hold the numbers.

    steps: log-spread steps k; weighted, euclidean: G_k and E_k for each seed there, shape (s, steps); bits: at these
    steps, on average; mean_weighted, mean_euclidean, mean_metric: averages over seeds at every k = 1 … K; values,
    value_steps: f.  weighted is in the norm of the choice's guarantee (the plain one for a criterion other than det),
    metric in that of H whatever it is (NaN when H is not positive definite).
    """

    meta: dict[str, Any]
    steps: Indices
    weighted: Matrix
    euclidean: Matrix
    bits: Vector
    mean_weighted: Vector
    mean_euclidean: Vector
    mean_metric: Vector
    values: Matrix
    value_steps: Indices

    _ARRAYS = (
        "steps",
        "weighted",
        "euclidean",
        "bits",
        "mean_weighted",
        "mean_euclidean",
        "mean_metric",
        "values",
        "value_steps",
    )

    @staticmethod
    def of(meta: dict[str, Any], record: Run) -> Curve:
        steps = log_steps(record.iterations, _POINTS)
        metric = record.metric_means() if record.descent_rate > 0.0 else np.full_like(record.metric_norms, np.nan)
        euclidean = record.euclidean_means()
        weighted = metric if meta["guarantee"] == "descent" else record.weighted_means()
        if meta["criterion"] != "det":
            weighted = euclidean
        return Curve(
            meta,
            steps,
            weighted[:, steps - 1],
            euclidean[:, steps - 1],
            record.bits()[steps - 1],
            weighted.mean(axis=0),
            euclidean.mean(axis=0),
            metric.mean(axis=0),
            record.values,
            record.value_steps,
        )

    def save(self, path: Path) -> None:
        write_checkpoint(path, self.meta, {name: getattr(self, name) for name in self._ARRAYS})

    @staticmethod
    def load(path: Path) -> Curve:
        meta, arrays = read_checkpoint(path, meta=("settings",), arrays=Curve._ARRAYS)
        return Curve(meta, **{name: arrays[name] for name in Curve._ARRAYS})

    @property
    def bits_per_round(self) -> float:
        return float(self.bits[-1] / self.steps[-1])


def by_panel(curves: Iterable[Curve]) -> dict[PanelName, list[Curve]]:
    """The curves of each panel, in their order."""
    out: dict[PanelName, list[Curve]] = {}
    for curve in curves:
        name = PanelName(*(curve.meta[field] for field in PanelName._fields))
        out.setdefault(name, []).append(curve)
    return out
