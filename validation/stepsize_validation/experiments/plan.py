"""What is run, and how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stepsize_opt.inputs import positive_number, whole_number

DATASETS = ("a1a", "phishing", "mushrooms", "australian_scale", "heart_scale", "w1a")


@dataclass(frozen=True)
class Plan:
    """Everything that the results depend on.

    iterations: K by the letter of an experiment, where it is not the experiment's own; short: its quick K.
    clients: the client counts of (c); layers, fraction: of (d).
    epsilon2: the level that the tables ask for in (a), (b), (d); epsilon2_distributed: ε² of conditions (12) in (c).
    time_limit: seconds for each distributed solve; one that runs out of time keeps its feasible D and reports its gap.
    draws: subsamples for each fraction of the sensitivity study.
    """

    datasets: tuple[str, ...] = DATASETS
    reg: float = 1e-3
    reg_distributed: float = 0.1
    seeds: int = 16
    seed: int = 0
    iterations: Mapping[str, int] = field(default_factory=dict)
    short: bool = False
    clients: tuple[int, ...] = (10, 30, 100)
    layers: int = 4
    fraction: float = 0.25
    epsilon2: float = 1e-3
    epsilon2_distributed: float = 1e-4
    time_limit: float = 180.0
    draws: int = 20

    def __post_init__(self) -> None:
        for name in ("reg", "reg_distributed", "epsilon2", "epsilon2_distributed", "time_limit"):
            positive_number(name, getattr(self, name))
        for name in ("seeds", "layers", "draws"):
            whole_number(name, getattr(self, name))
        for letter, steps in self.iterations.items():
            whole_number(f"iterations[{letter!r}]", steps)
        if not 0.0 < self.fraction <= 1.0:
            msg = f"fraction must be in (0, 1], got {self.fraction!r}"
            raise ValueError(msg)

    @staticmethod
    def quick(datasets: Sequence[str] = ("breast_cancer",)) -> Plan:
        """Sizes for a look within a minute, on data that is always there."""
        return Plan(tuple(datasets), seeds=6, short=True, clients=(5,), epsilon2=1e-2, draws=4)
