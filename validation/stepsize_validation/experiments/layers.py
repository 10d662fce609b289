"""Experiment (d): layers, Bern-q against rand-k at equal bits, and no compression ("compression for free")."""

from __future__ import annotations

import math

import numpy as np

from stepsize_opt import BernQ, Identity, LayerWise, RandK, Sketch
from stepsize_opt.inputs.structures import Direction
from stepsize_opt.node import optimal_stepsize
from stepsize_opt.problems import find_infimum
from stepsize_validation.data import Dataset, layered_logistic
from stepsize_validation.experiments.spec import CURVES, Choice, Experiment, Panel, Plan


def panel(data: Dataset, plan: Plan, parameter: int = 0) -> Panel:
    """Return a layer-separable objective with methods that send the plan's fraction of the floats.

    Rand-k takes kᵢ = ⌈fraction·dᵢ⌉ of each layer; Bern-q takes the one q that sends as much on average.
    """
    layers = min(plan.layers, data.d)
    objective = layered_logistic(data, plan.reg, layers)
    L, sizes = objective.smoothness(), objective.sizes
    k = [max(1, math.ceil(plan.fraction * size)) for size in sizes]
    rand: Sketch = LayerWise([RandK(size, one) for size, one in zip(sizes, k, strict=True)])
    bern, whole = BernQ(sum(k) / sum(sizes), sizes), Identity(data.d)
    diagonal = Direction(np.diag(1.0 / np.diagonal(L)), sizes)
    choices = (
        Choice.of("no compression", optimal_stepsize(L, whole, algorithm="det-CGD2"), whole),
        Choice.of("det-CGD2, Bern-q", optimal_stepsize(L, bern, algorithm="det-CGD2"), bern),
        Choice.of("det-CGD2, rand-k", optimal_stepsize(L, rand, algorithm="det-CGD2"), rand),
        Choice.of("det-CGD1, rand-k, γᵢ diag⁻¹(Lᵢ)", optimal_stepsize(L, rand, structure=diagonal), rand),
        Choice.of("det-CGD1, rand-k, optimal", optimal_stepsize(L, rand), rand, ours=True),
        Choice.of("det-CGD1, rand-k, optimal, descent", optimal_stepsize(L, rand, goal="descent"), rand, ours=True),
    )
    variant = f"{layers} layers, q = {sum(k) / sum(sizes):.3g}"
    return Panel(variant, objective, choices, find_infimum(objective), plan.epsilon2)


EXPERIMENT = Experiment(
    name="d",
    title="(d) Layers: Bern-q against rand-k at equal bits",
    settings=("reg", "epsilon2", "layers", "fraction"),
    panel=panel,
    figures=CURVES,
    iterations=1000,
    quick_iterations=400,
    # Only choices with the same compression compete.
    comparable=lambda run: "rand-k" in run.method,
)
