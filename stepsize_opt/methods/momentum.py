"""Momentum: two vectors x and z, and both updates from one message (docs/momentum.md).

With the draw S of a round, E[S] = I, a step G of x and a matrix V = M̂⁻¹, M̂ ⪯ M ⪯ ∇²f (M = I for convex f),

    linear   y = (x + tz)/(1 + t),      x⁺ = y − G∇f(y),      z⁺ = (1 − t)z + ty − tVS∇f(y),
    convex   y = (Ax + az)/(A + a),     x⁺ = y − G∇f(y),      z⁺ = z − at²VS∇f(y),

a = (K + 1)/2 and A + a = K(K + 3)/4 in round K = 1, 2, ….  t has to satisfy t²𝒫(V) ⪯ H, the descent metric of G.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from stepsize_opt.inputs import Array, real_array
from stepsize_opt.methods.base import Compress, Factors
from stepsize_opt.methods.compressed import CompressedStep
from stepsize_opt.sketches import Sketch
from stepsize_solvers.programs import Indices, Matrix, Vector

MOMENTUM_UPDATES = {
    "linear": "x⁺ = y − G∇f(y), z⁺ = (1 − t)z + ty − tVS∇f(y), y = (x + tz)/(1 + t)",
    "convex": "x⁺ = y − G∇f(y), z⁺ = z − at²VS∇f(y), y = (Ax + az)/(A + a)",
}


@dataclass(frozen=True, eq=False)
class MomentumState:
    """What a method with momentum keeps: x, z and the rounds made, for one run or for several as rows."""

    x: Array
    z: Array
    rounds: int = 0


@dataclass(frozen=True, eq=False)
class MomentumStep:
    """One round of momentum as messages: ``point``, ``draw``, ``encode``, ``advance``.

    All senders draw from equal generators and hold the same state.  ``encode`` gives the numbers that are sent for the
    gradient at ``point(state)``; it is linear, so that the mean of the senders' numbers is that of the mean gradient,
    and ``advance`` makes both updates of it.

    Attributes
    ----------
    t : float
        The rate.
    strong : bool
        Whether f is strongly convex (the goal ``linear``) or only convex.
    sketch : Sketch
        The law of S.
    factors : Factors
        A and B of G = A S B.  Unless B = I the update of z needs the numbers of S∇f beside those of SB∇f.
    V : float or numpy.ndarray
        M̂⁻¹, a number for a multiple of the identity.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import optimal_method
    >>> step = optimal_method(np.diag([1.0, 4.0]), 1, goal="linear", strong_convexity=0.5, momentum=True).compressor()
    >>> state, rng = step.start(np.ones(2)), np.random.default_rng(0)
    >>> draw = step.draw(rng)
    >>> numbers = step.encode(np.diag([1.0, 4.0]) @ step.point(state), draw)
    >>> numbers.size, step.advance(state, numbers, draw).rounds
    (1, 1)
    """

    t: float
    strong: bool
    sketch: Sketch
    factors: Factors
    V: Any

    @property
    def d(self) -> int:
        """Size of x."""
        return self.sketch.d

    @property
    def messages(self) -> int:
        """How many times the numbers of S are sent in a round: 1 where one message serves both updates, else 2."""
        return 1 if self.factors.right is None else 2

    # ---------------------------------------------------------------- one round

    def start(self, x: Array) -> MomentumState:
        """The state before the first round, z = x."""
        x = real_array("x", x)
        if x.shape[-1:] != (self.d,):
            msg = f"x must have shape (…, {self.d}), got {x.shape}"
            raise ValueError(msg)
        return MomentumState(x, x)

    def point(self, state: MomentumState) -> Array:
        """y, where the gradient is evaluated."""
        share = self.t / (1.0 + self.t) if self.strong else _share(state.rounds + 1)
        return np.asarray(state.x + share * (state.z - state.x))

    def draw(self, rng: np.random.Generator) -> Any:
        """What all senders draw in a round."""
        return self.sketch.draw(rng)

    def encode(self, gradient: Array, draw: Any) -> Array:
        """The numbers to send for the gradient at y, shape (…, d) → (…, size)."""
        numbers = CompressedStep(self.sketch, self.factors).encode(gradient, draw)
        return numbers if self.messages == 1 else np.concatenate([numbers, draw.encode(gradient)], axis=-1)

    def updates(self, numbers: Array, draw: Any) -> tuple[Array, Array]:
        """G∇f(y) and VS∇f(y), for the numbers sent or their mean over clients."""
        parts = np.split(np.asarray(numbers), self.messages, axis=-1)
        step = CompressedStep(self.sketch, self.factors).decode(parts[0], draw)
        return step, self._along(draw.decode(parts[-1]))

    def advance(self, state: MomentumState, numbers: Array, draw: Any) -> MomentumState:
        """The state after the round."""
        return self.moved(state, *self.updates(numbers, draw))

    def moved(self, state: MomentumState, step: Array, along: Array) -> MomentumState:
        """The state after a round with G∇f(y) = ``step`` and VS∇f(y) = ``along``."""
        y, t, rounds = self.point(state), self.t, state.rounds + 1
        if self.strong:
            z = state.z + t * (y - state.z) - t * along
        else:
            z = state.z - (0.5 * (rounds + 1) * t * t) * along
        return MomentumState(y - step, z, rounds)

    def steps(self, gradients: Matrix, compress: Compress) -> tuple[Matrix, Matrix]:
        """G∇f(y) and VS∇f(y) of several runs side by side, as ``Method.step`` has them: (s, n, d) → (s, d)."""
        A, B = self.factors.left, self.factors.right
        sent = compress(gradients, B)
        sketched = sent if B is None else compress(gradients, None)
        return sent if A is None else sent @ A.T, self._along(sketched)

    def _along(self, sketched: Array) -> Array:
        return np.asarray(self.V * sketched if isinstance(self.V, float) else sketched @ self.V)

    # ---------------------------------------------------------------- what is proved of it

    def potential(self, state: MomentumState, excess: Vector, point: Vector) -> Vector:
        """Ψ of the rows of a state with f(x) − f(w) = ``excess``, w = ``point``.

        For every w and K rounds E Ψ ≤ kept(K) times Ψ at the start.  Ψ = f(x) − f(w) + ½‖z − w‖²_{M̂}, for convex f
        K(K + 3)/4 (f(x) − f(w)) + ½‖z − w‖²_{M̂}/t².
        """
        distance = 0.5 * self.squared_distance(state.z - point)
        if self.strong:
            return np.asarray(excess + distance)
        return np.asarray(weight(state.rounds) * excess + distance / self.t**2)

    def kept(self, rounds: int) -> float:
        """(1 − t)^K; 1 for convex f, whose Ψ has a weight that grows."""
        return (1.0 - self.t) ** rounds if self.strong else 1.0

    def squared_distance(self, v: Matrix) -> Vector:
        """‖v‖²_{M̂} of rows v, M̂ = V⁻¹."""
        V = self.V
        solved = v / V if isinstance(V, float) else np.linalg.solve(V, v.T).T
        return np.asarray(np.einsum("sd,sd->s", v, solved))


class Directions(Protocol):
    """What ``SubspaceMomentum`` needs of the subspace method."""

    @property
    def directions(self) -> Any: ...
    def draw(self, rng: np.random.Generator) -> Indices: ...
    def encode(self, gradient: Array, draw: Indices) -> Array: ...
    def combine(self, numbers: Array, draw: Indices) -> Array: ...


@dataclass(frozen=True, eq=False)
class SubspaceMomentum(MomentumStep):
    """Momentum in the directions of the subspace method: G = A_J A_Jᵀ and VS = A_J Diag(w_J) A_Jᵀ, V = A Diag(hw) Aᵀ.

    Both updates use the numbers A_Jᵀ∇f(y).
    """

    method: Directions
    weights: Vector

    @property
    def messages(self) -> int:
        return 1

    def draw(self, rng: np.random.Generator) -> Any:
        return self.method.draw(rng)

    def encode(self, gradient: Array, draw: Any) -> Array:
        return self.method.encode(gradient, draw)

    def updates(self, numbers: Array, draw: Any) -> tuple[Array, Array]:
        return self.method.combine(numbers, draw), self.method.combine(numbers * self.weights[draw], draw)

    def steps(self, gradients: Matrix, compress: Compress) -> tuple[Matrix, Matrix]:
        sent = compress(gradients, self.factors.right)  # (1_J/√h) Aᵀ∇f
        step, along = (np.asarray((self.factors.left @ part.T).T) for part in (sent, sent * self.weights))
        return step, along

    def squared_distance(self, v: Matrix) -> Vector:
        whole = self.method.directions @ np.eye(self.d)
        inner = np.linalg.solve(whole, v.T).T
        return np.asarray(np.sum(inner**2 / (self.sketch.sampling_probabilities * self.weights), axis=1))


def weight(rounds: int) -> float:
    """A of convex f after K rounds, K(K + 3)/4: a² = (K + 1)²/4 ≤ A for each K ≥ 1."""
    return 0.25 * rounds * (rounds + 3)


def _share(rounds: int) -> float:
    """a/A⁺ of the round K."""
    return 0.5 * (rounds + 1) / weight(rounds)
