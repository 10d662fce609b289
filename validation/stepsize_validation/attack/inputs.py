"""One bad argument in an otherwise valid call: a ValueError or TypeError that names it, and untouched arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    IndependentSampling,
    LayerWise,
    RandK,
    SystematicSampling,
    certify,
    optimal_distributed_stepsize,
    optimal_stepsize,
)
from stepsize_opt.problems import Quadratic, random_smoothness
from stepsize_validation.attack.protocol import Kind, Refused, Verdict, Wrong, claim
from stepsize_validation.runs import run

NUMBERS = (math.nan, math.inf, -1.0, "x", None, 1j)
_BAD_MATRICES: dict[str, Callable[[Any], Any]] = {
    "NaN": lambda M: _with(M, 0, 0, math.nan),
    "infinite": lambda M: _with(M, -1, -1, math.inf),
    "asymmetric": lambda M: _with(M, 0, 1, M[0, 1] + 0.1 * math.sqrt(M[0, 0] * M[1, 1])),
    # Relative to the largest entry the asymmetry is invisible; relative to its own row and column it is not.
    "asymmetric beside a huge entry": lambda M: _with(M * np.outer(_grow(M), _grow(M)), 0, 1, 0.9e16 * M[0, 0]),
    "not square": lambda M: M[:-1],
    "empty": lambda M: np.zeros((0, 0)),
    "three axes": lambda M: np.stack([M, M]),
    "complex": lambda M: M + 1j,
    "text": lambda M: "text",
    "missing": lambda M: None,
    "ragged": lambda M: [[1.0], [1.0, 2.0]],
    "masked": lambda M: np.ma.array(M, mask=np.eye(len(M)) > 0),
    "other size": lambda M: np.eye(len(M) + 1),
}
_INDEFINITE: dict[str, Callable[[Any], Any]] = {"negative": lambda M: -M, "zero": lambda M: 0.0 * M}


def _with(M: Any, i: int, j: int, value: float) -> Any:
    out = M.copy()
    out[i, j] = value
    return out


def _grow(M: Any) -> Any:
    return np.r_[1e16, np.ones(len(M) - 1)]


def _node(rng: np.random.Generator, d: int) -> dict[str, Any]:
    return {"L": random_smoothness(rng, d, 10.0), "sketch": RandK(d, 1)}


def _clients(rng: np.random.Generator, d: int) -> dict[str, Any]:
    matrices = [random_smoothness(rng, d, 10.0) for _ in range(3)]
    return {"smoothness": matrices, "sketch": RandK(d, 1), "epsilon2": 1.0, "initial_gap": 1.0, "delta_inf": 1.0}


def _run(rng: np.random.Generator, d: int) -> dict[str, Any]:
    objective = Quadratic.with_spectrum(np.ones(d), rng)
    return {"objective": objective, "D": 0.01 * np.eye(d), "sketch": RandK(d, 1), "iterations": 5, "seeds": 2}


def _check(rng: np.random.Generator, d: int) -> dict[str, Any]:
    return {**_node(rng, d), "D": 0.01 * np.eye(d)}


@dataclass(frozen=True, eq=False)
class Target:
    """A public function, a valid call, and for each argument the values that it must refuse."""

    function: Callable[..., Any]
    valid: Callable[[np.random.Generator, int], dict[str, Any]]
    bad: dict[str, tuple[Any, ...]]
    matrices: tuple[str, ...] = ()
    definite: tuple[str, ...] = ()


_LIMITS: dict[str, tuple[Any, ...]] = {
    "tol": (*NUMBERS, 0.0),
    "time_limit": (math.nan, -1.0, "x", 1j),
    "max_iters": (math.nan, -1, 1.5, "x"),
    "algorithm": ("det-CGD3", None, 1),
    "structure": ("round", None, 3, BlockDiagonal((1,))),
    "solver": ("simplex", None, 7),
}
TARGETS = (
    Target(
        optimal_stepsize,
        _node,
        {**_LIMITS, "sketch": (None, "randk:1", RandK(9, 1)), "warm_start": ("x", 3), "n_jobs": ("x", 1.5, 0)},
        ("L",),
        ("L",),
    ),
    Target(certify, _check, {"algorithm": ("x",), "sketch": (None, RandK(9, 1))}, ("D", "L", "dual"), ("L",)),
    Target(
        optimal_distributed_stepsize,
        _clients,
        {
            **_LIMITS,
            "epsilon2": (*NUMBERS, 0.0),
            "initial_gap": NUMBERS,
            "delta_inf": NUMBERS,
            "iterations": (0, -3, 1.5, math.nan, math.inf, "x"),
            "smoothness": ([], np.eye(3), [np.eye(3), np.eye(2)], [-np.eye(4)] * 3, 3),
            "sketch": (None, [RandK(3, 1)], RandK(9, 1), [None] * 3),
        },
        ("mean_smoothness",),
        ("mean_smoothness",),
    ),
    Target(
        run,
        _run,
        {
            "iterations": (0, -1, 1.5, math.nan),
            "seeds": (0, 1.5),
            "algorithm": ("x", None),
            "start": (np.zeros(9), np.full(3, math.nan)),
            "checkpoint_every": (0, 1.5),
            "sketch": (RandK(9, 1),),
        },
        ("D",),
        ("D",),
    ),
    Target(RandK, lambda rng, d: {"d": d, "k": 1}, {"d": (*NUMBERS, 0, 1.5), "k": (*NUMBERS, 0, 99, 1.5)}),
    Target(Gaussian, lambda rng, d: {"d": d, "k": 1}, {"d": (*NUMBERS, 0), "k": (*NUMBERS, 0, 99)}),
    Target(BernQ, lambda rng, d: {"q": 0.5, "sizes": d}, {"q": (*NUMBERS, 0.0, 1.1), "sizes": (*NUMBERS, 0, [1, 0])}),
    Target(IndependentSampling, lambda rng, d: {"p": [0.5] * d}, {"p": (*NUMBERS, [0.0], [1.1], [math.nan], [])}),
    Target(SystematicSampling, lambda rng, d: {"p": [0.5] * d}, {"p": (*NUMBERS, [0.0], [1.1], [math.nan], [])}),
    Target(LayerWise, lambda rng, d: {"layers": [RandK(d, 1)]}, {"layers": ([], None, [3], "x")}),
    Target(
        DiagonalSketch.from_support,
        lambda rng, d: {"vectors": np.ones((2, d)), "weights": [0.5, 0.5]},
        {"vectors": (-np.ones((2, 3)), np.ones(2), [[math.nan], [1.0]]), "weights": ([0.5], [0.5, 0.6], [1.5, -0.5])},
    ),
    Target(
        FiniteSketch,
        lambda rng, d: {"matrices": np.stack([np.eye(d)] * 2), "weights": [0.5, 0.5]},
        {"matrices": (np.eye(3), -np.ones((2, 1, 1)), [[[math.nan]]] * 2), "weights": ([0.5], [0.5, 0.6])},
    ),
)


@dataclass(frozen=True, eq=False)
class BadCall:
    target: Target
    arguments: dict[str, Any]
    argument: str
    what: str

    def __str__(self) -> str:
        return f"{self.target.function.__name__}({self.argument} = {self.what})"

    def attack(self) -> Verdict:
        arrays = [value for value in self.arguments.values() if type(value) is np.ndarray]
        before = [value.tobytes() for value in arrays]
        try:
            self.target.function(**self.arguments)
        except (ValueError, TypeError) as error:
            claim(before == [value.tobytes() for value in arrays], "the caller's arrays were changed")
            text = str(error)
            named = any(name in text for name in (self.argument, self.what, "clients' matrices"))
            claim(named, f"the error names neither {self.argument} nor its value: {type(error).__name__}: {error}")
            raise Refused(text) from error
        msg = "it was accepted"
        raise Wrong(msg)


def draw(rng: np.random.Generator) -> BadCall:
    target = TARGETS[int(rng.integers(0, len(TARGETS)))]
    d = 3
    arguments = target.valid(rng, d)
    values: list[tuple[str, str, Any]] = []
    for name, bad in target.bad.items():
        values += [(name, repr(value).replace("\n", ""), value) for value in bad]
    for name in target.matrices:
        base = arguments.get(name, np.eye(d) + 0.1)
        kinds = {**_BAD_MATRICES, **(_INDEFINITE if name in target.definite else {})}
        if name not in arguments:
            del kinds["missing"]  # None is the default
        values += [(name, what, make(base)) for what, make in kinds.items()]
    name, what, value = values[int(rng.integers(0, len(values)))]
    return BadCall(target, {**arguments, name: value}, name, what)


KINDS = (Kind("inputs", "one bad argument in a valid call: an error that names it", 1.0, draw),)
