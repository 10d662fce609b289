"""Random problems for studies: every kind of sketch, spectra from perfectly to badly conditioned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
from stepsize_opt.problems import random_smoothness
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True, eq=False)
class Problem:
    """A smoothness matrix, a sketch and what they were drawn from."""

    L: Matrix
    sketch: Sketch
    kind: str
    condition: float


def random_problem(rng: np.random.Generator, max_d: int, max_condition: float) -> Problem:
    """A problem with d uniform in 1 … max_d, log-uniform condition number, and a uniform kind of sketch."""
    d = int(rng.integers(1, max_d + 1))
    condition = float(max_condition ** rng.random())
    kind = str(rng.choice(KINDS))
    return Problem(random_smoothness(rng, d, condition), random_sketch(rng, kind, d), kind, condition)


def random_sketch(rng: np.random.Generator, kind: str, d: int) -> Sketch:
    """A sketch of the given kind; raises ValueError for an unknown one."""
    if kind not in _KINDS:
        msg = f"unknown kind {kind!r}; choose one of {', '.join(KINDS)}"
        raise ValueError(msg)
    return _KINDS[kind](rng, d)


def _bern_q(rng: np.random.Generator, d: int) -> Sketch:
    sizes = _layers(rng, d)
    return BernQ(rng.uniform(0.1, 1.0, len(sizes)), sizes)


def _diagonal(rng: np.random.Generator, d: int) -> Sketch:
    weights = rng.dirichlet(np.full(4, 2.0))
    vectors = rng.random((4, d)) * (rng.random((4, d)) < 0.6)
    vectors[0] += 0.1  # every coordinate has a positive mean, by which it is divided
    return DiagonalSketch.from_support(vectors / (weights @ vectors), weights)


def _finite(rng: np.random.Generator, d: int) -> Sketch:
    weights = rng.dirichlet(np.full(4, 2.0))
    factors = [np.linalg.qr(rng.standard_normal((d, d)))[0][:, : max(1, d // 2)] for _ in weights]
    A = np.array([Q @ Q.T for Q in factors])
    A[0] += np.eye(d)
    values, Q = np.linalg.eigh(np.tensordot(weights, A, axes=1))
    W = (Q / np.sqrt(values)) @ Q.T
    return FiniteSketch(W @ A @ W, weights)


def _layer_wise(rng: np.random.Generator, d: int) -> Sketch:
    kinds = [kind for kind, make in _KINDS.items() if make is not _layer_wise]
    return LayerWise([random_sketch(rng, str(rng.choice(kinds)), size) for size in _layers(rng, d)])


def _layers(rng: np.random.Generator, d: int) -> list[int]:
    cuts = np.sort(rng.choice(np.arange(1, d), size=min(d - 1, int(rng.integers(0, 3))), replace=False))
    return [int(n) for n in np.diff(np.concatenate([[0], cuts, [d]]))]


_KINDS: dict[str, Callable[[np.random.Generator, int], Sketch]] = {
    "identity": lambda rng, d: Identity(d),
    "rand-k": lambda rng, d: RandK(d, int(rng.integers(1, d + 1))),
    "bern-q": _bern_q,
    "independent": lambda rng, d: IndependentSampling(rng.uniform(0.1, 1.0, d)),
    "systematic": lambda rng, d: SystematicSampling(rng.uniform(0.1, 1.0, d)),
    "diagonal": _diagonal,
    "finite": _finite,
    "gaussian": lambda rng, d: Gaussian(d, int(rng.integers(1, d + 1))),
    "layers": _layer_wise,
}
KINDS = tuple(_KINDS)
