"""Saved results: read back to the bit, refused when damaged or forged, whole after a kill in the middle of a save."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import StepsizeResult, optimal_stepsize
from stepsize_validation.attack import draws
from stepsize_validation.attack.checkpoints import damage
from stepsize_validation.attack.killed import start
from stepsize_validation.attack.protocol import Kind, Verdict, ask, claim
from stepsize_validation.attack.referee import Node

DAMAGES = ("none", "truncated", "byte", "dropped", "narrowed", "negative", "forged", "text", "killed")


@dataclass(frozen=True, eq=False)
class Saved:
    node: Node
    damage: str
    where: float

    def __str__(self) -> str:
        return f"{self.damage} at {self.where:.6f}: {self.node}"

    def attack(self) -> Verdict:
        result = optimal_stepsize(**self.node.arguments)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "saved"
            folder.mkdir()
            path = result.save(folder / "result.npz")
            if self.damage == "killed":
                error = start(lambda: result.save(path), folder, 1 + int(4 * self.where)).join()
                claim(not error, f"saving again: {error}")
            elif self.damage == "forged":
                _forge(path)
            elif self.damage == "text":
                path.write_text("{}", encoding="utf-8")
            elif self.damage != "none":
                damage(path, self.damage, self.where)
            loaded = ask(lambda: StepsizeResult.load(path), may_refuse=self.damage not in ("none", "killed"))
        claim(np.array(loaded.D).tobytes() == np.array(result.D).tobytes(), f"another D after: {self.damage}")
        claim(loaded.certificate == result.certificate, f"another certificate after: {self.damage}")
        claim(loaded.status == result.status, f"another status after: {self.damage}")
        return Verdict.OK


def _forge(path: Path) -> None:
    """D is doubled, so that its certificate no longer belongs to it."""
    with np.load(path, allow_pickle=False) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    for name in arrays:
        if name.startswith("D"):
            arrays[name] = 2.0 * arrays[name]
    np.savez(path, **arrays)


def draw(rng: np.random.Generator) -> Saved:
    d = draws.size(rng, 6)
    node = Node(draws.smoothness(rng, d), draws.sketch(rng, d), draws.algorithm(rng))
    return Saved(node, str(rng.choice(DAMAGES)), float(rng.random()))


KINDS = (Kind("files", "saved results read back, damaged and forged ones refused", 1.0, draw),)
