"""The methods that people tune, as baselines: nothing is proved or claimed of them here.

Each function yields the points of a method, round after round without end: one row for each run, which has a stepsize
of its own.  ``trace`` follows them to a level of f − f*.

*Floats* are those that one client sends: values count 1 and places ½ (an index takes half the bits of a float64).

*Error feedback.*  EF21 (Richtárik, Sokolov, Fatkhullin 2021) sends the largest entries of the difference to what the
server remembers.  PowerSGD (Vogels et al.
2019) follows PyTorch's hook: error feedback, warm start of Q, orthonormal P; P and Q are means over the clients,
so its points depend on the mean gradient only.  The hook sends a vector uncompressed; here a vector of size d is a
nearly square matrix, ⌈√d⌉ rows, filled up with zeros.

*Second order.*  L-BFGS in the metric of L runs in u with x = L^{-½}u.  GIANT (Wang et al. 2018) averages the clients'
Newton directions for the mean gradient; the clients evaluate f at 8 lengths, and the one with the least f is taken.

*Local steps.*  SCAFFOLD (Karimireddy et al. 2020) sends a model and a control variate in each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import minimize
from scipy.special import expit

from stepsize_opt.problems import LogisticRegression
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.runs import first_below

# Points (s, d) → values (s,), gradients (s, d), or gradients of the clients (s, n, d).
Evaluation = Callable[[Matrix], Any]
PLACE = 0.5
GIANT_LENGTHS: Vector = np.exp2(-np.arange(8.0))


@dataclass(frozen=True, eq=False)
class Trace:
    """f − f* after each round, the start included.

    floats: sent by one client so far, shape (rounds + 1,); excess: shape (rounds + 1, stepsizes), median of the seeds.
    """

    floats: Vector
    excess: Matrix

    def best(self, level: float) -> int:
        """Return which stepsize reaches the level first; where none does, the one with the least f at the end."""
        until = [floats_until(self.floats, column, level) for column in self.excess.T]
        last = np.nan_to_num(self.excess[-1], nan=math.inf)
        return int(np.lexsort((last, until))[0])


def floats_until(floats: Vector, excess: Vector, level: float) -> float:
    """Return the floats sent until f − f* ≤ level for the first time; infinite where it never is."""
    reached = first_below(excess, level)
    return math.inf if reached is None else float(floats[reached - 1])


def trace(
    points: Iterable[Matrix],
    excess_of: Evaluation,
    start: Vector,
    *,
    floats: float,
    budget: float,
    level: float,
    seeds: int = 1,
) -> Trace:
    """Follow a method that sends ``floats`` per round, to the budget or until some stepsize reaches the level.

    With several seeds the rows are seed by seed, each with all stepsizes, and the median over the seeds counts.
    """
    curve: list[Vector] = []
    with np.errstate(over="ignore", invalid="ignore"):  # A stepsize that is too large diverges.
        for X in islice(points, int(budget / floats)):
            curve.append(np.median(np.reshape(excess_of(X), (seeds, -1)), axis=0))
            if np.any(curve[-1] <= level):
                break
    first = np.full_like(curve[0], float(excess_of(start[None])[0]))
    rounds = np.arange(len(curve) + 1, dtype=np.float64)
    return Trace(np.asarray(floats * rounds, dtype=np.float64), np.array([first, *curve]))


def top_k(V: Matrix, k: int) -> Matrix:
    """Keep the k largest entries of each vector in absolute value; zero elsewhere."""
    kept = np.argpartition(np.abs(V), -k, axis=-1)[..., -k:]
    out = np.zeros_like(V)
    np.put_along_axis(out, kept, np.take_along_axis(V, kept, axis=-1), axis=-1)
    return out


def gradient_descent(gradient: Evaluation, x: Vector, stepsizes: Vector) -> Iterator[Matrix]:
    """Yield the points of dense gradient descent."""
    X = _tiled(x, stepsizes)
    while True:
        X = X - stepsizes[:, None] * gradient(X)
        yield X


def nesterov(gradient: Evaluation, x: Vector, stepsizes: Vector, mu: float) -> Iterator[Matrix]:
    """Yield the points of Nesterov's method for a μ-strongly convex f, momentum (1 − √(γμ))/(1 + √(γμ))."""
    X = Y = _tiled(x, stepsizes)
    roots = np.sqrt(stepsizes * mu)[:, None]
    while True:
        last, X = X, Y - stepsizes[:, None] * gradient(Y)
        Y = X + (1.0 - roots) / (1.0 + roots) * (X - last)
        yield X


