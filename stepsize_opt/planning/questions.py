"""What is planned for: a smoothness matrix, the matrices of clients, or an objective that knows its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_opt import smoothness
from stepsize_opt.goals import read_strong_convexity
from stepsize_opt.inputs.checks import (
    LARGE,
    check_one_of,
    dimensions,
    known_curvature,
    nonnegative_number,
    positive_number,
    whole_number,
)
from stepsize_opt.inputs.matrices import dense, read_matrix
from stepsize_opt.problems import Federated, Layered, find_federated_infimum, find_infimum
from stepsize_opt.proofs import mean_above
from stepsize_opt.smoothness import MatrixSmoothness, Smoothness, proved_smoothness
from stepsize_opt.tables import Row
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True, eq=False)
class Problem:
    """L of f, the matrices of the clients (none for one node), Δ⁰, Δ^inf, and the objective where it was one.

    A large L is not formed, and then neither are those of its clients; senders: how many send numbers each round; note:
    what is to be said of a Δ⁰ that was found.
    """

    L: Smoothness
    clients: tuple[Matrix, ...]
    senders: int
    initial_gap: float
    delta_inf: float | None
    objective: Any = None
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "initial_gap", positive_number("initial_gap", self.initial_gap))
        if self.delta_inf is not None:
            object.__setattr__(self, "delta_inf", nonnegative_number("delta_inf", self.delta_inf))

    @property
    def d(self) -> int:
        return self.L.d

    @property
    def sharing(self) -> str:
        """How the draws of a method that sees the whole gradient are called."""
        return "one node" if self.senders == 1 and not self.clients else "shared"

    @cached_property
    def known(self) -> Any:
        """The M ⪯ ∇²f that an objective knows, a number μ for μI where d is large; None without one."""
        known = None if self.objective is None else known_curvature(self.objective)
        # A large f that is convex, no more, may have an M ≻ 0 that it does not know.
        return known or None if self.d > LARGE else known

    @cached_property
    def strong_convexity(self) -> Any:
        """The M that an objective knows if it is positive definite; None without one."""
        return self.known if self.known is not None and _smallest(self.known) > 0.0 else None

    @staticmethod
    def read(problem: Any, initial_gap: float | None, delta_inf: float | None) -> Problem:
        """Raises ValueError or TypeError for what is no problem, or for a missing or impossible number."""
        if hasattr(problem, "smoothness"):
            return _of_objective(problem, initial_gap, delta_inf)
        if initial_gap is None:
            msg = "plan needs initial_gap = f(x⁰) − f^inf when the problem is given by matrices"
            raise ValueError(msg)
        if not _is_sequence_of_matrices(problem):
            if delta_inf is not None:
                msg = "delta_inf is for clients, and the problem is one smoothness matrix: leave it out"
                raise ValueError(msg)
            return Problem(proved_smoothness(problem, "problem"), (), 1, initial_gap, None)
        clients = tuple(dense(read_matrix(f"problem[{i}]", one)) for i, one in enumerate(problem))
        shapes = sorted({one.shape for one in clients})
        if len(shapes) != 1:
            msg = f"the clients' matrices must have one shape, got {shapes}"
            raise ValueError(msg)
        return Problem(MatrixSmoothness(mean_above(clients)), clients, len(clients), initial_gap, delta_inf)


SETTINGS = ("solver", "tol", "verbose", "time_limit", "max_iters", "options")


def read_solving(solving: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of each solve; raises TypeError or ValueError for what ``optimal_stepsize`` does not take."""
    if not isinstance(solving, Mapping | None):
        msg = f"solving must be a dictionary of settings such as {{'tol': 1e-3}}, got {solving!r}"
        raise TypeError(msg)
    for name in solving or {}:
        check_one_of("solving", name, SETTINGS)
    out = {"tol": 1e-6, **(solving or {})}
    out["tol"] = positive_number("tol", out["tol"])
    return out


