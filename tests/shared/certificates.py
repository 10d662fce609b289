"""The truth of certificate files, decided by the exact judges: nothing here uses the verifier or the library's proofs.

``is_true_of_the_answer`` decides what a file says of its own D, with the E[SMS] of the exact checker for laws that have
a name, and summed over the outcomes for those that a file lists;
``best_known`` is the value of a D that is true of the same question, below which no upper end may lie.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

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
    RandK,
    Sketch,
    SystematicSampling,
    compression_limit,
    optimal_stepsize,
)
from stepsize_validation.properties.exact import (
    Rational,
    combine,
    inner,
    inverse,
    is_positive_definite,
    is_positive_semidefinite,
    log_det,
    product,
    second_moment,
    transpose,
)
from stepsize_validation.properties.judges import Candidate, Node, has_structure

Plain = dict[str, Any]
Outcomes = list[tuple[Fraction, Rational]]
_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
ROUNDING = Fraction(1, 10**9)


def is_true_of_the_answer(document: Plain) -> bool:
    """Whether what a file says of its own D is true; a file that makes no sense says nothing true."""
    try:
        _check_keys(document)
        return _JUDGES[document["kind"]](document)
    except _ERRORS:
        return False


def best_known(document: Plain) -> Fraction:
    """The value of the answer, which must be true, or of the library's to the same question if larger."""
    own = _number(document["lower"])
    try:
        rival = _SOLVERS[document["kind"]](document)
    except _ERRORS:
        return own
    return max(own, _number(rival["lower"])) if is_true_of_the_answer(rival) else own


# ---------------------------------------------------------------- what a file contains

_KEYS = {"format", "kind", "L", "M", "goal", "D", "multipliers", "lower", "upper", "statement", "sha256"}
_OWN_KEYS = {
    "node": {"sketch", "method", "structure", "V"},
    "limit": {"k", "momentum"},
    "method": {"k", "momentum", "A", "h", "w"},
}
_SKETCH_KEYS = {
    "Identity": set[str](),
    "RandK": {"k"},
    "Gaussian": {"k"},
    "BernQ": {"q", "sizes"},
    "IndependentSampling": {"p"},
    "SystematicSampling": {"p"},
    "vectors": {"vectors", "weights"},
    "matrices": {"matrices", "weights"},
    "LayerWise": {"sizes", "layers"},
}


def _need(holds: bool) -> None:
    if not holds:
        msg = "not what a file contains"
        raise ValueError(msg)


def _check_keys(document: Plain) -> None:
    _need(set(document) == _KEYS | _OWN_KEYS[document["kind"]])
    _need(document["format"] == "stepsize-opt certificate 2")
    _need(set(document["multipliers"]) <= {"factor", "reference", "inverse"})
    if document["kind"] == "node":
        _need(set(document["structure"]) == {"sizes", "W"})
        _need(document["method"] in ("det-CGD1", "det-CGD2"))
    momentum = document["V"] is not None if document["kind"] == "node" else document["momentum"]
    _need(type(momentum) is bool)
    goals = ("linear", "convex") if momentum else ("paper", "descent", "euclidean", "linear")
    _need(document["goal"] in goals and (document["kind"] == "node" or document["goal"] != "paper" or momentum))
    has_M = momentum or document["goal"] in ("euclidean", "linear")
    _need(has_M == (document["M"] is not None))
    if has_M and document["goal"] != "linear":
        _need(_matrix(document["M"]) == _identity(len(_matrix(document["L"]))))
    if document["kind"] == "method":
        _need((document["w"] is not None) == momentum)


def _number(text: str) -> Fraction:
    x = float.fromhex(text)
    _need(x.hex() == text)
    return Fraction(x)


def _matrix(plain: Any) -> Rational:
    """A matrix of a file as rational numbers."""
    if isinstance(plain, list):
        return [[_number(x) for x in row] for row in plain]
    ((kind, of),) = plain.items()
    if kind == "diagonal":
        return _diagonal([_number(x) for x in of])
    if kind in ("sum", "product"):
        out = _matrix(of[0])
        for part in of[1:]:
            out = _sum(out, _matrix(part)) if kind == "sum" else product(out, _matrix(part))
        return out
    return {"transpose": transpose, "inverse": inverse}[kind](_matrix(of))


