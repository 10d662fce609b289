"""The largest value of ⟨A, D⟩ − ⟨R, DBD⟩ over the matrices D of a pattern, bounded from above with a proof.

The quadratic is concave for R ⪰ 0 and B ⪰ 0.  For any reference D̂,

    ⟨A, D⟩ − ⟨R, DBD⟩ ≤ ⟨A, D̂⟩ − ⟨R, D̂BD̂⟩ + max_X { ⟨g, X⟩ − ⟨R, XBX⟩ },    g = A − (R D̂ B + B D̂ R),

with equality at the largest D: no eigenproblem has to be trusted.  Any matrix C with CᵀBC ⪰ (1 − ε)I and
CᵀRC ⪰ (1 − ε)Diag(ρ), both proved, bounds the last maximum by

    Σ_ij g̃_ij² / (2(1 − ε)²(ρᵢ + ρⱼ)),      g̃ = CᵀgC.

For block-diagonal D only the blocks of g count, and a D̂ nearer to the largest D of the pattern leaves less of them.
For D = Diag(γᵢWᵢ) the quadratic is 2bᵀγ − γᵀMγ with 2bᵢ = ⟨Aᵢᵢ, Wᵢ⟩ and M_ij = ⟨R_ij, WᵢB_ijW_j⟩.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Approximate, Enclosed, enclosed
from stepsize_opt.proofs.cholesky import is_proved_definite
from stepsize_opt.proofs.evaluation import Evaluation, shifted_matrix
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.roundings import SMALLEST_STEPSIZE
from stepsize_solvers.numerics.curvature import Curvatures
from stepsize_solvers.programs import Matrix, Pattern, Vector

# How far CᵀBC and CᵀRC may be from what they should be: the second is for an ill-conditioned B or R.
_SLACKS = (2.0**-20, 2.0**-3)
# Entries of ρ below this fraction of the largest share a basis that is made for them alone.
_GRADED = 1e-8
# A last term below this fraction of the bound is far below every gap that is asked for.
_NEGLIGIBLE = 1e-10


def largest_quadratic(at: Evaluation, A: Approximate, R: Approximate) -> float:
    """An upper bound on ⟨A, D⟩ − ⟨R, DBD⟩ over the pattern; for a given direction, over multiples of D̂'s blocks, too.

    ``at`` is the reference D̂.  A rounded B is taken at its lower end.  Infinite without a proof.
    """
    pattern = at.program.pattern
    if pattern.W is None:
        return _over_blocks(at, A, R, pattern)
    B, half = shifted_matrix(at.condition, -1.0), A * 0.5
    return max(_over_multiples(half, R, W, B, pattern) for W in (pattern.W, at.D))


def _over_blocks(at: Evaluation, A: Approximate, R: Approximate, pattern: Pattern) -> float:
    B = shifted_matrix(at.condition, -1.0)
    exact = at.arithmetic.exact(B)
    given = at if at.condition.B_slack is None else Evaluation(at.program, at.D, at.arithmetic, exact)
    bound, loss, g = _from_reference(given, A, R, B, pattern)
    if pattern.is_full or loss <= _NEGLIGIBLE * abs(bound):
        return bound
    # The loss is that over all matrices, which may be many times that over the pattern.  At the largest D of the
    # pattern both are nothing, and any D̂ may be the reference.
    curvature = Curvatures(B, pattern)(R.rounded().value)
    if curvature is None:
        return bound
    D = pattern.nearest(at.D + curvature.C @ curvature.solve(curvature.C.T @ g @ curvature.C) @ curvature.C.T)
    if not D.diagonal().min() >= SMALLEST_STEPSIZE:  # nor is it for NaN
        return bound
    return min(bound, _from_reference(Evaluation(at.program, D, at.arithmetic, exact), A, R, B, pattern)[0])


def _from_reference(
    at: Evaluation, A: Approximate, R: Approximate, B: Matrix, pattern: Pattern
) -> tuple[float, float, Matrix]:
    """The bound with the D of ``at`` as reference; its last term; and the blocks of g in plain floating point."""
    tangent = R @ at.half
    g = (A - tangent - tangent.T).rounded().symmetric()
    g = Enclosed(pattern.blocks(g.value), pattern.blocks(g.error))
    loss = _loss(R, B, g)
    energy = R.rounded().symmetric().inner(at.quadratic)
    return Interval.total((A.inner(at.exact), -energy, loss)).high, loss, g.value


def _loss(R: Approximate, B: Matrix, g: Enclosed) -> float:
    """Return an upper bound on max_X ⟨g, X⟩ − ⟨R, XBX⟩; +inf when B or R is not proved positive definite."""
    C = _common_basis(B, R.rounded().value)
    if C is None:
        return math.inf
    R_turned = R.congruent(C.T)
    rho = R_turned.value.diagonal()
    small = np.flatnonzero(rho <= _GRADED * rho.max())
    if small.size:
        # C was found in plain floating point, which does not tell apart what is small against the largest ρ.
        C[:, small] = C[:, small] @ np.linalg.eigh(R_turned.value[np.ix_(small, small)])[1]
        R_turned = R.congruent(C.T)
        rho = R_turned.value.diagonal()
    if not rho.min() > 0.0:
        return math.inf
    B_turned = R.exact(B).congruent(C.T)
    for slack in _SLACKS:
        kept = 1.0 - slack  # without rounding
        w = kept * rho
        if _above_diagonal(B_turned, np.full(len(B), kept)) and _above_diagonal(R_turned, w):
            turned = g.to(type(R)).congruent(C.T)
            return ((turned * turned / (enclosed(w[:, None]) + w)).total() / (2.0 * kept)).high
    return math.inf


def _common_basis(B: Matrix, R: Matrix) -> Matrix | None:
    """C with CᵀBC ≈ I and CᵀRC nearly diagonal, in plain floating point; None when there is none."""
    K, info = lapack.dpotrf(B, 1, 1)
    if info != 0:
        return None
    root = lapack.dtrtri(K, 1)[0]
    S = root @ R @ root.T
    _, U, info = lapack.dsyevd(0.5 * (S + S.T), 1, 1)
    return None if info != 0 else root.T @ U


def _above_diagonal(M: Enclosed, w: Vector) -> bool:
    """Return whether M ⪰ Diag(w) is proved."""
    return is_proved_definite(M.plus_diagonal(-w))


def _over_multiples(half: Approximate, R: Approximate, W: Matrix, B: Matrix, pattern: Pattern) -> float:
    """Return an upper bound on max_γ 2bᵀγ − γᵀAγ for D = Diag(γᵢWᵢ), bᵢ = ⟨half_ii, Wᵢ⟩, A_ij = ⟨R_ij, WᵢB_ijW_j⟩.

    At γ̂ ≈ A⁻¹b it is exceeded by rᵀA⁻¹r, r = b − Aγ̂; with A ⪰ μ Diag(A_ii) that is at most Σ rᵢ²/(μA_ii).
    """
    b = _block_sums(half.rounded(), enclosed(W), pattern).diagonal()
    A = _block_sums(R.rounded(), R.exact(B).congruent(W), pattern).symmetric()
    diagonal = A.diagonal().low
    if not diagonal.min() > 0.0:
        return math.inf
    scale = 1.0 / np.sqrt(diagonal)
    scaled = A.value * np.multiply.outer(scale, scale)
    least = 0.5 * float(np.linalg.eigvalsh(scaled)[0])
    w = least * diagonal
    if not (least > 0.0 and _above_diagonal(A, w)):
        return math.inf
    at = np.linalg.solve(scaled, scale * b.value) * scale
    r = b - A @ at
    return ((b + r).inner(at) + (r * r / w).total()).high


def _block_sums(A: Enclosed, B: Enclosed, pattern: Pattern) -> Enclosed:
    """Return the inner products ⟨A_ij, B_ij⟩ of the blocks of two matrices, an m×m matrix."""
    inside = (pattern.labels[:, None] == np.arange(len(pattern.sizes))).astype(np.float64)
    return enclosed(inside.T) @ (A * B) @ enclosed(inside)
