"""Shared seeds: n clients are one node, and a result for independent seeds says what they would need."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clients import random_clients
from shared.exact import (
    combine,
    condition_slack,
    definiteness,
    descent_metric,
    is_positive_semidefinite,
    rational,
)
from shared.strategies import seeds, sketches
from stepsize_opt import compare_distributed, optimal_stepsize
from stepsize_opt.clients.api import optimal_distributed_stepsize
from stepsize_opt.clients.reductions import read_clients
from stepsize_opt.clients.result import DistributedResult
from stepsize_opt.sketches import Identity, RandK
from stepsize_validation.cli.root import main

TARGETS: dict[str, Any] = {"epsilon2": 0.1, "initial_gap": 1.0, "delta_inf": 0.5}
BOTH = pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])


@settings(max_examples=25, deadline=None)
@given(
    st.data(),
    st.sampled_from(["det-CGD1", "det-CGD2"]),
    st.sampled_from(["condition", "descent"]),
    st.sampled_from(["full", "diagonal", "scalar"]),
    seeds,
)
def test_what_is_claimed_is_exact(
    data: st.DataObject, algorithm: str, guarantee: Any, structure: Any, seed: int
) -> None:
    """For the exact mean L: the condition (or H ≻ 0), the rates, and K ≥ 2Δ⁰/(rate ε²)."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 4))
    sketch = data.draw(sketches(d, "RandK", "BernQ", "IndependentSampling"))
    clients = random_clients(d, 3, seed)
    options: dict[str, Any] = {"algorithm": algorithm, "structure": structure, "guarantee": guarantee}
    result = optimal_distributed_stepsize(clients, sketch, seeds="shared", **options, **TARGETS)
    assert result.status == "optimal" and result.lambda_D == result.neighbourhood == 0.0
    D, L = rational(np.array(result.D)), combine(*[(Fraction(1, 3), rational(M)) for M in clients])
    if guarantee == "condition":
        assert is_positive_semidefinite(condition_slack(D, L, sketch, algorithm))
        assert Fraction(result.rate) ** d <= definiteness(D).det
    assert Fraction(result.descent_rate) ** d <= definiteness(descent_metric(D, L, sketch, algorithm)).det
    for K, rate in ((result.K, result.rate), (result.iterations, result.descent_rate)):
        assert K * Fraction(rate) * Fraction(0.1) >= 2
    assert result.certificate.smallest_K <= result.K <= result.certificate.smallest_K + 1
    # The same as one node, and fewer rounds than independent seeds are proved to need.
    node = optimal_stepsize(np.mean(clients, axis=0), sketch, **options)
    assert result.iterations == pytest.approx(node.iterations(0.1, 1.0), abs=1)
    independent = optimal_distributed_stepsize(clients, sketch, **options, **TARGETS)
    if independent.K > 1:
        assert independent.shared_seeds_K == result.iterations
    assert result.iterations <= independent.iterations


def test_one_client_is_one_node() -> None:
    L = random_clients(4, 1, 0)[0]
    result = optimal_distributed_stepsize([L], RandK(4, 2), seeds="shared", **TARGETS)
    np.testing.assert_allclose(result.D, optimal_stepsize(L, RandK(4, 2)).D, rtol=1e-4)
    assert np.array_equal(read_clients([L], RandK(4, 2), None).smoothness, L)
    assert np.array_equal(read_clients([L, L], RandK(4, 2), 2.0 * L).smoothness, 2.0 * L)


@pytest.mark.parametrize(("K", "status"), [(1, "infeasible"), (41, "optimal"), (1000, "optimal")])
def test_a_given_number_of_rounds(K: int, status: str) -> None:
    result = optimal_distributed_stepsize(random_clients(5, 3, 0), RandK(5, 1), seeds="shared", iterations=K, **TARGETS)
    assert result.status == status and result.K == max(K, 41)
    assert ("too small under the condition" in result.message) == (status == "infeasible")