def lbfgs(
    value: Evaluation, gradient: Evaluation, x: Vector, evaluations: int, metric: Matrix | None = None
) -> list[Matrix]:
    """Return the points where L-BFGS (scipy, its defaults) evaluates f and ∇f, but for the first, x.

    With a ``metric`` L it runs in u, x + A u with A Aᵀ = L⁻¹.
    """
    points: list[Matrix] = []
    A = np.eye(len(x)) if metric is None else inverse_root(metric)

    def evaluate(u: Vector) -> tuple[float, Vector]:
        points.append((x + A @ u)[None])
        return float(value(points[-1])[0]), A.T @ gradient(points[-1])[0]

    options = {"maxfun": evaluations, "maxiter": evaluations, "ftol": 0.0, "gtol": 0.0}
    minimize(evaluate, np.zeros(len(x)), jac=True, method="L-BFGS-B", options=options)
    return points[1:]


def inverse_root(L: Matrix) -> Matrix:
    """Return L^{-½}."""
    w, V = np.linalg.eigh(L)
    return np.asarray((V / np.sqrt(w)) @ V.T)


def ridge_hessian(f: LogisticRegression, x: Vector) -> Matrix:
    """Return ∇²f(x) of a logistic regression with penalty ``"ridge"``."""
    rows = np.asarray(f.signed_rows.toarray() if sparse.issparse(f.signed_rows) else f.signed_rows)
    odds = expit(rows @ x)
    return np.asarray((rows.T * (odds * (1.0 - odds))) @ rows / f.m + f.reg * np.eye(f.d))


def giant(f: Any, x: Vector) -> Iterator[Matrix]:
    """Yield the points of GIANT for a ``Federated`` f of logistic regressions: 2d + 8 floats a round."""
    while True:
        g = f.gradient(x[None])[0]
        direction = np.mean([np.linalg.solve(ridge_hessian(client, x), g) for client in f.clients], axis=0)
        candidates = x - GIANT_LENGTHS[:, None] * direction
        x = candidates[np.argmin(f.value(candidates))]
        yield x[None]


def scaffold(clients: Any, x: Vector, stepsizes: Vector, steps: int) -> Iterator[Matrix]:
    """Yield the points of SCAFFOLD with so many local steps on all rows of a client: 2d floats a round."""
    X = _tiled(x, stepsizes)
    gamma = stepsizes[:, None]
    controls = [np.zeros_like(X) for _ in clients]
    while True:
        mean = np.mean(controls, axis=0)
        ends = []
        for i, client in enumerate(clients):
            Y = X
            for _ in range(steps):
                Y = Y - gamma * (client.gradient(Y) - controls[i] + mean)
            controls[i] = controls[i] - mean + (X - Y) / (steps * gamma)
            ends.append(Y)
        X = np.mean(ends, axis=0)
        yield X


def ef21(client_gradients: Evaluation, x: Vector, stepsizes: Vector, k: int) -> Iterator[Matrix]:
    """Yield the points of EF21 with top-k, which remembers nothing at the start."""
    X = _tiled(x, stepsizes)
    remembered: Any = 0.0
    while True:
        remembered = remembered + top_k(client_gradients(X) - remembered, k)
        X = X - stepsizes[:, None] * remembered.mean(axis=1)
        yield X


def power_sgd(
    gradient: Evaluation, x: Vector, stepsizes: Vector, rank: int, rng: np.random.Generator
) -> Iterator[Matrix]:
    """Yield the points of PowerSGD with error feedback."""
    X, d = _tiled(x, stepsizes), len(x)
    shape = power_sgd_shape(d)
    Q = rng.standard_normal((len(X), shape[1], rank))
    left_out: Any = 0.0
    while True:
        padded = np.pad(gradient(X), ((0, 0), (0, math.prod(shape) - d)))
        wanted = left_out + padded.reshape(-1, *shape)
        P = np.linalg.qr(wanted @ Q).Q
        Q = wanted.mT @ P
        sent = P @ Q.mT
        left_out = wanted - sent
        X = X - stepsizes[:, None] * sent.reshape(len(X), -1)[:, :d]
        yield X


def power_sgd_shape(d: int) -> tuple[int, int]:
    """Return the nearly square shape of a vector of size d."""
    rows = math.isqrt(d - 1) + 1
    return rows, -(-d // rows)


def _tiled(x: Vector, stepsizes: Vector) -> Matrix:
    """Return one row for each run."""
    return np.tile(x, (len(stepsizes), 1))
