"""A small neural network with an *estimated* smoothness matrix.

No finite L makes a network L-smooth on all of ℝᵈ, so the matrix here is an estimate on the region that a run visits,
and ``smoothness_is_estimate`` says so: a rate check on it tests the estimate as much as the theorem.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import expit

from stepsize_opt.inputs import positive_number, whole_number
from stepsize_opt.problems.data import Dataset
from stepsize_solvers.programs import Matrix, Vector, block_slices


@dataclass(frozen=True, eq=False)
class TwoLayerNetwork:
    """f(x) = (1/m) Σᵢ log(1 + exp(−bᵢ vᵀ tanh(W aᵢ))) + (λ/2)‖x‖², x = (W, v): W is h×p row by row, v has h entries.

    The layers (sizes hp and h) are those of the paper's layer-wise methods.  L is built from Hessians H_t at sampled
    points by M ← M + (H_t − M)₊, so M ⪰ H_t for every sample, then multiplied by ``margin``; block-diagonal by layers
    when ``by_layer`` (a further approximation, as in the paper's layer-wise setting).
    """

    data: Dataset
    hidden: int
    reg: float = 1e-2
    radius: float = 1.0
    samples: int = 8
    margin: float = 2.0
    by_layer: bool = False
    seed: int = 0
    _A: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole_number("hidden", self.hidden)
        whole_number("samples", self.samples)
        for name in ("reg", "radius", "margin"):
            positive_number(name, getattr(self, name))
        A = self.data.A
        object.__setattr__(self, "_A", np.asarray(A.toarray() if hasattr(A, "toarray") else A, dtype=float))

    @property
    def sizes(self) -> tuple[int, int]:
        return self.hidden * self.data.d, self.hidden

    @property
    def d(self) -> int:
        return sum(self.sizes)

    @property
    def lower_bound(self) -> float:
        return 0.0

    @property
    def smoothness_is_estimate(self) -> bool:
        return True

    def start(self) -> Vector:
        """A start away from the saddle at 0: small random weights from ``seed``."""
        draw = np.random.default_rng(self.seed).standard_normal(self.d)
        return np.asarray(self.radius * 0.5 * draw / np.sqrt(self.data.d))

    def _forward(self, X: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """Hidden activations (s, m, h), output weights (s, h) and signed outputs −b·out (s, m)."""
        first, last = block_slices(self.sizes)
        W = X[:, first].reshape(len(X), self.hidden, self.data.d)
        hidden = np.tanh(np.einsum("mp,shp->smh", self._A, W, optimize=True))
        v = X[:, last]
        return hidden, v, -self.data.b * np.einsum("smh,sh->sm", hidden, v)

    def value(self, X: Matrix) -> Vector:
        signed = self._forward(X)[2]
        return np.asarray(np.logaddexp(0.0, signed).mean(axis=1) + 0.5 * self.reg * np.sum(X**2, axis=1))

    def gradient(self, X: Matrix) -> Matrix:
        hidden, v, signed = self._forward(X)
        outer = -self.data.b * expit(signed) / self.data.m
        to_last = np.einsum("sm,smh->sh", outer, hidden)
        inner = outer[:, :, None] * v[:, None, :] * (1.0 - hidden**2)
        to_first = np.einsum("smh,mp->shp", inner, self._A, optimize=True).reshape(len(X), -1)
        return np.hstack([to_first, to_last]) + self.reg * X

    def hessian(self, x: Vector) -> Matrix:
        """∇²f(x) by central differences of the gradient, d×d."""
        # ε^{1/3} balances the cancellation ε/h against the truncation h² of a central difference.
        step = np.cbrt(np.finfo(float).eps) * max(1.0, float(np.max(np.abs(x))))
        rows = np.array(
            [(self.gradient((x + e)[None]) - self.gradient((x - e)[None]))[0] for e in step * np.eye(self.d)]
        )
        rows /= 2.0 * step
        return np.asarray(0.5 * (rows + rows.T))

    def smoothness(self) -> Matrix:
        """The estimate described in the class, from ``samples`` points around the start; deterministic by ``seed``."""
        rng = np.random.default_rng(self.seed)
        start = self.start()
        M = self.reg * np.eye(self.d)
        for _ in range(self.samples):
            H = self.hessian(start + self.radius * rng.standard_normal(self.d) / np.sqrt(self.data.d))
            if self.by_layer:
                kept = np.zeros_like(H)
                for part in block_slices(self.sizes):
                    kept[part, part] = H[part, part]
                # Dropping the couplings of two blocks can halve a form: xᵀHx ≤ 2 Σ xᵢᵀHᵢᵢxᵢ for H ⪰ 0.
                H = 2.0 * kept
            w, V = np.linalg.eigh(H - M)
            M = M + (V * np.maximum(w, 0.0)) @ V.T
        return np.asarray(self.margin * 0.5 * (M + M.T))
