"""Bounds on f^inf: proved from below, found from above by a long run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.inputs import LARGE
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.objectives import Objective
from stepsize_solvers.programs import Vector


def _rounding(value: float) -> float:
    """Of a value of f: a mean of m terms near 1."""
    return 1e-12 * (1.0 + abs(value))


_FLAT = 1e-4  # a gradient at the start below this is one of small units


@dataclass(frozen=True)
class Infimum:
    """proved ≤ f^inf ≤ found: a proved lower bound, and the smallest value that a long run has reached.

    ``found`` is what the paper takes for f^inf; for a non-convex f it is an estimate, and always one from above.  For a
    strongly convex f both agree to rounding.

    Examples
    --------
    See ``find_infimum``.
    """

    proved: float
    found: float

    def __post_init__(self) -> None:
        # A value reached cannot lie below a proved bound by more than its rounding.
        if not (np.isfinite(self.found) and self.found >= self.proved - _rounding(self.found)):
            msg = f"found must be finite and not lie below proved, got found={self.found!r}, proved={self.proved!r}"
            raise ValueError(msg)


def find_infimum(objective: Objective, start: Vector | None = None, iterations: int = 2000) -> Infimum:
    """Bounds on f^inf: the proved one, and the value that L-BFGS reaches.

    Proved is the objective's own ``lower_bound``; where its ``hessian_lower_bound`` M is positive definite, also
    f(x) − ½‖∇f(x)‖²_{M⁻¹} at the point x reached, lowered by the rounding of f.

    Parameters
    ----------
    objective : Objective
        The function f.
    start : numpy.ndarray, optional
        Where the run starts, shape (d,); 0 by default.
    iterations : int
        At most so many steps.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import LeastSquares, find_infimum
    >>> infimum = find_infimum(LeastSquares(np.eye(2), np.ones(2), reg=1.0))
    >>> round(infimum.proved, 6), round(infimum.found, 6)
    (0.333333, 0.333333)
    """
    from scipy.optimize import minimize  # here, because loading it takes 0.1 s that most programs need not spend

    x0 = np.zeros(objective.d) if start is None else start

    def value_and_gradient(x: Vector, unit: float) -> tuple[float, Vector]:
        row = x[None]
        return float(objective.value(row)[0]) / unit, objective.gradient(row)[0] / unit

    first, slope = value_and_gradient(x0, 1.0)
    # L-BFGS stops at absolute tolerances: an f in tiny units is scaled up.
    steepest = float(np.abs(slope).max())
    unit = steepest if 0.0 < steepest < _FLAT else 1.0
    # Tolerances at rounding level: the run stops when the value no longer moves.
    options = {"maxiter": iterations, "maxfun": 10 * iterations, "ftol": 1e-15, "gtol": 1e-10}
    answer = minimize(value_and_gradient, x0, (unit,), jac=True, method="L-BFGS-B", options=options)
    found = unit * float(answer.fun)
    # A residual is rounded relative to the data that it is a difference of, and these are what f is at the start.
    lost = _rounding(found) + 1e-15 * float(np.sqrt(abs(first * found)))
    return Infimum(max(objective.lower_bound, found - _distance(objective, answer.x) - lost), found)


def _distance(objective: Any, x: Vector) -> float:
    """½‖∇f(x)‖²_{M⁻¹} ≥ f(x) − f^inf for ∇²f ⪰ M ≻ 0; infinite without such an M.  For a large d M = μI."""
    if objective.d > LARGE:
        mu = getattr(objective, "curvature_from_below", 0.0)
        return float(np.sum(objective.gradient(x[None]) ** 2)) / (2.0 * mu) if mu > 0.0 else float("inf")
    try:
        factor = np.linalg.cholesky(objective.hessian_lower_bound())
    except (AttributeError, np.linalg.LinAlgError):  # an objective of somebody else's, or one without such an M
        return float("inf")
    return float(0.5 * np.sum(np.linalg.solve(factor, objective.gradient(x[None])[0]) ** 2))


@dataclass(frozen=True)
class FederatedInfimum:
    """Bounds on f^inf and on (1/n) Σ fᵢ^inf; Δ^inf = f^inf − (1/n) Σ fᵢ^inf is estimated from the values found.

    Examples
    --------
    See ``find_federated_infimum``.
    """

    whole: Infimum
    clients: Infimum

    @property
    def delta_inf(self) -> float:
        """Δ^inf from the values found, as in the paper; never negative, as f^inf ≥ (1/n) Σ fᵢ^inf."""
        return max(0.0, self.whole.found - self.clients.found)


def find_federated_infimum(objective: Federated, iterations: int = 2000) -> FederatedInfimum:
    """``find_infimum`` for f and for every client.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import Federated, Quadratic, find_federated_infimum
    >>> f = Federated((Quadratic(np.eye(1), np.zeros(1)), Quadratic(np.eye(1), np.ones(1))))
    >>> round(find_federated_infimum(f).delta_inf, 6)
    0.125
    """
    parts = [find_infimum(client, iterations=iterations) for client in objective.clients]
    clients = Infimum(float(np.mean([p.proved for p in parts])), float(np.mean([p.found for p in parts])))
    return FederatedInfimum(find_infimum(objective, iterations=iterations), clients)
