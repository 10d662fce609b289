"""Writing a benchmark down: results, table of rungs, figures, and one page that shows them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from stepsize_opt.inputs import write_text
from stepsize_solvers.conic import FINEST_ACCURACY
from stepsize_validation.bench.plots import draw_all
from stepsize_validation.bench.prose import summary
from stepsize_validation.bench.store import Results, write_csv
from stepsize_validation.bench.tables import all_tables

PAGE = "benchmark.md"
_MACHINE = ("machine", "processor", "cores")
_HEAD = """# Solver benchmark

Solvers are compared at equal *certified* gap: each climbs a ladder of tolerances, and the first answer counts whose
repaired point is proved feasible and proved within the gap, whatever the solver's own tolerance said.  Written by
`stepsize-opt bench`; `stepsize-opt bench --check` reruns a small part and compares the ratios."""
_CAPTIONS = {
    "time-size.png": "Time to the middle certified gap against d, with fitted slopes",
    "time-gap.png": "Time against certified gap, every rung of the ladder",
    "profiles.png": "Performance profiles at equal certified gap",
}


def write_report(results: Results, folder: Path) -> list[Path]:
    """``results.json``, ``rungs.csv``, figures and the page ``benchmark.md``; returns what was written."""
    written = [results.save(folder), folder / "rungs.csv"]
    write_csv(results, written[-1])
    figures = draw_all(results, folder)
    written += [*figures, folder / PAGE]
    write_text(written[-1], page(results, [figure.name for figure in figures]))
    return written


def page(results: Results, figures: Collection[str]) -> str:
    """The text of ``benchmark.md``: summary, the figures of the given names, tables, settings."""
    blocks = [_HEAD, "\n".join(f"- {sentence}" for sentence in summary(results))]
    blocks += [f"![{caption}]({name})" for name, caption in _CAPTIONS.items() if name in figures]
    for table in all_tables(results):
        blocks += [f"## {table.title[0].upper()}{table.title[1:]}", table.markdown()]
    return "\n\n".join([*blocks, *_settings(results)]) + "\n"


def _settings(results: Results) -> list[str]:
    settings, env = results.settings, results.environment
    versions = ", ".join(f"{name} {version}" for name, version in env.items() if name not in _MACHINE)
    return [
        "## Settings",
        f"{env['processor']}, {env['machine']}, {env['cores']} cores, {settings.threads} thread(s) a run; every run in "
        f"its own process, at most {settings.time_limit:g} processor seconds a rung and {settings.memory_mb} MB beyond "
        "the libraries. Times are processor seconds of the solve call (model, compilation by cvxpy and solver; no "
        f"imports, no certificate), the median of {settings.repeats} below {settings.repeat_below:g} s; elapsed times "
        "are in `rungs.csv`. rand-k sends max(1, ⌊d/4⌋) numbers; synthetic L has log-spaced eigenvalues, condition "
        "number 10³ in the rows d=…, 10² for sketches, structures and clients. To a solver behind cvxpy a tolerance t "
        f"means residuals of t/100, never below {FINEST_ACCURACY:.0e}.",
        f"Versions: {versions}.",
    ]
