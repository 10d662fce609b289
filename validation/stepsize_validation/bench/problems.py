"""The problems of the solver benchmark as plain data, from which every process builds the same matrices.

Families (rand-k sends k = max(1, ⌊d/4⌋) floats unless the family is ``sketch``):

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
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt import sketches
from stepsize_opt.clients import DistributedResult, optimal_distributed_stepsize
from stepsize_opt.inputs import NAMED_STRUCTURES, BlockDiagonal, Structure, pattern_of
from stepsize_opt.methods import DetCGD1
from stepsize_opt.node import reduce_problem
from stepsize_opt.smoothness import MatrixSmoothness
from stepsize_solvers.programs import Matrix, Program, Vector
from stepsize_validation.data import (
    DATA_VARIABLE,
    available_datasets,
    load_dataset,
    logistic_regression,
    random_smoothness,
)

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
# The kinds of sketch whose map is Diag(α∘diag M) + βM, which the quadratic lift needs.
_QUADRATIC_KINDS = ("identity", "rand-k", "independent")
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
    sketch: sketches.Sketch

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

    @property
    def quadratic(self) -> bool:
        """Whether the quadratic lift applies."""
        return self.sketch in _QUADRATIC_KINDS and not self.clients

    def build(self) -> NodeProblem | ClientsProblem:
        """Build the matrices; a node's problem is not split into components, so that every solver gets all of it."""
        rng = np.random.default_rng([0, self.d])
        if self.data:
            L = logistic_regression(load_dataset(self.data), _REG).smoothness()
        else:
            L = random_smoothness(rng, self.d, self.condition)
        sketch = (
            SKETCHES[self.sketch](rng, self.d)
            if self.family == "sketch"
            else sketches.RandK(self.d, max(1, self.d // 4))
        )
        if self.clients:
            return ClientsProblem(_client_matrices(rng, L, self.clients), L, sketch)
        pattern = pattern_of(self._structure(), self.d)
        component = reduce_problem(MatrixSmoothness(L), sketch.map, pattern, DetCGD1(), split=False).components[0]
        return NodeProblem(component.program, component.scaling.factors)

    def _structure(self) -> Structure:
        if self.structure == "blocks":
            return BlockDiagonal((self.d // 2, self.d - self.d // 2))
        return NAMED_STRUCTURES[self.structure]


def _client_matrices(rng: np.random.Generator, L: Matrix, clients: int) -> tuple[Matrix, ...]:
    """Return Lᵢ = L^½ Mᵢ L^½ with random Mᵢ of condition number 4."""
    w, V = np.linalg.eigh(L)
    root = (V * np.sqrt(w)) @ V.T
    products = (root @ random_smoothness(rng, len(L), 4.0) @ root for _ in range(clients))
    return tuple(np.asarray(0.5 * (M + M.T)) for M in products)


def _bern_q(rng: np.random.Generator, d: int) -> sketches.Sketch:
    sizes = _layers(rng, d)
    return sketches.BernQ(rng.uniform(0.1, 1.0, len(sizes)), sizes)


def _diagonal(rng: np.random.Generator, d: int) -> sketches.Sketch:
    weights = rng.dirichlet(np.full(4, 2.0))
    vectors = rng.random((4, d)) * (rng.random((4, d)) < 0.6)
    vectors[0] += 0.1  # every coordinate has a positive mean, by which it is divided
    return sketches.DiagonalSketch.from_support(vectors / (weights @ vectors), weights)


def _finite(rng: np.random.Generator, d: int) -> sketches.Sketch:
    weights = rng.dirichlet(np.full(4, 2.0))
    factors = [np.linalg.qr(rng.standard_normal((d, d)))[0][:, : max(1, d // 2)] for _ in weights]
    A = np.array([Q @ Q.T for Q in factors])
    A[0] += np.eye(d)
    values, Q = np.linalg.eigh(np.tensordot(weights, A, axes=1))
    W = (Q / np.sqrt(values)) @ Q.T
    return sketches.FiniteSketch(W @ A @ W, weights)


def _layer_wise(rng: np.random.Generator, d: int) -> sketches.Sketch:
    kinds = [kind for kind in SKETCHES if kind != "layers"]
    return sketches.LayerWise([SKETCHES[str(rng.choice(kinds))](rng, size) for size in _layers(rng, d)])


def _layers(rng: np.random.Generator, d: int) -> list[int]:
    cuts = np.sort(rng.choice(np.arange(1, d), size=min(d - 1, int(rng.integers(0, 3))), replace=False))
    return [int(n) for n in np.diff(np.concatenate([[0], cuts, [d]]))]


SKETCHES: dict[str, Callable[[np.random.Generator, int], sketches.Sketch]] = {
    "identity": lambda rng, d: sketches.Identity(d),
    "rand-k": lambda rng, d: sketches.RandK(d, int(rng.integers(1, d + 1))),
    "bern-q": _bern_q,
    "independent": lambda rng, d: sketches.IndependentSampling(rng.uniform(0.1, 1.0, d)),
    "systematic": lambda rng, d: sketches.SystematicSampling(rng.uniform(0.1, 1.0, d)),
    "diagonal": _diagonal,
    "finite": _finite,
    "gaussian": lambda rng, d: sketches.Gaussian(d, int(rng.integers(1, d + 1))),
    "layers": _layer_wise,
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
