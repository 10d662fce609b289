"""Does a run obey its theorem?  Statistics that can fail.

*Estimate.*  Every update has E[xᵏ − xᵏ⁺¹ | xᵏ] = D∇f(xᵏ), because E[S] = I.  So ⟨∇f(xᵏ), xᵏ − xᵏ⁺¹⟩ has the same mean
as ‖∇f(xᵏ)‖²_D, and its sum over a run, which is about what f decreases by, varies far less between seeds than the sum
of squared norms, which depends on how long each coordinate waits (usually several to tens of times; on a few problems
not at all).  The checks use it; the plain average stands beside it.

*Verdict.*  The mean over the seeds has a one-sided confidence bound on either side (Student's t).  The right side needs
f^inf, which lies between a proved lower bound and the smallest value found, and it decreases in f^inf: so ``holds``
compares with the smaller right side (value found), ``violated`` with the larger one (proved bound).  Neither verdict
rests on an estimate of f^inf.

*Theorem 3* bounds min_k E r_k, r_k = ‖∇f(xᵏ)‖²_{D/det(D)^{1/d}}.  The minimum of averages over few seeds is biased
downwards, so what is checked is the weighted mean Σ w_k r_k/Σ w_k with w_k = (1 + λ_D/n)^{−k−1}, which the paper's
proof bounds by the same right side and which is never below the minimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from stepsize_opt.inputs import dense, read_matrix, whole_number
from stepsize_opt.methods import Method, get_method
from stepsize_opt.problems import FederatedInfimum, Infimum
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.runs.record import Run

# One-sided confidence of each bound: with a few hundred checks in a report, fewer than one verdict is a fluke.
LEVEL = 0.999
# exp of more is beyond the range of floats.
_LARGEST_EXPONENT = math.log(np.finfo(float).max)


@dataclass(frozen=True)
class RateCheck:
    """A theorem's left side (mean over the seeds, with confidence bounds) against its right side.

    Attributes
    ----------
    theorem : int
        1, 2 or 3.
    observed : float
        The low-variance estimate of the left side.
    plain : float
        The average of the squared norms themselves.
    lower : float
        A lower confidence bound on the left side, at ``level``.
    upper : float
        An upper confidence bound on the left side, at ``level``.
    bound : float
        The right side with the smallest value found for f^inf.
    loose_bound : float
        The right side with the proved lower bound on f^inf, at least ``bound``.
    iterations : int
        Steps of the run.
    seeds : int
        Independent runs.
    level : float
        Confidence of each of the two bounds.

    Raises ValueError for a NaN among the numbers: no comparison with it means anything.
    """

    theorem: int
    observed: float
    plain: float
    lower: float
    upper: float
    bound: float
    loose_bound: float
    iterations: int
    seeds: int
    level: float

    def __post_init__(self) -> None:
        for name in ("observed", "plain", "lower", "upper", "bound", "loose_bound"):
            if math.isnan(getattr(self, name)):
                msg = f"{name} is NaN: the run or the bounds on f^inf hold numbers that are not finite"
                raise ValueError(msg)

    @property
    def verdict(self) -> str:
        """``holds`` (upper ≤ bound), ``violated`` (lower > loose_bound) or ``undecided``."""
        if self.upper <= self.bound:
            return "holds"
        return "violated" if self.lower > self.loose_bound else "undecided"

    def __str__(self) -> str:
        return (
            f"Theorem {self.theorem}: {self.verdict} (observed {self.observed:.4g} in [{self.lower:.4g}, "
            f"{self.upper:.4g}], bound {self.bound:.4g}, K = {self.iterations}, {self.seeds} seeds)"
        )


def check_rate(run: Run, infimum: Infimum | None = None, *, theorem: int = 1, level: float = LEVEL) -> RateCheck:
    """Does a run on one node obey Theorem 1, G_K ≤ 2Δ⁰/(det(D)^{1/d} K)?

    Parameters
    ----------
    run : Run
        What ``run`` returned.
    infimum : Infimum, optional
        Bounds on f^inf; without them the smallest value of the run itself stands for the value found.
    theorem : int
        1, or 2 for D = Diag(γᵢWᵢ), where the inequality is the same.
    level : float
        Confidence of each of the two bounds.

    Raises
    ------
    ValueError
        For a run without steps, another theorem, or a level outside (0.5, 1).
    """
    if theorem not in (1, 2):
        msg = f"theorem must be 1 or 2, got {theorem!r}; check_distributed_rate is for Theorem 3"
        raise ValueError(msg)
    bounds = infimum or Infimum(run.lower_bound, float(np.min(run.values)))
    factor = 2.0 / (run.rate * _steps(run))
    return _compare(
        theorem,
        np.full(run.iterations, 1.0 / _steps(run)),
        factor * (run.start_value - bounds.found),
        factor * (run.start_value - bounds.proved),
        run,
        level,
    )


def check_distributed_rate(
    run: Run, clients: int, lambda_D: float, infimum: FederatedInfimum, *, level: float = LEVEL
) -> RateCheck:
    """Does a run with clients obey Theorem 3?

    min_k E r_k ≤ 2(1 + λ_D/n)^K Δ⁰/(det(D)^{1/d} K) + 2λ_D Δ^inf/(det(D)^{1/d} n).  The right side is decreasing in
    f^inf, because (1 + x)^K ≥ Kx, and in every fᵢ^inf; it is infinite where the power leaves the range of floats.

    Parameters
    ----------
    run : Run
        What ``run`` returned.
    clients : int
        n.
    lambda_D : float
        λ_D of the matrix that ran, from ``distributed_lambda``.
    infimum : FederatedInfimum
        Bounds on f^inf and on (1/n) Σ fᵢ^inf.
    level : float
        Confidence of each of the two bounds.

    Raises
    ------
    ValueError
        For a run without steps, a level outside (0.5, 1), or a λ_D that is negative or not finite.
    """
    if not (math.isfinite(lambda_D) and lambda_D >= 0.0):
        msg = f"lambda_D must be a finite number of at least 0, got {lambda_D!r}"
        raise ValueError(msg)
    growth = lambda_D / whole_number("clients", clients)
    K = _steps(run)
    weights = np.exp(-np.log1p(growth) * np.arange(1, K + 1))

    def right(whole: float, parts: float) -> float:
        gap = run.start_value - whole
        exponent = K * math.log1p(growth)
        power = math.exp(exponent) if exponent < _LARGEST_EXPONENT else math.inf
        start = power / K * gap if gap != 0.0 else 0.0
        return 2.0 * (start + growth * (whole - parts)) / run.rate

    strict = right(infimum.whole.found, infimum.clients.found)
    return _compare(3, weights / weights.sum(), strict, right(infimum.whole.proved, infimum.clients.proved), run, level)


def _steps(run: Run) -> int:
    if run.iterations < 1:
        msg = "the run must have at least one step"
        raise ValueError(msg)
    return run.iterations


def _compare(theorem: int, weights: Vector, bound: float, loose: float, run: Run, level: float) -> RateCheck:
    if not 0.5 < level < 1.0:
        msg = f"level must be between 0.5 and 1, got {level!r}"
        raise ValueError(msg)
    means = run.descent @ weights
    observed, plain = float(means.mean()), float(np.mean(run.squared_norms @ weights))
    # One seed says nothing about the spread; its interval is the whole line.
    half = math.inf
    if len(means) > 1:
        half = float(stdtrit(len(means) - 1, level)) * float(means.std(ddof=1)) / math.sqrt(len(means))
    return RateCheck(
        theorem, observed, plain, observed - half, observed + half, bound, loose, run.iterations, run.seeds, level
    )


def distributed_lambda(
    D: Matrix, L: Matrix, client_L: Sequence[Matrix], sketch: Sketch | Sequence[Sketch], algorithm: str | Method
) -> float:
    """λ_D of Theorem 3, or λ′_D of its analogue for det-CGD2.

    λ_D = maxᵢ λmax(Lᵢ^½ E[(Sᵢ−I) DLD (Sᵢ−I)] Lᵢ^½), λ′_D = maxᵢ λmax(Lᵢ^½ D E[(Tᵢ−I) L (Tᵢ−I)] D Lᵢ^½).

    Parameters
    ----------
    D : numpy.ndarray
        Stepsize matrix, shape (d, d).
    L : numpy.ndarray
        Smoothness matrix of f.
    client_L : sequence of numpy.ndarray
        Those of the clients.
    sketch : Sketch or sequence of Sketch
        The sketch, or one for each client.
    algorithm : str or Method
        Its variance V(D) stands between the roots of Lᵢ: 𝒞(DLD) for det-CGD1, D𝒞(L)D for det-CGD2.

    Raises
    ------
    ValueError
        For a matrix that is not symmetric or not finite.
    """
    method = get_method(algorithm)
    D, L = dense(read_matrix("D", D)), dense(read_matrix("L", L))
    client_L = [dense(read_matrix(f"client_L[{i}]", Li)) for i, Li in enumerate(client_L)]
    sketches = [sketch] * len(client_L) if isinstance(sketch, Sketch) else list(sketch)
    inner: dict[Sketch, Matrix] = {}
    largest = 0.0
    for Li, one in zip(client_L, sketches, strict=True):
        if one not in inner:
            inner[one] = method.variance(D, L, one)
        w, V = np.linalg.eigh(Li)
        root = (V * np.sqrt(np.maximum(w, 0.0))) @ V.T
        largest = max(largest, float(np.linalg.eigvalsh(root @ inner[one] @ root)[-1]))
    return largest
