"""The constants of the iteration, each with its reason, and what it reports while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class NativeOptions:
    """Options of the native solver; ``Settings.extra`` may override any of them by name.

    start_fraction: the start lies at this fraction of the boundary; closer starts take short first steps.
    target_margin: iterate until the gap is this fraction of tol, so that an independent check passes too.
    step_fraction: fraction of the way to the boundary that a step takes.
    corrector_below: a second-order corrector is solved for when the plain step is shorter than this.
    centring_floor: smallest reduction factor of μ asked for in one step, and
    centring_floor_cheap: the same when conjugate gradients took few iterations.
    cheap_iterations: what counts as few.
    cg_accuracy: conjugate gradients stop at cg_accuracy · s/√μ in the scaled norm (s the target of μ).
    max_cg: cap of conjugate gradient iterations in one solve.
    neighbourhood: a step is shortened when the smallest complementarity product falls below this fraction of μ.
    single_precision_from: size from which directions are computed in single precision.
    double_below: from this μ on the points themselves are in double precision, at sizes where directions are in single.
    closed_forms: try the closed forms first, and start from them where they beat the powers.
    stall_limit: give up after so many steps without a better gap.
    max_iters: steps when the settings give no limit; a healthy solve takes 8 to 25.
    """

    start_fraction: float = 0.95
    target_margin: float = 0.8
    step_fraction: float = 0.97
    corrector_below: float = 0.75
    centring_floor: float = 0.25
    centring_floor_cheap: float = 0.15
    cheap_iterations: int = 8
    cg_accuracy: float = 1.5
    max_cg: int = 400
    neighbourhood: float = 1e-3
    single_precision_from: int = 48
    double_below: float = 0.01
    closed_forms: bool = True
    stall_limit: int = 12
    max_iters: int = 100

    @staticmethod
    def from_extra(extra: Mapping[str, Any]) -> NativeOptions:
        """Options with the given overrides; an unknown name is an error that lists the known ones."""
        if not extra:
            return _DEFAULTS
        known = {f.name for f in fields(NativeOptions)}
        unknown = sorted(set(extra) - known)
        if unknown:
            msg = f"unknown native option {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            raise ValueError(msg)
        return NativeOptions(**dict(extra))


_DEFAULTS = NativeOptions()
