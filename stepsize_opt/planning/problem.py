"""What is planned for: a smoothness matrix, the matrices of clients, or an objective that knows its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt import smoothness
from stepsize_opt.inputs import LARGE, dense, positive_number, read_matrix, real_number
from stepsize_opt.operators import LowRankPlusDiagonal
from stepsize_opt.problems import Federated, find_federated_infimum, find_infimum
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True, eq=False)
class Problem:
    """L of f, the matrices of the clients (none for one node), Δ⁰, Δ^inf, and M ⪯ ∇²f, where they are known.

    A large L is not formed, and then neither are those of its clients; senders: how many send numbers each round.
    """

    L: Matrix | LowRankPlusDiagonal
    clients: tuple[Matrix, ...]
    senders: int
    initial_gap: float
    delta_inf: float | None
    lower: Any

    @property
    def d(self) -> int:
        return int(self.L.shape[0])

    @property
    def is_large(self) -> bool:
        """Whether L is not formed: fewer methods have a stepsize for it."""
        return isinstance(self.L, LowRankPlusDiagonal)

    def has_limit(self, criterion: str) -> bool:
        """Whether the limit is known: for ``det`` not for a large L with a sparse factor."""
        return criterion != "det" or not isinstance(self.L, LowRankPlusDiagonal) or not sparse.issparse(self.L.U)

    def has_directions(self, criterion: str) -> bool:
        """Whether there is a subspace method: of a large L for a dense factor, with known eigenvectors."""
        L = self.L
        return not isinstance(L, LowRankPlusDiagonal) or (
            not sparse.issparse(L.U) and (criterion == "det" or L.is_shifted)
        )

    @property
    def sharing(self) -> str:
        """How the draws of a method that sees the whole gradient are called."""
        return "one node" if self.senders == 1 and not self.clients else "shared"

    @staticmethod
    def read(problem: Any, initial_gap: float | None, delta_inf: float | None, lower: Any) -> Problem:
        """Raises ValueError or TypeError for what is no problem, or for a missing or impossible number."""
        if hasattr(problem, "smoothness"):
            return _of_objective(problem, initial_gap, delta_inf, lower)
        if initial_gap is None:
            msg = "plan needs initial_gap = f(x⁰) − f^inf when the problem is given by matrices"
            raise ValueError(msg)
        clients: tuple[Matrix, ...] = ()
        L: Matrix | LowRankPlusDiagonal
        if isinstance(problem, LowRankPlusDiagonal):
            L = problem
        elif _is_sequence_of_matrices(problem):
            clients = tuple(dense(read_matrix(f"problem[{i}]", one)) for i, one in enumerate(problem))
            shapes = sorted({one.shape for one in clients})
            if len(shapes) != 1:
                msg = f"the clients' matrices must have one shape, got {shapes}"
                raise ValueError(msg)
            L = np.asarray(np.mean(clients, axis=0))
        else:
            L = dense(read_matrix("problem", problem))
        return Problem(L, clients, max(1, len(clients)), _gap(initial_gap), _delta(delta_inf), lower)


def _of_objective(objective: Any, initial_gap: float | None, delta_inf: float | None, lower: Any) -> Problem:
    """Of an objective: what is not given is found, Δ⁰ from x⁰ = 0."""
    large = objective.d > LARGE
    clients: tuple[Matrix, ...] = ()
    if isinstance(objective, Federated) and not large:
        clients = tuple(objective.client_smoothness())
    if initial_gap is None or (clients and delta_inf is None):
        if isinstance(objective, Federated) and clients:
            both = find_federated_infimum(objective)
            infimum, delta_inf = both.whole, both.delta_inf if delta_inf is None else delta_inf
        else:
            infimum = find_infimum(objective)
        if initial_gap is None:
            initial_gap = float(objective.value(np.zeros((1, objective.d)))[0]) - infimum.found
    if lower is None and large:
        mu = getattr(objective, "curvature_from_below", 0.0)
        lower = mu if mu > 0.0 else None
    elif lower is None and hasattr(objective, "hessian_lower_bound"):
        M = objective.hessian_lower_bound()
        lower = M if float(np.linalg.eigvalsh(M)[0]) > 0.0 else None
    L = smoothness.of(objective) if large else objective.smoothness()
    return Problem(L, clients, getattr(objective, "n", 1), _gap(initial_gap), _delta(delta_inf), lower)


def _gap(value: float) -> float:
    return positive_number("initial_gap", value)


def _delta(value: float | None) -> float | None:
    if value is None:
        return None
    number = real_number("delta_inf", value, "a number Δ^inf ≥ 0")
    if not 0.0 <= number < np.inf:
        msg = f"delta_inf must be a number Δ^inf ≥ 0, got {value}"
        raise ValueError(msg)
    return number


def _is_sequence_of_matrices(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 3
    return isinstance(value, Sequence) and len(value) > 0 and (sparse.issparse(value[0]) or np.ndim(value[0]) == 2)
