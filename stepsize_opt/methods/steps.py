"""One round as messages, for trainers, clients and servers in other processes, without memory and with momentum.

*Momentum* keeps two vectors x and z, and makes both updates from one message (docs/momentum.md).  With the sample S of
a round, E[S] = I, a step G of x and a matrix V = M̂⁻¹, M̂ ⪯ M ⪯ ∇²f (M = I for convex f),

    linear   y = (x + tz)/(1 + t),      x⁺ = y − G∇f(y),      z⁺ = (1 − t)z + ty − tVS∇f(y),
    convex   y = (Ax + az)/(A + a),     x⁺ = y − G∇f(y),      z⁺ = z − at²VS∇f(y),

a = (K + 1)/2 and A + a = K(K + 3)/4 in round K = 1, 2, ….  t has to satisfy t²𝒫(V) ⪯ H, the descent metric of G.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stepsize_opt.inputs import Array, check_kind, dense, dimensions, read_matrix, real_array
from stepsize_opt.large import StepsizeOperator
from stepsize_opt.methods.base import Compress, Factors, Method, get_method, is_scalar
from stepsize_opt.sketches import Draw, Sketch, read_sketch
from stepsize_solvers.programs import Indices, Matrix, Vector

_IDENTITY = Factors(None, None)


@runtime_checkable
class Compressor(Protocol):
    """What a round with a shared seed needs: ``draw`` once on every side, ``encode`` and sum, ``decode`` the sum.

    ``encode`` and ``decode`` are linear for one draw, and ``decode(encode(g))`` is what is subtracted from x.
    """

    @property
    def d(self) -> int: ...
    def draw(self, rng: np.random.Generator) -> Any: ...
    def encode(self, gradient: Array, draw: Any) -> Array: ...
    def decode(self, numbers: Array, draw: Any) -> Array: ...


@dataclass(frozen=True, eq=False)
class CompressedStep:
    """G = A S B as messages: ``encode`` gives the numbers of S that are sent for B∇f, ``decode`` gives G∇f of them.

    All senders draw S from equal generators.  Then the mean of their numbers decodes to the step of one node with the
    mean gradient, x⁺ = x − decode((1/n) Σ encode(∇fᵢ(x))), and the certificate of that one node holds for it.

    Parameters
    ----------
    sketch : Sketch
        The distribution of S.
    factors : Factors
        A and B; without them G = S.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import CompressedStep, RandK
    >>> step = CompressedStep.of(0.5 * np.eye(4), RandK(4, 2))
    >>> draw = step.draw(np.random.default_rng(0))
    >>> numbers = step.encode(np.array([1.0, 2.0, 3.0, 4.0]), draw)
    >>> numbers.size, step.decode(numbers, draw).size
    (2, 4)
    """

    sketch: Sketch
    factors: Factors = field(default=_IDENTITY, repr=False)

    @staticmethod
    def of(D: Any, sketch: Sketch, algorithm: str | Method = "det-CGD1", *, L: Any = None) -> CompressedStep:
        """Make the step of a method with stepsize D, d×d or an operator; ``L`` if the method's factors depend on it.

        Raises ValueError or TypeError for a D that is not a symmetric d×d matrix, a method that does not go with them,
        or a missing L.
        """
        method = get_method(algorithm)
        stepsize = _square("D", D, read_sketch(sketch).d)
        method.check([sketch], scalar=is_scalar(stepsize), clients=False)

        def smoothness() -> Matrix:
            if L is None:
                msg = f"{method} needs the smoothness matrix: CompressedStep.of(D, sketch, {method.name!r}, L=L)"
                raise ValueError(msg)
            return np.asarray(_square("L", L, sketch.d))

        return CompressedStep(sketch, method.factors(stepsize, smoothness))

    @property
    def d(self) -> int:
        return self.sketch.d

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw S."""
        return self.sketch.draw(rng)

    def encode(self, gradient: Array, draw: Draw) -> Array:
        """Return the numbers to send, shape (…, d) → (…, draw.size)."""
        check_kind("draw", draw, Draw, ", such as step.draw(rng)")
        B, rows = self.factors.right, _rows("gradient", gradient, self.d)
        return draw.encode(rows if B is None else rows @ B.T)

    def decode(self, numbers: Array, draw: Draw) -> Array:
        """Return G∇f, what is subtracted from x, shape (…, draw.size) → (…, d)."""
        check_kind("draw", draw, Draw, ", such as step.draw(rng)")
        A = self.factors.left
        sketched = draw.decode(_rows("numbers", numbers, draw.size))
        return sketched if A is None else sketched @ A.T


