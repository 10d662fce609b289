"""From the distributed conditions to programs for a solver, and from a solver's answer to a stepsize and multipliers.

*Variable.*  For a full D of det-CGD1 the variable is A = DLD, in which every condition is linear, and D = L⁻¹ # A comes
back as R⁻ᵀ (RᵀAR)^½ R⁻¹ with L = RRᵀ.  For a full D of det-CGD2 with one sketch for all clients λ_D ≤ c is linear in
M = D𝒞(L)D, namely M ⪯ cLᵢ⁻¹, and D = 𝒞(L)⁻¹ # M; D ⪯ L⁻¹ is not, so M serves while that is slack.  Otherwise the
variable is D itself.  If every sketch commutes with the pattern (diagonal D
and diagonal sketches) then 𝒞ᵢ(DLD) = D𝒞ᵢ(L)D, and det-CGD1 has the conditions of det-CGD2.

*Numbers near one.*  λ_D ≤ c enters as Hᵀ V H ⪯ I with H Hᵀ = Lᵢ/c, and λ_D ≤ κτ as Hᵀ V H ⪯ τI with H Hᵀ = Lᵢ/κ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, eigh, solve_triangular

from stepsize_opt.proofs import PRECISIONS, Bound, Conditions, Multipliers, metric_bound, tangent_bound
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Family,
    Indices,
    Matrix,
    Outcome,
    Pattern,
    Program,
    Stack,
)

# Eigenvalues of Lᵢ below this fraction of the largest are left to the repair: they move λ_D by less than it.
_RANK_CUT = 1e-13


def _factor(L: Matrix) -> tuple[Matrix, Matrix]:
    """Return H = V Diag(√w) and V Diag(1/√w) over the eigenvalues w of L that count."""
    w, V = eigh(L)
    keep = w > _RANK_CUT * w[-1]
    root = np.sqrt(w[keep])
    return V[:, keep] * root, V[:, keep] / root


def _padded(parts: list[Matrix]) -> Stack:
    width = max(part.shape[1] for part in parts)
    out = np.zeros((len(parts), parts[0].shape[0], width))
    for i, part in enumerate(parts):
        out[i, :, : part.shape[1]] = part
    return out


@dataclass(frozen=True, eq=False)
class ClientPrograms:
    """The programs of the conditions, and how their answers are read.

    factors, inverses: H and its pseudo-inverse's transpose for each group, and for L last.
    """

    conditions: Conditions
    factors: tuple[Stack, ...]
    inverses: tuple[Stack, ...]

    @staticmethod
    def of(conditions: Conditions) -> ClientPrograms:
        """Factor all matrices once."""
        factors, inverses = [], []
        for matrices in [*(group.matrices for group in conditions.groups), conditions.L.hi[None]]:
            found = [_factor(L) for L in matrices]
            factors.append(_padded([H for H, _ in found]))
            inverses.append(_padded([inverse for _, inverse in found]))
        return ClientPrograms(conditions, tuple(factors), tuple(inverses))

    @property
    def linear(self) -> bool:
        """Whether the variable is A = DLD, in which (12) is linear."""
        return self.conditions.sketch_outside and self.conditions.pattern.is_full

    def program(self, *, with_inverse: bool, c: float | None = None, kappa: float | None = None) -> Program:
        """Return the program: maximise log det D subject to λ_D ≤ c or λ_D ≤ κτ (scaled), and D ⪯ L⁻¹ if asked for."""
        d = self.conditions.d
        squared = self.linear or (self._has_common_variance and not with_inverse)
        bound = c if c is not None else kappa
        families = []
        if bound is not None and math.isfinite(bound):
            for group, H in zip(self.conditions.groups, self.factors[:-1], strict=True):
                Q, B = group.map.centred, None
                if not self.linear:
                    B = self.conditions.L.hi
                    if not self.conditions.sketch_outside:
                        Q = DiagonalPlusScaled.identity(d)
                        B = None if squared else self.conditions.centred_L(group).value
                size = 1.0
                split = Q.diagonal_plus_scaled
                if split is not None and not np.any(split.alpha):
                    # M ↦ βM: as the identity with scaled factors the program has one map less.
                    Q, size = DiagonalPlusScaled.identity(d), split.beta
                scaled = H * math.sqrt(size / bound)
                families.append(Family(Q, B, scaled, c=float(c is not None), e=float(c is None)))
        if with_inverse:
            families.append(Family(DiagonalPlusScaled.identity(d), None, self.factors[-1], c=1.0))
        if squared:
            log_det = 2.0 * float(np.sum(np.log(np.diagonal(cholesky(self._middle, lower=True)))))
            return Program(tuple(families), Pattern.full(d), 2.0 * d, log_det)
        return Program(tuple(families), self.conditions.pattern)

    @property
    def _has_common_variance(self) -> bool:
        """Whether all clients of det-CGD2 have the same D𝒞(L)D and D is full: then that is a variable too."""
        conditions = self.conditions
        return conditions.pattern.is_full and not conditions.sketch_outside and len(conditions.groups) == 1

    @property
    def _middle(self) -> Matrix:
        """The S of a variable DSD: L, or 𝒞(L)."""
        return self.conditions.L.hi if self.linear else self.conditions.centred_L(self.conditions.groups[0]).value

    def is_squared(self, program: Program) -> bool:
        """Return whether the variable of a program is DSD, whose determinant is that of D squared, up to a factor."""
        return program.root > self.conditions.d

    def stepsize(self, X: Matrix, program: Program) -> Matrix:
        """Return D from the variable: S⁻¹ # X for X = DSD, or D itself."""
        if not self.is_squared(program):
            return X
        R = cholesky(self._middle, lower=True)
        try:
            # RᵀXR = GGᵀ: the singular values of G are the roots wanted, and small ones keep twice as many digits as the
            # eigenvalues of GGᵀ.
            V, roots, _ = np.linalg.svd(R.T @ cholesky(X, lower=True))
        except np.linalg.LinAlgError:  # stopped early, or outside the cone by its tolerance
            w, V = eigh(R.T @ (0.5 * (X + X.T)) @ R)
            roots = np.sqrt(np.maximum(w, _RANK_CUT * w[-1]))
        half = solve_triangular(R.T, V, lower=False)
        return np.asarray((half * roots) @ half.T)

    def multipliers(self, outcome: Outcome, program: Program, scale: float) -> Multipliers:
        """Return the multipliers of the outcome; ``scale`` is the c or κ that divided the factors.

        The multiplier of Hᵀ𝒬(φ(X))H ⪯ scale·I is Z/scale, and H Z Hᵀ = L U Uᵀ L for U = L⁺ H Z^½, that is the inverse
        factor times Z^½.
        """
        with_inverse = program.families[-1].factors is self.factors[-1]
        has_clients = len(program.families) > int(with_inverse)
        clients = []
        for i, factor in enumerate(self.inverses[:-1]):
            if has_clients:
                clients.append(factor @ _roots(outcome.duals[i]) / math.sqrt(scale))
            else:
                clients.append(np.zeros((len(factor), self.conditions.d, 1)))
        inverse = (self.inverses[-1] @ _roots(outcome.duals[-1]))[0] if with_inverse else None
        return Multipliers(tuple(clients), inverse)

    def bounds(self, multipliers: Multipliers, reference: Matrix, rows: Indices | None = None) -> list[Bound]:
        """Return what the multipliers prove with the reference D̂, and in the given rows of D alone."""
        forms = [None] if rows is None else [None, rows]
        if self.linear:
            found = [metric_bound(self.conditions, multipliers, precision) for precision in PRECISIONS]
        else:
            found = [
                tangent_bound(self.conditions, multipliers, reference, form, precision)
                for form in forms
                for precision in PRECISIONS
            ]
        return [bound for bound in found if bound is not None]


