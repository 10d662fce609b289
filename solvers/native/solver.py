"""The native solver behind the common contract: choose the method for a program, run it, report."""

from __future__ import annotations

import time

import numpy as np

from solvers.base import Settings, Solver, UnsupportedProgram
from solvers.maps import DiagonalPlusScaled, Matrix
from solvers.native.iteration import Iteration, Progress
from solvers.native.linalg import blas_threads, cholesky, sym
from solvers.native.point import FullModel, Point
from solvers.native.settings import NativeOptions
from solvers.native.starts import power_start
from solvers.outcome import Outcome, SolverStats, Status
from solvers.program import BlockPattern, LogDetProgram


class NativeSolver(Solver):
    """Interior-point method without lifts: one d×d dual, Newton systems by preconditioned conjugate gradients."""

    name = "native"

    def unavailable(self) -> str | None:
        return None

    def unsupported(self, program: LogDetProgram) -> str | None:
        if len(program.constraints) != 1:
            return "the native solver takes one constraint"
        con = program.constraints[0]
        if con.Q is None or con.a != 1.0 or con.C is not None or con.c != 0.0:
            return "the native solver takes the homogeneous constraint 𝒬(D B D) ⪯ D"
        if not isinstance(program.pattern, BlockPattern) or not program.pattern.is_full:
            return "the native solver takes a full D"
        return None

    def solve(self, program: LogDetProgram, settings: Settings) -> Outcome:
        reason = self.unsupported(program)
        if reason is not None:
            raise UnsupportedProgram(reason)
        began = time.perf_counter()
        options = NativeOptions.from_extra(settings.extra)
        con = program.constraints[0]
        assert con.Q is not None and con.B is not None
        model = FullModel(sym(con.B), con.Q)
        progress = Progress()
        with blas_threads(program.d):
            start = self._start(model, settings, options)
            setup = time.perf_counter() - began
            deadline = None if settings.time_limit is None else began + settings.time_limit
            iteration = Iteration(model, options, settings.tol, progress)
            try:
                status = iteration.run(
                    start,
                    settings.max_iters if settings.max_iters is not None else options.max_iters,
                    deadline,
                    print if settings.verbose else None,
                )
            except KeyboardInterrupt:
                status = Status.INTERRUPTED
        best = progress.best
        assert best is not None
        stats = SolverStats(
            solver_name=self.name,
            solve_time=time.perf_counter() - began - setup,
            setup_time=setup,
            num_iters=progress.steps,
            extra_stats={
                "steps": progress.steps,
                "correctors": progress.correctors,
                "cg_iterations": progress.counters.cg_iterations,
                "products": round(progress.counters.products),
                "eigendecompositions": progress.counters.eigendecompositions,
                "history": progress.history,
                "gap": best.bounds.width / program.d,
            },
        )
        D = best.bounds.scale * best.point.D
        Z = best.bounds.dual_scale * best.point.Z
        return Outcome(status, D, (Z,), stats)

    def _start(self, model: FullModel, settings: Settings, options: NativeOptions) -> Point:
        D = options.start_fraction * power_start(model.B, model.Q).D
        K = cholesky(D)
        assert K is not None
        p = model.point(D, np.linalg.inv(D))
        assert p is not None
        return p
