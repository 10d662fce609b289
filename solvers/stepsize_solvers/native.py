"""The project's own solver behind the common contract."""

from __future__ import annotations

from stepsize_solvers import dispatch
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Outcome, Program, Settings, Solver, UnsupportedProgram


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
        with blas_threads(max([program.d, *(family.rows for family in program.families)])):
            return dispatch.solve(program, settings)
