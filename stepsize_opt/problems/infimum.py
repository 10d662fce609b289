"""Bounds on f^inf: proved from below, found from above by a long run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt.inputs import LARGE, real_array, whole_number
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.objectives import Objective
from stepsize_opt.proofs import UNIT
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

    Proved is the objective's own ``lower_bound``; where its ``hessian_lower_bound`` M is positive definite beyond its
    rounding, also f(x) − ½‖∇f(x)‖²_{M⁻¹} at the point x reached, lowered by the rounding of f, ∇f and M.

    Parameters
    ----------
    objective : Objective
        The function f: one of ``stepsize_opt.problems``, or one whose rounding is like theirs.
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
    return Infimum(max(objective.lower_bound, _bound_at(objective, np.asarray(answer.x))), found)


@dataclass(frozen=True, eq=False)
class _Rounding:
    """Bounds on the rounding of f and ∇f at x, for a mean of losses ℓ(aᵢᵀx − bᵢ) with ℓ′² ≤ 2ℓ, plus a regulariser.

    The argument of a row is off by c·2⁻⁵³(|aᵢ|ᵀ|x| + |bᵢ|), c numbers being added up at most.  The root of the mean of
    a_ij² over the rows is at most 2√L_jj, that of bᵢ² (least squares) √(2f(0)), so that of these errors is at most
    cS·2⁻⁵³ with S = 2Σ|x_j|√L_jj + √(2f(0)).  By Cauchy and Schwarz f is then off by at most
    c·2⁻⁵³(f + √(2f) S) + (cS·2⁻⁵³)², and ∂f/∂x_j by at most c·2⁻⁵³·2√L_jj(S + √(2f)).
    """

    value: float
    gradient: Vector
    unit: float  # c·2⁻⁵³

    @staticmethod
    def at(objective: Objective, x: Vector, f: float) -> _Rounding:
        d = objective.d
        unit = (_added(objective) + d + 32) * UNIT
        root = np.sqrt(_diagonal(objective))
        start = float(objective.value(np.zeros((1, d)))[0])
        S = 2.0 * float(np.abs(x) @ root) + float(np.sqrt(2.0 * max(start, 0.0)))
        slope = float(np.sqrt(2.0 * max(f, 0.0)))
        return _Rounding(unit * (abs(f) + slope * S) + (unit * S) ** 2, unit * 2.0 * root * (S + slope), unit)


def _added(objective: Any) -> int:
    """How many numbers a sum over rows, clients or layers has at most."""
    parts = [*getattr(objective, "clients", ()), *getattr(objective, "layers", ())]
    rows = len(objective.labels) if hasattr(objective, "labels") else int(getattr(objective, "m", 0))
    return rows + len(parts) + max((_added(part) for part in parts), default=0)


def _diagonal(objective: Any) -> Vector:
    """The diagonal of L, without L itself where d is large."""
    if objective.d <= LARGE:
        return np.asarray(objective.smoothness().diagonal())
    if hasattr(objective, "clients"):
        return np.asarray(np.mean([_diagonal(client) for client in objective.clients], axis=0))
    A = objective.A
    squares = np.asarray(A.multiply(A).mean(axis=0) if sparse.issparse(A) else np.mean(A * A, axis=0)).ravel()
    # For each class, where there are several.
    return np.asarray(np.tile(squares, objective.d // squares.size) + 2.0 * objective.reg)


def _bound_at(objective: Any, x: Vector) -> float:
    """f(x) − ½‖∇f(x)‖²_{M⁻¹} ≤ f^inf for ∇²f ⪰ M ≻ 0, from below; −∞ without such an M.  For a large d M = μI.

    For any y and r = g − My, gᵀM⁻¹g ≤ yᵀMy + 2‖y‖‖r‖ + ‖r‖²/λmin(M); y is M⁻¹g up to rounding.
    """
    f, g = float(objective.value(x[None])[0]), objective.gradient(x[None])[0]
    if objective.d > LARGE:
        M, mu = None, float(getattr(objective, "curvature_from_below", 0.0))
        if not mu > 0.0 or not (hasattr(objective, "A") or hasattr(objective, "clients")):
            return -np.inf
    else:
        if not hasattr(objective, "hessian_lower_bound"):  # an objective of somebody else's
            return -np.inf
        M = objective.hessian_lower_bound()
        spectrum = np.linalg.eigvalsh(M)
        mu = float(spectrum[0])
    lost = _Rounding.at(objective, x, f)
    if M is None:
        distance = float(np.linalg.norm(np.abs(g) + lost.gradient)) ** 2 / (2.0 * mu)
        return f - (distance + lost.value) * (1.0 + lost.unit)
    # M is rounded by less than this part of its trace, and so are its eigenvalues.
    shift = 4.0 * lost.unit * float(np.trace(M))
    if not mu > 4.0 * shift:
        return -np.inf
    y = np.linalg.solve(M, g)
    size = float(np.linalg.norm(y))
    left = float(np.linalg.norm(np.abs(g - M @ y) + lost.gradient)) + shift * size
    energy = abs(float(y @ M @ y)) + shift * size * size
    distance = 0.5 * (energy + 2.0 * size * left + left * left / (mu - shift))
    return f - (distance + lost.value) * (1.0 + lost.unit)


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
    if not isinstance(objective, Federated):
        msg = f"objective must be Federated, got {type(objective).__name__}; find_infimum is for one node"
        raise TypeError(msg)
    parts = [find_infimum(client, iterations=iterations) for client in objective.clients]
    clients = Infimum(float(np.mean([p.proved for p in parts])), float(np.mean([p.found for p in parts])))
    return FederatedInfimum(find_infimum(objective, iterations=iterations), clients)
