"""What a goal answers: which program it solves, what it proves, and how many rounds its rate guarantees.

A goal is one class.  Its questions come in the order of a solve: the goal is read, restricted to the coordinates of
each piece of the problem, solved as a program, proved, and put together again; its words and its rounds belong to the
class, so that a result needs no more than that.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal, Self, TypeAlias, TypeVar

import numpy as np

from stepsize_opt.inputs.checks import check_one_of, dimensions, enter_class, positive_number, real_array
from stepsize_opt.inputs.matrices import Scaling, Symmetric, out_of_range
from stepsize_opt.proofs import Certificate, Descent, Evaluation, is_held, log_det_power
from stepsize_opt.smoothness import LimitBounds, MatrixSmoothness
from stepsize_solvers.programs import Indices, Matrix, Outcome, PositiveMap, Program, Vector

GoalName: TypeAlias = Literal["paper", "descent", "euclidean", "linear", "convex"]
NO_UNDERFLOW = 2.0**-1000  # far above the smallest normal number
At = TypeVar("At", bound=Evaluation)


@dataclass(frozen=True)
class GoalWords:
    """How a goal is shown.

    rate: what its rate is; feasible: what a feasible D satisfies; unit: what rounds are 1/rate times of; arguments:
    those of ``iterations``; judged: the matrix whose determinant or least t is maximised.
    """

    rate: str
    feasible: str
    unit: str
    arguments: tuple[str, str]
    judged: str


@dataclass(frozen=True, eq=False)
class Units:
    """The coordinates of a piece: D[indices, indices] = Λ D̃ Λ."""

    indices: Indices
    scaling: Scaling

    @cached_property
    def power(self) -> int:
        """n with det D = 2ⁿ det D̃."""
        return log_det_power(self.scaling.factors)

    def held(self, at: At) -> At:
        """Return the stepsize that float64 holds in the original units, proved feasible again if it is another.

        Raises ValueError if that is not possible.
        """
        with np.errstate(over="ignore"):
            D = self.scaling.times(at.D)
        size = np.abs(D)
        if size.min() > NO_UNDERFLOW and size.max() < 1.0 / NO_UNDERFLOW:
            return at
        back = self.scaling.over(D)
        inside = is_held(D.diagonal())
        if inside.all() and (back != at.D).any():
            at = at.elsewhere(back)  # entries between coordinates became subnormal or zero
        if not (inside.all() and at.feasible):
            raise stepsize_out_of_range(int(self.indices[np.argmin(inside)]))
        return at


def stepsize_out_of_range(coordinate: int) -> ValueError:
    """Return the error for a stepsize outside the range of float64."""
    return out_of_range(f"the best stepsize of coordinate {coordinate}")


@dataclass(frozen=True, eq=False)
class Proof:
    """What is proved of a D, in the units of its program.

    certificate: of the goal; descent: of H = 2D − T(D), proved positive definite or not, and its log det from below.
    """

    D: Matrix
    certificate: Certificate
    descent: Certificate
    satisfies_condition: bool = True


_GOALS: dict[bool, dict[str, type[Goal]]] = {False: {}, True: {}}


class Goal(ABC):
    """What a stepsize makes as large as possible.

    A class with a ``name`` is found under this name as soon as it is defined, by functions that take ``goal=`` and when
    a result is read from a file.  One that takes arguments of its own is declared as ``class Own(Goal, by_name=False)``
    and handed over as an object.  Subclasses of ``MetricGoal`` and ``FloorGoal`` state little more than their words.

    Attributes
    ----------
    name : str
        The name that users write and results carry.
    words : GoalWords
        How it is shown.
    momentum : bool
        Whether it belongs to a method that keeps two vectors.
    needs_condition : bool
        Whether D has to satisfy T(D) ⪯ D.
    is_determinant : bool
        Whether the rate is det(X)^{1/d}; if not, it is a t.
    has_limit : bool
        Whether ``compression_limit`` and ``optimal_method`` answer for it.
    strong : bool
        With momentum, whether f is strongly convex.
    takes_curvature : bool
        Whether it takes M ⪯ ∇²f, the argument ``strong_convexity``.
    M
        M of H ⪰ tM⁻¹, a matrix or a number μ for μI; None for a goal without one.
    """

    name: ClassVar[str]
    words: ClassVar[GoalWords]
    momentum: ClassVar[bool] = False
    needs_condition: ClassVar[bool] = False
    is_determinant: ClassVar[bool] = False
    has_limit: ClassVar[bool] = False
    strong: ClassVar[bool] = False
    takes_curvature: ClassVar[bool] = False
    M: Symmetric | float | None = None

    def __init_subclass__(cls, *, by_name: bool = True) -> None:
        super().__init_subclass__()
        if by_name and "name" in cls.__dict__:
            enter_class(_GOALS[cls.momentum], cls.name, cls)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Raise TypeError for a class that others are made from."""
        if not hasattr(cls, "name") or not hasattr(cls, "words"):
            msg = f"{cls.__name__} has no name and words: write a class with both that inherits from it"
            raise TypeError(msg)
        return super().__new__(cls)

    # ---------------------------------------------------------------- read

    @staticmethod
    def read(goal: object, strong_convexity: Any, d: int, momentum: bool = False) -> Goal:
        """Read the arguments; raise ValueError or TypeError for an unknown goal or an M that does not go with it."""
        if not isinstance(momentum, bool):
            msg = f"momentum must be True or False, got {momentum!r}: how much of it is best follows from L and M"
            raise TypeError(msg)
        if isinstance(goal, Goal):
            if strong_convexity is not None or (momentum and not goal.momentum):
                msg = f"goal is a {type(goal).__name__}, which has its own M and momentum: leave the arguments out"
                raise ValueError(msg)
            return goal.read_again(d)
        if not isinstance(goal, str) or goal not in _GOALS[momentum]:
            _refuse(goal, momentum)
        return _GOALS[momentum][str(goal)].of(strong_convexity, d)

    @classmethod
    def of(cls, strong_convexity: Any, d: int) -> Self:
        """Return the goal for the arguments of a function; raise ValueError for an M that it does not take."""
        if strong_convexity is not None:
            msg = "strong_convexity is the M ⪯ ∇²f of goal='linear', a matrix or a number μ > 0: "
            raise ValueError(msg + f"leave it out for goal={cls.name!r}")
        return cls()

    def read_again(self, d: int) -> Goal:
        """Return a goal that was given as an object, with what it holds checked."""
        return self

    def for_sketch(self, law: PositiveMap) -> Goal:
        """Return the goal for one sketch, 𝒫 = ``law``: the same without momentum."""
        return self

    # ---------------------------------------------------------------- pieces of the problem

    @property
    def edges(self) -> Symmetric | None:
        """A matrix whose entries connect coordinates, or None."""
        return None if isinstance(self.M, float) else self.M

    def restricted(self, indices: Indices) -> Matrix | float | None:
        """Return M on some of the coordinates; None without one."""
        return None

    @property
    def strong_convexity(self) -> Any:
        """M of ``of``; None for a goal that takes none."""
        return None

    def check(self, L: Matrix, indices: Indices) -> None:  # noqa: B027
        """Raise ValueError unless the goal goes with L on a group of coordinates."""

    def at(self, units: Units) -> Goal:
        """Return the goal in the coordinates of a piece."""
        return self

    def power(self, units: Units) -> int:
        """n with which the certificate of a piece moves to the original units, log det X = log det X̃ + n log 2."""
        return units.power

    def of_coordinates(
        self,
        log_det: Certificate,
        lower: Vector,
        upper: Vector,
        units: Units,
    ) -> Certificate:
        """Return the certificate of coordinates that stand alone, in the original units.

        log_det: that of Σ log D_j; lower, upper: ends of each log D̃_j, D̃_j = H̃_j up to what is proved.
        """
        return log_det

    # ---------------------------------------------------------------- one piece, in its coordinates

    @abstractmethod
    def program(self, condition: Program) -> Program:
        """Return the program to solve, from that of the condition 𝒬(DBD) ⪯ D."""

    @abstractmethod
    def prove(self, condition: Program, outcome: Outcome, units: Units, tol: float) -> Proof:
        """Prove the answer of a solver, or one next to it that float64 holds in the original units."""

    @abstractmethod
    def judge(
        self, condition: Evaluation, metric: Descent | None, dual: Matrix | None, others: Sequence[Matrix]
    ) -> Certificate:
        """Return the certificate of a given D.

        condition: of this D, or of a multiple of it on the same side of the condition's boundary; metric: of this D,
        None where it is too far from one; others: references for a multiplier of the condition.
        """

    # ---------------------------------------------------------------- an L that is never formed

    def under_inverse(self, structure: Any) -> Any:
        """Return the structure whose largest D ⪯ B⁻¹ is best where T(D) = DBD; None if that is not known."""
        return None

    def of_inverse(self, certificate: Certificate) -> Certificate:
        """Return the certificate of the goal from that of log det D for such a D."""
        return certificate

    # ---------------------------------------------------------------- the whole

    def combine(self, parts: Sequence[Certificate]) -> Certificate:
        """Return the certificate of the rate from those of the pieces, in the original units."""
        together = Certificate.combine if self.is_determinant else Certificate.weakest
        return self.proved(together(parts))

    def for_limit(self) -> Goal:
        """Return the goal whose limit bounds this one, as ``read_limit`` takes it."""
        return self

    def with_condition(self) -> Goal | None:
        """Return the goal under T(D) ⪯ D that bounds the same quantity; None without one."""
        return None

    def with_momentum(self, d: int) -> Goal | None:
        """Return the goal of the same name for methods with momentum; None without one."""
        if _GOALS[False].get(self.name) is not type(self) or self.name not in _GOALS[True]:
            return None
        return _GOALS[True][self.name].of(self.strong_convexity, d)

    @property
    def inverse_curvature(self) -> Any:
        """V of a method with momentum; None without memory."""
        return None

    def proved(self, certificate: Certificate) -> Certificate:
        """Return the certificate with what the goal itself proves of its rate."""
        return certificate

    def bounds(self, L: MatrixSmoothness, indices: Indices) -> LimitBounds:
        """Return what the limit takes from L on a group of coordinates."""
        return L.bounds(None, indices)

    def log_limit(self, parts: Sequence[LimitBounds], rank: float) -> float:
        """Return d log of the limit for samples of an expected rank, from above."""
        return LimitBounds.combine(parts).log_bound(rank)

    # ---------------------------------------------------------------- what a rate guarantees

    @classmethod
    def iterations(cls, rate: float, d: int, **given: Any) -> int:
        """Return the K of ``rounds`` from the arguments that ``words`` names; the others are None.

        Raises TypeError for one that is missing, ValueError for one too many, or a start of another size than d.
        """
        wanted = cls.words.arguments
        for name, value in given.items():
            if value is not None and name not in wanted:
                msg = f"iterations for the goal {cls.name!r} takes {' and '.join(wanted)}, not {name}"
                raise ValueError(msg)
        for name in wanted:
            if given[name] is None:
                msg = f"iterations needs {name}"
                raise TypeError(msg)
        accuracy, start = (given[name] for name in wanted)
        if dimensions(start) > 0 and real_array(wanted[1], start).shape != (d,):
            msg = f"{wanted[1]} must be a number or x⁰ − x*, {d} finite numbers"
            raise ValueError(msg)
        return cls.rounds(rate, accuracy, start)

    @classmethod
    def guaranteed(cls, rate: float, descent_rate: float) -> float:
        """Return the rate by which rounds are counted, from that of the goal and det(H)^{1/d}."""
        return rate

    @classmethod
    def rounds(cls, rate: float, accuracy: float, start: Any) -> int:
        """Return the smallest K that a rate guarantees; accuracy and start as ``words.arguments`` names them.

        Here K with 2Δ⁰/(rate K) ≤ ε², exact for the floats given, however large K is.
        """
        names = cls.words.arguments
        target, gap = positive_number(names[0], accuracy), positive_number(names[1], start)
        return math.ceil(2 * Fraction(gap) / (Fraction(positive_number("rate", rate)) * Fraction(target)))

    @classmethod
    def relative_rounds(cls, rate: float) -> float:
        """Return the rounds that a rate guarantees, in the unit of the goal."""
        return 1.0 / rate