def _rows(name: str, value: Array, size: int) -> Array:
    out = np.asarray(value if dimensions(value) > 0 else None)
    if out.dtype.kind not in "iuf":
        msg = f"{name} must be an array of real numbers, shape (…, {size})"
        raise TypeError(msg)
    if out.shape[-1] != size:
        msg = f"{name} must have shape (…, {size}), got {out.shape}"
        raise ValueError(msg)
    return out


def _square(name: str, value: Any, d: int) -> Any:
    out = value if isinstance(value, StepsizeOperator) else dense(read_matrix(name, value))
    size = int(out.shape[0])
    if size != d:
        msg = f"{name} is {size}×{size} but the sketch is for d={d}"
        raise ValueError(msg)
    return out


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
        The distribution of S.
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
    factors: Factors = field(repr=False)
    V: Any = field(repr=False)

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
        """Return the state before the first round, z = x."""
        x = real_array("x", x)
        if x.shape[-1:] != (self.d,):
            msg = f"x must have shape (…, {self.d}), got {x.shape}"
            raise ValueError(msg)
        return MomentumState(x, x)

    def point(self, state: MomentumState) -> Array:
        """Return y, where the gradient is evaluated."""
        share = self.t / (1.0 + self.t) if self.strong else _share(state.rounds + 1)
        return np.asarray(state.x + share * (state.z - state.x))

    def draw(self, rng: np.random.Generator) -> Any:
        """Draw what all senders use in a round."""
        return self.sketch.draw(rng)

    def encode(self, gradient: Array, draw: Any) -> Array:
        """Return the numbers to send for the gradient at y, shape (…, d) → (…, size)."""
        numbers = CompressedStep(self.sketch, self.factors).encode(gradient, draw)
        return numbers if self.messages == 1 else np.concatenate([numbers, draw.encode(gradient)], axis=-1)

    def updates(self, numbers: Array, draw: Any) -> tuple[Array, Array]:
        """Return G∇f(y) and VS∇f(y), for the numbers sent or their mean over clients."""
        parts = np.split(np.asarray(numbers), self.messages, axis=-1)
        step = CompressedStep(self.sketch, self.factors).decode(parts[0], draw)
        return step, self._along(draw.decode(parts[-1]))

    def advance(self, state: MomentumState, numbers: Array, draw: Any) -> MomentumState:
        """Return the state after the round."""
        return self.moved(state, *self.updates(numbers, draw))

    def moved(self, state: MomentumState, step: Array, along: Array) -> MomentumState:
        """Return the state after a round with G∇f(y) = ``step`` and VS∇f(y) = ``along``."""
        y, t, rounds = self.point(state), self.t, state.rounds + 1
        if self.strong:
            z = state.z + t * (y - state.z) - t * along
        else:
            z = state.z - (0.5 * (rounds + 1) * t * t) * along
        return MomentumState(y - step, z, rounds)

    def steps(self, gradients: Matrix, compress: Compress) -> tuple[Matrix, Matrix]:
        """Return G∇f(y) and VS∇f(y) of several runs side by side, as ``Method.step`` has them: (s, n, d) → (s, d)."""
        A, B = self.factors.left, self.factors.right
        sent = compress(gradients, B)
        sketched = sent if B is None else compress(gradients, None)
        return sent if A is None else sent @ A.T, self._along(sketched)

    def _along(self, sketched: Array) -> Array:
        return np.asarray(self.V * sketched if isinstance(self.V, float) else sketched @ self.V)

    # ---------------------------------------------------------------- what is proved of it

    def potential(self, state: MomentumState, excess: Vector, point: Vector) -> Vector:
        """Return Ψ of the rows of a state with f(x) − f(w) = ``excess``, w = ``point``.

        For every w and K rounds E Ψ ≤ kept(K) times Ψ at the start.  Ψ = f(x) − f(w) + ½‖z − w‖²_{M̂}, for convex f
        K(K + 3)/4 (f(x) − f(w)) + ½‖z − w‖²_{M̂}/t².
        """
        distance = 0.5 * self.squared_distance(state.z - point)
        if self.strong:
            return np.asarray(excess + distance)
        return np.asarray(weight(state.rounds) * excess + distance / self.t**2)

    def kept(self, rounds: int) -> float:
        """Return (1 − t)^K; 1 for convex f, whose Ψ has a weight that grows."""
        return (1.0 - self.t) ** rounds if self.strong else 1.0

    def squared_distance(self, v: Matrix) -> Vector:
        """Return ‖v‖²_{M̂} of rows v, M̂ = V⁻¹."""
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

    method: Directions = field(repr=False)
    weights: Vector = field(repr=False)

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
    """Return A of convex f after K rounds, K(K + 3)/4: a² = (K + 1)²/4 ≤ A for each K ≥ 1."""
    return 0.25 * rounds * (rounds + 3)


def _share(rounds: int) -> float:
    """Return a/A⁺ of the round K."""
    return 0.5 * (rounds + 1) / weight(rounds)
