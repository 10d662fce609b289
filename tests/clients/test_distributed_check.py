"""``certify_distributed`` against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.clients import TARGETS, problem_of, random_clients
from shared.exact import definiteness, rational
from shared.judges import Clients, DistributedPoint
from stepsize_opt import (
    BlockDiagonal,
    Direction,
    Identity,
    IndependentSampling,
    RandK,
    Sketch,
    certify_distributed,
    optimal_distributed_stepsize,
)
from stepsize_opt.goals import CLIENT_GOALS
from stepsize_opt.results import DistributedCheck
from stepsize_solvers.programs.maps import Matrix

BOTH = pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
GOALS = pytest.mark.parametrize("goal", CLIENT_GOALS)


def truth(problem: Clients, D: Matrix, K: int | None) -> list[bool | None]:
    """The four conditions in exact arithmetic, in the order of the check; None where they have no meaning."""
    point, n, d = DistributedPoint(problem, rational(D)), len(problem.matrices), len(D)
    epsilon2, initial_gap, delta_inf = map(Fraction, (problem.epsilon2, problem.initial_gap, problem.delta_inf))
    det = point.det
    alone = point.metric_det > 0 if problem.goal == "descent" else point.descends()
    if K is None:
        return [alone, None, None, None]
    if det == 0:  # not positive definite: there is no rate
        return [alone, point.variance_at_most(Fraction(n, K)), None, None]
    # λ ≤ a det^{1/d} is decided at both ends of an interval of relative width 10⁻¹² around the root.
    low, high = (Fraction(float(det) ** (1.0 / d) * (1.0 + e)) for e in (-1e-12, 1e-12))
    assert low**d < det < high**d
    factor = None if not delta_inf else n * epsilon2 / (4 * delta_inf)
    ends = {point.variance_at_most(factor * end) for end in (low, high)} if factor is not None else {True}
    enough = (K * epsilon2) ** d * det >= (12 * initial_gap) ** d
    return [alone, point.variance_at_most(Fraction(n, K)), ends.pop() if len(ends) == 1 else None, enough]


def judged(problem: Clients, D: Matrix, *, decided: bool = True, **options: Any) -> DistributedCheck:
    """A check of which every statement is true; decided: no condition that has a truth is left open."""
    check = certify_distributed(D, **problem.arguments, **options)
    point = DistributedPoint(problem, rational(D))
    tiny = Fraction(1, 10**30)
    assert point.variance_at_most(Fraction(check.lambda_D))
    assert check.lambda_below == 0.0 or not point.variance_at_most(Fraction(check.lambda_below) * (1 - tiny))
    det = point.det if problem.goal == "descent" else definiteness(rational(D)).det
    assert Fraction(check.rate) ** len(D) <= det or check.rate == 0.0
    assert math.isinf(check.rate_above) or Fraction(check.rate_above) ** len(D) >= det
    assert check.descent_rate == 0.0 or Fraction(check.descent_rate) ** len(D) <= point.metric_det
    for verdict, true in zip(check.conditions.values(), truth(problem, D, check.K), strict=True):
        assert verdict in (true, None) or true is None
        assert not decided or verdict is not None or true is None
    if check.best_multiple is not None and check.best_multiple_K is not None:
        assert all(truth(problem, np.array(check.best_multiple), check.best_multiple_K))
    return check


@BOTH
@GOALS
@pytest.mark.parametrize("scale", [1e-4, 1e-2, 0.3, 1.5, 5.0])
def test_every_verdict_is_true(algorithm: str, goal: str, scale: float) -> None:
    clients = random_clients(3, 3, 4)
    D = scale * np.linalg.inv(np.mean(clients, axis=0) + 0.1 * np.ones((3, 3)))
    laws: list[Sketch] = [RandK(3, 1), RandK(3, 2), IndependentSampling([0.5, 1.0, 0.2])]
    problem = problem_of(clients, laws, algorithm=algorithm, goal=goal)
    check = judged(problem, (D + D.T) / 2.0)
    assert check.lambda_D <= check.lambda_below * (1.0 + 1e-10)
    assert check.rate_above <= check.rate * (1.0 + 1e-10) or check.rate == 0.0


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.floats(-6.0, 1.0), st.integers(1, 10**6), st.booleans(), st.booleans())
def test_no_verdict_is_false_whatever_D_and_K(seed: int, power: float, K: int, second: bool, descent: bool) -> None:
    """Any symmetric D, definite or not, and any K."""
    rng = np.random.default_rng(seed)
    d, n = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    A = rng.standard_normal((d, d))
    D = 10.0**power * (A + A.T if seed % 3 == 0 else A @ A.T + 0.1 * np.eye(d))
    options = {"algorithm": "det-CGD2" if second else "det-CGD1", "goal": "descent" if descent else "paper"}
    clients = random_clients(d, n, seed)
    if seed % 2:
        whole = rng.integers(1, 9, d).astype(float)
        clients[0] = np.outer(whole, whole)  # singular and, with whole numbers, positive semidefinite as it stands
        clients.append(np.eye(d))
    judged(problem_of(clients, RandK(d, 1), iterations=K, **options), D, decided=False)


@BOTH
@GOALS
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", BlockDiagonal((1, 2))], ids=str)
def test_the_optimum_passes_and_a_little_more_does_not(algorithm: str, goal: str, structure: Any) -> None:
    problem = problem_of(random_clients(3, 4, 1), RandK(3, 1), algorithm=algorithm, goal=goal, structure=structure)
    best = optimal_distributed_stepsize(**problem.arguments)
    check = judged(problem, np.array(best.D), decided=False, solve=True)
    assert check.feasible and not check.infeasible and check.K == best.K
    assert check.optimum is not None and check.optimum.K == check.best_multiple_K == best.K
    # D was scaled down to a whole K, which costs at most 1/K.
    assert check.gap <= 1.0 / best.K + 1e-5 and check.gap_of_best_multiple <= 2e-6
    assert check.bound <= TARGETS["epsilon2"]
    more = judged(problem, 1.01 * np.array(best.D), solve=True)
    assert more.infeasible and math.isinf(more.gap) and more.best_multiple_K == best.K


@BOTH
def test_K_may_be_too_small_too_large_or_right(algorithm: str) -> None:
    clients = random_clients(2, 2, 7)

    def problem(K: int | None = None) -> Clients:
        return problem_of(clients, RandK(2, 1), algorithm=algorithm, iterations=K)

    best = optimal_distributed_stepsize(**problem().arguments)
    D = 0.5 * np.array(best.D)
    free = judged(problem(), D)
    assert free.feasible and free.K is not None and free.smallest_K <= free.K <= free.largest_K
    share, enough = list(free.conditions)[1], list(free.conditions)[3]
    fewer = judged(problem(free.smallest_K - 1), D)
    assert fewer.infeasible and fewer.conditions[enough] is False
    most = int(free.largest_K)
    assert judged(problem(most), D).feasible
    assert judged(problem(most + most // 1000 + 1), D).conditions[share] is False
    # For fewer iterations than any D needs there is no best multiple.
    few = judged(problem(best.K // 2), D, solve=True)
    assert few.best_multiple_K is None and few.optimum is not None and few.optimum.status == "infeasible"
    assert math.isinf(few.gap) and math.isinf(few.gap_of_best_multiple)


@BOTH
def test_without_variance_there_is_no_largest_K(algorithm: str) -> None:
    check = judged(problem_of(random_clients(2, 3, 0), Identity(2), algorithm=algorithm), 0.1 * np.eye(2))
    assert check.lambda_below == check.lambda_D == 0.0 and check.largest_K == math.inf and check.feasible


@BOTH
@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_units_do_not_matter(algorithm: str, unit: float) -> None:
    clients = random_clients(2, 3, 3)
    D = np.array([[0.02, 0.001], [0.001, 0.03]])
    plain = certify_distributed(D, clients, RandK(2, 1), **TARGETS, algorithm=algorithm)
    targets = {**TARGETS, "epsilon2": TARGETS["epsilon2"] * unit}
    other = certify_distributed(D / unit, [unit * L for L in clients], RandK(2, 1), **targets, algorithm=algorithm)
    assert other.conditions == plain.conditions
    assert other.K is not None and plain.K is not None and abs(other.K - plain.K) <= 1


def test_a_direction_is_compared_with_the_multiples_of_D() -> None:
    clients, W = random_clients(3, 2, 5), np.array([[2.0, 0.3, 0.0], [0.3, 1.0, 0.1], [0.0, 0.1, 3.0]])
    check = certify_distributed(1e-4 * W, clients, RandK(3, 1), **TARGETS, structure=Direction(W), solve=True)
    assert check.feasible and check.gap > 0.0 and check.gap_of_best_multiple <= 1e-6
    assert ("D ⪯ L⁻¹", "proved") == check._shown()[0] and "K of the optimum" in repr(check)


@pytest.mark.parametrize(
    ("size", "scale", "options", "message"),
    [
        (2, 1.0, {"structure": "diagonal"}, "structure='full'"),
        (2, 1.0, {"solve": True, "options": {"reduce": False}}, "unknown native option reduce"),
        (2, 1.0, {"goal": "none"}, "goal must be one of"),
        (2, 1.0, {"iterations": 0}, "iterations"),
        (2, 1e200, {}, "scale D towards it"),
        (3, 1.0, {}, "D is 3×3 but the clients' matrices are 2×2"),
    ],
)
def test_mistakes_are_named(size: int, scale: float, options: dict[str, Any], message: str) -> None:
    D = scale * (0.1 * np.eye(size) + 0.01)
    before = D.copy()
    with pytest.raises(ValueError, match=message):
        certify_distributed(D, random_clients(2, 2, 0), RandK(2, 1), **TARGETS, **options)
    assert np.array_equal(D, before) and D.flags.writeable


@pytest.mark.parametrize("d", [17, 20, 25])
@pytest.mark.parametrize("structure", ["diagonal", "scalar"])
def test_what_a_solve_proved_is_proved_again(d: int, structure: Any) -> None:
    """One arithmetic proved λ_D of the result, and the check asked the other alone, not always the finer one."""
    apart = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    clients = [(0.5 + 0.4 * i / 3) ** apart for i in range(3)]
    goal: dict[str, Any] = {"epsilon2": 1e-4, "initial_gap": 0.7, "delta_inf": 0.0, "structure": structure}
    result = optimal_distributed_stepsize(clients, RandK(d, 1), **goal)
    check = certify_distributed(result.D, clients, RandK(d, 1), iterations=result.K, **goal)
    assert result.certificate.feasible and check.feasible
