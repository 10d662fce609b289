"""A softmax head on frozen features of the digits, trained by 4 processes: loss against bytes.

    python digits_head.py --out digits_head --rounds 30

Six methods, each with the same number of bytes in all.  Rand-k with the optimal stepsize of det-CGD1 and the subspace
method, both with k = 5 % of the parameters, have a proved stepsize and nothing to tune.  Dense gradients go with their
two proved stepsizes, 1/λmax(L) and the matrix L⁻¹, and, like PyTorch's PowerSGD hook, with the best number of a grid,
by the loss at the end.  Writes the curves (npz) and a figure (png).
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from stepsize_opt import Identity, RandK, optimal_method, optimal_stepsize
from stepsize_opt.problems import Federated, SoftmaxRegression
from stepsize_opt.torch import MatrixSGD, SketchState, sketch_hook

PROCESSES, FEATURES, CLASSES, RIDGE = 4, 32, 10, 1e-3
SIZE = FEATURES * CLASSES
K = SIZE // 20
# Multiples of 1/λmax(L) that are tried for the methods without a guarantee.
GRID = (1.0, 4.0, 16.0, 64.0)
NUMBER = 8  # bytes of a float64


# Each method with its label, colour and marker.
NAMES = {
    "dense SGD, 1/λmax": ("dense SGD, γ = 1/λmax(L), proved", "C3", "x"),
    "dense, D = L⁻¹": ("dense, D = L⁻¹, proved", "C4", "D"),
    "dense SGD": ("dense SGD, tuned", "C7", "o"),
    "PowerSGD": ("PowerSGD, rank 1, tuned", "C1", "s"),
    "rand-k": (f"rand-{K}, optimal D (det-CGD1)", "C0", "^"),
    "subspace": (f"subspace method, {K} numbers", "C2", "v"),
}


def problem() -> Federated:
    """One part of the digits for each process, seen through a random layer that is never trained."""
    X, y = load_digits(return_X_y=True)
    layer = np.random.default_rng(0).standard_normal((64, FEATURES)) / 8.0
    F = np.maximum((X - X.mean(axis=0)) / 4.0 @ layer, 0.0)
    rows = np.array_split(np.random.default_rng(1).permutation(len(F))[: len(F) // PROCESSES * PROCESSES], PROCESSES)
    return Federated(tuple(SoftmaxRegression(F[part], y[part], CLASSES, RIDGE) for part in rows))


class Loss(nn.Module):
    """The loss of one process."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.head.weight)
        self.F, self.y = torch.tensor(part.A), torch.tensor(part.labels)

    def forward(self) -> torch.Tensor:
        ridge = 0.5 * RIDGE * self.head.weight.square().sum()
        return nn.functional.cross_entropy(self.head(self.F), self.y) + ridge


def train(f: Federated, rank: int, budget: int, method: str, stepsize: Any) -> dict[str, Any]:
    """Train until the budget of bytes is spent; the bytes sent and the loss along the way."""
    model = Loss(f.clients[rank])
    ddp = DistributedDataParallel(model)
    if method == "PowerSGD":
        # Two dense rounds are the fewest that it takes.
        state: Any = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, power.powerSGD_hook)
    else:
        compressor = {"rand-k": RandK(SIZE, K), "subspace": stepsize}.get(method, Identity(SIZE))
        state = SketchState(model, {"head.weight": compressor})
        ddp.register_comm_hook(state, sketch_hook)
    optimizer = MatrixSGD(model.parameters(), 1.0 if method == "subspace" else stepsize)
    sent, losses, last, rounds = [0], [float(f.value(np.zeros((1, SIZE)))[0])], 0, 0
    while last < budget:
        optimizer.zero_grad()
        ddp().backward()
        optimizer.step()
        rounds += 1
        if method != "PowerSGD":
            last = state.bytes_sent
        else:
            # It counts only the rounds that it compresses.
            last = NUMBER * (min(rounds, 2) * SIZE + state.total_numel_after_compression)
        if last >= budget or rounds in RECORDED:
            sent.append(last)
            losses.append(float(f.value(model.head.weight.detach().numpy().reshape(1, -1))[0]))
    return {"bytes": sent, "loss": losses, "rounds": rounds}


RECORDED = frozenset(np.unique(np.geomspace(1, 10_000, 60).round().astype(int)).tolist())


def work(rank: int, folder: str, rounds: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    f, budget = problem(), rounds * SIZE * NUMBER
    given = np.load(f"{folder}/stepsizes.npz")
    curves = {
        "rand-k": train(f, rank, budget, "rand-k", given["D"]),
        "subspace": train(f, rank, budget, "subspace", optimal_method(given["L"], K, basis="eigenvectors")),
        "dense, D = L⁻¹": train(f, rank, budget, "dense", optimal_stepsize(given["L"], Identity(SIZE)).D),
    }
    for method in ("dense SGD", "PowerSGD"):
        tried = {factor: train(f, rank, budget, method, factor / float(given["top"])) for factor in GRID}
        best = min(
            tried,
            key=lambda factor, tried=tried: (not np.isfinite(tried[factor]["loss"][-1]), tried[factor]["loss"][-1]),
        )
        curves[method] = {**tried[best], "factor": best}
        if method == "dense SGD":
            curves["dense SGD, 1/λmax"] = tried[1.0]
    if rank == 0:
        np.savez(
            f"{folder}/curves.npz", **{f"{m}, {name}": value for m, c in curves.items() for name, value in c.items()}
        )
    # Models in reference cycles that outlive the group leave its threads to the end of the process, which then aborts.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def draw(curves: dict[str, Any], least: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.0, 4.2), layout="constrained")
    for method, (label, colour, marker) in NAMES.items():
        sent, loss = np.array(curves[f"{method}, bytes"]), np.array(curves[f"{method}, loss"])
        axes.plot(sent / 1000, loss - least, color=colour, marker=marker, markersize=3, label=label)
    axes.set(
        xlabel="kB that each process handed to all-reduce", ylabel="loss − its minimum", yscale="log", ylim=(None, 4.0)
    )
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("digits_head"), help="path of the files, without ending")
    parser.add_argument("--rounds", type=int, default=30, help="the budget, in rounds of dense gradients")
    given = parser.parse_args()
    f = problem()
    L = f.smoothness()
    result = optimal_stepsize(L, RandK(SIZE, K), goal="descent")
    print(result)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/stepsizes.npz", D=result.D, L=L, top=np.linalg.eigvalsh(L)[-1])
        spawn(work, (folder, given.rounds), nprocs=PROCESSES)
        curves = dict(np.load(f"{folder}/curves.npz"))
    options = {"maxiter": 20_000, "maxfun": 50_000, "gtol": 1e-9, "ftol": 0.0}
    value, slope = (lambda x: f.value(x[None])[0]), (lambda x: f.gradient(x[None])[0])
    least = float(minimize(value, np.zeros(SIZE), jac=slope, method="L-BFGS-B", options=options).fun)
    for method in NAMES:
        loss, kilobytes = float(curves[f"{method}, loss"][-1]), curves[f"{method}, bytes"][-1] / 1000
        tuned = f", stepsize {float(curves[f'{method}, factor']):g}/λmax" if f"{method}, factor" in curves else ""
        print(
            f"{method:<17} {int(curves[f'{method}, rounds']):>5} rounds, {kilobytes:.0f} kB: loss {loss:.5f}, "
            f"{loss - least:.2e} above the minimum{tuned}"
        )
    np.savez(given.out.with_suffix(".npz"), minimum=least, **curves)
    draw(curves, least, given.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
