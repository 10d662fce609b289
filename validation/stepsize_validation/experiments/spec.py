"""Describe an experiment: its plan, the stepsizes that it compares, what it measures and which figures it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import Sketch
from stepsize_opt.goals import GoalName
from stepsize_opt.inputs.checks import positive_number, whole_number
from stepsize_opt.limit import SubspaceMethod, compression_limit
from stepsize_opt.methods import Method
from stepsize_opt.node import StepsizeResult
from stepsize_opt.plots import Curve
from stepsize_opt.problems import Federated, FederatedInfimum, Infimum, Objective
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import Dataset
from stepsize_validation.figures import Line, draw_panels
from stepsize_validation.runs import log_steps

# Tables of pandas by name; pandas has no type information that a checker can follow.
Tables = dict[str, Any]

DATASETS = ("a1a", "phishing", "mushrooms", "australian_scale", "heart_scale", "w1a")
# Points of a drawn curve; between them a running mean on a log axis is a straight line.
_POINTS = 300


@dataclass(frozen=True)
class Plan:
    """Everything that the results depend on.

    iterations: K by the name of an experiment, where it is not the experiment's own; short: take its quick K.
    clients: the client counts of (c); layers, fraction: of (d).
    epsilon2: the level of the tables in (a), (b), (d), (e); epsilon2_distributed: ε² of conditions (12) in (c).
    time_limit: seconds for each distributed solve; one that runs out of time keeps its feasible D and reports its gap.
    draws: subsamples for each fraction of the sensitivity study.
    """

    datasets: tuple[str, ...] = DATASETS
    reg: float = 1e-3
    reg_distributed: float = 0.1
    seeds: int = 16
    seed: int = 0
    iterations: Mapping[str, int] = field(default_factory=dict)
    short: bool = False
    clients: tuple[int, ...] = (10, 30, 100)
    layers: int = 4
    fraction: float = 0.25
    epsilon2: float = 1e-3
    epsilon2_distributed: float = 1e-4
    time_limit: float = 180.0
    draws: int = 20

    def __post_init__(self) -> None:
        for name in ("reg", "reg_distributed", "epsilon2", "epsilon2_distributed", "time_limit"):
            positive_number(name, getattr(self, name))
        for name in ("seeds", "layers", "draws"):
            whole_number(name, getattr(self, name))
        for experiment, steps in self.iterations.items():
            whole_number(f"iterations[{experiment!r}]", steps)
        if not 0.0 < self.fraction <= 1.0:
            msg = f"fraction must be in (0, 1], got {self.fraction!r}"
            raise ValueError(msg)

    @staticmethod
    def quick(datasets: Sequence[str] = ("breast_cancer",)) -> Plan:
        """Return sizes for a first look within a minute, on embedded data."""
        return Plan(tuple(datasets), seeds=6, short=True, clients=(5,), epsilon2=1e-2, draws=4)


@dataclass(frozen=True, eq=False)
class Choice:
    """A method with its stepsize, ready to run.

    label: its name in tables and legends; ours: not among the paper's choices.
    goal: the one that D was chosen for and its curve is drawn in: ``paper``, weighted by D, ``descent``, weighted by
    H = 2D − T(D), or another, in the Euclidean norm.  feasible: whether D is proved to satisfy what the goal needs (the
    condition, or H ≻ 0).  The descent metric of every choice is checked.
    gap: certified distance from the optimum of its structure, None for a stepsize that is not an optimum.
    efficiency: its rate over the limit for as many floats per round, None where there is no such limit.
    theory_iterations: iterations that the theory needs, where they are not 2Δ⁰/(rate ε²) (distributed methods).
    lambda_D: of the distributed methods.
    """

    label: str
    algorithm: str | Method
    D: Matrix
    sketch: Sketch
    rate: float
    feasible: bool
    ours: bool = False
    gap: float | None = None
    theory_iterations: float | None = None
    lambda_D: float | None = None
    goal: GoalName = "paper"
    efficiency: float | None = None
    method: SubspaceMethod | None = None

    @staticmethod
    def of(label: str, result: StepsizeResult, sketch: Sketch, *, ours: bool = False) -> Choice:
        """Turn a result into a choice; a label with the word optimal keeps it only with the certificate."""
        if result.status != "optimal":
            label = label.replace("optimal", "not certified")
        same = ("algorithm", "D", "rate", "gap", "goal", "efficiency")
        read = {name: getattr(result, name) for name in same}
        return Choice(label, sketch=sketch, feasible=result.certificate.feasible, ours=ours, **read)

    @staticmethod
    def subspace(method: SubspaceMethod) -> Choice:
        """Turn the subspace method into a choice; its D satisfies E[GᵀLG] ⪯ D by its proof."""
        read = {name: getattr(method, name) for name in ("D", "sketch", "rate", "efficiency")}
        goal: Any = "paper" if method.goal == "descent" else method.goal
        label = f"subspace, {method.goal}"
        gap = method.certificate.gap
        return Choice(label, method.name, feasible=True, ours=True, goal=goal, gap=gap, method=method, **read)

    @property
    def runs(self) -> dict[str, Any]:
        """The arguments of ``run``: the subspace method itself, or D with its sketch and its method."""
        if self.method is not None:
            return {"D": self.method}
        return {"D": self.D, "sketch": self.sketch, "algorithm": self.algorithm}

    @property
    def cost(self) -> float:
        """Iterations that the theory needs, up to a common factor and not rounded: whole numbers of a short run would
        hide a saving of a few per cent."""
        return 1.0 / self.rate if self.theory_iterations is None else self.theory_iterations


def cgd(L: Matrix, sketch: Sketch) -> Choice:
    """Return CGD with a scalar smoothness constant: γ = 1/((1 + ω) λmax(L)) (Khirirat et al., as in the paper)."""
    # E[S D L D S] ⪯ γ²λmax(L) E[S²] ⪯ γ²λmax(L)(1 + ω) I = γI; two ulp down, so that rounding cannot lift it.
    gamma = (1.0 - 2.0 * np.finfo(float).eps) / ((1.0 + sketch.omega) * float(np.linalg.eigvalsh(L)[-1]))
    efficiency = gamma / compression_limit(L, sketch.expected_rank).upper
    return Choice("CGD", "det-CGD1", gamma * np.eye(len(L)), sketch, gamma, feasible=True, efficiency=efficiency)


@dataclass(frozen=True, eq=False)
class Panel:
    """An objective with bounds on its infimum, and the choices that are compared on it; epsilon2: of the tables."""

    variant: str
    objective: Objective | Federated
    choices: tuple[Choice, ...]
    infimum: Infimum | FederatedInfimum
    epsilon2: float


@dataclass(frozen=True)
class Figure:
    """A figure: ``draw`` takes the tables of the experiment, its title and the file to write."""

    name: str
    draw: Callable[[Tables, str, Path], None]


# Columns of the table ``curves`` that figures show, with their labels.
AXES = {
    "k": "iterations K",
    "floats": "floats sent",
    "weighted": "$G_K$, weighted by $D$ (descent: $H$)",
    "euclidean": "$E_K$, Euclidean",
    "excess": "$f(x^K) - f^{inf}$",
}


def curves(x: str, y: str) -> Figure:
    """Return the figure of two of ``AXES``, with a panel for each data set and variant, a curve for each choice.

    A curve is the mean over the seeds with two standard errors; its guarantee is dashed.
    """

    def draw(tables: Tables, title: str, path: Path) -> None:
        panels: dict[str, list[Line]] = {}
        for (data, variant, method), rows in tables["curves"].groupby(["data", "variant", "method"], sort=False):
            shown = rows.iloc[log_steps(len(rows), _POINTS) - 1]
            mean, error, bound = (shown[column].to_numpy() for column in (y, f"{y}_error", f"{y}_bound"))
            curve = Curve(shown[x].to_numpy(), mean, error, None if np.isnan(bound).all() else bound)
            panels.setdefault(f"{data}, {variant}", []).append(Line(method, bool(rows["ours"].iloc[0]), curve))
        draw_panels(panels, path, title=title, x_label=AXES[x], y_label=AXES[y])

    return Figure(f"{y}_{x}", draw)


CURVES = (curves("k", "weighted"), curves("floats", "weighted"), curves("k", "excess"))


@dataclass(frozen=True, eq=False)
class Experiment:
    """One experiment.  A new one is a file with such an object, and its name in ``report.EXPERIMENTS``.

    name: on the command line; title: of its figures.
    settings: fields of the plan that its results depend on, in addition to the seeds and the number of steps.
    parameters: one job for each parameter of a data set; none for a data set that the experiment leaves out.
    panel: the choices that run against each other.  Their runs are checked, tabulated and compared with the paper's.
    measure: tables of its own, by name; ``summarise`` adds tables made of those of all data sets.
    iterations, quick_iterations: steps of each run, unless the plan sets them.
    comparable: which of the paper's choices compete with the optimal D, as a row of the table ``runs``.
    level_reached: compare at the smallest level that both rivals reach rather than at the ε² of the panel.
    """

    name: str
    title: str
    settings: tuple[str, ...]
    parameters: Callable[[Dataset, Plan], Sequence[int]] = lambda data, plan: (0,)
    panel: Callable[[Dataset, Plan, int], Panel] | None = None
    measure: Callable[[Dataset, Plan, int], Tables] | None = None
    summarise: Callable[[Tables], Tables] = lambda tables: {}
    figures: tuple[Figure, ...] = ()
    iterations: int = 1
    quick_iterations: int = 1
    comparable: Callable[[Any], bool] = lambda run: True
    level_reached: bool = False

    def steps(self, plan: Plan) -> int:
        """Return the K of its runs under a plan."""
        return plan.iterations.get(self.name, self.quick_iterations if plan.short else self.iterations)
