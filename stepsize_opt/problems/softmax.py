"""Softmax regression: the head of a classifier on fixed features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import logsumexp, softmax

from stepsize_opt.inputs import check_dense, dimensions, positive_number, read_rows, whole_number
from stepsize_opt.problems.objectives import check_points, gram
from stepsize_solvers.programs import Indices, Matrix, Vector


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


@dataclass(frozen=True, eq=False)
class SoftmaxRegression:
    """Cross-entropy of a linear classifier with a ridge:

        f(x) = (1/m) Σᵢ [log Σ_c exp(w_cᵀaᵢ) − w_{yᵢ}ᵀaᵢ] + (λ/2)‖x‖².

    x holds the rows w_c of the C×p weight one after the other, as ``nn.Linear`` does.  The Hessian in the C scores is
    at most ½(I − 11ᵀ/C), so f is L-smooth with L = ½(I − 11ᵀ/C) ⊗ AᵀA/m + λI.  Both terms are nonnegative.

    Parameters
    ----------
    A : array_like
        Features aᵢ as rows, shape (m, p).
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

    @property
    def d(self) -> int:
        return int(self.classes * self.A.shape[1])

    @property
    def lower_bound(self) -> float:
        return 0.0

    def smoothness(self) -> Matrix:
        """Return L = ½(I − 11ᵀ/C) ⊗ AᵀA/m + λI, d×d."""
        check_dense("L", self.d)
        L = np.kron(softmax_curvature(self.classes), gram(self.A, len(self.A)))
        return np.asarray(L + self.reg * np.eye(self.d))

    @property
    def curvature_from_below(self) -> float:
        """μ = λ with ∇²f ⪰ μI."""
        return self.reg

    def strong_convexity(self) -> Matrix:
        """Return M = λI, d×d: the cross-entropy is convex and flat along a vector that is added to all w_c."""
        check_dense("M", self.d)
        return np.asarray(self.reg * np.eye(self.d))

    def value(self, X: Matrix) -> Vector:
        """Return f at each row of X, shape (s, d) → (s,)."""
        scores = self._scores(X)
        chosen = scores[:, np.arange(len(self.A)), self.labels]
        loss = np.mean(np.asarray(logsumexp(scores, axis=2)) - chosen, axis=1)
        return np.asarray(loss + 0.5 * self.reg * np.sum(X**2, axis=1))

    def gradient(self, X: Matrix) -> Matrix:
        """Return ∇f at each row of X, shape (s, d) → (s, d)."""
        excess = softmax(self._scores(X), axis=2)
        excess[:, np.arange(len(self.A)), self.labels] -= 1.0
        data = np.swapaxes(excess, 1, 2) @ self.A / len(self.A)
        return np.asarray(data.reshape(X.shape) + self.reg * X)

    def _scores(self, X: Matrix) -> Matrix:
        """Return w_cᵀaᵢ, shape (s, d) → (s, m, C)."""
        weights = check_points(X, self.d).reshape(len(X), self.classes, -1)
        return np.asarray(self.A @ np.swapaxes(weights, 1, 2))
