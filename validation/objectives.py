"""Objectives whose smoothness matrix is known by construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from solvers.maps import Matrix, Vector
from stepsize_opt.complexity import positive_number
from validation.datasets import Dataset


@dataclass(frozen=True, eq=False)
class LogisticRegression:
    """Logistic loss with the paper's non-convex regulariser (paper, Experiments):

        f(x) = (1/m) Σᵢ log(1 + exp(−bᵢ aᵢᵀx)) + λ Σ_j x_j²/(1 + x_j²),
        ∇f(x) = −(1/m) Σᵢ bᵢ aᵢ/(1 + exp(bᵢ aᵢᵀx)) + λ (2x_j/(1 + x_j²)²)_j.

    The logistic function has second derivative at most ¼ and t²/(1 + t²) at most 2, so f is L-smooth with
    L = AᵀA/(4m) + 2λI.  Both terms are nonnegative, so f^inf ≥ 0.
    """

    A: Any
    b: Vector
    reg: float

    @staticmethod
    def from_dataset(data: Dataset, reg: float) -> LogisticRegression:
        return LogisticRegression(data.A, data.b, positive_number("reg", reg))

    @property
    def d(self) -> int:
        return int(self.A.shape[1])

    @property
    def lower_bound(self) -> float:
        """A number that f never goes below, by proof."""
        return 0.0

    def smoothness(self) -> Matrix:
        """L = AᵀA/(4m) + 2λI."""
        gram = self.A.T @ self.A
        gram = gram.toarray() if hasattr(gram, "toarray") else gram
        return np.asarray(gram / (4.0 * self.A.shape[0]) + 2.0 * self.reg * np.eye(self.d))

    def value(self, X: Matrix) -> Vector:
        """f at each row of X, shape (s, d) → (s,)."""
        margins = (self.A @ X.T) * self.b[:, None]
        loss = np.logaddexp(0.0, -margins).mean(axis=0)
        return np.asarray(loss + self.reg * np.sum(X**2 / (1.0 + X**2), axis=1))

    def gradient(self, X: Matrix) -> Matrix:
        """∇f at each row of X, shape (s, d) → (s, d); one product with A and one with Aᵀ for all rows."""
        margins = (self.A @ X.T) * self.b[:, None]
        # 1/(1 + e^t) without overflow for large t
        weights = -self.b[:, None] * np.exp(-np.logaddexp(0.0, margins)) / self.A.shape[0]
        return np.asarray((self.A.T @ weights).T + self.reg * 2.0 * X / (1.0 + X**2) ** 2)