def _roots(Z: Stack) -> Stack:
    """Return a square root R with R Rᵀ = Z of the positive part of each Z."""
    w, V = np.linalg.eigh(Z)
    return np.asarray(V * np.sqrt(np.maximum(w, 0.0))[:, None, :])


def noisy_coordinates(conditions: Conditions) -> Indices:
    """Return the coordinates of which the rows of D decide λ_D: for sR in their place, λ_D has the factor s².

    For (12′) D enters as D_R· 𝒞(L) D_·R, where R are the rows that clients have or, the other way round, the columns
    that sketches touch; the smaller set serves.  A pattern γᵢWᵢ moves whole blocks only.
    """
    sets = [[conditions.noisy(group) for group in conditions.groups]]
    if not conditions.sketch_outside:
        sets.append([group.map.touched for group in conditions.groups])
    rows = min((np.unique(np.concatenate(parts)) for parts in sets), key=len)
    if conditions.pattern.W is not None:
        rows = np.flatnonzero(np.isin(conditions.pattern.labels, conditions.pattern.labels[rows]))
    return rows


def homogeneous_program_is_bounded(conditions: Conditions) -> bool:
    """Return whether λ_D ≤ 1 alone bounds log det D, safely away from the case that it does not.

    ⟨Lᵢ, 𝒞ᵢ(A)⟩ ≤ d for all i bounds A when Σ 𝒞ᵢ*(Lᵢ) ≻ 0; for D𝒞ᵢ(L)D it takes Lᵢ ≻ 0 and 𝒞ᵢ(L) ≻ 0 in sum.
    """
    if not conditions.groups:
        return False
    d = conditions.d
    if conditions.sketch_outside:
        tests = [sum((g.map.centred.adjoint(g.matrices.sum(axis=0)) for g in conditions.groups), np.zeros((d, d)))]
    else:
        tests = [
            sum((g.matrices.sum(axis=0) for g in conditions.groups), np.zeros((d, d))),
            sum((conditions.centred_L(g).value for g in conditions.groups), np.zeros((d, d))),
        ]
    for M in tests:
        w = np.linalg.eigvalsh(0.5 * (M + M.T))
        # Below this the program has a solution of size 10⁹ or none; the program with D ⪯ L⁻¹ always has one.
        if w[0] <= 1e-9 * w[-1]:
            return False
    return True
