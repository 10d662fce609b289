"""Certificate files to attack, and how: one example of every kind of file, and random changes of a document."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from shared.certificates import best_known, is_true_of_the_answer
from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    DiagonalSketch,
    Direction,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    LowRankPlusDiagonal,
    RandK,
    SystematicSampling,
    compression_limit,
    optimal_method,
    optimal_stepsize,
    verify,
    write_certificate,
)
from stepsize_validation.data import random_smoothness

Document = dict[str, Any]
METHODS = ("det-CGD1", "det-CGD2")
_SYMMETRIC = ("L", "D", "M", "V", "W", "matrices")


# ---------------------------------------------------------------- examples


def _finite() -> FiniteSketch:
    """Three matrices in general position; their mean is I up to rounding."""
    A = [random_smoothness(np.random.default_rng(r), 2, 5.0) for r in range(2)]
    A[0] *= 0.5 / np.linalg.eigvalsh(A[0])[-1]
    A[1] *= 0.5 / np.linalg.eigvalsh(A[1])[-1]
    weights = np.array([0.3, 0.2, 0.5])
    last = (np.eye(2) - weights[0] * A[0] - weights[1] * A[1]) / weights[2]
    return FiniteSketch(np.array([*A, last]), weights)


def _sketches() -> dict[str, Any]:
    vectors = np.array([[1.0, 0.0], [2.0, 2.0], [0.5, 1.0]])
    S = np.array([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]])
    return {
        "Identity": Identity(2),
        "RandK": RandK(2, 1),
        "Gaussian": Gaussian(2, 1),
        "BernQ": BernQ([0.5], [2]),
        "IndependentSampling": IndependentSampling([0.5, 0.9]),
        "SystematicSampling": SystematicSampling([0.5, 0.75]),
        "vectors": DiagonalSketch(vectors, [0.25, 0.25, 0.5]),
        "matrices": FiniteSketch(S, [0.5, 0.5]),
        "rounded matrices": _finite(),
    }


class Solved(NamedTuple):
    """An answer with what it does not hold of its question."""

    answer: Any
    L: Any
    strong_convexity: Any = None


def solved(function: Callable[..., Any], L: Any, second: Any, **options: Any) -> Solved:
    """The answer of a function to its arguments."""
    return Solved(function(L, second, **options), L, options.get("strong_convexity"))


def _nodes(L: Any) -> dict[str, Callable[[], Solved]]:
    found: dict[str, Callable[[], Solved]] = {}

    def add(name: str, sketch: Any, **options: Any) -> None:
        found[name] = lambda: solved(optimal_stepsize, L, sketch, **options)

    coins = IndependentSampling([0.5, 0.9])
    for goal in GOALS:
        add(goal, coins, **arguments_of(goal, 0.5 * L))
        add(f"{goal}, det-CGD2", RandK(2, 1), **arguments_of(goal, 0.5 * L), algorithm="det-CGD2")
    for name, sketch in _sketches().items():
        add(name, sketch)
        add(f"{name}, descent, det-CGD2", sketch, goal="descent", algorithm="det-CGD2")
    momentum = {"goal": "linear", "strong_convexity": 0.5 * L, "momentum": True}
    add("momentum", coins, **momentum)
    add("momentum, det-CGD2", RandK(2, 1), **momentum, algorithm="det-CGD2", structure="diagonal")
    add("momentum, convex", _finite(), goal="convex", momentum=True)
    add("scalar", coins, structure="scalar")
    add("direction", coins, structure=Direction(np.linalg.inv(L)), goal="descent")
    return found


def _layers() -> dict[str, Callable[[], Solved]]:
    L = random_smoothness(np.random.default_rng(4), 3, 20.0)
    layers = LayerWise([IndependentSampling([0.5]), _finite()])
    normal = LayerWise([Gaussian(2, 1), RandK(1, 1)])
    return {
        "layers": lambda: solved(optimal_stepsize, L, layers, structure=BlockDiagonal([1, 2])),
        "layers, Gaussian": lambda: solved(optimal_stepsize, L, normal, goal="descent", algorithm="det-CGD2"),
    }


def _limits(L: Any) -> dict[str, Callable[[], Solved]]:
    M = 0.5 * L
    low_rank = LowRankPlusDiagonal(np.array([[1.0], [0.5]]), np.array([0.5, 1.0]))
    questions: dict[str, dict[str, Any]] = {
        "descent": {"k": 1.5},
        "euclidean": {"k": 1.5, "goal": "euclidean"},
        "linear": {"k": 1.9, "goal": "linear", "strong_convexity": M},
        "linear, D ⪯ L⁻¹": {"k": 1.9, "goal": "linear", "strong_convexity": 0.04},
        "momentum": {"k": 0.5, "goal": "linear", "strong_convexity": M, "momentum": True},
        "momentum, D ⪯ L⁻¹": {"k": 1.9, "goal": "linear", "strong_convexity": 0.04, "momentum": True},
        "convex": {"k": 0.5, "goal": "convex", "momentum": True},
    }
    found: dict[str, Callable[[], Solved]] = {}
    for name, options in questions.items():
        k = options.pop("k")
        found[f"limit, {name}"] = lambda k=k, options=options: solved(compression_limit, L, k, **options)
        found[f"method, {name}"] = lambda k=k, options=options: solved(optimal_method, L, k, **options)
    found["limit of factors"] = lambda: solved(compression_limit, low_rank, 1.5)
    found["method of factors"] = lambda: solved(optimal_method, low_rank, 1.5)
    return found


_L = random_smoothness(np.random.default_rng(3), 2, 20.0)
ANSWERS = {**_nodes(_L), **_layers(), **_limits(_L)}


def written(answer: Any, L: Any, strong_convexity: Any = None) -> Document:
    """The document that is written of an answer."""
    with TemporaryDirectory() as folder:
        path = write_certificate(answer, L, Path(folder) / "D.cert.json", strong_convexity=strong_convexity)
        return verify.parsed(path.read_text(encoding="utf-8"))


class Examples(dict[str, Document]):
    """Documents by name, written when asked for; the text of a failure does not repeat them."""

    def __missing__(self, name: str) -> Document:
        self[name] = written(*ANSWERS[name]())
        return self[name]

    def __repr__(self) -> str:
        return "the examples"


EXAMPLES = Examples()


# ---------------------------------------------------------------- changes


def signed(document: Document, verifier: ModuleType = verify) -> Document:
    """A changed document with the sentence and the SHA-256 of its new content."""
    document = {**document, "statement": verifier.statement(document, verifier.problem_of(document))}
    return {**document, "sha256": verifier.digest(document)}


def accepts(document: Document, verifier: ModuleType = verify) -> bool:
    """Whether the verifier proves the document, its sentence and SHA-256 made anew; any other error is a fault."""
    try:
        verifier.verify(verifier.parsed(json.dumps(signed(document, verifier))))
    except verifier.Refused:
        return False
    return True


def leaves(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all numbers, words and flags of a document, but for its format, sentence and digest."""
    if isinstance(document, dict) and document:
        names = [name for name in document if name not in ("format", "statement", "sha256")]
        return [leaf for name in names for leaf in leaves(document[name], (*path, name))]
    if isinstance(document, list) and document:
        return [leaf for i, value in enumerate(document) for leaf in leaves(value, (*path, i))]
    return [path]


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


