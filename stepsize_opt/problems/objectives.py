"""Objectives whose smoothness matrix is known by construction, evaluated at many points at once.

All take points as rows, X of shape (s, d), and return one value or gradient for each row; one product with the data
serves all rows.  One point may be a vector, shape (d,).  The logistic gradient here is the gradient of the stated
function, checked by finite differences in the tests.  (The script published with the paper multiplies its data term by
x entry by entry, so its curves belong to another update.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from scipy import sparse
from scipy.linalg import block_diag
from scipy.special import logsumexp, softmax

from stepsize_opt.inputs.checks import (
    check_dense,
    check_objective,
    check_one_of,
    dimensions,
    items,
    nonnegative_number,
    positive_number,
    read_rows,
    real_array,
    whole_number,
)
from stepsize_opt.inputs.matrices import dense, read_matrix
from stepsize_opt.proofs import sum_below
from stepsize_solvers.programs import Indices, Matrix, Vector, add_to_diagonal, block_slices


@dataclass(frozen=True)
class Penalty:
    """λ Σ_j φ(x_j): ``value`` and ``gradient`` of Σ_j φ(x_j) at each row of X; least ≤ φ″ ≤ most everywhere."""

    value: Callable[[Matrix], Vector]
    gradient: Callable[[Matrix], Matrix]
    least: float
    most: float


def _bounded(X: Matrix) -> Vector:
    squares = X**2
    return np.asarray(np.sum(squares / (1.0 + squares), axis=1))


PENALTIES = {
    # φ(t) = t²/(1 + t²), φ″(t) = 2(1 − 3t²)/(1 + t²)³: from 2 at 0 down to −½ at ±1.
    "nonconvex": Penalty(_bounded, lambda X: np.asarray(2.0 * X / (1.0 + X**2) ** 2), -0.5, 2.0),
    # φ(t) = t²/2
    "ridge": Penalty(lambda X: np.asarray(0.5 * np.sum(X**2, axis=1)), lambda X: X, 1.0, 1.0),
}


def read_penalty(name: str) -> Penalty:
    """Read the regulariser of a name; raises ValueError for an unknown one.

    Examples
    --------
    >>> from stepsize_opt.problems import read_penalty
    >>> read_penalty("ridge").most
    1.0
    """
    check_one_of("penalty", name, PENALTIES)
    return PENALTIES[name]


class Objective(Protocol):
    """What a run and a rate check need of f: ℝᵈ → ℝ.

    Examples
    --------
    See ``Quadratic``.
    """

    @property
    def d(self) -> int: ...
    @property
    def lower_bound(self) -> float:
        """A number that f never goes below, by proof."""
        ...

    def smoothness(self) -> Matrix:
        """Return a matrix L such that f is L-smooth, by proof but for the rounding of its entries; d×d."""
        ...

    def value(self, X: Matrix) -> Vector:
        """Return f at each row of X, shape (s, d) → (s,)."""
        ...

    def gradient(self, X: Matrix) -> Matrix:
        """Return ∇f at each row of X, shape (s, d) → (s, d)."""
        ...


Evaluation = TypeVar("Evaluation", bound=Callable[..., Any])


def at_points(evaluate: Evaluation) -> Evaluation:
    """Make a method of points as rows, (s, d), take one point, too, as a vector (d,); its answer has no rows then.

    Raises ValueError for anything else: products with it would be other numbers.
    """

    @wraps(evaluate)
    def of_points(self: Any, X: Any) -> Any:
        shape = np.shape(X)
        if shape == (self.d,):
            return evaluate(self, np.asarray(X)[None])[0]
        if len(shape) != 2 or shape[1] != self.d:
            msg = f"X must be a point, shape ({self.d},), or hold points as rows, shape (s, {self.d}), got {shape}"
            raise ValueError(msg)
        return evaluate(self, X)

    return cast(Evaluation, of_points)


def read_objectives(name: str, objectives: object) -> tuple[Objective, ...]:
    """Read the objectives of a list; raises TypeError for what is none, ValueError for an empty one."""
    found = tuple(items(name, objectives))
    for i, one in enumerate(found):
        check_objective(f"{name}[{i}]", one)
    return found


class _Regularised(ABC):
    """f(x) = a loss without negative values or curvature, plus λ Σ_j φ(x_j)."""

    lower_bound = 0.0
    reg: float
    penalty = "ridge"

    @property
    @abstractmethod
    def d(self) -> int: ...

    @abstractmethod
    def _loss(self, X: Matrix) -> Vector:
        """Return the loss at each row of X."""

    @abstractmethod
    def _loss_gradient(self, X: Matrix) -> Matrix:
        """Return the gradient of the loss at each row of X, as a new array."""

    @property
    def curvature_from_below(self) -> float:
        """μ with ∇²f ⪰ μI: λ min φ″."""
        return PENALTIES[self.penalty].least * self.reg

    def strong_convexity(self) -> Matrix:
        """Return M = μI, all that is known below the Hessian of the loss being 0."""
        check_dense("M", self.d)
        return np.asarray(self.curvature_from_below * np.eye(self.d))

    @at_points
    def value(self, X: Matrix) -> Vector:
        """Return f at each row of X, shape (s, d) → (s,), or at one point."""
        return np.asarray(self._loss(X) + self.reg * PENALTIES[self.penalty].value(X))

    @at_points
    def gradient(self, X: Matrix) -> Matrix:
        """Return ∇f at each row of X, shape (s, d) → (s, d), or at one point."""
        out = self._loss_gradient(X)
        out += self.reg * PENALTIES[self.penalty].gradient(X)
        return out


@dataclass(frozen=True, eq=False)
class _OnRows(_Regularised):
    """A mean over the m rows of a matrix A (m×d, sparse or dense), with a number bᵢ for each of them."""

    A: Any
    b: Vector
    row_curvature = 1.0  # the second derivative of the loss of one row is at most this

    def __post_init__(self) -> None:
        object.__setattr__(self, "A", read_rows("A", self.A))
        object.__setattr__(self, "b", real_array("b", self.b))
        if self.b.shape != (self.A.shape[0],):
            msg = f"b must have one entry for each of the {self.A.shape[0]} rows of A, got shape {self.b.shape}"
            raise ValueError(msg)

    @property
    def d(self) -> int:
        return int(self.A.shape[1])

    @property
    def m(self) -> int:
        return int(self.A.shape[0])

    @property
    def diagonal(self) -> float:
        """λ max φ″, what the penalty adds to the diagonal of L."""
        return PENALTIES[self.penalty].most * self.reg

    def smoothness(self) -> Matrix:
        """Return L = cAᵀA/m + λ max φ″ I for a loss with second derivatives up to c."""
        return gram(self.A, self.m / self.row_curvature, self.diagonal)


@dataclass(frozen=True, eq=False)
class LogisticRegression(_OnRows):
    """Logistic loss with the paper's non-convex regulariser (paper, Experiments), or with the ridge (λ/2)‖x‖²:

        f(x) = (1/m) Σᵢ log(1 + exp(−bᵢ aᵢᵀx)) + λ Σ_j x_j²/(1 + x_j²),
        ∇f(x) = −(1/m) Σᵢ bᵢ aᵢ/(1 + exp(bᵢ aᵢᵀx)) + λ (2x_j/(1 + x_j²)²)_j.

    The logistic function has a second derivative in (0, ¼] and t²/(1 + t²) one in [−½, 2], so f is L-smooth with
    L = AᵀA/(4m) + 2λI, and ∇²f ⪰ −(λ/2)I.  With the ridge L = AᵀA/(4m) + λI and ∇²f ⪰ λI: f is strongly convex.
    Both terms are nonnegative, so f^inf ≥ 0.  Sparse A (m×d) stays sparse.

    Parameters
    ----------
    A : array-like or sparse matrix of shape (m, d)
        Rows aᵢ.
    b : array-like of shape (m,)
        Labels bᵢ = ±1.
    reg : float
        λ > 0.
    penalty : str
        ``"nonconvex"``, the paper's, or ``"ridge"``.

    Raises
    ------
    ValueError
        If b does not have one entry for each row, or one that is not ±1, on which L relies; if λ is not a finite
        positive number, or the penalty is unknown.

    Examples
    --------
    The stepsize with the best contraction (1 − t)^K of E f(x^K) − f*:

    >>> import numpy as np
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> from stepsize_opt.problems import LogisticRegression
    >>> A = np.random.default_rng(0).standard_normal((50, 20))
    >>> f = LogisticRegression(A, np.sign(A[:, 0]), 0.1, penalty="ridge")
    >>> M = f.strong_convexity()
    >>> r = optimal_stepsize(f.smoothness(), RandK(f.d, 10), goal="linear", strong_convexity=M)
    >>> 0.0 < r.rate < 1.0
    True
    """

    reg: float
    penalty: str = "nonconvex"
    row_curvature = 0.25

    def __post_init__(self) -> None:
        positive_number("reg", self.reg)
        read_penalty(self.penalty)
        super().__post_init__()
        if not np.all(np.abs(self.b) == 1.0):
            msg = f"b must hold the labels -1 and 1, got {', '.join(f'{x:g}' for x in np.unique(self.b)[:4])}, …"
            raise ValueError(msg)

    def __repr__(self) -> str:
        return f"LogisticRegression(m = {self.m}, d = {self.d}, λ = {self.reg:g}, penalty {self.penalty!r})"

    @cached_property
    def signed_rows(self) -> Any:
        """−bᵢaᵢᵀ as rows, so that the loss of row i is log(1 + exp(row·x)); csr or dense as A is."""
        if sparse.issparse(self.A):
            return sparse.csr_array(sparse.diags_array(-self.b) @ self.A)
        return -self.b[:, None] * self.A

    @cached_property
    def terms(self) -> tuple[Any, Vector]:
        """The signed rows and the share that each has in the mean; a subclass may list equal rows once."""
        return self.signed_rows, np.full(self.m, 1.0 / self.m)

    def margins(self, X: Matrix) -> Matrix:
        """Return bᵢaᵢᵀx of the rows that ``terms`` lists at each row of X, shape (s, d) → (m', s)."""
        return np.asarray(self.terms[0] @ -X.T)

    def _loss(self, X: Matrix) -> Vector:
        margins = self.margins(X)
        # log(1 + e^{−z}) = log(1 + e^{−|z|}) + max(−z, 0), without overflow and twice as fast as logaddexp; that log
        # loses the digits of an e^{−|z|} below 10⁻¹⁶ does not matter beside the other terms of the mean.
        losses = np.abs(margins)
        np.exp(np.negative(losses, out=losses), out=losses)
        losses += 1.0
        np.log(losses, out=losses)
        losses -= np.minimum(margins, 0.0, out=margins)
        return np.asarray(self.terms[1] @ losses)

    def _loss_gradient(self, X: Matrix) -> Matrix:
        # shareᵢ/(1 + exp(zᵢ)), with the shares in the division: faster than scipy's expit and a product.
        with np.errstate(over="ignore"):  # exp(z) = ∞ gives the right limit 0
            weights = np.exp(self.margins(X))
        weights += 1.0
        np.divide(self.terms[1][:, None], weights, out=weights)
        return np.asarray(self.terms[0].T @ weights).T


@dataclass(frozen=True, eq=False)
class Quadratic:
    """f(x) = ½ (x − x*)ᵀ H (x − x*) with H ⪰ 0 and f^inf = 0; it is H-smooth, and no smaller matrix will do.

    Parameters
    ----------
    H : numpy.ndarray
        Symmetric positive semidefinite, shape (d, d).
    minimiser : numpy.ndarray
        x*, shape (d,).

    Raises
    ------
    ValueError
        For other shapes or a negative eigenvalue.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import Quadratic
    >>> f = Quadratic(np.diag([1.0, 2.0]), np.zeros(2))
    >>> f.value(np.ones((1, 2))).tolist(), f.gradient(np.ones((1, 2))).tolist()
    ([1.5], [[1.0, 2.0]])
    """

    H: Matrix
    minimiser: Vector
    curvature_from_below: float = field(init=False)  # μ with H ⪰ μI
    lower_bound = 0.0

    def __post_init__(self) -> None:
        H = dense(read_matrix("H", self.H))
        object.__setattr__(self, "minimiser", real_array("minimiser", self.minimiser))
        if self.minimiser.shape != (len(H),):
            msg = f"minimiser must have shape ({len(H)},) as H is {len(H)}×{len(H)}, got {self.minimiser.shape}"
            raise ValueError(msg)
        spectrum = np.linalg.eigvalsh(H)
        # eigvalsh is right to about d rounding errors of the largest eigenvalue.
        rounding = 4.0 * len(H) * np.finfo(float).eps * abs(spectrum[-1])
        if spectrum[0] < -rounding:
            msg = f"H must be positive semidefinite, got an eigenvalue {spectrum[0]:.3g}"
            raise ValueError(msg)
        object.__setattr__(self, "H", H)
        object.__setattr__(self, "curvature_from_below", max(0.0, float(spectrum[0]) - float(rounding)))

    def __repr__(self) -> str:
        return f"Quadratic(d = {self.d})"

    @property
    def d(self) -> int:
        return len(self.H)

    def smoothness(self) -> Matrix:
        return self.H.copy()

    def strong_convexity(self) -> Matrix:
        """Return M = H, the Hessian itself."""
        return self.H.copy()

    @at_points
    def value(self, X: Matrix) -> Vector:
        away = X - self.minimiser
        return np.asarray(0.5 * np.einsum("sd,sd->s", away @ self.H, away))

    @at_points
    def gradient(self, X: Matrix) -> Matrix:
        return np.asarray((X - self.minimiser) @ self.H)


@dataclass(frozen=True, eq=False)
class LeastSquares(_OnRows):
    """f(x) = (1/2m) ‖Ax − b‖² + (λ/2) ‖x‖², L = AᵀA/m + λI, f^inf ≥ 0.

    Parameters
    ----------
    A : array-like or sparse matrix of shape (m, d)
        Rows of the data.
    b : array-like of shape (m,)
        A number for each row.
    reg : float
        λ ≥ 0; it may be 0 when AᵀA is positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import LeastSquares
    >>> LeastSquares(np.eye(2), np.ones(2), reg=0.5).smoothness().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    reg: float = 0.0

    def __post_init__(self) -> None:
        nonnegative_number("reg", self.reg)
        super().__post_init__()

    def __repr__(self) -> str:
        return f"LeastSquares(m = {self.m}, d = {self.d}, λ = {self.reg:g})"

    def strong_convexity(self) -> Matrix:
        """Return M = AᵀA/m + λI, the Hessian itself."""
        return self.smoothness()

    def _residual(self, X: Matrix) -> Matrix:
        return np.asarray(self.A @ X.T - self.b[:, None])

    def _loss(self, X: Matrix) -> Vector:
        return np.asarray(0.5 * np.mean(self._residual(X) ** 2, axis=0))

    def _loss_gradient(self, X: Matrix) -> Matrix:
        return np.asarray((self.A.T @ self._residual(X)).T / self.m)


@dataclass(frozen=True, eq=False)
class Layered:
    """f(x) = Σᵢ fᵢ(x⁽ⁱ⁾), each layer with coordinates and an objective of its own: L = Diag(L₁, …, L_m).

    Parameters
    ----------
    layers : tuple of Objective
        fᵢ, in the order of their coordinates.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import Layered, Quadratic
    >>> Layered((Quadratic(np.eye(2), np.zeros(2)), Quadratic(np.eye(1), np.zeros(1)))).d
    3
    """

    layers: tuple[Objective, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", read_objectives("layers", self.layers))

    def __repr__(self) -> str:
        return f"Layered(sizes = {self.sizes})"

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(layer.d for layer in self.layers)

    @property
    def d(self) -> int:
        return sum(self.sizes)

    @property
    def lower_bound(self) -> float:
        return sum_below([layer.lower_bound for layer in self.layers])

    def smoothness(self) -> Matrix:
        return np.asarray(block_diag(*(layer.smoothness() for layer in self.layers)))

    @property
    def curvature_from_below(self) -> float:
        """The smallest μ of the layers, ∇²f ⪰ μI; raises AttributeError when a layer knows none."""
        layers: Any = self.layers
        return float(min(layer.curvature_from_below for layer in layers))

    def strong_convexity(self) -> Matrix:
        """Return M = Diag(M₁, …, M_m); raises AttributeError when a layer has none."""
        layers: Any = self.layers
        return np.asarray(block_diag(*(layer.strong_convexity() for layer in layers)))

    @at_points
    def value(self, X: Matrix) -> Vector:
        parts = zip(self.layers, block_slices(self.sizes), strict=True)
        return np.asarray(np.sum([layer.value(X[:, part]) for layer, part in parts], axis=0))

    @at_points
    def gradient(self, X: Matrix) -> Matrix:
        parts = zip(self.layers, block_slices(self.sizes), strict=True)
        return np.hstack([layer.gradient(X[:, part]) for layer, part in parts])


def gram(A: Any, divisor: float, shift: float = 0.0) -> Matrix:
    """Return AᵀA/divisor + shift·I as a dense matrix."""
    check_dense("AᵀA", A.shape[1])
    product = A.T @ A
    out = np.asarray(product.toarray() if sparse.issparse(product) else product, dtype=float) / divisor
    add_to_diagonal(out, shift)
    return out


def softmax_curvature(classes: int) -> Matrix:
    """Return ½(I − 11ᵀ/C), at least the Hessian of log Σ exp(z_c) at every z ∈ ℝᶜ (Böhning, 1992); C×C.

    Examples
    --------
    >>> from stepsize_opt.problems import softmax_curvature
    >>> softmax_curvature(2).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    C = whole_number("classes", classes)
    check_dense("the curvature", C)
    return np.asarray(0.5 * (np.eye(C) - 1.0 / C))


def linear_smoothness(K: Matrix, gram: Matrix, *, bias: bool = False) -> Matrix:
    """Return K ⊗ FᵀF/n, L of a linear layer with C outputs whose loss has Hessians of at most K; C·p square.

    ``gram`` is FᵀF/n.  With ``bias`` its last feature is the one of the bias, whose C entries stand behind the others.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import linear_smoothness
    >>> linear_smoothness(np.array([[0.25]]), np.diag([4.0, 8.0])).tolist()
    [[1.0, 0.0], [0.0, 2.0]]
    """
    L: Matrix = np.asarray(np.kron(K, gram), dtype=np.float64)
    if not bias:
        return L
    places = np.arange(len(L)).reshape(len(K), len(gram))
    order = np.concatenate([places[:, :-1].ravel(), places[:, -1]])
    return np.asarray(L[np.ix_(order, order)])


@dataclass(frozen=True, eq=False)
class SoftmaxRegression(_Regularised):
    """Cross-entropy of a linear classifier with a ridge:

        f(x) = (1/m) Σᵢ [log Σ_c exp(w_cᵀaᵢ) − w_{yᵢ}ᵀaᵢ] + (λ/2)‖x‖².

    x holds the rows w_c of the C×p weight one after the other, as ``nn.Linear`` does.  The Hessian in the C scores is
    at most ½(I − 11ᵀ/C), so f is L-smooth with L = ½(I − 11ᵀ/C) ⊗ AᵀA/m + λI.  Both terms are nonnegative.

    Parameters
    ----------
    A : array-like of shape (m, p)
        Features aᵢ as rows.
    labels : numpy.ndarray
        Classes yᵢ from 0 to C − 1, shape (m,).
    classes : int
        C, at least 2.
    reg : float
        λ > 0: adding one vector to all w_c changes no score, so without a ridge L is singular.

    Raises
    ------
    ValueError
        For features that are not a finite matrix, labels that are not such classes, or a λ that is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import SoftmaxRegression
    >>> f = SoftmaxRegression(np.eye(3), np.array([0, 1, 1]), classes=2, reg=0.1)
    >>> f.d, round(float(f.value(np.zeros((1, 6)))[0]), 4)  # log 2
    (6, 0.6931)
    """

    A: Any
    labels: Indices
    classes: int
    reg: float

    def __post_init__(self) -> None:
        positive_number("reg", self.reg)
        object.__setattr__(self, "classes", whole_number("classes", self.classes, low=2))
        if sparse.issparse(self.A):
            msg = "A must be a dense matrix: A.toarray()"
            raise TypeError(msg)
        A = read_rows("A", self.A)
        y = np.asarray(self.labels if dimensions(self.labels) == 1 else ())
        inside = y.shape == (len(A),) and y.dtype.kind in "iu" and bool(np.all((y >= 0) & (y < self.classes)))
        if not inside:
            msg = f"labels must be {len(A)} whole numbers from 0 to classes − 1 = {self.classes - 1}"
            raise ValueError(msg)
        object.__setattr__(self, "A", A)

    def __repr__(self) -> str:
        return f"SoftmaxRegression(m = {len(self.A)}, d = {self.d}, {self.classes} classes, λ = {self.reg:g})"

    @property
    def d(self) -> int:
        return int(self.classes * self.A.shape[1])

    def smoothness(self) -> Matrix:
        """Return L = ½(I − 11ᵀ/C) ⊗ AᵀA/m + λI, d×d."""
        check_dense("L", self.d)
        L = linear_smoothness(softmax_curvature(self.classes), gram(self.A, len(self.A)))
        return np.asarray(L + self.reg * np.eye(self.d))

    def _loss(self, X: Matrix) -> Vector:
        scores = self._scores(X)
        chosen = scores[:, np.arange(len(self.A)), self.labels]
        return np.asarray(np.mean(np.asarray(logsumexp(scores, axis=2)) - chosen, axis=1))

    def _loss_gradient(self, X: Matrix) -> Matrix:
        excess = softmax(self._scores(X), axis=2)
        excess[:, np.arange(len(self.A)), self.labels] -= 1.0
        return np.asarray((np.swapaxes(excess, 1, 2) @ self.A / len(self.A)).reshape(X.shape))

    def _scores(self, X: Matrix) -> Matrix:
        """Return w_cᵀaᵢ, shape (s, d) → (s, m, C)."""
        weights = X.reshape(len(X), self.classes, -1)
        return np.asarray(self.A @ np.swapaxes(weights, 1, 2))