@dataclass(frozen=True)
class Budget:
    """What may be spent; None is no limit.

    Attributes
    ----------
    per_round
        Floats that a client (or the node) may send per round, on average.
    total
        Floats that all of them may send in all.
    rounds
        Rounds.

    Examples
    --------
    >>> from stepsize_opt import Budget
    >>> print(Budget(8, rounds=1000))
    at most 8 floats per round, 1000 rounds
    """

    per_round: float | None = None
    total: float | None = None
    rounds: int | None = None

    def __post_init__(self) -> None:
        for name in ("per_round", "total"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive_number(name, getattr(self, name)))
        if self.rounds is not None:
            object.__setattr__(self, "rounds", whole_number("rounds", self.rounds))

    def holds(self, row: Row) -> bool:
        """Return whether a row stays within all limits."""
        limits = ((self.per_round, row.k), (self.total, row.floats))
        # k N per round, N whole: one rounding error of k is no excess.
        within = all(limit is None or spent <= limit * (1.0 + 1e-12) for limit, spent in limits)
        return within and (self.rounds is None or row.rounds <= self.rounds)

    def __str__(self) -> str:
        named = ((self.per_round, "floats per round"), (self.total, "floats in all"))
        words = [f"{limit:g} {name}" for limit, name in named if limit is not None]
        words += [] if self.rounds is None else [f"{self.rounds} rounds"]
        return "at most " + ", ".join(words) if words else "no limit"


def _of_objective(objective: Any, initial_gap: float | None, delta_inf: float | None) -> Problem:
    """Read an objective: what is not given is found, Δ⁰ from x⁰ = 0."""
    large = objective.d > LARGE
    L = _smoothness_of(objective, large=large)
    clients: tuple[Matrix, ...] = ()
    note = ""
    if isinstance(objective, Federated):
        clients = () if large else tuple(objective.client_smoothness())
    elif delta_inf is not None:
        msg = "delta_inf is for clients, and the objective has none: leave it out"
        raise ValueError(msg)
    if initial_gap is None or (clients and delta_inf is None):
        if isinstance(objective, Federated) and clients:
            both = find_federated_infimum(objective)
            infimum, delta_inf = both.whole, both.delta_inf if delta_inf is None else delta_inf
        else:
            infimum = find_infimum(objective)
        if initial_gap is None:
            start = float(objective.value(np.zeros((1, objective.d)))[0])
            initial_gap = start - infimum.found
            note = f"Δ⁰ = {initial_gap:.6g} is f(0) minus the smallest value found"
            if infimum.found - infimum.proved > _CLOSE * initial_gap:
                note += f"; proved is only Δ⁰ ≤ {start - infimum.proved:.6g}, and the rounds grow with Δ⁰"
    return Problem(L, clients, getattr(objective, "n", 1), initial_gap, delta_inf, objective, note)


def _smoothness_of(objective: Any, *, large: bool) -> Smoothness:
    """Return L, of a large objective by its factor; raises ValueError for large layers of which one has none."""
    L = proved_smoothness(smoothness.of(objective) if large else objective.smoothness())
    if large and isinstance(objective, Layered) and L.is_formed:
        msg = (
            f"the layers of an objective with d = {L.d}, above {LARGE}, must have factors, as LogisticRegression and "
            "LeastSquares with a ridge have: plan the layers one by one, or pass problem.smoothness(), which takes "
            "minutes for each row"
        )
        raise ValueError(msg)
    return L


# Relative differences that are rounding, of a Δ⁰ and of a Hessian.
_CLOSE = 1e-6


def _smallest(M: Any) -> float:
    return float(M) if np.ndim(M) == 0 else float(np.linalg.eigvalsh(M)[0])


def check_known_bound(strong_convexity: Any, known: Any, d: int) -> None:
    """Raise ValueError for a ``strong_convexity`` that is not below ``known``, the M ⪯ ∇²f that an objective knows."""
    if not _smallest(known) > 0.0:
        msg = (
            "goal='linear' is for a strongly convex f, and the Hessian of this objective has no M ≻ 0 below it; "
            "that of a logistic regression with penalty='ridge' has"
        )
        raise ValueError(msg)
    M = read_strong_convexity(strong_convexity, d)
    if np.ndim(known) == 2:
        given = M * np.eye(d) if isinstance(M, float) else dense(M)
        # Eigenvalues are right to this part of the largest, d ≤ 4096.
        above = _smallest((1.0 + _CLOSE) * known - given) < -(_CLOSE**2) * float(np.max(np.abs(known)))
    else:
        above = isinstance(M, float) and M > (1.0 + _CLOSE) * known  # a matrix is refused where L is not formed
    if above:
        msg = (
            "strong_convexity must lie below the Hessian of f everywhere and exceeds the M that this objective knows: "
            "leave it out, or plan for its matrix, if a larger M is proved"
        )
        raise ValueError(msg)


def _is_sequence_of_matrices(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 3
    return isinstance(value, Sequence) and len(value) > 0 and dimensions(value[0]) == 2
