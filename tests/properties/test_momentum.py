"""Momentum at random states of random regressions: Ψ falls as the theorem says, by enumeration of the draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.study import examples
from shared.goals import arguments_of
from shared.momentum import rounds_of
from stepsize_opt import Sketch, optimal_method, optimal_stepsize
from stepsize_opt.goals import MOMENTUM_GOALS
from stepsize_opt.methods import Compressor, State
from stepsize_opt.problems import LogisticRegression
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.properties.strategies import DIAGONAL, seeds, sketches
from stepsize_validation.runs.record import MomentumRun

# Differences of values of f and of squared norms are rounded.
ROUNDING = 1e-10


@st.composite
def objectives(draw: st.DrawFn) -> LogisticRegression:
    """A ridge regression on a few random rows, from well to badly conditioned."""
    rng = np.random.default_rng(draw(seeds))
    d = draw(st.integers(1, 5))
    A = rng.standard_normal((draw(st.integers(1, 12)), d)) * 10.0 ** rng.uniform(-1.0, 1.5, d)
    labels = np.where(rng.random(len(A)) < 0.5, -1.0, 1.0)
    return LogisticRegression(A, labels, 10.0 ** draw(st.floats(-4.0, 0.0)), penalty="ridge")


def mean_after(record: MomentumRun, f: LogisticRegression, state: State, w: Vector) -> tuple[float, float]:
    """E Ψ after the round, by enumeration, and the largest of its terms."""
    rounds = record.rounds
    gradient, least = f.gradient(rounds.point(state)), f.value(w[None])
    weights, outcomes = rounds.sketch.support()
    after = []
    for s in outcomes:

        def compress(V: Matrix, B: Any, s: Vector = s) -> Matrix:
            return s * (V[:, 0] if B is None else V[:, 0] @ B.T)

        new = rounds.moved(state, *rounds.steps(gradient[:, None], compress))
        after.append(float(record.potential(new, f.value(new.x) - least, w)[0]))
    return float(weights @ after / weights.sum()), float(np.abs(after).max())


def check_state(rounds: Compressor, f: LogisticRegression, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, z, w = rng.standard_normal((3, 1, f.d)) * 10.0 ** rng.uniform(-2.0, 2.0, (3, 1, 1))
    state = State(x, z, int(rng.integers(0, 50)))
    record = MomentumRun(rounds, x[0], state)
    before = float(record.potential(state, f.value(x) - f.value(w), w[0])[0])
    after, size = mean_after(record, f, state, w[0])
    allowed = record.kept(1) * before
    assert after <= allowed + ROUNDING * (abs(allowed) + size + abs(float(f.value(w)[0])))


@pytest.mark.parametrize("goal", MOMENTUM_GOALS)
@given(f=objectives(), kind=st.sampled_from(["subspace", "det-CGD1", "det-CGD2"]), data=st.data())
@examples(120, share=0.5)
def test_every_state(goal: str, f: LogisticRegression, kind: str, data: st.DataObject) -> None:
    asked: dict[str, Any] = {**arguments_of(goal, f.reg), "momentum": True}
    L = f.smoothness()
    if kind == "subspace":
        result: Any = optimal_method(L, data.draw(st.floats(0.05, 1.0)) * f.d, **asked)
    else:
        sketch: Sketch = data.draw(sketches(f.d, *DIAGONAL))
        result = optimal_stepsize(L, sketch, algorithm=kind, **asked)
    check_state(rounds_of(result), f, data.draw(seeds))
