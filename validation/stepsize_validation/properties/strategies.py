"""Hypothesis strategies that build valid problems: the one generator of the tests.  A new sketch is one row.

Kinds, sizes and exponents are drawn by Hypothesis, which shrinks them; entries of arrays come from a drawn seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    DiagonalSketch,
    Direction,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
)
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.data import random_smoothness

seeds = st.integers(0, 2**32 - 1)
probabilities = st.floats(0.05, 1.0)
# No weight of a well-conditioned sketch is below this share of their mean.
LEAST = 0.1


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
def _bernq(draw: st.DrawFn, d: int, q: st.SearchStrategy[float]) -> BernQ:
    """One q for all layers, or one for each."""
    sizes = draw(partitions(d))
    count = draw(st.sampled_from([1, len(sizes)]))
    return BernQ(draw(st.lists(q, min_size=count, max_size=count)), sizes)


@st.composite
def _laws(draw: st.DrawFn, d: int, decades: float, least: float = 0.0) -> tuple[Matrix, Vector]:
    """Unbiased vectors with zeros, up to 10^decades, and weights that add up to one only up to rounding.

    No weight is below ``least`` over their number.
    """
    rng, terms = np.random.default_rng(draw(seeds)), int(10.0 ** draw(st.floats(0.0, decades)))
    vectors = rng.random((terms, d)) * (rng.random((terms, d)) < rng.uniform(0.2, 1.0))
    if rng.random() < 0.5:
        vectors = np.ceil(vectors)
    vectors[0] += 0.1  # every coordinate has a positive mean, by which it is then divided
    weights = np.full(terms, 1.0 / terms) if rng.random() < 0.5 else _weights(terms, rng, least)
    return vectors / (weights @ vectors), weights


def _weights(count: int, rng: np.random.Generator, least: float) -> Vector:
    return least / count + (1.0 - least) * rng.dirichlet(np.full(count, 2.0))


@st.composite
def _finite(draw: st.DrawFn, d: int) -> Sketch:
    """Random PSD matrices A_r, some of them singular, made unbiased by a congruence with (Σ w_r A_r)^{-1/2}."""
    rng = np.random.default_rng(draw(seeds))
    weights = _weights(draw(st.integers(1, 4)), rng, LEAST)
    rank = draw(st.integers(1, d))
    factors = np.linalg.qr(rng.standard_normal((weights.size, d, d)))[0][:, :, :rank]
    A = factors @ factors.mT
    A[0] += np.eye(d)
    values, Q = np.linalg.eigh(np.tensordot(weights, A, axes=1))
    W = (Q / np.sqrt(values)) @ Q.T
    return FiniteSketch(W @ A @ W, weights)


@st.composite
def _layers(draw: st.DrawFn, d: int, kinds: Sequence[str]) -> Sketch:
    return LayerWise([draw(sketches(n, *kinds)) for n in draw(partitions(d))])


SKETCHES: dict[str, Callable[[int], st.SearchStrategy[Sketch]]] = {
    "Identity": lambda d: st.just(Identity(d)),
    "RandK": lambda d: st.integers(1, d).map(lambda k: RandK(d, k)),
    "BernQ": lambda d: _bernq(d, probabilities),
    "IndependentSampling": lambda d: st.lists(probabilities, min_size=d, max_size=d).map(IndependentSampling),
    "SystematicSampling": lambda d: st.lists(probabilities, min_size=d, max_size=d).map(SystematicSampling),
    "DiagonalSketch": lambda d: _laws(d, 0.75, LEAST).map(lambda law: DiagonalSketch(*law)),
    "FiniteSketch": _finite,
    "Gaussian": lambda d: st.integers(1, d).map(lambda k: Gaussian(d, k)),
    "LayerWise": lambda d: _layers(d, [kind for kind in SKETCHES if kind != "LayerWise"]),
}


DIAGONAL = tuple(kind for kind in SKETCHES if kind not in ("FiniteSketch", "Gaussian", "LayerWise"))
# Sketches whose outcomes can be listed.
LISTABLE = tuple(kind for kind in SKETCHES if kind not in ("Gaussian", "LayerWise"))

# Some coordinates or layers are never compressed, some hardly ever sent.
rare = st.sampled_from([1.0, 0.5, 0.3]) | st.floats(-8.0, 0.0).map(lambda exponent: 10.0**exponent)

# Sketches that are valid and hard: for them proofs and solvers must hold, but a run would take for ever.  For small d
# there are up to 20 000 outcomes, so many that the rounding of their sums counts.
HARD_SKETCHES: dict[str, Callable[[int], st.SearchStrategy[Sketch]]] = {
    "long support": lambda d: _laws(d, 4.3 if d <= 3 else 2.0).map(lambda law: DiagonalSketch(*law)),
    "diagonal matrices": lambda d: _laws(d, 3.0 if d <= 3 else 1.3).map(_undeclared),
    "rare coordinates": lambda d: st.lists(rare, min_size=d, max_size=d).map(IndependentSampling),
    "rare coins": lambda d: _bernq(d, rare),
    "hard layers": lambda d: _layers(d, ["Identity", *(kind for kind in HARD_SKETCHES if kind != "hard layers")]),
}


def _undeclared(law: tuple[Matrix, Vector]) -> Sketch:
    """Diagonal matrices that the user did not declare as diagonal."""
    vectors, weights = law
    return FiniteSketch(vectors[:, :, None] * np.eye(vectors.shape[1]), weights)


def sketches(d: int, *kinds: str) -> st.SearchStrategy[Sketch]:
    """Sketches of dimension d, of the given kinds (rows of both tables) or of all in the first table."""
    rows = SKETCHES | HARD_SKETCHES
    return st.sampled_from(kinds or tuple(SKETCHES)).flatmap(lambda kind: rows[kind](d))


def hard_sketches(d: int) -> st.SearchStrategy[Sketch]:
    """Sketches of dimension d of both tables."""
    return sketches(d, *SKETCHES, *HARD_SKETCHES)


def sketches_up_to(max_d: int, *kinds: str) -> st.SearchStrategy[Sketch]:
    """Sketches of every dimension from 1 to max_d."""
    return st.integers(1, max_d).flatmap(lambda d: sketches(d, *kinds))


@st.composite
def problems(
    draw: st.DrawFn, max_d: int = 6, max_condition: float = 1e4, kinds: Sequence[str] = ()
) -> tuple[Matrix, Sketch]:
    """(L, sketch) of the same dimension."""
    L = draw(smoothness_matrices(max_d=max_d, max_condition=max_condition))
    return L, draw(sketches(L.shape[0], *kinds))


@st.composite
def hard_smoothness(draw: st.DrawFn, d: int, max_condition: float) -> Matrix:
    """L with a random spectrum, diagonal, made of small whole numbers, or with several components."""
    rng = np.random.default_rng(draw(seeds))
    kind = draw(st.sampled_from(["spectrum", "components", "diagonal", "whole numbers"]))
    if kind == "diagonal":
        return np.diag(10.0 ** rng.uniform(-3.0, 3.0, d))
    if kind == "whole numbers":
        A: Matrix = rng.integers(-3, 4, (d, d)).astype(float)
        return np.asarray(A @ A.T + np.eye(d))
    L = random_smoothness(rng, d, 10.0 ** draw(st.floats(0.0, float(np.log10(max_condition)))))
    if kind == "components":
        labels = rng.integers(0, 3, d)
        L = np.where(labels[:, None] == labels, L, 0.0)
    return L


@st.composite
def singular_matrices(draw: st.DrawFn, d: int) -> Matrix:
    """A positive semidefinite matrix of low rank without rounding: small whole numbers and a power of two."""
    rng = np.random.default_rng(draw(seeds))
    A: Matrix = rng.integers(-4, 5, (d, draw(st.integers(0, d)))).astype(float)
    return np.asarray(A @ A.T * 2.0 ** draw(st.integers(-3, 3)))


@st.composite
def structures(draw: st.DrawFn, d: int, max_condition: float = 1e6) -> Any:
    """Any structure of D."""
    kind = draw(st.sampled_from(["full", "diagonal", "scalar", "blocks", "direction", "directions"]))
    if kind not in ("blocks", "direction", "directions"):
        return kind
    sizes = (d,) if kind == "direction" else tuple(draw(partitions(d)))
    if kind == "blocks":
        return BlockDiagonal(sizes)
    rng = np.random.default_rng(draw(seeds))
    W = random_smoothness(rng, d, 10.0 ** draw(st.floats(0.0, float(np.log10(max_condition)))))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return Direction(np.where(labels[:, None] == labels, W, 0.0), sizes)
