"""Arrays that are documented as read-only stay so in copies and after unpickling, with their values."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stepsize_opt import (
    Direction,
    FiniteSketch,
    Gaussian,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
)

L = np.array([[2.0, 1.0], [1.0, 3.0]])
LARGE = LowRankPlusDiagonal(np.ones((6, 1)), 0.5)
CLIENTS: dict[str, Any] = {"epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 0.5}
COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}
OBJECTS: dict[str, Callable[[], Any]] = {
    "optimal_stepsize": lambda: optimal_stepsize(L, RandK(2, 1)),
    "components": lambda: optimal_stepsize(np.diag([1.0, 4.0]), RandK(2, 1)),
    "large": lambda: optimal_stepsize(LARGE, RandK(6, 2), structure="diagonal"),
    "large descent": lambda: optimal_stepsize(LARGE, RandK(6, 2), goal="descent"),
    "large det-CGD2": lambda: optimal_stepsize(LARGE, RandK(6, 2), algorithm="det-CGD2"),
    "clients": lambda: optimal_distributed_stepsize([L, 2.0 * L], RandK(2, 1), **CLIENTS),
    "limit": lambda: compression_limit(L, 1),
    "large limit": lambda: compression_limit(LARGE, 1),
    "subspace": lambda: optimal_method(L, 1),
    "large subspace": lambda: optimal_method(LARGE, 1),
    "smoothness": lambda: LARGE,
    "direction": lambda: Direction(L),
    "diagonal direction": lambda: Direction([1.0, 2.0]),
    "sampling": lambda: IndependentSampling([0.5, 0.25]),
    "finite": lambda: FiniteSketch([np.diag([2.0, 0.0]), np.diag([0.0, 2.0])], [0.5, 0.5]),
    "Gaussian": lambda: Gaussian(2, 1),
}


def _arrays(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Every array that hangs on an object, by its path; D and dual of a result are made when they are asked for."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, tuple):
        for i, one in enumerate(value):
            yield from _arrays(f"{name}[{i}]", one)
    elif type(value).__module__.startswith("stepsize_opt"):
        for key, one in vars(value).items():
            yield from _arrays(f"{name}.{key}", one)


@pytest.mark.parametrize("again", COPIES)
@pytest.mark.parametrize("kind", OBJECTS)
def test_arrays_stay_read_only(kind: str, again: str) -> None:
    value = OBJECTS[kind]()
    if kind in ("optimal_stepsize", "components"):
        assert value.D.shape == value.dual.shape == (2, 2)
    given, copied = dict(_arrays(kind, value)), dict(_arrays(kind, COPIES[again](value)))
    assert set(given) == set(copied)
    assert bool(given) == (kind != "Gaussian")
    assert [name for arrays in (given, copied) for name, array in arrays.items() if array.flags.writeable] == []
    for name, array in given.items():
        np.testing.assert_array_equal(copied[name], array)
