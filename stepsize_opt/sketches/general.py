"""Sketches by outcomes or by layers: any diagonal one, finite ones, independent layers, Gaussian.

The theorems, and the limit with them, hold for E[S] = I, which a list of floats has up to rounding only.  So the
distribution of a ``DiagonalSketch`` is defined by the floats such that E[S] = I holds exactly: s is s_r/m with
probability w_r/Σw, with the exact mean m = Σ_r w_r s_r/Σw, entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, isqrt
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from stepsize_opt.inputs.checks import (
    SLACK,
    Array,
    check_unbiased,
    distribution,
    items,
    read_only,
    real_array,
    symmetric_part,
    whole_number,
)
from stepsize_opt.proofs import twice_gamma
from stepsize_opt.sketches.base import (
    DiagonalBase,
    KFloats,
    Law,
    Sketch,
    check_listable,
    check_sizes,
    counted,
    independent_law,
    number,
    parse_sketch,
)
from stepsize_opt.sketches.diagonal import side_by_side
from stepsize_opt.sketches.draws import Draw, FactorDraw, LayersDraw
from stepsize_solvers.programs import (
    CongruenceSum,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    Vector,
    block_slices,
    hadamard,
)

# Products of weights and values from here on keep all their digits; above the smallest normal number, 2.2e-308, because
# sums of smaller ones would be rounded to it.
_LEAST_PRODUCT = 1e-290


@dataclass(frozen=True, eq=False, init=False, repr=False)
class DiagonalSketch(DiagonalBase):
    """Any diagonal sketch S = Diag(s) with finitely many outcomes: 𝒫(M) = P ∘ M, P = E[s sᵀ].

    A law without a list of outcomes is a class of its own (docs/contributing.md).

    Parameters
    ----------
    vectors
        The outcomes s_r as rows, shape (R, d), nonnegative.
    weights
        Their probabilities w_r, shape (R,).

    Raises
    ------
    ValueError, TypeError
        For other arrays, or unless Σ_r w_r s_r = 1 in every coordinate.  This sum and that of the weights may be off by
        rounding: the vectors are divided by their mean.

    Examples
    --------
    >>> from stepsize_opt import DiagonalSketch
    >>> sketch = DiagonalSketch([[2.0, 0.0], [0.0, 2.0]], [0.5, 0.5])  # one of two coordinates
    >>> sketch.expected_nonzeros, sketch.omega
    (1.0, 1.0)
    """

    unbiased_by_formula: ClassVar[bool] = True
    normalised: ClassVar[tuple[str, ...]] = ("vectors", "weights")
    vectors: Matrix
    weights: Vector

    def __init__(self, vectors: ArrayLike, weights: ArrayLike) -> None:
        V = real_array("vectors", vectors)
        if V.ndim != 2 or V.size == 0:
            msg = f"vectors must have shape (R, d) with R and d at least 1, got {V.shape}"
            raise ValueError(msg)
        if np.any(V < 0.0):
            msg = f"vectors must be nonnegative, because S = Diag(s) ⪰ 0; got an entry {V.min():g}"
            raise ValueError(msg)
        w = distribution(weights, len(V), "vectors")
        check_unbiased("vectors", w @ V, np.ones(V.shape[1]), w @ V)
        least = np.min(V, axis=1, where=V > 0.0, initial=1.0)
        if np.any((w > 0.0) & (w * least < _LEAST_PRODUCT / least)):
            msg = (
                f"vectors hold positive numbers so small that w_r s_i s_j falls below {_LEAST_PRODUCT:g}; use 0 instead"
            )
            raise ValueError(msg)
        sums, total = _sums(V, w)
        self._set(d=V.shape[1], vectors=read_only(V / (sums / total)), weights=w)

    def _map(self) -> PositiveMap:
        # Coordinates with equal columns always have equal factors s_i = s_j; one of them stands for all.
        columns, labels = np.unique(self.vectors, axis=1, return_inverse=True)
        P, roundings = _sum_of_squares(columns, self.weights)
        sums, total = _sums(columns, self.weights)
        P *= total / (sums[:, None] * sums)
        roundings += 8  # two in each of the sums, one in the total, three in what is made of them
        if len(np.unique(P, axis=0)) < len(P):
            # Pattern.commutes_with takes equal rows of P for s_i = s_j: rows must not be equal by rounding alone.
            np.einsum("ii->i", P)[:] *= 1.0 + 2.0**-52
            roundings += 4
        labels = labels.ravel()
        return hadamard(read_only(P[np.ix_(labels, labels)]), roundings)

    @property
    def untouched(self) -> NDArray[np.bool_]:
        return np.asarray((self.vectors == 1.0).all(axis=0))  # P may round to 1

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self.vectors[rng.choice(self.weights.size, size=size, p=self.weights)]

    @property
    def expected_nonzeros(self) -> float:
        sent, total = _sums(np.count_nonzero(self.vectors, axis=1)[:, None], self.weights)
        return min(float(sent[0]) / total, float(self.d))

    @property
    def sampling_probabilities(self) -> Vector:
        """The probability of each value above 1 of each coordinate; every coordinate that varies has one."""
        drawn = self.weights > 0.0
        found = []
        for column in np.unique(self.vectors[drawn], axis=1).T:
            values, places = np.unique(column, return_inverse=True)
            found.append(np.bincount(places.ravel(), self.weights[drawn])[values > 1.0])
        return np.minimum(1.0, np.concatenate(found))

    @property
    def text(self) -> str:
        return f"diagonal(d={self.d}, {counted(self.weights.size, 'vector', 'vectors')})"

    def support(self) -> Law:
        check_listable(self, self.weights.size)
        return self.weights, self.vectors


def _sums(V: Matrix, weights: Vector) -> tuple[Vector, float]:
    """Return Σ_r w_r s_r over the rows s_r of V, whose products and sums are rounded once each, and Σ_r w_r."""
    return np.array([fsum((weights * column).tolist()) for column in V.T]), fsum(weights.tolist())


def _sum_of_squares(V: Matrix, weights: Vector) -> tuple[Matrix, int]:
    """Return Σ_r w_r s_r s_rᵀ over the rows s_r of V, symmetric, and how many roundings an entry went through.

    All terms are nonnegative, so the error is relative to the sum; √R sums of √R terms keep it small.
    """
    step = isqrt(len(V) - 1) + 1
    P = np.zeros((V.shape[1], V.shape[1]))
    for first in range(0, len(V), step):
        part = V[first : first + step]
        P += (part * weights[first : first + step, None]).T @ part
    # In each sum a product with w_r, one with s_j, step − 1 additions; then as many additions of sums, and the mean.
    return (P + P.T) / 2.0, 2 * step + 2


@dataclass(frozen=True, eq=False, init=False)
class LayerWise(Sketch):
    """S = Diag(S₁, …, S_m) with independent sketches Sᵢ, one for each layer (block of coordinates).

    E[Sᵢ M_ij S_j] = M_ij for i ≠ j, so 𝒫(M) has the blocks 𝒫ᵢ(Mᵢᵢ) on the diagonal and those of M elsewhere.
    A layer that is itself a LayerWise is replaced by its layers, which is the same law.
    As text ``layers:3=randk:1;4=bernq:0.5``, where no layer may be ``layers`` itself.
    Raises ValueError for an empty list, TypeError for a layer that is not a Sketch.

    Examples
    --------
    >>> from stepsize_opt import BernQ, LayerWise, RandK
    >>> sketch = LayerWise([RandK(3, 1), BernQ(0.5, 4)])
    >>> sketch.d, sketch.expected_nonzeros, str(sketch)
    (7, 3.0, 'layers:3=randk:1;4=bernq:0.5')
    """

    form: ClassVar[str] = "layers:3=randk:1;4=bernq:0.5"
    d: int = field(init=False, repr=False)
    layers: tuple[Sketch, ...]

    def __init__(self, layers: Sequence[Sketch]) -> None:
        flat: list[Sketch] = []
        for i, layer in enumerate(items("layers", layers)):
            if not isinstance(layer, Sketch):
                msg = f"layers[{i}] must be a Sketch, got {layer!r}"
                raise TypeError(msg)
            flat.extend(layer.layers if isinstance(layer, LayerWise) else [layer])
        self._set(d=sum(layer.d for layer in flat), layers=tuple(flat))

    def _map(self) -> PositiveMap:
        return side_by_side([layer.map for layer in self.layers])

    @property
    def untouched(self) -> NDArray[np.bool_]:
        return np.concatenate([layer.untouched for layer in self.layers])

    def _sample(self, rng: np.random.Generator) -> Matrix:
        return np.asarray(block_diag(*(layer._sample(rng) for layer in self.layers)))

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        slices = block_slices([layer.d for layer in self.layers])
        return np.hstack([layer._apply_rows(X[:, s], rng) for layer, s in zip(self.layers, slices, strict=True)])

    def _draw(self, rng: np.random.Generator) -> Draw:
        return LayersDraw(tuple(layer.d for layer in self.layers), [layer._draw(rng) for layer in self.layers])

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        # Draw by draw: the layers' random numbers follow each other in the order of single draws.
        rows = [np.hstack([layer._diagonals(rng, 1)[0] for layer in self.layers]) for _ in range(size)]
        return np.array(rows).reshape(size, self.d)

    @property
    def is_diagonal(self) -> bool:
        return all(layer.is_diagonal for layer in self.layers)

    @property
    def expected_nonzeros(self) -> float:
        return sum(layer.expected_nonzeros for layer in self.layers)

    @property
    def expected_rank(self) -> float:
        return sum(layer.expected_rank for layer in self.layers)

    @property
    def sampling_probabilities(self) -> Vector:
        return np.concatenate([layer.sampling_probabilities for layer in self.layers])

    @property
    def is_exactly_unbiased(self) -> bool:
        return all(layer.is_exactly_unbiased for layer in self.layers)

    @property
    def text(self) -> str:
        return "layers:" + ";".join(f"{layer.d}={layer.text}" for layer in self.layers)

    @classmethod
    def parse(cls, argument: str, d: int) -> LayerWise:
        sizes: list[int] = []
        sketches: list[Sketch] = []
        for part in argument.split(";"):
            size, equals, text = part.partition("=")
            if not equals:
                msg = f"each layer must read size=sketch, got {part!r}"
                raise ValueError(msg)
            if text.partition(":")[0].strip() == "layers":
                msg = f"a layer cannot be layers itself; write all layers in one list, such as {cls.form}"
                raise ValueError(msg)
            sizes.append(whole_number("a layer size", number("a layer size", size)))
            sketches.append(parse_sketch(text, sizes[-1]))
        check_sizes(sizes, d)
        return cls(sketches)

    def support(self) -> Law:
        return independent_law(self, [layer.support() for layer in self.layers])


@dataclass(frozen=True, eq=False, init=False, repr=False)
class FiniteSketch(Sketch):
    """S is ``matrices[r]`` with probability ``weights[r]``: 𝒫(M) = Σ_r w_r S_r M S_r.

    For sketches that are not diagonal; for diagonal ones, ``DiagonalSketch`` is cheaper.
    ``matrices`` has shape (R, d, d), ``weights`` shape (R,).  ``expected_nonzeros`` is Σ_r w_r rank(S_r): both ends
    know the matrices and draw the same r from shared randomness, so that the coefficients of S_r x in a basis of
    the range of S_r are all that has to be sent.
    Raises ValueError unless every S_r is symmetric positive semidefinite, the weights are a probability
    distribution, and Σ_r w_r S_r = I.  A mean m that is off by up to 1e-9 is taken out, S_r ← m^{−½} S_r m^{−½}; what
    is left is rounding, so that E[S] = I is not exact and results have no ``limit``.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import FiniteSketch
    >>> ones = np.ones((2, 2))
    >>> sketch = FiniteSketch([ones, 2.0 * np.eye(2) - ones], [0.5, 0.5])  # the mean or the difference, twice
    >>> sketch.expected_nonzeros, sketch.d
    (1.0, 2)
    """

    normalised: ClassVar[tuple[str, ...]] = ("matrices", "weights")
    matrices: Array
    weights: Vector

    def __init__(self, matrices: ArrayLike, weights: ArrayLike) -> None:
        given = real_array("matrices", matrices)
        if given.ndim != 3 or given.size == 0 or given.shape[1] != given.shape[2]:
            msg = f"matrices must have shape (R, d, d) with R and d at least 1, got {given.shape}"
            raise ValueError(msg)
        S = np.array([symmetric_part(f"matrices[{r}]", M) for r, M in enumerate(given)])
        for r, eigenvalues in enumerate(np.linalg.eigvalsh(S)):
            if eigenvalues[0] < -SLACK * abs(eigenvalues).max():
                msg = f"matrices[{r}] must be positive semidefinite, got an eigenvalue {eigenvalues[0]:g}"
                raise ValueError(msg)
        w = distribution(weights, len(S), "matrices")
        mean, size = (np.tensordot(w, A, axes=1) for A in (S, np.abs(S)))
        check_unbiased("matrices", mean, np.eye(S.shape[1]), size)
        bias = mean - np.eye(S.shape[1])
        bias[np.abs(bias) <= twice_gamma(len(w) + 4) * size] = 0.0  # the rounding of this mean
        # m^{−½} = I − (m − I)/2 up to the square of m − I, which is below every rounding.
        excess = bias @ S
        S -= 0.5 * (excess + excess.transpose(0, 2, 1))
        self._set(d=S.shape[1], matrices=read_only(S), weights=w)

    def _map(self) -> PositiveMap:
        return CongruenceSum(self.weights, self.matrices)

    @property
    def untouched(self) -> NDArray[np.bool_]:
        return np.asarray((self.matrices == np.eye(self.d)).all(axis=(0, 1)))

    def _outcomes(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.choice(self.weights.size, size=size, p=self.weights)

    def _sample(self, rng: np.random.Generator) -> Matrix:
        return np.array(self.matrices[self._outcomes(rng, 1)[0]])

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        drawn = self._outcomes(rng, len(X))
        out = np.empty_like(X)
        for r in np.unique(drawn):
            out[drawn == r] = X[drawn == r] @ self.matrices[r]  # rows times a symmetric matrix
        return out

    @property
    def expected_nonzeros(self) -> float:
        return self._mean_rank(SLACK)  # what is smaller is not sent

    @property
    def expected_rank(self) -> float:
        return self._mean_rank(self.d * float(np.finfo(float).eps))  # what is smaller is the rounding of the matrices

    def _mean_rank(self, share: float) -> float:
        """Return the mean number of eigenvalues above a share of the largest one."""
        eigenvalues = np.linalg.eigvalsh(self.matrices)
        ranks = np.count_nonzero(eigenvalues > share * eigenvalues[:, -1:], axis=1)
        return min(float(self.weights @ ranks), float(self.d))  # the weights are rounded

    @property
    def sampling_probabilities(self) -> Vector:
        """The weights of the outcomes that occur."""
        return self.weights[self.weights > 0.0]

    @property
    def text(self) -> str:
        return f"finite(d={self.d}, {counted(self.weights.size, 'matrix', 'matrices')})"

    def support(self) -> Law:
        check_listable(self, self.weights.size)
        return self.weights, self.matrices


@dataclass(frozen=True, eq=False)
class Gaussian(KFloats):
    """S = (1/k) G Gᵀ with a d×k matrix G of independent standard normal entries.

    𝒫(M) = (1 + 1/k) M + (tr M / k) I (Isserlis' theorem) and ω = (d + 1)/k.  The k numbers of Gᵀx are sent, G comes
    from shared randomness.  As text ``gaussian:4``.
    Raises ValueError unless k is a whole number from 1 to d.

    Examples
    --------
    >>> from stepsize_opt import Gaussian
    >>> Gaussian(10, 4).omega, str(Gaussian(10, 4))
    (2.75, 'gaussian:4')
    """

    form: ClassVar[str] = "gaussian:4"

    def _map(self) -> PositiveMap:
        return ScaledPlusTrace(self.d, 1.0 + 1.0 / self.k, 1.0 / self.k)

    def _sample(self, rng: np.random.Generator) -> Matrix:
        G = rng.standard_normal((self.d, self.k))
        return G @ G.T / self.k

    def _draw(self, rng: np.random.Generator) -> Draw:
        return FactorDraw(rng.standard_normal((self.d, self.k)), 1.0 / self.k)

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        out = np.empty_like(X)
        for i, x in enumerate(X):  # one G at a time: m of them together may not fit into memory
            G = rng.standard_normal((self.d, self.k))
            out[i] = G @ (x @ G) / self.k
        return out

    @classmethod
    def parse(cls, argument: str, d: int) -> Gaussian:
        return cls(d, whole_number("k", number("k", argument), high=d))
