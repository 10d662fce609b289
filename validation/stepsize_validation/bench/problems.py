"""What the solver benchmark solves: problems as plain data, from which every process builds the same matrices.

Families (rand-k sends k = max(1, ⌊d/4⌋) numbers unless the family says otherwise):

    size         synthetic L with condition number 10³, d as asked for
    condition    synthetic L with condition numbers 10 and 10⁶
    sketch       every kind of sketch of ``random_problems``, condition number 100
    structure    D block-diagonal or diagonal instead of full, condition number 100
    data         L = AᵀA/(4m) + 2λI of logistic regression on real data
    distributed  the stepsize of several clients for a given K, condition number 100
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stepsize_opt.clients import DistributedResult, optimal_distributed_stepsize
from stepsize_opt.inputs import NAMED_STRUCTURES, BlockDiagonal, Structure, pattern_of
from stepsize_opt.methods import DetCGD1
from stepsize_opt.node import reduce_problem
from stepsize_opt.problems import (
    DATA_VARIABLE,
    LogisticRegression,
    available_datasets,
    load_dataset,
    random_smoothness,
)
from stepsize_opt.sketches import RandK, Sketch
from stepsize_solvers.programs import Matrix, Program, Vector
from stepsize_validation.bench.random_problems import KINDS, random_sketch

FAMILIES = ("size", "condition", "sketch", "structure", "data", "distributed")
STRUCTURES = ("full", "diagonal", "blocks")
# Sizes of L for the embedded sets and for LibSVM files that may be in the data folder.
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
# The kinds whose map is Diag(α∘diag M) + βM, which the quadratic lift needs.
_QUADRATIC_KINDS = ("identity", "rand-k", "independent")
# λ of the data problems: the smaller of the two regularisations of the paper's experiments, the harder one here.
_REG = 1e-3
# K of the distributed problems: λ_D ≤ n/K and D ⪯ L⁻¹ both bind (d = 4 to 30), so that none of them drops out.
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

    def solve(self, solver: str, tol: float, **options: Any) -> DistributedResult:
        """The call that users make.  Δ⁰ = Δ^inf = 0 leave no condition beside the two."""
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
            **options,
        )


@dataclass(frozen=True)
class ProblemSpec:
    """One problem of the benchmark; every field is a plain value, so that it survives JSON.

    Raises ValueError for an unknown family, kind of sketch, structure or data set, and for a size that does not fit.
    """

    family: str
    d: int
    condition: float = 0.0
    sketch: str = "rand-k"
    structure: str = "full"
    data: str = ""
    clients: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("family", self.family, FAMILIES),
            ("sketch", self.sketch, KINDS),
            ("structure", self.structure, STRUCTURES),
        ):
            if value not in known:
                msg = f"unknown {name} {value!r}; choose one of {', '.join(known)}"
                raise ValueError(msg)
        if self.d < 2:
            msg = f"d must be at least 2, got {self.d}"
            raise ValueError(msg)
        if self.data and DATA_SIZES.get(self.data) != self.d:
            msg = f"data set {self.data!r} with d={self.d} is not in the benchmark; known: {DATA_SIZES}"
            raise ValueError(msg)
        if not self.data and self.condition < 1.0:
            msg = f"condition must be at least 1 for a synthetic L, got {self.condition}"
            raise ValueError(msg)

    @property
    def name(self) -> str:
        """A short name that is unique within the benchmark."""
        if self.family == "data":
            return f"{self.data} (d={self.d})"
        parts = {
            "size": f"d={self.d}",
            "condition": f"cond {self.condition:.0e} (d={self.d})",
            "sketch": f"sketch {self.sketch} (d={self.d})",
            "structure": f"D {self.structure} (d={self.d})",
            "distributed": f"{self.clients} clients (d={self.d})",
        }
        return parts[self.family]

    @property
    def quadratic(self) -> bool:
        """Whether the quadratic lift applies."""
        return self.sketch in _QUADRATIC_KINDS and not self.clients

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def build(self) -> NodeProblem | ClientsProblem:
        """The matrices; a node's problem stays in one piece (no split into components): every solver gets all of it."""
        rng = np.random.default_rng([self.seed, self.d])
        if self.data:
            L = LogisticRegression.from_dataset(load_dataset(self.data), _REG).smoothness()
        else:
            L = random_smoothness(rng, self.d, self.condition)
        sketch = self._sketch(rng)
        if self.clients:
            return ClientsProblem(_client_matrices(rng, L, self.clients), L, sketch)
        pattern = pattern_of(self._structure(), self.d)
        component = reduce_problem(L, sketch.map, pattern, DetCGD1(), split=False).components[0]
        return NodeProblem(component.program, component.scale)

    def _sketch(self, rng: np.random.Generator) -> Sketch:
        if self.family == "sketch":
            return random_sketch(rng, self.sketch, self.d)
        return RandK(self.d, max(1, self.d // 4))

    def _structure(self) -> Structure:
        if self.structure == "blocks":
            return BlockDiagonal((self.d // 2, self.d - self.d // 2))
        return NAMED_STRUCTURES[self.structure]


def _client_matrices(rng: np.random.Generator, L: Matrix, clients: int) -> tuple[Matrix, ...]:
    """Lᵢ = L^½ Mᵢ L^½ with random Mᵢ of condition number 4."""
    w, V = np.linalg.eigh(L)
    root = (V * np.sqrt(w)) @ V.T
    products = (root @ random_smoothness(rng, len(L), 4.0) @ root for _ in range(clients))
    return tuple(np.asarray(0.5 * (M + M.T)) for M in products)


def size_problems(sizes: tuple[int, ...]) -> list[ProblemSpec]:
    """The scaling family."""
    return [ProblemSpec("size", d, condition=1e3) for d in sizes]


def kind_problems(d: int, kinds: tuple[str, ...] = KINDS) -> list[ProblemSpec]:
    """Condition numbers, sketches, structures and clients, all at one size."""
    return [
        *(ProblemSpec("condition", d, condition=condition) for condition in (1e1, 1e6)),
        *(ProblemSpec("sketch", d, condition=1e2, sketch=kind) for kind in kinds),
        *(ProblemSpec("structure", d, condition=1e2, structure=name) for name in ("blocks", "diagonal")),
        ProblemSpec("distributed", d, condition=1e2, clients=3),
    ]


def data_problems() -> list[ProblemSpec]:
    """Real L: the embedded sets always, the LibSVM files that the data folder holds."""
    known = available_datasets() if os.environ.get(DATA_VARIABLE) else ["breast_cancer", "digits"]
    return [ProblemSpec("data", d, data=name) for name, d in DATA_SIZES.items() if name in known]
