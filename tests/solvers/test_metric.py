"""The metric G = 2X − 𝒬(XBX) as objective, its log det and the largest t with G ⪰ tE: answers of the solvers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import eigvalsh

from shared.native_problems import all_maps, all_patterns, rand_k, spectrum
from stepsize_solvers import available_solvers, get_solver
from stepsize_solvers.interior.metric import MetricPoint
from stepsize_solvers.interior.starts import metric_start
from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.programs import (
    DiagonalPlusScaled,
    Family,
    Outcome,
    Pattern,
    PositiveMap,
    Program,
    Settings,
    Status,
)

OTHERS = ["cvxopt", *(solver.name for solver in available_solvers() if solver.available and solver.name != "native")]
Matrix = NDArray[np.float64]
NATIVE = get_solver("native")
D = 6
MAPS = all_maps(D)
B = spectrum(D, 1e3)
INVERSE = 0.5 * (np.linalg.inv(B) + np.linalg.inv(B).T)
PATTERNS = all_patterns(D)
every_map = pytest.mark.parametrize("name", MAPS)
every_pattern = pytest.mark.parametrize("shape", PATTERNS)


def metric_of(X: Matrix | None, Q: PositiveMap, B: Matrix = B) -> Matrix:
    assert X is not None
    G = 2.0 * X - Q.apply(X @ B @ X)
    return np.asarray(0.5 * (G + G.T))


def log_det(M: Matrix) -> float:
    sign, value = np.linalg.slogdet(M)
    assert sign > 0
    return float(value)


def solved(program: Program, tol: float = 1e-6) -> Outcome:
    outcome = NATIVE.solve(program, Settings(tol=tol))
    assert outcome.status is Status.OPTIMAL and outcome.X is not None
    assert program.pattern.contains(outcome.X)
    return outcome


@every_map
@every_pattern
def test_log_det_agrees_with_cvxpy_within_the_gaps(shape: str, name: str) -> None:
    Q, pattern, program = MAPS[name], PATTERNS[shape], Program.descent(B, MAPS[name], PATTERNS[shape])
    value = log_det(metric_of(solved(program, 1e-7).X, Q))
    other = get_solver("clarabel").solve(program, Settings(tol=1e-6))
    assert other.X is not None
    # The interval of the own method contains the optimum, so no point is above it, and cvxpy's is not far below.
    assert value - 1e-4 <= log_det(metric_of(pattern.nearest(other.X), Q)) <= value + 1e-7 * D
    # The bound of a point far from the optimum holds, too.
    left = Family(Q, B, a=2.0)
    X = metric_start(left, pattern, None)
    assert X is not None
    p = MetricPoint.of(left, pattern, 0.8 * X)
    assert p is not None
    assert p.bounds(p.loss).lower <= value <= p.bounds(p.loss).upper + 1e-9


@every_map
@every_pattern
def test_both_paths_to_the_largest_t_agree_with_cvxpy(shape: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Q, pattern = MAPS[name], PATTERNS[shape]

    def t_of(X: Matrix, floor: Matrix) -> float:
        return float(eigvalsh(metric_of(pattern.nearest(X), Q), floor)[0])

    for floor in (INVERSE, np.eye(D)):
        program, found = Program.descent(B, Q, pattern, floor=floor), []
        for unknowns in (1000, 0):
            monkeypatch.setattr(Sizes, "DENSE_UNKNOWNS", unknowns)
            found.append(t_of(solved(program).X, floor))
        assert found[0] == pytest.approx(found[1], rel=1e-6)
    conic = get_solver("clarabel").solve(Program.descent(B, Q, pattern, floor=INVERSE), Settings())
    t = t_of(solved(Program.descent(B, Q, pattern, floor=INVERSE)).X, INVERSE)
    assert conic.X is not None and len(conic.duals) == 1
    assert t * (1.0 - 1e-2) <= t_of(conic.X, INVERSE) <= t * (1.0 + 1e-6)


@pytest.mark.parametrize("solver", OTHERS)
def test_every_back_end_takes_the_metric(solver: str) -> None:
    Q, L = rand_k(4, 2), spectrum(4, 50.0)
    outcome = get_solver(solver).solve(Program.descent(L, Q), Settings())
    G = metric_of(outcome.X, Q, L)
    assert log_det(G) == pytest.approx(log_det(metric_of(solved(Program.descent(L, Q), 1e-9).X, Q, L)), abs=1e-4)
    product = outcome.duals[-1][0] @ G  # the multiplier is a multiple of G⁻¹
    np.testing.assert_allclose(product / product[0, 0], np.eye(4), atol=1e-2)


@pytest.mark.parametrize(
    ("L", "Q", "expected"),
    [
        (B, DiagonalPlusScaled.identity(D), INVERSE),
        (B, DiagonalPlusScaled(np.zeros(D), 4.0), INVERSE / 4.0),
        (np.array([[4.0]]), rand_k(1, 1), np.array([[0.25]])),
    ],
)
def test_closed_forms(L: Matrix, Q: PositiveMap, expected: Matrix) -> None:
    outcome = solved(Program.descent(L, Q))
    assert outcome.stats.num_iters == 0 and outcome.stats.extra_stats["closed_form"]
    np.testing.assert_allclose(outcome.X, expected, rtol=1e-9)


def test_without_compression_and_with_M_equal_to_L_one_step_contracts() -> None:
    Q = DiagonalPlusScaled.identity(D)
    found = solved(Program.descent(B, Q, floor=INVERSE)).X
    assert eigvalsh(metric_of(found, Q), INVERSE)[0] == pytest.approx(1.0, abs=1e-9)


def test_one_direction_needs_no_step() -> None:
    assert solved(Program.descent(B, rand_k(D, 2), PATTERNS["direction"])).stats.num_iters == 0


LARGE = {
    "directions": Pattern((30, 34), np.diag(np.linspace(1.0, 2.0, 64))),
    "diagonal": Pattern((1,) * 64),
    "blocks": Pattern((8,) * 8),
    "blocks with 1640 unknowns": Pattern((40, 40)),  # none of which is listed
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", LARGE)
@pytest.mark.parametrize("criterion", ["log det", "t"])
def test_patterns_of_larger_matrices(shape: str, criterion: str) -> None:
    pattern = LARGE[shape]
    d = pattern.d
    program = Program.descent(
        spectrum(d, 1e3), rand_k(d, d // 4), pattern, floor=np.eye(d) if criterion == "t" else None
    )
    outcome = solved(program)
    assert outcome.stats.extra_stats["gap"] <= 1e-6
    assert outcome.stats.num_iters is not None and outcome.stats.num_iters <= 20


@pytest.mark.parametrize(("d", "k"), [(40, 10), (60, 1), (60, 15), (60, 45), (60, 54)])
@pytest.mark.parametrize("criterion", ["log det", "t"])
def test_few_steps_and_iterations(d: int, k: int, criterion: str) -> None:
    """A preconditioner that is wrong where an inequality is tight takes hundreds of iterations at the end."""
    program = Program.descent(spectrum(d, 1e3), rand_k(d, k), floor=np.eye(d) if criterion == "t" else None)
    extra = solved(program).stats.extra_stats
    assert extra["gap"] <= 1e-6
    most = {"log det": (8, 40), "t": (15, 200)}[criterion]
    assert extra["steps"] <= most[0] and extra["cg_iterations"] <= most[1]
