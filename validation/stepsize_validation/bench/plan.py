"""The runs of the solver benchmark: solvers × problems × sizes.

A problem is plain data, from which every process builds the same matrices.

Families (rand-k sends k = max(1, ⌊d/4⌋) floats):

    size         synthetic L with condition number 10³, d as asked for
    condition    synthetic L with condition numbers 10 and 10⁶
    sketch       every kind of sketch, condition number 100
    structure    D block-diagonal or diagonal instead of full, condition number 100
    data         L = AᵀA/(4m) + 2λI of logistic regression on real data
    distributed  the stepsize of several clients for a given K, condition number 100
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from stepsize_opt import (
    BernQ,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
)
from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.clients.result import DistributedResult
from stepsize_opt.inputs.structures import NAMED_STRUCTURES, BlockDiagonal, pattern_of
from stepsize_opt.methods import DetCGD1
from stepsize_opt.node import scaled_program
from stepsize_solvers import available_solvers
from stepsize_solvers.programs import Matrix, Program, Vector
from stepsize_validation.data import (
    DATA_VARIABLE,
    available_datasets,
    load_dataset,
    logistic_regression,
    random_smoothness,
)

NATIVE = "native"
# Sizes of L for the embedded data sets and for LibSVM files that may be in the data folder.
DATA_SIZES = {
    "heart_scale": 13,
    "australian_scale": 14,
    "breast_cancer": 30,
    "ionosphere_scale": 34,
    "digits": 61,
    "phishing": 68,
    "mushrooms": 112,
    "a1a": 123,
    "w1a": 300,
}
# λ of the data problems: the smaller of the two regularisations of the paper's experiments, the harder one here.
_REG = 1e-3
# K of the distributed problems: λ_D ≤ n/K and D ⪯ L⁻¹ both bind (d = 4 to 30).
_ROUNDS = 2


@dataclass(frozen=True, eq=False)
class NodeProblem:
    """One node: the program in scaled coordinates, and Λ: D of the original problem is ΛD̃Λ."""

    program: Program
    scale: Vector


@dataclass(frozen=True, eq=False)
class ClientsProblem:
    """Several clients with matrices Lᵢ, L of their mean and one sketch: λ_D ≤ n/K for a given K, and D ⪯ L⁻¹."""

    matrices: tuple[Matrix, ...]
    L: Matrix
    sketch: Sketch

    def solve(self, solver: str, tol: float, options: Mapping[str, Any]) -> DistributedResult:
        """Make the call that users make; Δ⁰ = Δ^inf = 0 leave no other condition."""
        return optimal_distributed_stepsize(
            self.matrices,
            self.sketch,
            epsilon2=1.0,
            initial_gap=0.0,
            delta_inf=0.0,
            iterations=_ROUNDS,
            mean_smoothness=self.L,
            solver=solver,
            tol=tol,
            options=options,
        )


@dataclass(frozen=True)
class Problem:
    """One problem of the benchmark; every field is a plain value, so that it survives JSON."""

    family: str
    d: int
    condition: float = 0.0
    sketch: str = "rand-k"
    structure: str = "full"
    data: str = ""
    clients: int = 0

    @property
    def name(self) -> str:
        """A short name that is unique within the benchmark."""
        kinds = {
            "size": "",
            "condition": f"cond {self.condition:.0e}",
            "sketch": f"sketch {self.sketch}",
            "structure": f"D {self.structure}",
            "data": self.data,
            "distributed": f"{self.clients} clients",
        }
        kind = kinds[self.family]
        return f"{kind} (d={self.d})" if kind else f"d={self.d}"

    def build(self) -> NodeProblem | ClientsProblem:
        """Build the matrices; a node's problem is not split into components, so that every solver gets all of it."""
        rng = np.random.default_rng([0, self.d])
        if self.data:
            L = logistic_regression(load_dataset(self.data), _REG).smoothness()
        else:
            L = random_smoothness(rng, self.d, self.condition)
        sketch = SKETCHES[self.sketch](self.d)
        if self.clients:
            return ClientsProblem(_client_matrices(rng, L, self.clients), L, sketch)
        structure = NAMED_STRUCTURES.get(self.structure, BlockDiagonal(_halves(self.d)))
        pattern = pattern_of(structure, self.d)
        program, scaling = scaled_program(L, DetCGD1().condition(sketch.map), pattern)
        return NodeProblem(program, scaling.factors)


def _client_matrices(rng: np.random.Generator, L: Matrix, clients: int) -> tuple[Matrix, ...]:
    """Return Lᵢ = L^½ Mᵢ L^½ with random Mᵢ of condition number 4."""
    w, V = np.linalg.eigh(L)
    root = (V * np.sqrt(w)) @ V.T
    products = (root @ random_smoothness(rng, len(L), 4.0) @ root for _ in range(clients))
    return tuple(np.asarray(0.5 * (M + M.T)) for M in products)


def _halves(d: int) -> tuple[int, int]:
    return d // 2, d - d // 2


def _diagonal(d: int) -> Sketch:
    """Return the sketch that sends the even or the odd coordinates."""
    even = np.arange(d) % 2 == 0
    return DiagonalSketch([2.0 * even, 2.0 * ~even], [0.5, 0.5])


