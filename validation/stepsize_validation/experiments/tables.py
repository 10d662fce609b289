"""Tables of the experiments: iterations and bits to a level, verdicts, and what the optimal D saves."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from stepsize_opt.methods import DetCGD2
from stepsize_solvers.programs import Vector
from stepsize_validation.experiments.catalogue import EXPERIMENTS
from stepsize_validation.experiments.curve import Curve, by_panel
from stepsize_validation.runs import first_below

Record = dict[str, Any]
# A quotient of fewer steps than this says little: one step more or less changes it by more than a tenth.
_ENOUGH_STEPS = 10


@dataclass(frozen=True)
class Rivals:
    """The best of the paper's choices and the best of this project's, by the theory, under one guarantee.

    Under the condition the paper's choices have to satisfy it; in the descent metric every D with H ≻ 0 competes, with
    the rate of its H.
    """

    paper: Curve
    ours: Curve
    guarantee: str

    @staticmethod
    def of(group: Sequence[Curve], guarantee: str) -> Rivals:
        cost = partial(_cost, guarantee=guarantee)
        ours = (curve for curve in group if curve.meta["ours"] and curve.meta["guarantee"] == guarantee)
        return Rivals(min(_papers(group, guarantee), key=cost), min(ours, key=cost), guarantee)

    @property
    def means(self) -> list[Vector]:
        """The weighted means of both, in the norms of the guarantee, at every step."""
        descent = self.guarantee == "descent"
        return [curve.mean_metric if descent else curve.mean_weighted for curve in (self.paper, self.ours)]

    @property
    def level(self) -> float:
        """The ε² at which both are compared: the panel's own; where its experiment says so, or a curve starts below it,
        the smallest level that both have reached."""
        own = float(self.ours.meta["epsilon2"])
        reached = max(float(mean[-1]) for mean in self.means)
        if EXPERIMENTS[self.ours.meta["experiment"]].level_reached:
            return max(own, reached)
        return min(own, reached) if min(float(mean[0]) for mean in self.means) <= own else own


def rivals_of(group: Sequence[Curve]) -> list[Rivals]:
    """For each guarantee that one of this project's choices was made for."""
    group = [curve for curve in group if curve.meta["criterion"] == "det"]
    guarantees = dict.fromkeys(str(curve.meta["guarantee"]) for curve in group if curve.meta["ours"])
    return [Rivals.of(group, guarantee) for guarantee in guarantees]


def _papers(group: Sequence[Curve], guarantee: str) -> list[Curve]:
    comparable = EXPERIMENTS[group[0].meta["experiment"]].comparable
    return [
        curve
        for curve in group
        if not curve.meta["ours"]
        and comparable(curve)
        and (curve.meta["feasible"] or (guarantee == "descent" and curve.meta["descent_cost"]))
    ]


def _cost(curve: Curve, guarantee: str) -> float:
    """Iterations that the theory asks for, not rounded."""
    descent = curve.meta["descent_cost"] if guarantee == "descent" else None
    return float(curve.meta["cost"] if descent is None else descent)


def curve_records(curves: Sequence[Curve]) -> list[Record]:
    """One record for each curve: rate, verdict, K and bits to ε² (None when not reached in the steps run)."""
    records = []
    for group in by_panel(curves).values():
        # One level for all curves, though one of them may start below it.
        level = max(float(group[0].meta["epsilon2"]), *(rivals.level for rivals in rivals_of(group)))
        for curve in group:
            meta = curve.meta
            k = first_below(curve.mean_weighted, level)
            e = first_below(curve.mean_euclidean, level)
            records.append(
                {
                    "experiment": meta["experiment"],
                    "data": meta["dataset"],
                    "variant": meta["variant"],
                    "method": meta["label"],
                    "rate": meta["rate"] if meta["guarantee"] == "condition" and meta["feasible"] else None,
                    "descent rate": meta["descent_rate"] or None,
                    "efficiency": meta["efficiency"],
                    "gap": meta["gap"],
                    "condition": _condition(meta),
                    "theory K": meta["theory_iterations"],
                    "level": level,
                    "K": k,
                    "bits": None if k is None else k * curve.bits_per_round,
                    "K (Euclidean)": e,
                    "observed": meta["observed"],
                    "upper": meta["upper"],
                    "bound": meta["bound"],
                    "verdict": meta["verdict"] if meta["diverged_at"] is None else "diverged",
                    "verdict, descent": meta["descent_verdict"],
                    "f(x^K) − f^inf": meta["final_gap"],
                    "ours": meta["ours"],
                }
            )
    return records


def _condition(meta: Mapping[str, Any]) -> str:
    """Whether the D of a curve satisfies the condition of its method."""
    if meta["guarantee"] == "descent":
        return "not needed"
    return "proved" if meta["feasible"] else "not satisfied"


