"""Bounds on f^inf: from below by strong convexity, from above by a long run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepsize_opt.inputs.checks import check_objective, known_curvature, real_array, whole_number
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.objectives import Objective
from stepsize_opt.proofs import sum_below
from stepsize_solvers.programs import Vector


def _rounding(value: float) -> float:
    """Return the rounding of a value of f, a mean of m terms near 1."""
    return 1e-12 * (1.0 + abs(value))


_FLAT = 1e-4  # a gradient at the start below this is one of small units


@dataclass(frozen=True)
class Infimum:
    """proved ≤ f^inf ≤ found: a lower bound, and the smallest value that a long run has reached.

    ``proved`` holds up to the rounding of f and ∇f.  ``found`` is what the paper takes for f^inf; for a non-convex f it
    is an estimate, and always one from above.  For a strongly convex f both agree to rounding.  ``point`` is where that
    value is taken, if it is known.

    Examples
    --------
    See ``find_infimum``.
    """

    proved: float
    found: float
    point: Vector | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        # A value reached cannot lie below a proved bound by more than its rounding.
        if not (np.isfinite(self.found) and self.found >= self.proved - _rounding(self.found)):
            msg = f"found must be finite and not lie below proved, got found={self.found!r}, proved={self.proved!r}"
            raise ValueError(msg)


def find_infimum(objective: Objective, start: Vector | None = None, iterations: int = 2000) -> Infimum:
    """Find bounds on f^inf: the proved one, and the value that L-BFGS reaches.

    Proved is the objective's own ``lower_bound``; where its ``strong_convexity`` M is positive definite beyond its
    rounding, also f(x) − ½‖∇f(x)‖²_{M⁻¹} at the point x reached, less 1e-12 of f.

    Parameters
    ----------
    objective : Objective
        The function f.  One without ``strong_convexity`` has its own ``lower_bound`` and no other.
    start : numpy.ndarray, optional
        Where the run starts, shape (d,); 0 by default.
    iterations : int
        At most so many steps.

    Raises
    ------
    ValueError, TypeError
        For a start of another shape, or a number of steps below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import LeastSquares, find_infimum
    >>> infimum = find_infimum(LeastSquares(np.eye(2), np.ones(2), reg=1.0))
    >>> round(infimum.proved, 6), round(infimum.found, 6)
    (0.333333, 0.333333)
    """
    from scipy.optimize import minimize  # here, because loading it takes 0.1 s that most programs need not spend

    check_objective("objective", objective)
    x0 = np.zeros(objective.d) if start is None else real_array("start", start)
    if x0.shape != (objective.d,):
        msg = f"start must have shape ({objective.d},), got {x0.shape}"
        raise ValueError(msg)
    iterations = whole_number("iterations", iterations)

    def value_and_gradient(x: Vector, unit: float) -> tuple[float, Vector]:
        row = x[None]
        return float(objective.value(row)[0]) / unit, objective.gradient(row)[0] / unit

    slope = value_and_gradient(x0, 1.0)[1]
    # L-BFGS stops at absolute tolerances: an f in tiny units is scaled up.
    steepest = float(np.abs(slope).max())
    unit = steepest if 0.0 < steepest < _FLAT else 1.0
    # Tolerances at rounding level: the run stops when the value no longer moves.
    options = {"maxiter": iterations, "maxfun": 10 * iterations, "ftol": 1e-15, "gtol": 1e-10}
    answer = minimize(value_and_gradient, x0, (unit,), jac=True, method="L-BFGS-B", options=options)
    found = unit * float(answer.fun)
    point = np.asarray(answer.x)
    return Infimum(max(objective.lower_bound, _bound_at(objective, point)), found, point)


def _bound_at(objective: Any, x: Vector) -> float:
    """Return f(x) − ½‖∇f(x)‖²_{M⁻¹} ≤ f^inf for ∇²f ⪰ M ≻ 0, less the rounding of f; −∞ without such an M."""
    M = known_curvature(objective)
    if M is None:
        return -np.inf
    spectrum = np.linalg.eigvalsh(M) if np.ndim(M) == 2 else np.asarray([M])
    # Eigenvalues are right to about d rounding errors of the largest.
    if not spectrum[0] > 4.0 * objective.d * np.finfo(float).eps * spectrum[-1]:
        return -np.inf
    f, g = float(objective.value(x[None])[0]), objective.gradient(x[None])[0]
    newton = np.linalg.solve(M, g) if np.ndim(M) == 2 else g / M
    return f - 0.5 * float(g @ newton) - _rounding(f)


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
    """Find ``find_infimum``'s bounds for f and for every client.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.problems import Federated, Quadratic, find_federated_infimum
    >>> f = Federated((Quadratic(np.eye(1), np.zeros(1)), Quadratic(np.eye(1), np.ones(1))))
    >>> round(find_federated_infimum(f).delta_inf, 6)
    0.125
    """
    if not isinstance(objective, Federated):
        msg = f"objective must be Federated, got {type(objective).__name__}; find_infimum is for one node"
        raise TypeError(msg)
    parts = [find_infimum(client, iterations=iterations) for client in objective.clients]
    clients = Infimum(sum_below([p.proved for p in parts], objective.n), float(np.mean([p.found for p in parts])))
    return FederatedInfimum(find_infimum(objective, iterations=iterations), clients)
