"""Sketches that need not be diagonal: independent layers of any kind, finite laws, Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import block_diag

from stepsize_opt.inputs import (
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
from stepsize_opt.sketches.base import Law, Sketch, check_listable, independent_law
from stepsize_opt.sketches.diagonal import side_by_side
from stepsize_opt.sketches.draws import Draw, FactorDraw, LayersDraw
from stepsize_opt.sketches.text import check_sizes, counted, number, parse_sketch
from stepsize_solvers.programs import CongruenceSum, Matrix, PositiveMap, ScaledPlusTrace, Vector, block_slices


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

    For sketches that are not diagonal; for diagonal ones, ``DiagonalSketch.from_support`` is cheaper.
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
        """The mean number of eigenvalues above a share of the largest one."""
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
class Gaussian(Sketch):
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
    unbiased_by_formula: ClassVar[bool] = True
    k: int

    def __post_init__(self) -> None:
        d = whole_number("d", self.d)
        self._set(d=d, k=whole_number("k", self.k, high=d))

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

    @property
    def expected_nonzeros(self) -> float:
        return float(self.k)

    @property
    def expected_rank(self) -> float:
        return float(self.k)

    @property
    def text(self) -> str:
        return f"gaussian:{self.k}"

    @classmethod
    def parse(cls, argument: str, d: int) -> Gaussian:
        return cls(d, whole_number("k", number("k", argument), high=d))
