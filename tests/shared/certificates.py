"""The truth of certificate files, decided by the exact checker: nothing here uses the verifier or the library's proofs.

``is_true_of_the_answer`` decides what a file says of its own D; ``best_known`` is a value that some D is known to have,
below which no upper end may lie.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
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
    definiteness,
    inner,
    inverse,
    is_positive_semidefinite,
    log,
    product,
    rational,
    second_moment,
    transpose,
)
from stepsize_validation.properties.judges import Candidate, Node, has_structure

Plain = dict[str, Any]
_T_GOALS = ("euclidean", "linear", "convex")  # with an M
_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


def is_true_of_the_answer(document: Plain) -> bool:
    """Whether what a file says of its own D is true; a file that makes no sense says nothing true."""
    try:
        return _JUDGES[document["kind"]](document)
    except _ERRORS:
        return False


def best_known(document: Plain) -> Fraction:
    """The value of the answer, which must be true, or of that of the library to the same question if it is larger."""
    own = _number(document["lower"])
    try:
        return max(own, Fraction(_SOLVERS[document["kind"]](document)))
    except _ERRORS:
        return own


# ---------------------------------------------------------------- what a file holds


def _number(text: str) -> Fraction:
    return Fraction(float.fromhex(text))


def _floats(plain: Any) -> Any:
    """Nested lists of hexadecimal floats as an array."""
    return np.array([[float.fromhex(x) for x in row] for row in plain])


def _matrix(plain: Any) -> Rational:
    """A matrix of a file as rational numbers."""
    if isinstance(plain, list):
        return [[_number(x) for x in row] for row in plain]
    ((kind, of),) = plain.items()
    if kind == "diagonal":
        return [[_number(x) if i == j else Fraction(0) for j in range(len(of))] for i, x in enumerate(of)]
    if kind in ("sum", "product"):
        out = _matrix(of[0])
        for part in of[1:]:
            out = _sum(out, _matrix(part)) if kind == "sum" else product(out, _matrix(part))
        return out
    return {"transpose": transpose, "inverse": inverse}[kind](_matrix(of))


def _sum(A: Rational, B: Rational) -> Rational:
    return [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(A, B, strict=True)]


def _symmetric(plain: Any) -> Rational:
    A = _matrix(plain)
    if transpose(A) != A:
        msg = "not symmetric"
        raise ValueError(msg)
    return A


def _nearest(A: Rational) -> Any:
    """The floats nearest to a rational matrix."""
    return np.array([[float(x) for x in row] for row in A])


def _law(law: Plain, d: int) -> Sketch:
    """The sketch of a file with exactly its numbers; raises ValueError for what is no distribution."""
    kind = law["kind"]
    values = {name: [float.fromhex(x) for x in law[name]] for name in ("q", "p", "weights") if name in law}
    if kind in ("RandK", "Gaussian"):
        return (RandK if kind == "RandK" else Gaussian)(d, law["k"])
    if kind == "LayerWise":
        return LayerWise([_law(layer, size) for size, layer in law["layers"]])
    if kind == "Identity":
        return Identity(d)
    if kind == "BernQ":
        return BernQ(values["q"], law["sizes"])
    if kind in ("IndependentSampling", "SystematicSampling"):
        return IndependentSampling(values["q"]) if "q" in values else SystematicSampling(values["p"])
    weights, of = np.array(values["weights"]), {"support": "support", "finite": "finite"}[kind]
    if min(weights) < 0.0 or (kind == "finite" and not 0.0 < min(weights) <= max(weights) <= 1.0):
        msg = "no probabilities"
        raise ValueError(msg)
    # The classes check and round what they are given: they are made of plain outcomes, which are then exchanged.
    count = len(weights)
    if kind == "support":
        base: Sketch = DiagonalSketch.from_support(np.ones((count, d)), np.full(count, 1.0 / count))
        base.__setstate__({**vars(base), "vectors": _floats(law[of]), "weights": weights})
        return base
    base = FiniteSketch(np.array([np.eye(d)] * count), np.full(count, 1.0 / count))
    matrices = np.array([_nearest(_symmetric(S)) for S in law[of]])
    base.__setstate__({**vars(base), "matrices": matrices, "weights": weights})
    return base


def _structure(plain: Plain, d: int) -> Any:
    sizes = plain["sizes"]
    if sum(sizes) != d or min(sizes) < 1:
        msg = "the sizes do not add up"
        raise ValueError(msg)
    if plain["W"] is not None:
        return Direction(_nearest(_symmetric(plain["W"])), sizes)
    return BlockDiagonal(sizes)


def _is_positive(A: Rational) -> bool:
    return definiteness(A).det > 0


def _exceeds_inverse(X: Rational, M: Rational, t: Fraction) -> bool:
    """X ⪰ tM⁻¹, that is MXM ⪰ tM."""
    return is_positive_semidefinite(combine((1, product(product(M, X), M)), (-t, M)))


def _has_value(X: Rational, M: Rational | None, value: Fraction) -> bool:
    """log det X ≥ value, or X ⪰ tM⁻¹ with t = value > 0."""
    if M is None:
        return _is_positive(X) and log(definiteness(X).det) >= Decimal(float(value))
    return value > 0 and _is_positive(M) and _exceeds_inverse(X, M, value)


# ---------------------------------------------------------------- the kinds of files


def _node(document: Plain) -> Node:
    L = _symmetric(document["L"])
    d = len(L)
    goal, M = document["goal"], None
    if document["M"] is not None:  # a t, whatever its name
        goal, M = "linear", _nearest(_symmetric(document["M"]))
    if document["method"] not in ("det-CGD1", "det-CGD2") or not _is_positive(L):
        msg = "no method, or L is not positive definite"
        raise ValueError(msg)
    structure = _structure(document["structure"], d)
    return Node(_nearest(L), _law(document["sketch"], d), document["method"], structure, goal, M)


def _judge_node(document: Plain) -> bool:
    node, D, lower = _node(document), _symmetric(document["D"]), _number(document["lower"])
    if not _fits(D, node.structure):
        return False
    one = Candidate(node, D)
    M = None if document["M"] is None else _symmetric(document["M"])
    if document["V"] is not None:
        V = _symmetric(document["V"])
        floor = combine((1, one.metric), (-(lower**2), second_moment(node.sketch, V)))
        named = document["goal"] in _T_GOALS
        return named and _has_value(V, M, Fraction(1)) and lower > 0 and is_positive_semidefinite(floor)
    if M is not None:
        return document["goal"] in _T_GOALS and _has_value(one.metric, M, lower)
    if node.goal not in ("paper", "descent", "convex"):
        return False
    return one.is_feasible() and _has_value(one.metric if node.goal == "descent" else D, None, lower)


def _fits(D: Rational, structure: Any) -> bool:
    """Whether D has the structure; an operator of rank one more may not be a matrix of floats."""
    floats = _nearest(D)
    return has_structure(floats, structure) if rational(floats) == D else structure == BlockDiagonal([len(D)])


def _judge_limit(document: Plain) -> bool:
    L, D, lower = _symmetric(document["L"]), _symmetric(document["D"]), _number(document["lower"])
    M = None if document["M"] is None else _symmetric(document["M"])
    below = is_positive_semidefinite(combine((1, L), (-1, product(product(L, D), L))))
    named = document["goal"] in (("descent",) if M is None else _T_GOALS)
    attained = named and _is_positive(L) and _is_positive(D) and below and inner(L, D) <= _number(document["k"])
    if document["momentum"]:
        return attained and M is not None and lower > 0 and _has_value(product(product(D, L), D), M, lower**2)
    return attained and _has_value(D, M, lower)


def _judge_method(document: Plain) -> bool:
    L, D, A = _symmetric(document["L"]), _symmetric(document["D"]), _matrix(document["A"])
    h, lower = [_number(x) for x in document["h"]], _number(document["lower"])
    M = None if document["M"] is None else _symmetric(document["M"])
    gram = product(product(transpose(A), L), A)
    holds = (
        document["goal"] in (("descent",) if M is None else _T_GOALS)
        and _is_positive(L)
        and all(0 < x <= 1 for x in h)
        and sum(h) <= _number(document["k"])
        and is_positive_semidefinite(combine((1, rational(np.eye(len(L)))), (-1, gram)))
        and is_positive_semidefinite(combine((1, _between(A, h)), (-1, D)))
    )
    if not document["momentum"]:
        return holds and _has_value(D, M, lower)
    w = [_number(x) for x in document["w"]]
    weighted = _between(A, [x * y for x, y in zip(w, h, strict=True)])
    slow = lower > 0 and all(lower**2 * x <= y for x, y in zip(w, h, strict=True))
    return holds and slow and M is not None and _has_value(weighted, M, Fraction(1))


def _between(A: Rational, diagonal: list[Fraction]) -> Rational:
    scaled = [[a * x for a, x in zip(row, diagonal, strict=True)] for row in A]
    return product(scaled, transpose(A))


_JUDGES: dict[str, Callable[[Plain], bool]] = {
    "node": _judge_node,
    "limit": _judge_limit,
    "method": _judge_method,
}


# ---------------------------------------------------------------- the library's answers


def _solve_node(document: Plain) -> float:
    result = optimal_stepsize(**_node(document).arguments, momentum=document["V"] is not None)
    return result.log_det if document["M"] is None else result.rate


def _solve_limit(document: Plain) -> float:
    goal, M = document["goal"], None
    if document["M"] is not None:  # a t, whatever its name
        goal, M = "linear", _nearest(_symmetric(document["M"]))
    L, k = _nearest(_symmetric(document["L"])), float.fromhex(document["k"])
    limit = compression_limit(L, k, goal=goal, strong_convexity=M, momentum=document["momentum"])
    return limit.certificate.log_det if document["M"] is None else limit.value


_SOLVERS: dict[str, Callable[[Plain], float]] = {
    "node": _solve_node,
    "limit": _solve_limit,
    "method": _solve_limit,
}
