"""The exact checker is itself checked: true answers pass, and every answer with one changed number is found out."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from properties.study import deadline, rivals
from shared.tampered import tampered
from stepsize_opt import (
    BlockDiagonal,
    Direction,
    Gaussian,
    IndependentSampling,
    RandK,
    optimal_distributed_stepsize,
    optimal_stepsize,
)
from stepsize_opt.goals import GOAL_NAMES, METRIC_GOALS
from stepsize_opt.large.stepsizes import BlockStepsize
from stepsize_opt.results import StepsizeResult
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import combine, definiteness, is_positive_semidefinite, rational
from stepsize_validation.properties.judges import Clients, Node, Refused, ask, has_structure, judge, judge_distributed

L = random_smoothness(np.random.default_rng(0), 3, 100.0)


def answer(**changes: Any) -> tuple[Node, StepsizeResult]:
    """A problem with its answer."""
    M = L if changes.get("goal", "").endswith("linear") else None
    node = Node(**{"L": L, "sketch": RandK(3, 1), "strong_convexity": M, **changes})
    return node, optimal_stepsize(**node.arguments)


def with_stepsize(result: StepsizeResult, factor: float) -> StepsizeResult:
    """The same claims about a multiple of D."""
    D = result.stepsize
    assert isinstance(D, BlockStepsize)
    return tampered(result, stepsize=BlockStepsize(D.indices, [factor * part for part in D.parts]))


def with_certificate(result: StepsizeResult, **changes: Any) -> StepsizeResult:
    return tampered(result, certificate=tampered(result.certificate, **changes))


@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", BlockDiagonal((1, 2)), Direction(L)], ids=str)
@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
def test_true_answers_pass(structure: Any, algorithm: str) -> None:
    node, result = answer(structure=structure, algorithm=algorithm)
    judge(node, result, rivals(node, result))


@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar"])
@pytest.mark.parametrize("sketch", [RandK(3, 1), Gaussian(3, 2), IndependentSampling([1.0, 0.3, 0.5])], ids=str)
def test_an_infeasible_stepsize(structure: str, sketch: Any) -> None:
    node, result = answer(structure=structure, sketch=sketch)
    with pytest.raises(AssertionError, match="violates its condition"):
        judge(node, with_stepsize(result, 1.0 + 1e-5))


def test_a_stepsize_that_is_not_finite_or_lacks_the_structure() -> None:
    node, result = answer()
    with pytest.raises(AssertionError, match="not finite"):
        judge(node, with_stepsize(result, np.inf))
    with pytest.raises(AssertionError, match="structure diagonal"):
        judge(replace(node, structure="diagonal"), result)


@pytest.mark.parametrize("goal", GOAL_NAMES)
@pytest.mark.parametrize(
    ("field", "move", "words"),
    [
        ("log_det", 1e-6, "log_det .* is too large"),
        ("log_det", -1.0, "not tight"),
        ("upper_bound", -1e-4, "upper bound .* is below"),
        ("upper_bound", np.nan, "not a number"),
        ("upper_bound", 1.0, "optimal with a gap"),
        ("feasible", -1, "not claimed to be feasible"),
    ],
)
def test_a_false_certificate(goal: str, field: str, move: float, words: str) -> None:
    node, result = answer(goal=goal)
    judge(node, result, rivals(node, result))
    with pytest.raises(AssertionError, match=words):
        judge(node, with_certificate(result, **{field: getattr(result.certificate, field) + move}))


@pytest.mark.parametrize("goal", GOAL_NAMES)
def test_false_numbers_beside_the_certificate(goal: str) -> None:
    node, result = answer(goal=goal)
    false = {"descent_log_det": result.descent_log_det + 1.0}
    if goal in METRIC_GOALS:
        false["satisfies_condition"] = True
    for name, value in false.items():
        with pytest.raises(AssertionError, match=name):
            judge(node, tampered(result, **{name: value}))


@pytest.mark.parametrize(
    ("structure", "algorithm", "words"),
    [("full", "det-CGD2", "−log det T"), ("scalar", "det-CGD1", "feasible γW")],
)
def test_a_bound_below_a_known_optimum(structure: str, algorithm: str, words: str) -> None:
    node, result = answer(structure=structure, algorithm=algorithm)
    small = with_stepsize(result, 0.5)
    value = result.log_det + 3 * np.log(0.5) - 1e-9
    false = with_certificate(small, log_det=value, upper_bound=result.log_det - 1e-6)
    with pytest.raises(AssertionError, match=words):
        judge(node, tampered(false, descent_log_det=-np.inf))


def test_a_bound_below_a_rival() -> None:
    """A poor D with a bound just above it: a finer solve of the same goal shows that the bound is false."""
    node, result = answer(goal="descent")
    D = 0.5 * np.array(result.D)
    value = float(np.linalg.slogdet(2 * D - 3 * np.diag(np.diag(D @ L @ D)))[1])
    poor = with_certificate(with_stepsize(result, 0.5), log_det=value - 1e-9, upper_bound=value + 1e-6)
    poor = tampered(poor, descent_log_det=value - 1e-9)
    judge(node, poor)
    with pytest.raises(AssertionError, match="value of a feasible"):
        judge(node, poor, rivals(node, result))


def test_false_answers_for_clients() -> None:
    rng = np.random.default_rng(1)
    matrices = tuple(random_smoothness(rng, 3, 10.0) for _ in range(3))
    problem = Clients(matrices, (RandK(3, 1), RandK(3, 2), RandK(3, 1)), 0.1, 1.0, 1.0)
    result = optimal_distributed_stepsize(**problem.arguments)
    judge_distributed(problem, result, [result])
    certificate, lower = result.certificate, result.certificate.log_det
    for words, changed in (
        ("K = .* is below 12Δ", replace(result, K=result.K // 2)),
        ("λ_D ≤ n/K is false", replace(result, K=10 * result.K)),
        ("rate .* is above", replace(result, rate=result.rate * 1.0001)),
        ("lambda_D = .* is below", replace(result, lambda_D=result.lambda_D * 0.9999)),
        ("smallest_K = .* is above", replace(result, smallest_K=result.K + 1)),
        (
            "upper bound .* is below",
            replace(result, certificate=replace(certificate, log_det=lower - 1e-3, upper_bound=lower - 1e-3)),
        ),
        ("D L D ⪯ D is false", replace(result, D=result.D * 1e6)),
    ):
        with pytest.raises(AssertionError, match=words):
            judge_distributed(problem, changed)
    with pytest.raises(AssertionError, match="infeasible is claimed"):
        judge_distributed(replace(problem, iterations=2 * result.K), replace(result, status="infeasible"))


def test_the_mean_of_the_clients_is_exact() -> None:
    """L is the rational mean: three times 0.1 is not 0.3."""
    problem = Clients((np.array([[0.1]]),) * 3, (RandK(1, 1),) * 3, 1.0, 1.0, 1.0)
    assert problem.smoothness() == [[Fraction(0.1)]]
    assert np.mean([0.1] * 3) != 0.1


def test_a_direction_keeps_its_shape() -> None:
    W = np.diag([1.0, 2.0, 3.0])
    assert has_structure(0.1 * W, Direction(W)) and not has_structure(np.eye(3), Direction(W))
    assert has_structure(np.eye(3) @ np.diag([1.0, 4.0, 6.0]), Direction(W, (1, 2)))


def test_singular_matrices_are_semidefinite_and_a_step_below_is_not() -> None:
    A = rational(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]]))
    assert definiteness(A).det == 0 and is_positive_semidefinite(A)
    assert not is_positive_semidefinite(combine((1, A), (-Fraction(1, 2**200), rational(np.eye(3)))))
    # A has the eigenvalues 0, 0 and 14.
    assert definiteness(combine((1, A), (Fraction(1, 7), rational(np.eye(3))))).det == Fraction(99, 7) / 49


def test_long_denominators() -> None:
    """Both ways of deciding agree where numbers are rounded first."""
    third = Fraction(1, 3**1500)
    A = rational(np.ones((2, 2)))
    assert is_positive_semidefinite(combine((1, A), (third, A)))
    assert not is_positive_semidefinite([[A[0][0], A[0][1] + third], [A[1][0] + third, A[1][1]]])
    assert is_positive_semidefinite([[A[0][0] + third, A[0][1]], [A[1][0], A[1][1]]])


def test_valid_problems_must_not_be_refused() -> None:
    def refuse() -> None:
        msg = "L is too large"
        raise ValueError(msg)

    with pytest.raises(Refused, match="too large"):
        ask(refuse, may_refuse=True)
    with pytest.raises(AssertionError, match="refused"):
        ask(refuse, may_refuse=False)


def test_a_problem_that_hangs_is_ended() -> None:
    with pytest.raises(TimeoutError, match="no answer"), deadline(1):
        while True:
            pass


def test_a_problem_reads_back_from_its_text() -> None:
    node = Node(
        L, IndependentSampling([0.1, 0.5, 1.0]), structure=Direction(L, (3,)), goal="linear", strong_convexity=L
    )
    assert repr(Node.read(node.plain())) == repr(node)
