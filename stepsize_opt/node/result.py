"""The answer of ``stepsize_opt.optimal_stepsize``: a feasible D, its certificate, what it predicts; its assembly."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from stepsize_opt.goals import Goal, GoalName, coordinates_sent, goal_class
from stepsize_opt.inputs.checks import LARGE
from stepsize_opt.inputs.structures import NAMED_STRUCTURES, multiples_of, pattern_of
from stepsize_opt.large.stepsizes import BlockStepsize, StepsizeOperator, check_stepsize, stepsize_from_arrays
from stepsize_opt.methods import CompressedStep, DetCGD1, DetCGD2, Momentum, get_method
from stepsize_opt.node.question import Question
from stepsize_opt.node.reductions import Piece, Reduction
from stepsize_opt.plots import plot_eigenvalues
from stepsize_opt.proofs import Certificate, exp_down, exp_up
from stepsize_opt.records import Result, plain_fields, structure_of_plain
from stepsize_opt.saving import from_fields
from stepsize_opt.sketches.base import Sketch, plain_sketch, sketch_of_plain
from stepsize_solvers.programs import Indices, Matrix, Settings, SolverStats, Status


class Block(NamedTuple):
    """A diagonal block of D and of its multiplier Z, read-only: rows and columns ``indices``."""

    indices: Indices
    D: Matrix
    Z: Matrix


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class StepsizeResult(Result):
    """A stepsize matrix with its proof.

    Attributes
    ----------
    status
        ``optimal`` only with a proved feasible D whose certified gap is within ``tol``; otherwise ``message`` has
        the reason.
    certificate
        Feasible, margin, log_det, upper_bound and gap, all holding in exact arithmetic.  ``feasible`` means T(D) ⪯ D
        for the goal ``paper``, H ≻ 0 for ``descent``, H ⪰ tM⁻¹ with a t > 0 for the others.  ``log_det`` and
        ``upper_bound`` are the ends of log det D for ``paper``, of log det H for ``descent``, of d log t otherwise.
    descent_log_det
        A proved lower bound on log det H of the descent metric H = 2D − T(D), T(D) the left-hand side of
        the condition; T(D) ⪯ D makes H ⪰ D.
    stepsize
        D as an operator with ``@``, ``diagonal()`` and ``todense()``: blocks, or for a large L a diagonal, an inverse
        or a diagonal plus low rank.
    multiplier
        The multiplier that proves the upper bound, by blocks; None for a large L, whose proof does not keep it.
    solver_stats
        Names as in cvxpy; ``solver_name`` lists what ran.
    reductions
        The exact reductions that were used, in words.
    method
        The method that was asked for.
    sketch
        The sketch that was asked for.
    structure
        The structure of D that was asked for.
    limit
        The largest rate for the same goal of any method without memory, x⁺ = x − G∇f(x) with G independent of
        ∇f(x) and E[rank G] = expected_rank, proved from above (``compression_limit``); infinite where it is not known,
        or where the sketch has E[S] = I up to rounding only, so that the theorem does not hold for it.
    tol
        The certified gap asked for.
    goal_class
        The class of what was maximised, see ``optimal_stepsize``; ``goal`` is its name.
    satisfies_condition
        Whether T(D) ⪯ D is proved, which only the goal ``paper`` needs.
    message
        What keeps the answer from being optimal, and how to fix it; empty for an optimal one.
    inverse_curvature : float, numpy.ndarray or None
        With momentum V ⪰ M⁻¹, a number or d×d, by which the update of z multiplies (docs/momentum.md); None without
        memory.  ``log_det`` and ``upper_bound`` are then ends of d log t, t²𝒫(V) ⪯ H.
    gammas
        γᵢ of ``Direction(W)``, D = Diag(γ₁W₁, …, γ_mW_m), one for each layer; empty for another structure.

    Examples
    --------
    See ``optimal_stepsize``.
    """

    certificate: Certificate
    descent_log_det: float
    stepsize: StepsizeOperator
    multiplier: BlockStepsize | None
    sketch: Sketch
    limit: float
    goal_class: type[Goal]
    satisfies_condition: bool
    inverse_curvature: Any = None
    gammas: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        # The last gate: no matrix leaves that float64 does not hold, no status that the certificate does not prove.
        check_stepsize(self.stepsize, self.d)
        if self.status == Status.OPTIMAL.value and not self.certificate.is_optimal(self.tol):
            msg = f"status optimal with a certified gap of {self.gap:.1e} above the tolerance {self.tol:.1e}"
            raise ArithmeticError(msg)

    @property
    def d(self) -> int:
        """Size of D."""
        return self.certificate.d

    @property
    def goal(self) -> GoalName:
        """What was maximised, see ``optimal_stepsize``."""
        return cast(GoalName, self.goal_class.name)

    @property
    def _sketch_text(self) -> str:
        return str(self.sketch)

    @property
    def expected_nonzeros(self) -> float:
        """Floats sent per round, in expectation; with momentum twice those of the sketch unless one message serves."""
        return (self.compressor().messages if self.momentum else 1) * self.sketch.expected_nonzeros

    def columns(self) -> dict[str, Any]:
        # The limit of a table is that of methods without memory.
        known = math.isfinite(self.limit) and not self.momentum
        return {**super().columns(), "share_of_limit": self.efficiency if known else None}

    @property
    def D(self) -> Any:
        """The stepsize matrix, d×d, read-only; feasible whatever the status is.  For a large L ``stepsize`` itself.

        Raises ValueError when a dense d×d matrix does not fit into memory; ``blocks`` holds it in parts, and
        ``tosparse()`` makes a sparse matrix of them.
        """
        return self.stepsize.array if isinstance(self.stepsize, BlockStepsize) else self.stepsize

    @property
    def dual(self) -> Matrix | None:
        """The multiplier Z ⪰ 0 of the condition, d×d, read-only: with D it proves the upper bound; None for a large L.

        For the goal ``descent`` it is Y near H⁻¹, for the others the multiplier of H ⪰ tM⁻¹ (of each component alone).
        """
        return None if self.multiplier is None else self.multiplier.array

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The diagonal blocks of D that are not zero by proof, each with its multiplier; empty for a large L."""
        D, Z = self.stepsize, self.multiplier
        if not isinstance(D, BlockStepsize) or Z is None:
            return ()
        return tuple(map(Block, D.indices, D.parts, Z.parts))

    def tosparse(self) -> Any:
        """Return D as a ``scipy.sparse.csr_array`` with the entries of its blocks, for a block-diagonal L of any size.

        Raises ValueError for a large L, whose D is an operator.
        """
        if not isinstance(self.stepsize, BlockStepsize):
            msg = "D is an operator that is never formed, not a block-diagonal matrix: use result.D, or D.todense()"
            raise ValueError(msg)
        return self.stepsize.tosparse()

    @property
    def momentum(self) -> bool:
        """Whether the rate is that of a method that keeps two vectors."""
        return self.goal_class.momentum

    def compressor(self) -> CompressedStep:
        """Return the method with this D as messages: ``start``, ``point``, ``draw``, ``encode`` and ``advance``.

        Raises ValueError for a method whose factors depend on L: ``CompressedStep.of`` takes it.
        """
        if not self.momentum:
            return CompressedStep.of(self.D, self.sketch, self.method)
        method = self.method
        if isinstance(method, DetCGD2) and pattern_of(self.structure, self.d).commutes_with(self.sketch.map):
            method = DetCGD1()  # TD = DT: one message serves both updates
        factors = CompressedStep.of(self.D, self.sketch, method).factors
        memory = Momentum(self.rate, self.goal_class.strong)
        return CompressedStep(self.sketch, factors, memory, self.inverse_curvature)

    def plot(self, ax: Any = None, *, beside: StepsizeResult | None = None) -> Any:
        """Draw the eigenvalues of D, and those of another result, such as the best γI; return the axes.

        ``ax`` are matplotlib axes, new ones by default.
        """
        results = [self] if beside is None else [self, beside]
        return plot_eigenvalues({one._stepsize_text: one.stepsize.todense() for one in results}, ax)

    @property
    def _stepsize_text(self) -> str:
        matrix = "best γI" if self.structure == NAMED_STRUCTURES["scalar"] else f"{self.structure} D"
        return f"{matrix}, {self.algorithm}, {self._sketch_text}, goal {self.goal}"

    @property
    def log_det(self) -> float:
        """log det D from below, tight to rounding; log det H for the goal ``descent``, d log t where t is sought."""
        return self.certificate.log_det

    @property
    def rate(self) -> float:
        """det(D)^{1/d}, proved from below: after K steps the weighted mean of E‖∇f‖² is at most 2Δ⁰/(rate·K).

        For the goal ``descent`` it is det(H)^{1/d}, for ``euclidean`` and ``linear`` the proved t of H ⪰ tM⁻¹.
        """
        return exp_down(self.log_det / self.d)

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d} of the descent metric H = 2D − T(D), proved from below: the same bound with H in place of D."""
        return exp_down(self.descent_log_det / self.d)

    @property
    def guaranteed_rate(self) -> float:
        """The rate that ``iterations`` uses: ``rate``, for the goal ``paper`` the better proved one of D and of H."""
        return self.goal_class.guaranteed(self.rate, self.descent_rate)

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
        if self.guaranteed_rate > self.rate:
            return f"descent, {goal_class('descent').words.rate}"
        return f"{'momentum, ' if self.momentum else ''}{self.goal}, {self.goal_class.words.rate}"

    def iterations(
        self,
        epsilon2: float | None = None,
        initial_gap: float | None = None,
        *,
        accuracy: float | None = None,
        initial_distance: Any = None,
    ) -> int:
        """Return the K that guarantees a weighted mean squared gradient norm of at most ε², from f(x⁰) − f^inf.

        K = ⌈2Δ⁰/(rate ε²)⌉ with ``guaranteed_rate``, the better of the proved rates of D and of H; the weights are
        those of its matrix, divided by its det^{1/d}.  ``guarantee_used`` names it.  For the goal ``euclidean`` the
        norm is the Euclidean one and the rate is t.  For ``linear`` it is the smallest K with (1 − t)^K Δ⁰ ≤ accuracy,
        and ``accuracy`` is given instead of ``epsilon2``.

        With momentum it is the smallest K with 2(1 − t)^K Δ⁰ ≤ accuracy for ``linear``, and with
        2‖x⁰ − x*‖² ≤ accuracy t²K(K + 3) for ``convex``, in the Euclidean norm; ``initial_distance`` is x⁰ − x* or a
        number that bounds its norm.
        """
        if not self.guaranteed_rate > 0.0:
            msg = f"no rate above 0 is proved for this D, so no number of iterations: its status is {self.status}"
            raise ValueError(msg)
        return self.goal_class.iterations(
            self.guaranteed_rate,
            self.d,
            epsilon2=epsilon2,
            initial_gap=initial_gap,
            accuracy=accuracy,
            initial_distance=initial_distance,
        )

    def communication(
        self,
        epsilon2: float | None = None,
        initial_gap: float | None = None,
        *,
        accuracy: float | None = None,
        initial_distance: Any = None,
    ) -> float:
        """Return the expected number of floats sent until it is guaranteed: iterations × expected_nonzeros."""
        K = self.iterations(epsilon2, initial_gap, accuracy=accuracy, initial_distance=initial_distance)
        return coordinates_sent(K, self.expected_nonzeros)

    def _numbers(self) -> dict[str, Any]:
        return {
            "expected_nonzeros": self.expected_nonzeros,
            "goal": self.goal,
            "momentum": self.momentum,
            "satisfies_condition": self.satisfies_condition,
            "log_det": self.log_det,
            "rate": self.rate,
            "descent_rate": self.descent_rate,
            "guarantee_used": self.guarantee_used,
            "limit": self.limit,
            "efficiency": self.efficiency,
        }

    def _rows(self) -> list[tuple[str, str]]:
        feasible = "proved" if self.certificate.feasible else "not proved"
        return [
            ("method", f"{self.algorithm}, sketch {self._sketch_text}, {self.structure} D, d = {self.d}"),
            *self._rates(),
            ("limit", self._limit_text),
            (self.goal_class.words.feasible, f"{feasible}, margin {self.certificate.margin:.1e}"),
        ]

    @property
    def _limit_text(self) -> str:
        if not math.isfinite(self.limit):
            return "not known for this form of L, or E[S] = I up to rounding only"
        rank = self.sketch.expected_rank
        memory = "with momentum" if self.momentum else "without memory"
        return f"{self.limit:.9g} for rank {rank:g} {memory}, efficiency {self.efficiency:.3f}"

    def _rates(self) -> list[tuple[str, str]]:
        aim = self.goal_class
        rows = [(f"rate {aim.words.rate}", f"{self.rate:.9g}")]
        if aim.needs_condition or not aim.is_determinant:
            rows.append(("descent rate det(H)^(1/d)", f"{self.descent_rate:.9g}, H = 2D − T(D)"))
        if aim.needs_condition:
            more = f"its best det(H)^(1/d) is at least {self.descent_rate:.9g}: never more rounds"
            rows.append(("goal='descent'", more))
        rows.append(("guarantee used", self.guarantee_used))
        if aim.is_determinant:
            rows.append((f"log det {aim.words.judged} / d", f"{self.log_det / self.d:.9f}"))
        if not aim.needs_condition:
            rows.append(("condition T(D) ⪯ D", "proved" if self.satisfies_condition else "not proved, not needed"))
        return rows

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays = {f"stepsize_{name}": array for name, array in self.stepsize.arrays().items()}
        if self.multiplier is not None:
            arrays |= {f"multiplier_{name}": array for name, array in self.multiplier.arrays().items()}
            if self.d <= LARGE:  # a larger D is saved by its blocks only
                arrays["D"] = self.D
        if self.momentum:
            arrays["inverse_curvature"] = np.asarray(self.inverse_curvature)
        meta = plain_fields(self, "stepsize", "multiplier", "sketch", "inverse_curvature", "goal_class")
        return {**meta, "goal": self.goal, "sketch": plain_sketch(self.sketch)}, arrays

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> StepsizeResult:
        stepsize, multiplier = (_read_stepsize(arrays, kind) for kind in ("stepsize", "multiplier"))
        sketch = sketch_of_plain(meta["sketch"])
        D = arrays.get("D", stepsize)
        known: dict[str, Any] = {"stepsize": stepsize, "multiplier": multiplier, "sketch": sketch}
        V = arrays.get("inverse_curvature")
        known["inverse_curvature"] = float(V) if V is not None and V.ndim == 0 else V
        known["goal_class"] = goal_class(meta["goal"], momentum=V is not None)
        known |= {"method": get_method(meta["algorithm"]), "structure": structure_of_plain(meta["structure"], D)}
        return from_fields(StepsizeResult, meta, **known)


def _read_stepsize(arrays: dict[str, Any], kind: str) -> StepsizeOperator | None:
    named = {name.removeprefix(f"{kind}_"): array for name, array in arrays.items() if name.startswith(f"{kind}_")}
    return stepsize_from_arrays(named) if named else None


def assemble(question: Question, reduction: Reduction, solved: Sequence[Piece], settings: Settings) -> StepsizeResult:
    """Put the pieces of a problem together: those that a solver answered, and coordinates that stand alone."""
    pieces = [*solved, *reduction.solved]
    for piece in pieces:
        reduction.note(piece.note)
    places = [piece.indices for piece in pieces]
    return result_of(
        question,
        settings,
        # Gaps average over the coordinates, so the whole may be within the tolerance when a part is not.
        certificate=question.goal.combine([piece.certificate for piece in pieces]),
        log_limit=question.log_limit(reduction.groups),
        status=next((piece.status for piece in pieces if piece.status is not Status.OPTIMAL), Status.INACCURATE),
        remarks=[piece.message for piece in pieces],
        descent_log_det=Certificate.combine([piece.descent for piece in pieces]).log_det,
        stepsize=BlockStepsize(places, [piece.D for piece in pieces]),
        multiplier=BlockStepsize(places, [piece.dual for piece in pieces]),
        solver_stats=_combined_stats([piece.stats for piece in pieces if piece.stats is not None]),
        reductions=tuple(reduction.notes),
        satisfies_condition=all(piece.satisfies_condition for piece in pieces),
    )


def result_of(
    question: Question,
    settings: Settings,
    *,
    certificate: Certificate,
    log_limit: float,
    status: Status,
    remarks: Iterable[str],
    stepsize: StepsizeOperator,
    **answer: Any,
) -> StepsizeResult:
    """Return the result: ``optimal`` if the certificate is, otherwise with a status, its remedy and remarks."""
    goal, message = question.goal, ""
    if not certificate.is_optimal(settings.tol):
        certificate = certificate.bounded(log_limit)
    if certificate.is_optimal(settings.tol):
        status = Status.OPTIMAL
    else:
        status = Status.INACCURATE if status is Status.OPTIMAL else status
        unproved = f"{goal.words.feasible} is not proved for D in float64"
        meaning = status.meaning if certificate.feasible else unproved
        message = "; ".join([meaning, status.remedy, *dict.fromkeys(filter(None, remarks))])
    result = StepsizeResult(
        status=status.value,
        certificate=certificate,
        stepsize=stepsize,
        method=question.method,
        sketch=question.sketch,
        structure=question.structure,
        gammas=multiples_of(question.structure, stepsize),
        limit=exp_up(log_limit / certificate.d),
        tol=settings.tol,
        goal_class=type(goal),
        inverse_curvature=goal.inverse_curvature,
        message=message,
        estimated=question.L.estimated,
        **answer,
    )
    if settings.verbose:
        print(f"proved {result.log_det / result.d:14.9f} {result.gap:9.2e}")
    return result


def _combined_stats(parts: Sequence[SolverStats]) -> SolverStats:
    if not parts:
        return SolverStats("closed form", solve_time=0.0, setup_time=0.0, num_iters=0)
    return parts[0] if len(parts) == 1 else SolverStats.combined(parts, "components")
