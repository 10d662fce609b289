"""Results of the solver benchmark on disk: one JSON file that is both the state of a run and its record."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepsize_opt.inputs import json_text, write_text
from stepsize_validation.bench.records import BenchRun, BenchSettings, Task, environment

RESULTS_FILE = "results.json"
_FORMAT = 1


@dataclass(frozen=True, eq=False)
class Results:
    """All runs with the settings and the environment that they share.

    settings: of every run; environment: versions and machine; runs: in the order in which they were made.
    """

    settings: BenchSettings
    environment: dict[str, str] = field(default_factory=environment)
    runs: tuple[BenchRun, ...] = ()

    def find(self, task: Task) -> BenchRun | None:
        """The run of a task, or None."""
        return next((run for run in self.runs if run.task == task), None)

    def with_run(self, run: BenchRun) -> Results:
        return Results(self.settings, self.environment, (*self.runs, run))

    def save(self, folder: Path) -> Path:
        """Write ``results.json``; a reader sees the old file or the new one, never a part of it."""
        folder.mkdir(parents=True, exist_ok=True)
        head = {"format": _FORMAT, "settings": asdict(self.settings), "environment": self.environment}
        # One run a line, so that a difference between two files can be read.
        lines = ",\n".join(json_text(rounded(run.to_dict())) for run in self.runs)
        text = json_text(head, indent=1)[:-2] + ',\n "runs": [\n' + lines + "\n]}\n"
        path = folder / RESULTS_FILE
        write_text(path, text)
        return path

    @staticmethod
    def load(path: Path) -> Results:
        """Read what ``save`` wrote; raises FileNotFoundError, or ValueError for a file of another kind."""
        if path.is_dir():
            path = path / RESULTS_FILE
        if not path.is_file():
            msg = f"no benchmark results at {path}"
            raise FileNotFoundError(msg)
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if value["format"] != _FORMAT:
                msg = f"format {value['format']}, expected {_FORMAT}"
                raise ValueError(msg)
            runs = tuple(BenchRun.from_dict(run) for run in value["runs"])
            return Results(BenchSettings(**value["settings"]), dict(value["environment"]), runs)
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{path} is not a file of benchmark results: {error}"
            raise ValueError(msg) from error


def open_results(folder: Path, settings: BenchSettings, resume: bool) -> Results:
    """The results in a folder to continue, or empty ones.

    Raises ValueError when the folder holds results of other settings or of another environment: timings of different
    machines or versions must not end up in one table.
    """
    fresh = Results(settings)
    if not resume or not (folder / RESULTS_FILE).is_file():
        return fresh
    found = Results.load(folder)
    differing = [
        f"{name} was {found.environment.get(name, 'absent')}, is {value}"
        for name, value in fresh.environment.items()
        if found.environment.get(name) != value
    ]
    if found.settings != settings:
        differing.append("the time limit, the memory limit or another setting")
    if differing:
        msg = (
            f"{folder / RESULTS_FILE} was measured under other conditions ({'; '.join(differing)}); "
            "choose another --output, or --no-resume to start over"
        )
        raise ValueError(msg)
    return found


def rounded(value: Any) -> Any:
    """Floats to six significant digits: timings have no more, and files stay small."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write_csv(results: Results, path: Path) -> None:
    """One line for each rung, and one for each run without any."""
    columns = ["problem", "family", "d", "configuration", "solver", "lift", "objective", "run_status", "run_message"]
    rung_columns = ["tol", "status", "seconds", "wall", "setup", "compile", "solve", "iterations", "raw_violation"]
    rung_columns += ["rate", "gap", "certify", "peak_mb", "repeats", "closed_form", "message"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, *rung_columns])
    for run in results.runs:
        problem, how = run.task.problem, run.task.configuration
        head = [problem.name, problem.family, problem.d, how.label, how.solver, how.lift, how.objective]
        head += [run.status, run.message]
        for rung in run.rungs:
            cells = rounded(asdict(rung))
            writer.writerow([*head, *(cells[name] for name in rung_columns)])
        if not run.rungs:
            writer.writerow([*head, *("" for _ in rung_columns)])
    write_text(path, text.getvalue())
