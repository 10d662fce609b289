"""Starting points: powers of B and of 𝒬(B), closed forms, or the solution of a nearby problem, moved inside.

For any W ≻ 0 the stepsize γW is feasible exactly for γ ≤ 1/λmax(W^{-½} 𝒬(W B W) W^{-½}).  The candidates are
B^{-p}, p ∈ {0, ¼, ½}, and 𝒬(B)^{-p}, p ∈ {½, ¾, 1}: between them they contain the exact optimum of the identity map
(𝒬(B)⁻¹ up to a factor), of a diagonal B, and the best hand-picked stepsizes of the literature.

If 𝒬 is entrywise, D = Diag(s)D̃Diag(s) turns B into Diag(s)BDiag(s), and the powers are those for a unit diagonal: at
k = 1 they save a third of the time against those of a B whose diagonal varies by a factor of four.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.numerics import (
    Array,
    cholesky,
    congruence_diagonal,
    dominant_vector,
    eigh,
    largest_eigenvalue,
    smallest_eigenvalue,
    sym,
    transposed,
    triangular_inverse,
)
from stepsize_solvers.programs import Matrix, PositiveMap, Vector, WarmStart
from stepsize_solvers.single.blocks import BlockModel, BlockPoint, largest_multiple
from stepsize_solvers.single.closed_forms import ClosedForm
from stepsize_solvers.single.full import FullModel
from stepsize_solvers.single.point import Basis, Point

# Eigenvalues of B below this fraction of the largest are raised to it: powers of them would only be rounding.
_EIGENVALUE_FLOOR = 1e-14
# The exponents for B and for 𝒬(B), and those of the roots of the powers.
_EXPONENTS = np.array([[0.5, 0.25, 0.0], [0.5, 0.75, 1.0]])
_HALF_EXPONENTS = -0.5 * _EXPONENTS[:, :, None]
# Power steps of the bound that drops a candidate; with four, about two of the six are left on 27 problems.
_POWER_STEPS = 4
# Up to this size the number of calls counts, beyond it the number of operations.
_SIZE_FOR_STACKS = 40
# A warm start keeps this fraction of the boundary, and mixes this much of the central dual into the given one.
_WARM_FRACTION = 0.97
_WARM_MIX = 0.05


@dataclass(frozen=True, eq=False)
class Start:
    """A stepsize D on the boundary of the feasible set and its log det.

    basis: that of D, where it is known.
    """

    D: Matrix
    log_det: float
    basis: Basis | None = None


def unit_diagonal(B: Array, Q: PositiveMap | None = None) -> tuple[Array, Array]:
    """Diag(s)BDiag(s) with a unit diagonal, and s, for one matrix or a stack; s is 1 where an entry is not positive.

    Also for a map that is not entrywise: it does not allow another s.
    """
    if Q is not None and not Q.is_entrywise:
        return B, np.ones(B.shape[-1])
    diagonal = B.diagonal(axis1=-2, axis2=-1)
    scale = 1.0 / np.sqrt(np.where(diagonal > 0.0, diagonal, 1.0))
    return scaled(B, scale), scale


def scaled(M: Array, s: Array) -> Array:
    """Diag(s)MDiag(s), as symmetric as M."""
    return np.asarray(M * (s[..., :, None] * s[..., None, :]))


def _map_in_basis(Q: PositiveMap, U: Matrix, M: Matrix) -> Matrix:
    """Uᵀ 𝒬(U M Uᵀ) U; the cheap map needs one symmetric product and half a product for diag(U M Uᵀ) ≥ 0."""
    split = Q.diagonal_plus_scaled
    if split is not None and np.all(split.alpha >= 0.0):
        S = U.T * np.sqrt(split.alpha * np.maximum(congruence_diagonal(U, M), 0.0))
        return np.asarray(S @ S.T + split.beta * M)
    return sym(U.T @ Q.apply(U @ M @ U.T) @ U)


def power_start(B: Matrix, Q: PositiveMap) -> Start:
    """The best of the six powers."""
    P = Q.hadamard_matrix if Q.d <= _SIZE_FOR_STACKS else None
    if P is None:
        return _power_one_by_one(B, Q)
    D, log_det = powers_in_stacks(B, P)
    return Start(D, float(log_det))


def _power_one_by_one(B: Matrix, Q: PositiveMap) -> Start:
    """In the eigenbasis of each of the two matrices, where the cheap maps cost little."""
    B, scale = unit_diagonal(B, Q)
    image = sym(Q.apply(B))
    best: tuple[float, Matrix, Vector, Vector | None] | None = None
    for M, exponents in zip((B, image), _EXPONENTS, strict=True):
        w, U = eigh(M)
        known = w if M is B and w[0] > _EIGENVALUE_FLOOR * w[-1] else None  # the spectrum of B in the basis U
        w = np.maximum(w, _EIGENVALUE_FLOOR * w[-1])
        UBU = np.diag(w) if M is B else sym(U.T @ B @ U)
        for p in exponents:
            f = w**-p
            root = 1.0 / np.sqrt(f)
            image_in_U = _map_in_basis(Q, U, f[:, None] * UBU * f)  # 𝒬(D B D)
            whitened = image_in_U * np.multiply.outer(root, root)
            log_f = float(np.sum(np.log(f)))
            if best is not None:
                # With a Rayleigh quotient in the place of λmax a candidate may be out of the running already.
                v = dominant_vector(whitened, _POWER_STEPS)
                if log_f - f.size * math.log(float(v @ (whitened @ v))) <= best[0]:
                    continue
            top = largest_eigenvalue(whitened)
            log_det = log_f - f.size * math.log(top)
            if best is None or log_det > best[0]:
                best = (log_det, U, f / top, known)
    assert best is not None
    log_det, U, f, spectrum = best
    root = np.sqrt(f)
    C = scale[:, None] * U * root
    log_det += 2.0 * float(np.log(scale).sum())
    return Start(C @ C.T, log_det, None if spectrum is None else Basis(C, (U / scale[:, None] / root).T, spectrum * f))


def powers_in_stacks(B: Matrix, P: Matrix) -> tuple[Matrix, Vector]:
    """The best of the six for 𝒬(M) = P∘M, all at once: more operations in fewer calls; with its log det.

    For one problem, or for the stack of B and P.  Arrays have the shape (…, 2, 3, d, d).
    """
    d, alone = B.shape[-1], B.ndim == 2
    B, scale = unit_diagonal(B)
    # Eigenvalues one by one: numpy's functions for stacks take 4 to 10 µs more of about 100 up to d = 14.
    found = zip(*(eigh(M) for M in (B, P * B)), strict=True)
    w, U = (np.array(parts).swapaxes(0, B.ndim - 2) for parts in found)
    w = np.maximum(w, _EIGENVALUE_FLOOR * w[..., -1:])
    half = w[..., None, :] ** _HALF_EXPONENTS  # of the eigenvalues of W
    root = U[..., None, :, :] * half[..., None, :]
    inverse_root = U[..., None, :, :] / half[..., None, :]
    W = root @ transposed(root)
    B, P = B[..., None, None, :, :], P[..., None, None, :, :]
    whitened = transposed(inverse_root) @ (P * (W @ B @ W)) @ inverse_root
    negative = -whitened
    rows = [[smallest_eigenvalue(M) for M in row] for row in negative] if alone else smallest_eigenvalue(negative)
    tops = -np.asarray(rows)
    logs = 2.0 * np.log(scale).sum(axis=-1)[..., None, None] - _EXPONENTS * np.log(w).sum(axis=-1)[..., None]
    log_dets = logs - d * np.log(tops)
    if alone:
        i, j = divmod(int(log_dets.argmax()), 3)
        return scaled(W[i, j] / tops[i, j], scale), log_dets[i, j]
    candidates = (*log_dets.shape[:-2], 6)
    best = log_dets.reshape(candidates).argmax(axis=-1)[..., None]
    top = np.take_along_axis(tops.reshape(candidates), best, -1)
    D = np.take_along_axis(W.reshape(*candidates, d, d), best[..., None, None], -3)[..., 0, :, :] / top[..., None]
    return scaled(D, scale), np.take_along_axis(log_dets.reshape(candidates), best, -1)[..., 0]


def boundary_start(B: Matrix, Q: PositiveMap, form: ClosedForm | None = None) -> Start:
    """The best of the powers and of a closed form."""
    best = power_start(B, Q)
    if form is not None and form.log_det > best.log_det:
        return Start(form.D, form.log_det)
    return best


def inside(model: FullModel, start: Start, fraction: float) -> Point | None:
    """The start scaled to ``fraction`` of the boundary, with the central dual Z = μF⁻¹ of ⟨Z, D⟩ = d."""
    zero = np.zeros_like(start.D)
    if start.basis is None:
        p = model.point(fraction * start.D, zero)
    else:
        C, C_inverse, lam = start.basis
        root = math.sqrt(fraction)
        p = model.assemble(
            root * C, C_inverse / root, fraction * lam, start.log_det + model.d * math.log(fraction), zero
        )
    K = None if p is None else cholesky(p.Ft)
    if p is None or K is None:
        return None
    half = triangular_inverse(K)
    inverse = half.T @ half
    return model.with_dual(p, inverse * (model.d / float(np.trace(inverse))))


def full_start(model: FullModel, fraction: float) -> Point | None:
    """The best of the powers, moved inside."""
    return inside(model, boundary_start(model.B, model.Q), fraction)


def warm_full_start(model: FullModel, warm: WarmStart) -> Point | None:
    """A solution of a nearby problem moved inside: D scaled back from the boundary, Z mixed with the central dual.

    The factor of D is chosen from the constraint of *this* problem, so D may come from another sketch or another B.
    """
    if not _fits(warm, model.d):
        return None
    D, Z = sym(warm.X), sym(warm.duals[0][0])
    p = model.point(D, Z)
    if p is None:
        return None
    t = 1.0 / (1.0 - smallest_eigenvalue(p.Ft))
    inside = model.point((_WARM_FRACTION * t) * D, Z)
    if inside is None or cholesky(inside.Ft) is None:
        return None
    return _mixed(model, inside)


def _mixed(model: FullModel, p: Point) -> Point | None:
    """The point with Z̃ replaced by (1 − ω) Z̃ + ω μ F̃⁻¹, both normalised to ⟨Z, 𝒬(DBD)⟩ = d."""
    d = p.d
    inverse = sym(np.linalg.inv(p.Ft))
    w, U = eigh(p.Zt)
    Zt = sym((U * np.maximum(w, 0.0)) @ U.T)
    central = inverse * (d / float(np.trace(inverse) - d))
    energy = float(np.vdot(Zt, np.eye(d) - p.Ft))
    if not energy > 0.0:
        return None
    mixed = (1.0 - _WARM_MIX) * (d / energy) * Zt + _WARM_MIX * central
    return model.with_dual(p, mixed)


def warm_block_start(model: BlockModel, warm: WarmStart) -> BlockPoint | None:
    """The same for block-diagonal D: D scaled inside, Z mixed with μ F⁻¹."""
    if not _fits(warm, model.d):
        return None
    D, Z = sym(model.mask * warm.X), sym(warm.duals[0][0])
    t = largest_multiple(model, D)
    p = None if t is None else model.point((_WARM_FRACTION * t) * D, Z)
    if p is None or cholesky(p.Ft) is None:
        return None
    w, U = eigh(p.Zt)
    Zt = (U * np.maximum(w, 0.0)) @ U.T
    mu = max(float(np.vdot(Zt, p.Ft)) / model.d, 1e-3)
    mixed = (1.0 - _WARM_MIX) * Zt + _WARM_MIX * mu * sym(np.linalg.inv(p.Ft))
    return model.point(p.D, sym(p.C_inverse.T @ mixed @ p.C_inverse))


def _fits(warm: WarmStart, d: int) -> bool:
    """Whether a warm start has the shape of a problem with one constraint of size d."""
    return warm.X.shape == (d, d) and len(warm.duals) == 1 and warm.duals[0].shape == (1, d, d)
