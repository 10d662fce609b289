"""The problem of n clients: what is asked for, and what can be decided about it before any solver starts.

*The numbers* of the distributed conditions (12) are ε², Δ⁰, Δ^inf and n.  They ask of K, λ_D and τ = det(D)^{1/d}

    λ_D ≤ min{ n/K, nε² τ/(4Δ^inf) },      K ≥ 12Δ⁰/(τ ε²)                                        (paper, Corollary 1).

Inequalities are decided on exact rationals: every float is one, and K is a whole number.

*Scaling.*  Powers of two bring the diagonal of L near one and take the size out of the Lᵢ.  *Commuting.*  Where every
sketch commutes with the pattern of D, (12) is (12′).  *Equal clients* are found by the bytes of their matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from stepsize_opt.inputs.checks import is_list, nonnegative_number, positive_number, whole_number
from stepsize_opt.inputs.matrices import SMOOTHNESS_REMEDY, Scaling, check_positive_definite, dense, read_matrix
from stepsize_opt.methods import Method
from stepsize_opt.proofs import (
    CentredMap,
    ClientGroup,
    Conditions,
    Pair,
    dominating_factor,
    mean_above,
    mean_of,
    rounded_down,
    rounded_up,
)
from stepsize_opt.sketches.base import Sketch, sketch_of_each
from stepsize_solvers.programs import Matrix, Pattern, Vector, connected_labels, exponent_above, is_identity


def log_fraction(x: Fraction | None) -> float:
    """Return log x for x > 0 of any size, right to a few roundings of its own size; infinite for None."""
    if x is None:
        return math.inf
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    return math.log(x / Fraction(2) ** shift) + shift * math.log(2.0)


@dataclass(frozen=True)
class Targets:
    """What is asked for: E‖∇f‖² ≤ ε² from Δ⁰ = f(x⁰) − f^inf with Δ^inf = f^inf − (1/n) Σ fᵢ^inf and n clients."""

    epsilon2: float
    initial_gap: float
    delta_inf: float
    clients: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon2", positive_number("epsilon2", self.epsilon2))
        object.__setattr__(self, "initial_gap", nonnegative_number("initial_gap", self.initial_gap))
        object.__setattr__(self, "delta_inf", nonnegative_number("delta_inf", self.delta_inf))
        object.__setattr__(self, "clients", whole_number("clients", self.clients))

    @property
    def det_factor(self) -> Fraction | None:
        """nε²/(4Δ^inf), the factor of τ in the second bound on λ_D; None for Δ^inf = 0, when there is no bound."""
        return self._share(4 * Fraction(self.delta_inf))

    @property
    def kappa(self) -> Fraction | None:
        """nε² min{1/(12Δ⁰), 1/(4Δ^inf)}: with K = 12Δ⁰/(τε²), the bounds on λ_D are κτ; None when there is no bound."""
        return self._share(max(12 * Fraction(self.initial_gap), 4 * Fraction(self.delta_inf)))

    def _share(self, divisor: Fraction) -> Fraction | None:
        return self.clients * Fraction(self.epsilon2) / divisor if divisor else None

    def log_limits(self, K: int | None) -> tuple[float, float]:
        """Return log c and log κ of λ_D ≤ min{c, κτ}, as in ``lambda_allowed``; infinite for a bound there is not."""
        if K is None:
            return math.inf, log_fraction(self.kappa)
        return log_fraction(Fraction(self.clients, K)), log_fraction(self.det_factor)

    def lambda_allowed(self, K: int | None, rate: float) -> float:
        """Return min{n/K, nε²τ/(4Δ^inf)}, rounded down; ``rate`` must be a lower bound of τ = det(D)^{1/d}.

        For None κτ: λ_D below it satisfies (12) for the real number K = 12Δ⁰/(τε²).
        """
        factor = self.kappa if K is None else self.det_factor
        bounds = [] if K is None else [Fraction(self.clients, K)]
        bounds += [] if factor is None else [factor * Fraction(rate)]
        return rounded_down(min(bounds)) if bounds else math.inf

    def enough(self, K: int, rate: float) -> bool:
        """Return whether K ≥ 12Δ⁰/(τε²), exactly."""
        return K * Fraction(rate) * Fraction(self.epsilon2) >= 12 * Fraction(self.initial_gap)

    def least_iterations(self, rate: float | Fraction) -> int:
        """Return the smallest whole K ≥ 1 with K ≥ 12Δ⁰/(τε²), exactly."""
        return self._least(12, rate)

    def single_iterations(self, rate: float | Fraction) -> int:
        """Return the smallest whole K ≥ 1 with K ≥ 2Δ⁰/(τε²), exactly: what one node needs."""
        return self._least(2, rate)

    def _least(self, factor: int, rate: float | Fraction) -> int:
        if not math.isfinite(rate):
            return 1
        return max(1, math.ceil(factor * Fraction(self.initial_gap) / (Fraction(rate) * Fraction(self.epsilon2))))

    def neighbourhood(self, lambda_D: float, rate: float) -> float:
        """Return 2λ_DΔ^inf/(τ n), rounded up: the part of the bound of Theorem 3 that does not vanish with K."""
        return rounded_up(2 * Fraction(lambda_D) * Fraction(self.delta_inf) / (Fraction(rate) * self.clients))


# A diagonal entry of L in scaled coordinates: its fourth power is still a float.
_LEAST_ENTRY = 2.0**-250


@dataclass(frozen=True, eq=False)
class Clients:
    """What the user gave: Lᵢ and Sᵢ of each client, and L if it is not the mean of the Lᵢ."""

    matrices: list[Matrix]
    sketches: list[Sketch]
    mean: Matrix | None

    @property
    def d(self) -> int:
        return len(self.matrices[0])

    @property
    def common_sketch(self) -> Sketch | None:
        """The sketch of all clients, None where they have different ones."""
        first = self.sketches[0]
        return first if all(sketch == first for sketch in self.sketches) else None

    @property
    def smoothness(self) -> Matrix:
        """A matrix of floats L̂ ⪰ L: L as given, or the mean of the Lᵢ rounded up."""
        return mean_above(self.matrices) if self.mean is None else self.mean


def read_clients(smoothness: Sequence[Any], sketch: object, mean: Any) -> Clients:
    """Check the arguments; raises TypeError or ValueError with the name of the one that is wrong."""
    if getattr(smoothness, "ndim", 0) == 2:  # an array, a frame or a sparse matrix
        msg = "smoothness must be the list of the clients' matrices; for one client pass [L]"
        raise ValueError(msg)
    if not is_list(smoothness):
        msg = f"smoothness must be the list of the clients' matrices, got {smoothness!r}"
        raise TypeError(msg)
    matrices = [_dense(f"smoothness[{i}]", value) for i, value in enumerate(smoothness)]
    if not matrices:
        msg = "smoothness must hold at least one matrix"
        raise ValueError(msg)
    d = len(matrices[0])
    for i, L in enumerate(matrices):
        if len(L) != d:
            msg = f"smoothness[{i}] is {len(L)}×{len(L)} but smoothness[0] is {d}×{d}"
            raise ValueError(msg)
        if dominating_factor(L) is None:
            low = float(np.linalg.eigvalsh(L)[0])
            msg = f"smoothness[{i}] must be positive semidefinite, but its smallest eigenvalue is {low:.3g}"
            raise ValueError(msg)
    if mean is not None:
        mean = _dense("mean_smoothness", mean)
        if len(mean) != d:
            msg = f"mean_smoothness is {len(mean)}×{len(mean)} but the clients' matrices are {d}×{d}"
            raise ValueError(msg)
        check_positive_definite("mean_smoothness", mean, SMOOTHNESS_REMEDY)
    return Clients(matrices, sketch_of_each(sketch, len(matrices), d), mean)


def _dense(name: str, value: Any) -> Matrix:
    return dense(read_matrix(name, value))


def reduce_clients(clients: Clients, pattern: Pattern, method: Method) -> tuple[Conditions, tuple[str, ...]]:
    """Return the conditions in scaled coordinates without equal clients, and notes for the user.

    Raises ValueError where L is singular or float64 ends.
    """
    matrices, sketches, mean = clients.matrices, clients.sketches, clients.mean
    notes: list[str] = []
    scaling = Scaling(_common_scaling(_diagonal(matrices, mean), sketches))
    if np.any(scaling.factors != 1.0):
        notes.append("diagonal scaling")
    scaled = [scaling.times(M) for M in matrices]
    L = mean_of(scaled) if mean is None else Pair.exact(scaling.times(mean))
    _check_scaled(L.hi, scaled)
    if mean is None:
        check_positive_definite("the mean of the clients' matrices", L.hi, SMOOTHNESS_REMEDY)
    # Where the scaling took an entry below the normal floats it lost bits, all of them below 2⁻¹⁰⁰⁰.
    L = L + Pair(np.zeros_like(L.hi), error=np.full_like(L.hi, 2.0**-1000))
    noisy = [(M, s) for M, s in zip(scaled, sketches, strict=True) if np.any(M) and not s.untouched.all()]
    exponent = max((exponent_above(M) for M, _ in noisy), default=0)
    groups, equal = _groups([(np.ldexp(M, -exponent), s) for M, s in noisy])
    if equal:
        notes.append(f"{equal} clients equal to others")
    if pattern.W is not None:
        W = scaling.over(np.ldexp(pattern.W, -exponent_above(pattern.W)))
        pattern = Pattern(pattern.sizes, np.ldexp(W, -exponent_above(W)))
    # A full D has the better linear form, whatever commutes.
    commutes = not pattern.is_full and bool(groups) and all(pattern.commutes_with(g.map.full) for g in groups)
    law = groups[0].map.full if groups else sketches[0].map
    sketch_outside = is_identity(method.condition(law, commutes=commutes).inner)
    if is_identity(method.condition(law).inner) and not sketch_outside:
        notes.append("the sketches commute with D: (12) is (12′)")
    conditions = Conditions(L, tuple(groups), sketch_outside, pattern, scaling.factors, exponent)
    conditions = replace(conditions, groups=tuple(g for g in groups if conditions.noisy(g).size))
    if sketch_outside and pattern.is_full:
        notes.append("(12) is linear in A = DLD")
    return conditions, tuple(notes)


def _groups(clients: list[tuple[Matrix, Sketch]]) -> tuple[list[ClientGroup], int]:
    """Return the clients of each sketch without those equal to others, and how many these are."""
    by_sketch: dict[Sketch, dict[bytes, Matrix]] = {}
    for M, s in clients:
        by_sketch.setdefault(s, {})[M.tobytes()] = M
    groups = []
    for s, members in by_sketch.items():
        kept = [M for M in members.values() if np.any(M)]  # a matrix far below the others has become zero
        if kept:
            groups.append(ClientGroup(CentredMap(s.map, np.flatnonzero(~s.untouched)), np.array(kept)))
    return groups, len(clients) - sum(map(len, by_sketch.values()))


def _diagonal(matrices: list[Matrix], mean: Matrix | None) -> Vector:
    """Return the diagonal of L to rounding; raises ValueError when an entry is zero."""
    if mean is not None:
        return np.diagonal(mean)
    diagonals = np.array([np.diagonal(M) for M in matrices])
    top = diagonals.max(axis=0)
    if not top.all():
        check_positive_definite("the mean of the clients' matrices", np.diag(top), SMOOTHNESS_REMEDY)
    return np.asarray(top * np.mean(diagonals / top, axis=0))  # a sum might overflow


def _check_scaled(L: Matrix, clients: list[Matrix]) -> None:
    """Raise ValueError for a problem that no scaling brings into the range of floats."""
    diagonal = np.diagonal(L)
    if not (_LEAST_ENTRY < diagonal.min() and diagonal.max() < 1.0 / _LEAST_ENTRY):
        msg = (
            f"a sketch couples coordinates with smoothness from {diagonal.min():.3g} to {diagonal.max():.3g} (scaled), "
            "too far apart for float64; choose other units for the coordinates"
        )
        raise ValueError(msg)
    for i, M in enumerate(clients):
        if not np.isfinite(M).all():
            msg = f"smoothness[{i}] is too large beside mean_smoothness for float64; is mean_smoothness in other units?"
            raise ValueError(msg)


def _common_scaling(diagonal: Vector, sketches: list[Sketch]) -> Vector:
    """Return powers of two Λ, equal on coordinates that a sketch couples, that bring the diagonal of ΛLΛ near one."""
    d = len(diagonal)
    coupled = np.eye(d, dtype=bool)
    for s in dict.fromkeys(sketches):
        labels = s.map.groups
        coupled |= labels[:, None] == labels
    labels = connected_labels(coupled)
    mean = np.bincount(labels, weights=np.log2(diagonal)) / np.bincount(labels)
    return np.asarray(np.ldexp(1.0, np.rint(-0.5 * mean).astype(np.intc)))[labels]
