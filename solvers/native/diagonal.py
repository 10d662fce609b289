"""Diagonal stepsizes under a Hadamard map: d unknowns and direct Newton steps.

For D = Diag(x) and 𝒬(M) = P∘M the constraint is Diag(x) M Diag(x) ⪯ Diag(x) with M = P∘B, that is N ⪯ I for
N = Diag(x)^½ M Diag(x)^½.  The barrier problem

    maximise Σ log xⱼ + ν log det(I − N)

has, for relative changes x(1 + h) and with V = (I − N)⁻¹ − I, the gradient 1 − ν diag(V) and the Hessian
−(I + ν V∘V).  (The concave form behind it is Diag(x) ⪯ M⁻¹, whose barrier is the same up to a constant.)
W = Diag(x)^{-½} V Diag(x)^{-½} ⪰ 0 is a dual for every x; with it the certificate's bound at the reference D reads

    d log(Σ(Vⱼⱼ − Nⱼⱼ)/d) − Σ log(Vⱼⱼ − 2Nⱼⱼ) + Σ log xⱼ,

and x/λmax(N) is feasible.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from solvers.maps import Matrix, Vector
from solvers.native.linalg import (
    SIZE_FOR_LANCZOS,
    add_to_diagonal,
    cholesky,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
)
from solvers.outcome import Status

_MAX_ITERATIONS = 200
# Reduction of ν after a step close to the central path; a decrement below this counts as close.
_SHRINK = 0.08
_CLOSE = 0.5
# The bound exceeds the optimum by about 2ν at a central point; the tolerance is met with this much room.
_MARGIN = 0.5


@dataclass(frozen=True, eq=False)
class DiagonalAnswer:
    """Feasible x, dual Z, certified gap, and how they were found."""

    status: Status
    x: Vector
    Z: Matrix
    gap: float
    steps: int
    factorisations: int
    history: list[tuple[float, float]]


def _scaled(M: Matrix, x: Vector) -> Matrix:
    root = np.sqrt(x)
    return M * np.multiply.outer(root, root)


def _factor(N: Matrix) -> Matrix | None:
    S = -N
    add_to_diagonal(S, 1.0)
    return cholesky(S)


def _inverse_from_factor(K: Matrix) -> Matrix:
    lower, _ = lapack.dpotri(K, lower=1)
    full = np.tril(lower)
    full += np.tril(lower, -1).T
    return np.asarray(full)


def solve_diagonal(
    M: Matrix,
    tol: float,
    max_iters: int,
    deadline: float,
    log: Callable[[str], None] | None,
    start: Vector | None = None,
) -> DiagonalAnswer:
    """Follow the central path in ν until the certified gap is within ``tol``."""
    d = M.shape[0]
    x = 1.0 / np.diagonal(M) if start is None else np.array(start)
    # Half of the largest feasible multiple is well inside; a warm start keeps closer to its solution.
    x *= (0.5 if start is None else 0.95) / -smallest_eigenvalue(-_scaled(M, x))
    nu = 1.0 if start is None else 0.05
    history: list[tuple[float, float]] = []
    best: tuple[float, Vector, Vector, Matrix] | None = None
    lower, upper = -np.inf, np.inf
    factorisations = 0
    status = Status.USER_LIMIT
    steps = 0
    if log is not None:
        log(f"{'iter':>4} {'log det D / d':>16} {'gap':>9} {'nu':>9} {'decrement':>9} {'step':>6}")
    N = _scaled(M, x)
    K = _factor(N)
    length, decrement = 0.0, np.inf
    try:
        while K is not None:
            V = _inverse_from_factor(K)
            add_to_diagonal(V, -1.0)
            factorisations += 2
            v = np.diagonal(V)
            n = np.diagonal(N)
            smallest = (
                smallest_eigenvalue_from_factor(K) if d > SIZE_FOR_LANCZOS else smallest_eigenvalue(np.eye(d) - N)
            )
            scale = 1.0 / (1.0 - smallest)
            log_det = float(np.sum(np.log(x)))
            low = log_det + d * float(np.log(scale))
            high = np.inf
            if np.all(v > 2.0 * n):
                high = d * float(np.log(np.sum(v - n) / d)) - float(np.sum(np.log(v - 2.0 * n))) + log_det
            gap = (high - low) / d
            lower, upper = max(lower, low), min(upper, high)
            history.append((lower, upper))
            if best is None or gap < best[0] or not np.isfinite(best[0]):
                best = (gap, scale * x, x, V)
            if log is not None:
                log(f"{steps:4d} {low / d:16.9f} {gap:9.2e} {nu:9.2e} {decrement:9.2e} {length:6.3f}")
            if gap <= _MARGIN * tol:
                status = Status.OPTIMAL
                break
            if steps >= min(max_iters, _MAX_ITERATIONS) or time.perf_counter() > deadline:
                break
            H = nu * (V * V)
            add_to_diagonal(H, 1.0)
            KH = cholesky(H)
            factorisations += 1
            if KH is None:
                status = Status.INACCURATE
                break
            # Aim at the next ν at once when the last point was central: the tangent to the path is a free predictor.
            h = np.asarray(lapack.dpotrs(KH, 1.0 - nu * v, lower=1)[0])
            decrement = float(np.sqrt(max((1.0 - nu * v) @ h, 0.0) / nu))
            if decrement < _CLOSE:
                nu = max(_SHRINK * nu, 0.1 * tol)
                H = nu * (V * V)
                add_to_diagonal(H, 1.0)
                KH = cholesky(H)
                factorisations += 1
                if KH is None:
                    status = Status.INACCURATE
                    break
                h = np.asarray(lapack.dpotrs(KH, 1.0 - nu * v, lower=1)[0])
            length = 1.0 if float(np.min(h)) > -0.9 else 0.9 / -float(np.min(h))
            cut = False
            while True:
                trial = x * (1.0 + length * h)
                N = _scaled(M, trial)
                K = _factor(N)
                factorisations += 1
                if K is not None or length < 1e-8:
                    break
                length *= 0.6
                cut = True
            if K is not None and cut:
                # A step that had to be cut ends too close to the boundary: go back a little (the set is convex).
                length *= 0.9
                trial = x * (1.0 + length * h)
                N = _scaled(M, trial)
                K = _factor(N)
                factorisations += 1
            if K is None:
                status = Status.INACCURATE
                break
            x = trial
            steps += 1
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    if best is None:
        # Diag(M)⁻¹ scaled inside is feasible by construction; only a matrix with NaN gets here.
        return DiagonalAnswer(Status.SOLVER_ERROR, x, np.eye(d), np.inf, steps, factorisations, history)
    gap, repaired, at, V = best
    root = 1.0 / np.sqrt(at)
    Z = V * np.multiply.outer(root, root)
    Z *= d / max(float(np.sum(np.diagonal(V))), np.finfo(float).tiny)
    return DiagonalAnswer(status, repaired, Z, gap, steps, factorisations, history)
