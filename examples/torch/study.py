"""The study of docs/training.md: heads and generalised linear models, 4 workers, every method at equal bytes.

    python study.py --out docs/training [--only a1a] [--jobs 2]

Writes full.csv (every run) and a figure, and prints the medians.  Feedback runs as it is shipped: four optimizers in
four threads, whose ``Workers`` hand tensors to each other (the tests compare them with four processes over gloo).
Arithmetic is float64, and messages are counted as float32: 4 bytes for a value, 2 for an index, 8 for a value of f,
set-up included.  A seed decides how the rows are split.  Baselines use the stepsize of their grid with the best median
of the three seeds, for each budget; the bytes of that are not counted.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cached_property, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from stepsize_opt.torch import compress, estimate_smoothness
from stepsize_opt.torch.workers import Workers, digest
from stepsize_validation.data import load_dataset
from stepsize_validation.origin import origin

WORKERS, SEEDS = 4, (0, 1, 2)
BUDGETS = (10, 30)  # in dense gradients
DECAY = 1e-3
OURS: dict[str, dict[str, Any]] = {
    "feedback": {},
    "feedback, own indices": {"places": "own"},
    "feedback, rank 4 estimated": {"rank": 4},
}
STYLES = ("C0-", "C9-", "C2-", "C7--", "C6--", "C3--", "C1--")
GRID = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)  # times 1/λmax of the Hessian at the start
ADAM = (0.003, 0.01, 0.03, 0.1, 0.3)
Batch = tuple[Tensor, Tensor]


# ---------------------------------------------------------------- problems


class Problem:
    """A linear layer that starts at zero on the data of four workers, and its loss as a function of one vector."""

    def __init__(self, X: Any, y: Any, loss: nn.Module, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(X))
        self.X, self.y, self.loss = torch.tensor(X)[order], torch.tensor(y)[order], loss
        rows = 4 * len(X) // 5 // WORKERS
        self.parts = [self._rows(i * rows, (i + 1) * rows) for i in range(WORKERS)]
        self.train, self.test = self._rows(0, WORKERS * rows), self._rows(WORKERS * rows, len(X))
        self.outputs = int(self.y.max()) + 1 if self.y.ndim == 1 else 1
        self.shape = self.outputs, self.X.shape[1]
        self.d = self.outputs * (self.shape[1] + 1)

    def _rows(self, first: int, end: int) -> Batch:
        return self.X[first:end], self.y[first:end]

    def model(self) -> nn.Linear:
        layer = nn.Linear(self.shape[1], self.outputs, dtype=torch.float64)
        for p in layer.parameters():
            nn.init.zeros_(p)
        return layer

    def scores(self, x: Tensor, inputs: Tensor) -> Tensor:
        W, b = x[: -self.outputs].view(self.shape), x[-self.outputs :]
        return inputs @ W.T + b

    def value(self, x: Tensor, batch: Batch) -> Any:
        return self.loss(self.scores(x, batch[0]), batch[1]) + 0.5 * DECAY * x @ x

    def gradients(self, x: Tensor) -> list[Tensor]:
        """The gradients of the four workers."""
        x = x.detach().requires_grad_()
        return [torch.autograd.grad(self.value(x, part), x)[0] for part in self.parts]

    def accuracy(self, x: Tensor) -> float:
        out = self.scores(x, self.test[0])
        labels = out.argmax(1) if self.outputs > 1 else (out > 0.0).to(self.y)
        return float((labels == self.test[1]).double().mean())

    @cached_property
    def largest_curvature(self) -> float:
        """λmax of the Hessian at the start."""
        H = torch.func.hessian(lambda x: self.value(x, self.train))(torch.zeros(self.d, dtype=torch.float64))
        return float(torch.linalg.eigvalsh(H)[-1])

    def minimum(self) -> float:
        """The least loss, by L-BFGS."""
        x = torch.zeros(self.d, dtype=torch.float64, requires_grad=True)
        options: dict[str, Any] = {"max_iter": 4000, "tolerance_grad": 1e-10, "tolerance_change": 0.0}
        optimizer = torch.optim.LBFGS([x], line_search_fn="strong_wolfe", history_size=50, **options)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.value(x, self.train)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        return float(self.value(x.detach(), self.train))


def digits(seed: int) -> Problem:
    X, y = load_digits(return_X_y=True)
    return Problem(X / 8.0 - 1.0, y, nn.CrossEntropyLoss(), seed)


def logistic(name: str, seed: int) -> Problem:
    data = load_dataset(name)
    A = np.asarray(data.A.todense() if hasattr(data.A, "todense") else data.A)
    labels = (np.asarray(data.b) > 0).astype(float)[:, None]
    return Problem(A[:, A.std(axis=0) > 0.0], labels, nn.BCEWithLogitsLoss(), seed)


PROBLEMS: dict[str, Callable[[int], Problem]] = {
    "digits head": digits,
    **{name: partial(logistic, name) for name in ("breast_cancer", "a1a", "mushrooms")},
}


# ---------------------------------------------------------------- feedback


class Point(NamedTuple):
    """Where a run was when a worker had sent so many bytes."""

    sent: float
    x: Tensor


class Exchange:
    """What the threads hand to each other, one round after the other."""

    def __init__(self) -> None:
        self._given: list[Any] = [None] * WORKERS
        self.barrier = threading.Barrier(WORKERS)

    def everybody(self, rank: int, value: Any) -> list[Any]:
        self._given[rank] = value
        self.barrier.wait()
        found = list(self._given)
        self.barrier.wait()
        return found


class Thread(Workers):
    """A worker that is a thread."""

    size, rank = WORKERS, 0  # type: ignore[assignment]

    def __init__(self, exchange: Exchange, rank: int) -> None:
        super().__init__()
        self._exchange, self.rank = exchange, rank  # type: ignore[misc]

    def mean(self, tensor: Tensor) -> Tensor:
        self.sent += tensor.nbytes
        self.received += tensor.nbytes
        return tensor.copy_(sum(self._exchange.everybody(self.rank, tensor.clone())) / WORKERS)

    def broadcast(self, tensor: Tensor, source: int) -> Tensor:
        return tensor.copy_(self._exchange.everybody(self.rank, tensor.clone())[source])

    def gather(self, tensor: Tensor) -> list[Tensor]:
        self.sent += tensor.nbytes
        return self._exchange.everybody(self.rank, tensor.clone())

    def equal(self, *values: Any, device: Any = None) -> bool:
        return len(set(self._exchange.everybody(self.rank, digest(*values)))) == 1


def train(problem: Problem, model: nn.Module, workers: Workers, budget: float, options: dict[str, Any]) -> list[Point]:
    """The checked points of one worker until so many bytes were sent; set-up counted."""
    k, given, own = max(1, problem.d // 20), dict(options), problem.parts[workers.rank]
    estimate = given.pop("rank", None)
    if estimate:
        asked = {"rank": estimate, "weight_decay": DECAY, "process_group": workers}
        given["L"] = estimate_smoothness(model, problem.loss, own, **asked)
    given |= {"floats_per_step": k, "weight_decay": DECAY, "process_group": workers, "verbose": False}
    optimizer = compress(model, problem.loss, own, **given)
    alone, residual = options.get("places") == "own", optimizer.plan.certified and options.get("places") != "own"
    step = 4.0 * k + 2.0 * k * (1.0 if alone else 1.0 / WORKERS) + 8.0 * residual
    points, sent = [], 0.0
    while sent < budget:
        optimizer.step(lambda: problem.loss(model(own[0]), own[1]))
        sent = optimizer.setup_bytes / 2.0 + optimizer.rounds * step + 16.0 * optimizer.checks
        if optimizer.stepsize.unchecked == 0.0:
            points.append(Point(sent, torch.cat([p.detach().reshape(-1) for p in model.parameters()])))
    return points


def ours(problem: Problem, budget: float, options: dict[str, Any]) -> list[Point]:
    """The points of the first of four workers in four threads."""
    exchange = Exchange()
    models = [problem.model() for _ in range(WORKERS)]  # here, because threads share PyTorch's generator

    def one(rank: int) -> list[Point]:
        try:
            return train(problem, models[rank], Thread(exchange, rank), budget, options)
        except BaseException:
            exchange.barrier.abort()  # the others would wait for ever
            raise

    with ThreadPoolExecutor(WORKERS) as pool:
        return next(iter(pool.map(one, range(WORKERS))))


# ---------------------------------------------------------------- baselines


def dense(problem: Problem, x: Tensor, lr: float, momentum: float) -> Iterator[tuple[float, Tensor]]:
    v = torch.zeros_like(x)
    while True:
        v = momentum * v + sum(problem.gradients(x)) / WORKERS
        x = x - lr * v
        yield 4.0 * problem.d, x


def adamw(problem: Problem, x: Tensor, lr: float) -> Iterator[tuple[float, Tensor]]:
    """AdamW, whose decay is that of the loss."""
    p = x.clone().requires_grad_()
    optimizer = torch.optim.AdamW([p], lr=lr, weight_decay=0.0)
    while True:
        p.grad = sum(problem.gradients(p.detach())) / WORKERS  # type: ignore[assignment]
        optimizer.step()
        yield 4.0 * problem.d, p.detach().clone()


def ef21(problem: Problem, x: Tensor, lr: float) -> Iterator[tuple[float, Tensor]]:
    """Top-k error feedback (Richtárik, Sokolov, Fatkhullin, 2021): values and indices of every worker."""
    k, memory = max(1, problem.d // 20), [torch.zeros_like(x) for _ in range(WORKERS)]
    while True:
        for e, g in zip(memory, problem.gradients(x), strict=True):
            chosen = torch.topk((g - e).abs(), k).indices
            e[chosen] = g[chosen]
        x = x - lr * sum(memory) / WORKERS
        yield 6.0 * k, x


def power_sgd(problem: Problem, x: Tensor, lr: float, momentum: float) -> Iterator[tuple[float, Tensor]]:
    """PowerSGD of rank 1 with error feedback (Vogels, Karimireddy, Jaggi, 2019); vectors are sent whole."""
    rows, columns = problem.shape
    Q = torch.randn(columns, 1, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
    errors, v = [torch.zeros_like(x) for _ in range(WORKERS)], torch.zeros_like(x)
    whole = rows == 1
    while True:
        wanted = [e + g for e, g in zip(errors, problem.gradients(x), strict=True)]
        decoded: Tensor = sum(wanted) / WORKERS  # type: ignore[assignment]
        if not whole:
            M = decoded[:-rows].view(rows, columns)
            P = torch.linalg.qr(M @ Q)[0]
            Q = M.T @ P
            decoded = torch.cat([(P @ Q.T).reshape(-1), decoded[-rows:]])
        errors = [one - decoded for one in wanted]
        v = momentum * v + decoded
        x = x - lr * v
        yield 4.0 * (problem.d if whole else 2 * rows + columns), x


# The method, and the momenta of its grid where it has some.
BASELINES: dict[str, tuple[Any, tuple[float, ...]]] = {
    "dense momentum": (dense, (0.0, 0.9)),
    "AdamW": (adamw, ()),
    "EF21 top-k": (ef21, ()),
    "PowerSGD rank 1": (power_sgd, (0.0, 0.9)),
}


def grid(name: str) -> list[dict[str, float]]:
    """What is tried of a baseline."""
    momenta = BASELINES[name][1]
    rates = [{"lr": lr} for lr in (ADAM if name == "AdamW" else GRID)]
    return [{**rate, "momentum": m} for rate in rates for m in momenta] if momenta else rates


def baseline(problem: Problem, name: str, given: dict[str, float], budget: float) -> list[Point]:
    """The points of a run until the budget of bytes is spent, or until it diverged."""
    scale = 1.0 if name == "AdamW" else 1.0 / problem.largest_curvature
    sent, points = 0.0, []
    x = torch.zeros(problem.d, dtype=torch.float64)
    for cost, point in BASELINES[name][0](problem, x, **{**given, "lr": given["lr"] * scale}):
        sent += cost
        points.append(Point(sent, point))
        if sent >= budget or not point.isfinite().all():
            return points
    return points


# ---------------------------------------------------------------- tables


class Run(NamedTuple):
    """A row of the csv file: the loss above its minimum at the last point within a budget."""

    problem: str
    method: str
    budget: int
    seed: int
    loss: float
    accuracy: float
    tuned: str


def within(problem: Problem, points: list[Point], budget: float) -> Point | None:
    """The last point within a budget in dense gradients."""
    found = [point for point in points if point.sent <= 4.0 * problem.d * budget]
    return found[-1] if found else None


def loss_at(problem: Problem, points: list[Point], budget: float) -> float:
    point = within(problem, points, budget)
    value = float(problem.value(point.x, problem.train)) if point else np.inf
    return value if np.isfinite(value) else np.inf


def runs_of(name: str) -> tuple[list[Run], dict[str, Any]]:
    """All runs on one problem, and the curves of the first seed for the figure."""
    torch.set_num_threads(1)
    problems = {seed: PROBLEMS[name](seed) for seed in SEEDS}
    least = {seed: problem.minimum() for seed, problem in problems.items()}
    runs, curves = [], {}

    def add(method: str, budget: int, seed: int, points: list[Point], options: str = "") -> None:
        problem, point = problems[seed], within(problems[seed], points, budget)
        loss = loss_at(problem, points, budget) - least[seed]
        accuracy = problem.accuracy(point.x) if point else np.nan
        runs.append(Run(name, method, budget, seed, loss, accuracy, options))
        if seed == SEEDS[0] and budget == max(BUDGETS):
            chosen = [points[i] for i in np.unique(np.linspace(0, len(points) - 1, 60).astype(int))] if points else []
            size = 4.0 * problem.d
            curves[method] = [(p.sent / size, float(problem.value(p.x, problem.train)) - least[seed]) for p in chosen]

    for method, options in OURS.items():
        for seed, problem in problems.items():
            points = ours(problem, 4.0 * problem.d * max(BUDGETS), options)
            for budget in BUDGETS:
                add(method, budget, seed, points)
        print(f"{time.process_time():6.0f} s  {name} {method}", flush=True)
    for method in BASELINES:
        most = max(BUDGETS)
        tried = [
            (given, {seed: baseline(one, method, given, 4.0 * one.d * most) for seed, one in problems.items()})
            for given in grid(method)
        ]
        for budget in BUDGETS:
            medians = [
                np.median([loss_at(problems[seed], points, budget) - least[seed] for seed, points in found.items()])
                for _, found in tried
            ]
            best, found = tried[int(np.argmin(medians))]
            for seed, points in found.items():
                add(method, budget, seed, points, str(best))
        print(f"{time.process_time():6.0f} s  {name} {method}", flush=True)
    return runs, curves


def draw(curves: dict[str, Any], path: Path) -> None:
    """Draw the loss against bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = dict(zip((*OURS, *BASELINES), STYLES, strict=True))
    size = 2.9 * len(curves), 3.4
    figure, axes = plt.subplots(1, len(curves), figsize=size, layout="constrained", squeeze=False)
    for axis, (name, shown) in zip(axes[0], curves.items(), strict=True):
        for method, curve in shown.items():
            if curve:
                sent, loss = np.array(curve).T
                axis.plot(sent, np.maximum(loss, 1e-12), styles[method], label=method, linewidth=1.4)
        axis.set(title=name, xlabel="bytes sent, in dense gradients", xlim=(0, max(BUDGETS)), yscale="log")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("loss − minimum")
    handles = [handle for axis in axes[0] for handle in axis.lines]
    named = {handle.get_label(): handle for handle in handles}
    figure.legend(named.values(), named, loc="outside lower center", ncols=7, frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


def write(runs: list[Run], path: Path) -> None:
    """Write the csv file, and print the medians of the losses."""
    table = pd.DataFrame(runs)
    head = f"{origin('python examples/torch/study.py --out docs/training')}; torch {torch.__version__}"
    text = table.to_csv(index=False, float_format="%.6g")
    path.write_text(f"{head}\n{text}", encoding="utf-8")
    cases = [table["problem"], table["budget"]]
    medians = table.pivot_table("loss", table["method"], cases, aggfunc="median", sort=False)
    print(medians.to_string(float_format="{:.1e}".format))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(), help="folder of the files")
    parser.add_argument("--only", choices=PROBLEMS, help="a problem alone, for a trial")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the problems")
    given = parser.parse_args()
    shown = [name for name in PROBLEMS if given.only in (None, name)]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        found = dict(zip(shown, pool.map(runs_of, shown), strict=True))
    write([run for runs, _ in found.values() for run in runs], given.out / "full.csv")
    draw({name: curves for name, (_, curves) in found.items()}, given.out / "study.png")


if __name__ == "__main__":
    main()
