"""One process of a group: runs every case over gloo and writes what came out.

python worker.py RANK PROCESSES FOLDER

The methods and problems at the head are those that the numpy runner solves, too.
"""

from __future__ import annotations

import gc
import math
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    CompressedStep,
    Feedback,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.problems import Federated, SoftmaxRegression
from stepsize_opt.torch import CompressedSGD, FeedbackSGD, compress, estimate_smoothness
from stepsize_validation.data import random_quadratic

ITERATIONS, SEED = 60, 3
# Near the minimum f decides by its last digits, which depend on the order of a sum.
FEEDBACK_ROUNDS = 24
SKETCHED: dict[str, Callable[[Any], Any]] = {
    "rand-4": lambda L: optimal_stepsize(L, RandK(18, 4)),
    "rand-1": lambda L: optimal_stepsize(L, RandK(18, 1)),
    "independent": lambda L: optimal_stepsize(L, IndependentSampling(np.linspace(0.05, 0.4, 18))),
    "layers of coins": lambda L: optimal_stepsize(L, BernQ([0.5, 0.3], [6, 12])),
    "det-CGD2": lambda L: optimal_stepsize(L, RandK(18, 4), algorithm="det-CGD2"),
    "det-CGD2, gaussian": lambda L: optimal_stepsize(L, Gaussian(18, 4), algorithm="det-CGD2"),
}
METHODS: dict[str, Callable[[Any], Any]] = {
    **SKETCHED,
    "subspace": lambda L: optimal_method(L, 4),
    "momentum, linear": lambda L: optimal_method(L, 4, momentum=True, goal="linear", strong_convexity=0.1),
    "momentum, convex": lambda L: optimal_method(L, 4, momentum=True, goal="convex"),
}
FEEDBACK: dict[str, dict[str, Any]] = {
    "feedback, shared": {"places": "shared"},
    "feedback, own": {"places": "own"},
    "feedback, measured": {"places": "shared", "rule": "measured"},
}
LAYERS: list[tuple[tuple[int, ...], Sketch]] = [
    ((3, 2), RandK(6, 2)),
    ((4,), IndependentSampling(np.full(4, 0.3))),
    ((1,), Identity(1)),
]


def softmax_problem(n: int) -> Federated:
    rng = np.random.default_rng(0)
    return Federated(
        tuple(SoftmaxRegression(rng.standard_normal((40, 6)) + i, rng.integers(0, 3, 40), 3, 0.1) for i in range(n))
    )


def layered_problem(n: int) -> tuple[Federated, LayerWise, list[Any]]:
    """The clients, the sketch, and the blocks of D, one for each parameter."""
    rng, sketches = np.random.default_rng(1), [sketch for _, sketch in LAYERS]
    f = Federated(tuple(random_quadratic(np.geomspace(0.1, 2.0, 11), rng) for _ in range(n)))
    sizes, sketch = [one.d for one in sketches], LayerWise(sketches)
    D = np.asarray(optimal_stepsize(f.smoothness(), sketch, structure=BlockDiagonal(sizes)).D)
    return f, sketch, [D[a:b, a:b] for a, b in pairwise(np.cumsum([0, *sizes]))]


