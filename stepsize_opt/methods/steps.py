"""What runs, as messages: one round for trainers, clients and servers in other processes, and for the runner.

*Without memory* x⁺ = x − G∇f(x).  *Momentum* keeps two vectors x and z, and makes both updates from one message
(docs/momentum.md).  With the sample S of a round, E[S] = I, a step G of x and a matrix V = M̂⁻¹, M̂ ⪯ M ⪯ ∇²f (M = I for
convex f),

    linear   y = (x + tz)/(1 + t),      x⁺ = y − G∇f(y),      z⁺ = (1 − t)z + ty − tVS∇f(y),
    convex   y = (Ax + az)/(A + a),     x⁺ = y − G∇f(y),      z⁺ = z − at²VS∇f(y),

a = (K + 1)/2 and A + a = K(K + 3)/4 in round K = 1, 2, ….  t has to satisfy t²𝒫(V) ⪯ H, the descent metric of G.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np

from stepsize_opt.inputs.checks import Array, check_kind, real_array
from stepsize_opt.inputs.matrices import dense, read_matrix
from stepsize_opt.large.stepsizes import StepsizeOperator
from stepsize_opt.methods.base import Factors, Method, get_method
from stepsize_opt.sketches.base import Sketch, read_sketch
from stepsize_opt.sketches.draws import Draw
from stepsize_solvers.programs import Matrix, Vector

# (V, B) ↦ (1/n) Σᵢ Sᵢ B vᵢ with fresh draws Sᵢ, for vectors vᵢ of s runs: V (s, n, d), answer (s, d); None for B = I.
Compress: TypeAlias = Callable[[Matrix, Matrix | None], Matrix]

_IDENTITY = Factors(None, None)


@dataclass(frozen=True, eq=False)
class State:
    """What a method keeps, for one run or for several as rows: x, with momentum z, and the rounds made.

    Parameters
    ----------
    x : numpy.ndarray
        Shape (d,), or (s, d) for s runs.
    z : numpy.ndarray or None
        As x; None without momentum.
    rounds : int
        The rounds made.
    """

    x: Array
    z: Any = None
    rounds: int = 0


@dataclass(frozen=True)
class Momentum:
    """The rule by which momentum moves x and z.

    Attributes
    ----------
    t : float
        The rate.
    strong : bool
        Whether f is strongly convex (the goal ``linear``) or only convex.
    """

    t: float
    strong: bool

    @property
    def update(self) -> str:
        """How x and z move, in formulas."""
        if self.strong:
            return "x⁺ = y − G∇f(y), z⁺ = (1 − t)z + ty − tVS∇f(y), y = (x + tz)/(1 + t)"
        return "x⁺ = y − G∇f(y), z⁺ = z − at²VS∇f(y), y = (Ax + az)/(A + a)"

    def point(self, state: State) -> Array:
        """Return y."""
        share = self.t / (1.0 + self.t) if self.strong else _share(state.rounds + 1)
        y: Array = state.x + share * (state.z - state.x)
        return y

    def moved(self, state: State, step: Array, along: Array) -> State:
        """Return the state after a round with G∇f(y) = ``step`` and VS∇f(y) = ``along``."""
        y, t, rounds = self.point(state), self.t, state.rounds + 1
        if self.strong:
            z = state.z + t * (y - state.z) - t * along
        else:
            z = state.z - (0.5 * (rounds + 1) * t * t) * along
        return State(y - step, z, rounds)


def weight(rounds: int) -> float:
    """Return A of convex f after K rounds, K(K + 3)/4: a² = (K + 1)²/4 ≤ A for each K ≥ 1."""
    return 0.25 * rounds * (rounds + 3)


def _share(rounds: int) -> float:
    """Return a/A⁺ of the round K."""
    return 0.5 * (rounds + 1) / weight(rounds)


class Compressor(ABC):
    """What runs: ``start``, and in each round ``point``, ``draw``, ``encode`` and ``advance``.

    All senders draw from equal generators and hold the same state.  ``encode`` gives the numbers that are sent for the
    gradient at ``point(state)``; it is linear, so that the mean of the senders' numbers is that of the mean gradient,
    and ``advance`` makes the step of it: the certificate of one node holds for all senders together.

    A subclass states how a gradient becomes numbers and these a step; ``memory`` and the rounds are written here.

    Attributes
    ----------
    name : str
        What a record of its runs is called by.
    sketch : Sketch
        The distribution of S in G = A S B.
    memory : Momentum or None
        The rule of two vectors; None without memory.
    """

    name: ClassVar[str] = "compressed"
    sketch: Sketch

    @property
    @abstractmethod
    def memory(self) -> Momentum | None: ...

    @property
    @abstractmethod
    def factors(self) -> Factors:
        """A and B of G = A S B."""

    @property
    def d(self) -> int:
        """Size of x."""
        return self.sketch.d

    @property
    def messages(self) -> int:
        """How many times the numbers of S are sent in a round."""
        return 1

    # ---------------------------------------------------------------- one round

    def start(self, x: Array) -> State:
        """Return the state before the first round, z = x."""
        x = read_vectors("x", real_array("x", x), self.d)
        return State(x, None if self.memory is None else x)

    def point(self, state: State) -> Array:
        """Return where the gradient is evaluated: x, with momentum y."""
        return state.x if self.memory is None else self.memory.point(state)

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Any:
        """Draw what all senders use in a round."""

    @abstractmethod
    def encode(self, gradient: Array, draw: Any) -> Array:
        """Return the numbers to send for a gradient, shape (…, d) → (…, size)."""

    @abstractmethod
    def updates(self, numbers: Array, draw: Any) -> tuple[Array, Array | None]:
        """Return G∇f and, with momentum, VS∇f, for the numbers sent or their mean over clients."""

    def advance(self, state: State, numbers: Array, draw: Any) -> State:
        """Return the state after a round, for the numbers sent or their mean over clients."""
        return self.moved(state, *self.updates(numbers, draw))

    def decode(self, numbers: Array, draw: Any) -> Array:
        """Return G∇f, what ``advance`` subtracts from x; raises ValueError with momentum, which makes two updates."""
        if self.memory is not None:
            msg = "momentum makes two updates of the numbers, so decode is no step: use start, point and advance"
            raise ValueError(msg)
        return self.updates(numbers, draw)[0]

    # ---------------------------------------------------------------- several runs side by side

    @abstractmethod
    def steps(self, gradients: Matrix, compress: Compress) -> tuple[Matrix, Matrix | None]:
        """Return G∇f and, with momentum, VS∇f of several runs side by side: (s, n, d) → (s, d)."""

    def moved(self, state: State, step: Array, along: Array | None) -> State:
        """Return the state after a round with G∇f = ``step`` and, with momentum, VS∇f = ``along``."""
        if self.memory is None or along is None:
            return State(state.x - step, None, state.rounds + 1)
        return self.memory.moved(state, step, along)

    @abstractmethod
    def squared_distance(self, v: Matrix) -> Vector:
        """Return ‖v‖²_{M̂} of rows v, M̂ = V⁻¹, of momentum."""


@dataclass(frozen=True, eq=False)
class CompressedStep(Compressor):
    """G = A S B as messages, without memory or with momentum: what det-CGD1, det-CGD2 and methods of your own run.

    Parameters
    ----------
    sketch : Sketch
        The distribution of S.
    factors : Factors
        A and B; without them G = S.  With momentum the update of z needs the numbers of S∇f beside those of SB∇f,
        unless B = I.
    memory : Momentum or None
        The rule of momentum; None without memory.
    V : float or numpy.ndarray
        M̂⁻¹ of momentum, a number for a multiple of the identity.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import CompressedStep, RandK
    >>> step = CompressedStep.of(0.5 * np.eye(4), RandK(4, 2))
    >>> state, rng = step.start(np.ones(4)), np.random.default_rng(0)
    >>> draw = step.draw(rng)
    >>> numbers = step.encode(step.point(state), draw)  # the gradient of ½‖x‖²
    >>> numbers.size, step.advance(state, numbers, draw).x.tolist().count(1.0)
    (2, 2)
    """

    sketch: Sketch
    factors: Factors = field(default=_IDENTITY, repr=False)
    memory: Momentum | None = None
    V: Any = field(default=None, repr=False)

    @staticmethod
    def of(D: Any, sketch: Sketch, algorithm: str | Method = "det-CGD1", *, L: Any = None) -> CompressedStep:
        """Make the step of a method with a stepsize D.

        Parameters
        ----------
        D : StepsizeOperator, array-like or sparse matrix of shape (d, d)
            The stepsize matrix, symmetric, or the operator of a result.
        sketch
            The distribution of S.
        algorithm
            The method, as ``get_method`` takes it.
        L : array-like or sparse matrix of shape (d, d), optional
            The smoothness matrix, for a method whose factors depend on it.

        Raises
        ------
        ValueError, TypeError
            For a D that is not a symmetric d×d matrix, a method that does not go with them, or a missing L.
        """
        method = get_method(algorithm)
        stepsize = _square("D", D, read_sketch(sketch).d)
        method.check([sketch])

        def smoothness() -> Matrix:
            if L is None:
                msg = f"{method} needs the smoothness matrix: CompressedStep.of(D, sketch, {method.name!r}, L=L)"
                raise ValueError(msg)
            return np.asarray(_square("L", L, sketch.d))

        return CompressedStep(sketch, method.factors(stepsize, smoothness))

    @property
    def messages(self) -> int:
        return 1 if self.memory is None or self.factors.right is None else 2

    def draw(self, rng: np.random.Generator) -> Draw:
        return self.sketch.draw(rng)

    def encode(self, gradient: Array, draw: Draw) -> Array:
        check_kind("draw", draw, Draw, ", such as step.draw(rng)")
        B, rows = self.factors.right, read_vectors("gradient", gradient, self.d)
        numbers = draw.encode(rows if B is None else rows @ B.T)
        return numbers if self.messages == 1 else np.concatenate([numbers, draw.encode(rows)], axis=-1)

    def updates(self, numbers: Array, draw: Draw) -> tuple[Array, Array | None]:
        check_kind("draw", draw, Draw, ", such as step.draw(rng)")
        parts = np.split(read_vectors("numbers", numbers, self.messages * draw.size), self.messages, axis=-1)
        sketched, A = draw.decode(parts[0]), self.factors.left
        along = None if self.memory is None else self._along(draw.decode(parts[-1]))
        return sketched if A is None else sketched @ A.T, along

    def steps(self, gradients: Matrix, compress: Compress) -> tuple[Matrix, Matrix | None]:
        A, B = self.factors.left, self.factors.right
        sent = compress(gradients, B)
        step = sent if A is None else sent @ A.T
        if self.memory is None:
            return step, None
        return step, self._along(sent if B is None else compress(gradients, None))

    def _along(self, sketched: Array) -> Array:
        return np.asarray(self.V * sketched if isinstance(self.V, float) else sketched @ self.V)

    def squared_distance(self, v: Matrix) -> Vector:
        V = self.V
        solved = v / V if isinstance(V, float) else np.linalg.solve(V, v.T).T
        return np.asarray(np.einsum("sd,sd->s", v, solved))


def read_compressor(value: Any) -> Compressor:
    """Return the method of a result, or what is one; raises TypeError for anything else."""
    compressor = value.compressor() if hasattr(value, "compressor") else value
    if not isinstance(compressor, Compressor):
        msg = (
            "compressor must be a CompressedStep, the method of optimal_method, a result with compressor() or, in "
            f"Flower, a Feedback, got {value!r}; for a sketch and a stepsize D it is CompressedStep.of(D, sketch)"
        )
        raise TypeError(msg)
    return compressor


def read_vectors(name: str, value: Any, size: int) -> Array:
    """Return vectors of a size, shape (…, size), as float64; raises TypeError or ValueError for anything else."""
    out = real_array(name, value, finite=False, copy=False)
    if out.shape[-1:] != (size,):
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
