"""Killed runs end with the bits of a run that was not; a checkpoint of another run, or a broken one, is refused."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import DiagonalSketch, FiniteSketch, RandK
from stepsize_validation.attack.killed import start
from stepsize_validation.attack.protocol import Kind, Verdict, ask, claim
from stepsize_validation.attack.runs import RunPlan, differences, draw_plan

CHANGES = ("start", "law", "assignment", "D", "objective", "seed", "seeds", "iterations", "algorithm")
DAMAGES = ("truncated", "byte", "dropped", "narrowed", "negative")


@dataclass(frozen=True, eq=False)
class Foreign:
    """The checkpoint of ``first`` is given to ``second``, which differs in ``what``."""

    first: RunPlan
    second: RunPlan
    what: str

    def __str__(self) -> str:
        return f"other {self.what}: {self.second}"

    def attack(self) -> Verdict:
        with tempfile.TemporaryDirectory() as name:
            path = _interrupted(self.first, Path(name))
            resumed = ask(lambda: self.second.run(path), may_refuse=True)
        found = differences(resumed, self.second.run())
        claim(not found, f"the checkpoint of a run with another {self.what} was continued")
        return Verdict.OK


@dataclass(frozen=True, eq=False)
class Broken:
    """A checkpoint that was damaged in a way that its format shows."""

    plan: RunPlan
    damage: str
    where: float

    def __str__(self) -> str:
        return f"{self.damage} at {self.where:.6f}: {self.plan}"

    def attack(self) -> Verdict:
        with tempfile.TemporaryDirectory() as name:
            path = _interrupted(self.plan, Path(name))
            if not path.exists():
                return Verdict.OK  # the run was too short to leave one
            damage(path, self.damage, self.where)
            resumed = ask(lambda: self.plan.run(path), may_refuse=True)
        found = differences(resumed, self.plan.run())
        claim(not found, f"a damaged checkpoint was continued to another {', '.join(found)}")
        return Verdict.OK


def _interrupted(plan: RunPlan, parent: Path) -> Path:
    """The checkpoint of a run that was killed when it had written one and touched the next."""
    path = _place(parent)
    start(lambda: plan.run(path), path.parent, dies_at=4).join()
    return path


def _place(parent: Path) -> Path:
    """Where a checkpoint goes, in a folder of its own."""
    folder = parent / "runs"
    folder.mkdir()
    return folder / "run.npz"


def damage(path: Path, kind: str, where: float) -> None:
    """Damage a file of arrays and JSON text; ``where`` in [0, 1) says which part."""
    data = bytearray(path.read_bytes())
    if kind == "truncated":
        path.write_bytes(bytes(data[: int(where * len(data))]))
        return
    if kind == "byte":
        data[int(where * len(data))] ^= 0x55
        path.write_bytes(bytes(data))
        return
    with np.load(path, allow_pickle=False) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    if kind == "negative":
        _make_negative(arrays, where)
    else:
        names = sorted(name for name, value in arrays.items() if kind == "dropped" or value.ndim > 0)
        chosen = names[int(where * len(names))]
        if kind == "dropped":
            del arrays[chosen]
        else:
            arrays[chosen] = arrays[chosen][:1]
    np.savez(path, **arrays)


def _make_negative(arrays: dict[str, Any], where: float) -> None:
    """One of the whole numbers of the JSON text becomes negative."""
    for name, value in arrays.items():
        if value.dtype.kind == "U" and str(value).startswith("{"):  # a digest is text, too
            meta = json.loads(str(value))
            counts = sorted(key for key, entry in meta.items() if type(entry) is int)
            if counts:
                meta[counts[int(where * len(counts))]] = -1
                arrays[name] = np.array(json.dumps(meta))


def draw_checkpoints(rng: np.random.Generator) -> Foreign | Broken:
    plan = draw_plan(rng)
    if rng.random() < 0.5:
        return Broken(plan, str(rng.choice(DAMAGES)), float(rng.random()))
    return _foreign(rng, plan, str(rng.choice(CHANGES)))


def _foreign(rng: np.random.Generator, plan: RunPlan, what: str) -> Foreign:
    d, n = len(plan.D), len(plan.sketches)
    if what == "law":
        return Foreign(replace(plan, sketches=(_law(rng, d),) * n), replace(plan, sketches=(_law(rng, d),) * n), what)
    if what == "assignment":
        laws = [RandK(d, 1), RandK(d, d)]
        first, second = (tuple(laws[int(i)] for i in rng.integers(0, 2, n)) for _ in range(2))
        return Foreign(replace(plan, sketches=first), replace(plan, sketches=second), what)
    other = draw_plan(rng)
    while len(other.D) != d or len(other.sketches) != n:
        other = draw_plan(rng)
    value = getattr(other, what)
    if what in ("seed", "seeds", "iterations"):
        value = getattr(plan, what) + 1
    return Foreign(plan, replace(plan, **{what: value}), what)


def _law(rng: np.random.Generator, d: int) -> Any:
    """One of two kinds of laws whose text does not tell them apart."""
    first = rng.uniform(0.2, 0.8, d)
    vectors = np.array([2.0 * first, 2.0 * (1.0 - first)])
    weights = np.array([0.5, 0.5])
    return (
        DiagonalSketch.from_support(vectors, weights)
        if d % 2
        else FiniteSketch(vectors[:, :, None] * np.eye(d), weights)
    )


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
            path = _place(Path(name))
            folder = path.parent
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


def draw_resumes(rng: np.random.Generator) -> Resume:
    deaths = rng.integers(1, 12, int(rng.integers(1, 11)))
    return Resume(draw_plan(rng), tuple(int(m) for m in deaths), bool(rng.random() < 0.2))


KINDS = (
    Kind("resumes", "runs killed up to ten times end with the bits of an undisturbed run", 0.5, draw_resumes),
    Kind("checkpoints", "checkpoints of another run and damaged ones are refused", 1.0, draw_checkpoints),
)
