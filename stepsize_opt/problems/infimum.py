"""Bounds on f^inf: proved from below, found from above by a long run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt.inputs import LARGE, check_objective, real_array, whole_number
from stepsize_opt.problems.federated import Federated
from stepsize_opt.problems.objectives import (
    Layered,
    LeastSquares,
    LogisticRegression,
    Objective,
    Quadratic,
    SoftmaxRegression,
)
from stepsize_opt.proofs import UNIT, sum_below
from stepsize_solvers.programs import Vector, block_slices


def _rounding(value: float) -> float:
    """Return the rounding of a value of f, a mean of m terms near 1."""
    return 1e-12 * (1.0 + abs(value))


_FLAT = 1e-4  # a gradient at the start below this is one of small units


@dataclass(frozen=True)
class Infimum:
    """proved ≤ f^inf ≤ found: a proved lower bound, and the smallest value that a long run has reached.

    ``found`` is what the paper takes for f^inf; for a non-convex f it is an estimate, and always one from above.  For a
    strongly convex f both agree to rounding.  ``point`` is where that value is taken, if it is known.

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
    rounding, also f(x) − ½‖∇f(x)‖²_{M⁻¹} at the point x reached, lowered by the rounding of f, ∇f and M.

    Parameters
    ----------
    objective : Objective
        The function f.  Of one that is not of ``stepsize_opt.problems`` the own ``lower_bound`` is all that is proved.
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


@dataclass(frozen=True, eq=False)
class _Rounding:
    """Bounds on the rounding of f and ∇f at x, for a mean of losses ℓ(aᵢᵀx − bᵢ) with ℓ′² ≤ 2ℓ, plus a regulariser.

    With c numbers added up at most and u = 2⁻⁵³, the argument of a row is off by cu(|aᵢ|ᵀ|x| + |bᵢ|).  Let n_j be the
    root of the mean of a_ij² over the rows, and S = Σ n_j|x_j| plus that of bᵢ²: the root of the mean of the squares of
    these errors is at most cuS.  By Cauchy and Schwarz f is off by at most cu(f + √(2f)S + e) + (cuS)², and ∂f/∂x_j by
    at most cu n_j(S + √(2f) + δ).  What rounds beside that is in e and δ: for losses of labels δ = 1 and e = S + 1, the
    logarithm of a number near one and a difference of scores; for a quadratic e = S²/2, because H has no rows.

    Clients are not further off than the worst of them, layers not than all of them together.
    """

    value: float
    gradient: Vector
    unit: float  # cu

    @staticmethod
    def at(objective: Any, x: Vector, f: float) -> _Rounding | None:
        """Return None for a user-defined objective, of which this is not known."""
        sizes = _Sizes.of(objective, x)
        if sizes is None:
            return None
        unit, slope = (sizes.added + objective.d + 32) * UNIT, float(np.sqrt(2.0 * max(f, 0.0)))
        S = sizes.S
        value = unit * (abs(f) + slope * S + sizes.e) + (unit * S) ** 2
        return _Rounding(value, unit * sizes.norms * (S + slope + sizes.delta), unit)


@dataclass(frozen=True, eq=False)
class _Sizes:
    """n_j, S, e, δ and how many numbers a sum over rows, clients or layers has at most."""

    norms: Vector
    S: float
    e: float
    delta: float
    added: int

    @staticmethod
    def of(objective: object, x: Vector) -> _Sizes | None:
        """Return None for a user-defined objective."""
        match objective:
            case Quadratic():
                norms = np.sqrt(np.maximum(objective.H.diagonal(), 0.0))
                S = float((np.abs(x) + np.abs(objective.minimiser)) @ norms)
                return _Sizes(norms, S, 0.5 * S * S, 0.0, 0)
            case Federated():
                parts = _known([_Sizes.of(client, x) for client in objective.clients])
                return _Sizes.joined(_root_mean_square([part.norms for part in parts]), parts, max) if parts else None
            case Layered():
                places = zip(objective.layers, block_slices(objective.sizes), strict=True)
                parts = _known([_Sizes.of(layer, x[place]) for layer, place in places])
                return _Sizes.joined(np.concatenate([part.norms for part in parts]), parts, sum) if parts else None
            case LeastSquares():
                offset = float(np.sqrt(np.mean(np.square(objective.b))))
                return _Sizes.of_rows(objective, x, offset)
            case LogisticRegression() | SoftmaxRegression():
                sizes = _Sizes.of_rows(objective, x, 0.0)
                return replace(sizes, e=sizes.S + 1.0, delta=1.0)
        return None

    @staticmethod
    def of_rows(objective: Any, x: Vector, offset: float) -> _Sizes:
        A, (m, p) = objective.A, objective.A.shape
        squares = A.multiply(A).sum(axis=0) if sparse.issparse(A) else np.einsum("ij,ij->j", A, A)
        # For each class, where there are several; the regulariser is one more row.
        norms = np.sqrt(np.tile(np.asarray(squares).ravel() / m, objective.d // p) + 2.0 * objective.reg)
        return _Sizes(norms, float(np.abs(x) @ norms) + offset, 0.0, 0.0, m)

    @staticmethod
    def joined(norms: Vector, parts: list[_Sizes], total: Callable[[list[float]], float]) -> _Sizes:
        S, e, delta = (total([getattr(part, name) for part in parts]) for name in ("S", "e", "delta"))
        return _Sizes(norms, S, e, delta, len(parts) + max(part.added for part in parts))


def _root_mean_square(vectors: list[Vector]) -> Vector:
    return np.asarray(np.sqrt(np.mean(np.square(vectors), axis=0)))


def _known(parts: list[_Sizes | None]) -> list[_Sizes]:
    """Return all parts, or none if one is unknown."""
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else []


def _bound_at(objective: Any, x: Vector) -> float:
    """Return f(x) − ½‖∇f(x)‖²_{M⁻¹} ≤ f^inf for ∇²f ⪰ M ≻ 0, from below; −∞ without such an M.  M = μI for large d.

    For any y and r = g − My, gᵀM⁻¹g ≤ yᵀMy + 2‖y‖‖r‖ + ‖r‖²/λmin(M); y is M⁻¹g up to rounding.
    """
    f, g = float(objective.value(x[None])[0]), objective.gradient(x[None])[0]
    lost = _Rounding.at(objective, x, f)
    if lost is None:
        return -np.inf
    M = objective.strong_convexity() if objective.d <= LARGE else None
    if M is None or np.count_nonzero(M) == np.count_nonzero(M.diagonal()):
        # Exact but for a mean over clients, which is within the rounding.
        own = M.diagonal() if M is not None else np.full(objective.d, objective.curvature_from_below)
        if not own.min() > 0.0:
            return -np.inf
        # Divided before they are squared: squares of small units leave the range.
        distance = 0.5 * float(np.sum(((np.abs(g) + lost.gradient) / np.sqrt(own)) ** 2)) * (1.0 + 4.0 * lost.unit)
        return f - (distance + lost.value) * (1.0 + lost.unit)
    # M is rounded by less than this part of its trace, and so are its eigenvalues.
    shift, mu = 4.0 * lost.unit * float(np.trace(M)), float(np.linalg.eigvalsh(M)[0])
    if not mu > 4.0 * shift:
        return -np.inf
    y = np.linalg.solve(M, g)
    size = float(np.linalg.norm(y))
    left = float(np.linalg.norm(np.abs(g - M @ y) + lost.gradient)) + shift * size
    energy = abs(float(y @ M @ y)) + shift * size * size
    distance = 0.5 * (energy + 2.0 * size * left + float(left / np.sqrt(mu - shift)) ** 2)
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
