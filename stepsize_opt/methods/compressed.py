"""One round with a shared seed, as the messages that travel: for trainers, clients and servers in other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stepsize_opt.inputs import Array, check_kind, dense, dimensions, read_matrix
from stepsize_opt.methods.base import Factors, Method, get_method, is_scalar
from stepsize_opt.operators import StepsizeOperator
from stepsize_opt.sketches import Draw, Sketch, read_sketch
from stepsize_solvers.programs import Matrix

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
        The law of S.
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
    factors: Factors = _IDENTITY

    @staticmethod
    def of(D: Any, sketch: Sketch, algorithm: str | Method = "det-CGD1", *, L: Any = None) -> CompressedStep:
        """The step of a method with stepsize matrix D, d×d or an operator; ``L`` if the method's factors depend on it.

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
        """One draw of S."""
        return self.sketch.draw(rng)

    def encode(self, gradient: Array, draw: Draw) -> Array:
        """The numbers to send, shape (…, d) → (…, draw.size)."""
        check_kind("draw", draw, Draw, ", such as step.draw(rng)")
        B, rows = self.factors.right, _rows("gradient", gradient, self.d)
        return draw.encode(rows if B is None else rows @ B.T)

    def decode(self, numbers: Array, draw: Draw) -> Array:
        """G∇f, what is subtracted from x, shape (…, draw.size) → (…, d)."""
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