def mirrored(path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The place itself and, in a symmetric matrix that is no factor of a product, its mirror image."""
    is_entry = "product" not in path and len(path) > 2 and isinstance(path[-1], int) and isinstance(path[-2], int)
    if is_entry and any(name in _SYMMETRIC for name in path) and path[0] != "multipliers":
        return [path, (*path[:-2], path[-1], path[-2])]
    return [path]


def _is_float(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip("-").startswith("0x")


def _replace(document: Document, path: tuple[Any, ...], value: Any) -> None:
    at(document, path[:-1])[path[-1]] = value


class Mutator:
    """Random changes of a document; ``donors`` are other documents whose parts may be taken over."""

    WORDS = (*GOALS, *METHODS, "node", "limit", "method", "clients", *_sketches(), "LayerWise", "inverse", "factor")
    STRANGE = (None, True, False, 0, 1, 2, -1, "", "nan", "inf", "-inf", "0x1p0", "1.0", [], {}, [[]], 1.5)

    def __init__(self, seed: int, donors: list[Document]) -> None:
        self.rng, self.donors = np.random.default_rng(seed), donors

    def __call__(self, document: Document) -> Document:
        out = copy.deepcopy(document)
        plain = (self.number, self.scaled, self.word, self.transplant, self.items, self.keys, self.claim)
        aimed = (self.law, self.outcomes, self.resized, self.multipliers)
        chosen = [self.pick(plain if self.rng.random() < 0.5 else aimed) for _ in range(int(self.pick([1, 1, 2, 3])))]
        for change in [*chosen, self.claim] if self.rng.random() < 0.4 else chosen:
            try:
                change(out)
            except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError):  # no such thing is there
                continue
        return out

    def pick(self, values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def _path(self, document: Document, wanted: Callable[[Any], bool], field: str | None = None) -> tuple[Any, ...]:
        """A random leaf, of one field or of all with equal chances however long they are."""
        found = [path for path in leaves(document) if path and wanted(at(document, path))]
        name = field or self.pick(sorted({path[0] for path in found}))
        return tuple(self.pick([path for path in found if path[0] == name]))

    def float_near(self, x: float) -> float:
        """Another float: the next one, a near one, one of another size or sign, or a special one."""
        step = 10.0 ** self.rng.uniform(-16.0, 0.0) * self.pick([-1.0, 1.0])
        near = (math.nextafter(x, math.inf), math.nextafter(x, -math.inf), x * (1.0 + step), x + step)
        far = (-x, 0.0, 1.0, x * 2.0 ** int(self.rng.integers(-40, 40)), 2.0**-1074, 1e308, x**2)
        return float(self.pick(near if self.rng.random() < 0.7 else far))

    def number(self, document: Document, field: str | None = None) -> None:
        path = self._path(document, _is_float, field)
        old = at(document, path)
        value = self.float_near(float.fromhex(old)).hex() if self.rng.random() < 0.95 else old.upper()
        for place in mirrored(path) if self.rng.random() < 0.9 else [path]:
            _replace(document, place, value)

    def scaled(self, document: Document, field: str | None = None) -> None:
        """Multiply all numbers of a part by one factor."""
        path = self._path(document, _is_float, field)
        self._multiply(document, path[: self.rng.integers(1, len(path) + 1)], self.float_near(1.0))

    def _multiply(self, document: Document, path: tuple[Any, ...], factor: float) -> None:
        for leaf in leaves(at(document, path), path):
            if _is_float(at(document, leaf)):
                _replace(document, leaf, (float.fromhex(at(document, leaf)) * factor).hex())

    def law(self, document: Document) -> None:
        """Change the sketch alone."""
        self.pick([self.number, self.scaled])(document, "sketch")

    def outcomes(self, document: Document) -> None:
        """Move two listed outcomes in opposite directions, so that their mean stays."""
        sketch = document["sketch"]
        sketch = self.pick(sketch["layers"]) if "layers" in sketch else sketch
        listed = sketch["vectors"] if "vectors" in sketch else sketch["matrices"]
        i, j = self.rng.choice(len(listed), 2, replace=False)
        weights = [float.fromhex(x) for x in sketch["weights"]]
        path = self.pick(leaves(listed[i]))
        step = 10.0 ** self.rng.uniform(-12.0, 1.0) * self.pick([-1.0, 1.0])
        places = {path, path[::-1]} if "matrices" in sketch else {path}
        for outcome, move in ((listed[i], step), (listed[j], -step * weights[i] / weights[j])):
            for place in places:
                _replace(outcome, place, (float.fromhex(at(outcome, place)) + move).hex())

    def resized(self, document: Document) -> None:
        """Multiply D, and k with it or not; often nothing is said of other D any more."""
        factor = 1.0 + 10.0 ** self.rng.uniform(-15.0, 1.0)
        if self.rng.random() < 0.3:
            factor = 1.0 / factor
            self._move(document, "lower", -1.0)
        self._multiply(document, ("D",), factor)
        if "k" in document and self.rng.random() < 0.5:
            self._multiply(document, ("k",), factor)
        if self.rng.random() < 0.7:
            document.update(upper="inf", multipliers={})

    def multipliers(self, document: Document) -> None:
        """Multiply one of the multipliers and lower the upper end."""
        name = self.pick(sorted(document["multipliers"]))
        factor = 1.0 + 10.0 ** self.rng.uniform(-12.0, 0.0) * self.pick([-1.0, 1.0])
        self._multiply(document, ("multipliers", name), factor)
        self._move(document, "upper", -1.0)

    def word(self, document: Document) -> None:
        path = self._path(document, lambda value: not _is_float(value))
        old = at(document, path)
        small = old + int(self.pick([-1, 1])) if type(old) is int else self.pick(self.WORDS)
        _replace(document, path, self.pick([small, small, self.pick(self.WORDS), self.pick(self.STRANGE)]))

    def transplant(self, document: Document) -> None:
        """Take a part of another document over, with the same name or another one."""
        donor = copy.deepcopy(self.pick(self.donors))
        name = self.pick(sorted(set(document) & set(donor) - {"format", "statement", "sha256"}))
        document[name] = donor[name if self.rng.random() < 0.9 else self.pick(sorted(donor))]

    def items(self, document: Document) -> None:
        """Remove, repeat or exchange an item of a list."""
        path = self._path(document, lambda value: True)
        lists = [path[:i] for i in range(1, len(path)) if isinstance(path[i], int)]
        values, action = at(document, self.pick(lists)), self.rng.integers(3)
        i, j = (int(x) for x in self.rng.integers(len(values), size=2))
        if action == 0:
            del values[i]
        elif action == 1:
            values.insert(i, copy.deepcopy(values[j]))
        else:
            values[i], values[j] = values[j], values[i]

    def keys(self, document: Document) -> None:
        """Remove a key, or add one that another object has."""
        path = self._path(document, lambda value: True)
        objects = [path[:i] for i in range(len(path)) if isinstance(path[i], str)]
        values = at(document, self.pick(objects))
        if self.rng.random() < 0.5:
            del values[self.pick(sorted(values))]
        else:
            values[self.pick(["rate", "k", "q", "L", "weights", "factor", "inverse", "w"])] = self.pick(self.STRANGE)

    def claim(self, document: Document) -> None:
        """Make a claim stronger, or weaker, or drop the upper end."""
        if self.rng.random() < 0.3:
            document.update(upper="inf", multipliers={})
        else:
            self._move(document, *self.pick([("lower", 1.0), ("upper", -1.0), ("lower", -1.0)]))

    def _move(self, document: Document, name: str, sign: float) -> None:
        x = float.fromhex(document[name])
        document[name] = (x + sign * 10.0 ** self.rng.uniform(-16.0, 1.0) * max(1.0, abs(x))).hex()


def false_statement(document: Document, verifier: ModuleType = verify) -> str | None:
    """What is false about a document that the verifier accepts; None for one that is true, or refused."""
    if not accepts(document, verifier):
        return None
    if not is_true_of_the_answer(document):
        return "what it says of D is false"
    known = best_known(document)
    if document["upper"] != "inf" and known > Fraction(float.fromhex(document["upper"])):
        return f"a D has the value {float(known)!r}, above its upper end"
    return None