def _sum(A: Rational, B: Rational) -> Rational:
    return [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(A, B, strict=True)]


def _symmetric(plain: Any, d: int | None = None) -> Rational:
    A = _matrix(plain)
    _need(bool(A) and transpose(A) == A and d in (None, len(A)))
    return A


def _identity(d: int) -> Rational:
    return [[Fraction(i == j) for j in range(d)] for i in range(d)]


def _nearest(A: Rational) -> Any:
    """The floats nearest to a rational matrix."""
    return np.array([[float(x) for x in row] for row in A])


# ---------------------------------------------------------------- the law of a sketch, outcome by outcome


def _diagonal(values: list[Fraction]) -> Rational:
    return [[x if i == j else Fraction(0) for j in range(len(values))] for i, x in enumerate(values)]


def _systematic(p: list[Fraction]) -> Outcomes:
    """Between two neighbouring places where an interval ends, modulo 1, the same coordinates are sent."""
    _need(all(0 < x <= 1 for x in p))
    ends = [sum(p[:i], Fraction(0)) for i in range(len(p) + 1)]
    steps = sorted({Fraction(0), Fraction(1), *(x % 1 for x in ends)})
    found = []
    for low, high in pairwise(steps):
        x = (low + high) / 2
        sent = [any(a <= x + n < b for n in range(len(p) + 1)) for a, b in pairwise(ends)]
        found.append((high - low, _diagonal([1 / y if yes else Fraction(0) for y, yes in zip(p, sent, strict=True)])))
    return found


def _weights(law: Plain, count: int) -> list[Fraction]:
    weights = [_number(x) for x in law["weights"]]
    _need(len(weights) == count and min(weights) > 0 and abs(sum(weights) - 1) <= ROUNDING)
    return [x / sum(weights) for x in weights]


def _vectors(law: Plain) -> Outcomes:
    vectors = [[_number(x) for x in row] for row in law["vectors"]]
    weights = _weights(law, len(vectors))
    means = [sum(w * x for w, x in zip(weights, column, strict=True)) for column in zip(*vectors, strict=True)]
    _need(all(abs(m - 1) <= ROUNDING for m in means) and min(map(min, vectors)) >= 0)
    scaled = [[x / m for x, m in zip(row, means, strict=True)] for row in vectors]
    return [(w, _diagonal(row)) for w, row in zip(weights, scaled, strict=True)]


def _matrices(law: Plain, d: int) -> Outcomes:
    matrices = [_symmetric(S, d) for S in law["matrices"]]
    for S in matrices:
        trace = sum(S[i][i] for i in range(d))
        _need(is_positive_semidefinite(combine((1, S), (ROUNDING * trace, _identity(d)))))
    return list(zip(_weights(law, len(matrices)), matrices, strict=True))


_LISTED: dict[str, Callable[[Plain, int], Outcomes]] = {
    "SystematicSampling": lambda law, d: _systematic([_number(x) for x in law["p"]]),
    "vectors": lambda law, d: _vectors(law),
    "matrices": _matrices,
}