def _refuse(goal: object, momentum: bool) -> None:
    """Raise ValueError for a goal that has no class."""
    if not isinstance(goal, str):
        check_one_of("goal", goal, _GOALS[momentum])
    if momentum and goal in _GOALS[False]:
        msg = (
            f"momentum=True is proved for convex f only, goal='linear' or goal='convex', got goal={goal!r}: "
            "without memory every goal has an answer"
        )
        raise ValueError(msg)
    if goal in _GOALS[True]:
        msg = (
            f"goal={goal!r} is proved with memory only: pass momentum=True, with which x and z are kept; "
            "goal='linear' with strong_convexity=M bounds f − f* without memory"
        )
        raise ValueError(msg)
    check_one_of("goal", goal, _GOALS[momentum])


def goal_class(name: str, momentum: bool = False) -> type[Goal]:
    """Return the class of a goal, by which its words and rounds are asked; raise ValueError for an unknown name."""
    if name not in _GOALS[momentum]:
        msg = f"no goal is named {name!r}{' with momentum' if momentum else ''}: import the module that defines it"
        raise ValueError(msg)
    return _GOALS[momentum][name]


def coordinates_sent(iterations: int, expected_nonzeros: float) -> float:
    """Return the expected number of floats sent to the server in all rounds; raises OverflowError beyond float64."""
    try:
        return iterations * expected_nonzeros
    except OverflowError:
        digits = math.floor(iterations.bit_length() * math.log10(2.0))
        msg = f"the number of coordinates sent in about 1e{digits} iterations exceeds float64; ask for less accuracy"
        raise OverflowError(msg) from None
