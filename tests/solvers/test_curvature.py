"""The curvature BXR + RXB over a pattern and its inverse, and large blocks, whose path needs it."""

from __future__ import annotations

import numpy as np
import pytest

from shared.native_problems import rand_k, spectrum
from stepsize_solvers import get_solver
from stepsize_solvers.numerics import Curvatures
from stepsize_solvers.programs import Pattern, Program, Settings, Status

D = 12
B = spectrum(D, 1e3)
PATTERNS = {
    "full": Pattern.full(D),
    "blocks": Pattern((3, 4, 5)),
    "diagonal": Pattern((1,) * D),
    "directions": Pattern((4, 8), np.diag(np.arange(1.0, D + 1.0))),
}
every_pattern = pytest.mark.parametrize("shape", PATTERNS)


@every_pattern
@pytest.mark.parametrize("seed", range(3))
def test_the_inverse_solves_the_equation_over_the_pattern(shape: str, seed: int) -> None:
    pattern, rng = PATTERNS[shape], np.random.default_rng(seed)
    root, g = rng.standard_normal((2, D, D))
    R, g = root @ root.T, g + g.T
    K = Curvatures(B, pattern)(R)
    assert K is not None
    X = K.C @ K.solve(K.C.T @ g @ K.C) @ K.C.T
    X = 0.5 * (X + X.T)
    left = g - B @ X @ R - R @ X @ B
    np.testing.assert_allclose(X, pattern.nearest(X), rtol=1e-12, atol=1e-12 * np.abs(X).max())
    for _ in range(5):  # nothing of the pattern is left
        A = rng.standard_normal((D, D))
        member = pattern.blocks(A + A.T)
        if pattern.W is not None:
            member = np.diag(np.repeat(rng.standard_normal(2), pattern.sizes)) * pattern.W
        assert abs(np.vdot(left, member)) <= 1e-7 * abs(np.vdot(np.abs(g), np.abs(member)))


@every_pattern
def test_a_singular_matrix_has_no_inverse(shape: str) -> None:
    assert Curvatures(B, PATTERNS[shape])(np.zeros((D, D))) is None
    assert Curvatures(np.zeros((D, D)), Pattern.full(D)).is_definite is False


@pytest.mark.slow
@pytest.mark.parametrize("conditioned", [False, True])
def test_large_blocks(conditioned: bool) -> None:
    """1 640 unknowns, none of which is listed."""
    d = 80
    make = Program.single if conditioned else Program.descent
    program = make(spectrum(d, 1e3), rand_k(d, 20), Pattern((40, 40)), floor=np.eye(d))
    outcome = get_solver("native").solve(program, Settings())
    assert (outcome.status, outcome.stats.extra_stats["gap"] <= 1e-6) == (Status.OPTIMAL, True)
    assert outcome.stats.num_iters is not None and outcome.stats.num_iters <= 20
