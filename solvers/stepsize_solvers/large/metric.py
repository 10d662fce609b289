"""The descent metric H = 2D − 𝒬(DLD) for L = Diag(s) + UUᵀ with a thin U (d×r), 𝒬(M) = Diag(α∘diag M) + βM.

Stepsizes D = (Diag(1/a) + UBUᵀ)⁻¹ = A − AUNUᵀA with N = (B⁻¹ + T)⁻¹, T = UᵀAU, keep everything thin: with
E = I − NT and P = N(UᵀA²SU)N + EEᵀ

    diag(DLD) = a²∘(s + p − 2a∘s∘n),    n_i = u_iᵀNu_i,  p_i = u_iᵀPu_i,
    H = Diag(δ) + W K Wᵀ,    δ = 2a − α∘diag(DLD) − β a²∘s,    W = [A²SU  AU],    K = [0  βN; βN  −2N − βP].

So log det H = Σ log δ_i + log det(I + KG), G = WᵀDiag(δ)⁻¹W, takes numbers u_iᵀQu_i for each row and matrices
UᵀDiag(w)U, and its gradient, by the chain rule backwards, as many of both again.  Where d is large the second part is a
mere barrier: its 2r eigenvalues count little beside d logarithms, and the Hessian is as ill-conditioned as d/r is
large.  So it gets a factor μ that falls from about d/r on, and the quasi-Newton method of limited memory (Nocedal 1980)
climbs from maximum to maximum.  log det H is concave in D, not in (a, B), and no D of this form need be the best of
all: the certificate says how good it is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepsize_solvers.numerics import Bounds, Limits, Progress, eigh, sym
from stepsize_solvers.programs import Matrix, Status, Vector

MOST_METRIC_STEPS = 500
_MEMORY = 20  # pairs of steps and changes of the gradient that stand for the Hessian
_PATIENCE = 10**9  # no point has an upper bound
_ROWS_AT_ONCE = 2**15
# The weight of μ log det(I + KG) among the d terms: the first, where all terms count alike, how it falls, and the last,
# which is what is lost at most.  D of this form lose ten times as much against the best D.
_FIRST_WEIGHT = 0.3
_SHRINK = 0.3
_LAST_WEIGHT = 1e-3
_SHARE = 0.01  # of the weight: how far from the maximum of one μ to go on with the next
_SHORTEST = 1e-8
_MOST_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class MetricModel:
    """s, U of L and α, β of 𝒬."""

    s: Vector
    U: Matrix
    alpha: Vector
    beta: float

    def _parts(self) -> Iterator[slice]:
        for start in range(0, len(self.s), _ROWS_AT_ONCE):
            yield slice(start, start + _ROWS_AT_ONCE)

    def grams(self, weights: Sequence[Vector]) -> list[Matrix]:
        """UᵀDiag(w)U for each w."""
        r = self.U.shape[1]
        out = [np.zeros((r, r)) for _ in weights]
        for part in self._parts():
            rows = self.U[part]
            for G, w in zip(out, weights, strict=True):
                G += (rows * w[part][:, None]).T @ rows
        return [sym(G) for G in out]

    def forms(self, matrices: Sequence[Matrix]) -> list[Vector]:
        """u_iᵀQu_i of all rows for each Q."""
        out = [np.empty_like(self.s) for _ in matrices]
        for part in self._parts():
            rows = self.U[part]
            for values, Q in zip(out, matrices, strict=True):
                values[part] = np.einsum("ij,ij->i", rows @ Q, rows)
        return out

    def diagonal(self) -> Vector:
        """The diagonal of L."""
        return np.asarray(self.s + np.einsum("ij,ij->i", self.U, self.U))


@dataclass(frozen=True, eq=False)
class MetricPoint:
    """log det H = ``value`` with the parts of H, and Σ log δ + μ log det(I + KG) with its gradients in log a and J."""

    model: MetricModel
    a: Vector
    N: Matrix
    delta: Vector
    G: Matrix
    K: Matrix
    value: float
    objective: float
    by_log_a: Vector
    by_J: Matrix

    @property
    def V(self) -> Matrix:
        """D = Diag(a) − VVᵀ, shape (d, r)."""
        values, vectors = eigh(self.N)
        return np.asarray((self.a[:, None] * self.model.U) @ (vectors * np.sqrt(np.maximum(values, 0.0))))

    @property
    def Z(self) -> Matrix:
        """H⁻¹ = Diag(1/δ) + ZZᵀ but for a small part, shape (d, r); ZᵀZ is nearly diagonal."""
        r = len(self.N)
        scale = 1.0 / np.sqrt(np.maximum(self.G.diagonal(), 1e-300))
        G, K = self.G * scale[:, None] * scale, self.K / scale[:, None] / scale
        values, vectors = eigh(sym(G))
        kept = values > 1e-13 * values[-1]  # the columns of W may depend on each other
        root = vectors[:, kept] * np.sqrt(values[kept])
        # With Diag(δ)^{−½}W = O·rootᵀ, OᵀO = I: Diag(δ)^½H⁻¹Diag(δ)^½ = I + O((I + rootᵀ K root)⁻¹ − I)Oᵀ.
        inner, rotation = eigh(sym(root.T @ K @ root))
        gain = 1.0 / (1.0 + inner) - 1.0
        most = np.argsort(gain)[-r:]
        most = most[gain[most] > 0.0]
        C = scale[:, None] * ((vectors[:, kept] / np.sqrt(values[kept])) @ rotation[:, most] * np.sqrt(gain[most]))
        a, s = self.a[:, None], self.model.s[:, None]
        return np.asarray((self.model.U @ (C[r:]) + a * s * (self.model.U @ C[:r])) * (a / self.delta[:, None]))


def metric_point(model: MetricModel, a: Vector, J: Matrix, mu: float = 1.0) -> MetricPoint | None:
    """D = (Diag(1/a) + UJJᵀUᵀ)⁻¹; None where H is not positive definite."""
    s, alpha, beta, r = model.s, model.alpha, model.beta, len(J)
    identity = np.eye(r)
    a2s = a * a * s
    T, Ts = model.grams([a, a2s])
    N = sym(J @ np.linalg.solve(identity + sym(J.T @ T @ J), J.T))
    E = identity - N @ T
    P = sym(N @ Ts @ N + E @ E.T)
    n, p = model.forms([N, P])
    energy = a * a * (s + p) - 2.0 * a * a2s * n
    delta = 2.0 * a - alpha * energy - beta * a2s
    if not (np.isfinite(delta).all() and delta.min() > 0.0):
        return None
    weights = [a2s * a2s / delta, a * a2s / delta, a * a / delta]
    XX, XV, VV = model.grams(weights)
    G = np.block([[XX, XV], [XV, VV]])
    K = np.block([[np.zeros((r, r)), beta * N], [beta * N, -2.0 * N - beta * P]])
    values, vectors = eigh(G)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    inner, rotation = eigh(sym(np.eye(2 * r) + root.T @ K @ root))
    if not inner[0] > 0.0:
        return None
    rows, rest = float(np.log(delta).sum()), float(np.log(inner).sum())
    # Backwards: the derivatives of log det(I + KG) are Ψ = G(I + KG)⁻¹ in K and K − KΨK in G.
    half = root @ (rotation / np.sqrt(inner))
    Psi = half @ half.T
    by_G = mu * sym(K - K @ Psi @ K)
    Psi *= mu
    by_weight = model.forms([by_G[:r, :r], 2.0 * sym(by_G[:r, r:]), by_G[r:, r:]])
    shares = [w * v for w, v in zip(weights, by_weight, strict=True)]
    by_delta = (1.0 - shares[0] - shares[1] - shares[2]) / delta
    by_energy = -alpha * by_delta
    by_N, by_P = model.grams([-2.0 * by_energy * a * a2s, by_energy * a * a])
    by_N += 2.0 * beta * sym(Psi[:r, r:]) - 2.0 * Psi[r:, r:]
    by_P -= beta * Psi[r:, r:]
    by_E = 2.0 * by_P @ E
    by_N += 2.0 * sym(by_P @ N @ Ts) - sym(by_E @ T)
    by_gram, by_second = model.forms([-sym(N @ by_E) - N @ by_N @ N, N @ by_P @ N])
    by_log_a = 4.0 * shares[0] + 3.0 * shares[1] + 2.0 * shares[2] + by_delta * 2.0 * (a - beta * a2s)
    by_log_a += by_energy * 2.0 * (energy - a * a2s * n) + a * by_gram + 2.0 * a2s * by_second
    return MetricPoint(model, a, N, delta, G, K, rows + rest, rows + mu * rest, by_log_a, 2.0 * E.T @ by_N @ E @ J)


def solve_metric(model: MetricModel, limits: Limits) -> tuple[Status, Progress[MetricPoint]]:
    """A D of the form at the top with a large log det H."""
    progress: Progress[MetricPoint] = Progress(len(model.s), limits, 0.0, _PATIENCE)
    return progress.run(lambda: _follow(model, progress)), progress


def _start(model: MetricModel) -> tuple[MetricPoint, Matrix] | None:
    """The best point of a family with two numbers c and τ, well inside of H ≻ 0, and its J.

    a = c/((α + β)∘diag L), and B = I/c but for directions where BT would exceed τ.
    """
    plain = 1.0 / ((model.alpha + model.beta) * model.diagonal())
    values, vectors = eigh(model.grams([plain])[0])
    tried: dict[tuple[int, int], tuple[MetricPoint, Matrix] | None] = {}

    def value(key: tuple[int, int]) -> float:
        if key not in tried:
            c, tau = 2.0 ** key[0], 2.0 ** key[1]
            J = vectors * np.sqrt(np.minimum(1.0, tau / np.maximum(values, 1e-300)) / c)
            point = metric_point(model, c * plain, J)
            tried[key] = None if point is None else (point, J)
        found = tried[key]
        return -math.inf if found is None else found[0].value

    best = (-1, 2)
    while value(best) == -math.inf and best[0] > -_MOST_HALVINGS:
        best = (best[0] - 1, best[1])
    while True:
        c, tau = best
        around = max(((c + 1, tau), (c - 1, tau), (c, tau + 1), (c, tau - 1)), key=value)
        if not value(around) > value(best):
            return tried[best]
        best = around


def _follow(model: MetricModel, progress: Progress[MetricPoint]) -> Status:
    """The maxima of Σ log δ + μ log det(I + KG) for falling μ, each from the one before."""
    d, r = model.U.shape
    start = _start(model)
    if start is None:
        return Status.INACCURATE
    point, J0 = start
    climb = _Climb(model, progress, point.a, J0)
    # The part with the factor μ has 2r eigenvalues: its weight among the d terms is about 2rμ/d.
    weight = _FIRST_WEIGHT
    x = np.zeros(d + r * r)
    while True:
        mu = max(1.0, weight * d / (2 * r))
        last = mu == 1.0 or weight <= _LAST_WEIGHT
        x, status = climb.to_the_top(x, mu, _SHARE * (_LAST_WEIGHT if last else weight) * d)
        if last or status is not None:
            return status or Status.OPTIMAL
        weight *= _SHRINK


@dataclass(frozen=True, eq=False)
class _Climb:
    """Limited-memory quasi-Newton steps in x = (log a/a₀, Z), J = J₀(I + Z/√d)."""

    model: MetricModel
    progress: Progress[MetricPoint]
    a0: Vector
    J0: Matrix

    def _at(self, x: Vector, mu: float) -> tuple[MetricPoint, Vector] | None:
        d, r = self.model.U.shape
        # A relative change of B moves all d terms of log det H, one of a_j a single term.
        share = 1.0 / math.sqrt(d)
        J = self.J0 + share * (self.J0 @ x[d:].reshape(r, r))
        point = metric_point(self.model, self.a0 * np.exp(x[:d]), J, mu)
        if point is None:
            return None
        return point, np.concatenate([point.by_log_a, (share * (self.J0.T @ point.by_J)).ravel()])

    def to_the_top(self, x: Vector, mu: float, least: float) -> tuple[Vector, Status | None]:
        """From x up to where the quadratic model promises no more than ``least``; the status when the solve is over."""
        memory: deque[tuple[Vector, Vector, float]] = deque(maxlen=_MEMORY)
        found = self._at(x, mu)
        while found is not None:
            point, g = found
            step = _direction(g, memory)
            gain = float(g @ step)
            details = {"mu": f"{mu:.1e}", "gain": f"{gain / len(x):.1e}"}
            status = self.progress.examine(point, Bounds(point.value, math.inf), details)
            if status is not None or gain <= 2.0 * least:
                return x, status
            # log a and Z/√d are relative changes: none by more than one at a time.
            d = len(self.a0)
            largest = max(float(np.abs(step[:d]).max()), float(np.abs(step[d:]).max()) / math.sqrt(d))
            length, found = 1.0 / max(1.0, largest), None
            while length > _SHORTEST:
                found = self._at(x + length * step, mu)
                if found is not None and found[0].objective >= point.objective + 1e-4 * length * gain:
                    break
                length, found = 0.5 * length, None
            if found is not None:
                change = g - found[1]
                curvature = length * float(step @ change)
                if curvature > 0.0:  # log det H is not concave in (a, B)
                    memory.append((length * step, change, curvature))
                x = x + length * step
                self.progress.steps += 1
        return x, None


def _direction(g: Vector, memory: Sequence[tuple[Vector, Vector, float]]) -> Vector:
    """The inverse of the negative Hessian, as the memory has it, times g."""
    out, factors = g.copy(), []
    for step, change, curvature in reversed(memory):
        factor = float(step @ out) / curvature
        factors.append(factor)
        out -= factor * change
    if memory:
        _, change, curvature = memory[-1]
        out *= curvature / float(change @ change)
    for (step, change, curvature), factor in zip(memory, reversed(factors), strict=True):
        out += (factor - float(change @ out) / curvature) * step
    return out
