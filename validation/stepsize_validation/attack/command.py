"""The command of the attack: choose kinds, seeds, a count or a time, and processes; print what failed, with seeds."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from stepsize_validation.attack.kinds import KINDS
from stepsize_validation.attack.protocol import Kind, Outcome, Verdict, examine

DEFAULT_COUNT = 30_000


def plan(kinds: Sequence[Kind], seed: int, count: int | None) -> Iterator[tuple[str, int]]:
    """(kind, seed) pairs, every kind in proportion to its share from the first pair on; endless without a count."""
    done = dict.fromkeys((kind.name for kind in kinds), 0)
    for _ in itertools.count() if count is None else range(count):
        kind = min(kinds, key=lambda kind: (done[kind.name] + 0.5) / kind.share)
        yield kind.name, seed + done[kind.name]
        done[kind.name] += 1


def examine_named(name: str, seed: int) -> Outcome:
    """What a process of the pool does."""
    return examine(KINDS[name], seed)


def attack(
    kinds: Sequence[Kind], seed: int, count: int | None, seconds: float | None, jobs: int, console: Console
) -> list[Outcome]:
    """Attack until the count or the time is over; failures are printed as they come."""
    deadline = None if seconds is None else time.monotonic() + seconds
    outcomes: list[Outcome] = []
    pairs = plan(kinds, seed, count)
    waiting: dict[Future[Outcome], tuple[str, int]] = {}
    # Fresh processes: a fork of a process with threads, such as the progress bar's, may hang.
    context = multiprocessing.get_context("spawn")
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
        ProcessPoolExecutor(jobs, context) as pool,
    ):
        task = bar.add_task("attacking", total=count)
        while True:
            if deadline is None or time.monotonic() < deadline:
                for name, number in itertools.islice(pairs, 2 * jobs - len(waiting)):
                    waiting[pool.submit(examine_named, name, number)] = name, number
            if not waiting:
                return outcomes
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                name, number = waiting.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool:
                    reason = "the process died on this problem or on one beside it"
                    lost = [(name, number), *waiting.values()]
                    return outcomes + [Outcome(kind, n, Verdict.CRASHED, "not known", reason) for kind, n in lost]
                outcomes.append(outcome)
                bar.advance(task)
                if outcome.verdict.is_failure:
                    console.print(str(outcome), markup=False, highlight=False, soft_wrap=True)


def summary_table(outcomes: Sequence[Outcome], kinds: Sequence[Kind]) -> Table:
    """Counts for each kind and verdict."""
    counts = Counter((outcome.kind, outcome.verdict) for outcome in outcomes)
    table = Table(title=f"{len(outcomes)} problems")
    table.add_column("kind")
    for column in ("problems", *(verdict.value for verdict in Verdict)):
        table.add_column(column, justify="right")
    for kind in kinds:
        row = [counts[kind.name, verdict] for verdict in Verdict]
        table.add_row(kind.name, str(sum(row)), *map(str, row))
    total = [sum(counts[kind.name, verdict] for kind in kinds) for verdict in Verdict]
    table.add_section()
    table.add_row("all", str(sum(total)), *map(str, total))
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the attack; 1 when any answer was wrong or any call crashed."""
    parser = argparse.ArgumentParser(
        prog="python -m stepsize_validation.attack",
        description="Attack the library with random problems that exact referees judge.",
        epilog="kinds:\n" + "\n".join(f"  {kind.name:12} {kind.aim}" for kind in KINDS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this kind; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="the first seed of every kind (default: %(default)s)")
    parser.add_argument("--count", type=int, help=f"problems in all (default: {DEFAULT_COUNT}, or as --seconds allow)")
    parser.add_argument("--seconds", type=float, help="start no problem after this time")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--show", action="store_true", help="print every problem with its verdict")
    args = parser.parse_args(argv)
    kinds = [KINDS[name] for name in args.kind or KINDS]
    count = DEFAULT_COUNT if args.count is None and args.seconds is None else args.count
    began = time.monotonic()
    outcomes = attack(kinds, args.seed, count, args.seconds, args.jobs, Console(stderr=True))
    console = Console()
    if args.show:
        for outcome in outcomes:
            console.print(str(outcome), markup=False, highlight=False, soft_wrap=True)
    console.print(summary_table(outcomes, kinds))
    failures = sorted((o for o in outcomes if o.verdict.is_failure), key=lambda o: (o.kind, o.seed))
    for outcome in failures:
        console.print(str(outcome), markup=False, highlight=False, soft_wrap=True)
    seconds = time.monotonic() - began
    print(f"{len(outcomes)} problems from seed {args.seed} in {seconds:.0f} s, {len(failures)} wrong or crashed")
    return 1 if failures else 0
