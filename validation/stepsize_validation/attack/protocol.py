"""What every kind of attack is made of: a problem drawn from a seed, its attack, and a verdict."""

from __future__ import annotations

import os
import signal
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeVar

import numpy as np

# A problem of any kind takes seconds of one core; one that runs for so long hangs, even on a busy machine.
SECONDS_FOR_ONE_PROBLEM = 600

T = TypeVar("T")


class Verdict(Enum):
    """ok: every claim is true and the answer optimal.  unproved: every claim is true, but optimality is not claimed.
    refused: an error of the documented type that says why.  wrong: a false claim.  crashed: any other error, or hung.
    """

    OK = "ok"
    UNPROVED = "unproved"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASHED = "crashed"

    @property
    def is_failure(self) -> bool:
        return self in (Verdict.WRONG, Verdict.CRASHED)


class Wrong(AssertionError):
    """The referee's word: a claim of the library is false."""


class Refused(Exception):
    """The library declined a problem that it may decline, with a clear error."""


class Problem(Protocol):
    """A random problem; its text is what a report prints beside the seed."""

    def __str__(self) -> str: ...

    def attack(self) -> Verdict:
        """Run the library on the problem and judge every claim; raises ``Wrong`` or ``Refused``."""
        ...


@dataclass(frozen=True)
class Kind:
    """A kind of attack: its name, what it tries in one line, how often it comes up, and how its problems are drawn."""

    name: str
    aim: str
    share: float
    draw: Callable[[np.random.Generator], Problem]


@dataclass(frozen=True)
class Outcome:
    """What became of one problem."""

    kind: str
    seed: int
    verdict: Verdict
    problem: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.verdict.value}: --kind {self.kind} --seed {self.seed} ({self.problem}): {self.reason}"


def claim(holds: bool, false_statement: str) -> None:
    """Raise ``Wrong`` with the statement unless it holds."""
    if not holds:
        raise Wrong(false_statement)


def ask(call: Callable[[], T], *, may_refuse: bool) -> T:
    """The library's answer.  An error for bad input is a refusal, and wrong for a problem that it has to solve."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        if may_refuse and str(error).strip():
            raise Refused(str(error)) from error
        msg = f"a valid problem was refused: {type(error).__name__}: {error}"
        raise Wrong(msg) from error


def examine(kind: Kind, seed: int) -> Outcome:
    """Draw problem ``seed`` of the kind and attack with it; the same seed gives the same problem everywhere."""
    problem = kind.draw(np.random.default_rng([zlib.crc32(kind.name.encode()), seed]))
    verdict, reason = Verdict.OK, ""
    try:
        with _deadline(SECONDS_FOR_ONE_PROBLEM), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of overflow, say: what counts is the answer
            verdict = problem.attack()
    except Refused as error:
        verdict, reason = Verdict.REFUSED, str(error)
    except Wrong as error:
        verdict, reason = Verdict.WRONG, str(error)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        verdict, reason = Verdict.CRASHED, f"{type(error).__name__} at {place}: {error}"
    return Outcome(kind.name, seed, verdict, str(problem), reason)


@contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the main thread after so many seconds."""

    def stop(*_: Any) -> None:
        msg = f"no answer after {seconds} s"
        raise TimeoutError(msg)

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
