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

from stepsize_opt.proofs.arithmetic import Enclosed, Plain
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_solvers.programs import Vector


def eigenvalue_bounds(A: Enclosed) -> tuple[Vector, Vector]:
    """Bounds on the eigenvalues of every symmetric positive semidefinite matrix in the enclosure, both ascending.

    With A = VΛVᵀ + E and VᵀV within ε of I they differ from those of Λ by a factor within 1 ± ε (Ostrowski) and by at
    most ‖E‖ (Weyl).
    """
    n = len(A.value)
    values, V = np.linalg.eigh(A.value)
    exact = Plain.exact
    rest = (exact(V) @ exact(np.diag(values)) @ exact(V.T) + -Plain.enclosing(A.value, A.error)).rounded()
    turned = (exact(V.T) @ exact(V) + exact(-np.eye(n))).rounded()
    apart, epsilon = (
        float((np.abs(part.value) + part.error).sum(axis=1).max()) * (1.0 + gamma(n + 4)) for part in (rest, turned)
    )
    near, rounding = np.maximum(values, 0.0), epsilon + 4.0 * UNIT
    return np.maximum(near * (1.0 - rounding) - apart, 0.0), near * (1.0 + rounding) + apart


def eigenvalues_from_below(A: Enclosed) -> Vector:
    """Return the lower bounds alone."""
    return eigenvalue_bounds(A)[0]


def spectral_condition_bound(values: Vector, counts: Vector, a: float, b: float, delta: Vector, z: Vector) -> float:
    """log det D from above under the condition, for eigenvalues, a and b from below and any δ̂ > 0, z ≥ 0."""
    kappa = (a * z + b * math.fsum((counts * z).tolist())) * values * (1.0 - gamma(8))
    if not (kappa.min() > 0.0 and delta.min() > 0.0 and np.isfinite(z).all()):
        return math.inf
    logs, squares = np.log(delta), (z + 1.0 / delta) ** 2 / (4.0 * kappa)
    terms = (counts * (logs - 1.0 + squares)).tolist()
    return math.fsum(terms) + gamma(16) * math.fsum((counts * (np.abs(logs) + 1.0 + squares)).tolist())


def spectral_metric_bound(values: Vector, counts: Vector, a: float, b: float, y: Vector) -> float:
    """log det H from above, for eigenvalues, a and b from below and any y > 0."""
    if not (y.min() > 0.0 and np.isfinite(y).all()):
        return math.inf
    rho = a * y + b * math.fsum((counts * y).tolist())
    q = math.fsum((counts * y * y / (rho * values)).tolist()) * (1.0 + gamma(16))
    d = float(counts.sum())
    term, logs = d * math.log(q / d), np.log(y)
    slack = gamma(16) * (abs(term) + d + math.fsum((counts * (np.abs(logs) + 1.0)).tolist()))
    return term - math.fsum((counts * logs).tolist()) + slack
