"""The project's own solver behind the common contract."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stepsize_solvers.families import solve_families
from stepsize_solvers.metric import solve_metric
from stepsize_solvers.numerics import NativeOptions, blas_threads
from stepsize_solvers.programs import Outcome, Program, Settings, Solver, SolverStats, UnsupportedProgram
from stepsize_solvers.single import Report, goes_in_stacks, solve_condition, solve_stack


class NativeSolver(Solver):
    """Methods without lifts, for the one constraint 𝒬(D B D) ⪯ D, for families of inequalities, and for a metric."""

    name = "native"
    starts_warm = True

    def unavailable(self) -> str | None:
        return None

    def unsupported(self, program: Program) -> str | None:
        if program.objective is not None:
            left = program.objective.left
            if left.B is None:
                return "the native solver takes a metric with a quadratic term"
            if not program.families:
                return None
            if program.objective.floor is not None or not left.is_plain or any(f.e for f in program.families):
                return (
                    "beside inequalities (without determinant) the native solver takes the metric aX − XBX, for log det"
                )
        if program.condition is None and any(family.factors is None for family in program.families):
            return "beside other inequalities the native solver takes families with factors only"
        return None

    def solve(self, program: Program, settings: Settings) -> Outcome:
        reason = self.unsupported(program)
        if reason is not None:
            raise UnsupportedProgram(reason)
        options = NativeOptions.from_extra(settings.extra)
        condition = program.condition
        with blas_threads(max([program.d, *(family.rows for family in program.families)])):
            if program.objective is not None and not program.families:
                return solve_metric(program, settings, options)
            if condition is None:
                return solve_families(program, settings)
            began = time.perf_counter()
            report = solve_condition(condition, program.pattern, settings, options)
        return self._outcome(report, time.perf_counter() - began)

    def stacks(self, program: Program) -> bool:
        return program.condition is not None and goes_in_stacks(program.condition, program.pattern)

    def solve_stack(self, programs: Sequence[Program], settings: Settings) -> list[Outcome]:
        options = NativeOptions.from_extra(settings.extra)
        conditions = [program.condition for program in programs if program.condition is not None]
        with blas_threads(programs[0].d):
            began = time.perf_counter()
            reports = solve_stack(conditions, settings, options)
            each = (time.perf_counter() - began) / len(reports)
        return [self._outcome(report, each) for report in reports]

    def _outcome(self, report: Report, total: float) -> Outcome:
        setup = float(report.statistics.pop("setup_time", 0.0))
        extra = {"steps": report.steps, "closed_form": report.closed_form, **report.statistics}
        stats = SolverStats(self.name, total - setup, setup, report.steps, extra)
        duals = () if report.Z is None else (report.Z[None],)
        return Outcome(report.status, report.D, duals, stats, report.message, report.thin)
