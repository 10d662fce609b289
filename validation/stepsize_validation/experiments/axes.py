"""What a figure shows on its axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepsize_opt.sketches import BITS_PER_NUMBER
from stepsize_validation.experiments.curve import Curve


@dataclass(frozen=True)
class Axis:
    """A name for the file, a label, and how a curve gives its numbers."""

    name: str
    label: str
    of: Callable[[Curve], Any]

    @property
    def words(self) -> str:
        """The label without the marks of mathematics, for text."""
        return self.label.translate({ord(mark): None for mark in "${}"}).replace(" - ", " − ")


@dataclass(frozen=True)
class Axes:
    """One figure."""

    x: Axis
    y: Axis


ITERATIONS = Axis("iterations", "iterations K", lambda curve: curve.steps)
BITS = Axis("bits", f"bits sent, {BITS_PER_NUMBER} a number", lambda curve: curve.bits)
NUMBERS = Axis("numbers", "numbers sent", lambda curve: curve.bits / BITS_PER_NUMBER)
WEIGHTED = Axis("weighted", "$G_K$, weighted by $D$ (descent: $H$)", lambda curve: curve.weighted)
EUCLIDEAN = Axis("euclidean", "$E_K$, Euclidean", lambda curve: curve.euclidean)
# f itself is known at fewer steps than its gradients; step 0 has no place on a log axis.
VALUES = Axes(
    Axis("steps", ITERATIONS.label, lambda curve: curve.value_steps[1:]),
    Axis("values", "$f(x^K) - f^{inf}$", lambda curve: curve.values[:, 1:] - curve.meta["f_inf_found"]),
)
VALUES_SENT = Axes(
    Axis("numbers", NUMBERS.label, lambda curve: curve.value_steps[1:] * curve.bits_per_round / BITS_PER_NUMBER),
    VALUES.y,
)
