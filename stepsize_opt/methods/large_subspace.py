"""The subspace method x⁺ = x − A_J A_Jᵀ∇f(x) for L = UUᵀ + Diag(s²), with directions that are applied, not formed.

With S = Diag(s) and the Householder form of the QR factorisation of S⁻¹U = Q₁R, R = PΣOᵀ,

    L = S (I + Q₁PΣ²PᵀQ₁ᵀ) S,      A = S⁻¹ Q Diag(P, I) Diag(1 + σ², 1)^{−½},      AᵀLA = I,

where Q is the d×d orthogonal matrix whose first r columns are Q₁.  LAPACK's geqrf keeps it as r reflections, and ormqr
applies it and its transpose at the cost of O(dr).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from scipy import sparse
from scipy.linalg import lapack
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from stepsize_opt.inputs import Array, Shown, real_array
from stepsize_opt.limit import read_budget, share_of_inverse
from stepsize_opt.methods.base import Condition, Factors, Method
from stepsize_opt.operators import LowRankPlusDiagonal, StepsizeOperator
from stepsize_opt.sketches import Sketch, SystematicSampling, rounded_to_budget
from stepsize_solvers.programs import Indices, Matrix, PositiveMap, Vector

NOT_PROVED = "computed, not proved: AᵀLA = I holds up to the rounding of r reflections, for which no bound is proved"


class Directions(LinearOperator):  # type: ignore[misc]
    """A = S⁻¹ Q Diag(P, I) Diag(1 + σ², 1)^{−½} by its products; tau: the factors of LAPACK's reflections."""

    def __init__(self, scale: Vector, reflections: Matrix, tau: Vector, rotation: Matrix, values: Vector) -> None:
        super().__init__(np.float64, (len(scale), len(scale)))
        self.scale, self.reflections, self.tau, self.rotation, self.values = scale, reflections, tau, rotation, values

    def _matmat(self, X: Any) -> Any:
        Y, r = np.array(X, dtype=np.float64, order="F"), len(self.values)
        Y[:r] = self.rotation @ (Y[:r] / np.sqrt(self.values)[:, None])
        return self._reflected("N", Y) / self.scale[:, None]

    def _rmatmat(self, X: Any) -> Any:
        Y, r = self._reflected("T", np.asfortranarray(X / self.scale[:, None])), len(self.values)
        Y[:r] = (self.rotation.T @ Y[:r]) / np.sqrt(self.values)[:, None]
        return Y

    def _matvec(self, x: Any) -> Any:
        return self._matmat(np.reshape(x, (-1, 1)))[:, 0]

    def _rmatvec(self, x: Any) -> Any:
        return self._rmatmat(np.reshape(x, (-1, 1)))[:, 0]

    def _reflected(self, trans: str, Y: Matrix) -> Matrix:
        out, _, info = lapack.dormqr("L", trans, self.reflections, self.tau, Y, 64 * Y.shape[1], overwrite_c=1)
        assert info == 0  # only a wrong argument fails
        return np.asarray(out)


