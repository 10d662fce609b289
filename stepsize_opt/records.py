"""What the answers of one node and of clients share: the question, a status that the certificate proves, the text."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, TypeVar

from stepsize_opt.inputs.structures import Direction, Structure, parse_structure
from stepsize_opt.large.stepsizes import DiagonalStepsize, StepsizeOperator
from stepsize_opt.methods import Method
from stepsize_opt.proofs import Certificate
from stepsize_opt.saving import Saved
from stepsize_solvers.programs import Shown, SolverStats, Status


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Result(Shown, Saved):
    """An answer with its proof; a subclass adds the answer itself and what it predicts."""

    status: str
    certificate: Certificate
    solver_stats: SolverStats
    reductions: tuple[str, ...]
    method: Method
    structure: Structure
    tol: float
    message: str = ""
    estimated: str = ""

    @property
    def certified(self) -> bool:
        """Whether L came as a proved smoothness matrix; if not, ``estimated`` and the table say what it is."""
        return not self.estimated

    @property
    def algorithm(self) -> str:
        """The name of the method."""
        return self.method.name

    @property
    @abstractmethod
    def d(self) -> int:
        """Size of D."""

    @property
    @abstractmethod
    def _sketch_text(self) -> str: ...

    @property
    def gap(self) -> float:
        """The certified gap: no feasible D has a rate above e^gap times that of this one."""
        return self.certificate.gap

    @property
    @abstractmethod
    def expected_nonzeros(self) -> float:
        """Floats that a sender sends per round, in expectation."""

    def columns(self) -> dict[str, Any]:
        """Return what a row of a table takes from the answer."""
        known = {"sketch": self._sketch_text, "k": self.expected_nonzeros}
        return {**known, "gap": self.gap, "status": self.status, "result": self}

    @abstractmethod
    def _numbers(self) -> dict[str, Any]:
        """Return what ``summary`` has of this answer alone."""

    def summary(self) -> dict[str, Any]:
        """Return everything but the matrices, as plain numbers and strings (what ``--json`` prints)."""
        return {
            "status": self.status,
            "message": self.message,
            "d": self.d,
            "algorithm": self.algorithm,
            "sketch": self._sketch_text,
            "structure": str(self.structure),
            "tol": self.tol,
            "certified": self.certified,
            "estimated": self.estimated,
            **self._numbers(),
            "certificate": {**asdict(self.certificate), "gap": self.gap},
            "solver_stats": asdict(self.solver_stats),
            "reductions": list(self.reductions),
        }

    @abstractmethod
    def _rows(self) -> list[tuple[str, str]]:
        """Return the names and values of this answer alone."""

    def _shown(self) -> list[tuple[str, str]]:
        s = self.solver_stats
        seconds = "" if s.solve_time is None else f", {s.solve_time:.3g} s"
        iterations = "" if s.num_iters is None else f", {s.num_iters} iterations"
        message = f" ({self.message})" if self.message else ""
        rows = [
            ("status", self.status + (" for the estimate" if self.estimated else "") + message),
            *([("smoothness", self.estimated)] if self.estimated else []),
            *self._rows(),
            ("certified gap", f"{self.gap:.2e} (tolerance {self.tol:.0e})"),
            ("solver", f"{s.solver_name}{seconds}{iterations}"),
        ]
        if self.reductions:
            rows.append(("reductions", "; ".join(self.reductions)))
        return rows


def plain_fields(result: Result, *left_out: str) -> dict[str, Any]:
    """Return the fields of a result as JSON holds them; ``left_out`` are saved otherwise."""
    kept = [one.name for one in fields(result) if one.name not in ("method", "structure", *left_out)]
    values = {name: getattr(result, name) for name in kept}
    plain = {name: asdict(value) if is_dataclass(value) else value for name, value in values.items()}  # type: ignore[arg-type]
    return {**plain, "algorithm": result.algorithm, "structure": plain_structure(result.structure)}


def plain_structure(structure: Structure) -> Any:
    """Return a structure as JSON holds it; of a direction the sizes, because D itself is one."""
    return {"direction": structure.sizes} if isinstance(structure, Direction) else str(structure)


def structure_of_plain(plain: Any, D: Any) -> Structure:
    """Return the structure of a result that was read, whose stepsize is D."""
    if isinstance(plain, str):
        return parse_structure(plain)
    if isinstance(D, DiagonalStepsize):
        W = D.x
    else:
        W = D.todense() if isinstance(D, StepsizeOperator) else D
    return Direction(W, tuple(plain["direction"]))


R = TypeVar("R", bound=Result)


def completed(result: R) -> R:
    """Return the result; raise KeyboardInterrupt if Ctrl-C ended its solve, so that no later solve starts."""
    if result.status == Status.INTERRUPTED.value:
        raise KeyboardInterrupt
    return result
