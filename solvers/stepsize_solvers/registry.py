"""Which solvers there are, in order of preference, and which of them can run here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepsize_solvers.conic.backends import BACKENDS, CvxpySolver, other_solver
from stepsize_solvers.native import NativeOptions, NativeSolver
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import Program, Settings, Solver, SolverUnavailable, UnsupportedProgram

# A solver by its name, or as an object; "auto" leaves the choice to ``choose_solver``.
SolverChoice: TypeAlias = "Literal['auto', 'native', 'clarabel', 'mosek', 'scs'] | str | Solver"
_SOLVERS: dict[str, Solver] = {solver.name: solver for solver in (NativeSolver(), *BACKENDS)}

# Fast first: the project's own solver, then interior points, then the first-order method.
_PREFERENCE = ("native", "mosek", "clarabel", "scs")


@dataclass(frozen=True)
class Availability:
    """A solver's name and why it cannot run here (None when it can).

    Examples
    --------
    See ``available_solvers``.
    """

    name: str
    reason: str | None

    @property
    def available(self) -> bool:
        return self.reason is None


def available_solvers() -> tuple[Availability, ...]:
    """Every solver of the registry with the reason why it cannot run here, without importing any of them.

    ``solver="…"`` also takes the other solvers of cvxpy's that have a cone of positive semidefinite matrices.

    Examples
    --------
    >>> from stepsize_opt import available_solvers
    >>> [solver.name for solver in available_solvers() if solver.name in ("native", "clarabel") and solver.available]
    ['native', 'clarabel']
    """
    return tuple(Availability(name, solver.unavailable()) for name, solver in _SOLVERS.items())


def get_solver(name: str | Solver) -> Solver:
    """The solver of that name (any case), of the registry or of cvxpy; a Solver is returned as it is.

    Raises TypeError for what is neither, ValueError for a name that neither knows or a solver without the cone of
    positive semidefinite matrices, and SolverUnavailable for one that cannot run.
    """
    if not isinstance(name, str | Solver):
        msg = f"solver must be 'auto' or one of {', '.join(_SOLVERS)}, got {name!r}"
        raise TypeError(msg)
    solver = name if isinstance(name, Solver) else _SOLVERS.get(name.lower()) or other_solver(name)
    reason = solver.unavailable()
    if reason is not None:
        msg = f"solver {solver.name!r} cannot run: {reason}"
        raise SolverUnavailable(msg)
    return solver


def check_solver(solver: str | Solver, settings: Settings) -> None:
    """Raise before any work for a solver that is unknown or cannot run, or for settings that it does not take.

    A closed form may answer without a solver, and would never look at either.
    """
    if isinstance(solver, str) and solver in ("auto", "native"):
        NativeOptions.from_extra(settings.extra)
        return
    found = get_solver(solver)
    if isinstance(found, CvxpySolver):
        found.check(settings)


def choose_solver(program: Program, asked: SolverChoice = "auto") -> tuple[Solver, str]:
    """The solver asked for, or the preferred one that can run and can express the program, and why it was chosen.

    Raises UnsupportedProgram when the solver asked for cannot express the program, SolverUnavailable when none can run.
    """
    if asked != "auto":
        solver = get_solver(asked)
        unsupported = solver.unsupported(program)
        if unsupported is not None:
            raise UnsupportedProgram(unsupported)
        return solver, "asked for"
    passed: list[str] = []
    for name in _PREFERENCE:
        solver = _SOLVERS[name]
        reason = solver.unavailable() or solver.unsupported(program)
        if reason is None and name != "native" and program.d > Sizes.LIFTED:
            reason = f"its form for d = {program.d} may take gigabytes; solver={name!r} asks for it all the same"
        if reason is None:
            why = f"first choice for this program ({'; '.join(passed)})" if passed else "first choice"
            return solver, why
        passed.append(f"{name}: {reason}")
    msg = f"no solver can take this program: {'; '.join(passed)}"
    raise SolverUnavailable(msg)
