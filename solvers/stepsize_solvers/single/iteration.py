"""The interior-point iteration: Newton steps on the perturbed optimality conditions until the gap is certified.

At a point (D, Z) with F(D) ≻ 0, Z ≻ 0 a step solves the linearisation of

    D⁻¹ + Z = B D R + R D B,      Z F(D) = s I

in Nesterov–Todd scaling and moves both by the same length.  The constraint itself is never relaxed: F is computed
from D.  The target is s = max(σμ, floor(tol), φ(‖r₁‖)): μ must not outrun the dual residual r₁, or the steps
become short for good.  A second-order corrector bends the step where the straight one is short.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

import numpy as np

from stepsize_solvers.numerics import Array, Bounds, Progress, Scaling, identity_path, largest_step, nesterov_todd
from stepsize_solvers.programs import Status
from stepsize_solvers.single.inverse import Interval
from stepsize_solvers.single.model import Model, PointType, System
from stepsize_solvers.single.newton import NewtonStep

# Below this dual residual the iterates follow the central path, on which the curvature changes slowly; its spectrum is
# estimated anew after so many steps.
_SETTLED = 0.1
_SPECTRUM_STEPS = 8
# The gap is about μ.  Above this multiple of the tolerance the bounds are taken at D itself: a repair by scaling costs
# an eigenvalue and would not end the iteration.
NEAR = 30.0


@dataclass(frozen=True)
class Tuning:
    """The constants of the iteration, each measured over the problems of ``make bench-native``.

    start_fraction: the start lies at this fraction of the boundary; closer starts take short first steps.
    step_fraction: fraction of the way to the boundary that a step takes.
    corrector_below: a second-order corrector is solved for when the plain step is shorter than this.
    centring_floor: smallest reduction factor of μ asked for in one step, and
    centring_floor_cheap: the same when conjugate gradients took few iterations.
    cheap_iterations: what counts as few.
    cg_accuracy: conjugate gradients stop at cg_accuracy · s/√μ in the scaled norm (s the target of μ).
    max_cg: cap of conjugate gradient iterations in one solve.
    neighbourhood: a step is shortened when the smallest complementarity product falls below this fraction of μ.
    single_precision_from: see ``NativeOptions``.
    double_below: from this μ on the points themselves are in double precision, at sizes where directions are in single.
    """

    start_fraction: float = 0.95
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

    @staticmethod
    def careful() -> Tuning:
        """Short plain steps in double precision from deeper inside, for a second attempt after a breakdown."""
        return Tuning(
            start_fraction=0.5,
            step_fraction=0.85,
            corrector_below=0.0,
            neighbourhood=0.05,
            single_precision_from=10**9,
            cg_accuracy=0.3,
        )


# Iterate until the gap is this fraction of tol, so that an independent check passes too; give up after so many steps
# without a narrower interval; a healthy solve takes 8 to 25 steps.
TARGET_MARGIN = 0.8
PATIENCE = 12
MOST_STEPS = 100


@dataclass(frozen=True, eq=False)
class Step(Generic[PointType]):
    """An accepted step: the new point, its scaling, the length and how it was found."""

    point: PointType
    scaling: Scaling
    length: float
    corrected: bool
    iterations: int


def _trace(scaling: Scaling) -> float:
    """μ = ⟨F, Z⟩/d, the mean of v²."""
    return float(np.mean(scaling.v * scaling.v))


def residual_floor(norm: float) -> float:
    """φ(‖r₁‖) = min(1, ‖r₁‖)·min(1, 3‖r₁‖), norms over √d: linear while the residual is large, quadratic below."""
    return min(1.0, norm) * min(1.0, 3.0 * norm)


FIRST_CENTRING = 0.3


def next_centring(sigma: float, length: float, iterations: int, tuning: Tuning) -> float:
    """σ after a step: ask for more after long steps, for less after short ones."""
    floor = tuning.centring_floor if iterations > tuning.cheap_iterations else tuning.centring_floor_cheap
    if length > 0.8:
        return max(0.3 * sigma, floor)
    if length > 0.5:
        return max(0.6 * sigma, tuning.centring_floor)
    return min(2.0 * sigma, 0.8) if length < 0.3 else sigma


def target(mu: float, norm: float, sigma: float, tol: float) -> float:
    """s, the μ to aim at.  The gap at a central point is μ: less than a fifth of the tolerance would be wasted work."""
    return max(sigma * mu, 0.2 * tol, min(mu, residual_floor(norm)))


class Iteration(Generic[PointType]):
    """State of one solve: model, options and the current centring factor."""

    def __init__(self, model: Model[PointType], tuning: Tuning, progress: Progress[PointType]) -> None:
        self.model = model
        self.tuning = tuning
        self.tol = progress.limits.tol
        self.progress = progress
        self.sigma = FIRST_CENTRING
        single = model.single_precision and model.d >= tuning.single_precision_from
        self.dtype: type[np.floating[Any]] = np.float32 if single else np.float64
        self.low = single  # the points themselves are in single precision, too
        self.spectrum: Interval | None = None  # of the preconditioned curvature, while it may be used again
        self.spectrum_age = 0

    def run(self, start: PointType) -> Status:
        """Iterate from a strictly feasible point until the gap is certified or a limit is reached."""
        lowered = self.model.lowered(start) if self.low else None
        scaling = None if lowered is None else nesterov_todd(lowered.Ft, lowered.Zt)
        if lowered is None or scaling is None:
            self.low = False
            lowered, scaling = start, nesterov_todd(start.Ft, start.Zt)
        if scaling is None:
            return Status.INACCURATE
        p = lowered
        self.progress.counters.eigendecompositions += 2
        step: Step[PointType] | None = None
        while True:
            mu = _trace(scaling)
            bounds = self.model.bounds(p, scaling.factor, mu <= NEAR * self.tol)
            r1 = self.model.dual_residual(p)
            norm = float(np.linalg.norm(r1)) / self.model.d**0.5
            details = None if self.progress.limits.log is None else _details(mu, norm, step)
            status = self.progress.examine(p, bounds, details, partial(self._confirmed, p))
            if status is not None:
                return status
            step = self._step(p, scaling, r1, norm, mu)
            if step is None and self.low:  # single precision may be what stands in the way, first of the point,
                self.low = False
                p, scaling = start, nesterov_todd(start.Ft, start.Zt)
                if scaling is None:
                    return Status.INACCURATE
                continue
            if step is None and self.dtype is np.float32:  # then of the direction
                self.dtype = np.float64
                step = self._step(p, scaling, r1, norm, mu)
            if step is None:
                return Status.INACCURATE
            self.progress.steps += 1
            self.sigma = next_centring(self.sigma, step.length, step.iterations, self.tuning)
            p, scaling = step.point, step.scaling

    def _confirmed(self, p: PointType) -> Bounds | None:
        """The bounds of a pair computed from D and Z themselves."""
        self.progress.counters.eigendecompositions += 1
        return self.model.confirmed(p)

    # ---------------------------------------------------------------- one step

    def _step(self, p: PointType, scaling: Scaling, r1: Array, norm: float, mu: float) -> Step[PointType] | None:
        options, model, counters = self.tuning, self.model, self.progress.counters
        counters.eigendecompositions += 1
        if not np.all(scaling.t > 0.0):  # W is singular to rounding
            return None
        s = target(mu, norm, self.sigma, self.tol)
        system = model.system(p, scaling, self.dtype, counters, self.spectrum)
        self._keep_spectrum(system, norm)
        to_double = self.low and s < options.double_below
        v = scaling.v
        GV = scaling.V.T.astype(self.dtype, copy=False) @ scaling.G.astype(self.dtype, copy=False)
        # In the basis V: F̂ = Ĝ Diag(v) Ĝᵀ, Ẑ⁻¹ = Ĝ Diag(1/v) Ĝᵀ, and r₂ = s Ẑ⁻¹ − F̂.
        r2 = (GV * (s / v - v).astype(self.dtype, copy=False)) @ GV.T
        tolerance = options.cg_accuracy * s / mu**0.5
        first = system.solve(r1, r2, tolerance, options.max_cg)
        F1, F2 = model.slope(p, first.X), model.bend(p, first.X)
        longest = largest_step([identity_path(first.X), [p.Zt, first.dZt], [p.Ft, F1, F2]])
        counters.products += 4.0
        iterations = first.iterations
        second: NewtonStep | None = None
        if longest < options.corrector_below:
            second, longest = self._corrector(p, scaling, GV, system, first, F1, F2, longest, 2.0 * tolerance)
            iterations += second.iterations if second is not None else 0
            self.progress.correctors += 1
        a = longest if longest == 1.0 else options.step_fraction * longest
        while a > 1e-4:  # shorter steps make no progress; the caller tries double precision or stops
            X = a * first.X if second is None else a * first.X + (a * a) * second.X
            dZt = a * first.dZt if second is None else a * first.dZt + (a * a) * second.dZt
            new = model.advance(p, X, dZt, to_double)
            new_scaling = nesterov_todd(new.Ft, new.Zt) if new is not None else None
            counters.eigendecompositions += 2
            counters.products += 9.0
            if new is not None and new_scaling is not None:
                smallest = float(np.min(new_scaling.v)) ** 2
                if smallest > options.neighbourhood * _trace(new_scaling) or a < 0.05:
                    self.low = self.low and not to_double
                    return Step(new, new_scaling, a, second is not None, iterations)
            a *= 0.8
        return None

    def _corrector(
        self,
        p: PointType,
        scaling: Scaling,
        GV: Array,
        system: System,
        first: NewtonStep,
        F1: Array,
        F2: Array,
        longest: float,
        tolerance: float,
    ) -> tuple[NewtonStep | None, float]:
        """The second-order term of the step and the longest step along a·first + a²·second, if that is longer.

        Its right-hand sides are the second-order parts of the two equations along the first direction; for the
        complementarity that is −F₂ and the product of the scaled changes, divided by (vᵢ + vⱼ)/2.
        """
        V, G, v, t = (M.astype(self.dtype, copy=False) for M in (scaling.V, scaling.G, scaling.v, scaling.t))
        G_inverse = (GV / t[:, None]).T @ V.T  # G⁻ᵀ = W⁻¹ G
        product = G_inverse @ (F1 @ (first.dZt @ G))  # (G⁻¹F₁G⁻ᵀ)(Gᵀ dZ G)
        product = (product + product.T) / (v[:, None] + v)
        r2 = -(V.T @ F2 @ V) - GV @ product @ GV.T
        r1 = self.model.curvature_of_residual(p, first.X, first.dZt)
        second = system.solve(r1, r2, tolerance, self.tuning.max_cg)
        L1, L2 = self.model.slope(p, second.X), self.model.bend(p, second.X)
        cross = self.model.bend(p, first.X + second.X) - F2 - L2
        self.progress.counters.products += 17.0
        arc = largest_step(
            [
                [*identity_path(first.X), second.X],
                [p.Zt, first.dZt, second.dZt],
                [p.Ft, F1, F2 + L1, cross, L2],
            ]
        )
        return (second, arc) if arc > longest else (None, longest)

    def _keep_spectrum(self, system: System, norm: float) -> None:
        """Use the interval found for the curvature again while it hardly changes.

        Only for a polynomial of degree one: whatever the spectrum, that one is a positive multiple of the Jacobi
        preconditioner and at worst leaves more of the residual behind.
        """
        inverse = system.inverse
        settled = inverse.degree == 1 and norm < _SETTLED
        fresh = self.spectrum is None
        self.spectrum_age = 0 if fresh else self.spectrum_age + 1
        self.spectrum = inverse.spectrum if settled and self.spectrum_age < _SPECTRUM_STEPS else None


def _details(mu: float, norm: float, step: Step[PointType] | None) -> dict[str, str]:
    """The columns of the log beside the interval; + marks a corrected step."""
    length = "" if step is None else f"{step.length:.3f}{'+' if step.corrected else ''}"
    return {
        "mu": f"{mu:.2e}",
        "residual": f"{norm:.2e}",
        "step": length,
        "cg": "" if step is None else str(step.iterations),
    }
