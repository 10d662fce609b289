"""Random problems for studies: every kind of sketch, spectra from perfectly to badly conditioned."""

from __future__ import annotations

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
)
from stepsize_opt.problems import random_smoothness
from stepsize_solvers.programs import Matrix

KINDS = ("identity", "rand-k", "bern-q", "independent", "diagonal", "finite", "gaussian", "layers")


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
    if kind == "identity":
        return Identity(d)
    if kind == "rand-k":
        return RandK(d, int(rng.integers(1, d + 1)))
    if kind == "bern-q":
        sizes = _layers(rng, d)
        return BernQ(rng.uniform(0.1, 1.0, len(sizes)), sizes)
    if kind == "independent":
        return IndependentSampling(rng.uniform(0.1, 1.0, d))
    if kind == "gaussian":
        return Gaussian(d, int(rng.integers(1, d + 1)))
    if kind == "layers":
        kinds = [k for k in KINDS if k != "layers"]
        return LayerWise([random_sketch(rng, str(rng.choice(kinds)), size) for size in _layers(rng, d)])
    weights = rng.dirichlet(np.full(4, 2.0))
    if kind == "diagonal":
        vectors = rng.random((4, d)) * (rng.random((4, d)) < 0.6)
        vectors[0] += 0.1  # every coordinate has a positive mean, by which it is divided
        return DiagonalSketch.from_support(vectors / (weights @ vectors), weights)
    if kind == "finite":
        factors = [np.linalg.qr(rng.standard_normal((d, d)))[0][:, : max(1, d // 2)] for _ in weights]
        A = np.array([Q @ Q.T for Q in factors])
        A[0] += np.eye(d)
        values, Q = np.linalg.eigh(np.tensordot(weights, A, axes=1))
        W = (Q / np.sqrt(values)) @ Q.T
        return FiniteSketch(W @ A @ W, weights)
    msg = f"unknown kind {kind!r}; choose one of {', '.join(KINDS)}"
    raise ValueError(msg)


def _layers(rng: np.random.Generator, d: int) -> list[int]:
    cuts = np.sort(rng.choice(np.arange(1, d), size=min(d - 1, int(rng.integers(0, 3))), replace=False))
    return [int(n) for n in np.diff(np.concatenate([[0], cuts, [d]]))]
