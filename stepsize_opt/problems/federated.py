"""Objectives split over clients: f = (1/n) Σ fᵢ with L = (1/n) Σ Lᵢ (paper, distributed setting)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit

from stepsize_opt.problems.objectives import PENALTIES, LogisticRegression, Objective, at_points, read_objectives
from stepsize_opt.proofs import mean_above, sum_below
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class Federated:
    """f(x) = (1/n) Σᵢ fᵢ(x) with every client's gradient at hand.

    Parameters
    ----------
    clients : tuple of Objective
        f₁, …, f_n, all of one dimension.

    Raises
    ------
    ValueError
        Without clients, or for clients of different dimensions.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import Federated, Quadratic
    >>> f = Federated((Quadratic(np.eye(2), np.zeros(2)), Quadratic(3.0 * np.eye(2), np.ones(2))))
    >>> f.d, f.smoothness().tolist()
    (2, [[2.0, 0.0], [0.0, 2.0]])
    """

    clients: tuple[Objective, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", read_objectives("clients", self.clients))
        dimensions = sorted({client.d for client in self.clients})
        if len(dimensions) > 1:
            msg = f"clients must have one common dimension, got {dimensions}"
            raise ValueError(msg)

    def __repr__(self) -> str:
        return f"Federated(n = {self.n} clients, d = {self.d})"

    @property
    def n(self) -> int:
        return len(self.clients)

    @property
    def d(self) -> int:
        return self.clients[0].d

    @property
    def lower_bound(self) -> float:
        """(1/n) Σ of the clients' proved lower bounds, rounded down: f^inf ≥ (1/n) Σ fᵢ^inf."""
        return sum_below([client.lower_bound for client in self.clients], self.n)

    def client_smoothness(self) -> list[Matrix]:
        """Return L₁, …, L_n."""
        return [client.smoothness() for client in self.clients]

    def smoothness(self) -> Matrix:
        """Return L = (1/n) Σ Lᵢ, rounded up: a matrix of floats that is proved to lie above the exact mean."""
        return mean_above(self.client_smoothness())

    @property
    def curvature_from_below(self) -> float:
        """μ = (1/n) Σ μᵢ with ∇²f ⪰ μI, rounded down; raises AttributeError when a client knows none."""
        clients: Any = self.clients
        return sum_below([client.curvature_from_below for client in clients], self.n)

    def strong_convexity(self) -> Matrix:
        """Return M = (1/n) Σ Mᵢ, rounded down; raises AttributeError when a client has none."""
        clients: Any = self.clients
        return -mean_above([-client.strong_convexity() for client in clients])

    @at_points
    def value(self, X: Matrix) -> Vector:
        return np.asarray(np.mean([client.value(X) for client in self.clients], axis=0))

    @at_points
    def gradient(self, X: Matrix) -> Matrix:
        return np.asarray(self.client_gradients(X).mean(axis=1))

    @at_points
    def client_gradients(self, X: Matrix) -> Matrix:
        """Return ∇fᵢ at each row of X: (s, d) → (s, n, d)."""
        if self._stack is None:
            return np.stack([client.gradient(X) for client in self.clients], axis=1)
        rows, spread = self._stack
        weights = rows @ X.T
        expit(weights, out=weights)
        # (nd, s) → (s, n, d)
        out = np.ascontiguousarray((spread @ weights).T).reshape(len(X), self.n, self.d)
        first: Any = self.clients[0]
        out += first.reg * PENALTIES[first.penalty].gradient(X)[:, None, :]
        return out

    @cached_property
    def _stack(self) -> tuple[Any, Any] | None:
        """Two sparse matrices for the gradients of all clients; None unless all are logistic with one penalty.

        The signed rows of all clients, M×d, and the nd×M matrix whose block of rows i holds (1/mᵢ) of client i's signed
        rows, transposed, in that client's columns: spread @ expit(rows @ Xᵀ) lists every client's data term.
        """
        logistic = [client for client in self.clients if isinstance(client, LogisticRegression)]
        if len(logistic) < self.n or len({(client.reg, client.penalty) for client in logistic}) > 1:
            return None
        rows = [sparse.csr_array(client.signed_rows) for client in logistic]
        spread = sparse.block_diag([part.T / client.m for part, client in zip(rows, logistic, strict=True)])
        return sparse.csr_array(sparse.vstack(rows)), sparse.csr_array(spread)
