"""The summary of a benchmark in words, every number of it computed from the runs."""

from __future__ import annotations

from collections import Counter
from statistics import geometric_mean

from stepsize_validation.bench.analysis import (
    absent,
    competitors,
    default_grid,
    fastest_others,
    formulations,
    standings,
)
from stepsize_validation.bench.problems import ProblemSpec
from stepsize_validation.bench.records import CRASHED, MEMORY_LIMIT, NATIVE, SKIPPED, TIME_LIMIT
from stepsize_validation.bench.store import Results


def summary(results: Results) -> list[str]:
    """Sentences about the results; one that the runs do not support is left out."""
    parts = (_reached(results), _speed(results), _growth(results), _formulation(results), _trust(results))
    return [text for text in (*parts, _failures(results), _missing(results)) if text]


def _reached(results: Results) -> str:
    gap, finest = results.settings.main_target, results.settings.targets[-1]
    index = results.settings.targets.index(gap)
    rows = [row for row in standings(results) if row.label in competitors(results)]
    if not rows:
        return ""
    sizes = [problem.d for problem in default_grid(results)]
    counts = ", ".join(
        f"{row.label} on {row.reached[index]} of {row.problems} ({row.reached[-1]} to {finest:.0e})" for row in rows
    )
    given = f"{len(sizes)} problems, d = {min(sizes)} to {max(sizes)}"
    return f"{given}. A certified gap of {gap:.0e} was reached by {counts}."


def _speed(results: Results) -> str:
    gap = results.settings.main_target
    others = fastest_others(results, gap)
    if not others:
        return ""
    factors = [factor for _, factor in others.values()]
    largest = max(others, key=lambda problem: others[problem][1])
    smallest = min(others, key=lambda problem: others[problem][1])
    text = (
        f"At equal certified gap {gap:.0e} the fastest other solver took {geometric_mean(factors):.3g} times the "
        f"processor time of {NATIVE} in the geometric mean over {len(factors)} problems: between "
        f"{others[smallest][1]:.3g} times ({others[smallest][0]} on {smallest.name}) and "
        f"{others[largest][1]:.3g} times ({others[largest][0]} on {largest.name})."
    )
    lost = [f"{problem.name} ({label})" for problem, (label, factor) in others.items() if factor < 1.0]
    text += f" {NATIVE} was the fastest on {len(factors) - len(lost)} of {len(factors)}"
    text += f"; another was faster on {', '.join(lost)}." if lost else "."
    text += _compiled_speed(results)
    closed = [problem.name for problem in others if _by_closed_form(results, problem)]
    return text + (f" The answer of {NATIVE} was a closed form on {', '.join(closed)}." if closed else "")


def _compiled_speed(results: Results) -> str:
    """The same comparison when the model of the others is already compiled, as when a shape is solved again."""
    others = fastest_others(results, results.settings.main_target, compiled=True)
    factors = [factor for _, factor in others.values()]
    smallest = min(others, key=lambda problem: others[problem][1])
    return (
        " Without the time that the others take to build and compile the model the mean is "
        f"{geometric_mean(factors):.3g}, the smallest factor {others[smallest][1]:.2g} "
        f"({others[smallest][0]} on {smallest.name})."
    )


def _by_closed_form(results: Results, problem: ProblemSpec) -> bool:
    rung = default_grid(results)[problem][NATIVE].first_within(results.settings.main_target)
    return rung is not None and rung.closed_form


def _growth(results: Results) -> str:
    found = [row for row in standings(results) if row.growth is not None]
    parts = [
        f"{row.label} as d^{row.growth.slope:.1f} (d = {row.growth.sizes[0]} to {row.growth.sizes[-1]})"
        for row in found
        if row.growth is not None
    ]
    return f"Time to that gap grows, through the three largest sizes solved, for {', '.join(parts)}." if parts else ""


def _formulation(results: Results) -> str:
    gap = results.settings.main_target
    sentences = []
    for solver in competitors(results):
        found = {how: runs for how, runs in formulations(results).items() if how.solver == solver}
        # The largest size at which at least two formulations were solved.
        times = {
            d: {how.label: seconds for how, runs in found.items() if d in runs and (seconds := runs[d].seconds_to(gap))}
            for d in sorted({d for runs in found.values() for d in runs})
        }
        compared = [d for d, row in times.items() if len(row) >= 2]
        if compared:
            row = times[compared[-1]]
            best, worst = min(row, key=lambda label: row[label]), max(row, key=lambda label: row[label])
            sentences.append(f"{best} ({row[worst] / row[best]:.2g} times as fast as {worst}, d = {compared[-1]})")
    return f"Fastest formulations: {'; '.join(sentences)}." if sentences else ""


def _trust(results: Results) -> str:
    rows = [row for row in standings(results) if row.claimed and row.label in competitors(results)]
    parts = [f"{row.label} {row.overclaimed} of {row.claimed}" for row in rows if row.overclaimed]
    if not rows:
        return ""
    if not parts:
        return "No answer that a solver called optimal had a certified gap above its tolerance."
    return f"Answers called optimal whose certified gap is above the tolerance asked for: {', '.join(parts)}."


def _failures(results: Results) -> str:
    bad = (TIME_LIMIT, MEMORY_LIMIT, CRASHED, SKIPPED)
    counts = Counter((run.task.configuration.solver, run.status) for run in results.runs if run.status in bad)
    if not counts:
        return "No run hit a limit or crashed."
    parts = [f"{solver} {count} × {status}" for (solver, status), count in sorted(counts.items())]
    limit = f"{results.settings.time_limit:g} processor seconds a rung"
    return f"Runs that did not end by themselves ({limit}): {', '.join(parts)}."


def _missing(results: Results) -> str:
    gone = absent(results)
    return f"Not run: {', '.join(f'{label} ({status})' for label, status in gone.items())}." if gone else ""
