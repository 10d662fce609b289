"""Which programs answer a distributed question, in which order, and what each answer proves.

With τ(c) = max{ det(D)^{1/d} : D ⪯ L⁻¹, λ_D ≤ c } (concave and nondecreasing in c, τ(0) = 0) every question is one c:

* K given: c = min{n/K, c*} where c* is the positive root of c = nε²τ(c)/(4Δ^inf).  Only one of the two bounds on λ_D
  counts, so the program with n/K is solved first and the one with the determinant only if its answer violates it.
* no K: c is the positive root of c = κτ(c), one program with λ_D ≤ κτ.

Without D ⪯ L⁻¹ the scale separates, τ(c) = √c τ(1).  So the homogeneous program (λ_D ≤ 1 alone) is solved first; if its
direction, scaled, satisfies D ⪯ L⁻¹, it is the answer, and no small number ever entered a solver.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from stepsize_opt.clients.fit import Multiples
from stepsize_opt.clients.programs import ClientPrograms, homogeneous_program_is_bounded, noisy_coordinates
from stepsize_opt.proofs import Bound, Conditions, Multipliers
from stepsize_solvers import choose_solver
from stepsize_solvers.programs import (
    Matrix,
    Outcome,
    Program,
    Settings,
    SolverStats,
    Stack,
    Status,
)

# Rows of D of this size, beside entries of L near one, are limited by D ⪯ L⁻¹ by less than the tolerance; the smaller
# ones that a small c or κ asks for come from them.  In A = DLD, exact with any small size, small ones cost digits.
_SMALL_ROWS = 3e-9
_SMALL_ROWS_LINEAR = 1e-5
# Above this c or κ (in scaled coordinates) λ_D decides nothing: D ⪯ L⁻¹ bounds it by the condition number of L times
# the variance of a sketch.
_LOG_MOST = math.log(1e25)
# Rows smaller by more than e to this are outside the range of floats, which the fit finds out.
_LOG_SMALLEST = 650.0


@dataclass
class Search:
    """The work on one problem: the bounds proved so far, what ran, the notes for the user.

    homogeneous: the answer of the program without D ⪯ L⁻¹, once it was solved.
    """

    conditions: Conditions
    programs: ClientPrograms
    solver: str
    settings: Settings
    bounds: list[Bound] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    homogeneous: Multiples | None = None

    @property
    def stats(self) -> SolverStats:
        """The statistics of all runs together."""
        return SolverStats.combined([outcome.stats for outcome in self.outcomes], "runs")

    @property
    def failures(self) -> list[str]:
        """What the solvers reported as failures, once each."""
        messages = [f"{run.stats.solver_name}: {run.message}" for run in self.outcomes if run.message]
        return list(dict.fromkeys(messages))

    def upper_bound(self, log_c: float, log_kappa: float) -> float:
        """Return the best proved bound on log τ when λ_D ≤ min{c, κτ}."""
        return min((min(b.at_lambda(log_c), b.at_factor(log_kappa)) for b in self.bounds), default=math.inf)

    def best_direction(self, log_c: float, log_kappa: float) -> Multiples | None:
        """Find the direction whose best multiple is optimal, up to the gap, under λ_D ≤ min{c, κτ} and D ⪯ L⁻¹."""
        plain = self._inverse_only(log_c, log_kappa)
        if plain is not None:
            return plain
        candidates: list[Multiples] = []
        separate = self._homogeneous()
        if separate is not None:
            if self._separates(separate, log_c, log_kappa):
                return separate
            candidates.append(separate)
        for limits in ((log_c, math.inf), (math.inf, log_kappa)):
            if not math.isfinite(min(limits)):
                continue
            found = self._joint(*limits)
            if found is None:
                continue
            candidates.append(found)
            # The other bound is slack (to rounding): this program alone has decided.
            if found.log_scale(log_c, log_kappa) >= found.log_scale(*limits) - 1e-9:
                break
        if not math.isfinite(min(log_c, log_kappa)):
            found = self._joint(math.inf, math.inf)
            if found is not None:
                candidates.append(found)
        if not candidates and any(run.status is Status.USER_LIMIT for run in self.outcomes):
            # A limit of the user's is no error: a plain direction has a feasible multiple, and its gap is reported.
            return Multiples.of(self.conditions, self.conditions.pattern.member)
        return max(candidates, key=lambda known: known.best_log_rate(log_c, log_kappa), default=None)

    def _separates(self, separate: Multiples, log_c: float, log_kappa: float) -> bool:
        """Return whether a multiple of the homogeneous direction is the answer: its scale is all that is left open."""
        log_scale = separate.log_scale(log_c, log_kappa)
        gap = self.upper_bound(log_c, log_kappa) - (separate.log_rate + log_scale)
        # A solve that got stuck is not the last word while the program with D ⪯ L⁻¹ has the same answer.
        stuck = self.outcomes[-1].status is Status.INACCURATE and gap > 4.0 * self.settings.tol
        slack = log_scale < separate.log_largest and not stuck
        if slack:
            self._note("D ⪯ L⁻¹ is slack: the scale separates from the direction")
        return slack

    # ---------------------------------------------------------------- the programs

    def _inverse_only(self, log_c: float, log_kappa: float) -> Multiples | None:
        """Return D = L⁻¹ if it satisfies the bounds on λ_D: no full D is larger."""
        if not self.conditions.pattern.is_full:
            return None
        inverse: Matrix = np.asarray(np.linalg.inv(self.conditions.L.hi), dtype=np.float64)
        direction = Multiples.of(self.conditions, inverse)
        if direction is None or direction.log_scale(log_c, log_kappa) < direction.log_largest:
            return None
        program = self.programs.program(with_inverse=True)
        duals = tuple(np.eye(family.rows)[None] for family in program.families)
        stats = SolverStats("closed form", 0.0, 0.0, 0)
        self._record(Outcome(Status.OPTIMAL, inverse, duals, stats), program, direction, 1.0)
        self._note("closed form D = L⁻¹")
        return direction

    def _homogeneous(self) -> Multiples | None:
        if self.homogeneous is not None:
            return self.homogeneous
        # Along one direction λ_D ≤ 1 is enough unless λ vanishes, which the closed form finds out.
        fixed = self.conditions.pattern.direction is not None and bool(self.conditions.groups)
        if not (fixed or homogeneous_program_is_bounded(self.conditions)):
            return None
        program = self.programs.program(with_inverse=False, c=1.0)
        closed = self._closed_form(program)
        if closed is None and fixed:
            return None
        outcome = closed or self._run(program)
        self.homogeneous = self._read(outcome, program, 1.0)
        return self.homogeneous

    def _joint(self, log_c: float, log_kappa: float) -> Multiples | None:
        """Solve the program with D ⪯ L⁻¹ and λ_D ≤ c or λ_D ≤ κτ, whichever is finite."""
        direction = self.conditions.pattern.direction
        if direction is not None:
            return self._largest_multiple(direction)
        # In scaled coordinates, and no closer to zero than a solver takes.
        shift = -self.conditions.log_clients.high + (0.0 if math.isfinite(log_c) else self.conditions.log_scale.high)
        asked = min(log_c, log_kappa) + shift
        if asked > _LOG_MOST or not self.conditions.groups:
            program = self.programs.program(with_inverse=True)
            return self._read(self._run(program), program, 1.0)
        rows = noisy_coordinates(self.conditions)
        size = _SMALL_ROWS_LINEAR if self.programs.linear else _SMALL_ROWS
        # Rows of size r have λ_D ~ r² and λ_D/τ ~ r^(2−|R|/d).
        power = 2.0 if math.isfinite(log_c) else 2.0 - len(rows) / self.conditions.d
        least = power * math.log(size)
        first = True
        while True:
            scale = math.exp(max(asked, least))
            limits = {"c": scale} if math.isfinite(log_c) else {"kappa": scale}
            program = self.programs.program(with_inverse=True, **limits)
            outcome = self._run(program)
            found = self._read(outcome, program, scale)
            if found is None or asked >= least:
                return found
            # The factor that the powers leave out is known now.
            excess = math.log(np.diagonal(found.W)[rows].max() / size)
            if excess < 1.0 or not first:
                multipliers = self.programs.multipliers(outcome, program, scale)
                return self._shrunk(found, multipliers, log_c, log_kappa)
            least, first = least - power * excess, False

    def _shrunk(self, found: Multiples, multipliers: Multipliers, log_c: float, log_kappa: float) -> Multiples | None:
        """Make the answer for a small c or κ of that for a larger one: only rows R of D that λ_D sees become smaller.

        With the rows F that it does not see, D = [E + G D_R Gᵀ, G D_R; D_R Gᵀ, D_R].  D_R → sD_R multiplies λ_D by s²
        and det D by s^|R|, and D⁻¹ gains (1/s − 1)D_R⁻¹ ⪰ 0, so D ⪯ L⁻¹ stays.  Where D_R is so small that D ⪯ L⁻¹ no
        longer limits it, E and G do not change with c, and the multipliers of λ_D grow by 1/s².
        """
        rows = noisy_coordinates(self.conditions)
        share = len(rows) / self.conditions.d
        log_s = min(
            0.0,
            0.5 * (log_c - found.log_lambda),
            (log_kappa + found.log_rate - found.log_lambda) / (2.0 - share),
        )
        s = math.exp(max(log_s, -_LOG_SMALLEST))
        others = np.setdiff1d(np.arange(self.conditions.d), rows)
        D = found.W.copy()
        R, F, FR = np.ix_(rows, rows), np.ix_(others, others), np.ix_(others, rows)
        G = np.linalg.solve(D[R], D[FR].T).T
        D[F] -= (1.0 - s) * (G @ D[FR].T)
        D[R] *= s
        D[FR] *= s
        D[np.ix_(rows, others)] = D[FR].T
        smaller = Multiples.of(self.conditions, D)
        if smaller is None:
            return found
        self._note("the scale separates for the coordinates that λ_D sees")
        clients = tuple(U / s for U in multipliers.clients)
        self.bounds += self.programs.bounds(Multipliers(clients, multipliers.inverse), smaller.W, rows)
        return smaller

    def _closed_form(self, program: Program) -> Outcome | None:
        """Solve (12′) with one client, D = 𝒞(L)⁻¹ # L₁⁻¹, Z = I, or D = γW, γ = λ_W^{−½}, Z = vvᵀ, v the top vector."""
        d, pattern, family = self.conditions.d, program.pattern, program.families[0]
        stats = SolverStats("closed form", 0.0, 0.0, 0)
        if pattern.direction is not None:
            top, duals = self._top_of(program, pattern.direction)
            if top <= 0.0:
                return None
            self._note("closed form for a fixed direction")
            scaled = pattern.direction / math.sqrt(top)
            return Outcome(Status.OPTIMAL, scaled, tuple(d / 2.0 * dual for dual in duals), stats)
        single = len(program.families) == 1 and family.count == 1 and family.is_plain
        if not (single and pattern.is_full and self.programs.is_squared(program) and not self.programs.linear):
            return None
        # M = L₁⁻¹ = H⁻ᵀH⁻¹ is the largest M with HᵀMH ⪯ I.
        inverse = self.programs.inverses[0][0]
        if inverse.shape[1] < d:
            return None
        self._note("closed form 𝒞(L)⁻¹ # L₁⁻¹ for one client")
        return Outcome(Status.OPTIMAL, inverse @ inverse.T, (np.eye(d)[None],), stats)

    def _top_of(self, program: Program, W: Matrix) -> tuple[float, list[Stack]]:
        """Return the largest eigenvalue of all Hᵀ𝒬(φ(W))H, and vvᵀ of its eigenvector instead of its multiplier."""
        top, duals = 0.0, [np.zeros((f.count, f.rows, f.rows)) for f in program.families]
        for i, family in enumerate(program.families):
            values, vectors = np.linalg.eigh(family.images(W))
            j = int(np.argmax(values[:, -1]))
            if values[j, -1] > top:
                top = float(values[j, -1])
                for dual in duals:
                    dual[:] = 0.0
                duals[i][j] = np.outer(vectors[j, :, -1], vectors[j, :, -1])
        return top, duals

    def _largest_multiple(self, W: Matrix) -> Multiples | None:
        """Find D = γW with D ⪯ L⁻¹ active: the multiplier is the top eigenvector of L^½WL^½."""
        stats = SolverStats("closed form", 0.0, 0.0, 0)
        self._note("closed form for a fixed direction")
        program = self.programs.program(with_inverse=True)
        H = program.families[0].H[0]
        values, vectors = np.linalg.eigh(H.T @ W @ H)
        v = vectors[:, -1]
        outcome = Outcome(Status.OPTIMAL, W / float(values[-1]), (np.outer(v, v)[None],), stats)
        return self._read(outcome, program, 1.0)

    # ---------------------------------------------------------------- running and recording

    def _run(self, program: Program) -> Outcome:
        solver, _ = choose_solver(program, self.solver)
        return solver.solve(program, self.settings)

    def _read(self, outcome: Outcome, program: Program, scale: float) -> Multiples | None:
        direction = None
        if outcome.X is not None:
            direction = Multiples.of(self.conditions, self.programs.stepsize(outcome.X, program))
        self._record(outcome, program, direction, scale)
        return direction

    def _record(self, outcome: Outcome, program: Program, direction: Multiples | None, scale: float) -> None:
        self.outcomes.append(outcome)
        if outcome.message:
            self._note(f"{outcome.stats.solver_name}: {outcome.message}")
        if direction is None:
            return
        begin = time.perf_counter()
        multipliers = self.programs.multipliers(outcome, program, scale)
        self.bounds += self.programs.bounds(multipliers, direction.W)
        outcome.stats.extra_stats["certificate_time"] = time.perf_counter() - begin

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
