"""What the limit and the method that attains it share as answers, and the limit itself."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

from stepsize_opt.goals import Goal, goal_class
from stepsize_opt.large.stepsizes import StepsizeOperator, check_stepsize, stepsize_from_arrays
from stepsize_opt.proofs import Certificate, exp_down, exp_up
from stepsize_opt.saving import Saved, from_fields
from stepsize_solvers.programs import Shown, Vector

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


def stepsize_of(arrays: dict[str, Any]) -> Any:
    """Return D of the arrays of a result file."""
    parts = {name: arrays[name] for name in _STEPSIZES if name in arrays}
    return parts["D"] if "D" in parts else stepsize_from_arrays(parts)


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
        aim = goal_class(meta["goal"], meta["momentum"])
        return from_fields(cls, meta, goal_class=aim, D=stepsize_of(arrays), probabilities=arrays["probabilities"])
