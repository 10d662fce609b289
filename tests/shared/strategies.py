"""Hypothesis strategies that build valid inputs.  A new sketch is one row in ``SKETCHES``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from stepsize_opt.problems import random_smoothness
from stepsize_opt.sketches import (
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

Matrix = NDArray[np.float64]

seeds = st.integers(0, 2**32 - 1)
probabilities = st.floats(0.05, 1.0)


def random_orthogonal(d: int, rng: np.random.Generator) -> Matrix:
    """A random orthogonal d×d matrix."""
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


@st.composite
def smoothness_matrices(
    draw: st.DrawFn, min_d: int = 1, max_d: int = 6, max_condition: float = 1e6, rescaled: bool = False
) -> Matrix:
    """A symmetric positive definite L = Q Diag(λ) Qᵀ with a log-spaced spectrum, of condition at most max_condition.

    With ``rescaled`` the whole matrix is also multiplied by a power of ten from 10⁻⁴ to 10⁴.
    """
    d = draw(st.integers(min_d, max_d))
    decades = draw(st.floats(0.0, float(np.log10(max_condition))))
    scale = 10.0 ** draw(st.integers(-4, 4)) if rescaled else 1.0
    return scale * random_smoothness(np.random.default_rng(draw(seeds)), d, 10.0**decades)


@st.composite
def partitions(draw: st.DrawFn, d: int) -> list[int]:
    """Positive layer sizes that add up to d."""
    cuts = sorted(draw(st.sets(st.integers(1, d - 1), max_size=3))) if d > 1 else []
    return [int(n) for n in np.diff([0, *cuts, d])]


@st.composite
def _bernq(draw: st.DrawFn, d: int) -> BernQ:
    sizes = draw(partitions(d))
    count = draw(st.sampled_from([1, len(sizes)]))
    return BernQ(draw(st.lists(probabilities, min_size=count, max_size=count)), sizes)


@dataclass(frozen=True)
class LayeredCoins:
    """A sampler for ``DiagonalSketch.from_moments`` with a law that is known: that of a Bernoulli sketch."""

    sketch: BernQ

    def __call__(self, rng: np.random.Generator, size: int) -> Matrix:
        return self.sketch.sample_diagonal(rng, size)


def _weights(count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Probabilities none of which is tiny, so that the sketches built with them are well conditioned."""
    return 0.1 / count + 0.9 * rng.dirichlet(np.full(count, 2.0))


@st.composite
def _from_support(draw: st.DrawFn, d: int) -> Sketch:
    rng = np.random.default_rng(draw(seeds))
    weights = _weights(draw(st.integers(1, 5)), rng)
    vectors = rng.random((weights.size, d)) * (rng.random((weights.size, d)) < 0.6)
    vectors[0] += 0.1  # every coordinate has a positive mean, by which it is then divided
    return DiagonalSketch.from_support(vectors / (weights @ vectors), weights)


@st.composite
def _from_moments(draw: st.DrawFn, d: int) -> Sketch:
    coins = draw(_bernq(d))
    return DiagonalSketch.from_moments(coins.second_moment_matrix, LayeredCoins(coins), coins.expected_nonzeros)


@st.composite
def _finite(draw: st.DrawFn, d: int) -> Sketch:
    """Random PSD matrices A_r, some of them singular, made unbiased by a congruence with (Σ w_r A_r)^{-1/2}."""
    rng = np.random.default_rng(draw(seeds))
    weights = _weights(draw(st.integers(1, 4)), rng)
    rank = draw(st.integers(1, d))
    factors = [random_orthogonal(d, rng)[:, :rank] for _ in weights]
    A = np.array([Q @ Q.T for Q in factors])
    A[0] += np.eye(d)
    values, Q = np.linalg.eigh(np.tensordot(weights, A, axes=1))
    W = (Q / np.sqrt(values)) @ Q.T
    return FiniteSketch(W @ A @ W, weights)


@st.composite
def _layerwise(draw: st.DrawFn, d: int) -> Sketch:
    """Layers of any other kind."""
    kinds = [kind for kind in SKETCHES if kind != "LayerWise"]
    return LayerWise([draw(sketches(n, *kinds)) for n in draw(partitions(d))])


SKETCHES: dict[str, Callable[[int], st.SearchStrategy[Sketch]]] = {
    "Identity": lambda d: st.just(Identity(d)),
    "RandK": lambda d: st.integers(1, d).map(lambda k: RandK(d, k)),
    "BernQ": _bernq,
    "IndependentSampling": lambda d: st.lists(probabilities, min_size=d, max_size=d).map(IndependentSampling),
    "SystematicSampling": lambda d: st.lists(probabilities, min_size=d, max_size=d).map(SystematicSampling),
    "DiagonalSketch.from_support": _from_support,
    "DiagonalSketch.from_moments": _from_moments,
    "FiniteSketch": _finite,
    "Gaussian": lambda d: st.integers(1, d).map(lambda k: Gaussian(d, k)),
    "LayerWise": _layerwise,
}


def sketches(d: int, *kinds: str) -> st.SearchStrategy[Sketch]:
    """Sketches of dimension d, of the given kinds (rows of the table) or of all."""
    return st.sampled_from(kinds or tuple(SKETCHES)).flatmap(lambda kind: SKETCHES[kind](d))


def sketches_up_to(max_d: int, *kinds: str) -> st.SearchStrategy[Sketch]:
    """Sketches of every dimension from 1 to max_d."""
    return st.integers(1, max_d).flatmap(lambda d: sketches(d, *kinds))


@st.composite
def problems(draw: st.DrawFn, max_d: int = 6, max_condition: float = 1e4) -> tuple[Matrix, Sketch]:
    """(L, sketch) of the same dimension."""
    L = draw(smoothness_matrices(max_d=max_d, max_condition=max_condition))
    return L, draw(sketches(L.shape[0]))
