"""Factorisations, scalings, inverses and step lengths that all own methods share, against dense matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shared.native_problems import spectrum
from stepsize_solvers.numerics.curvature import Curvatures
from stepsize_solvers.numerics.linalg import (
    cholesky,
    congruence_diagonal,
    eigh,
    lower_congruence,
    lower_product,
    lower_solve,
    lower_transposed_product,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
    sym,
    weighted_gram,
)
from stepsize_solvers.programs import Pattern
from stepsize_validation.data import random_smoothness

Matrix = NDArray[np.float64]


def spd(d: int, seed: int, condition: float = 50.0) -> Matrix:
    return random_smoothness(np.random.default_rng(seed), d, condition)


def symmetric(d: int, seed: int) -> Matrix:
    return sym(np.random.default_rng(seed).standard_normal((d, d)))


@pytest.mark.parametrize("d", [9, 70])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_helper_keeps_the_precision_of_its_argument(dtype: type[np.floating[Any]], d: int) -> None:
    eps = float(np.finfo(dtype).eps)
    rng = np.random.default_rng(1)
    M, A = spd(d, 0).astype(dtype), rng.standard_normal((d, d)).astype(dtype)
    S, mixed = symmetric(d, 2).astype(dtype), rng.uniform(-1.0, 1.0, d).astype(dtype)
    K = cholesky(M)
    assert K is not None
    w, V = eigh(M)
    results = {
        "cholesky": (K @ K.T, M),
        "eigh": ((V * w) @ V.T, M),
        "product": (lower_product(K, A), K @ A),
        "transposed": (lower_transposed_product(K, A), K.T @ A),
        "congruence": (lower_congruence(K, M), K.T @ M @ K),
        "solve": (K @ lower_solve(K, A), A),
        "diagonal": (congruence_diagonal(A, S), np.diagonal(A @ S @ A.T)),
        "gram": (weighted_gram(A, mixed), A.T @ np.diag(mixed) @ A),
    }
    for name, (computed, expected) in results.items():
        assert computed.dtype == dtype, name
        np.testing.assert_allclose(computed, expected, atol=10.0 * d * eps, err_msg=name)
    assert smallest_eigenvalue(M) == pytest.approx(float(w[0]), abs=40.0 * eps)
    estimate = smallest_eigenvalue_from_factor(K, steps=d)
    assert 0.5 * float(w[0]) < estimate < (1.0 + 4e4 * eps) * float(w[0])


PATTERNS = {
    "full": Pattern.full(12),
    "blocks": Pattern((3, 4, 5)),
    "diagonal": Pattern((1,) * 12),
    "directions": Pattern((4, 8), np.diag(np.arange(1.0, 13.0))),
}


@pytest.mark.parametrize("shape", PATTERNS)
@pytest.mark.parametrize("seed", range(3))
def test_the_inverse_of_the_curvature_over_a_pattern(shape: str, seed: int) -> None:
    """The X of the pattern for which g − BXR − RXB is orthogonal to it."""
    pattern, rng, B = PATTERNS[shape], np.random.default_rng(seed), spectrum(12, 1e3)
    root, g = rng.standard_normal((2, 12, 12))
    R, g = root @ root.T, g + g.T
    K = Curvatures(B, pattern)(R)
    assert K is not None
    X = sym(K.C @ K.solve(K.C.T @ g @ K.C) @ K.C.T)
    np.testing.assert_allclose(X, pattern.nearest(X), rtol=1e-12, atol=1e-12 * np.abs(X).max())
    left = g - B @ X @ R - R @ X @ B
    for _ in range(5):
        member = pattern.blocks(sym(rng.standard_normal((12, 12))))
        if pattern.W is not None:
            member = np.diag(np.repeat(rng.standard_normal(2), pattern.sizes)) * pattern.W
        assert abs(np.vdot(left, member)) <= 1e-7 * abs(np.vdot(np.abs(g), np.abs(member)))
    assert Curvatures(B, pattern)(np.zeros((12, 12))) is None
    assert Curvatures(np.zeros((12, 12)), Pattern.full(12)).is_definite is False
