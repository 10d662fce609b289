"""What a stepsize is best for: the guarantee that is asked for, and the criterion by which it is judged.

guarantee ``condition``: the paper's T(D) ⪯ D, which makes E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D.  guarantee ``descent``: the
same with H = 2D − T(D) in place of D, which needs no condition (docs/theory.md).  Either matrix is judged by its
determinant, or by the largest t with D ⪰ tM⁻¹ or H ⪰ tM⁻¹: M = I for ``euclidean``, a given M ⪯ ∇²f for ``linear``.
criterion ``convex`` has a condition of its own, 𝒫(D) ⪯ L⁻¹, judged by det D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from stepsize_opt.inputs import Symmetric, check_one_of, dense
from stepsize_opt.limit import check_lower, read_floor
from stepsize_opt.methods import DetCGD1, DetCGD2, Method, SketchedGradient
from stepsize_solvers.programs import Indices, Matrix, Pattern, PositiveMap, Vector

Guarantee: TypeAlias = Literal["condition", "descent"]
Criterion: TypeAlias = Literal["det", "euclidean", "linear", "convex"]
GUARANTEES: tuple[Guarantee, ...] = get_args(Guarantee)
CRITERIA: tuple[str, ...] = get_args(Criterion)


@dataclass(frozen=True, eq=False)
class Floor:
    """M of H ⪰ tM⁻¹ in the coordinates of a piece: H̃ ⪰ t̃ M̃⁻¹ with M̃ = 2^shift ΛMΛ near one and t̃ = 2^shift t."""

    M: Matrix | float
    shift: int
    d: int

    @property
    def matrix(self) -> Matrix:
        """M̃⁻¹ in floating point, the floor of the program."""
        return np.eye(self.d) if isinstance(self.M, float) else np.asarray(np.linalg.inv(self.M), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Goal:
    """guarantee, criterion, and M of ``linear`` or ``euclidean``: a matrix, or a number μ that stands for μI."""

    guarantee: str = "condition"
    criterion: str = "det"
    M: Symmetric | float | None = None

    @staticmethod
    def read(guarantee: object, criterion: object, lower: Any, d: int) -> Goal:
        """Raises ValueError or TypeError for names that are unknown or do not go together, or an M of no use."""
        check_one_of("guarantee", guarantee, GUARANTEES)
        check_one_of("criterion", criterion, CRITERIA)
        if guarantee == "descent" and criterion == "convex":
            msg = "criterion='convex' has a condition of its own, E[SDS] ⪯ L⁻¹: ask for it with guarantee='condition'"
            raise ValueError(msg)
        return Goal(str(guarantee), str(criterion), read_floor(criterion, lower, d))

    @property
    def is_convex(self) -> bool:
        return self.criterion == "convex"

    @property
    def edges(self) -> Symmetric | None:
        """A matrix whose entries connect coordinates, or None."""
        return None if isinstance(self.M, float) else self.M

    def block(self, indices: Indices) -> Matrix:
        """The rows and columns of M that belong to some of the coordinates."""
        assert self.M is not None
        if isinstance(self.M, float):
            return self.M * np.eye(indices.size)
        M: Any = self.M
        return dense(M[indices][:, indices])

    def diagonal(self, indices: Indices) -> Vector | None:
        """The diagonal of that block; None without M."""
        if self.M is None:
            return None
        return np.full(indices.size, self.M) if isinstance(self.M, float) else np.asarray(self.M.diagonal()[indices])

    def restricted(self, indices: Indices) -> Matrix | float | None:
        """M on some of the coordinates."""
        return self.M if self.M is None or isinstance(self.M, float) else self.block(indices)

    def check(self, L: Matrix, indices: Indices) -> None:
        """Raise ValueError unless 0 ≺ M ⪯ L on a group of coordinates; I of ``euclidean`` is no bound on ∇²f."""
        M = self.restricted(indices)
        if self.criterion == "linear" and M is not None:
            check_lower(M, L)

    def method(self, method: Method, pattern: Pattern, law: PositiveMap) -> Method:
        """The method as the goal sees it: ``convex`` is proved for G = DS.  Raises ValueError for another G."""
        if not self.is_convex or isinstance(method, SketchedGradient):
            return method
        if not (isinstance(method, DetCGD2) and pattern.commutes_with(law)):
            msg = (
                f"criterion='convex' is proved for x⁺ = x − D S ∇f(x), not for {method.name}: use det-CGD1, or a "
                "structure that commutes with the sketch for det-CGD2"
            )
            raise ValueError(msg)
        return DetCGD1()  # SD = DS

    def floor(self, indices: Indices, scale: Vector) -> Floor | None:
        """M in the coordinates of a piece, D = ΛD̃Λ; None without M.  Raises ValueError if float64 does not hold it."""
        if self.M is None:
            return None
        M, e = self.block(indices), np.frexp(scale)[1] - 1
        both = e[:, None] + e
        shift = 1 - int((np.frexp(M.diagonal())[1] + 2 * e).max())
        near = np.ldexp(M, both + shift)
        if not np.array_equal(np.ldexp(near, -both - shift), M):
            msg = "M and the best stepsize lie so far apart that float64 does not hold their product; rescale variables"
            raise ValueError(msg)
        number = near[0, 0] == 1.0 and np.array_equal(near, np.eye(len(near)))
        return Floor(1.0 if number else near, shift, len(near))


PAPER = Goal()
