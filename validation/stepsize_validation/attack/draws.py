"""Random parts of problems that are harder than those of ``stepsize_validation.referee.random_problems``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    DetCGD1,
    DetCGD2,
    DiagonalSketch,
    Direction,
    FiniteSketch,
    Identity,
    LayerWise,
    Sketch,
)
from stepsize_opt import IndependentSampling as Independent
from stepsize_opt.problems import random_smoothness
from stepsize_validation.referee import KINDS, random_sketch

Generator = np.random.Generator
ALGORITHMS = (DetCGD1.name, DetCGD2.name)


def size(rng: Generator, high: int, low: int = 1) -> int:
    """A dimension; small ones are as likely as large ones, because many reductions concern them."""
    return int(rng.integers(low, int(rng.integers(low, high + 1)) + 1))


def algorithm(rng: Generator) -> str:
    return str(rng.choice(ALGORITHMS))


def smoothness(rng: Generator, d: int, max_condition: float = 1e8) -> Any:
    """A positive definite L: random spectrum, sometimes sparse, diagonal, or made of small whole numbers."""
    shape = rng.random()
    if shape < 0.1:
        return np.diag(10.0 ** rng.uniform(-3.0, 3.0, d))
    if shape < 0.2:
        A = rng.integers(-3, 4, (d, d)).astype(float)
        return A @ A.T + np.eye(d)
    L = random_smoothness(rng, d, float(max_condition ** rng.random()))
    if shape < 0.35:  # several components
        labels = rng.integers(0, 3, d)
        L = np.where(labels[:, None] == labels, L, 0.0)
    return L


def singular(rng: Generator, d: int) -> Any:
    """A positive semidefinite matrix of low rank without rounding: small whole numbers and a power of two."""
    A = rng.integers(-4, 5, (d, int(rng.integers(0, d + 1)))).astype(float)
    return A @ A.T * 2.0 ** int(rng.integers(-3, 4))


def sizes(rng: Generator, d: int) -> tuple[int, ...]:
    """Layer sizes that add up to d."""
    cuts = np.sort(rng.choice(np.arange(1, d), size=min(d - 1, int(rng.integers(0, 4))), replace=False))
    return tuple(int(n) for n in np.diff(np.concatenate([[0], cuts, [d]])))


def structure(rng: Generator, d: int, max_condition: float = 1e6) -> Any:
    """Any structure of D."""
    kind = str(rng.choice(["full", "diagonal", "scalar", "block", "direction", "directions"]))
    if kind == "block":
        return BlockDiagonal(sizes(rng, d))
    if kind == "direction":
        return Direction(random_smoothness(rng, d, float(max_condition ** rng.random())))
    if kind == "directions":
        layers = sizes(rng, d)
        labels = np.repeat(np.arange(len(layers)), layers)
        W = random_smoothness(rng, d, float(max_condition ** rng.random()))
        return Direction(np.where(labels[:, None] == labels, W, 0.0), layers)
    return kind


def named_sketch(rng: Generator, d: int) -> Sketch:
    """One of the laws of ``stepsize_validation.referee.random_problems``."""
    return random_sketch(rng, str(rng.choice(KINDS)), d)


def sketch(rng: Generator, d: int, max_terms: int = 40) -> Sketch:
    """Any law: those of ``stepsize_validation.referee.random_problems``, and the harder ones below."""
    if rng.random() < 0.5:
        return named_sketch(rng, d)
    return _LAWS[str(rng.choice(list(_LAWS)))](rng, d, max_terms)


def long_law(rng: Generator, d: int, terms: int) -> Sketch:
    """A support, or diagonal matrices not declared as such, with thousands of terms."""
    return _support(rng, d, terms) if rng.random() < 0.5 else _finite_diagonal(rng, d, terms)


def _support(rng: Generator, d: int, max_terms: int) -> Sketch:
    """Many outcomes with equal or random weights, which add up to one only up to rounding."""
    terms = int(rng.integers(2, max_terms + 1))
    vectors, weights = _masks(rng, d, terms), _weights(rng, terms)
    return DiagonalSketch.from_support(vectors / (weights @ vectors), weights)


def _finite_diagonal(rng: Generator, d: int, max_terms: int) -> Sketch:
    """Diagonal matrices that the user did not declare as diagonal."""
    terms = int(rng.integers(2, max(3, max_terms // 2)))
    vectors, weights = _masks(rng, d, terms), _weights(rng, terms)
    return FiniteSketch((vectors / (weights @ vectors))[:, :, None] * np.eye(d), weights)


def _finite(rng: Generator, d: int, max_terms: int) -> Sketch:
    """Matrices of low rank in random directions, made unbiased."""
    terms = int(rng.integers(1, max(3, max_terms // 8)))
    weights = _weights(rng, terms)
    G = rng.standard_normal((terms, d, int(rng.integers(1, d + 1))))
    A = G @ G.transpose(0, 2, 1)
    A[0] += np.eye(d)
    values, Q = np.linalg.eigh(np.tensordot(weights, A, axes=1))
    W = (Q / np.sqrt(values)) @ Q.T
    S = W @ A @ W
    return FiniteSketch(0.5 * (S + S.transpose(0, 2, 1)), weights)


def _moments(rng: Generator, d: int, max_terms: int) -> Sketch:
    """P = 11ᵀ + a random covariance, and a sampler that nobody calls here."""
    G = rng.random((d, d)) * (rng.random((d, d)) < 0.5)
    C = G @ G.T * 10.0 ** rng.uniform(-3.0, 2.0)
    return DiagonalSketch.from_moments(1.0 + 0.5 * (C + C.T), ones)


def ones(rng: Generator, count: int) -> Any:
    """The sampler of the moment sketches; a certificate never draws from it."""
    msg = "a certificate must not draw from the sketch"
    raise AssertionError(msg)


def _rare(rng: Generator, d: int, max_terms: int) -> Sketch:
    """Some coordinates are never compressed, some hardly ever sent."""
    p = rng.choice([1.0, 0.5, rng.uniform(0.1, 1.0), 10.0 ** rng.uniform(-8.0, -1.0)], d)
    return Independent(p)


def _layers(rng: Generator, d: int, max_terms: int) -> Sketch:
    """Layers of any law, one of them often uncompressed."""
    parts = [
        Identity(n) if rng.random() < 0.3 else _LAWS[str(rng.choice(_INSIDE))](rng, n, max_terms) for n in sizes(rng, d)
    ]
    return LayerWise(parts)


def _coins(rng: Generator, d: int, max_terms: int) -> Sketch:
    layers = sizes(rng, d)
    return BernQ(rng.choice([1.0, 0.5, 0.3, 10.0 ** rng.uniform(-6.0, 0.0)], len(layers)), layers)


def _masks(rng: Generator, d: int, terms: int) -> Any:
    vectors = rng.random((terms, d)) * (rng.random((terms, d)) < rng.uniform(0.2, 1.0))
    if rng.random() < 0.5:
        vectors = np.ceil(vectors)  # zeros and ones
    vectors[0] += 0.1  # every coordinate has a positive mean, by which it is divided
    return vectors


def _weights(rng: Generator, terms: int) -> Any:
    return np.full(terms, 1.0 / terms) if rng.random() < 0.5 else rng.dirichlet(np.full(terms, 2.0))


_INSIDE = ("support", "finite", "finite diagonal", "rare", "coins", "moments")
_LAWS: dict[str, Callable[[Generator, int, int], Sketch]] = {
    "support": _support,
    "finite": _finite,
    "finite diagonal": _finite_diagonal,
    "moments": _moments,
    "rare": _rare,
    "coins": _coins,
    "layers": _layers,
}
