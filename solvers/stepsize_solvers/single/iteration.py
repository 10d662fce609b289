"""The interior-point iteration: Newton steps on the perturbed optimality conditions until the gap is certified.

At a point (D, Z) with F(D) ≻ 0, Z ≻ 0 a step solves the linearisation of

    D⁻¹ + Z = B D R + R D B,      Z F(D) = s I

in Nesterov–Todd scaling and moves both by the same length.  The constraint itself is never relaxed: F is computed
from D.  The target is s = max(σμ, floor(tol), φ(‖r₁‖)): μ must not outrun the dual residual r₁, or the steps
become short for good.  A second-order corrector bends the step where the straight one is short.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from stepsize_solvers.numerics import Array, NativeOptions, Scaling, identity_path, largest_step, nesterov_todd
from stepsize_solvers.programs import Status
from stepsize_solvers.single.inverse import Interval
from stepsize_solvers.single.model import Model, P, System
from stepsize_solvers.single.newton import Counters, Direction
from stepsize_solvers.single.point import Bounds

# Below this dual residual the iterates follow the central path, on which the curvature changes slowly; its spectrum is
# estimated anew after so many steps.
_SETTLED = 0.1
_SPECTRUM_STEPS = 8
# The gap is about mμ.  Above this multiple of the tolerance the bounds are taken at D itself: a repair by scaling costs
# an eigenvalue and would not end the iteration.
NEAR = 30.0


@dataclass(frozen=True, eq=False)
class Best(Generic[P]):
    """The pair with the narrowest certified interval so far."""

    point: P
    bounds: Bounds


@dataclass
class Progress(Generic[P]):
    """What the iteration did and the interval it has certified; the best pair survives an interruption."""

    best: Best[P] | None = None
    steps: int = 0
    correctors: int = 0
    counters: Counters = field(default_factory=Counters)
    history: list[tuple[float, float]] = field(default_factory=list)
    lower: float = -np.inf
    upper: float = np.inf

    def record(self, p: P, bounds: Bounds) -> bool:
        """Note the interval of a point; True when it is the narrowest so far, or no finite one is known yet."""
        self.lower = max(self.lower, bounds.lower)
        self.upper = min(self.upper, bounds.upper)
        self.history.append((self.lower, self.upper))
        best = self.best
        unbounded = best is None or not np.isfinite(best.bounds.upper)
        if best is None or bounds.width < best.bounds.width or (unbounded and bounds.lower > best.bounds.lower):
            self.best = Best(p, bounds)
        return unbounded or self.best is not best


@dataclass(frozen=True, eq=False)
class Step(Generic[P]):
    """An accepted step: the new point, its scaling, the length and how it was found."""

    point: P
    scaling: Scaling
    length: float
    corrected: bool
    iterations: int


def _trace(scaling: Scaling) -> float:
    """μ = Σ_j ⟨F_j, Z_j⟩/(md), the mean of v²."""
    return float(np.mean(scaling.v * scaling.v))


def _t(M: Array) -> Array:
    """Transposes of one matrix or a stack."""
    return M.swapaxes(-1, -2)


def residual_floor(norm: float) -> float:
    """φ(‖r₁‖) = min(1, ‖r₁‖)·min(1, 3‖r₁‖), norms over √d: linear while the residual is large, quadratic below."""
    return min(1.0, norm) * min(1.0, 3.0 * norm)


class Iteration(Generic[P]):
    """State of one solve: model, options and the current centring factor."""

    def __init__(self, model: Model[P], options: NativeOptions, tol: float, progress: Progress[P]) -> None:
        self.model = model
        self.options = options
        self.tol = tol
        self.progress = progress
        self.sigma = 0.3
        single = model.single_precision and model.d >= options.single_precision_from
        self.dtype: type[np.floating[Any]] = np.float32 if single else np.float64
        self.low = single  # the points themselves are in single precision, too
        self.spectrum: Interval | None = None  # of the preconditioned curvature, while it may be used again
        self.spectrum_age = 0

    def run(self, start: P, max_iters: int, deadline: float, log: Callable[[str], None] | None) -> Status:
        """Iterate from a strictly feasible point until the gap is certified or a limit is reached."""
        d = self.model.d
        lowered = self.model.lowered(start) if self.low else None
        scaling = None if lowered is None else nesterov_todd(lowered.Ft, lowered.Zt)
        if lowered is None or scaling is None:
            self.low = False
            lowered, scaling = start, nesterov_todd(start.Ft, start.Zt)
        if scaling is None:
            return Status.INACCURATE
        p = lowered
        self.progress.counters.eigendecompositions += 2
        stalled = 0
        step: Step[P] | None = None
        if log is not None:
            log(f"{'iter':>4} {'log det D / d':>16} {'gap':>9} {'mu':>9} {'residual':>9} {'step':>6} {'cg':>4}")
        while True:
            mu = _trace(scaling)
            bounds = self.model.bounds(p, scaling.factor, self.model.m * mu <= NEAR * self.tol)
            stalled = 0 if self.progress.record(p, bounds) else stalled + 1
            r1 = self.model.dual_residual(p)
            norm = float(np.linalg.norm(r1)) / d**0.5
            if log is not None:
                length, cg = (f"{step.length:6.3f}", f"{step.iterations:4d}") if step else (" " * 6, " " * 4)
                mark = "+" if step is not None and step.corrected else ""
                log(
                    f"{self.progress.steps:4d} {bounds.lower / d:16.9f} {bounds.width / d:9.2e} {mu:9.2e} {norm:9.2e}"
                    f" {length} {cg}{mark}"
                )
            if bounds.width <= self.options.target_margin * self.tol * d and self._confirmed(p):
                return Status.OPTIMAL
            if self.progress.steps >= max_iters or time.perf_counter() > deadline:
                return Status.USER_LIMIT
            if stalled >= self.options.stall_limit:
                return Status.INACCURATE
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
            self._update_centring(step)
            p, scaling = step.point, step.scaling

    def _confirmed(self, p: P) -> bool:
        """Whether the pair still meets the tolerance when its bounds are computed from D and Z themselves."""
        bounds = self.model.confirmed(p)
        self.progress.counters.eigendecompositions += 1
        if bounds is None or bounds.width > self.tol * self.model.d:
            return False
        self.progress.best = Best(p, bounds)
        return True

    # ---------------------------------------------------------------- one step

    def _step(self, p: P, scaling: Scaling, r1: Array, norm: float, mu: float) -> Step[P] | None:
        options, model, counters = self.options, self.model, self.progress.counters
        counters.eigendecompositions += 1
        if not np.all(scaling.t > 0.0):  # W is singular to rounding
            return None
        # The gap at a central point is mμ: a target below a fifth of the tolerance would be wasted work.
        s = max(self.sigma * mu, 0.2 * self.tol / model.m, min(mu, residual_floor(norm)))
        system = model.system(p, scaling, self.dtype, counters, self.spectrum)
        self._keep_spectrum(system, norm)
        to_double = self.low and s < options.double_below
        v = scaling.v
        GV = _t(scaling.V).astype(self.dtype, copy=False) @ scaling.G.astype(self.dtype, copy=False)
        # In the basis V: F̂ = Ĝ Diag(v) Ĝᵀ, Ẑ⁻¹ = Ĝ Diag(1/v) Ĝᵀ, and r₂ = s Ẑ⁻¹ − F̂.
        r2 = (GV * (s / v - v).astype(self.dtype, copy=False)[..., None, :]) @ _t(GV)
        tolerance = options.cg_accuracy * s / mu**0.5
        first = system.solve(r1, r2, tolerance, options.max_cg)
        F1, F2 = model.slope(p, first.X), model.bend(p, first.X)
        longest = largest_step([identity_path(first.X), [p.Zt, first.dZt], [p.Ft, F1, F2]])
        counters.products += 4.0
        iterations = first.iterations
        second: Direction | None = None
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
        p: P,
        scaling: Scaling,
        GV: Array,
        system: System,
        first: Direction,
        F1: Array,
        F2: Array,
        longest: float,
        tolerance: float,
    ) -> tuple[Direction | None, float]:
        """The second-order term of the step and the longest step along a·first + a²·second, if that is longer.

        Its right-hand sides are the second-order parts of the two equations along the first direction; for the
        complementarity that is −F₂ and the product of the scaled changes, divided by (vᵢ + vⱼ)/2.
        """
        V, G, v, t = (M.astype(self.dtype, copy=False) for M in (scaling.V, scaling.G, scaling.v, scaling.t))
        G_inverse = _t(GV / t[..., :, None]) @ _t(V)  # G⁻ᵀ = W⁻¹ G
        product = G_inverse @ (F1 @ (first.dZt @ G))  # (G⁻¹F₁G⁻ᵀ)(Gᵀ dZ G)
        product = (product + _t(product)) / (v[..., :, None] + v[..., None, :])
        r2 = -(_t(V) @ F2 @ V) - GV @ product @ _t(GV)
        r1 = self.model.curvature_of_residual(p, first.X, first.dZt)
        second = system.solve(r1, r2, tolerance, self.options.max_cg)
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

    def _update_centring(self, step: Step[P]) -> None:
        """Ask for more after long steps, for less after short ones."""
        options = self.options
        floor = options.centring_floor if step.iterations > options.cheap_iterations else options.centring_floor_cheap
        if step.length > 0.8:
            self.sigma = max(0.3 * self.sigma, floor)
        elif step.length > 0.5:
            self.sigma = max(0.6 * self.sigma, options.centring_floor)
        elif step.length < 0.3:
            self.sigma = min(2.0 * self.sigma, 0.8)
