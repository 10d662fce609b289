"""The answer of ``stepsize_opt.optimal_distributed_stepsize``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from stepsize_opt.clients.problem import Targets
from stepsize_opt.goals import goal_class
from stepsize_opt.large.stepsizes import check_stepsize
from stepsize_opt.methods import get_method
from stepsize_opt.records import Result, plain_fields, structure_of_plain
from stepsize_opt.saving import from_fields
from stepsize_opt.sketches.base import Sketch, plain_sketch, sketch_of_plain
from stepsize_solvers.programs import Matrix


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DistributedResult(Result):
    """A stepsize matrix D and a number of iterations K for n clients, with their proof.

    Attributes
    ----------
    status
        ``optimal`` only with a proved feasible (D, K) whose certified gap is within ``tol``; ``infeasible`` when
        the K asked for is proved too small, and then K is the smallest that works, with its D.
    D
        The stepsize matrix, d×d, read-only.
    K
        The number of iterations.
    smallest_K
        No feasible pair (D, K) has a smaller whole K; 1, the trivial bound, when K was given.
    lambda_D
        A proved upper bound on λ_D, tight to rounding.
    rate
        A proved lower bound on det(D)^{1/d}, tight to rounding; on det(H)^{1/d} under the goal ``descent``.
    descent_rate
        A proved lower bound on det(H)^{1/d} of this D, H = 2D − DLD; D ⪯ L⁻¹ makes H ⪰ D.
    goal
        What was asked for: ``paper``, or with shared seeds ``descent``.
    seeds
        ``independent``, or ``shared``: all clients draw the same sketch, the answer is that of one node, and λ_D = 0.
    binding
        The conditions that hold with equality.
    certificate
        ``feasible``: D ⪯ L⁻¹, λ_D ≤ min{n/K, nε²τ/(4Δ^inf)} and K ≥ 12Δ⁰/(τε²) with τ = det(D)^{1/d}.  ``log_rate`` is
        a lower bound on log τ before K was rounded up to a whole number; no feasible D has a larger one than
        ``log_rate_bound``.  With shared seeds it is the certificate of the one node.
    targets
        ε², Δ⁰, Δ^inf and n, as they were given.
    floats_per_client
        Floats that each client sends in all K rounds, in expectation.
    solver_stats
        Names as in cvxpy; ``solver_name`` lists what ran.
    reductions
        The exact reductions that were used, in words.
    method
        The method that was asked for.
    sketches
        The sketch of each client.
    structure
        The structure of D that was asked for.
    tol
        The certified gap asked for.
    iterations_requested
        The K asked for, None for the smallest.
    gammas
        The factors of ``Direction(W)``: D = γW, or Diag(γ₁W₁, …, γ_mW_m) for its layers; empty for other structures.
    message
        What keeps the answer from being optimal, and how to fix it; empty for an optimal one.

    Examples
    --------
    See ``optimal_distributed_stepsize``.
    """

    D: Matrix
    K: int
    smallest_K: int
    lambda_D: float
    rate: float
    binding: tuple[str, ...]
    targets: Targets
    floats_per_client: tuple[float, ...]
    descent_rate: float
    goal: str
    sketches: tuple[Sketch, ...]
    seeds: str = "independent"
    iterations_requested: int | None = None
    gammas: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_stepsize(self.D, self.certificate.d)

    @property
    def d(self) -> int:
        """Size of D."""
        return int(self.D.shape[0])

    @property
    def _sketch_text(self) -> str:
        return ", ".join(dict.fromkeys(map(str, self.sketches)))

    @property
    def clients(self) -> int:
        return self.targets.clients

    @property
    def expected_nonzeros(self) -> float:
        """Floats that a client sends per round, in expectation, on average over the clients."""
        return sum(sketch.expected_nonzeros for sketch in self.sketches) / len(self.sketches)

    def iterations(self) -> int:
        """Return the rounds that the better proved rate needs with this D: K, or fewer by ``descent_rate``.

        λ_D ≤ min{n/K, nε² rate/(4Δ^inf)} holds for fewer rounds and a larger rate, too.
        """
        needed = self.targets.single_iterations if self.seeds == "shared" else self.targets.least_iterations
        return min(self.K, needed(self.descent_rate))

    @property
    def guarantee_used(self) -> str:
        """Which rate ``iterations`` rests on, in words."""
        descent = not goal_class(self.goal).needs_condition or self.iterations() < self.K
        return "descent, det(H)^(1/d)" if descent else "paper, det(D)^(1/d)"

    @property
    def neighbourhood(self) -> float:
        """2λ_DΔ^inf/(rate·n), the part of the bound that more iterations do not reduce."""
        return self.targets.neighbourhood(self.lambda_D, self.rate)

    def communication(self) -> float:
        """Return the floats sent by all clients in all K rounds, in expectation."""
        return math.fsum(self.floats_per_client)

    def _numbers(self) -> dict[str, Any]:
        return {
            "clients": self.clients,
            "K": self.K,
            "smallest_K": self.smallest_K,
            "iterations_requested": self.iterations_requested,
            "lambda_D": self.lambda_D,
            "iterations": self.iterations(),
            "rate": self.rate,
            "descent_rate": self.descent_rate,
            "goal": self.goal,
            "guarantee_used": self.guarantee_used,
            "seeds": self.seeds,
            "binding": list(self.binding),
            "gammas": list(self.gammas),
            "neighbourhood": self.neighbourhood,
            "floats_per_client": list(self.floats_per_client),
            "communication": self.communication(),
            "targets": asdict(self.targets),
        }

    def _shown(self) -> list[tuple[str, str]]:
        return [("run", f"K = {_spaced(self.iterations())} iterations, by {self.guarantee_used}"), *super()._shown()]

    def _rows(self) -> list[tuple[str, str]]:
        run = [self.iterations() / self.K * floats for floats in self.floats_per_client]
        factors = [("D/W", ", ".join(f"{gamma:.9g}" for gamma in self.gammas))] if self.gammas else []
        return [
            ("method", f"distributed {self.algorithm}, sketch {self._sketch_text}, {self.structure} D"),
            ("size", f"d = {self.d}, n = {self.clients} clients, {self.seeds} seeds"),
            (f"K by {self.goal}", f"{_spaced(self.K)} (proved: at least {_spaced(self.smallest_K)})"),
            *factors,
            *self._rates(),
            *self._seeds(),
            ("floats sent", f"{math.fsum(run):.6g} by all clients in this run, {max(run):.6g} by one at most"),
        ]

    def _seeds(self) -> list[tuple[str, str]]:
        if self.seeds == "shared":
            return [("one node", "all clients draw the same sketch: no λ_D, no Δ^inf, no neighbourhood")]
        rows = [
            ("λ_D", f"{self.lambda_D:.9g}"),
            ("binding", "; ".join(self.binding) or "none"),
            ("neighbourhood", f"{self.neighbourhood:.3g}"),
        ]
        if self.K > 1 and len(set(self.sketches)) == 1:
            rows.insert(0, ("shared seeds", "usually far fewer rounds, if all clients draw the same sketch"))
        return rows

    def _rates(self) -> list[tuple[str, str]]:
        H = "H = 2D − T(D)" if self.seeds == "shared" else "H = 2D − DLD"
        if not goal_class(self.goal).needs_condition:
            return [("rate det(H)^(1/d)", f"{self.descent_rate:.9g}, {H}")]
        descent = ("descent rate det(H)^(1/d)", f"{self.descent_rate:.9g}, {H}")
        return [("rate det(D)^(1/d)", f"{self.rate:.9g}"), descent]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        meta = plain_fields(self, "D", "sketches")
        meta["sketches"] = [plain_sketch(sketch) for sketch in self.sketches]
        return meta, {"D": self.D}

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> DistributedResult:
        D = arrays["D"]
        known: dict[str, Any] = {"D": D, "method": get_method(meta["algorithm"])}
        known["sketches"] = tuple(sketch_of_plain(plain) for plain in meta["sketches"])
        known["structure"] = structure_of_plain(meta["structure"], D)
        return from_fields(DistributedResult, meta, **known)


def _spaced(K: int) -> str:
    """Return K in groups of three digits."""
    return f"{K:_}".replace("_", " ")
