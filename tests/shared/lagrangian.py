"""Programs written down a second time, in plain arithmetic: their inequalities, and the Lagrangian bound."""

from __future__ import annotations

import numpy as np

from stepsize_solvers.programs import Family, Matrix, Outcome, Program, Stack


def inequalities(program: Program, family: Family, X: Matrix) -> Stack:
    """F_j(X) = (c + eτ) I + aX − H_jᵀ𝒬(φ(X))H_j of a family, shape (n, r, r)."""
    tau = np.exp((np.linalg.slogdet(X)[1] - program.offset) / program.root)
    image = family.Q.apply(X if family.B is None else X @ family.B @ X)
    right = (family.c + family.e * tau) * np.eye(family.rows)
    if family.a:
        right = right + family.a * X
    return np.array([right - H.T @ image @ H for H in family.H])


def bound(program: Program, X: Matrix, duals: tuple[Stack, ...]) -> float:
    """The bound on log det of all feasible matrices that the multipliers prove, with X as the point of the tangents.

    F_j is replaced by its tangent at X, which is no smaller, and the multipliers are taken with the best factor:
    log det Y + Σ⟨Z_j, F_j(Y)⟩ ≤ log det Y − ⟨Q, Y⟩ + s ≤ −log det Q + d log(s/d) with that factor.
    """
    d, pattern = program.d, program.pattern
    inverse, tau = np.linalg.inv(X), np.exp((np.linalg.slogdet(X)[1] - program.offset) / program.root)
    Q, s = np.zeros((d, d)), 0.0
    for family, stack in zip(program.families, duals, strict=True):
        trace = float(np.einsum("nii->", stack))
        R = family.Q.adjoint(sum(H @ Z @ H.T for H, Z in zip(family.H, stack, strict=True)))
        Q -= family.a * stack.sum(axis=0) if family.a else 0.0
        Q -= family.e * trace * tau / program.root * inverse
        s += trace * (family.c + family.e * tau * (1.0 - d / program.root))
        if family.B is None:
            Q += R
        else:
            half = R @ X @ family.B
            Q += half + half.T
            s += float(np.vdot(R, X @ family.B @ X))
    if pattern.W is None:
        sign, log_det = np.linalg.slogdet(pattern.blocks(Q))
        conjugate = -log_det if sign > 0 and np.linalg.eigvalsh(pattern.blocks(Q))[0] > 0.0 else np.inf
    else:
        inner = np.array([np.vdot(Q[k, k], pattern.W[k, k]) for k in pattern.slices])
        sizes = np.array(pattern.sizes)
        if inner.min() <= 0.0:
            return np.inf
        conjugate = np.linalg.slogdet(pattern.W)[1] + float(np.sum(sizes * np.log(sizes / inner)))
    return float(conjugate + d * np.log(s / d))


def gap(program: Program, outcome: Outcome) -> float:
    """(bound − log det X)/d of the returned pair, after checking that it is feasible."""
    X = outcome.X
    assert X is not None
    for family, stack in zip(program.families, outcome.duals, strict=True):
        # D B D is evaluated with an error of up to 10⁻¹⁴ cond(D) relative to D, which the constant c does not share.
        root = np.linalg.cholesky(X) if family.a else np.eye(family.rows)
        size = 1.0 if family.a else family.c + family.e
        for F, Z in zip(inequalities(program, family, X), stack, strict=True):
            inside = np.linalg.eigvalsh(np.linalg.solve(root, np.linalg.solve(root, F).T))[0] / size
            assert inside > -1e-9 - (1e-14 * np.linalg.cond(X) if family.a else 0.0)
            assert np.linalg.eigvalsh(Z)[0] >= -1e-9 * np.abs(Z).max()
    return (bound(program, X, outcome.duals) - float(np.linalg.slogdet(X)[1])) / program.d
