"""The answer of ``stepsize_opt.optimal_stepsize``: a feasible D, its certificate, and what it predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt.inputs import (
    LARGE,
    Immutable,
    Result,
    check_memory,
    dimensions,
    from_fields,
    positive_number,
    read_only,
    real_array,
)
from stepsize_opt.node.complexity import (
    convex_iterations,
    coordinates_sent,
    iterations_needed,
    linear_iterations,
    squared_norm,
)
from stepsize_opt.proofs import SMALLEST_NORMAL, Certificate, exp_down
from stepsize_solvers.programs import Indices, Matrix, Status, Vector

FLOORS = {"euclidean": "tI", "linear": "tM⁻¹"}
# What iterations takes, where it is not ε² and Δ⁰.
_ARGUMENTS = {"linear": ("accuracy", "initial_gap"), "convex": ("accuracy", "initial_distance")}


@dataclass(frozen=True, eq=False)
class Block(Immutable):
    """A diagonal block of D and of its multiplier Z, read-only: rows and columns ``indices``."""

    indices: Indices
    D: Matrix
    Z: Matrix

    def __post_init__(self) -> None:
        self._lock()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepsizeResult(Result):
    """A stepsize matrix with its proof.

    Attributes
    ----------
    status
        ``optimal`` only with a proved feasible D whose certified gap is within ``tol``; otherwise ``message`` says
        why not.
    certificate
        Feasible, margin, log_det, upper_bound and gap, all holding in exact arithmetic.
        Under ``guarantee="descent"`` they are about H in place of D: ``feasible`` means H ≻ 0, ``log_det`` and
        ``upper_bound`` are the ends of log det H.  For the criteria ``euclidean`` and ``linear`` they are the ends of
        d log t.  For ``convex``, ``feasible`` means 𝒫(D) ⪯ L⁻¹.
    descent_log_det
        A proved lower bound on log det H of the descent metric H = 2D − T(D), T(D) the left-hand side of
        the condition; T(D) ⪯ D makes H ⪰ D.
    descent_t
        For the criteria ``euclidean`` and ``linear`` a t with H ⪰ tM⁻¹ proved for this D; None for the others.
    blocks
        The diagonal blocks of D that are not zero by proof.
    solver_stats
        Names as in cvxpy; ``solver_name`` lists what ran.
    reductions
        The exact reductions that were used, in words.
    algorithm
        The name of the method.
    sketch
        The sketch in its text form.
    structure
        The structure asked for.
    expected_nonzeros
        Numbers sent in one round, in expectation.
    expected_rank
        E[rank S], or a bound from above.
    limit
        The largest rate under the same criterion of any method without memory, x⁺ = x − G∇f(x) with G independent of
        ∇f(x) and E[rank G] = expected_rank, proved from above (``compression_limit``); infinite where it is not known,
        or where the sketch has E[S] = I up to rounding only, so that the theorem does not hold for it.
    tol
        The certified gap asked for.
    guarantee
        ``"condition"`` or ``"descent"``, see ``optimal_stepsize``.
    criterion
        What was maximised under it.
    satisfies_condition
        Whether T(D) ⪯ D is proved, which ``guarantee="descent"`` and ``criterion="convex"`` do not need.
    message
        What keeps the answer from being optimal, and a remedy; empty for an optimal one.

    Examples
    --------
    See ``optimal_stepsize``.
    """

    certificate: Certificate
    descent_log_det: float
    descent_t: float | None
    blocks: tuple[Block, ...]
    expected_nonzeros: float
    expected_rank: float
    limit: float
    guarantee: str
    criterion: str
    satisfies_condition: bool

    def __post_init__(self) -> None:
        # The last gate: no matrix leaves that float64 does not hold, no status that the certificate does not prove.
        for block in self.blocks:
            diagonal = block.D if block.D.ndim == 1 else block.D.diagonal()
            if not (np.isfinite(block.D).all() and diagonal.min() >= SMALLEST_NORMAL):
                msg = "a stepsize that is not finite or has a diagonal entry below 2.3e-308 cannot be certified"
                raise ArithmeticError(msg)
        if self.status == Status.OPTIMAL.value and not self.certificate.is_optimal(self.tol):
            msg = f"status optimal with a certified gap of {self.gap:.1e} above the tolerance {self.tol:.1e}"
            raise ArithmeticError(msg)

    @property
    def d(self) -> int:
        """Size of D."""
        return self.certificate.d

    @cached_property
    def D(self) -> Matrix:
        """The stepsize matrix, d×d, read-only; feasible whatever the status says.

        Raises ValueError when a dense d×d matrix does not fit into memory; ``blocks`` holds it in parts, and
        ``tosparse()`` makes a sparse matrix of them.
        """
        return self._assemble([block.D for block in self.blocks])

    @cached_property
    def dual(self) -> Matrix:
        """The multiplier Z ⪰ 0 of the condition, d×d, read-only: with D it proves the upper bound.

        Under ``guarantee="descent"`` it is Y, near H⁻¹ for ``det``, the multiplier of H ⪰ tM⁻¹ for ``euclidean`` and
        ``linear`` (of each component alone).  For ``convex`` it is U of 𝒫(D) ⪯ L⁻¹.
        """
        return self._assemble([block.Z for block in self.blocks])

    def _assemble(self, parts: Sequence[Matrix]) -> Matrix:
        remedy = "; blocks holds it in parts, and tosparse() is D as a sparse matrix"
        check_memory(f"the dense {self.d}×{self.d} matrix", 8 * self.d**2, remedy)
        out = np.zeros((self.d, self.d))
        for block, part in zip(self.blocks, parts, strict=True):
            if part.ndim == 1:
                out[block.indices, block.indices] = part
            else:
                out[np.ix_(block.indices, block.indices)] = part
        return read_only(out)

    def tosparse(self) -> Any:
        """D as a ``scipy.sparse.csr_array`` with the entries of its blocks: for a block-diagonal L of any size."""
        rows, columns, values = [], [], []
        for block in self.blocks:
            i, D = block.indices, block.D
            rows.append(i if D.ndim == 1 else np.repeat(i, len(i)))
            columns.append(i if D.ndim == 1 else np.tile(i, len(i)))
            values.append(D.ravel())
        entries = (np.concatenate(rows), np.concatenate(columns))
        out = sparse.csr_array((np.concatenate(values), entries), shape=(self.d, self.d))
        out.eliminate_zeros()
        return out

    @property
    def log_det(self) -> float:
        """log det D from below, tight to rounding; log det H under the guarantee descent, d log t where t is sought."""
        return self.certificate.log_det

    @property
    def rate(self) -> float:
        """det(D)^{1/d}, proved from below: after K steps the weighted mean of E‖∇f‖² is at most 2Δ⁰/(rate·K).

        Under ``guarantee="descent"`` it is det(H)^{1/d}.  For the criteria ``euclidean`` and
        ``linear`` it is the proved t of D ⪰ tM⁻¹, or of H ⪰ tM⁻¹ under ``guarantee="descent"``.
        """
        return exp_down(self.log_det / self.d)

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d} of the descent metric H = 2D − T(D), proved from below: the same bound with H in place of D."""
        return exp_down(self.descent_log_det / self.d)

    @property
    def guaranteed_rate(self) -> float:
        """The rate that ``iterations`` uses: the better proved one of D and of H, for ``convex`` det(D)^{1/d}."""
        if self.criterion == "convex":
            return self.rate
        return max(self.rate, self.descent_rate if self.descent_t is None else self.descent_t)

    @property
    def efficiency(self) -> float:
        """``guaranteed_rate``/``limit``: the share of the best rate without memory for this expected rank, at most 1.

        The method of ``stepsize_opt.optimal_method``, which attains the limit, needs so many times the iterations.  NaN
        where the limit is infinite.
        """
        return self.guaranteed_rate / self.limit if math.isfinite(self.limit) else math.nan

    @property
    def guarantee_used(self) -> str:
        """What ``guaranteed_rate`` bounds, in words."""
        if self.criterion == "convex":
            return "convex f, mean of E f − f* ≤ ‖x⁰ − x*‖²/(2K) in the norm of D⁻¹, det(D)^(1/d)"
        by_condition = self.guarantee == "condition" and self.rate >= self.guaranteed_rate
        if self.criterion == "det":
            return "condition, det(D)^(1/d)" if by_condition else "descent, det(H)^(1/d)"
        floor = FLOORS[self.criterion]
        return f"condition, t with D ⪰ {floor}" if by_condition else f"descent, t with H ⪰ {floor}"

    def iterations(
        self,
        epsilon2: float | None = None,
        initial_gap: float | None = None,
        *,
        accuracy: float | None = None,
        initial_distance: Any = None,
    ) -> int:
        """Iterations K that guarantee a weighted mean squared gradient norm of at most ε², from f(x⁰) − f^inf.

        K = ⌈2Δ⁰/(rate ε²)⌉ with ``guaranteed_rate``, the better of the proved rates of D and of H; the weights are
        those of its matrix, divided by its det^{1/d}.  ``guarantee used`` among ``rows`` says which it is.  For the
        criterion ``euclidean`` the mean is the plain one and the rate is t.  For ``linear`` it is the smallest K with
        (1 − t)^K Δ⁰ ≤ accuracy, and ``accuracy`` is given in place of ``epsilon2``.

        For ``convex`` it is the smallest K with ‖x⁰ − x*‖²_{D⁻¹}/(2K) ≤ accuracy, by which the mean of E f(xᵏ) − f*
        over the first K iterates is at most ``accuracy``, and so is E f − f* at their mean.  ``initial_distance`` is
        then x⁰ − x*, a vector, whose norm is taken; a number is the plain distance ‖x⁰ − x*‖, of which only
        ‖x⁰ − x*‖²_{D⁻¹} ≤ ‖x⁰ − x*‖²/λmin(D) is known.
        """
        given = {
            "epsilon2": epsilon2,
            "initial_gap": initial_gap,
            "accuracy": accuracy,
            "initial_distance": initial_distance,
        }
        wanted = _ARGUMENTS.get(self.criterion, ("epsilon2", "initial_gap"))
        for name, value in given.items():
            if value is not None and name not in wanted:
                msg = f"iterations of the criterion {self.criterion!r} takes {' and '.join(wanted)}, not {name}"
                raise ValueError(msg)
        for name in wanted:
            if given[name] is None:
                msg = f"iterations needs {name}"
                raise TypeError(msg)
        if not self.guaranteed_rate > 0.0:
            msg = f"no rate above 0 is proved for this D, so no number of iterations: its status is {self.status}"
            raise ValueError(msg)
        if self.criterion == "linear":
            return linear_iterations(self.guaranteed_rate, accuracy, initial_gap)  # type: ignore[arg-type]
        if self.criterion == "convex":
            return convex_iterations(squared_norm([b.D for b in self.blocks], self._parts(initial_distance)), accuracy)  # type: ignore[arg-type]
        return iterations_needed(self.guaranteed_rate, epsilon2, initial_gap)  # type: ignore[arg-type]

    def _parts(self, distance: Any) -> float | list[Vector]:
        """x⁰ − x* in the coordinates of each block, or the plain distance."""
        if dimensions(distance) == 0:
            return positive_number("initial_distance", distance)
        vector = real_array("initial_distance", distance)
        if vector.shape != (self.d,):
            msg = f"initial_distance must be a number or x⁰ − x*, {self.d} finite numbers"
            raise ValueError(msg)
        return [vector[block.indices] for block in self.blocks]

    def communication(
        self,
        epsilon2: float | None = None,
        initial_gap: float | None = None,
        *,
        accuracy: float | None = None,
        initial_distance: Any = None,
    ) -> float:
        """Expected number of coordinates sent until it is guaranteed: iterations × expected_nonzeros."""
        K = self.iterations(epsilon2, initial_gap, accuracy=accuracy, initial_distance=initial_distance)
        return coordinates_sent(K, self.expected_nonzeros)

    def _numbers(self) -> dict[str, Any]:
        return {
            "expected_nonzeros": self.expected_nonzeros,
            "guarantee": self.guarantee,
            "criterion": self.criterion,
            "satisfies_condition": self.satisfies_condition,
            "log_det": self.log_det,
            "rate": self.rate,
            "descent_rate": self.descent_rate,
            "descent_t": self.descent_t,
            "guarantee_used": self.guarantee_used,
            "limit": self.limit,
            "efficiency": self.efficiency,
        }

    def _rows(self) -> list[tuple[str, str]]:
        feasible = "proved" if self.certificate.feasible else "not proved"
        return [
            ("method", f"{self.algorithm}, sketch {self.sketch}, {self.structure} D, d = {self.d}"),
            *self._rates(),
            (
                "limit",
                f"{self.limit:.9g} for rank {self.expected_rank:g} without memory, efficiency {self.efficiency:.3f}"
                if math.isfinite(self.limit)
                else "not known for this form of L, or E[S] = I up to rounding only",
            ),
            (
                _feasible(self.guarantee, self.criterion),
                f"{feasible}, margin {self.certificate.margin:.1e}",
            ),
        ]

    def _rates(self) -> list[tuple[str, str]]:
        mean = f"{self.log_det / self.d:.9f}"
        metric, used = f"{self.descent_rate:.9g}, H = 2D − T(D)", ("guarantee used", self.guarantee_used)
        inside, letter = self.guarantee == "condition", "D" if self.guarantee == "condition" else "H"
        first = [(f"rate det({letter})^(1/d)", f"{self.rate:.9g}" if inside else metric)]
        if self.descent_t is not None:
            first = [("rate t", f"{self.rate:.9g}, {letter} ⪰ {FLOORS[self.criterion]}")]
        if inside and self.descent_t is not None:
            first.append((f"t with H ⪰ {FLOORS[self.criterion]}", f"{self.descent_t:.9g}"))
        if inside or self.descent_t is not None:
            first.append(("descent rate det(H)^(1/d)", metric))
        first.append(used)
        if self.descent_t is None:
            first.append((f"log det {letter} / d", mean))
        if not inside or self.criterion == "convex":
            first.append(("condition T(D) ⪯ D", "proved" if self.satisfies_condition else "not proved, not needed"))
        return first

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays: dict[str, Any] = {}
        for i, block in enumerate(self.blocks):
            arrays[f"indices_{i}"], arrays[f"D_{i}"], arrays[f"Z_{i}"] = block.indices, block.D, block.Z
        if self.d <= LARGE:  # a larger D is saved by its blocks only
            arrays["D"] = self.D
        return {**asdict(replace(self, blocks=())), "blocks": len(self.blocks)}, arrays

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> StepsizeResult:
        blocks = tuple(Block(arrays[f"indices_{i}"], arrays[f"D_{i}"], arrays[f"Z_{i}"]) for i in range(meta["blocks"]))
        return from_fields(StepsizeResult, meta, blocks=blocks)


def _feasible(guarantee: str, criterion: str) -> str:
    """What ``feasible`` means, in words."""
    if criterion == "convex":
        return "𝒫(D) ⪯ L⁻¹"
    return "feasible" if guarantee == "condition" else "H positive definite"
