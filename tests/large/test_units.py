"""An L that is never formed, in any units: the answer of ordinary units, scaled, or a ValueError with the reason."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    Direction,
    Gaussian,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    Sketch,
    compression_limit,
    optimal_method,
    optimal_stepsize,
    plan,
)
from stepsize_solvers.programs import Vector

pytestmark = pytest.mark.filterwarnings("error")

D = 8
RNG = np.random.default_rng(3)
U = RNG.standard_normal((D, 2))
OWN = RNG.uniform(0.3, 2.0, D)
POWERS = (-498, -250, 200, 498)  # of four: L is about 1e-300, 1e-150, 1e120 and 1e300
SKETCH = IndependentSampling(np.linspace(0.3, 0.9, D))


def matrix(kind: str, n: int) -> LowRankPlusDiagonal:
    """4ⁿL, exactly, with a diagonal that is one number or not, or a sparse factor."""
    factor: Any = sparse.csr_array(np.abs(U) * (U > -0.5)) if kind == "sparse" else U
    own = np.full(D, 0.5) if kind == "constant diagonal" else OWN
    return LowRankPlusDiagonal(factor * math.ldexp(1.0, n), np.ldexp(own, 2 * n))


STEPSIZES: dict[str, tuple[str, Sketch, dict[str, Any]]] = {
    "full": ("dense", RandK(D, 3), {"algorithm": "det-CGD2"}),
    "descent": ("dense", RandK(D, 3), {"algorithm": "det-CGD2", **GOALS["descent"]}),
    "diagonal": ("dense", SKETCH, {"structure": "diagonal"}),
    "scalar": ("dense", SKETCH, {"structure": "scalar"}),
    "multiples of a vector": ("dense", SKETCH, {"structure": lambda n: Direction(np.ldexp(1.0 / OWN, -2 * n))}),
    "full, gaussian": ("dense", Gaussian(D, 3), {"algorithm": "det-CGD2"}),
    "diagonal, sparse": ("sparse", SKETCH, {"structure": "diagonal"}),
    "scalar, sparse": ("sparse", SKETCH, {"structure": "scalar"}),
    "euclidean": ("dense", SKETCH, {"structure": "diagonal", **GOALS["euclidean"]}),
    "linear": ("dense", SKETCH, {"structure": "diagonal", **arguments_of("linear", 0.25)}),
}


def in_units(call: dict[str, Any], n: int) -> dict[str, Any]:
    """The arguments that go with 4ⁿL."""
    out = dict(call)
    if callable(out.get("structure")):
        out["structure"] = out["structure"](n)
    if "strong_convexity" in out:
        out["strong_convexity"] = math.ldexp(out["strong_convexity"], 2 * n)
    return out


def logarithms(x: float | Vector, n: int) -> Any:
    """log 4ⁿx."""
    return np.log(x) + 2.0 * n * math.log(2.0)


@pytest.mark.parametrize("name", STEPSIZES)
def test_stepsizes_scale_with_the_units(name: str) -> None:
    kind, sketch, call = STEPSIZES[name]
    one = optimal_stepsize(matrix(kind, 0), sketch, **in_units(call, 0))
    for n in POWERS:
        found = optimal_stepsize(matrix(kind, n), sketch, **in_units(call, n))
        unit = 0 if "strong_convexity" in call else n  # t of D ⪰ tM⁻¹ has no unit if M has that of L
        assert found.status == one.status
        assert found.gap == pytest.approx(one.gap, abs=1e-9)
        assert found.efficiency == pytest.approx(one.efficiency, rel=1e-9, nan_ok=True)
        assert logarithms(found.rate, unit) == pytest.approx(math.log(one.rate), abs=1e-9)
        assert found.descent_log_det + 2.0 * n * D * math.log(2.0) == pytest.approx(one.descent_log_det, abs=1e-8)
        np.testing.assert_allclose(logarithms(found.D.diagonal(), n), np.log(one.D.diagonal()), atol=1e-7)


@pytest.mark.parametrize(("kind", "goal"), [("dense", "descent"), ("constant diagonal", "euclidean")])
def test_limits_and_methods_scale_with_the_units(kind: str, goal: str) -> None:
    gradient = np.linspace(-1.0, 1.0, D)
    one, method = compression_limit(matrix(kind, 0), 3, goal=goal), optimal_method(matrix(kind, 0), 3, goal=goal)
    draw = method.draw(np.random.default_rng(0))
    sent = method.encode(gradient, draw)
    for n in POWERS:
        limit = compression_limit(matrix(kind, n), 3, goal=goal)
        assert logarithms(np.array([limit.value, limit.upper]), n) == pytest.approx(np.log([one.value, one.upper]))
        np.testing.assert_allclose(logarithms(limit.D.diagonal(), n), np.log(one.D.diagonal()), atol=1e-9)
        np.testing.assert_allclose(limit.probabilities, one.probabilities, rtol=1e-9)
        found = optimal_method(matrix(kind, n), 3, goal=goal)
        assert (found.efficiency, found.defect) == pytest.approx((method.efficiency, method.defect), abs=1e-9)
        # A is 2⁻ⁿ times that of L: what is sent is 2ⁿ times as large for a gradient that is 4ⁿ times as large.
        np.testing.assert_allclose(np.ldexp(found.encode(gradient, draw), n), sent, rtol=1e-9)
        np.testing.assert_allclose(np.ldexp(found.decode(np.ldexp(sent, -n), draw), 2 * n), method.decode(sent, draw))


@pytest.mark.parametrize("n", POWERS)
def test_a_plan_has_the_same_rounds_in_all_units(n: int) -> None:
    """f and 4ⁿf have the same rounds for ε² in the units of ‖∇f‖², 16ⁿ, and Δ⁰ in those of f."""
    plans = [
        plan(matrix("dense", m), 4, epsilon2=1e-3, initial_gap=math.ldexp(1.0, -2 * m), goal="euclidean")
        for m in (0, n)
    ]
    rounds = [[row.rounds for row in one.rows] for one in plans]
    assert rounds[0] == rounds[1]


def test_the_numbers_given_are_kept() -> None:
    L = matrix("dense", 498)
    assert np.array_equal(optimal_stepsize(L, RandK(D, 3), algorithm="det-CGD2").D.U, L.U)
    assert np.array_equal(optimal_method(L, 3).directions.U, L.U)


@pytest.mark.parametrize(
    ("L", "k", "reason"),
    [
        (LowRankPlusDiagonal(U, 2.0**-160), 1, r"sizes differ by 2\^16\d"),
        (LowRankPlusDiagonal(1e200 * U, 1e300), 1, r"sizes differ by 2\^3\d\d"),
        (LowRankPlusDiagonal(0.0 * U, np.geomspace(1e-30, 1e30, D)), 1, r"sizes differ by 2\^199"),
        (LowRankPlusDiagonal(1e153 * U, 1.7e308), 1, "outside the range of float64"),
        (LowRankPlusDiagonal(1e-160 * U, 1e-310), D, "outside the range of float64"),
    ],
)
def test_what_float64_does_not_hold_is_refused_with_the_reason(L: LowRankPlusDiagonal, k: int, reason: str) -> None:
    calls = [
        lambda: optimal_stepsize(L, RandK(D, k), algorithm="det-CGD2"),
        lambda: optimal_stepsize(L, RandK(D, k), structure="diagonal"),
        lambda: compression_limit(L, k, goal="euclidean"),
        lambda: compression_limit(L, k),
        lambda: optimal_method(L, k),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=reason):
            call()
