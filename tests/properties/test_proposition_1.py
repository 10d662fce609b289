"""Proposition 1 and feasibility, by the functions of ``stepsize_validation.properties``; each can fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.study import examples
from stepsize_opt import RandK, optimal_distributed_stepsize, optimal_stepsize
from stepsize_opt.methods import DetCGD1
from stepsize_validation.properties import claims
from stepsize_validation.properties.checks import Check, checks, run_check
from stepsize_validation.properties.claims import Mixture
from stepsize_validation.properties.exact import combine
from stepsize_validation.properties.judges import Clients, Node

CHECKS = checks()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.claim)
def test_the_claim_holds(check: Check) -> None:
    @given(check.problems)
    @examples(25, share=0.02)
    def holds(problem: Any) -> None:
        check.holds(problem)

    holds()


HALF = Fraction(1, 2)
NODE = Node(np.array([[2.0, 1.0], [1.0, 3.0]]), RandK(2, 1))
ONE = Node(np.eye(1), RandK(1, 1))
CLIENTS = Clients((NODE.L, np.eye(2)), (RandK(2, 1),) * 2, epsilon2=1.0, initial_gap=1.0, delta_inf=0.1)


class Concave(DetCGD1):
    """T(D) = −E[SDLDS], which is not convex."""

    name = "concave"

    def moment(self, D: Any, L: Any, law: Any) -> Any:
        return -1 * law(D @ L @ D)


class TwoPieces(DetCGD1):
    """T(D) = 3DLD − DLDLD, for which T(D) ≤ D holds below 0.38 and above 2.62 where L = 1."""

    name = "two pieces"

    def moment(self, D: Any, L: Any, law: Any) -> Any:
        return type(D)(combine((3, (D @ L @ D).rows), (-1, (D @ L @ D @ L @ D).rows)))


def test_a_condition_with_two_pieces_is_found_not_convex() -> None:
    mixture = Mixture(replace(ONE, algorithm=TwoPieces()), np.array([[0.3]]), np.array([[3.0]]), HALF)
    with pytest.raises(AssertionError, match="violates"):
        claims.feasible_set_is_convex(mixture)


def test_stepsizes_outside_the_condition_are_refused() -> None:
    with pytest.raises(ValueError, match="A and B"):
        claims.feasible_set_is_convex(Mixture(ONE, np.array([[0.5]]), np.array([[2.0]]), HALF))


def test_a_moment_that_is_concave_is_found() -> None:
    mixture = Mixture(replace(NODE, algorithm=Concave()), np.eye(2), 2.0 * np.eye(2), HALF)
    with pytest.raises(AssertionError, match="is false"):
        claims.moment_is_matrix_convex(mixture)


def test_a_determinant_below_the_geometric_mean_is_found() -> None:
    """Between two indefinite matrices, to which the claim does not apply, the determinant is smaller."""
    mixture = Mixture(NODE, np.diag([2.0, 0.5]), np.diag([0.5, 2.0]), HALF)
    claims.log_det_is_concave(mixture)
    with pytest.raises(AssertionError, match="concave"):
        claims.log_det_is_concave(replace(mixture, share=Fraction(2)))


class Scaled:
    """A result whose D is a multiple of the optimal one."""

    def __init__(self, solve: Callable[..., Any], factor: float, **arguments: Any) -> None:
        self.result = solve(**arguments)
        self.D = factor * self.result.D

    def __getattr__(self, name: str) -> Any:
        return getattr(self.result, name)


def scaled_answers(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Let the checks see an optimal D that is too large or too small."""
    for solve in (optimal_stepsize, optimal_distributed_stepsize):
        monkeypatch.setattr(claims, solve.__name__, partial(Scaled, solve, factor))


def test_a_stepsize_that_is_too_large_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    claims.returned_is_feasible(NODE)
    scaled_answers(monkeypatch, 1.001)
    with pytest.raises(AssertionError, match="exact arithmetic"):
        claims.returned_is_feasible(NODE)


def test_a_stepsize_that_is_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    claims.enlarged_violates(NODE)
    scaled_answers(monkeypatch, 0.98)
    with pytest.raises(AssertionError, match="enlarged"):
        claims.enlarged_violates(NODE)


def test_a_stepsize_of_clients_that_is_too_large_or_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    claims.clients_are_feasible(CLIENTS)
    claims.enlarged_clients_violate(CLIENTS)
    with monkeypatch.context() as patch, pytest.raises(AssertionError, match="λ_D"):
        scaled_answers(patch, 1.01)
        claims.clients_are_feasible(CLIENTS)
    with monkeypatch.context() as patch, pytest.raises(AssertionError, match="enlarged"):
        scaled_answers(patch, 0.97)
        claims.enlarged_clients_violate(CLIENTS)


def test_a_failure_has_the_smallest_example() -> None:
    def holds(value: int) -> None:
        claims.claim(value < 17, f"{value} is not below 17")

    checked = run_check(Check("small", "numbers", st.integers(0, 1000), holds), 200, 0)
    assert "17 is not below 17; smallest example: 17" in checked.failure
    assert run_check(Check("small", "numbers", st.integers(0, 16), holds), 200, 0).failure == ""