class Law:
    """E[S] and M ↦ E[SMS] of the sketch of a file; raises ValueError unless it is a law with E[S] = I."""

    def __init__(self, law: Plain, d: int) -> None:
        _need(set(law) == {"kind"} | _SKETCH_KEYS[law["kind"]] and type(law.get("k", 1)) is int)
        self.law, self.d, self.mean = law, d, _identity(d)
        self.layers: list[tuple[int, Law]] = []
        self.outcomes: Outcomes = []
        if law["kind"] == "LayerWise":
            self._read_layers()
        elif law["kind"] in _LISTED:
            self.outcomes = _LISTED[law["kind"]](law, d)
            _need(sum(w for w, _ in self.outcomes) == 1 and all(len(S) == d for _, S in self.outcomes))
            self.mean = combine(*self.outcomes)
        else:
            sizes, chances = law.get("sizes", []), [*law.get("p", []), *law.get("q", [])]
            _need(all(type(n) is int for n in sizes) and len(sizes) in (0, len(chances)))
            _need(all(0 < _number(x) <= 1 for x in chances))
            self.sketch = _sketch(law, d)
            _need(self.sketch.d == d)
        error = max(abs(x) for row in combine((1, self.mean), (-1, _identity(d))) for x in row)
        _need(error <= (ROUNDING if law["kind"] in ("matrices", "LayerWise") else 0))

    def _read_layers(self) -> None:
        sizes, start = self.law["sizes"], 0
        _need(sum(sizes) == self.d and min(sizes) >= 1 and all(type(n) is int for n in sizes))
        for n, layer in zip(sizes, self.law["layers"], strict=True):
            self.layers.append((start, Law(layer, n)))
            for i, row in enumerate(self.layers[-1][1].mean):
                self.mean[start + i][start : start + n] = row
            start += n

    def moment(self, M: Rational) -> Rational:
        """E[SMS], of the named laws by the exact checker."""
        if self.outcomes:
            return combine(*[(w, product(product(S, M), S)) for w, S in self.outcomes])
        if not self.layers:
            return second_moment(self.sketch, M)
        out = product(product(self.mean, M), self.mean)  # independent layers
        for start, layer in self.layers:
            inside = layer.moment([row[start : start + layer.d] for row in M[start : start + layer.d]])
            for i, row in enumerate(inside):
                out[start + i][start : start + layer.d] = row
        return out


@second_moment.register
def _(law: Law, M: Rational) -> Rational:
    return law.moment(M)


# ---------------------------------------------------------------- the kinds of files


def _has_value(X: Rational, M: Rational | None, value: Fraction) -> bool:
    """log det X ≥ value, or X ⪰ tM⁻¹, that is MXM ⪰ tM, with t = value > 0."""
    if M is None:
        return is_positive_definite(X) and log_det(X) >= Decimal(float(value))
    above = combine((1, product(product(M, X), M)), (-value, M))
    return value > 0 and is_positive_definite(M) and is_positive_semidefinite(above)


def _between(A: Rational, B: Rational) -> Rational:
    """ABA."""
    return product(product(A, B), A)


def _problem(document: Plain) -> tuple[Rational, Rational, Rational | None, Fraction]:
    """L ≻ 0, D, M ≻ 0 or None, and the lower end."""
    L = _symmetric(document["L"])
    D = _symmetric(document["D"], len(L))
    M = None if document["M"] is None else _symmetric(document["M"], len(L))
    _need(is_positive_definite(L) and (M is None or is_positive_definite(M)))
    return L, D, M, _number(document["lower"])


def _judge_node(document: Plain) -> bool:
    L, D, M, lower = _problem(document)
    law: Any = Law(document["sketch"], len(L))
    node = Node(L, law, document["method"], goal=document["goal"], strong_convexity=np.array(M))
    one = Candidate(node, D)
    if not has_structure(_nearest(D), _structure(document["structure"])):
        return False
    if document["V"] is not None:
        V = _symmetric(document["V"], len(L))
        floor = combine((1, one.metric), (-(lower**2), law.moment(V)))
        return _has_value(V, M, Fraction(1)) and lower > 0 and is_positive_semidefinite(floor)
    if M is None:
        return one.is_feasible() and one.reaches(Decimal(float(lower)))
    return lower > 0 and one.is_above_floor(one.metric, lower)


def _judge_limit(document: Plain) -> bool:
    L, D, M, lower = _problem(document)
    below = is_positive_semidefinite(combine((1, L), (-1, _between(L, D))))
    attained = is_positive_definite(D) and below and inner(L, D) <= _number(document["k"])
    if document["momentum"]:
        return attained and lower > 0 and _has_value(_between(D, L), M, lower**2)
    return attained and _has_value(D, M, lower)


