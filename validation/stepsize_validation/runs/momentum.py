"""How a run moves: without memory, or with momentum, which keeps a second vector and evaluates gradients at y."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from stepsize_opt.methods import Factors, Method, MomentumState, MomentumStep
from stepsize_opt.problems import Federated
from stepsize_opt.results import StepsizeResult, SubspaceMethod
from stepsize_solvers.programs import Matrix
from stepsize_validation.runs.sampling import Draws


class Mover(Protocol):
    """What a run does with its draws; ``messages``: how many times a sender sends the numbers of a sketch."""

    @property
    def messages(self) -> int: ...

    def point(self, X: Matrix) -> Matrix:
        """Return where the gradients are evaluated, for iterates X."""
        ...

    def step(self, parts: Matrix, draws: Draws, t: int) -> Matrix:
        """Return G∇f of the gradients at ``point``, (s, n, d) → (s, d)."""
        ...

    def moved(self, X: Matrix, step: Matrix) -> Matrix:
        """Return the next iterates."""
        ...


@dataclass(eq=False)
class WithoutMemory:
    """x⁺ = x − G∇f(x)."""

    method: Method
    factors: Factors

    @property
    def messages(self) -> int:
        return 1

    def point(self, X: Matrix) -> Matrix:
        return X

    def step(self, parts: Matrix, draws: Draws, t: int) -> Matrix:
        return self.method.step(parts, self.factors, partial(draws.mean, t))

    def moved(self, X: Matrix, step: Matrix) -> Matrix:
        return X - step


@dataclass(eq=False)
class WithMomentum:
    """x⁺ = y − G∇f(y) and the update of z, from the same draw."""

    rounds: MomentumStep
    state: MomentumState
    along: Any = None

    @property
    def messages(self) -> int:
        return self.rounds.messages

    def point(self, X: Matrix) -> Matrix:
        return self.rounds.point(self.state)

    def step(self, parts: Matrix, draws: Draws, t: int) -> Matrix:
        step, self.along = self.rounds.steps(parts, partial(draws.mean, t))
        return step

    def moved(self, X: Matrix, step: Matrix) -> Matrix:
        self.state = self.rounds.moved(self.state, step, self.along)
        return self.state.x


def momentum_of(D: Any, sketch: Any, algorithm: Any) -> MomentumStep | None:
    """Return the rounds of a result with momentum; None without memory.

    Raises ValueError for another sketch or method than its own: its rate holds for these.
    """
    result = algorithm if isinstance(algorithm, SubspaceMethod) else D
    if not (isinstance(result, StepsizeResult | SubspaceMethod) and result.momentum):
        return None
    own = result if isinstance(result, SubspaceMethod) else result.method
    if (sketch is not None and sketch != result.sketch) or algorithm not in (None, own, own.name):
        msg = "a result with momentum has a sketch and a method of its own: leave out sketch and algorithm"
        raise ValueError(msg)
    rounds: Any = result.compressor()
    return rounds  # type: ignore[no-any-return]


def seeds_of_momentum(objective: object, client_seeds: str | None) -> str:
    """Return ``"shared"``; raises ValueError for clients that draw sketches of their own."""
    if isinstance(objective, Federated) and client_seeds == "independent":
        msg = "momentum is proved for one node, and clients with independent draws are none: use client_seeds='shared'"
        raise ValueError(msg)
    return "shared" if isinstance(objective, Federated) else "independent"