def savings(curves: Sequence[Curve]) -> list[Record]:
    """For each panel and guarantee: iterations of the best of the paper's choices over those of the optimal D.

    ``predicted`` compares the iterations that the theory guarantees, ``observed`` the steps of the same two choices
    to the level, where both reach it after enough steps; otherwise ``why not observed`` says why not.  (Not of the
    fastest: G_K is in the norm of each D, and a poor D may start below any level.)  Only choices that satisfy their
    guarantee count; ``det-CGD1 only`` leaves det-CGD2 out of the paper's. Above 1 the optimal D saves; below 1 the
    paper's best is det-CGD2, whose condition allows more than det-CGD1's there. The gaps are certified: the saving
    against the true optima is at least predicted/(1 + gap of the paper's choice) and at most predicted·(1 + gap of
    ours). ``final f`` is f(x^K) minus the f^inf found, on average (negative where a run went below it): a better
    guarantee need not be a better run.
    """
    out = []
    for panel, group in by_panel(curves).items():
        for rivals in rivals_of(group):
            best, mine, cost = rivals.paper, rivals.ours, partial(_cost, guarantee=rivals.guarantee)
            first = [c for c in _papers(group, rivals.guarantee) if c.meta["algorithm"] != DetCGD2.name]
            theirs, own = (first_below(mean, rivals.level) for mean in rivals.means)
            why = _not_comparable(theirs, own)
            out.append(
                {
                    "experiment": panel.experiment,
                    "data": panel.dataset,
                    "variant": panel.variant,
                    "guarantee": rivals.guarantee,
                    "best of the paper": best.meta["label"],
                    "ours": mine.meta["label"],
                    "predicted": cost(best) / cost(mine),
                    "predicted, det-CGD1 only": min(map(cost, first)) / cost(mine),
                    "observed": None if why else _ratio(theirs, own),
                    "why not observed": why,
                    "final f, paper": best.meta["final_gap"],
                    "final f, ours": mine.meta["final_gap"],
                    "level": rivals.level,
                    "gap, paper": best.meta["gap"],
                    "gap, ours": mine.meta["gap"],
                }
            )
    return out


def saved_iterations(records: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The ratios of ``savings`` as shares: 1 − 1/ratio of the iterations of the paper's best are saved."""
    return [
        {
            "experiment": record["experiment"],
            "data": record["data"],
            "variant": record["variant"],
            "guarantee": record["guarantee"],
            "method": record["ours"],
            "instead of": record["best of the paper"],
            "predicted": _share(record["predicted"]),
            "observed": _share(record["observed"]) or record["why not observed"],
        }
        for record in records
    ]


def _share(ratio: float | None) -> str | None:
    """A ratio of iterations as what it saves; negative where more are needed."""
    return None if ratio is None else f"{100.0 * (1.0 - 1.0 / ratio):.1f} %"


def _not_comparable(theirs: int | None, own: int | None) -> str:
    """Why steps to the level are no measure of a saving; empty where they are."""
    missing = [who for who, steps in (("the paper's", theirs), ("the optimal D", own)) if steps is None]
    if missing:
        return f"level not reached by {' and '.join(missing)}"
    if min(theirs or 0, own or 0) < _ENOUGH_STEPS:
        return f"{theirs} steps against {own}: too few to compare"
    return ""


def _ratio(a: int | None, b: int | None) -> float | None:
    return None if a is None or b is None else a / b


def verdicts(curves: Iterable[Curve]) -> dict[str, dict[str, int]]:
    """Counts of verdicts by experiment: on the condition's theorem, for choices that satisfy it and for those that do
    not, and on the descent metric, for every choice that has one."""
    out: dict[str, dict[str, int]] = {}
    for curve in curves:
        meta = curve.meta
        found = {"descent metric": meta["descent_verdict"]}
        if meta["guarantee"] == "condition":
            verdict = str(meta["verdict"]).split(" ")[0] if meta["diverged_at"] is None else "diverged"
            found["" if meta["feasible"] else "condition not satisfied"] = verdict
        elif meta["criterion"] != "det":
            found[f"criterion {meta['criterion']}"] = str(meta["verdict"])
        for kind, verdict in found.items():
            if verdict is not None:
                counts = out.setdefault(f"({meta['experiment']}) {kind}".strip(), {})
                counts[verdict] = counts.get(verdict, 0) + 1
    return dict(sorted(out.items()))


def as_html(records: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """An HTML table of the given columns; rows marked ``ours`` are bold."""
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in columns)
    lines = []
    for record in records:
        style = ' class="ours"' if record.get("ours") is True else ""
        cells = "".join(f"<td>{html.escape(_cell(record.get(name)))}</td>" for name in columns)
        lines.append(f"<tr{style}>{cells}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}"
