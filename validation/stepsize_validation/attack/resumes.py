"""Runs that are killed, several times and in the middle of a write, end with the bits of a run that was not."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepsize_validation.attack.killed import start
from stepsize_validation.attack.protocol import Kind, Verdict, claim
from stepsize_validation.attack.runs import RunPlan, differences, draw_plan


@dataclass(frozen=True, eq=False)
class Resume:
    """A run, the moments at which it is killed, and whether two processes use one checkpoint at the same time."""

    plan: RunPlan
    deaths: tuple[int, ...]
    together: bool

    def __str__(self) -> str:
        return f"{self.plan}, killed at touches {self.deaths}{', two at once' if self.together else ''}"

    def attack(self) -> Verdict:
        whole = self.plan.run()
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "runs"
            folder.mkdir()
            path = folder / "run.npz"
            for moment in self.deaths:
                error = start(lambda: self.plan.run(path), folder, moment).join()
                claim(not error, f"the run could not be resumed: {error}")
            if self.together:
                children = [start(lambda: self.plan.run(path), folder) for _ in range(2)]
                for error in [child.join() for child in children]:
                    claim(error == "" or error.startswith("ValueError"), f"two runs with one checkpoint: {error}")
            for attempt in ("resumed", "repeated"):
                found = differences(self.plan.run(path), whole)
                claim(not found, f"the {attempt} run differs in {', '.join(found)}")
            stray = sorted(file.name for file in folder.iterdir() if file != path)
            claim(len(stray) <= 1, f"{len(self.deaths)} kills left {len(stray)} files: {', '.join(stray)}")
        return Verdict.OK


def draw(rng: np.random.Generator) -> Resume:
    deaths = rng.integers(1, 12, int(rng.integers(1, 11)))
    return Resume(draw_plan(rng), tuple(int(m) for m in deaths), bool(rng.random() < 0.2))


KIND = Kind("resumes", "runs killed up to ten times end with the bits of an undisturbed run", 0.5, draw)
