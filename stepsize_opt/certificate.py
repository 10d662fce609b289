"""Repair and certificate: what makes an answer trustworthy, whoever computed it.

*Repair.*  The conditions of the paper are quadratic on the left and linear on the right, so a matrix D that is a
little outside becomes feasible when it is divided by ``λmax(D^{−½} 𝒬(D B D) D^{−½})``.

*Upper bound.*  Take any multipliers Z_j ⪰ 0 and any reference D̂ ≻ 0.  For every feasible D,

    log det D ≤ log det D + Σ_j ⟨Z_j, G_j(D)⟩.

With R_j = 𝒬_j*(Z_j) the concave term −⟨R_j, D B_j D⟩ lies below its tangent at D̂,
``−⟨R_j D̂ B_j + B_j D̂ R_j, D⟩ + ⟨R_j, D̂ B_j D̂⟩``, and with τ̂ = det(D̂)^{1/d} the concave det(D)^{1/d} lies
below ``(τ̂/d) ⟨D̂⁻¹, D⟩``.  The right-hand side becomes log det D − ⟨Q, D⟩ + s with

    Q = Σ_j [ R_j D̂ B_j + B_j D̂ R_j − a_j Z_j − c_j ⟨Z_j, E_j⟩ (τ̂/d) D̂⁻¹ ],
    s = Σ_j ( ⟨Z_j, C_j⟩ + ⟨R_j, D̂ B_j D̂⟩ ),

and its maximum over D ≻ 0 is ``s − log det Q − d`` when Q ≻ 0.  For block-diagonal D only the blocks of Q count;
for D = Diag(γᵢWᵢ) the maximum is ``s + log det W + Σ dᵢ log(dᵢ/⟨Qᵢᵢ, Wᵢ⟩) − d``.  Multiplying every Z_j by the same
factor t changes s to ts and Q to tQ, and t = d/s is best.

The bound needs no assumption on the solver: poor multipliers make it weak, never wrong.  Every number here is
evaluated with its rounding error (:mod:`stepsize_opt.verified`), so the interval [log det D, upper bound] holds in
exact arithmetic for the floats returned.

``gap = (upper bound − log det D)/d`` bounds the relative excess of iterations over the best possible: a gap of
10⁻⁶ means that no stepsize matrix of the same structure saves more than one iteration in a million.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular

from solvers.maps import (
    Matrix,
    Vector,
    block_slices,
    is_identity,
)
from solvers.program import BlockPattern, Constraint, LogDetProgram, Pattern
from stepsize_opt.verified import (
    UNIT,
    Enclosed,
    Pair,
    cholesky_shift,
    gamma,
    inner_from_above,
    log_det_from_above,
    log_det_from_below,
    proved_cholesky,
    sandwich,
)
from stepsize_opt.verified_maps import adjoint_below, image


@dataclass(frozen=True)
class Certificate:
    """What is proved about a stepsize matrix.

    feasible: D satisfies every constraint, in exact arithmetic.
    margin: smallest eigenvalue of D^{−½} G(D) D^{−½}; for condition (3), 1 − λmax(D^{−½} E[SDLDS] D^{−½}).
    log_det: a lower bound on log det D, tight to rounding.
    upper_bound: no feasible D has a larger log det.
    d: size of D.
    """

    feasible: bool
    margin: float
    log_det: float
    upper_bound: float
    d: int

    @property
    def gap(self) -> float:
        """(upper_bound − log_det)/d: relative excess of iterations over the best possible; infinite without a bound."""
        if not self.feasible or not math.isfinite(self.upper_bound):
            return math.inf
        return max(0.0, self.upper_bound - self.log_det) / self.d

    def is_optimal(self, tol: float) -> bool:
        """Whether D is proved feasible and within ``tol`` of the best possible."""
        return self.feasible and self.gap <= tol

    def rescaled(self, scale: Vector) -> Certificate:
        """The certificate of ΛDΛ for a diagonal Λ of powers of two: log det and its bound move by 2 Σ log Λ_j."""
        shift = 2.0 * math.log(2.0) * float(np.sum(np.frexp(scale)[1] - 1))
        # log 2, the product and the sum are each rounded once.
        lower, upper = self.log_det + shift, self.upper_bound + shift
        slack = 4.0 * UNIT * (abs(shift) + abs(lower))
        return replace(self, log_det=lower - slack, upper_bound=upper + slack)

    @staticmethod
    def combine(parts: Sequence[Certificate]) -> Certificate:
        """The certificate of Diag(D₁, …, D_m) for a problem that separates into the parts."""
        return Certificate(
            feasible=all(part.feasible for part in parts),
            margin=min(part.margin for part in parts),
            log_det=math.fsum(part.log_det for part in parts),
            upper_bound=math.fsum(part.upper_bound for part in parts),
            d=sum(part.d for part in parts),
        )


class Evaluation:
    """A stepsize matrix D with enclosures of every D B_j D and G_j(D), computed once and used by all that follows.

    A rounded B_j is taken at its upper end, so that what is proved of G_j(D) holds for the matrix that is meant.
    """

    def __init__(self, program: LogDetProgram, D: Matrix) -> None:
        self.program = program
        self.D = D
        self.quadratic: list[Enclosed | None] = [
            None if con.B is None else sandwich(D, _shifted_matrix(con, 1.0), D) for con in program.constraints
        ]
        self.values = [_constraint_value(con, D, M) for con, M in zip(program.constraints, self.quadratic, strict=True)]

    @cached_property
    def feasible(self) -> bool:
        """Whether D ≻ 0 has the pattern and every G_j(D) ⪰ 0, *proved* for the floats of D."""
        if not _has_pattern(self.program.pattern, self.D) or self.log_det is None:
            return False
        return all(proved_cholesky(value) is not None for value in self.values)

    @cached_property
    def log_det(self) -> float | None:
        """A proved lower bound on log det D, or None when D is not proved positive definite."""
        return log_det_from_below(Enclosed(self.D, np.zeros_like(self.D)))

    @cached_property
    def margin(self) -> float:
        """min_j λmin(D^{−½} G_j(D) D^{−½}): nonnegative just when D is feasible; −inf when D is not definite."""
        try:
            return min(_whitened_extreme(value.value, self.D, largest=False) for value in self.values)
        except LinAlgError:
            return -math.inf

    @property
    def doubt(self) -> float:
        """An upper bound, relative to D, on what rounding may take from the G_j(D): what a proof needs as margin."""
        root = cholesky(self.D, lower=True)
        worst = 0.0
        for value in self.values:
            half = solve_triangular(root, np.diag(np.sqrt(cholesky_shift(value))), lower=True)
            worst = max(worst, float(np.linalg.norm(half, 2)) ** 2)
        return worst


def _constraint_value(con: Constraint, D: Matrix, M: Enclosed | None) -> Enclosed:
    """An enclosure of G(D) = C + aD + c det(D)^{1/d} E − 𝒬(M) with M = DBD."""
    value = con.a * D
    error = UNIT * np.abs(value)
    if con.C is not None:
        value = value + con.C
        error = error + UNIT * np.abs(value)
    if con.E is not None and con.c != 0.0:
        below = log_det_from_below(Enclosed(D, np.zeros_like(D)))
        # c E ⪰ 0, so a lower bound on det(D)^{1/d} gives a lower bound on G; exp rounds by less than 2 ulp.
        tau = 0.0 if below is None else math.exp(below / D.shape[0]) * (1.0 - 8.0 * UNIT)
        term = con.c * tau * con.E
        value = value + term
        error = error + UNIT * (np.abs(value) + 2.0 * np.abs(term))
    if con.Q is not None and M is not None:
        quadratic = image(con.Q, M)
        value = value - quadratic.value
        error = error + quadratic.error + UNIT * np.abs(value)
    return Enclosed(value, error).symmetric()


def _shifted_matrix(con: Constraint, sign: float) -> Matrix:
    """B ± Diag(r): with + no smaller, with − no larger than the matrix that is meant."""
    if con.B is None:
        msg = "the constraint has no quadratic term"
        raise ValueError(msg)
    if con.B_slack is None:
        return con.B
    out = con.B.copy()
    # Twice the slack, so that the rounding of this sum is covered too.
    np.einsum("ii->i", out)[:] += sign * 2.0 * con.B_slack
    return out


def _whitened_extreme(A: Matrix, D: Matrix, *, largest: bool) -> float:
    """Extreme eigenvalue of D^{−½} A D^{−½}, in plain floating point."""
    C = cholesky(D, lower=True)
    half = solve_triangular(C, A, lower=True)
    W = solve_triangular(C, half.T, lower=True)
    # All eigenvalues, by divide and conquer: LAPACK's methods for a part of them break down on clusters, and W is
    # close to the identity for D = L⁻¹.
    return float(eigh(0.5 * (W + W.T), eigvals_only=True, driver="evd")[-1 if largest else 0])


def _has_pattern(pattern: Pattern, D: Matrix) -> bool:
    if not np.array_equal(D, D.T):
        return False
    if isinstance(pattern, BlockPattern):
        return pattern.is_full or np.array_equal(D, pattern.project(D))
    for s in block_slices(pattern.sizes):
        W, block = pattern.W[s, s], D[s, s]
        # γᵢWᵢ is rounded entry by entry, so it matches its direction to a few ulp only.
        if not np.allclose(block * (np.trace(W) / np.trace(block)), W, rtol=16 * UNIT * len(W), atol=0.0):
            return False
    return np.array_equal(D, BlockPattern(pattern.sizes).project(D))


def feasible_scale(at: Evaluation) -> float:
    """The largest t with tD feasible, in plain floating point; 0 when there is none."""
    scale = math.inf
    for con, M in zip(at.program.constraints, at.quadratic, strict=True):
        if con.Q is not None and M is not None and con.is_homogeneous and con.c == 0.0:
            if con.a <= 0.0:
                return 0.0
            scale = min(scale, con.a / _whitened_extreme(con.Q.apply(M.value), at.D, largest=True))
        else:
            scale = min(scale, _scale_by_bisection(con, at.D))
    return scale


def _scale_by_bisection(con: Constraint, D: Matrix) -> float:
    """The largest t with G(tD) ⪰ 0; t ↦ G(tD) is concave, so the feasible t form an interval that starts at 0."""

    def inside(t: float) -> bool:
        return _whitened_extreme(con.evaluate(t * D), t * D, largest=False) >= 0.0

    low, high = 0.0, 1.0
    while inside(high) and high < 1e300:
        low, high = high, 2.0 * high
    while high > 1e-300 and low == 0.0:
        high *= 0.5
        if inside(high):
            low, high = high, 2.0 * high
    while high - low > 4.0 * UNIT * high:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        low, high = (middle, high) if inside(middle) else (low, middle)
    return low


def repair(program: LogDetProgram, D: Matrix) -> Evaluation | None:
    """The given D, symmetrised, put into its pattern and scaled to a *proved* feasible point next to the boundary.

    Returns None when D is not positive definite or no feasible scale is found.
    """
    D = into_pattern(program.pattern, D)
    try:
        at = Evaluation(program, D)
        scale = feasible_scale(at)
        if not (0.0 < scale < math.inf):
            return None
        if not 0.5 <= scale <= 2.0:
            # Rounding is judged next to the boundary; a power of two gets there without rounding.
            D = D * 2.0 ** round(math.log2(scale))
            at = Evaluation(program, D)
            scale = feasible_scale(at)
        # Retreat by what the proof needs, or by the rounding of the eigenvalue behind the scale if that is more;
        # give way further until the proof goes through.  10 % is a failure.
        retreat = max(1.25 * at.doubt, 2.0 * program.d * UNIT)
    except (LinAlgError, ValueError):  # not positive definite, or not finite
        return None
    while retreat < 0.1:
        candidate = Evaluation(program, np.asarray((scale * (1.0 - retreat)) * D))
        if candidate.feasible:
            return candidate
        retreat *= 2.0
    return None


def into_pattern(pattern: Pattern, D: Matrix) -> Matrix:
    """The symmetric part of D with the pattern: entries outside the blocks dropped, or each γᵢ matched by its trace."""
    D = 0.5 * (D + D.T)
    if isinstance(pattern, BlockPattern):
        return D if pattern.is_full else pattern.project(D)
    out = np.zeros_like(D)
    for s in block_slices(pattern.sizes):
        W = pattern.W[s, s]
        out[s, s] = (np.trace(D[s, s]) / np.trace(W)) * W
    return out


def _proved_psd(Z: Matrix) -> Matrix | None:
    """A matrix next to Z that is *proved* positive semidefinite; None when Z holds no usable number."""
    if Z.ndim != 2 or not np.all(np.isfinite(Z)):
        return None
    symmetric = np.asarray(0.5 * (Z + Z.T))
    if proved_cholesky(Enclosed(symmetric, np.zeros_like(symmetric))) is not None:
        return symmetric
    w, V = eigh(symmetric)
    if w[-1] <= 0.0:
        return None
    n = Z.shape[0]
    clipped = (V * np.maximum(w, 0.0)) @ V.T
    clipped = 0.5 * (clipped + clipped.T)
    diagonal = np.diagonal(clipped)
    lift = n * gamma(n + 2)  # what the proof by Cholesky takes away, see proved_cholesky
    for _ in range(30):
        candidate = np.asarray(clipped + np.diag(lift * (diagonal + float(np.mean(diagonal)))))
        if proved_cholesky(Enclosed(candidate, np.zeros_like(candidate))) is not None:
            return candidate
        lift *= 4.0
    return None


def upper_bound(at: Evaluation, duals: Sequence[Matrix]) -> float:
    """A proved upper bound on log det D over the feasible set; +inf when these multipliers prove nothing.

    ``duals`` holds one Z_j for each constraint, of any quality and scale; ``at`` is the reference D̂, best the answer.
    """
    program, D = at.program, at.D
    d = program.d
    Q = Pair.exact(np.zeros((d, d)))
    linear = 0.0
    for con, M, dual in zip(program.constraints, at.quadratic, duals, strict=True):
        Z = _proved_psd(dual)
        if Z is None:
            continue  # a zero multiplier is a valid one
        Q = Q + Pair.exact(Z).scaled(-con.a)
        if con.C is not None:
            linear += inner_from_above(Pair.exact(Z).rounded(), Pair.exact(con.C).rounded())
        if con.E is not None and con.c != 0.0:
            Q = Q + -_determinant_tangent(con, Z, D)
        if con.Q is not None and con.B is not None and M is not None:
            # A smaller B has a larger feasible set: the lower end of a rounded B gives the valid bound, and its
            # quadratic term may be replaced by the larger one of the upper end.  The tangent needs B ⪰ 0.
            B = _shifted_matrix(con, -1.0)
            if con.B_slack is not None and proved_cholesky(Enclosed(B, np.zeros_like(B))) is None:
                return math.inf
            R = adjoint_below(con.Q, Z)
            half = R @ (Pair.exact(D) @ Pair.exact(B))
            Q = Q + half + half.T
            linear += inner_from_above(R.rounded(), M)
    if not (math.isfinite(linear) and linear > 0.0):
        return math.inf
    t = d / linear  # the best common factor of the multipliers; any rounding of it leaves the bound valid
    conjugate = log_det_conjugate(program.pattern, Q.rounded().symmetric())
    if conjugate is None:
        return math.inf
    # log det(tQ) = d log t + log det Q; the slack covers the rounding of the five numbers.
    terms = [t * linear, conjugate, -d * math.log(t), -float(d)]
    return math.fsum(terms) + 8.0 * UNIT * math.fsum(abs(term) for term in terms)


def inverse_bound(program: LogDetProgram) -> float:
    """−log det B, a proved bound when one constraint is DBD ⪯ D, that is D ⪯ B⁻¹; +inf when there is none.

    Unlike the bound from multipliers it loses nothing when B is nearly singular.
    """
    best = math.inf
    for con in program.constraints:
        plain = con.a == 1.0 and con.C is None and con.c == 0.0 and con.Q is not None and is_identity(con.Q)
        if plain:
            B = _shifted_matrix(con, -1.0)
            below = log_det_from_below(Enclosed(B, np.zeros_like(B)))
            best = best if below is None else min(best, -below)
    return best


def _determinant_tangent(con: Constraint, Z: Matrix, D: Matrix) -> Pair:
    """c⟨Z, E⟩(τ̂/d) D̂⁻¹ with the factor from above; the residual of a computed inverse bounds its error."""
    d = D.shape[0]
    E = con.E if con.E is not None else np.zeros_like(D)
    above = log_det_from_above(D)
    X = np.linalg.inv(D)
    X = 0.5 * (X + X.T)
    residual = sandwich(X, D, np.eye(d))
    defect = np.abs(np.eye(d) - residual.value) + residual.error + UNIT
    norm = float(np.max(np.sum(defect, axis=1)))
    if above is None or norm >= 0.5:
        return Pair(X, np.zeros_like(X), np.full_like(X, math.inf))  # proves nothing
    tau = math.exp(above / d) * (1.0 + 8.0 * UNIT)
    exact = Pair.exact(Z).rounded(), Pair.exact(E).rounded()
    weight = con.c * inner_from_above(*exact) * tau / d * (1.0 + 8.0 * UNIT)
    # D⁻¹ = (I − H)⁻¹X with |H| ≤ defect, so |D⁻¹ − X| ≤ |H||X| + |H|²|X|/(1 − ‖H‖) entrywise by rows.
    column = np.max(np.abs(X), axis=0, keepdims=True)
    error = defect @ np.abs(X) + (np.sum(defect, axis=1, keepdims=True) * norm / (1.0 - norm)) @ column
    return Pair(X, np.zeros_like(X), 2.0 * error).scaled(weight)


def log_det_conjugate(pattern: Pattern, Q: Enclosed) -> float | None:
    """An upper bound on max { log det D − ⟨Q, D⟩ } + d over the pattern, or None when it is not proved finite."""
    total: list[float] = []
    for s in block_slices(pattern.sizes):
        block = Enclosed(Q.value[s, s], Q.error[s, s])
        if isinstance(pattern, BlockPattern):
            below = log_det_from_below(block)
            if below is None:
                return None
            total.append(-below)
        else:
            W = pattern.W[s, s]
            size = W.shape[0]
            above = log_det_from_above(W)
            inner = -inner_from_above(Enclosed(-block.value, block.error), Enclosed(W, np.zeros_like(W)))
            if above is None or inner <= 0.0:
                return None
            total.append(above + size * math.log(size / inner) * (1.0 + 4.0 * UNIT))
    return math.fsum(total)


def certify_point(
    at: Evaluation, duals: Sequence[Matrix], others: Sequence[Matrix] = (), tol: float = 0.0
) -> Certificate:
    """The certificate of a stepsize: feasible or not, margin, log det, and an upper bound from the multipliers.

    The bound is taken with D itself as reference; while it leaves a gap above ``tol``, the other reference points are
    tried too (a solver's multipliers fit its raw point better than the repaired one).
    """
    certificate = Certificate(
        feasible=at.feasible,
        margin=at.margin,
        log_det=-math.inf if at.log_det is None else at.log_det,
        upper_bound=min(inverse_bound(at.program), upper_bound(at, duals) if duals else math.inf),
        d=at.program.d,
    )
    for other in others if duals else ():
        if certificate.is_optimal(tol):
            break
        bound = upper_bound(Evaluation(at.program, 0.5 * (other + other.T)), duals)
        certificate = replace(certificate, upper_bound=min(certificate.upper_bound, bound))
    return certificate
