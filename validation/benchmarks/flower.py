"""Measure the table and the gaps of docs/flower.md: bytes of one client on mushrooms, against FedAvg and ``dasha``.

PYTHONPATH=validation python -m benchmarks.flower docs/results/flower.csv

Logistic regression with ridge in the setting of the baseline (baselines/dasha in Flower's repository): 5 clients, a
linear model with bias (d = 113), x⁰ = 0, rand-10, DASHA (Tyurin, Richtárik 2023) and MARINA (Gorbunov et al. 2021)
with a first round of full gradients, a = 1/(2ω + 1) and p = k/d; rows at random, or sorted by label.  DASHA and MARINA
have the best of MULTIPLES at each level, the median of SEEDS runs; FedAvg the best of MULTIPLES and LOCAL steps with
full gradients.  The runs that find the best are not counted.

Bytes of one client: 4 for a float.  DASHA and MARINA: k floats up (the server knows the seeds, so that places cost
nothing), d in a round of full gradients, and d down, as the baseline sends x.  FedAvg: d up and d down.  The methods
of this package: what ``stepsize_opt.flower`` puts into its packets, with 4 bytes for a float, and as setup what the
client sends that sends most.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from stepsize_opt import Feedback, optimal_method
from stepsize_opt.problems import Federated, find_infimum
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.data import Dataset, federated_logistic, load_dataset, split
from stepsize_validation.origin import origin
from stepsize_validation.runs import run

CLIENTS, K, SEEDS, ROUNDS, RIDGE = 5, 10, 3, 4000, 1e-3
MULTIPLES: Vector = np.exp2(np.arange(-2, 9, dtype=np.float64))
LOCAL = {1: 1000, 4: 1000, 16: 500, 64: 250, 256: 60}  # local steps of FedAvg, and rounds at most
FLOAT = 4

Gradients = Callable[[Matrix], Any]
# A point for each run, or its f − f*, and the bytes up and down of each run in this round.
Rounds = Iterator[tuple[Matrix, Any, Any]]
Excesses = Iterator[tuple[Vector, Any, Any]]


def rand_k(V: Any, rng: np.random.Generator) -> Any:
    """Rand-k of every vector, with a draw of its own."""
    kept = np.argpartition(rng.random(V.shape), K - 1, axis=-1)[..., :K]
    out = np.zeros_like(V)
    np.put_along_axis(out, kept, np.take_along_axis(V, kept, axis=-1) * (V.shape[-1] / K), axis=-1)
    return out


def dasha(gradients: Gradients, d: int, gammas: Vector, rng: np.random.Generator) -> Rounds:
    X, a = np.zeros((len(gammas), d)), 1.0 / (2.0 * (d / K - 1.0) + 1.0)
    old = own = gradients(X)
    up = d
    while True:
        X = X - gammas[:, None] * own.mean(axis=1)
        yield X, up * FLOAT, d * FLOAT
        new, up = gradients(X), K
        own = own + rand_k(new - old - a * (own - old), rng)
        old = new


def marina(gradients: Gradients, d: int, gammas: Vector, rng: np.random.Generator) -> Rounds:
    X, up = np.zeros((len(gammas), d)), np.full(len(gammas), d)
    old = gradients(X)
    g = old.mean(axis=1)
    while True:
        X = X - gammas[:, None] * g
        yield X, up * FLOAT, d * FLOAT
        new, full = gradients(X), rng.random(len(gammas)) < K / d
        g = np.where(full[:, None], new.mean(axis=1), g + rand_k(new - old, rng).mean(axis=1))
        old, up = new, np.where(full, d, K)


def fedavg(f: Federated, gammas: Vector, steps: int) -> Rounds:
    """Every client makes so many steps from x, and x becomes their mean."""
    X = np.zeros((len(gammas), f.d))
    while True:
        ends = []
        for one in f.clients:
            Y = X
            for _ in range(steps):
                Y = Y - gammas[:, None] * one.gradient(Y)
            ends.append(Y)
        X = np.mean(ends, axis=0)
        yield X, f.d * FLOAT, f.d * FLOAT


def shared_draws(answer: Any, f: Federated, least: float) -> Excesses:
    """A method whose clients share their draws: k floats up, and their mean down."""
    record = run(f, answer, iterations=ROUNDS, seeds=SEEDS)
    sent = FLOAT * record.sent / f.n
    for excess, size in zip((record.values[:, 1:] - least).T, sent.T, strict=True):
        yield excess, size, size


def feedback_rounds(
    feedback: Feedback, f: Federated, present: int, seed: int = 0, *, dead: int = 0, forget_after: float = math.inf
) -> Rounds:
    """``FeedbackStrategy`` with so many clients drawn in a round; ``dead`` ones reply once.

    k floats and their indices up, and f at a check; the union of indices, W, c and the decision down.  A client that
    was not at the last check sends f there as well.
    """
    k, rng = feedback.k, np.random.default_rng(seed)
    clients: dict[int, Any] = {}
    seen: dict[int, int] = {}
    x = np.zeros(f.d)
    server, now = feedback.server(x, f.value(x[None])), 0
    measured: dict[int, float] = {}  # the values of f of the clients at the last checked point
    while True:
        now += 1
        drawn = [i for i in np.sort(rng.choice(f.n, present, replace=False)) if i >= dead or i not in seen]
        clients = {i: client for i, client in clients.items() if now - seen[i] <= forget_after}
        seen |= dict.fromkeys(drawn, now)
        gradients = f.client_gradients(server.x[None])[0]
        messages = [clients.setdefault(i, feedback.client(i)).message(gradients[i]) for i in drawn]
        smallest = float(np.mean([np.abs(message.values).min() for message in messages]))
        s = np.mean([client.memory for client in clients.values()], axis=0)
        y = server.propose(s, feedback.residual_bound(smallest, f.d) if present == f.n else math.inf)
        new = {i: float(f.clients[i].value(server.checked[None])[0]) for i in drawn if i not in measured}
        measured |= new
        server.f = float(np.mean([measured[i] for i in drawn]))
        server.careful |= present < f.n
        checks = server.checks
        after = {i: float(f.clients[i].value(y[None])[0]) for i in drawn} if checks else {}
        accepted = server.decide(float(np.mean(list(after.values()))) if checks else None)
        measured = after if checks and accepted else measured
        union = len(np.unique([message.places for message in messages]))
        up = (k + checks + len(new) / len(drawn)) * FLOAT + index_bytes(k, f.d)
        yield server.checked[None], up, (union + 2) * FLOAT + index_bytes(union, f.d) + 4 + 1


def forgotten(f: Federated, rounds: int) -> Iterator[dict[str, Any]]:
    """f − f* over the living after so many rounds with half of the clients, a tenth of which die after their first."""
    dead, feedback = f.n // 10, Feedback(f.smoothness(), K, clients=f.n)
    for name, gone, forget_after in (
        ("nobody dies", 0, math.inf),
        ("never forgotten", dead, math.inf),
        ("forgotten after 20 rounds", dead, 20),
    ):
        alive = Federated(f.clients[gone:])
        least = find_infimum(alive).found
        gaps = []
        for seed in range(SEEDS):
            runs = feedback_rounds(feedback, f, f.n // 2, seed, dead=gone, forget_after=forget_after)
            (last, _, _) = list(islice(runs, rounds))[-1]
            gaps.append(alive.value(last)[0] - least)
        yield {"table": "forgotten", "problem": f"d = {f.d}", "method": name, "rounds": rounds, "gap": np.median(gaps)}


def index_bytes(count: int, d: int) -> int:
    """Bytes of ``stepsize_opt.flower.wire.pack_places``."""
    return min(2 * count, -(-d // 8))


def until(rounds: Excesses, levels: list[float], runs: int, most: int = ROUNDS) -> list[tuple[float, float, int]]:
    """The bytes up and down to each level, medians over the seeds, and which stepsize needs the fewest up.

    The rows of a round are seed by seed, ``runs`` stepsizes each.
    """
    up: Any = 0
    down: Any = 0
    found: dict[float, Any] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for excess, more_up, more_down in islice(rounds, most):
            up, down = up + more_up, down + more_down
            for level in levels:
                table = found.setdefault(level, np.full((len(excess), 2), math.inf))
                new = (excess <= level) & np.isinf(table[:, 0])
                table[new] = np.stack(np.broadcast_arrays(up, down, excess)[:2], axis=1)[new]
            if all(np.isfinite(table[:, 0]).all() for table in found.values()):
                break
    medians = [np.median(found[level].reshape(-1, runs, 2), axis=0) for level in levels]
    return [(*one[np.argmin(one[:, 0])], int(np.argmin(one[:, 0]))) for one in medians]


Found = list[tuple[float, float, str]]  # bytes up and down to each level, and what was tuned


def compared(f: Federated, levels: list[float]) -> Iterator[tuple[str, Found, float]]:
    """Every method with what it needs to each level of f − f*, and the bytes of its setup."""
    L, least = f.smoothness(), find_infimum(f).found
    gammas = MULTIPLES / np.linalg.eigvalsh(L)[-1]

    def reached(rounds: Rounds, runs: int = 1, most: int = ROUNDS) -> list[tuple[float, float, int]]:
        return until(((f.value(X) - least, up, down) for X, up, down in rounds), levels, runs, most)

    local = {steps: reached(fedavg(f, gammas, steps), len(gammas), most) for steps, most in LOCAL.items()}
    best = [min((*one[j], steps) for steps, one in local.items()) for j in range(len(levels))]
    yield "FedAvg, tuned", [(up, down, f"{MULTIPLES[i]:g}, {steps} steps") for up, down, i, steps in best], 0.0
    for name, method in (("DASHA, tuned", dasha), ("MARINA, tuned", marina)):
        found = reached(method(f.client_gradients, f.d, np.tile(gammas, SEEDS), np.random.default_rng(0)), len(gammas))
        yield name, [(up, down, f"{MULTIPLES[i]:g}") for up, down, i in found], 0.0
    momentum = optimal_method(L, K, goal="linear", strong_convexity=RIDGE, momentum=True)
    ours = {"momentum": (until(shared_draws(momentum, f, least), levels, 1), f.d * (f.d + 1) / 2)}
    for name, feedback in {
        "feedback": Feedback(L, K, clients=f.n),
        "feedback, one client": Feedback.from_client(f.clients[0].smoothness(), K, clients=f.n),
        "feedback, no L": Feedback(None, K, clients=f.n),
    }.items():
        ours[name] = reached(feedback_rounds(feedback, f, f.n)), feedback.setup_floats.largest
    for name, (found, setup) in ours.items():
        yield name, [(up, down, "none") for up, down, _ in found], FLOAT * setup


def table(name: str, levels: list[float], methods: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for method, found, setup in methods:
        for level, (up, down, tuned) in zip(levels, found, strict=True):
            sent = {"up": up / 1e3, "down": down / 1e3, "setup": setup / 1e3, "tuned": tuned}
            yield {"table": "bytes", "problem": name, "method": method, "level": level, **sent}


def logistic(data: Dataset, clients: int, how: str) -> Federated:
    return federated_logistic(split(data, clients, np.random.default_rng(42), how), RIDGE, "ridge")


def mushrooms() -> Dataset:
    """The data of the baseline, with a column of ones for the bias."""
    data = load_dataset("mushrooms")
    return Dataset(data.name, np.column_stack([data.A.toarray(), np.ones(data.m)]), data.b)


def main(output: Path) -> None:
    data, found, levels = mushrooms(), [], [1e-2, 1e-4, 1e-6]
    parts = {how: logistic(data, CLIENTS, how) for how in ("shuffled", "label")}
    for row in chain(
        forgotten(logistic(data, 20, "label"), 60),
        table("logistic", levels, compared(parts["shuffled"], levels)),
        table("by label", levels, compared(parts["label"], levels)),
    ):
        print(row, flush=True)
        found.append(row)
    text = pd.DataFrame(found).to_csv(index=False, float_format="%.4g")
    command = "PYTHONPATH=validation python -m benchmarks.flower docs/results/flower.csv"
    output.write_text(f"{origin(command)}\n{text}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
