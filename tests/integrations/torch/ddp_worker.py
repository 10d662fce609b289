"""One process of a group: runs every case with DDP over gloo; process 0 writes what came out.

python ddp_worker.py RANK PROCESSES FOLDER
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shared.trained import ITERATIONS, LAYERED, SEED, SHAPES, SOFTMAX, layered_problem, softmax_problem
from stepsize_opt import CompressedStep, LayerWise, optimal_method, optimal_stepsize
from stepsize_opt.torch import MatrixSGD, SketchState, certified_cast, sketch_hook


class Distance(nn.Module):
    """½(x − x*)ᵀH(x − x*) of parameters that are several tensors."""

    def __init__(self, objective: Any) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            # A matrix is stored column by column: draws and steps go by its entries, not by its memory.
            start = torch.zeros(shape[::-1], dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(start.permute(*range(start.ndim)[::-1])))
        self.H, self.minimiser = torch.tensor(objective.H), torch.tensor(objective.minimiser)

    def forward(self) -> torch.Tensor:
        away = torch.cat([p.reshape(-1) for p in self.parameters()]) - self.minimiser
        return 0.5 * away @ self.H @ away


class Head(nn.Module):
    """Cross-entropy of a linear head with a ridge."""

    def __init__(self, objective: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(objective.A.shape[1], objective.classes, bias=False, dtype=dtype)
        nn.init.zeros_(self.linear.weight)
        self.A, self.labels = torch.tensor(objective.A, dtype=dtype), torch.tensor(objective.labels)
        self.reg = objective.reg

    def forward(self) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.linear(self.A), self.labels)
        return loss + 0.5 * self.reg * self.linear.weight.square().sum()


class Training:
    """A wrapped model with its hook and its optimizer."""

    def __init__(self, model: nn.Module, compressors: dict[str, Any], D: Any) -> None:
        self.model, self.state = model, SketchState(model, compressors, seed=SEED)
        # Buckets so small that every parameter has one of its own once DDP has rebuilt them.
        self.ddp = DistributedDataParallel(model, bucket_cap_mb=1e-5)
        self.ddp.register_comm_hook(self.state, sketch_hook)
        self.optimizer = MatrixSGD(model.parameters(), D)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.ddp().backward()
            self.optimizer.step()

    @property
    def x(self) -> Any:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()]).numpy()

    def saved(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "hook": self.state}
        return {name: part.state_dict() for name, part in parts.items()}

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.state.load_state_dict(saved["hook"])


def softmax_cases(rank: int, n: int) -> dict[str, Any]:
    f, out = softmax_problem(n), {}
    L = f.smoothness()
    for name, (sketch, algorithm) in SOFTMAX.items():
        D = optimal_stepsize(L, sketch, algorithm=algorithm).D
        inside = algorithm != "det-CGD1"
        compressor = CompressedStep.of(D, sketch, algorithm) if inside else sketch
        training = Training(Head(f.clients[rank], torch.float64), {"linear.weight": compressor}, 1.0 if inside else D)
        training.train(ITERATIONS)
        out[name], out[f"{name}, bytes"] = training.x, training.state.bytes_sent
        if algorithm == "det-CGD1":
            small = certified_cast(D, L, sketch)
            training = Training(Head(f.clients[rank], torch.float32), {"linear.weight": sketch}, small)
            training.train(ITERATIONS)
            out[f"{name}, float32"], out[f"{name}, float32 bytes"] = training.x, training.state.bytes_sent
    best = optimal_method(L, 4)
    training = Training(Head(f.clients[rank], torch.float64), {"linear.weight": best}, 1.0)
    training.train(ITERATIONS)
    out["subspace"], out["subspace, bytes"] = training.x, training.state.bytes_sent
    return out


def layered_case(rank: int, n: int, folder: Path) -> dict[str, Any]:
    f = layered_problem(n)
    D = optimal_stepsize(f.smoothness(), LayerWise(list(LAYERED.values()))).D
    whole = Training(Distance(f.clients[rank]), LAYERED, D)
    whole.train(ITERATIONS // 2)
    file = folder / f"state-{rank}.pt"
    torch.save(whole.saved(), file)
    whole.train(ITERATIONS // 2)
    resumed = Training(Distance(f.clients[rank]), LAYERED, D)
    resumed.load(torch.load(file, weights_only=True))
    resumed.train(ITERATIONS // 2)
    return {"layers": whole.x, "layers, resumed": resumed.x, "layers, bytes": whole.state.bytes_sent}


def main(rank: int, n: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{n}", rank=rank, world_size=n)
    out = {**softmax_cases(rank, n), **layered_case(rank, n, folder)}
    everywhere: list[Any] = [None] * n
    dist.all_gather_object(everywhere, out)
    if rank == 0:
        out["equal"] = all(np.array_equal(one[name], out[name]) for one in everywhere for name in one)
        np.savez(folder / "out.npz", **out)
    # Models in reference cycles that outlive the group leave its threads to the end of the process, which then aborts.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
