"""What the studies share: targets, measurements, times.

A *target* names a number and the bound that is wanted of it.  A *measurement* is that number for one case.  A *study*
is a function that measures; its name is ``subject.what``, and one command runs them all::

    python -m stepsize_validation.bench [--only NAME ...] [--quick] [--list] [--record FILE]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh

from stepsize_opt.problems import DATA_VARIABLE, available_datasets
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Matrix

GAP = 1e-6  # the certified gap that the library promises by default


@dataclass(frozen=True)
class Target:
    """A number with the bound that is wanted of it; without a bound it is shown and always holds."""

    name: str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a value is within the bounds; NaN never is."""
        return not (
            (self.at_most is not None and not value <= self.at_most)
            or (self.at_least is not None and not value >= self.at_least)
            or np.isnan(value)
        )

    def of(self, case: str, value: float, **details: float | str | None) -> Measurement:
        """This number measured for one case; ``details`` are shown beside it."""
        return Measurement(self, case, float(value), details)

    @property
    def wanted(self) -> str:
        bounds = (("≤", self.at_most), ("≥", self.at_least))
        return " ".join(f"{sign} {self.show(bound)}" for sign, bound in bounds if bound is not None)

    def show(self, value: float) -> str:
        """A value with its unit, four digits."""
        return f"{value:.4g} {self.unit}".strip()


@dataclass(frozen=True)
class Measurement:
    """The number of a target for one case, and what else was seen."""

    target: Target
    case: str
    value: float
    details: Mapping[str, float | str | None] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return self.target.holds(self.value)

    def __str__(self) -> str:
        more = "".join(f", {name} {_show(value)}" for name, value in self.details.items() if value not in ("", None))
        mark = "" if self.holds else "  MISSED"
        return f"{self.target.name}: {self.case}: {self.target.show(self.value)}{more}{mark}"


def _show(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# What a study yields: measurements, and remarks in words on what it did not measure.
Found = Iterator[Measurement | str]


@dataclass(frozen=True)
class Study:
    """A named function that measures; its argument says whether small sizes will do."""

    name: str
    measure: Callable[[bool], Found]

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.measure.__doc__ or "").partition("\n")[0]


def chosen(studies: Sequence[Study], names: Sequence[str]) -> list[Study]:
    """The studies of the given names or subjects, all without any; raises ValueError for an unknown one."""
    known = {study.name for study in studies} | {study.name.partition(".")[0] for study in studies}
    unknown = [name for name in names if name not in known]
    if unknown:
        msg = f"unknown study {', '.join(unknown)}; choose from {', '.join(sorted(known))}"
        raise ValueError(msg)
    return [study for study in studies if not names or {study.name, study.name.partition(".")[0]} & set(names)]


def worst(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """For each target the measurement nearest to missing it, or furthest beyond; without a bound the last."""
    out: dict[str, Measurement] = {}
    for one in measurements:
        other = out.get(one.target.name)
        if other is None or _badness(one) >= _badness(other):
            out[one.target.name] = one
    return out


def _badness(one: Measurement) -> float:
    if np.isnan(one.value):
        return np.inf
    if one.target.at_most is not None:
        return one.value
    return 0.0 if one.target.at_least is None else -one.value


@dataclass(frozen=True)
class Timed:
    """Seconds of a call, and what it returned."""

    seconds: float
    answer: Any


def timed(run: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> Timed:
    """One call.  Processor time by default: on a shared machine the clock on the wall measures the neighbours."""
    began = clock()
    answer = run()
    return Timed(clock() - began, answer)


by_the_clock = partial(timed, clock=time.perf_counter)


def shortest(
    runs: Sequence[Callable[[], Any]],
    rounds: int = 3,
    repeats: Sequence[int] | None = None,
    clock: Callable[[], float] = time.process_time,
) -> list[Timed]:
    """The shortest call of each run; they take turns, so that a busy moment does not decide.

    ``repeats``: calls of each run in a round (1 by default).
    """
    best: dict[int, Timed] = {}
    for _ in range(rounds):
        for i, run in enumerate(runs):
            for _ in range(1 if repeats is None else repeats[i]):
                now = timed(run, clock)
                if i not in best or now.seconds < best[i].seconds:
                    best[i] = now
    return [best[i] for i in range(len(runs))]


def eigh_seconds(B: Matrix) -> float:
    """The unit of cost: one scipy.linalg.eigh of this very matrix, with the threads that the solver uses."""
    with blas_threads(len(B)):
        return shortest([lambda: eigh(B)], 5 if len(B) < 400 else 2)[0].seconds


def at_hand(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the data sets that can be loaded here, and a remark for each that cannot."""
    known = available_datasets()
    missing = [f"not measured on {name}: no such file in {DATA_VARIABLE}" for name in names if name not in known]
    return [name for name in names if name in known], missing
