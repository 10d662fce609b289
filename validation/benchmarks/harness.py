"""Measured values against targets: each is printed as it is made, then the worst case of each; exit code 1 on a miss.

A study is a generator of ``Measured``; its argument tells whether small sizes will do.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from scipy.linalg import eigh

from stepsize_solvers.numerics.linalg import blas_threads
from stepsize_solvers.programs import Matrix
from stepsize_validation.data import DATA_VARIABLE, available_datasets
from stepsize_validation.origin import origin

GAP = 1e-6  # the certified gap that the library promises by default


@dataclass(frozen=True)
class Measured:
    """A value with the bound that is wanted of it, if any."""

    name: str
    case: str
    value: float
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """How many times worse than the target: above 1 is a miss, 0 stands for a value without a target."""
        if math.isnan(self.value):
            return math.inf
        if self.at_most is not None:
            return self.value / self.at_most
        return 0.0 if self.at_least is None else self.at_least / self.value

    def row(self) -> dict[str, str]:
        """Return the cells of the table."""
        bound = self.at_least if self.at_most is None else self.at_most
        target = "" if bound is None else f"{'≥' if self.at_most is None else '≤'} {bound:.4g}"
        ratio = f"{self.ratio:.2f}" + (" MISSED" if self.ratio > 1.0 else "") if target else ""
        values = {"value": f"{self.value:.4g}", "target": target, "ratio": ratio}
        return {"what": self.name, "case": self.case, **values, "note": self.note}


Study = Callable[[bool], Iterator[Measured]]


def main(studies: Sequence[Study], arguments: Sequence[str] | None = None) -> int:
    """Run the studies that the arguments name; return 1 when a target is missed."""
    known = {study.__name__: study for study in studies}
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=known, default=list(known))
    parser.add_argument("--quick", action="store_true", help="small sizes: seconds to a minute")
    parser.add_argument("--output", type=Path, help="also write the values as CSV, with this command as its first line")
    args = parser.parse_args(arguments)
    worst: dict[str, Measured] = {}
    values = []
    for name in args.only:
        print(f"{name}: {(known[name].__doc__ or '').partition(chr(10))[0]}", flush=True)
        for one in known[name](args.quick):
            print("  " + ", ".join(filter(None, one.row().values())), flush=True)
            values.append({"study": name, "what": one.name, "case": one.case, "value": one.value, "note": one.note})
            if one.name not in worst or one.ratio >= worst[one.name].ratio:
                worst[one.name] = one
    if args.output:
        only = " ".join(args.only) + (" --quick" if args.quick else "")
        store(values, args.output, f"PYTHONPATH=validation python -m benchmarks.{Path(sys.argv[0]).stem} --only {only}")
    shown = pd.DataFrame([one.row() for one in worst.values()]).to_string(index=False)
    print("\nworst case of each", shown, sep="\n\n")
    return int(any(one.ratio > 1.0 for one in worst.values()))


def store(rows: Sequence[dict[str, Any]], path: Path, command: str) -> None:
    """Write rows as CSV, with the command that made them as the first line."""
    text = pd.DataFrame(rows).to_csv(index=False, float_format="%.4g")
    path.write_text(f"{origin(command)}\n{text}", encoding="utf-8")


class Timed(NamedTuple):
    """Seconds of a call, and what it returned."""

    seconds: float
    answer: Any


def timed(run: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> Timed:
    """Time one call, in processor time by default: on a shared machine wall time measures the neighbours."""
    began = clock()
    answer = run()
    return Timed(clock() - began, answer)


def shortest(
    runs: Sequence[Callable[[], Any]], rounds: int = 3, clock: Callable[[], float] = time.process_time
) -> list[Timed]:
    """Return the shortest call of each; they take turns, so that a busy moment does not decide."""
    calls = [[timed(run, clock) for run in runs] for _ in range(rounds)]
    return [min(mine, key=lambda one: one.seconds) for mine in zip(*calls, strict=True)]


def eigh_seconds(B: Matrix) -> float:
    """Return the unit of cost: one scipy.linalg.eigh of this very matrix, with the threads that the solver uses."""
    with blas_threads(len(B)):
        return shortest([lambda: eigh(B)], 5 if len(B) < 400 else 2)[0].seconds


def at_hand(*names: str) -> list[str]:
    """Return those of the data sets that can be loaded here; name the others."""
    for name in set(names) - set(available_datasets()):
        print(f"  not measured on {name}: no such file in {DATA_VARIABLE}")
    return [name for name in names if name in available_datasets()]
