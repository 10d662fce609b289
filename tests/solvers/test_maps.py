"""Positive maps against dense computation: each is written out as a d²×d² matrix."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

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
