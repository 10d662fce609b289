"""The result of a benchmark in a few sentences, every number of them computed from the runs; the rest is in tables."""

from __future__ import annotations

from statistics import geometric_mean

from stepsize_validation.bench.analysis import Rivals, default_grid, fastest_others
from stepsize_validation.bench.records import NATIVE
from stepsize_validation.bench.store import Results


def summary(results: Results) -> list[str]:
    """How fast the native solver is against the fastest other one; empty without a problem that both solved."""
    gap = results.settings.main_target
    others = fastest_others(results, gap)
    if not others:
        return []
    least, most = (pick(others, key=lambda problem: others[problem].factor) for pick in (min, max))
    lost = [f"{problem.name} ({rival.label})" for problem, rival in others.items() if rival.factor < 1.0]
    compiled = fastest_others(results, gap, compiled=True)
    nearest = min(compiled, key=lambda problem: compiled[problem].factor)
    grid = default_grid(results)
    rungs = {problem.name: grid[problem][NATIVE].first_within(gap) for problem in others}
    closed = [name for name, rung in rungs.items() if rung is not None and rung.closed_form]
    sentences = [
        f"At equal certified gap {gap:.0e} the fastest other solver took {_mean(others)} times the processor time of "
        f"{NATIVE} in the geometric mean over {len(others)} problems, from {others[least].factor:.3g} times "
        f"({others[least].label} on {least.name}) to {others[most].factor:.3g} times ({others[most].label} on "
        f"{most.name}); another was faster on {', '.join(lost) or 'none of them'}.",
        f"Without the time that the others take to build and compile their model the mean is {_mean(compiled)}, the "
        f"smallest factor {compiled[nearest].factor:.2g} ({compiled[nearest].label} on {nearest.name}).",
    ]
    return [*sentences, f"The answer of {NATIVE} was a closed form on {', '.join(closed)}."] if closed else sentences


def _mean(rivals: Rivals) -> str:
    return f"{geometric_mean(rival.factor for rival in rivals.values()):.3g}"