def _finite(d: int) -> Sketch:
    """Return the sketch that projects on one half or the other of a random orthonormal basis."""
    Q = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0]
    return FiniteSketch([2.0 * part @ part.T for part in np.split(Q, [d // 2], axis=1)], [0.5, 0.5])


SKETCHES: dict[str, Callable[[int], Sketch]] = {
    "identity": Identity,
    "rand-k": lambda d: RandK(d, max(1, d // 4)),
    "bern-q": lambda d: BernQ([0.3, 0.8], _halves(d)),
    "independent": lambda d: IndependentSampling(np.linspace(0.1, 1.0, d)),
    "systematic": lambda d: SystematicSampling(np.linspace(0.1, 1.0, d)),
    "diagonal": _diagonal,
    "finite": _finite,
    "gaussian": lambda d: Gaussian(d, max(1, d // 4)),
    "layers": lambda d: LayerWise([RandK(d // 2, 1), Gaussian(d - d // 2, 1)]),
}


def size_problems(sizes: tuple[int, ...]) -> list[Problem]:
    """List the problems of growing size."""
    return [Problem("size", d, condition=1e3) for d in sizes]


def kind_problems(d: int) -> list[Problem]:
    """List condition numbers, sketches, structures and clients, all at one size."""
    return [
        *(Problem("condition", d, condition=condition) for condition in (1e1, 1e6)),
        *(Problem("sketch", d, condition=1e2, sketch=kind) for kind in SKETCHES),
        *(Problem("structure", d, condition=1e2, structure=name) for name in ("blocks", "diagonal")),
        Problem("distributed", d, condition=1e2, clients=3),
    ]


def data_problems() -> list[Problem]:
    """List the problems with a real L: the embedded data sets, and the LibSVM files in the data folder."""
    known = available_datasets() if os.environ.get(DATA_VARIABLE) else ["breast_cancer", "digits"]
    return [Problem("data", d, data=name) for name, d in DATA_SIZES.items() if name in known]


@dataclass(frozen=True)
class BenchSettings:
    """What all runs share.

    targets: the certified gaps at which solvers are compared, in falling order; the middle one is the main target.
    time_limit: processor seconds for one rung of the ladder, repeats and certificate included.  Processor time, so that
    a busy machine does not turn answers into failures; a rung that neither answers nor computes ends by wall time.
    memory_mb: what a run may allocate beyond what the loaded libraries take (address space).
    threads: threads of BLAS and of the solvers that read OMP_NUM_THREADS.
    repeats: a rung is measured so many times while one measurement takes less than repeat_below seconds; the median
    counts.
    """

    targets: tuple[float, ...] = (1e-3, 1e-6, 1e-8)
    time_limit: float = 20.0
    memory_mb: int = 4096
    threads: int = 1
    repeats: int = 3
    repeat_below: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))  # JSON has lists

    @property
    def main_target(self) -> float:
        """The gap of the tables, 10⁻⁶ by default."""
        return self.targets[len(self.targets) // 2]


@dataclass(frozen=True)
class Task:
    """One run: a problem and a solver, which gets the form that the library chooses for it.

    iterate: the native solver without its closed forms, so that its iteration is measured.
    """

    problem: Problem
    solver: str
    iterate: bool = False

    @property
    def label(self) -> str:
        """The solver, and whether it iterates where it has a closed form."""
        return f"{self.solver} (iterates)" if self.iterate else self.solver

    @property
    def extra(self) -> dict[str, Any]:
        """What goes into ``Settings.extra``."""
        return {"closed_forms": False} if self.iterate else {}

    @property
    def row(self) -> dict[str, Any]:
        """The columns of the results that describe the task; problem and label are names that identify it."""
        return {**asdict(self), **asdict(self.problem), "problem": self.problem.name, "label": self.label}


@dataclass(frozen=True)
class Plan:
    """Which runs to make.

    sizes: d of the size family for every solver; native_sizes: more of them for the native solver alone.
    kind_size: d of the families condition, sketch, structure and distributed.
    data: whether L of real data is included, for solvers behind cvxpy up to data_up_to.
    solvers: names, or empty for all.
    """

    settings: BenchSettings = field(default_factory=BenchSettings)
    sizes: tuple[int, ...] = (10, 20, 30, 40)
    native_sizes: tuple[int, ...] = (80, 160, 300)
    kind_size: int | None = 10
    data: bool = True
    data_up_to: int = 30
    solvers: tuple[str, ...] = ()

    @staticmethod
    def quick() -> Plan:
        """Return a plan of half a minute: three small sizes."""
        return Plan(BenchSettings(time_limit=10.0), sizes=(5, 10, 20), native_sizes=(), kind_size=None, data=False)

    def tasks(self) -> list[Task]:
        """List all runs, small sizes first and the native solver first, so that a partial result can be read."""
        names = [entry.name for entry in available_solvers() if not self.solvers or entry.name in self.solvers]
        problems = size_problems((*self.sizes, *self.native_sizes))
        problems += kind_problems(self.kind_size) if self.kind_size else []
        problems += data_problems() if self.data else []
        tasks = [task for problem in problems for name in names for task in self._tasks(problem, name)]
        return sorted(tasks, key=lambda task: task.problem.d)

    def _tasks(self, problem: Problem, solver: str) -> list[Task]:
        task = Task(problem, solver)
        if solver == NATIVE:
            return [task, replace(task, iterate=True)] if problem.family == "size" else [task]
        too_large = {"size": problem.d not in self.sizes, "data": problem.d > self.data_up_to}
        return [] if too_large.get(problem.family, False) else [task]
