"""Bounds on det-CGD1's D for the Gaussian sketch, 𝒫(M) = aM + b tr(M)I, from eigenvalues ℓ_j of L with counts m_j.

𝒫, log det and L do not change when D is turned by an orthogonal matrix that commutes with L, and the programs are
concave: some best D has the form Σ δ_jΠ_j.  A smaller L only enlarges what is allowed, so that ℓ_j from below give
valid bounds.

*Condition*, for any z ≥ 0 and δ̂ > 0, with ζ = Σ m_jz_j and κ_j = (az_j + bζ)ℓ_j:

    Σ m_j log δ_j ≤ Σ m_j (log δ_j + z_jδ_j − κ_jδ_j²) ≤ Σ m_j (log δ̂_j − 1 + (z_j + 1/δ̂_j)²/(4κ_j)).

*Descent metric*, for any y > 0, with ρ_j = ay_j + bΣ my and q = Σ m_jy_j²/(ρ_jℓ_j):

    log det H ≤ d log(q/d) − Σ m_j log y_j.
"""

from __future__ import annotations

import math

import numpy as np

from stepsize_opt.proofs.arithmetic import Enclosed, enclosed
from stepsize_opt.proofs.intervals import Interval
from stepsize_solvers.programs import Vector


def eigenvalue_bounds(A: Enclosed) -> tuple[Vector, Vector]:
    """Return bounds on the eigenvalues of every symmetric positive semidefinite matrix in the enclosure, ascending.

    With A = VΛVᵀ + E and VᵀV within ε of I they differ from those of Λ by a factor within 1 ± ε (Ostrowski) and by at
    most ‖E‖ (Weyl).
    """
    values, V = np.linalg.eigh(A.value)
    exact = enclosed(V)
    apart = (exact @ np.diag(values) @ exact.T - A).norm()
    epsilon = (exact.T @ exact).plus_diagonal(-1.0).norm()
    near = enclosed(np.maximum(values, 0.0))
    low = (near * (1.0 - Interval.exact(epsilon)) - apart).low
    return np.maximum(low, 0.0), (near * (1.0 + Interval.exact(epsilon)) + apart).high


def spectral_condition_bound(values: Vector, counts: Vector, a: float, b: float, delta: Vector, z: Vector) -> float:
    """Return log det D from above under the condition, for eigenvalues, a and b from below and any δ̂ > 0, z ≥ 0."""
    if not (np.isfinite(z).all() and delta.min() > 0.0):
        return math.inf
    kappa = (a * enclosed(z) + b * enclosed(z).inner(counts)) * values
    if not kappa.low.min() > 0.0:
        return math.inf
    slope = z + 1.0 / enclosed(delta)
    return (enclosed(delta).log() - 1.0 + slope * slope / (4.0 * kappa)).inner(counts).high


def spectral_metric_bound(values: Vector, counts: Vector, a: float, b: float, y: Vector) -> float:
    """Return log det H from above, for eigenvalues, a and b from below and any y > 0."""
    if not (y.min() > 0.0 and np.isfinite(y).all()):
        return math.inf
    exact, d = enclosed(y), float(counts.sum())
    rho = a * exact + b * exact.inner(counts)
    q = (exact * exact / (rho * values)).inner(counts)
    return (d * (q / d).log() - exact.log().inner(counts)).high
