"""Every claim about n clients holds in exact arithmetic: mixed sketches, singular and zero matrices, any targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from properties.study import RIVAL_TOL, deadline, examples, note
from stepsize_opt import optimal_distributed_stepsize
from stepsize_opt.results import DistributedResult
from stepsize_validation.properties.judges import Clients, Refused, ask, judge_distributed
from stepsize_validation.properties.strategies import hard_sketches, hard_smoothness, singular_matrices, structures

# ε², Δ⁰ and Δ^inf within 10^±12 must be solved; beyond, a clear error will do.
MUST_SOLVE = 12.0


@st.composite
def targets(draw: st.DrawFn) -> list[float]:
    """The exponents of ε², Δ⁰ and Δ^inf: ordinary, extreme, or easy, so that D ⪯ L⁻¹ decides."""
    kind = draw(st.sampled_from(["ordinary", "ordinary", "easy", "extreme"]))
    if kind == "easy":
        return [sign * draw(st.floats(3.0, 8.0)) for sign in (1.0, -1.0, -1.0)]
    top = 60.0 if kind == "extreme" else 8.0
    return [draw(st.floats(-top, top)) for _ in range(3)]


@st.composite
def client_matrices(draw: st.DrawFn, d: int, n: int) -> list[Any]:
    """Matrices whose mean is positive definite."""
    first = draw(hard_smoothness(d, 1e4))
    if draw(st.integers(0, 4)) == 0:
        return [first] * n
    others = hard_smoothness(d, 1e4) | singular_matrices(d) | st.just(np.zeros((d, d)))
    return [first, *(draw(others) for _ in range(n - 1))]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Clients, bool]:
    """Clients, and whether they may be refused."""
    d, n = draw(st.integers(1, 5)), draw(st.integers(1, 8) | st.integers(20, 40))
    kinds = [draw(hard_sketches(d)) for _ in range(draw(st.integers(1, 3)))]
    matrices = draw(client_matrices(d, n))
    mean = None
    if draw(st.integers(0, 4)) == 0:
        mean = np.mean(matrices, axis=0) + 1e-3 * np.eye(d)
        matrices = draw(st.sampled_from([matrices, [np.zeros((d, d))] * n]))
    exponents = draw(targets())
    epsilon2, initial_gap, delta_inf = (float(10.0**x) for x in exponents)
    problem = Clients(
        tuple(matrices),
        tuple(kinds[i % len(kinds)] for i in range(n)),
        epsilon2,
        draw(st.sampled_from([initial_gap, initial_gap, initial_gap, 0.0])),
        draw(st.sampled_from([delta_inf, delta_inf, delta_inf, 0.0])),
        draw(st.sampled_from(["det-CGD1", "det-CGD2"])),
        draw(structures(d, 1e3)),
        mean,
        draw(st.none() | st.floats(0.0, 17.0).map(lambda exponent: int(10.0**exponent))),
    )
    return problem, max(map(abs, exponents)) > MUST_SOLVE


@given(problems())
@examples(40, share=0.1)
def test_clients(drawn: tuple[Clients, bool]) -> None:
    problem, may_refuse = drawn
    with deadline():
        try:
            result = ask(lambda: optimal_distributed_stepsize(**problem.arguments), may_refuse=may_refuse)
        except Refused:
            note("refused")
            return
        note(f"status {result.status}")
        judge_distributed(problem, result, rivals(problem, result))


def rivals(problem: Clients, result: DistributedResult) -> list[DistributedResult]:
    """The same problem to a smaller gap; for a given K only an answer with the same K is comparable."""
    try:
        rival = optimal_distributed_stepsize(**problem.arguments, tol=RIVAL_TOL)
    except (ValueError, RuntimeError):
        return []
    judge_distributed(problem, rival)
    return [rival] if problem.iterations is None or rival.K == result.K else []
