"""A two-layer network on the digits with an estimated L: what margin it needs, and what it saves.

    python network_margin.py [--rounds 40]

No smoothness matrix of a network is proved.  This one is measured along a short run (``estimate_smoothness``), so the
stepsize that follows is not certified, and the result says so.  All runs send the same number of numbers: dense SGD
with the best stepsize of a grid for ``--rounds`` rounds, rand-k with the best scalar stepsize of a grid, and rand-k
with the optimal D for L̂ times several factors, 1 being the margin of the held-out check.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call

from stepsize_opt import CompressedStep, Identity, RandK, Sketch, optimal_stepsize
from stepsize_opt.sketches import generators
from stepsize_opt.torch import estimate_smoothness

ROWS, HIDDEN, SEEDS = 600, 12, 3
FACTORS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
SCALARS = (0.03, 0.1, 0.3, 1.0, 3.0)


class Network:
    """Cross-entropy of a small network as a function of one vector of parameters, with its gradient."""

    def __init__(self) -> None:
        X, y = (part[:ROWS] for part in load_digits(return_X_y=True))
        pooled = X.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).reshape(len(X), 16) / 8.0 - 1.0
        self.inputs, self.targets = torch.tensor(pooled), torch.tensor(y)
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(16, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 10)).double()
        self.start = {name: p.detach().clone() for name, p in self.net.named_parameters()}
        self.d = sum(p.numel() for p in self.start.values())

    def named(self, x: Any) -> dict[str, torch.Tensor]:
        parts = torch.split(torch.as_tensor(x), [p.numel() for p in self.start.values()])
        return {name: part.view_as(p) for (name, p), part in zip(self.start.items(), parts, strict=True)}

    def loss(self, parameters: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(self.net, parameters, (self.inputs,)), self.targets)

    def value_and_gradient(self, x: Any) -> tuple[float, Any]:
        point = torch.tensor(x, requires_grad=True)
        value = self.loss(self.named(point))
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy()

    @property
    def x0(self) -> Any:
        return torch.cat([p.reshape(-1) for p in self.start.values()]).numpy()


def descend(network: Network, D: Any, sketch: Sketch, rounds: int, seed: int = 0) -> list[Any]:
    """The iterates of det-CGD1; stops when the loss is no longer finite or ten times the first."""
    step, rng, points = CompressedStep.of(D, sketch), generators(seed, 1)[0], [network.x0]
    first, _ = network.value_and_gradient(points[0])
    for _ in range(rounds):
        value, gradient = network.value_and_gradient(points[-1])
        if not value < 10.0 * first:
            break
        draw = step.draw(rng)
        points.append(points[-1] - step.decode(step.encode(gradient, draw), draw))
    return points


def last_loss(network: Network, D: Any, sketch: Sketch, rounds: int) -> tuple[float, int]:
    """The mean of the last losses over the seeds, infinite if a run diverged, and how many did."""
    losses = []
    for seed in range(SEEDS if not isinstance(sketch, Identity) else 1):
        points = descend(network, D, sketch, rounds, seed)
        losses.append(network.value_and_gradient(points[-1])[0] if len(points) > rounds else np.inf)
    return float(np.mean(losses)), int(np.sum(np.isinf(losses)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds of dense SGD; the others send as many numbers")
    given = parser.parse_args()
    torch.set_num_threads(1)
    network = Network()
    d = network.d
    k = d // 20
    sketch, rounds = RandK(d, k), given.rounds * d // k
    scout = [network.named(x) for x in descend(network, 0.5 * np.eye(d), Identity(d), 60)]
    estimate = estimate_smoothness(network.loss, scout[0::20], scout[10::20])
    print(estimate)
    result = optimal_stepsize(estimate, sketch, tol=1e-4)
    print(result)
    dense = {g: last_loss(network, g * np.eye(d), Identity(d), given.rounds)[0] for g in SCALARS}
    best = min(dense, key=lambda g: dense[g])
    print(f"dense SGD, γ = {best:g} of {SCALARS}: loss {dense[best]:.4f} after {given.rounds} rounds of {d} numbers")
    sparse = {g: last_loss(network, g * np.eye(d), sketch, rounds)[0] for g in SCALARS}
    best = min(sparse, key=lambda g: sparse[g])
    print(f"rand-{k}, γ = {best:g} of {SCALARS}: loss {sparse[best]:.4f} after {rounds} rounds of {k} numbers")
    for factor in FACTORS:
        # The best D for cL is D/c.
        loss, diverged = last_loss(network, result.D / factor, sketch, rounds)
        ends = f"{diverged} of {SEEDS} runs diverged" if diverged else f"loss {loss:.4f}"
        print(f"rand-{k}, optimal D for {factor:g} · L̂, certified=False: {ends}")


if __name__ == "__main__":
    main()
