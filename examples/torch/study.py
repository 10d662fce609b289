"""The study of docs/training.md: three problems, 4 workers, every method at equal bytes, set-up and places counted.

    python study.py --out docs/training [--only CNN] [--jobs 2]

Writes full.csv (every run) and a figure, and prints the medians.  One
process stands for the four workers, and the bytes of their messages are counted.  Arithmetic is float64, and messages
are counted as float32: 4 bytes for a value, 2 for a place, 8 for a value of f.  Seconds are processor time of this
process, for the gradients of all four workers one after the other, without the time of messages.  Baselines use the
stepsize of their grid with the best median of the three seeds, for each budget; neither bytes nor seconds of that are
counted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call

from stepsize_opt.torch import compress, estimate_smoothness
from stepsize_opt.torch.workers import Workers
from stepsize_validation.data import load_dataset

WORKERS, SEEDS = 4, (0, 1, 2)
BUDGETS = (10, 30)  # in dense gradients
OURS: dict[str, dict[str, Any]] = {
    "feedback": {},
    "feedback, own places": {"places": "own"},
}
STYLES = ("C0-", "C9-", "C7--", "C8--", "C6--", "C3--", "C1--")
TARGET = 1e-2  # the loss above its minimum for the times to reach it
# Multiples of 1/λmax of the Hessian at the start, and stepsizes of Adam.
GRID = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
ADAM = (0.003, 0.01, 0.03, 0.1, 0.3)
Batch = tuple[Tensor, Tensor]


# ---------------------------------------------------------------- problems


class Problem:
    """A model on the data of four workers, and its loss as a function of one vector for the baselines."""

    def __init__(
        self, name: str, model: Callable[[], nn.Module], X: Tensor, y: Tensor, loss: Any, decay: float
    ) -> None:
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
        X, y = X[order], y[order]
        rows = 4 * len(X) // 5 // WORKERS
        self.name, self.model, self.loss, self.decay = name, model, loss, decay
        self._curvatures: dict[int, float] = {}
        self.parts = [(X[i * rows : (i + 1) * rows], y[i * rows : (i + 1) * rows]) for i in range(WORKERS)]
        self.train = (X[: WORKERS * rows], y[: WORKERS * rows])
        self.test = (X[WORKERS * rows :], y[WORKERS * rows :])
        self.start(0)

    def start(self, seed: int) -> Tensor:
        torch.manual_seed(seed)
        self.net = self.model().double()
        self.shapes = [(name, p.shape) for name, p in self.net.named_parameters()]
        x = torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])
        self.d = len(x)
        return x

    def outputs(self, x: Tensor, inputs: Tensor) -> Any:
        parts = torch.split(x, [shape.numel() for _, shape in self.shapes])
        named = {name: part.view(shape) for (name, shape), part in zip(self.shapes, parts, strict=True)}
        return functional_call(self.net, named, (inputs,))

    def value(self, x: Tensor, batch: Batch) -> Tensor:
        return self.loss(self.outputs(x, batch[0]), batch[1]) + 0.5 * self.decay * x @ x

    @torch.enable_grad()
    def gradient(self, x: Tensor, batch: Batch) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.value(x, batch), x)[0]

    def score(self, x: Tensor) -> tuple[float, float]:
        """The loss on all training data, and the accuracy on the test data."""
        with torch.no_grad():
            value, out = self.value(x, self.train).item(), self.outputs(x, self.test[0])
        labels = out.argmax(1) if out.shape[1] > 1 else (out > 0).to(self.test[1])
        return value, (labels == self.test[1]).double().mean().item()

    def largest_curvature(self, seed: int) -> float:
        """λmax of the Hessian at the start, by power iteration."""
        if seed not in self._curvatures:
            x = self.start(seed)
            v, slope = torch.ones_like(x), torch.func.grad(lambda z: self.value(z, self.train))
            for _ in range(20):
                v = torch.func.jvp(slope, (x,), (v / v.norm(),))[1]
            self._curvatures[seed] = float(v.norm())
        return self._curvatures[seed]

    def minimum(self) -> float:
        """The least loss, by L-BFGS."""
        x = self.start(0).requires_grad_()
        options: dict[str, Any] = {"max_iter": 4000, "tolerance_grad": 1e-10, "tolerance_change": 0.0}
        optimizer = torch.optim.LBFGS([x], line_search_fn="strong_wolfe", history_size=50, **options)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self.value(x, self.train)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        return self.value(x.detach(), self.train).item()


def zeros(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def digits() -> Batch:
    X, y = load_digits(return_X_y=True)
    return torch.tensor(X / 8.0 - 1.0), torch.tensor(y)


def head() -> Problem:
    X, y = digits()
    layer = torch.randn(64, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 8.0
    features = torch.relu(2.0 * X @ layer)
    return Problem("softmax head", lambda: zeros(nn.Linear(32, 10)), features, y, nn.CrossEntropyLoss(), 1e-3)


def logistic(name: str) -> Problem:
    data = load_dataset(name)
    A = np.asarray(data.A.todense() if hasattr(data.A, "todense") else data.A)
    A = A[:, A.std(axis=0) > 0.0]
    y = torch.tensor((np.asarray(data.b) > 0).astype(float))[:, None]
    return Problem(name, lambda: zeros(nn.Linear(A.shape[1], 1)), torch.tensor(A), y, nn.BCEWithLogitsLoss(), 1e-3)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "softmax head": head,
    **{name: partial(logistic, name) for name in ("a1a", "mushrooms")},
}


# ---------------------------------------------------------------- the package


class Point(NamedTuple):
    """Where a run was when a worker had sent so many bytes and the process had computed for so many seconds."""

    sent: float
    seconds: float
    x: Tensor


def ours(problem: Problem, seed: int, **options: Any) -> list[Point]:
    """The points of a run until the largest budget is spent; the set-up is counted in bytes and seconds.

    The memories of the workers are simulated by ``FourWorkers``.
    """
    start, k, points = problem.start(seed), problem.d // 20, []
    model = problem.model().double()
    params = list(model.parameters())
    with torch.no_grad():
        for p, part in zip(params, torch.split(start, [p.numel() for p in params]), strict=True):
            p.copy_(part.view_as(p))
    given: dict[str, Any] = {"weight_decay": problem.decay, "verbose": False, **options}
    begin, counted = time.process_time(), Workers()
    if params[0].shape[1] + 1 > 16 * params[0].shape[0]:  # all of L would take more than 8 dense gradients
        given["L"] = estimate_smoothness(
            model, problem.loss, problem.train, weight_decay=problem.decay, process_group=counted
        )
    optimizer = compress(model, problem.loss, problem.train, floats_per_step=k, process_group=counted, **given)
    seconds = time.process_time() - begin
    workers = FourWorkers(problem, model)
    alone, places = options.get("places") == "own", 2.0 * k
    workers.replace_memory(optimizer, own=alone)
    # Messages in float64 are counted as float32; places are 2 bytes and values of f 8 bytes in both.
    step = optimizer.traffic()[0] - 4.0 * k - (0.0 if alone else places * (1.0 - 1.0 / WORKERS))
    sent = optimizer.setup_bytes / 2.0
    while sent < 4.0 * problem.d * max(BUDGETS):
        begin = time.process_time()
        optimizer.step(workers.closure)
        seconds += time.process_time() - begin
        sent += step
        points.append(Point(sent, seconds, torch.cat([p.detach().reshape(-1) for p in params])))
    return points


class FourWorkers:
    """The data of the four workers, and for feedback their memories, inside one process."""

    def __init__(self, problem: Problem, model: nn.Module) -> None:
        self._problem, self._model, self._params = problem, model, list(model.parameters())
        self._gradients: list[Tensor] = []
        self.closure = self._mean

    def _mean(self) -> Any:
        return (
            sum(self._problem.loss(self._model(inputs), targets) for inputs, targets in self._problem.parts) / WORKERS
        )

    def _each(self) -> Any:
        """The mean loss: at x with the gradient of each worker, at the trial point alone."""
        if self._gradients:
            self._gradients = []
            with torch.no_grad():
                return self._mean()
        total: Any = 0.0
        for inputs, targets in self._problem.parts:
            loss = self._problem.loss(self._model(inputs), targets)
            g = torch.autograd.grad(loss, self._params)
            self._gradients.append(torch.cat([part.reshape(-1) for part in g]))
            total += loss.detach() / WORKERS
        for p in self._params:
            p.grad = torch.zeros_like(p)  # not used: the optimizer gets the gradients below
        return total

    def replace_memory(self, optimizer: Any, own: bool) -> None:
        """Replace the message of a FeedbackSGD of one process by those of four workers with memories of their own."""
        self.closure = self._each
        memory = [torch.zeros_like(optimizer._memory) for _ in range(WORKERS)]
        k, d = optimizer._feedback.k, len(memory[0])

        def exchange(_: Tensor) -> float:
            decay = self._problem.decay * torch.cat([p.detach().reshape(-1) for p in self._params])
            wanted = [optimizer._basis.transposed(g + decay) for g in self._gradients]
            changes = [t - e for t, e in zip(wanted, memory, strict=True)]
            places = optimizer._largest(changes[optimizer.rounds % WORKERS].abs())
            rho = 0.0
            for e, t, change in zip(memory, wanted, changes, strict=True):
                J = optimizer._largest(change.abs()) if own else places
                least = float(change[J].abs().min())
                e[J] = t[J]
                rho += ((d - k) ** 0.5 * least if own else float((t - e).norm())) / WORKERS
            optimizer._last[places] = optimizer.rounds + 1
            optimizer._s = sum(memory) / WORKERS
            return rho

        optimizer._exchange = exchange


# ---------------------------------------------------------------- baselines


def gradients(problem: Problem, x: Tensor) -> list[Tensor]:
    return [problem.gradient(x, part) for part in problem.parts]


def dense(problem: Problem, x: Tensor, lr: float, momentum: float = 0.0) -> Iterator[tuple[float, Tensor]]:
    v = torch.zeros_like(x)
    while True:
        v = momentum * v + sum(gradients(problem, x)) / WORKERS
        x = x - lr * v
        yield 4.0 * problem.d, x


def adam(problem: Problem, x: Tensor, lr: float) -> Iterator[tuple[float, Tensor]]:
    p = x.clone().requires_grad_()
    optimizer = torch.optim.Adam([p], lr=lr)
    while True:
        p.grad = sum(gradients(problem, p.detach())) / WORKERS  # type: ignore[assignment]
        optimizer.step()
        yield 4.0 * problem.d, p.detach().clone()


def ef21(problem: Problem, x: Tensor, lr: float) -> Iterator[tuple[float, Tensor]]:
    """Top-k error feedback (Richtárik, Sokolov, Fatkhullin, 2021): values and places of every worker."""
    k, memory = problem.d // 20, [torch.zeros_like(x) for _ in range(WORKERS)]
    while True:
        for e, g in zip(memory, gradients(problem, x), strict=True):
            places = torch.topk((g - e).abs(), k).indices
            e[places] = g[places]
        x = x - lr * sum(memory) / WORKERS
        yield 6.0 * k, x


def power_sgd(problem: Problem, x: Tensor, lr: float, momentum: float) -> Iterator[tuple[float, Tensor]]:
    """PowerSGD of rank 1 with error feedback (Vogels, Karimireddy, Jaggi, 2019); vectors are sent whole."""
    sizes = [shape.numel() for _, shape in problem.shapes]
    generator = torch.Generator().manual_seed(1)
    Q = [torch.randn(shape[1:].numel(), 1, generator=generator, dtype=x.dtype) for _, shape in problem.shapes]
    errors, v = [torch.zeros_like(x) for _ in range(WORKERS)], torch.zeros_like(x)
    cost = sum(shape[0] + shape[1:].numel() if len(shape) > 1 else shape[0] for _, shape in problem.shapes)
    while True:
        wanted = [e + g for e, g in zip(errors, gradients(problem, x), strict=True)]
        mean, parts = torch.split(sum(wanted) / WORKERS, sizes), []  # type: ignore[call-overload]
        for j, (part, (_, shape)) in enumerate(zip(mean, problem.shapes, strict=True)):
            if len(shape) == 1 or 1 in shape:
                parts.append(part)
                continue
            M = part.view(shape[0], -1)
            P = torch.linalg.qr(M @ Q[j])[0]
            Q[j] = M.T @ P
            parts.append((P @ Q[j].T).reshape(-1))
        decoded = torch.cat(parts)
        errors = [one - decoded for one in wanted]
        v = momentum * v + decoded
        x = x - lr * v
        yield 4.0 * cost, x


# The method, and the momenta of its grid where it has some.
BASELINES: dict[str, tuple[Any, tuple[float, ...]]] = {
    "dense SGD": (dense, ()),
    "dense momentum": (dense, (0.9,)),
    "Adam": (adam, ()),
    "EF21 top-k": (ef21, ()),
    "PowerSGD": (power_sgd, (0.0, 0.9)),
}


def grid(problem: Problem, name: str) -> list[dict[str, float]]:
    """What is tried of a baseline."""
    momenta = BASELINES[name][1]
    rates = [{"lr": lr} for lr in (ADAM if name == "Adam" else GRID)]
    return [{**rate, "momentum": m} for rate in rates for m in momenta] if momenta else rates


def baseline(problem: Problem, name: str, given: dict[str, float], seed: int, budget: float) -> list[Point]:
    """The points of a run of a baseline until the budget of bytes is spent; none after it diverged."""
    make, scale = BASELINES[name][0], 1.0 if name == "Adam" else 1.0 / problem.largest_curvature(seed)
    x = problem.start(seed)
    options = {**given, "lr": given["lr"] * scale}
    sent, points, begin = 0.0, [], time.process_time()
    for bytes_sent, point in make(problem, x, **options):
        sent += bytes_sent
        points.append(Point(sent, time.process_time() - begin, point))
        if sent >= budget or not torch.isfinite(point).all():
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
    seconds: float
    seconds_to_target: float
    tuned: str


def at(problem: Problem, points: list[Point], budget: float) -> tuple[float, float, float]:
    """Loss, accuracy and seconds at the last point within a budget in dense gradients; NaN where there is none."""
    within = [point for point in points if point.sent <= 4.0 * problem.d * budget]
    if not within:
        return np.nan, np.nan, np.nan
    value, accuracy = problem.score(within[-1].x)
    return (value if np.isfinite(value) else np.inf), accuracy, within[-1].seconds


def tuned(problem: Problem, name: str) -> Iterator[tuple[int, int, dict[str, float], list[Point]]]:
    """Budget, seed, the best of the grid for this budget by the median of all seeds, and the points of its run."""
    most = 4.0 * problem.d * max(BUDGETS)
    tried = [(given, [baseline(problem, name, given, seed, most) for seed in SEEDS]) for given in grid(problem, name)]
    for budget in BUDGETS:
        losses = [np.median([at(problem, points, budget)[0] for points in runs]) for _, runs in tried]
        best, runs = tried[int(np.argmin(losses))]
        for seed, points in zip(SEEDS, runs, strict=True):
            yield budget, seed, best, points


def runs_of(name: str) -> tuple[list[Run], dict[str, Any]]:
    """All runs on one problem, and the curves of the first seed for the figure."""
    torch.set_num_threads(1)
    problem = PROBLEMS[name]()
    runs, curves, least = [], {}, problem.minimum()

    def add(name: str, budget: int, seed: int, points: list[Point], options: str = "") -> None:
        curve = [
            (point.sent / (4.0 * problem.d), point.seconds, problem.score(point.x)[0] - least) for point in thin(points)
        ]
        reached = [seconds for sent, seconds, loss in curve if sent <= budget and loss <= TARGET]
        value, accuracy, seconds = at(problem, points, budget)
        numbers = value - least, accuracy, seconds, min(reached, default=np.nan)
        runs.append(Run(problem.name, name, budget, seed, *numbers, options))
        if seed == SEEDS[0] and budget == max(BUDGETS):
            curves[name] = curve

    for name, options in OURS.items():
        for seed in SEEDS:
            points = ours(problem, seed=seed, **options)
            for budget in BUDGETS:
                add(name, budget, seed, points)
        print(f"{time.process_time():6.0f} s  {problem.name} {name}", flush=True)
    for name in BASELINES:
        for budget, seed, best, points in tuned(problem, name):
            add(name, budget, seed, points, str(best))
        print(f"{time.process_time():6.0f} s  {problem.name} {name}", flush=True)
    return runs, curves


def thin(points: list[Point]) -> list[Point]:
    """At most sixty points of a run; none for a method whose set-up costs more than the budget."""
    if not points:
        return []
    places = np.unique(np.linspace(0, len(points) - 1, 60).astype(int))
    return [points[i] for i in places]


def draw(curves: dict[str, Any], path: Path) -> None:
    """Loss against bytes in the first row, and against processor time in the second."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    styles = dict(zip((*OURS, *BASELINES), STYLES, strict=True))
    size = 2.9 * len(curves), 6.2
    figure, axes = plt.subplots(2, len(curves), figsize=size, layout="constrained", squeeze=False)
    for (upper, lower), (name, shown) in zip(axes.T, curves.items(), strict=True):
        for method, curve in shown.items():
            if not curve:
                continue
            sent, seconds, loss = np.array(curve).T
            for axis, x in ((upper, sent), (lower, seconds)):
                axis.plot(x, np.maximum(loss, 1e-12), styles[method], label=method, linewidth=1.4)
        upper.set(title=name, xlabel="bytes sent, in dense gradients", xlim=(0, max(BUDGETS)))
        lower.set(xlabel="seconds of one core", xscale="log")
        for axis in (upper, lower):
            axis.set_yscale("log")
            axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel("loss − minimum")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=10, frameon=False, fontsize="small")
    figure.savefig(path, dpi=110)


def write(runs: list[Run], path: Path) -> None:
    """Write the csv file, and print the medians of the losses."""
    table = pd.DataFrame(runs)
    table.to_csv(path, index=False, float_format="%.6g")
    cases, methods = [table[name] for name in ("problem", "budget")], table["method"]
    print(
        table.pivot_table("loss", methods, cases, aggfunc="median", sort=False).to_string(float_format="{:.1e}".format)
    )


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
