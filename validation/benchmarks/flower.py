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
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import store
from stepsize_opt import Feedback, optimal_method
from stepsize_opt.problems import Federated, find_infimum
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.data import Dataset, federated_logistic, load_dataset, split
from stepsize_validation.runs import run

CLIENTS, K, SEEDS, ROUNDS, RIDGE = 5, 10, 3, 4000, 1e-3
LEVELS: Vector = np.array([1e-2, 1e-4, 1e-6])
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


def until(rounds: Excesses, runs: int = 1, most: int = ROUNDS) -> Any:
    """The bytes up and down to each level, shape (levels, runs, 2): medians over the seeds.

    The rows of a round are seed by seed, ``runs`` stepsizes each.
    """
    sent: Any = 0.0
    found: Any = math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        for excess, up, down in islice(rounds, most):
            sent = sent + np.stack(np.broadcast_arrays(up, down, excess)[:2], axis=-1)
            found = np.where((excess <= LEVELS[:, None])[..., None] & np.isinf(found), sent, found)
            if np.isfinite(found).all():
                break
    return np.median(found.reshape(len(LEVELS), -1, runs, 2), axis=1)


def compared(name: str, f: Federated) -> Iterator[dict[str, Any]]:
    """A row for each method and level of f − f*: what it needs, the best way to tune it, and the bytes of its setup."""
    L, least = f.smoothness(), find_infimum(f).found
    gammas = MULTIPLES / np.linalg.eigvalsh(L)[-1]

    def reached(rounds: Rounds, runs: int = 1, most: int = ROUNDS) -> Any:
        return until(((f.value(X) - least, up, down) for X, up, down in rounds), runs, most)

    def rows(method: str, found: Any, ways: Sequence[str] = ("none",), setup: float = 0.0) -> Iterator[dict[str, Any]]:
        for level, sent in zip(LEVELS, found, strict=True):
            best = int(sent[:, 0].argmin())
            up, down = sent[best] / 1e3
            told = {"up": up, "down": down, "setup": setup / 1e3, "tuned": ways[best]}
            yield {"table": "bytes", "problem": name, "method": method, "level": level, **told}

    local = [reached(fedavg(f, gammas, steps), len(gammas), most) for steps, most in LOCAL.items()]
    ways = [f"{multiple:g}, {steps} steps" for multiple in MULTIPLES for steps in LOCAL]
    yield from rows("FedAvg, tuned", np.stack(local, axis=2).reshape(len(LEVELS), -1, 2), ways)
    for method, points in (("DASHA, tuned", dasha), ("MARINA, tuned", marina)):
        rounds = points(f.client_gradients, f.d, np.tile(gammas, SEEDS), np.random.default_rng(0))
        yield from rows(method, reached(rounds, len(gammas)), [f"{multiple:g}" for multiple in MULTIPLES])
    momentum = optimal_method(L, K, goal="linear", strong_convexity=RIDGE, momentum=True)
    yield from rows("momentum", until(shared_draws(momentum, f, least)), setup=FLOAT * f.d * (f.d + 1) / 2)
    for method, feedback in {
        "feedback": Feedback(L, K, clients=f.n),
        "feedback, one client": Feedback.from_client(f.clients[0].smoothness(), K, clients=f.n),
        "feedback, no L": Feedback(None, K, clients=f.n),
    }.items():
        found = reached(feedback_rounds(feedback, f, f.n))
        yield from rows(method, found, setup=FLOAT * feedback.setup_floats.largest)


def logistic(data: Dataset, clients: int, how: str) -> Federated:
    return federated_logistic(split(data, clients, np.random.default_rng(42), how), RIDGE, "ridge")


def mushrooms() -> Dataset:
    """The data of the baseline, with a column of ones for the bias."""
    data = load_dataset("mushrooms")
    return Dataset(data.name, np.column_stack([data.A.toarray(), np.ones(data.m)]), data.b)


def main(output: Path) -> None:
    data = mushrooms()
    parts = {name: logistic(data, CLIENTS, how) for name, how in (("logistic", "shuffled"), ("by label", "label"))}
    rows = []
    for row in chain(forgotten(logistic(data, 20, "label"), 60), *(compared(name, f) for name, f in parts.items())):
        print(row, flush=True)
        rows.append(row)
    command = "PYTHONPATH=validation python -m benchmarks.flower docs/results/flower.csv"
    store(rows, output, command)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