@pytest.mark.parametrize("seeds", ["shared", "independent"])
@pytest.mark.parametrize("option", [{"criterion": "convex"}, {"criterion": "linear", "lower": 0.1}, {"reduce": False}])
def test_arguments_of_one_node_are_refused(seeds: Any, option: dict[str, Any]) -> None:
    """With shared seeds they reached the solver of one node, whose rate was then taken for det(D)^{1/d}."""
    with pytest.raises(ValueError, match=f"optimal_distributed_stepsize takes no {', '.join(option)}"):
        optimal_distributed_stepsize(random_clients(3, 2, 0), RandK(3, 1), seeds=seeds, **option, **TARGETS)


def test_a_result_for_independent_seeds_tells(tmp_path: Path) -> None:
    clients = random_clients(5, 3, 0)
    result = optimal_distributed_stepsize(clients, RandK(5, 1), **TARGETS)
    assert result.seeds == "independent" and result.shared_seeds_K == 41
    assert "41 rounds, if all clients draw the same sketch (seeds: shared)" in str(result)
    assert result.summary()["shared_seeds_K"] == 41
    assert DistributedResult.load(result.save(tmp_path / "one")).shared_seeds_K == 41
    shared = optimal_distributed_stepsize(clients, RandK(5, 1), seeds="shared", **TARGETS)
    assert "no λ_D, no Δ^inf" in str(shared) and shared.K == 41
    assert shared.numbers_per_client == (41.0, 41.0, 41.0)
    assert DistributedResult.load(shared.save(tmp_path / "two")).seeds == "shared"
    # Different laws cannot be shared, and one round needs no advice.
    mixed = optimal_distributed_stepsize(clients, [RandK(5, 1), RandK(5, 2), RandK(5, 2)], **TARGETS)
    assert mixed.shared_seeds_K is None and "shared seeds" not in str(mixed)
    assert optimal_distributed_stepsize(clients, Identity(5), **{**TARGETS, "epsilon2": 1e9}).shared_seeds_K is None


def test_errors_name_the_argument() -> None:
    clients = random_clients(3, 2, 0)
    with pytest.raises(ValueError, match="seeds must be one of 'independent', 'shared', got 'same'"):
        optimal_distributed_stepsize(clients, RandK(3, 1), seeds="same", **TARGETS)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seeds='shared' takes one sketch for all clients"):
        optimal_distributed_stepsize(clients, [RandK(3, 1), RandK(3, 2)], seeds="shared", **TARGETS)
    with pytest.raises(ValueError, match="tight=True is for Theorem 3"):
        optimal_distributed_stepsize(clients, RandK(3, 1), seeds="shared", tight=True, **TARGETS)


@pytest.mark.slow
def test_shared_seeds_stand_first_in_the_comparison() -> None:
    clients = random_clients(4, 3, 1)
    table = compare_distributed(clients, RandK(4, 1), tight=True, **TARGETS)
    assert [row.seeds for row in table.rows[:3]] == ["shared", "shared", "independent"]
    assert table.best.seeds == "shared"
    by = {(row.method, row.stepsize, row.guarantee): row.K for row in table.rows if row.seeds == "independent"}
    for method in ("D-det-CGD1", "D-det-CGD2"):
        assert by[method, "full", "descent"] < by[method, "full", "condition"] <= by[method, "diagonal", "condition"]
    assert table.to_records()[0]["seeds"] == "shared" and "shared" in str(table)
    mixed = compare_distributed(clients, [RandK(4, 1), RandK(4, 2), RandK(4, 2)], **TARGETS)
    assert all(row.seeds == "independent" for row in mixed.rows)


@BOTH
def test_the_command(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    command = ["solve-distributed", "--data", "breast_cancer", "--clients", "3", "--sketch", "randk:2", "--json"]
    answers = []
    for seeds_, guarantee in (("independent", "condition"), ("independent", "descent"), ("shared", "descent")):
        assert main([*command, "--algorithm", algorithm, "--seeds", seeds_, "--guarantee", guarantee]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert [(a["seeds"], a["guarantee"]) for a in answers[1:]] == [("independent", "descent"), ("shared", "descent")]
    assert answers[2]["K"] < answers[1]["K"] < answers[0]["K"]
    assert answers[1]["shared_seeds_K"] == answers[2]["K"]
    assert math.isclose(answers[2]["lambda_D"], 0.0)
