"""The experiments by letter."""

from __future__ import annotations

from collections.abc import Sequence

from stepsize_validation.experiments import clients, layers, limit, rand_one, rand_tau
from stepsize_validation.experiments.experiment import Experiment

_ALL: tuple[Experiment, ...] = (
    rand_one.EXPERIMENT,
    rand_tau.EXPERIMENT,
    clients.EXPERIMENT,
    layers.EXPERIMENT,
    limit.EXPERIMENT,
)
EXPERIMENTS = {experiment.letter: experiment for experiment in _ALL}


def chosen(letters: Sequence[str]) -> list[str]:
    """The letters of the experiments that are asked for, in order, ``all`` for every one.

    Raises ValueError for an unknown letter, or none at all.
    """
    unknown = sorted(set(letters) - {*EXPERIMENTS, "all"})
    if unknown or not letters:
        msg = f"unknown experiment {', '.join(unknown)}; choose from {', '.join(EXPERIMENTS)} or all"
        raise ValueError(msg)
    return [letter for letter in EXPERIMENTS if letter in letters or "all" in letters]