class Distance(nn.Module):
    """½(x − x*)ᵀH(x − x*) of parameters that are several tensors."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        for i, (shape, _) in enumerate(LAYERS):
            # A matrix is stored column by column: draws and steps go by its entries, not by its memory.
            start = torch.zeros(shape[::-1], dtype=torch.float64)
            self.register_parameter(f"layer{i}", nn.Parameter(start.permute(*range(start.ndim)[::-1])))
        self.H, self.minimiser = torch.tensor(objective.H), torch.tensor(objective.minimiser)

    def forward(self) -> torch.Tensor:
        away = torch.cat([p.reshape(-1) for p in self.parameters()]) - self.minimiser
        return 0.5 * away @ self.H @ away


class Head(nn.Module):
    """Cross-entropy of a linear head, whose ridge is left to the optimizer."""

    def __init__(self, objective: Any, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.linear = nn.Linear(objective.A.shape[1], objective.classes, bias=False, dtype=dtype)
        nn.init.zeros_(self.linear.weight)
        self.A, self.labels = torch.tensor(objective.A, dtype=dtype), torch.tensor(objective.labels)

    def forward(self) -> torch.Tensor:
        return nn.functional.cross_entropy(self.linear(self.A), self.labels)


def parameters(model: nn.Module) -> Any:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


def train(closure: Any, optimizer: Any, steps: int = ITERATIONS) -> None:
    for _ in range(steps):
        optimizer.step(closure)
    optimizer.eval()


def runner_cases(rank: int, n: int) -> dict[str, Any]:
    """Whatever the numpy runner has: sketches, the subspace method, momentum, feedback."""
    f, out = softmax_problem(n), {}
    L = f.smoothness()
    for name, made in METHODS.items():
        compressor = made(L)
        for dtype in (torch.float64, torch.float32):
            model = Head(f.clients[rank], dtype)
            optimizer = CompressedSGD(model.parameters(), compressor, seed=SEED, weight_decay=f.clients[0].reg)
            key = name if dtype == torch.float64 else f"{name}, float32"
            train(model, optimizer)
            out[key], out[f"{key}, bytes"] = parameters(model), optimizer.bytes_sent
    for name, options in FEEDBACK.items():
        model = Head(f.clients[rank])
        feedback = Feedback(L, 4, clients=n, **options)
        optimizer = FeedbackSGD(model.parameters(), feedback, weight_decay=f.clients[0].reg)
        train(model, optimizer, FEEDBACK_ROUNDS)
        out[name], out[f"{name}, bytes"] = parameters(model), optimizer.bytes_sent
        out[f"{name}, traffic"] = np.array(optimizer.traffic())
        out[f"{name}, received"], out[f"{name}, bound"] = optimizer.bytes_received, optimizer.bound
    return out


def layered_case(rank: int, n: int, folder: Path) -> dict[str, Any]:
    """Groups with compressors of their own, saved in the middle and resumed; the model is wrapped and compiled."""
    f, _, blocks = layered_problem(n)

    def training() -> tuple[nn.Module, Any, Any]:
        model = Distance(f.clients[rank])
        steps = [CompressedStep.of(D, sketch) for D, (_, sketch) in zip(blocks, LAYERS, strict=True)]
        groups = [{"params": [p], "compressor": c} for p, c in zip(model.parameters(), steps, strict=True)]
        return model, DistributedDataParallel(model), CompressedSGD(groups, seed=SEED)

    def go(model: nn.Module, optimizer: Any, steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            with model.no_sync():
                model().backward()
            optimizer.step()

    model, wrapped, optimizer = training()
    go(wrapped, optimizer, ITERATIONS // 2)
    file = folder / f"state-{rank}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    go(wrapped, optimizer, ITERATIONS // 2)
    again, wrapped, resumed = training()
    saved = torch.load(file, weights_only=True)
    again.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    go(wrapped, resumed, ITERATIONS // 2)
    return {"layers": parameters(model), "layers, resumed": parameters(again), "layers, bytes": optimizer.bytes_sent}


def compress_case(rank: int, folder: Path) -> dict[str, Any]:
    """``compress`` from a start that only the first process has, saved in the middle and resumed."""
    generator = torch.Generator().manual_seed(rank)
    inputs, labels = torch.randn(60, 6, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    loss = nn.CrossEntropyLoss()
    torch.manual_seed(rank)
    model = nn.Linear(6, 3)
    optimizer = compress(model, loss, (inputs, labels), floats_per_step=6, verbose=False)

    def go() -> Any:
        for step in range(15):
            torch.manual_seed(step)
            optimizer.step(lambda: loss(model(inputs), labels))
        return parameters(model)

    go()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / f"net-{rank}.pt")
    out = {"network": go()}
    saved = torch.load(folder / f"net-{rank}.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    setup = optimizer.setup_bytes if rank else 0  # the first process sends its start as well
    return {**out, "network, resumed": go(), "network, setup": setup}


def unlike(optimizer: FeedbackSGD) -> float:
    """How far s is from the mean of what the processes remember, relative to s."""
    mean = optimizer.workers.mean(optimizer._memory.clone())
    return float((mean - optimizer._s).norm() / optimizer._s.norm().clamp(min=1e-300))


def failure_cases(rank: int, n: int, folder: Path) -> dict[str, Any]:
    """A process whose loss or gradient is not finite, the state of another process, and DDP that averages."""
    out: dict[str, Any] = {}
    f = softmax_problem(n)
    for places in ("shared", "own"):
        model = Head(f.clients[rank])
        feedback = Feedback(f.smoothness(), 4, clients=n, places=places)
        optimizer = FeedbackSGD(model.parameters(), feedback, weight_decay=f.clients[0].reg)

        def closure(model: nn.Module = model, optimizer: Any = optimizer) -> torch.Tensor:
            loss = model()
            bad = {3: loss * math.nan, 4: loss + math.inf, 8: (loss - loss.detach()) * 1e308 * 1e308 + loss.detach()}
            return bad.get(optimizer.rounds, loss) if rank == n - 1 else loss

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            train(closure, optimizer, 40)
        out[f"failures, {places}"] = parameters(model)
        out[f"failures, {places}, counts"] = np.array([optimizer.skipped, len(seen)])
        out[f"failures, {places}, unlike"] = unlike(optimizer)
        torch.save(optimizer.state_dict(), folder / f"state-{rank}.pt")
        dist.barrier()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer.load_state_dict(torch.load(folder / "state-0.pt", weights_only=True))
        out[f"state of the first, {places}, unlike"] = unlike(optimizer)
        out[f"state of the first, {places}, warned"] = len(seen)
        train(model, optimizer, 40)
        out[f"state of the first, {places}"] = parameters(model)
        dist.barrier()
    return out | averages(f, rank)


def averages(f: Any, rank: int) -> dict[str, Any]:
    """Whether DDP outside of no_sync is refused, which changes nothing, and taken inside of it."""
    model: Any = DistributedDataParallel(Head(f.clients[rank]))
    optimizer = CompressedSGD(model.parameters(), optimal_method(f.smoothness(), 4), model=model)
    start, refused = parameters(model), False
    try:
        optimizer.step(model)
    except RuntimeError as error:
        refused = "no_sync" in str(error) and np.array_equal(start, parameters(model))
    with model.no_sync():
        model().backward()
    optimizer.step()
    return {"averages are refused": refused and not np.array_equal(start, parameters(model))}


def estimate_case(rank: int, n: int) -> dict[str, Any]:
    """The estimate of processes with data of their own, and that of all data."""
    generators = [torch.Generator().manual_seed(i) for i in range(n)]
    parts = [(torch.randn(20, 3, generator=one), torch.randint(0, 2, (20,), generator=one)) for one in generators]
    everything = tuple(torch.cat(part) for part in zip(*parts, strict=True))
    out = {}
    for name, data in {"estimate, own": parts[rank], "estimate, all": everything}.items():
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        estimate = estimate_smoothness(model, nn.CrossEntropyLoss(), (data[0].double(), data[1]), rank=3)
        out[name] = np.asarray(estimate.matrix @ np.eye(8))
    return out


def refusals(rank: int) -> dict[str, Any]:
    """What the processes do not agree on is refused on all of them."""
    x = nn.Parameter(torch.zeros(18))
    problem = softmax_problem(2)
    method = optimal_method(problem.smoothness(), 4)
    try:
        CompressedSGD([x], method, seed=rank)
    except ValueError as error:
        return {"refused": "different arguments (seed" in str(error)}
    return {"refused": False}


def main(rank: int, n: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{n}", rank=rank, world_size=n)
    out = {
        **runner_cases(rank, n),
        **layered_case(rank, n, folder),
        **compress_case(rank, folder),
        **failure_cases(rank, n, folder),
        **estimate_case(rank, n),
        **refusals(rank),
    }
    everywhere: list[Any] = [None] * n
    own = {name: value for name, value in out.items() if not name.endswith(("setup", "bytes", "received"))}
    dist.all_gather_object(everywhere, own)
    if rank == 0:
        out["equal"] = all(np.array_equal(one[name], out[name]) for one in everywhere for name in one)
    gc.collect()  # a model under DDP holds itself and the group
    dist.destroy_process_group()
    out["threads"] = len(list(Path("/proc/self/task").iterdir()))
    np.savez(folder / f"out-{rank}.npz", **out)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