def _judge_method(document: Plain) -> bool:
    L, D, M, lower = _problem(document)
    A, h = _matrix(document["A"]), [_number(x) for x in document["h"]]
    gram = product(product(transpose(A), L), A)
    holds = (
        all(0 < x <= 1 for x in h)
        and sum(h) <= _number(document["k"])
        and is_positive_definite(D)
        and is_positive_semidefinite(combine((1, _identity(len(L))), (-1, gram)))
        and is_positive_semidefinite(combine((1, weighted(A, h)), (-1, D)))
    )
    if not document["momentum"]:
        return holds and _has_value(D, M, lower)
    w = [_number(x) for x in document["w"]]
    slow = lower > 0 and all(lower**2 * x <= y for x, y in zip(w, h, strict=True))
    return holds and slow and _has_value(weighted(A, [x * y for x, y in zip(w, h, strict=True)]), M, Fraction(1))


def weighted(A: Rational, diagonal: list[Fraction]) -> Rational:
    """A Diag(diagonal) Aᵀ."""
    scaled = [[a * x for a, x in zip(row, diagonal, strict=True)] for row in A]
    return product(scaled, transpose(A))


_JUDGES: dict[str, Callable[[Plain], bool]] = {"node": _judge_node, "limit": _judge_limit, "method": _judge_method}


# ---------------------------------------------------------------- the library's answers, as documents


def _sketch(law: Plain, d: int) -> Sketch:
    """The sketch of a file as the library has it."""
    kind = law["kind"]
    values = {name: np.array([float.fromhex(x) for x in law[name]]) for name in ("q", "p", "weights") if name in law}
    if kind in ("RandK", "Gaussian"):
        return (RandK if kind == "RandK" else Gaussian)(d, law["k"])
    if kind == "LayerWise":
        return LayerWise([_sketch(layer, n) for n, layer in zip(law["sizes"], law["layers"], strict=True)])
    if kind == "Identity":
        return Identity(d)
    if kind == "BernQ":
        return BernQ(values["q"], law["sizes"])
    if kind in ("IndependentSampling", "SystematicSampling"):
        return (IndependentSampling if kind == "IndependentSampling" else SystematicSampling)(values["p"])
    if kind == "vectors":
        return DiagonalSketch(_nearest(_matrix(law["vectors"])), values["weights"])
    return FiniteSketch(np.array([_nearest(_symmetric(S)) for S in law["matrices"]]), values["weights"])


def _structure(plain: Plain) -> Any:
    if plain["W"] is not None:
        return Direction(_nearest(_symmetric(plain["W"])), plain["sizes"])
    return BlockDiagonal(plain["sizes"])


def _goal(document: Plain) -> dict[str, Any]:
    M = _nearest(_symmetric(document["M"])) if document["goal"] == "linear" else None
    return {"goal": document["goal"], "strong_convexity": M}


def _rival(document: Plain, D: Any, lower: float, **other: Any) -> Plain:
    return {**document, "D": [[float(x).hex() for x in row] for row in D], "lower": lower.hex(), **other}


def _solve_node(document: Plain) -> Plain:
    L = _nearest(_symmetric(document["L"]))
    momentum = document["V"] is not None
    sketch, structure = _sketch(document["sketch"], len(L)), _structure(document["structure"])
    options = {"algorithm": document["method"], "structure": structure, "momentum": momentum, "tol": 1e-9}
    result = optimal_stepsize(L, sketch, **_goal(document), **options)
    V = result.inverse_curvature
    V = V * np.eye(len(L)) if isinstance(V, float) else V
    plain_V = None if V is None else [[float(x).hex() for x in row] for row in V]
    return _rival(document, result.D, result.log_det if document["M"] is None else result.rate, V=plain_V)


def _solve_limit(document: Plain) -> Plain:
    L, k = _nearest(_symmetric(document["L"])), float.fromhex(document["k"])
    limit = compression_limit(L, k, **_goal(document), momentum=document["momentum"])
    value = limit.certificate.log_det if document["M"] is None else limit.value
    rival = _rival(document, limit.D, value, kind="limit")
    return {name: rival[name] for name in _KEYS | _OWN_KEYS["limit"]}


_SOLVERS: dict[str, Callable[[Plain], Plain]] = {"node": _solve_node, "limit": _solve_limit, "method": _solve_limit}
