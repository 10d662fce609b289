"""Methods: their formulas against the definition G = A S B, their names, and what they go with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.moments import listed, second_moment, variance
from stepsize_opt import Gaussian, LayerWise, Method, RandK, certify, optimal_stepsize
from stepsize_opt.methods import DetCGD1, DetCGD2, get_method, method_names
from stepsize_opt.problems import Quadratic
from stepsize_opt.sketches.draws import generators
from stepsize_validation import run
from stepsize_validation.data import random_quadratic, random_smoothness
from stepsize_validation.properties.strategies import LISTABLE, problems, seeds

METHODS = (DetCGD1(), DetCGD2())


@given(problems(max_d=4, kinds=LISTABLE), seeds, st.sampled_from(METHODS))
def test_formulas_are_what_the_update_says(problem: Any, seed: int, method: Method) -> None:
    """E[G] = D, T(D) = E[GᵀLG] and V(D) = E[(G − D)ᵀL(G − D)] by enumeration, and T(D) = 𝒬(DBD) with the pair."""
    L, sketch = problem
    weights, outcomes = listed(sketch)
    D = random_smoothness(np.random.default_rng(seed), sketch.d, 10.0)
    factors = method.factors(D, lambda: L)
    left, right = (np.eye(sketch.d) if M is None else M for M in (factors.left, factors.right))
    G = left @ outcomes @ right

    def mean(matrices: Any) -> Any:
        return np.tensordot(weights, matrices, axes=1)

    size = np.abs(D @ L @ D).max() * np.abs(sketch.map.magnitude(np.ones_like(D))).max() * sketch.d**2
    close = {"rtol": 0.0, "atol": 1e-9 * size}  # weights and outcomes average to I within 1e-9
    T = second_moment(method, D, L, sketch)
    condition = method.condition(sketch.map)
    np.testing.assert_allclose(mean(G), D, atol=1e-8 * np.abs(D).max())
    np.testing.assert_allclose(T, mean(G.transpose(0, 2, 1) @ L @ G), **close)
    np.testing.assert_allclose(variance(method, D, L, sketch), mean((G - D).transpose(0, 2, 1) @ L @ (G - D)), **close)
    np.testing.assert_allclose(condition.outer.apply(D @ condition.inner.apply(L) @ D), T, **close)


def test_names_are_read_in_any_case_and_results_carry_them_as_written_here() -> None:
    L, sketch = np.diag([1.0, 4.0, 9.0]), RandK(3, 1)
    for method in METHODS:
        assert get_method(method.name.upper()) == get_method(method.name.lower()) == method
        assert get_method(method) is method
        assert method.name in method_names() and str(method) == method.name
        assert method.update.startswith("x⁺ = x − ")
    for algorithm in ("DET-cgd2", DetCGD2()):
        result = optimal_stepsize(L, sketch, algorithm=algorithm)
        assert result.algorithm == "det-CGD2"
        assert certify(result.D, L, sketch, algorithm=algorithm, dual=result.dual).feasible
        f = Quadratic(L, np.zeros(3))
        assert run(f, result.D, sketch, algorithm=algorithm, iterations=3, start=np.ones(3)).algorithm == "det-CGD2"


def test_a_name_belongs_to_one_class() -> None:
    with pytest.raises(TypeError, match="DET-CGD1"):
        type("Other", (Method,), {"name": "DET-CGD1"})
    assert get_method("det-CGD1") == DetCGD1()


MESSAGES = [RandK(6, 1), RandK(6, 3), LayerWise([RandK(2, 1), RandK(4, 2)]), LayerWise([RandK(2, 1), Gaussian(4, 2)])]


@pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
@pytest.mark.parametrize("sketch", MESSAGES, ids=str)
def test_rounds_of_messages_are_the_run_of_one_node(sketch: Any, algorithm: str) -> None:
    """Three clients that share their draws, message by message, longer than a chunk of the runner's draws."""
    f = random_quadratic(np.linspace(0.5, 2.0, 6), np.random.default_rng(0))
    shifts = np.array([-1.0, 0.0, 1.0])[:, None] * np.arange(6.0)  # ∇fᵢ − ∇f, with mean 0
    result = optimal_stepsize(f.H, sketch, algorithm=algorithm)
    step, rng, x = result.compressor(), generators(5, 1)[0], np.zeros(6)
    sent = 0
    for _ in range(270):
        draw = step.draw(rng)
        numbers = step.encode(f.gradient(x[None]) + shifts, draw)
        x = x - step.decode(numbers.mean(axis=0), draw)
        sent += draw.size
    record = run(f, result.D, sketch, algorithm=algorithm, iterations=270, seeds=1, seed=5)
    np.testing.assert_allclose(x, record.final_points[0], rtol=1e-12)
    assert sent == record.sent.sum()
