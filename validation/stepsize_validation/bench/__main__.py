"""Measure the library against its targets: ``python -m stepsize_validation.bench``.

Every measurement is printed as it is made; the table at the end gives the worst case of each target.  Exit code 0 when
all targets hold, 1 when one is missed, 2 for a mistake in the arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import json_text, write_text
from stepsize_validation.bench.records import environment
from stepsize_validation.bench.tables import TextTable
from stepsize_validation.bench.targets import STUDIES, Measurement, chosen, worst
from stepsize_validation.terminal import show


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the studies that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m stepsize_validation.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="studies or subjects; see --list")
    parser.add_argument("--quick", action="store_true", help="small sizes: seconds to a minute for each subject")
    parser.add_argument("--list", action="store_true", help="names of the studies")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write every measurement to this JSON file")
    args = parser.parse_args(arguments)
    try:
        studies = chosen(STUDIES, args.only)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        for study in studies:
            print(f"{study.name:<18} {study.summary}")
        return 0
    found: list[Measurement] = []
    remarks: list[str] = []
    for study in studies:
        print(f"{study.name}: {study.summary}", flush=True)
        for one in study.measure(args.quick):
            print(f"  {one}", flush=True)
            if isinstance(one, str):
                remarks.append(f"{study.name}: {one}")
            else:
                found.append(one)
    show(verdict_table(found, remarks).rich())
    if args.record is not None:
        args.record.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.record, json_text(_record(found, remarks), indent=1) + "\n")
    return 0 if all(one.holds for one in found) else 1


def verdict_table(found: Sequence[Measurement], remarks: Sequence[str] = ()) -> TextTable:
    """One row for each target: its worst case, what is wanted, whether it holds."""
    rows = tuple(
        (name, one.case, one.target.show(one.value), one.target.wanted, _verdict(one))
        for name, one in worst(found).items()
    )
    columns = ("target", "case", "measured", "wanted", "holds")
    return TextTable("targets, worst case of each", columns, rows, "; ".join(remarks))


def _verdict(one: Measurement) -> str:
    """Nothing is said of a number without a bound."""
    return "NO" if not one.holds else "yes" if one.target.wanted else ""


def _record(found: Sequence[Measurement], remarks: Sequence[str]) -> dict[str, Any]:
    """Everything that was measured."""
    rows = [{**asdict(one), "holds": one.holds} for one in found]
    return {"environment": environment(), "measurements": rows, "remarks": list(remarks)}


if __name__ == "__main__":
    sys.exit(main())
