"""Multipliers of an answer for its certificate file, in plain floats: whatever they are, ``verify`` judges them.

Where H is judged, the proof needs Σ(RD̂B + BD̂R) ⪰ 2Y on the structure for the images R of the multipliers and a
reference D̂ (the head of ``verify``).  ``Stationary`` solves for equality.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh, eigvalsh
from scipy.sparse.linalg import LinearOperator, cg

from stepsize_opt.proofs.duals import root
from stepsize_solvers.programs import Indices, Matrix, Pattern, Vector

_EPSILON = float(np.finfo(float).eps)
_MOST_STEPS = 500  # of conjugate gradients
# A multiplier Y of a t may be singular, where rounding leaves no proof: such a share of H⁻¹ is added.
_SHARE = 1e-10


def limit_multipliers(L: Matrix, M: Matrix, k: float, momentum: bool) -> dict[str, Matrix]:
    """Return multipliers of a limit with an M: the budget k proves it, or the top eigenvector of LM⁻¹."""
    values, vectors = eigh(L, M)
    inverse = inverse_of(M)
    values = np.where(values > 0.0, values, _EPSILON * values[-1])  # rounding may leave a small one below zero
    roots = np.sqrt(values) if momentum else values
    if roots[-1] * k > roots.sum():
        return {"factor": vectors[:, -1:], "inverse": inverse}
    if not momentum:
        return {"inverse": inverse}
    mean = (vectors / roots) @ vectors.T  # C = L⁻¹ # M⁻¹, with CLC = M⁻¹ up to rounding
    excess = eigvalsh(M @ mean @ L @ mean @ M, M)[-1] - 1.0
    return {"reference": _symmetric(mean) * (1.0 - abs(excess) - 64.0 * len(L) * _EPSILON)}


@dataclass(frozen=True, eq=False)
class Answer:
    """A stepsize D of T(D) = 𝒬(DBD) with the blocks of its multiplier and their indices, all in plain floats.

    Q: 𝒬; floor: M⁻¹, or 𝒫(M⁻¹) with momentum, for the goals with an M.
    """

    D: Matrix
    B: Matrix
    Q: Callable[[Matrix], Matrix]
    pattern: Pattern
    blocks: Sequence[tuple[Indices, Matrix | Vector]]
    floor: Matrix | None = None

    def _alone(self) -> list[tuple[Any, Matrix]]:
        """Return the indices of each component, and its multiplier with zeros elsewhere."""
        found = []
        for indices, Z in self.blocks:
            parts = [([i], x) for i, x in zip(indices, Z, strict=True)] if Z.ndim == 1 else [(indices, Z)]
            for place, part in parts:
                inside = np.ix_(place, place)
                alone = np.zeros_like(self.D)
                alone[inside] = part
                found.append((inside, alone))
        return found

    def of_condition(self) -> Matrix:
        """Return a factor of Z with the best multiple of each component, its size/⟨𝒬(Z), DBD⟩."""
        square, out = self.D @ self.B @ self.D, np.zeros_like(self.D)
        for inside, Z in self._alone():
            energy = float(np.vdot(self.Q(Z), square))
            out += Z * (len(inside[0]) / energy if energy > 0.0 else 0.0)
        return _factor_of(out)

    def of_metric(self) -> tuple[Matrix, Stationary]:
        """Return a factor of the Y that judges H, and the reference for it."""
        V = _factor_of(self._judge())
        Y = V @ V.T
        return V, Stationary(self.Q(Y), self.B, Y, self.pattern)

    def _judge(self) -> Matrix:
        """Return H⁻¹, or for t the multiplier of the component with the least t."""
        H = 2.0 * self.D - self.Q(self.D @ self.B @ self.D)
        inverse = inverse_of(H)
        if self.floor is None:
            return inverse
        energies = [(float(np.vdot(Y, H)), float(np.vdot(Y, self.floor)), inside, Y) for inside, Y in self._alone()]
        energy, _, inside, Y = min((one for one in energies if one[1] > 0.0), key=lambda one: one[0] / one[1])
        Y[inside] += _SHARE * energy / len(inside[0]) * inverse[inside]
        return Y


class Stationary:
    """D̂ of a pattern with RD̂B + BD̂R = 2Y as far as the pattern sees it, up to rounding."""

    def __init__(self, R: Matrix, B: Matrix, Y: Matrix, pattern: Pattern) -> None:
        self.R, self.B, self.Y, self.pattern = R, B, Y, pattern
        labels = pattern.labels
        masks = [(labels[:, None] == i) & (labels == i) for i in range(len(pattern.sizes))]
        self.directions = [] if pattern.W is None else [np.where(mask, pattern.W, 0.0) for mask in masks]
        self.D = self.solve(2.0 * Y)

    def solve(self, F: Matrix) -> Matrix:
        """Return X of the pattern with RXB + BXR = F as far as the pattern sees it."""
        return self._multiples(F) if self.directions else self._blocks(F)

    def _image(self, X: Matrix) -> Matrix:
        half = self.R @ X @ self.B
        return np.asarray(half + half.T)

    def _multiples(self, F: Matrix) -> Matrix:
        images = [self._image(W) for W in self.directions]
        system = np.array([[np.vdot(image, W) for W in self.directions] for image in images])
        scale = 1.0 / np.sqrt(np.maximum(system.diagonal(), np.finfo(float).tiny))
        right = np.array([np.vdot(F, W) for W in self.directions])
        gamma = scale * np.linalg.lstsq(scale[:, None] * system * scale, scale * right)[0]
        return np.asarray(sum(x * W for x, W in zip(gamma, self.directions, strict=True)))

    def _blocks(self, F: Matrix) -> Matrix:
        """By conjugate gradients; for a full D the first guess is the solution."""
        d = len(F)
        values, C = eigh(self.R, self.B)
        weights = values[:, None] + values
        weights = np.maximum(weights, _EPSILON * weights.max())

        def blocks(x: Any) -> Matrix:
            return self.pattern.blocks(np.reshape(x, (d, d)))

        def guess(x: Any) -> Any:
            return np.ravel(blocks(C @ ((C.T @ blocks(x) @ C) / weights) @ C.T))

        def image(x: Any) -> Any:
            return np.ravel(blocks(self._image(blocks(x))))

        size: Any = (d * d, d * d)
        A, inverse = LinearOperator(size, image), LinearOperator(size, guess)
        return _symmetric(blocks(cg(A, np.ravel(blocks(F)), rtol=1e-13, maxiter=_MOST_STEPS, M=inverse)[0]))

    def least(self, G: Matrix, D: Matrix) -> float:
        """Return the largest c with G ⪰ 2cY as far as the pattern sees it; D counts as a direction of its own."""
        if not self.directions:
            return min(_least_ratio(G[s, s], 2.0 * self.Y[s, s]) for s in self.pattern.slices)
        along = [W for part in self.directions for W in (part, np.where(part != 0.0, D, 0.0))]
        return min(float(np.vdot(G, W) / np.vdot(2.0 * self.Y, W)) for W in along if np.vdot(self.Y, W) > 0.0)


def _least_ratio(A: Matrix, B: Matrix) -> float:
    """Return the largest c with A ⪰ cB, for B ⪰ 0, whose zero rows do not count."""
    rows = np.flatnonzero(B.diagonal())
    inside = np.ix_(rows, rows)
    return float(eigvalsh(A[inside], B[inside])[0]) if rows.size else 0.0


def _factor_of(Z: Matrix) -> Matrix:
    """Return V with VVᵀ near the positive semidefinite part of Z; raises ValueError where there is none."""
    V = root(_symmetric(Z))
    if V is None:
        msg = "the multiplier has no positive semidefinite part"
        raise ValueError(msg)
    return V


def _symmetric(A: Matrix) -> Matrix:
    return np.asarray(0.5 * (A + A.T))


def inverse_of(A: Matrix) -> Matrix:
    """Return the inverse of a symmetric matrix, symmetrised."""
    return _symmetric(np.asarray(np.linalg.inv(A), dtype=np.float64))
