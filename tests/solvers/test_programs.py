"""Patterns, programs and positive maps: membership, projections, restrictions, what commutes, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from shared.native_problems import all_maps, rand_k, spectrum
from stepsize_opt import BernQ, FiniteSketch
from stepsize_solvers.programs import Family, Matrix, Metric, Pattern, Program
from stepsize_solvers.programs.maps import (
    CongruenceSum,
    DiagonalPlusScaled,
    Hadamard,
    Layered,
    PositiveMap,
    ScaledPlusTrace,
    connected_labels,
    hadamard,
)

W = np.diag([2.0, 3.0, 1.0]) + np.array([[0.0, 0.5, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
PATTERNS = {
    "full": Pattern.full(3),
    "blocks": Pattern((2, 1)),
    "diagonal": Pattern((1, 1, 1)),
    "direction": Pattern((3,), spectrum(3, 10.0)),
    "direction by layers": Pattern((2, 1), W),
}
every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())


def member(pattern: Pattern, seed: int = 0) -> Matrix:
    """A random matrix with the pattern: 𝛾ᵢWᵢ or free blocks."""
    rng = np.random.default_rng(seed)
    if pattern.W is not None:
        return np.asarray(rng.uniform(0.1, 10.0, len(pattern.sizes))[pattern.labels][:, None] * pattern.W)
    return pattern.blocks(spectrum(pattern.d, 10.0, seed))


def test_kinds_of_patterns() -> None:
    assert [name for name, p in PATTERNS.items() if p.is_full] == ["full"]
    assert [name for name, p in PATTERNS.items() if p.is_diagonal] == ["diagonal"]
    assert [name for name, p in PATTERNS.items() if p.direction is not None] == ["direction"]
    assert Pattern.full(1).is_full and Pattern.full(1).is_diagonal
    assert [p.d for p in PATTERNS.values()] == [3] * 5


@every_pattern
def test_a_pattern_contains_its_members_and_no_others(pattern: Pattern) -> None:
    assert pattern.contains(pattern.member)
    for seed in range(5):
        M = member(pattern, seed)
        assert pattern.contains(M) and pattern.contains(1e-150 * M)
        lopsided = M.copy()
        lopsided[0, 1] = np.nextafter(M[0, 1], np.inf)
        assert not pattern.contains(lopsided)
        assert pattern.contains(M + 1e-12 * np.ones((3, 3))) == pattern.is_full
        assert pattern.contains(-M) == (pattern.W is None)
    scale = np.array([2.0, 0.5, 4.0])
    assert pattern.rescaled(scale).contains(member(pattern) / scale[:, None] / scale)


@every_pattern
def test_the_nearest_member(pattern: Pattern) -> None:
    """A member for any matrix, the matrix itself for a member, the trace of each block kept."""
    M = np.random.default_rng(1).standard_normal((3, 3)) + 4.0 * np.eye(3)
    near = pattern.nearest(M)
    assert pattern.contains(near)
    for s in pattern.slices:
        assert np.trace(near[s, s]) == pytest.approx(np.trace(M[s, s]))
    np.testing.assert_allclose(pattern.nearest(member(pattern)), member(pattern), rtol=1e-14)
    if pattern.W is None:
        np.testing.assert_array_equal(near, pattern.blocks(0.5 * (M + M.T)))


@every_pattern
@pytest.mark.parametrize("indices", [[0], [0, 2], [1, 2], [0, 1, 2]])
def test_the_restriction_to_some_coordinates(pattern: Pattern, indices: list[int]) -> None:
    """The restriction of a member is one of the restricted pattern, which holds nothing else but 1×1 blocks."""
    part, window = pattern.restrict(np.array(indices)), np.ix_(indices, indices)
    assert part.d == len(indices)
    assert part.contains(member(pattern)[window])
    np.testing.assert_array_equal(part.blocks(np.ones((part.d, part.d))), pattern.blocks(np.ones((3, 3)))[window])
    assert (part.W is None) == (pattern.W is None or max(part.sizes) == 1)


@every_pattern
@pytest.mark.parametrize("sketch", [BernQ([0.5, 0.25], [2, 1]), BernQ([0.5, 0.25], [1, 2]), BernQ(0.4, 3)], ids=str)
def test_a_pattern_commutes_with_a_sketch_if_all_outcomes_do(pattern: Pattern, sketch: BernQ) -> None:
    M, (_, outcomes) = member(pattern), sketch.support()
    assert pattern.commutes_with(sketch.map) == all(np.allclose(s[:, None] * M, M * s) for s in outcomes)


def test_other_maps_that_commute() -> None:
    assert not PATTERNS["diagonal"].commutes_with(FiniteSketch([np.eye(3)], [1.0]).map)  # not known to be diagonal
    assert PATTERNS["full"].commutes_with(DiagonalPlusScaled.identity(3))
    assert not PATTERNS["blocks"].commutes_with(rand_k(3, 2))
    assert Pattern((2, 1), np.diag([1.0, 2.0, 3.0])).commutes_with(rand_k(3, 2))  # a diagonal W
    assert not Pattern((3,), W).commutes_with(Hadamard(np.diag([1.0, 2.0, 3.0]) + 1.0))


EYE = np.eye(3)
IDENTITY = DiagonalPlusScaled.identity(3)
LINEAR = Family(IDENTITY, None, EYE[None], c=1.0)
FULL = Pattern.full(3)
METRIC = Metric(Family(IDENTITY, EYE, a=2.0))
NO_RIGHT_SIDE = ({}, {"c": -1.0}, {"e": np.nan}, {"a": np.inf}, {"a": -1.0, "c": 1.0})
REFUSED: list[tuple[str, Callable[[], Any]]] = [
    *(("block sizes", partial(Pattern, sizes)) for sizes in ((), (2, 0), (-1, 4))),
    ("factors", partial(Family, IDENTITY, None, EYE, c=1.0)),
    ("factors", partial(Family, IDENTITY, None, np.eye(2)[None], c=1.0)),
    ("a=1.0", partial(Family, IDENTITY, EYE, EYE[None], a=1.0)),
    *(("a, c and e", partial(Family, IDENTITY, EYE, **numbers)) for numbers in NO_RIGHT_SIDE),
    ("inequalities", partial(Program, (), FULL)),
    ("inequalities", partial(Program, (LINEAR,), FULL, objective=METRIC)),
    ("family", partial(Program, (LINEAR,), Pattern.full(2))),
    ("family", partial(Program, (), Pattern.full(2), objective=METRIC)),
    *(("root", partial(Program, (LINEAR,), FULL, root)) for root in (2.9, np.nan, -1.0)),
    ("metric", partial(Metric, Family(IDENTITY, EYE, a=1.0, c=1.0))),
    ("metric", partial(Metric, Family(IDENTITY, EYE, EYE[None], c=1.0))),
    ("floor", partial(Metric, Family(IDENTITY, EYE, a=2.0), np.eye(2))),
]


@pytest.mark.parametrize(("argument", "make"), REFUSED)
def test_what_is_refused(argument: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=argument):
        make()


def test_the_one_condition() -> None:
    program = Program.single(EYE, IDENTITY)
    assert program.condition is program.families[0] and program.pattern.is_full
    assert (program.d, program.root, program.power, program.total_size) == (3, 3.0, 1.0, 3)
    (family,) = program.families
    for families in ((family, LINEAR), (LINEAR,), (Family(IDENTITY, EYE, a=2.0),)):
        assert Program(families, FULL).condition is None
    metric = Program.descent(EYE, IDENTITY)
    assert metric.condition is None and metric.total_size == 3


MULTIPLES = [
    (B, root, right)
    for B in (None, spectrum(4, 10.0))
    for root in (4.0, 8.0)
    for right in ({"c": 2.0}, {"e": 0.5}, {"c": 0.3, "e": 0.7})
    # With root = d and a linear family t and τ(tX) grow alike: no multiple is feasible, or every one.
    if B is not None or root > 4.0 or "e" not in right
]


@pytest.mark.parametrize(("B", "root", "right"), MULTIPLES)
def test_the_largest_multiple_makes_the_inequality_singular(
    B: Matrix | None, root: float, right: dict[str, float]
) -> None:
    X, Q = spectrum(4, 10.0, 3), all_maps(4)["rand-k"]
    program = Program((Family(Q, B, np.eye(4)[None], **right),), Pattern.full(4), root, 0.2)
    image, log_det = Q.apply(X if B is None else X @ B @ X), float(np.linalg.slogdet(X)[1])
    t = program.largest_scale(log_det, [float(np.linalg.eigvalsh(image)[-1])])
    left = right.get("c", 0.0) + right.get("e", 0.0) * np.exp((log_det + 4 * np.log(t) - 0.2) / root)
    top = np.linalg.eigvalsh(Q.apply(t * X if B is None else t * t * X @ B @ X))[-1]
    assert left == pytest.approx(top, rel=1e-12)


# ----------------------------------------------------------------
# positive maps against dense computation: each is written out as a d²×d² matrix


RNG = np.random.default_rng(7)
FACTOR = RNG.random((5, 3))
# The mean of these two is the identity: I ± a traceless symmetric matrix, with the blocks {0, 1} and {2}.
UNBIASED = np.eye(3) + np.array([1.0, -1.0])[:, None, None] * np.array(
    [[0.3, 0.4, 0.0], [0.4, -0.2, 0.0], [0.0, 0.0, 0.5]]
)
LOPSIDED = RNG.standard_normal((4, 3, 3))

DIAGONAL = DiagonalPlusScaled(np.array([1.0, 0.5, 2.0]), 0.7)
HADAMARD = Hadamard(1.0 + FACTOR @ FACTOR.T)
CONGRUENCE = CongruenceSum(np.array([0.5, 0.5]), UNBIASED)
TRACE = ScaledPlusTrace(4, 1.25, 0.25)
MIXED = Layered((HADAMARD, TRACE, CONGRUENCE), 0.5)

MAPS: dict[str, PositiveMap] = {
    "identity": DiagonalPlusScaled.identity(3),
    "diagonal": DIAGONAL,
    "one coordinate": DiagonalPlusScaled(np.zeros(1), 2.0),
    "hadamard": HADAMARD,
    "congruence": CONGRUENCE,
    "trace": TRACE,
    "layers, diagonal": Layered((DIAGONAL, HADAMARD)),
    "layers, mixed": Layered((HADAMARD, TRACE, CONGRUENCE)),
    "layers, centred": Layered((DIAGONAL, TRACE)).centered(),
}
every_map = pytest.mark.parametrize("q", MAPS.values(), ids=MAPS.keys())


def dense(q: PositiveMap) -> np.ndarray:
    """The matrix T with vec(𝒬(M)) = T vec(M), column by column."""
    d = q.d
    return np.array([q.apply(E.reshape(d, d)).ravel() for E in np.eye(d * d)]).T


def symmetric(d: int, seed: int = 0) -> np.ndarray:
    A = np.random.default_rng(seed).standard_normal((d, d))
    return A + A.T


def layered(M: np.ndarray) -> np.ndarray:
    out = 0.5 * M
    for part, s in zip((HADAMARD, TRACE, CONGRUENCE), (slice(0, 5), slice(5, 9), slice(9, 12)), strict=True):
        out[s, s] = part.apply(M[s, s])
    return out


FORMULAS = {
    "diagonal": (DIAGONAL, lambda M: np.diag(DIAGONAL.alpha * np.diag(M)) + DIAGONAL.beta * M),
    "hadamard": (HADAMARD, lambda M: HADAMARD.P * M),
    "trace": (TRACE, lambda M: 1.25 * M + 0.25 * np.trace(M) * np.eye(4)),
    "layers": (MIXED, layered),
    "congruences that are not symmetric": (
        CongruenceSum(np.array([0.1, 0.2, 0.3, 0.4]), LOPSIDED),
        lambda M: sum(w * A @ M @ A.T for w, A in zip((0.1, 0.2, 0.3, 0.4), LOPSIDED, strict=True)),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str) -> None:
    q, formula = FORMULAS[name]
    M, Z = symmetric(q.d), symmetric(q.d, 1)
    assert_allclose(q.apply(M), formula(M), atol=1e-13)
    assert np.vdot(q.adjoint(Z), M) == pytest.approx(np.vdot(Z, formula(M)), rel=1e-12)


@every_map
def test_adjoint_and_centred_map(q: PositiveMap) -> None:
    M, T = symmetric(q.d, 3), dense(q)
    assert_allclose(q.adjoint(M).ravel(), T.T @ M.ravel(), atol=1e-12)
    # The congruences here average to the identity, as those of a sketch do.
    assert_allclose(q.centered().apply(M), q.apply(M) - M, atol=1e-12)
    assert_allclose(q.centered().adjoint(M), q.adjoint(M) - M, atol=1e-12)
    copy = M.copy()
    for out in (q.apply(M), q.adjoint(M), q.magnitude(np.abs(M))):
        out += 1.0
    np.testing.assert_array_equal(M, copy)


@every_map
def test_magnitude_bounds_every_perturbation(q: PositiveMap) -> None:
    """Exactly where all coefficients of the map are nonnegative by construction."""
    size = np.abs(symmetric(q.d, 5))
    for part in [q] if isinstance(q, Layered) and q.between == 0.0 else [q, q.centered()]:
        worst = (np.abs(dense(part)) @ size.ravel()).reshape(q.d, q.d)
        assert np.all(part.magnitude(size) >= worst * (1.0 - 1e-12))
        if (part is q and q.hadamard_matrix is not None) or part is TRACE:
            assert_allclose(part.magnitude(size), worst, rtol=1e-12)


@every_map
def test_diagonal_action_and_hadamard_matrix(q: PositiveMap) -> None:
    own = [q.apply(np.outer(e, e))[i, i] for i, e in enumerate(np.eye(q.d))]
    assert_allclose(q.diagonal_action, own, atol=1e-13)
    P, T = q.hadamard_matrix, dense(q)
    if P is None:
        assert np.count_nonzero(T - np.diag(np.diag(T)))  # indeed not an entrywise product
    else:
        assert_allclose(T, np.diag(P.ravel()), atol=1e-13)


@every_map
def test_groups_scale_and_restrict(q: PositiveMap) -> None:
    labels, M = q.groups, symmetric(q.d, 7)
    assert labels.shape == (q.d,)
    scale = np.random.default_rng(6).standard_normal(labels.max() + 1)[labels]
    outer = np.outer(scale, scale)
    assert_allclose(q.apply(outer * M), outer * q.apply(M), atol=1e-11)
    for kept in range(1, min(2 ** int(labels.max() + 1), 64)):  # unions of groups, one bit a group
        indices = np.flatnonzero(kept >> labels & 1)
        window, part = np.ix_(indices, indices), np.zeros((q.d, q.d))
        part[window] = symmetric(indices.size, 8)
        image, small = q.apply(part), q.restrict(indices)
        assert small.d == indices.size
        assert_allclose(small.apply(part[window]), image[window], atol=1e-12)
        image[window] = 0.0
        assert_allclose(image, 0.0, atol=1e-12)


def test_groups_are_as_fine_as_the_map_allows() -> None:
    np.testing.assert_array_equal(CONGRUENCE.groups, [0, 0, 1])
    np.testing.assert_array_equal(Layered((TRACE, DIAGONAL)).groups, [0, 0, 0, 0, 1, 2, 3])
    with pytest.raises(ValueError, match="couples all 4 coordinates; cannot restrict to 2"):
        TRACE.restrict(np.array([0, 1]))
    linked = np.eye(4, dtype=bool)
    linked[0, 3] = True  # an edge in one direction is enough
    np.testing.assert_array_equal(connected_labels(linked), [0, 1, 2, 0])


def test_hadamard_takes_the_cheap_form_where_it_exists() -> None:
    P = np.full((4, 4), 0.5) + np.diag([1.0, 2.0, 3.0, 4.0])
    cheap = hadamard(P)
    assert isinstance(cheap, DiagonalPlusScaled)
    assert_allclose(cheap.hadamard_matrix, P)
    assert isinstance(hadamard(HADAMARD.P), Hadamard)
    assert isinstance(hadamard(np.array([[2.0]])), DiagonalPlusScaled)
    assert isinstance(HADAMARD.restrict(np.array([1, 3])), DiagonalPlusScaled)
    assert MAPS["layers, diagonal"].hadamard_matrix is not None and MIXED.hadamard_matrix is None
