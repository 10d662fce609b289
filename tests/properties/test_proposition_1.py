"""Proposition 1 and feasibility, by the functions of ``stepsize_validation.properties``; each can fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.study import examples
from shared.sketch_examples import EXAMPLES
from stepsize_opt import RandK, Sketch, optimal_distributed_stepsize, optimal_stepsize
from stepsize_opt.methods import DetCGD1
from stepsize_opt.sketches.base import DiagonalBase
from stepsize_solvers.programs import Matrix, PositiveMap, hadamard
from stepsize_validation.properties import check_sketch, claims
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


@pytest.mark.parametrize(
    ("holds", "factor", "words"),
    [(claims.returned_is_feasible, 1.001, "exact arithmetic"), (claims.enlarged_violates, 0.98, "enlarged")],
)
def test_a_stepsize_of_another_size_is_found(
    holds: Callable[[Node], None], factor: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds(NODE)
    scaled_answers(monkeypatch, factor)
    with pytest.raises(AssertionError, match=words):
        holds(NODE)


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


# ----------------------------------------------------------------
# ``check_sketch`` accepts every sketch of the library and finds what a wrong sketch of one's own has wrong


@pytest.mark.parametrize("sketch", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_sketches_of_the_library_are_what_they_say(sketch: Sketch) -> None:
    assert all(not checked.failure and checked.examples > 0 for checked in check_sketch(sketch, samples=1000))


@dataclass(frozen=True, eq=False, repr=False)
class Coins(DiagonalBase):
    """Each coordinate is sent with probability ½, times ``factor``; the moments claim ``moment`` on the diagonal."""

    factor: float = 2.0
    moment: float = 2.0
    floats: float = 0.5
    listed: bool = True

    @property
    def text(self) -> str:
        return "coins (own)"

    @property
    def expected_nonzeros(self) -> float:
        return self.floats * self.d

    def _map(self) -> PositiveMap:
        return hadamard(np.where(np.eye(self.d) > 0.0, self.moment, 1.0))

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self.factor * (rng.random((size, self.d)) < 0.5)

    def support(self) -> Any:
        if not self.listed:
            return super().support()
        sent = (np.arange(2**self.d)[:, None] >> np.arange(self.d)) & 1
        return np.full(2**self.d, 0.5**self.d), self.factor * sent


def test_a_right_sketch_of_one_s_own() -> None:
    check_sketch(Coins(3))
    check_sketch(Coins(3, listed=False))


WRONG = {
    "mean": (Coins(2, factor=1.0), r"E\[S\] = I: E\[S\] has the entry 0.5 at \(0, 0\)"),
    "mean, sampled": (Coins(2, factor=1.0, listed=False), r"E\[S\] at \(0, 0\) is 0\.[45]"),
    "moments": (Coins(2, moment=3.0), "for M = e0 e0ᵀ the outcomes give"),
    "moments, sampled": (Coins(2, moment=3.0, listed=False), r"E\[SMS\] at \(0, 0\)"),
    "positivity": (Coins(2, moment=0.5), "has the eigenvalue"),
    "floats": (Coins(4, floats=0.9), "the mean of the floats sent is"),
}


@pytest.mark.parametrize(("sketch", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named(sketch: Sketch, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sketch(sketch)


def test_a_draw_that_decodes_to_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = RandK.draw
    monkeypatch.setattr(RandK, "draw", lambda self, rng: draw(self, np.random.default_rng(0)))
    with pytest.raises(AssertionError, match="but S x ="):
        check_sketch(RandK(4, 2))


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("adjoint", lambda self, Z: np.tril(Z), "adjoint"),
        ("sample", lambda self, rng: np.triu(np.ones((3, 3))), "positive semidefinite"),  # not symmetric
    ],
)
def test_a_wrong_method_is_found(name: str, wrong: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandK, name, wrong)
    with pytest.raises(AssertionError, match=words):
        check_sketch(RandK(3, 1))


def test_check_sketch_needs_no_hypothesis() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from stepsize_opt import RandK\n"
        "from stepsize_validation.properties import check_sketch\n"
        "check_sketch(RandK(3, 1))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