@final
@dataclass(frozen=True, eq=False, repr=False)
class LargeSubspaceMethod(Shown, Method, by_name=False):
    """x⁺ = x − A_J A_Jᵀ∇f(x) for a LowRankPlusDiagonal: what ``optimal_method`` returns for it, criterion ``det``.

    It runs like the dense one: ``run(f, method.D, method.sketch, algorithm=method)``.

    Attributes
    ----------
    k : float
        Numbers a round.
    sketch : SystematicSampling
        The law of J; every direction has the probability k/d.
    rate : float
        (k/d) det(L)^{−1/d}, the limit, in plain floating point.
    D : StepsizeOperator
        Next to (k/d)L⁻¹, and below it by proof.
    directions : scipy.sparse.linalg.LinearOperator
        A, d×d, by its products.
    reason : str
        What is not proved, and why.
    """

    name: ClassVar[str] = "subspace"
    update: ClassVar[str] = "x⁺ = x − A_J A_Jᵀ ∇f(x), AᵀLA = I"

    k: float
    sketch: SystematicSampling
    rate: float
    D: StepsizeOperator
    directions: Directions
    reason: str = NOT_PROVED

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def digest_parts(self) -> list[Any]:
        """What tells the method from another."""
        A = self.directions
        return [self.k, self.sketch, A.scale, A.reflections, A.tau, A.rotation, A.values]

    @property
    def d(self) -> int:
        """Size of L."""
        return self.sketch.d

    # ---------------------------------------------------------------- one round as messages

    def draw(self, rng: np.random.Generator) -> Indices:
        """J, ascending: ⌊k⌋ or ⌈k⌉ directions."""
        return np.flatnonzero(self.sketch.sample_diagonal(rng, 1)[0])

    def encode(self, gradient: Array, draw: Indices) -> Vector:
        """A_Jᵀg, the numbers that are sent: shape (d,) → (size of J,)."""
        return np.asarray(self.directions.rmatvec(self._vector("gradient", gradient, self.d))[draw])

    def decode(self, numbers: Array, draw: Indices) -> Vector:
        """A_J z, what is subtracted from x: shape (size of J,) → (d,)."""
        y = np.zeros(self.d)
        y[draw] = self._vector("numbers", numbers, len(draw))
        return np.asarray(self.directions.matvec(y))

    def _vector(self, name: str, value: Array, size: int) -> Vector:
        out = real_array(name, value)
        if out.shape != (size,):
            msg = f"{name} must have shape ({size},), got {out.shape}"
            raise ValueError(msg)
        return out

    # ---------------------------------------------------------------- as a method

    def check(self, sketches: Sequence[Sketch], *, scalar: bool, clients: bool) -> None:
        check_own_sketch(sketches, self.sketch)

    def factors(self, D: Any, smoothness: Callable[[], Matrix]) -> Factors:
        if D is not self.D:
            raise ValueError(OWN_STEPSIZE)
        C: Any = self.directions @ aslinearoperator(sparse.diags_array(np.sqrt(self.sketch.p)))
        return Factors(C, C.T)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        C = (self.directions @ np.eye(self.d)) * np.sqrt(self.sketch.p)
        return C @ law(C.T @ L @ C) @ C.T

    def moment_operator(self, D: StepsizeOperator, L: Any, sketch: Sketch) -> Any:
        """D itself: AᵀLA = I, for the L of the method, makes GᵀLG = G."""
        return D

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        raise ValueError(NO_CONDITION)

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("update", self.update),
            ("budget", f"{self.k:g} of d = {self.d} numbers a round"),
            ("directions", f"{len(self.directions.values)} Householder reflections"),
            ("rate det(D)^(1/d)", f"{self.rate:.9g}"),
            ("proof", self.reason),
        ]


OWN_STEPSIZE = "the subspace method has a stepsize of its own: use method.D"
NO_CONDITION = "the subspace method has a stepsize of its own: optimal_method(L, k) finds it, optimal_stepsize does not"


def check_own_sketch(sketches: Sequence[Sketch], own: Sketch) -> None:
    """Raise ValueError for a sketch that is not that of the method."""
    for sketch in sketches:
        if sketch != own:
            msg = f"the subspace method has a sketch of its own, method.sketch: got {sketch}"
            raise ValueError(msg)


def large_subspace_method(L: LowRankPlusDiagonal, k: object, criterion: str) -> LargeSubspaceMethod:
    """The subspace method of an L that is never formed; raises ValueError for what has no such method."""
    budget, d = read_budget(k, L.d), L.d
    if criterion != "det" or sparse.issparse(L.U) or L.rank > d:
        msg = "a LowRankPlusDiagonal has a subspace method for criterion='det' and a dense U, r ≤ d; use L.todense()"
        raise ValueError(msg)
    scale = np.sqrt(L.own)
    work: Any = np.asfortranarray(L.U / scale[:, None])
    reflections, tau, _, info = lapack.dgeqrf(work, overwrite_a=1)
    assert info == 0  # only a wrong argument fails
    rotation, sigma, _ = np.linalg.svd(np.triu(reflections[: L.rank]))
    values = 1.0 + sigma**2
    log_det = float(np.log(L.own).sum() + np.log(values).sum())
    sketch = SystematicSampling(rounded_to_budget(np.full(d, budget / d), budget))
    rate = budget / d * float(np.exp(-log_det / d))
    directions = Directions(scale, reflections, tau, rotation, values)
    return LargeSubspaceMethod(budget, sketch, rate, share_of_inverse(L, budget)[0], directions)
