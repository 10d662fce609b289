"""Shared seeds: n clients are one node."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clients import random_clients
from stepsize_opt import RandK, compare_distributed, optimal_distributed_stepsize, optimal_stepsize
from stepsize_opt.goals import CLIENT_GOALS
from stepsize_opt.results import DistributedResult
from stepsize_validation.properties.exact import (
    combine,
    condition_slack,
    definiteness,
    descent_metric,
    is_positive_semidefinite,
    rational,
)
from stepsize_validation.properties.strategies import seeds, sketches

TARGETS: dict[str, Any] = {"epsilon2": 0.1, "initial_gap": 1.0, "delta_inf": 0.5}


@settings(max_examples=25, deadline=None)
@given(
    st.data(),
    st.sampled_from(["det-CGD1", "det-CGD2"]),
    st.sampled_from(CLIENT_GOALS),
    st.sampled_from(["full", "diagonal", "scalar"]),
    seeds,
)
def test_what_is_claimed_is_exact(data: st.DataObject, algorithm: str, goal: Any, structure: Any, seed: int) -> None:
    """For the exact mean L: the condition (or H ≻ 0), the rates, and K ≥ 2Δ⁰/(rate ε²)."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 4))
    sketch = data.draw(sketches(d, "RandK", "BernQ", "IndependentSampling"))
    clients = random_clients(d, 3, seed)
    options: dict[str, Any] = {"algorithm": algorithm, "structure": structure, "goal": goal}
    result = optimal_distributed_stepsize(clients, sketch, seeds="shared", **options, **TARGETS)
    assert result.status == "optimal" and result.lambda_D == result.neighbourhood == 0.0
    D, L = rational(np.array(result.D)), combine(*[(Fraction(1, 3), rational(M)) for M in clients])
    if goal == "paper":
        assert is_positive_semidefinite(condition_slack(D, L, sketch, algorithm))
        assert Fraction(result.rate) ** d <= definiteness(D).det
    assert Fraction(result.descent_rate) ** d <= definiteness(descent_metric(D, L, sketch, algorithm)).det
    for K, rate in ((result.K, result.rate), (result.iterations(), result.descent_rate)):
        assert K * Fraction(rate) * Fraction(0.1) >= 2
    assert result.smallest_K <= result.K <= result.smallest_K + 1
    # The same as one node, and fewer rounds than independent seeds are proved to need.
    node = optimal_stepsize(np.mean(clients, axis=0), sketch, **options)
    assert result.iterations() == pytest.approx(node.iterations(0.1, 1.0), abs=1)
    independent = optimal_distributed_stepsize(clients, sketch, **{**options, "goal": "paper"}, **TARGETS)
    assert result.iterations() <= independent.iterations()


def test_a_given_mean_is_that_of_the_node() -> None:
    L = random_clients(4, 1, 0)[0]
    result = optimal_distributed_stepsize([L], RandK(4, 2), mean_smoothness=2.0 * L, seeds="shared", **TARGETS)
    np.testing.assert_allclose(result.D, optimal_stepsize(2.0 * L, RandK(4, 2)).D, rtol=1e-4)


@pytest.mark.parametrize(("K", "status"), [(1, "infeasible"), (41, "optimal"), (1000, "optimal")])
def test_a_given_number_of_rounds(K: int, status: str) -> None:
    result = optimal_distributed_stepsize(random_clients(5, 3, 0), RandK(5, 1), seeds="shared", iterations=K, **TARGETS)
    assert result.status == status and result.K == max(K, 41)
    assert ("too small under the condition" in result.message) == (status == "infeasible")


@pytest.mark.parametrize("seeds", ["shared", "independent"])
def test_options_are_those_of_the_solver(seeds: Any) -> None:
    with pytest.raises(ValueError, match="unknown native option reduce"):
        solve(seeds=seeds, options={"reduce": False})


def solve(**arguments: Any) -> DistributedResult:
    return optimal_distributed_stepsize(random_clients(5, 3, 0), RandK(5, 1), **TARGETS, **arguments)


def test_a_result_for_independent_seeds_tells(tmp_path: Path) -> None:
    clients = random_clients(5, 3, 0)
    result = optimal_distributed_stepsize(clients, RandK(5, 1), **TARGETS)
    assert result.seeds == "independent"
    assert "usually far fewer rounds, if all clients draw the same sketch" in str(result)
    shared = optimal_distributed_stepsize(clients, RandK(5, 1), seeds="shared", **TARGETS)
    assert "no λ_D, no Δ^inf" in str(shared) and shared.K == 41
    assert shared.floats_per_client == (41.0, 41.0, 41.0)
    # Different laws cannot be shared.
    mixed = optimal_distributed_stepsize(clients, [RandK(5, 1), RandK(5, 2), RandK(5, 2)], **TARGETS)
    assert "shared seeds" not in str(mixed)


def test_a_comparison_shows_shared_seeds_first() -> None:
    clients = random_clients(4, 3, 1)
    seen: list[tuple[int, int, str]] = []
    table = compare_distributed(clients, RandK(4, 1), on_progress=lambda *now: seen.append(now), **TARGETS)
    assert [(done, total) for done, total, _ in seen] == [(i, len(table.rows)) for i in range(len(table.rows) + 1)]
    solved = [name.partition(",")[0] for _, _, name in seen[:-1]]
    assert sorted(solved) == sorted(row.method for row in table.rows)
    assert [row.seeds for row in table.rows[:3]] == ["shared", "shared", "independent"]
    assert [row.rounds for row in table.rows] == sorted(row.rounds for row in table.rows)
    by = {(row.method, row.stepsize): row.rounds for row in table.rows if row.seeds == "independent"}
    for method in ("D-det-CGD1", "D-det-CGD2"):
        assert by[method, "full"] <= by[method, "diagonal"]
    assert table.to_records()[0]["seeds"] == "shared"
    assert "D-det-CGD2" in repr(table)
    mixed = compare_distributed(clients, [RandK(4, 1), RandK(4, 2), RandK(4, 2)], **TARGETS)
    assert all(row.seeds == "independent" for row in mixed.rows)
