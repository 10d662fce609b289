"""Two families of problems whose optimum is a formula.

Throughout, maximise log det D subject to F(D) = D − P∘(D B D) ⪰ 0.  A feasible D with a Z ⪰ 0 such that

    D⁻¹ + Z = B D R + R D B,   R = P∘Z,   ⟨Z, F(D)⟩ = 0

is globally optimal; and for every Z ⪰ 0 the maximum of the Lagrangian log det D + ⟨Z, F(D)⟩ bounds the optimum.

**A (no coupling).**  P = Diag(α).  D = Diag(1/(αⱼBⱼⱼ)) has F(D) = 0, and the first equation determines
Z = B Diag(α) + Diag(α) B − Diag(αⱼBⱼⱼ).  So D is optimal among all matrices if and only if that Z ⪰ 0;
for a constant α this says that the correlation matrix of B has no eigenvalue below ½.

**B (one active direction).**  P ≻ 0 with P⁻¹1 > 0.  Put q = d P⁻¹1/(1ᵀP⁻¹1), c = d/((d+1) 1ᵀP⁻¹1), N = P − c 11ᵀ ≻ 0.
For a sign pattern s let y, sign(y) = s, solve y∘(B y) = q/(2c), and z = q/y.  Then with Z = zzᵀ

    D_s = B⁻¹ # ½ (Diag(z) N Diag(z))⁻¹      (A # B the matrix geometric mean)

satisfies the first equation and zᵀF(D_s)z = 0.  It maximises the Lagrangian of Z, hence for every B and s
log det D* ≤ log det D_s = Σ log|yⱼ| − Σ log qⱼ − ½ log det B − ½ log det 2N, and D_s is optimal if F(D_s) ⪰ 0.
Constant row sums, P1 = ρ1, give q = 1 and c = ρ/(d+1).  The proofs are in docs/native_solver.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, lapack
from scipy.linalg import eigh as generalised_eigh

from stepsize_solvers.numerics.linalg import (
    cholesky,
    eigh,
    log_det_from_cholesky,
    lower_solve,
    smallest_eigenvalue,
    sym,
    triangular_inverse,
)
from stepsize_solvers.numerics.progress import native_stats
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import (
    Family,
    Matrix,
    Outcome,
    PositiveMap,
    Program,
    Status,
    Vector,
    add_to_diagonal,
)

# Relative violation of F(D) ⪰ 0, or negative part of Z, that rounding explains: exactness is claimed below it.
_EXACT = 1e-9
# A factor of two between the first two eigenvalues leaves a 4000th of the second vector.
_POWER_STEPS = 12
# Newton steps of balancing: with four scaling steps before them 3.8 are enough on average instead of 5.3, with six 3.3.
_NEWTON_STEPS = 60
_SCALING_STEPS = 4
_TINY = 2.0**-1022  # the smallest normal number


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """A stepsize D on the boundary of the feasible set, a dual Z, and the upper bound on log det that Z proves.

    exact: whether the theorem's condition holds, so that D is the global optimum up to rounding.
    theorem: its name, for people to read.
    gap: (upper_bound − log det D)/d, whatever ``exact`` says.
    """

    D: Matrix
    Z: Matrix
    exact: bool
    upper_bound: float
    log_det: float
    theorem: str

    @property
    def gap(self) -> float:
        return (self.upper_bound - self.log_det) / int(self.D.shape[0])


def uncoupled(B: Matrix, Q: PositiveMap) -> ClosedForm | None:
    """Theorem A, or None when 𝒬 is not M ↦ Diag(α∘diag M) or Z is not positive semidefinite."""
    split = Q.diagonal_plus_scaled
    if split is None or split.beta != 0.0 or not split.alpha.min() > 0.0:
        return None
    alpha = split.alpha
    x = 1.0 / (alpha * B.diagonal())
    root = np.sqrt(x)
    scale = root[:, None] * root
    # In the scale of D, where D⁻¹ becomes the identity, the size of Z is comparable with 1.
    Z = (alpha[:, None] + alpha) * B * scale
    diagonal = Z.ravel()[:: x.size + 1]  # a view
    diagonal -= 1.0 - _EXACT
    if cholesky(Z) is None:
        return None
    diagonal -= _EXACT
    log_det = float(np.log(x).sum())
    return ClosedForm(np.diag(x), Z / scale, True, log_det, log_det, "theorem A: the diagonal stepsize is best")


@dataclass(frozen=True, eq=False)
class _Sampling:
    """q, c and N = P − c11ᵀ of theorem B."""

    q: Vector
    c: float
    N: Matrix
    log_det_2N: float
    N_factor: Matrix


def _sampling(P: Matrix) -> _Sampling | None:
    """None unless P ≻ 0 and P⁻¹1 > 0."""
    d = P.shape[0]
    K = cholesky(P)
    if K is None:
        return None
    ones = np.ones(d)
    solution = np.asarray(lapack.dpotrs(K, ones, 1)[0])
    # Entries at rounding level would ask for a y of arbitrary size.
    if not solution.min() > 1e-10 * solution.max():
        return None
    total = float(np.add.reduce(solution))
    c = d / ((d + 1.0) * total)
    N = P - c
    N_factor = cholesky(N)
    if N_factor is None:
        return None
    return _Sampling(d * solution / total, c, N, d * math.log(2.0) + log_det_from_cholesky(N_factor), N_factor)


def sign_pattern(B: Matrix) -> Vector:
    """Signs of the top eigenvector of the correlation matrix of B, which make B∘ssᵀ as positive as one vector can.

    For all but small matrices by power steps: where they converge slowly there is no dominant direction to be found.
    """
    if (B >= 0.0).all():
        return np.ones(B.shape[0])
    root = 1.0 / np.sqrt(B.diagonal())
    M = B * (root[:, None] * root)
    v = eigh(M)[1][:, -1] if len(M) <= Sizes.POWER_STEPS else _dominant_vector(M)
    return np.where(v >= 0.0, 1.0, -1.0)


def _dominant_vector(M: Matrix) -> Vector:
    """A unit vector near the top eigenvector of M ⪰ 0, by power steps from the longest column."""
    v: Vector = M[int(np.einsum("ij,ij->i", M, M).argmax())]
    for _ in range(_POWER_STEPS):
        v = M @ v
        v /= math.sqrt(float(v.dot(v)))
    return v


def balanced_vector(M: Matrix, weights: Vector) -> Vector:
    """The y > 0 with y∘(My) = w for a dense M ≻ 0, by factorised Newton steps after a few of the fixed point.

    ``large.balancing`` has the same problem with products with M alone.
    """
    scale = float(np.minimum.reduce(weights))
    w, M = weights / scale, M / scale
    y = np.sqrt(w / np.maximum(M.diagonal(), _TINY))
    y = y * math.sqrt(float(np.add.reduce(w)) / float(y.dot(M).dot(y)))  # yᵀMy = Σw holds at the solution
    for _ in range(_SCALING_STEPS):
        image = M.dot(y)
        if not np.minimum.reduce(image) > 0.0:
            break
        y = np.sqrt(y * w / image)
    for _ in range(_NEWTON_STEPS):
        image = M.dot(y)
        residual = w - y * image
        H = M * y
        H *= y[:, None]
        add_to_diagonal(H, w)
        K = cholesky(H, overwrite=True)
        if K is None:
            break
        h = np.asarray(lapack.dpotrs(K, residual, 1)[0])
        square, change = float(residual.dot(h)), y * h
        y = y + balancing_length(w, h, square, float(change.dot(image)), float(change.dot(M).dot(change))) * change
        if square < 1e-16 * w.size:  # the next error is the square of this: rounding
            break
    return y


def balancing_length(w: Vector, h: Vector, square: float, linear: float, quadratic: float) -> float:
    """The length of a Newton step h: about the minimum over a of ½(y + ay∘h)ᵀM(y + ay∘h) − Σ w log(1 + ah).

    square: that of the Newton decrement; linear, quadratic: (y∘h)ᵀMy and (y∘h)ᵀM(y∘h).
    """
    if square < 0.0625:
        return 1.0
    a = 1.0 / (1.0 + math.sqrt(square))
    low = float(h.min())
    limit = -0.99 / low if low < 0.0 else 1e3
    for _ in range(8):  # safeguarded Newton steps in one variable
        q = h / (1.0 + a * h)
        wq = w * q
        change = (linear + a * quadratic - float(wq.sum())) / (quadratic + float(wq.dot(q)))
        a = min(max(a - change, 0.5 * a), 0.5 * (a + limit) if a < limit else limit)
        if abs(change) < 0.05 * a:  # the next Newton step in all variables corrects the rest
            break
    return a


@dataclass(frozen=True, eq=False)
class Balanced:
    """y of theorem B, from which the closed form can be computed.

    frustrated: whether yⱼ Σ_{i≠j} Bⱼᵢyᵢ < 0 for a coordinate j; of 1890 such problems tried, none was exact.  Other
    signs of such coordinates do not help: 148 of 300 one-factor problems are exact with them and without.
    """

    P: Matrix
    K: Matrix  # B = KKᵀ
    sampling: _Sampling
    y: Vector
    frustrated: bool

    @staticmethod
    def of(B: Matrix, Q: PositiveMap) -> Balanced | None:
        """None when the theorem does not apply: 𝒬 not a Hadamard map, P singular, P⁻¹1 not positive, B singular."""
        P = Q.hadamard_matrix
        if P is None:
            return None
        sampling = _sampling(P)
        K = cholesky(B)
        if sampling is None or K is None:
            return None
        weights, s = sampling.q / (2.0 * sampling.c), sign_pattern(B)
        u = balanced_vector(B * (s[:, None] * s), weights)
        frustrated = bool((B.diagonal() * u * u > (1.0 + 1e-9) * weights).any())
        return Balanced(P, K, sampling, s * u, frustrated)

    def closed_form(self) -> ClosedForm | None:
        """D_s scaled to the boundary of the feasible set: one eigendecomposition, one more for the scale, products."""
        K, z = self.K, self.sampling.q / self.y
        # D = B⁻¹ # A = K⁻ᵀ (KᵀAK)^½ K⁻¹ with B = KKᵀ and A = ½ Diag(1/z) N⁻¹ Diag(1/z).
        # With N = MMᵀ that inner matrix is ½ GᵀG, G = M⁻¹ Diag(1/z) K, and A = ½ HᵀH, H = M⁻¹ Diag(1/z).
        H = triangular_inverse(self.sampling.N_factor) / z
        G = H.dot(K)
        w, U = eigh(0.5 * G.T.dot(G))
        if not w[0] > 0.0:
            return None
        quarter = w**0.25
        factor = triangular_inverse(K).T.dot(U * quarter)  # D = factor · factorᵀ
        # Repair: λmax of factor⁻¹ (P∘A) factor⁻ᵀ, as D B D = A; P∘A needs A itself.
        inverse_factor = (U / quarter).T.dot(K.T)
        top = -smallest_eigenvalue(inverse_factor.dot(self.P * (-0.5 * H.T.dot(H))).dot(inverse_factor.T))
        exact = top <= 1.0 + _EXACT
        log_det = 0.5 * float(np.log(w).sum()) - log_det_from_cholesky(K) - w.size * math.log(top)
        dual, name = np.multiply.outer(z, z), "theorem B: one active direction, D is a matrix geometric mean"
        return ClosedForm(factor.dot(factor.T) / top, dual, exact, self._upper_bound, log_det, name)

    @property
    def _upper_bound(self) -> float:
        """The bound on log det D of the theorem."""
        logs = float(np.log(np.abs(self.y) / self.sampling.q).sum())
        return logs - 0.5 * (log_det_from_cholesky(self.K) + self.sampling.log_det_2N)


def optimum(B: Matrix, Q: PositiveMap, tol: float) -> Outcome | None:
    """The optimum by theorem A or B, or within a tenth of the tolerance of it; None where neither applies."""
    form = uncoupled(B, Q)
    balanced = Balanced.of(B, Q) if form is None else None
    if balanced is not None and not balanced.frustrated:
        form = balanced.closed_form()
    if form is None or not (form.exact or form.gap <= 0.1 * tol):
        return None
    return exact(form.D, form.Z, form.theorem, form.gap)


# ---------------------------------------------------------------- programs whose optimum is a formula of B alone


def closed_form(program: Program, tol: float = 1e-6) -> Outcome | None:
    """The optimum for 𝒬 = β·identity and D full, or D = γW under the condition; None elsewhere.

    *Condition, D full.*  D ⪯ B⁻¹/β, so D = B⁻¹/β with the multiplier Z = βB.
    *Condition, D = γW.*  γ = 1/λmax(W^{−½} 𝒬(WBW) W^{−½}), with Z = zzᵀ of the top eigenvector.
    *Metric, D full.*  aD − βDBD is largest in the Loewner order at D = (a/2β)B⁻¹, for every floor.
    """
    condition, metric, pattern = program.condition, program.objective, program.pattern
    if metric is not None and not program.families and pattern.is_full:
        beta = _multiple_of_identity(metric.left.Q)
        return None if beta is None else _largest_metric(metric.left, beta, metric.floor, tol)
    if condition is None or condition.B is None:
        return None
    beta = _multiple_of_identity(condition.Q) if pattern.is_full else None
    if beta is not None and cholesky(condition.B) is not None:
        B = condition.B
        return exact(sym(np.linalg.inv(B)) / beta, beta * B, "closed form D = (E[SLS])⁻¹")
    return None if pattern.direction is None else _best_direction(condition, pattern.direction)


def _multiple_of_identity(Q: PositiveMap) -> float | None:
    """β > 0 with 𝒬(M) = βM, or None."""
    split = Q.diagonal_plus_scaled
    return split.beta if split is not None and split.is_multiple and split.beta > 0.0 else None


def _best_direction(condition: Family, W: Matrix) -> Outcome | None:
    assert condition.B is not None
    try:
        # All eigenpairs: asked for the last one alone, LAPACK may return none when all coincide (W = B⁻¹, say).
        values, vectors = generalised_eigh(sym(condition.Q.apply(W @ condition.B @ W)), W)
    except LinAlgError:
        return None
    top, z = float(values[-1]), vectors[:, -1]  # zᵀWz = 1, so that ⟨Z, D⟩ = d below
    return exact(sym(W) / top, (len(W) * top) * np.multiply.outer(z, z), "closed form for a fixed direction")


def _largest_metric(left: Family, beta: float, floor: Matrix | None, tol: float) -> Outcome | None:
    """D with its multiplier: near the inverse of the metric, or for a floor the lowest direction, and a little of it.

    vvᵀ alone has a singular image 𝒬*(vvᵀ); with δG⁻¹ the bound exceeds t by at most δd.
    """
    B = left.B
    K = None if floor is None else cholesky(floor)
    if B is None or cholesky(B) is None or (floor is not None and K is None):
        return None
    D, inverse = sym(np.linalg.inv(B)) * (0.5 * left.a / beta), B * (beta / (0.5 * left.a))
    name = "closed form D = (E[SLS])⁻¹"
    if K is None:
        return exact(D, inverse * (2.0 / left.a), name)
    w, U = eigh(sym(lower_solve(K, lower_solve(K, D).T)))
    v = np.linalg.solve(K.T, U[:, 0])
    return exact(D, np.multiply.outer(v, v) + (0.1 * tol * w[0] / len(D)) * inverse, name)


def exact(D: Matrix, Z: Matrix, name: str, gap: float = 0.0) -> Outcome:
    """The outcome of a closed form."""
    stats = native_stats(closed_form=name, cg_iterations=0, history=[], gap=max(0.0, gap))
    return Outcome(Status.OPTIMAL, D, (Z[None],), stats)
