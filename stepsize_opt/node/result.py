"""The answer of ``stepsize_opt.optimal_stepsize``: a feasible D, its certificate, and what it predicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepsize_opt.inputs import Result, check_memory, check_symmetric_finite, from_fields
from stepsize_opt.node.complexity import coordinates_sent, iterations_needed, linear_iterations
from stepsize_opt.proofs import SMALLEST_NORMAL, Certificate, exp_down
from stepsize_solvers.programs import Indices, Matrix, Status

_MEANINGS = {"euclidean": "t with H ⪰ tI", "linear": "t with H ⪰ tM⁻¹"}
_DENSE_UP_TO = 4096  # larger D are saved by blocks only: a dense one would take more than 128 MiB


@dataclass(frozen=True, eq=False)
class Block:
    """A diagonal block of D and of its multiplier Z: rows and columns ``indices``."""

    indices: Indices
    D: Matrix
    Z: Matrix


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
        ``upper_bound`` are the ends of log det H, or of d log t for the criteria ``euclidean`` and ``linear``.
    descent_log_det
        A proved lower bound on log det H of the descent metric H = 2D − T(D), T(D) the left-hand side of
        the condition; T(D) ⪯ D makes H ⪰ D.
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
    tol
        The certified gap asked for.
    guarantee
        ``"condition"`` or ``"descent"``, see ``optimal_stepsize``.
    criterion
        What was maximised under it.
    satisfies_condition
        Whether T(D) ⪯ D is proved, which ``guarantee="descent"`` does not need.
    message
        What keeps the answer from being optimal, and a remedy; empty for an optimal one.
    """

    certificate: Certificate
    descent_log_det: float
    blocks: tuple[Block, ...]
    expected_nonzeros: float
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

        Raises ValueError when a dense d×d matrix does not fit into memory; ``blocks`` holds it in parts.
        """
        return self._assemble([block.D for block in self.blocks])

    @cached_property
    def dual(self) -> Matrix:
        """The multiplier Z ⪰ 0 of the condition, d×d, read-only: with D it proves the upper bound.

        Under ``guarantee="descent"`` it is Y, near H⁻¹ for ``det``, the multiplier of H ⪰ tM⁻¹ for ``euclidean`` and
        ``linear`` (of each component alone).
        """
        return self._assemble([block.Z for block in self.blocks])

    def _assemble(self, parts: Sequence[Matrix]) -> Matrix:
        check_memory(f"the dense {self.d}×{self.d} matrix", 8 * self.d**2)
        out = np.zeros((self.d, self.d))
        for block, part in zip(self.blocks, parts, strict=True):
            if part.ndim == 1:
                out[block.indices, block.indices] = part
            else:
                out[np.ix_(block.indices, block.indices)] = part
        out.setflags(write=False)
        return out

    @property
    def log_det(self) -> float:
        """log det D from below, tight to rounding; under the guarantee descent it is log det H or d log t."""
        return self.certificate.log_det

    @property
    def rate(self) -> float:
        """det(D)^{1/d}: after K steps the weighted mean of E‖∇f‖² is at most 2Δ⁰/(rate·K).

        Under ``guarantee="descent"`` it is det(H)^{1/d}, proved from below, or the proved t of H ⪰ tM⁻¹.
        """
        mean = self.log_det / self.d
        return math.exp(mean) if self.guarantee == "condition" else exp_down(mean)

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d} of the descent metric H = 2D − T(D), proved from below: the same bound with H in place of D."""
        return exp_down(self.descent_log_det / self.d)

    @property
    def guaranteed_rate(self) -> float:
        """The rate that ``iterations`` uses: for ``det`` the better of the two proved ones, otherwise t."""
        return max(self.rate, self.descent_rate) if self.criterion == "det" else self.rate

    @property
    def guarantee_used(self) -> str:
        """What ``guaranteed_rate`` bounds, in words."""
        if self.criterion != "det":
            return f"descent, {_MEANINGS[self.criterion]}"
        by_condition = self.guarantee == "condition" and self.rate >= self.descent_rate
        return "condition, det(D)^(1/d)" if by_condition else "descent, det(H)^(1/d)"

    def iterations(
        self, epsilon2: float | None = None, initial_gap: float | None = None, *, accuracy: float | None = None
    ) -> int:
        """Iterations K that guarantee a weighted mean squared gradient norm of at most ε², from f(x⁰) − f^inf.

        K = ⌈2Δ⁰/(rate ε²)⌉ with the better of ``rate`` and ``descent_rate``; the weights are those of its matrix, D or
        H, divided by its det^{1/d}.  ``guarantee used`` among ``rows`` says which it is.  For the criterion
        ``euclidean`` the mean is the plain one and the rate is t.  For ``linear`` it is the smallest K with
        (1 − t)^K Δ⁰ ≤ accuracy, and ``accuracy`` is given in place of ``epsilon2``.
        """
        linear = self.criterion == "linear"
        wanted, other = ("accuracy", "epsilon2") if linear else ("epsilon2", "accuracy")
        if (epsilon2 if linear else accuracy) is not None:
            msg = f"iterations of the criterion {self.criterion!r} takes {wanted}, not {other}"
            raise ValueError(msg)
        for name, value in ((wanted, accuracy if linear else epsilon2), ("initial_gap", initial_gap)):
            if value is None:
                msg = f"iterations needs {name}"
                raise TypeError(msg)
        if linear:
            return linear_iterations(self.rate, accuracy, initial_gap)  # type: ignore[arg-type]
        return iterations_needed(self.guaranteed_rate, epsilon2, initial_gap)  # type: ignore[arg-type]

    def communication(
        self, epsilon2: float | None = None, initial_gap: float | None = None, *, accuracy: float | None = None
    ) -> float:
        """Expected number of coordinates sent until ε² is guaranteed: iterations × expected_nonzeros."""
        return coordinates_sent(self.iterations(epsilon2, initial_gap, accuracy=accuracy), self.expected_nonzeros)

    def _numbers(self) -> dict[str, Any]:
        return {
            "expected_nonzeros": self.expected_nonzeros,
            "guarantee": self.guarantee,
            "criterion": self.criterion,
            "satisfies_condition": self.satisfies_condition,
            "log_det": self.log_det,
            "rate": self.rate,
            "descent_rate": self.descent_rate,
            "guarantee_used": self.guarantee_used,
        }

    def _rows(self) -> list[tuple[str, str]]:
        feasible = "proved" if self.certificate.feasible else "not proved"
        return [
            ("method", f"{self.algorithm}, sketch {self.sketch}, {self.structure} D, d = {self.d}"),
            *self._rates(),
            (
                "feasible" if self.guarantee == "condition" else "H positive definite",
                f"{feasible}, margin {self.certificate.margin:.1e}",
            ),
        ]

    def _rates(self) -> list[tuple[str, str]]:
        mean = f"{self.log_det / self.d:.9f}"
        metric, used = f"{self.descent_rate:.9g}, H = 2D − T(D)", ("guarantee used", self.guarantee_used)
        if self.guarantee == "condition":
            first = [("rate det(D)^(1/d)", f"{self.rate:.9g}"), ("descent rate det(H)^(1/d)", metric)]
            return [*first, used, ("log det D / d", mean)]
        condition = ("condition T(D) ⪯ D", "proved" if self.satisfies_condition else "not proved, not needed")
        if self.criterion == "det":
            return [("rate det(H)^(1/d)", metric), used, ("log det H / d", mean), condition]
        first = [("rate t", f"{self.rate:.9g}"), ("descent rate det(H)^(1/d)", metric)]
        return [*first, used, condition]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays: dict[str, Any] = {}
        for i, block in enumerate(self.blocks):
            arrays[f"indices_{i}"], arrays[f"D_{i}"], arrays[f"Z_{i}"] = block.indices, block.D, block.Z
        if self.d <= _DENSE_UP_TO:
            arrays["D"] = self.D
        return {**asdict(replace(self, blocks=())), "blocks": len(self.blocks)}, arrays

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> StepsizeResult:
        blocks = tuple(Block(arrays[f"indices_{i}"], arrays[f"D_{i}"], arrays[f"Z_{i}"]) for i in range(meta["blocks"]))
        result = from_fields(StepsizeResult, meta, blocks=blocks)
        _check_blocks(blocks, result.d)
        return result


def _check_blocks(blocks: Sequence[Block], d: int) -> None:
    """Raise ValueError unless every coordinate is in one block, with D and Z of its size, symmetric and finite."""
    indices = np.concatenate([block.indices.ravel() for block in blocks]) if blocks else np.zeros(0)
    if not np.array_equal(np.sort(indices), np.arange(d)):
        msg = f"its blocks are not a partition of the d = {d} coordinates"
        raise ValueError(msg)
    for block in blocks:
        n = block.indices.size
        for M in (block.D, block.Z):
            if M.shape not in ((n,), (n, n)) or M.shape != block.D.shape:
                msg = f"a block of {n} coordinates has a matrix of shape {M.shape}"
                raise ValueError(msg)
            check_symmetric_finite(M)
