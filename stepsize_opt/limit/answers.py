"""The limit, and the subspace method x⁺ = x − A_J A_Jᵀ∇f(x), which attains that of methods without memory.

The directions a_j are L-orthonormal, AᵀLA = I, and J is a random set of them with P(j ∈ J) = h_j.  Then G = A_J A_Jᵀ
has GᵀLG = A_J(A_JᵀLA_J)A_Jᵀ = G, hence E[G] = E[GᵀLG] = A Diag(h) Aᵀ = D: each step minimises the quadratic upper model
of f over the span of the directions drawn, and the numbers A_Jᵀ∇f, one for each of them, are all that is sent.  With
the sketch S = Diag(1_J/h) this is G = C S Cᵀ, C = A Diag(h)^½.

*What is proved of floats.*  AᵀLA ⪯ I, so that A_JᵀLA_J ⪯ I and GᵀLG ⪯ G for every J, and D ⪯ E[G] = A Diag(h) Aᵀ with
the probabilities h of the draws: so E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D for the floats A, h and D that are returned.  For a
LowRankPlusDiagonal neither A nor D is formed, and the floats are those that determine them.

*With momentum* (docs/momentum.md) the update of z takes A_J Diag(w_J) A_Jᵀ∇f with weights w, t²w ≤ h and
A Diag(hw) Aᵀ ⪰ M⁻¹: S = M̂A Diag(w)1_J Aᵀ has E[S] = I exactly for M̂ = (A Diag(hw) Aᵀ)⁻¹ ⪯ M, whatever A is rounded to.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from stepsize_opt.goals import Goal, goal_class
from stepsize_opt.inputs.checks import Array, dimensions, probability_array, read_only, real_array
from stepsize_opt.large.stepsizes import StepsizeOperator, check_stepsize, stepsize_from_arrays
from stepsize_opt.methods import Compress, Compressor, Factors, Momentum, read_vectors
from stepsize_opt.proofs import Certificate, exp_down, exp_up
from stepsize_opt.saving import Saved, from_fields
from stepsize_opt.sketches.diagonal import SystematicSampling
from stepsize_opt.smoothness import ThinDirections
from stepsize_solvers.programs import Indices, Matrix, Shown, Vector

# The arrays of a result file that hold a D that is an operator.
_STEPSIZES = ("D", "x", "p", "U", "C")


class LimitAnswer(Shown, Saved):
    """A D at the limit of k floats per round, with its certificate."""

    k: float
    goal_class: type[Goal]
    D: Any
    certificate: Certificate

    def __post_init__(self) -> None:
        check_stepsize(self.D, self.d)

    @property
    def goal(self) -> str:
        """The name of the goal."""
        return self.goal_class.name

    @property
    def momentum(self) -> bool:
        """Whether it is an answer for methods with momentum."""
        return self.goal_class.momentum

    @property
    def d(self) -> int:
        """Size of L."""
        return self.certificate.d

    @property
    def gap(self) -> float:
        """log of the upper end of the limit over the lower one, which rounding alone makes."""
        return self.certificate.gap

    def summary(self) -> dict[str, Any]:
        """Return everything but the matrices, as plain numbers and strings."""
        return {
            "d": self.d,
            "k": self.k,
            "goal": self.goal,
            "momentum": self.momentum,
            **self._numbers(),
            "certificate": {**asdict(self.certificate), "gap": self.gap},
        }

    @abstractmethod
    def _numbers(self) -> dict[str, Any]:
        """Return what ``summary`` has beside the numbers of both classes."""

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta = {"k": self.k, "goal": self.goal, "certificate": asdict(self.certificate)}
        stepsize = self.D.arrays() if isinstance(self.D, StepsizeOperator) else {"D": self.D}
        return meta, stepsize


# ---------------------------------------------------------------- what a file holds
#
# L is not among it, so that AᵀLA = I cannot be decided; shapes, ranges, and that D and A belong together, can.


def stepsize_of(arrays: dict[str, Any]) -> Any:
    """Return D of the arrays of a result file."""
    parts = {name: arrays[name] for name in _STEPSIZES if name in arrays}
    return parts["D"] if "D" in parts else stepsize_from_arrays(parts)


def _read_probabilities(arrays: dict[str, Any], d: int) -> Vector:
    """Return h; raises ValueError or TypeError unless it holds d probabilities."""
    h = probability_array("probabilities", arrays["probabilities"], dimensions=(1,))
    return _sized("probabilities", h, (d,))


def _read_directions(arrays: dict[str, Any], D: Any, h: Vector) -> Any:
    """Return A; raises ValueError or TypeError unless D is what was proved of the mean A Diag(h) Aᵀ, or may be."""
    A: Any
    d = len(h)
    if "t" in arrays:
        A = _read_thin_directions(arrays, d)
        fits = float(np.sum(D @ np.ones(d))) <= _ROUNDED * float(h @ (A.T @ np.ones(d)) ** 2)
    else:
        A = _sized("directions", real_array("directions", arrays["directions"]), (d, d))
        mean = A**2 @ h
        fits = bool(np.all((_LEAST_SHARE * mean <= D.diagonal()) & (D.diagonal() <= _ROUNDED * mean)))
    if not fits:
        msg = "the directions do not belong to D: it is not the mean of their steps"
        raise ValueError(msg)
    return read_only(A) if isinstance(A, np.ndarray) else A


_ROUNDED = 1.0 + 1e-9
_LEAST_SHARE = 0.5  # of the mean that is proved of D; ``limit.problem`` gives up long before


def _read_thin_directions(arrays: dict[str, Any], d: int) -> ThinDirections:
    c, t, U, Z = (real_array(name, arrays[name]) for name in ("c", "t", "U", "Z"))
    if not (c.shape == () and 0.0 < c <= 1.0 and t.shape == (d,) and t.min() > 0.0 and U.ndim == Z.ndim == 2):
        msg = "c must be a number in (0, 1], t a vector of positive numbers, U and Z matrices"
        raise ValueError(msg)
    size = max(len(Z), U.shape[1])
    return ThinDirections(float(c), t, read_only(_sized("U", U, (d, U.shape[1]))), _sized("Z", Z, (size, size)))


def _sized(name: str, array: Matrix, shape: tuple[int, ...]) -> Matrix:
    """Return the array; raises ValueError for one of another shape."""
    if array.shape != shape:
        msg = f"{name} must have the shape {shape}, got {array.shape}"
        raise ValueError(msg)
    return array


@dataclass(frozen=True, eq=False, repr=False)
class CompressionLimit(LimitAnswer):
    """The best rate of a method that sends k floats per round, without memory or with momentum, and a D that has it.

    Attributes
    ----------
    k : float
        Floats per round, on average.
    goal_class : type
        The class of the goal; ``goal`` is its name, ``momentum`` tells whether it is for methods with momentum.
    D : numpy.ndarray
        d×d, read-only, with D ⪯ L⁻¹ and tr(LD) ≤ k proved, so that a method attains it (``optimal_method``).  For a
        LowRankPlusDiagonal an operator with ``D @ g``, ``D.diagonal()`` and, when asked, ``D.todense()``.
    probabilities : numpy.ndarray
        h, the inclusion probabilities of the directions of that method, in the order of ascending eigenvalues of L
        (of LM⁻¹ for ``linear``); they add up to k.  For ``euclidean`` and a LowRankPlusDiagonal D = tI, they add up to
        t tr L, and there are none unless U is dense and the diagonal constant.  With momentum D is then a multiple of
        the identity below that of the limit.
    certificate : Certificate
        ``log_det`` and ``upper_bound`` are the proved ends of d log of the limit.

    Examples
    --------
    See ``compression_limit``.
    """

    k: float
    goal_class: type[Goal]
    D: Any
    probabilities: Vector
    certificate: Certificate

    @property
    def value(self) -> float:
        """The limit, from below: det(D)^{1/d}, λmin(D), or the largest t with D ⪰ tM⁻¹, proved for the floats of D.

        With momentum the largest t with DLD ⪰ t²M⁻¹.
        """
        return exp_down(self.certificate.log_det / self.d)

    @property
    def upper(self) -> float:
        """The limit, from above: no method x⁺ = x − G∇f(x) with E[rank G] ≤ k has a larger value."""
        return exp_up(self.certificate.log_rate_bound)

    @property
    def floats_sent(self) -> float:
        """Floats sent in all per unit of 2Δ⁰/ε², k/value; for ``linear`` −k/log(1 − value) per log(Δ⁰/accuracy).

        With momentum per unit of log(2Δ⁰/accuracy), or of ‖x⁰ − x*‖(2/accuracy)^½ for ``convex``.
        """
        return self.k * self.goal_class.relative_rounds(self.value)

    def _numbers(self) -> dict[str, Any]:
        ends = {"value": self.value, "upper": self.upper, "floats_sent": self.floats_sent}
        return {**ends, "probabilities": self.probabilities.tolist()}

    def _shown(self) -> list[tuple[str, str]]:
        h, words = self.probabilities, self.goal_class.words
        spread = f"{h[0]:.6g} each" if h.size else "not computed"
        if h.size and h.min() < h.max():
            spread = f"from {h.min():.4g} to {h.max():.4g}"
        return [
            ("budget", f"{self.k:g} of d = {self.d} floats per round"),
            (f"limit, {words.rate}", f"{self.value:.9g}"),
            ("proved interval", f"[{self.value:.9g}, {self.upper:.9g}], gap {self.gap:.1e}"),
            ("floats sent", f"{self.floats_sent:.6g} for each unit of {words.unit}"),
            ("probabilities", spread),
        ]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta, arrays = super()._contents()
        return meta | {"momentum": self.momentum}, arrays | {"probabilities": self.probabilities}

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> CompressionLimit:
        D, h = stepsize_of(arrays), arrays["probabilities"]
        if h.shape != (0,) or isinstance(D, np.ndarray):  # of an operator they may be unknown
            h = _read_probabilities(arrays, int(meta["certificate"]["d"]))
        return from_fields(cls, meta, goal_class=goal_class(meta["goal"], meta["momentum"]), D=D, probabilities=h)


@final
@dataclass(frozen=True, eq=False, repr=False)
class SubspaceMethod(LimitAnswer, Compressor):
    """x⁺ = x − A_J A_Jᵀ∇f(x) with L-orthonormal directions and a random set J of them: what ``optimal_method`` returns.

    It belongs to one L and has a stepsize of its own: ``run(f, method)`` runs it, on clients with
    ``client_seeds="shared"``.  ``start``, ``point``, ``draw``, ``encode`` and ``advance`` are its rounds as messages.

    Attributes
    ----------
    directions : numpy.ndarray or ThinDirections
        A, d×d, the directions are its columns; AᵀLA ⪯ I is proved.  For a LowRankPlusDiagonal an operator.
    sketch : SystematicSampling
        The distribution of J, as S = Diag(1_J/h).
    D : numpy.ndarray or StepsizeOperator
        d×d, with D ⪯ E[A_J A_Jᵀ] proved: E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D.
    certificate : Certificate
        ``log_det``, the rate of D from below, and ``upper_bound``, the limit: ends of log det D, or of d log t.
    defect : float
        A proved bound on ‖AᵀLA − I‖.
    k : float
        Floats per round, the budget that was given.
    goal_class : type
        The class of the goal; ``goal`` is its name, ``momentum`` tells whether the method keeps two vectors.
    basis : str
        How the directions were chosen.
    weights : numpy.ndarray or None
        w of the update of z, with momentum; None without memory.

    Examples
    --------
    See ``optimal_method``.
    """

    name: ClassVar[str] = "subspace"
    update: ClassVar[str] = "x⁺ = x − A_J A_Jᵀ ∇f(x), AᵀLA = I"

    directions: Any
    sketch: SystematicSampling
    D: Any
    certificate: Certificate
    defect: float
    k: float
    goal_class: type[Goal]
    basis: str
    weights: Any = None

    def __post_init__(self) -> None:
        A = self.directions
        parts = [A.t, A.U, A.Z] if isinstance(A, ThinDirections) else [A]
        check_stepsize(self.D, self.d, *parts, *([self.weights] if self.momentum else []))

    @property
    def probabilities(self) -> Vector:
        """h: direction j is drawn with probability h_j, exactly."""
        return self.sketch.p

    @property
    def rate(self) -> float:
        """det(D)^{1/d}, or the t with D ⪰ tM⁻¹, proved from below; with momentum its t."""
        return exp_down(self.certificate.log_det / self.d)

    @property
    def efficiency(self) -> float:
        """``rate`` over the limit: 1 up to rounding."""
        return self.rate / exp_up(self.certificate.log_rate_bound)

    def iterations(
        self,
        epsilon2: float | None = None,
        initial_gap: float | None = None,
        *,
        accuracy: float | None = None,
        initial_distance: Any = None,
    ) -> int:
        """Return the rounds K that the rate guarantees, from the arguments that ``StepsizeResult.iterations`` takes."""
        given = {"initial_gap": initial_gap, "accuracy": accuracy, "initial_distance": initial_distance}
        return self.goal_class.iterations(self.rate, self.d, epsilon2=epsilon2, **given)

    # ---------------------------------------------------------------- one round as messages

    @cached_property
    def memory(self) -> Momentum | None:
        return Momentum(self.rate, self.goal_class.strong) if self.momentum else None

    @cached_property
    def factors(self) -> Factors:
        """C = A Diag(h)^½ and Cᵀ: G = C S Cᵀ with the sketch S = Diag(1_J/h)."""
        C = self._whole * np.sqrt(self.probabilities)
        return Factors(C, C.T)

    @property
    def _whole(self) -> Matrix:
        """A as an array."""
        return self.directions if isinstance(self.directions, np.ndarray) else self.directions @ np.eye(self.d)

    def draw(self, rng: np.random.Generator) -> Indices:
        """Draw J, ascending: ⌊k⌋ or ⌈k⌉ directions."""
        return self.sketch.places(rng)

    def encode(self, gradient: Array, draw: Indices) -> Array:
        """Return A_Jᵀg, the numbers that are sent, shape (…, d) → (…, size of J)."""
        g, A, draw = read_vectors("gradient", gradient, self.d), self.directions, self._drawn(draw)
        return A.sent(g, draw) if isinstance(A, ThinDirections) else np.asarray(g @ A[:, draw])

    def updates(self, numbers: Array, draw: Indices) -> tuple[Array, Array | None]:
        """Return A_J z and, with momentum, A_J Diag(w_J) z for the numbers z."""
        draw = self._drawn(draw)
        z = read_vectors("numbers", numbers, len(draw))
        return self._combined(z, draw), self._combined(z * self.weights[draw], draw) if self.momentum else None

    def _combined(self, z: Array, draw: Indices) -> Array:
        A = self.directions
        return A.received(z, draw) if isinstance(A, ThinDirections) else np.asarray(z @ A[:, draw].T)

    def steps(self, gradients: Matrix, compress: Compress) -> tuple[Matrix, Matrix | None]:
        C = self.factors.left
        sent = compress(gradients, self.factors.right)  # (1_J/√h) Aᵀ∇f
        return sent @ C.T, (sent * self.weights) @ C.T if self.momentum else None

    def squared_distance(self, v: Matrix) -> Vector:
        inner = np.linalg.solve(self._whole, v.T).T  # V = A Diag(hw) Aᵀ
        return np.asarray(np.sum(inner**2 / (self.probabilities * self.weights), axis=1))

    def _drawn(self, draw: Any) -> Indices:
        """Return J as ``draw`` returns it; raises ValueError for what is no set of directions."""
        J = np.asarray(draw if dimensions(draw) == 1 else None)
        if J.ndim != 1 or (J.size and (J.dtype.kind not in "iu" or J.min() < 0 or J.max() >= self.d)):
            msg = f"draw must hold places of directions from 0 to {self.d - 1}, as method.draw(rng) returns them"
            raise ValueError(msg)
        return J.astype(np.intp)

    # ---------------------------------------------------------------- shown and saved

    def _numbers(self) -> dict[str, Any]:
        names = ("basis", "rate", "efficiency", "defect")
        own = {"algorithm": self.name, **{name: getattr(self, name) for name in names}}
        return {**own, "probabilities": self.probabilities.tolist()}

    def _shown(self) -> list[tuple[str, str]]:
        h = self.probabilities
        return [
            ("update", self.update if self.memory is None else self.memory.update),
            ("budget", f"{self.k:g} of d = {self.d} floats per round, systematic sampling"),
            ("directions", f"{self.basis}, ‖AᵀLA − I‖ ≤ {self.defect:.1e}"),
            ("probabilities", f"from {h.min():.4g} to {h.max():.4g}"),
            ("rate", f"{self.rate:.9g} ({self.goal})"),
            ("limit", f"reached up to {self.gap:.1e}"),
        ]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta, arrays = super()._contents()
        A = self.directions
        thin = isinstance(A, ThinDirections)
        parts = {"c": np.array(A.c), "t": A.t, "U": A.U, "Z": A.Z} if thin else {"directions": A}
        weights = {"weights": self.weights} if self.momentum else {}
        return (
            meta | {"defect": self.defect, "basis": self.basis},
            {**parts, **arrays, **weights, "probabilities": self.probabilities},
        )

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> SubspaceMethod:
        D, d = stepsize_of(arrays), int(meta["certificate"]["d"])
        check_stepsize(D, d)
        h = _read_probabilities(arrays, d)
        known = {"directions": _read_directions(arrays, D, h), "D": D, "sketch": SystematicSampling(h)}
        weights = arrays.get("weights")
        if weights is not None:
            weights = read_only(_sized("weights", real_array("weights", weights), (d,)))
        aim = goal_class(meta["goal"], momentum=weights is not None)
        return from_fields(cls, meta, goal_class=aim, weights=weights, **known)
