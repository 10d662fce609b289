"""The tables of docs/flower.md: bytes of one client on mushrooms, in the setting of Flower's baseline ``dasha``.

PYTHONPATH=tests python -m benchmarks.flower

The baseline (baselines/dasha in Flower's repository): 5 clients with random rows, a linear model with bias (d = 113),
x⁰ = 0, rand-10, the loss (1 − σ(b aᵀx))², DASHA (Tyurin, Richtárik 2023) and MARINA (Gorbunov et al. 2021) with a
first round of full gradients, a = 1/(2ω + 1), p = k/d, and stepsizes 0.25, 0.5 and 1.  Here they have the best of
MULTIPLES at each level, the median of SEEDS runs, and the runs that find it are not counted.

Bytes of one client: 4 for a float.  DASHA and MARINA: k floats up (the server knows the seeds, so that places cost
nothing), d in a round of full gradients, and d down, as the baseline sends x.  The methods of this package: what
``stepsize_opt.flower`` puts into its packets, with 4 bytes for a float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from stepsize_opt import Feedback, optimal_method
from stepsize_opt.problems import Federated, find_infimum
from stepsize_solvers.programs import Matrix, Vector
from stepsize_validation.data import Dataset, federated_logistic, load_dataset, split
from stepsize_validation.experiments.versus import low_rank_bound
from stepsize_validation.runs import first_below

CLIENTS, K, SEEDS, ROUNDS, RIDGE = 5, 10, 3, 4000, 1e-3
MULTIPLES: Vector = np.exp2(np.arange(-2, 9, dtype=np.float64))
FLOAT = 4
# max |φ''| of φ(z) = (1 − σ(z))² is below this: with σ = σ(z), φ'' = 2σ(1 − σ)²(3σ − 1), largest near σ = 0.61.
CURVATURE = 0.1541

Gradients = Callable[[Matrix], Any]
# A point for each run, and the bytes up and down of each run in this round.
Rounds = Iterator[tuple[Matrix, Any, Any]]


@dataclass(frozen=True, eq=False)
class SquaredError:
    """f(x) = (1/m) Σ (1 − σ(bⱼ aⱼᵀx))², the loss of the baseline; rows of ``A`` are bⱼaⱼ."""

    A: Matrix

    @property
    def d(self) -> int:
        return int(self.A.shape[1])

    @property
    def lower_bound(self) -> float:
        return 0.0

    def smoothness(self) -> Matrix:
        return CURVATURE * self.A.T @ self.A / len(self.A)

    def value(self, X: Matrix) -> Vector:
        return np.asarray(np.mean((1.0 - self._sigma(X)) ** 2, axis=1))

    def gradient(self, X: Matrix) -> Matrix:
        s = self._sigma(X)
        return np.asarray(-2.0 * (s * (1.0 - s) ** 2) @ self.A / len(self.A))

    def _sigma(self, X: Matrix) -> Matrix:
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * (X @ self.A.T))))


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


def shared_draws(step: Any, gradient: Gradients, d: int, seeds: int) -> Rounds:
    """The subspace method, or momentum: k floats up, and their mean down."""
    generators = [np.random.default_rng(seed) for seed in range(seeds)]
    momentum = hasattr(step, "advance")
    states: list[Any] = [step.start(np.zeros(d)) if momentum else np.zeros(d) for _ in generators]
    while True:
        draws = [step.draw(rng) for rng in generators]
        points = np.array([step.point(state) if momentum else state for state in states])
        sent = [step.encode(g, draw) for g, draw in zip(gradient(points), draws, strict=True)]
        triples = list(zip(states, sent, draws, strict=True))
        states = [step.advance(*one) if momentum else one[0] - step.decode(*one[1:]) for one in triples]
        size = np.array([FLOAT * len(numbers) for numbers in sent])
        yield np.array([state.x if momentum else state for state in states]), size, size


def feedback_rounds(L: Any, f: Federated) -> Rounds:
    """k floats, their places and two values of f up; the union of places, W, c and the decision down."""
    feedback = Feedback(L, K, clients=f.n)
    clients = [feedback.client(i) for i in range(f.n)]
    x = np.zeros((1, f.d))
    server = feedback.server(x[0], f.value(x))
    while True:
        gradients = f.client_gradients(server.x[None])[0]
        messages = [client.message(g) for client, g in zip(clients, gradients, strict=True)]
        server.decide(f.value(server.proposal(messages)[None]))
        union = len(np.unique([message.places for message in messages]))
        yield server.x[None], (K + 2) * FLOAT + places(K, f.d), (union + 2) * FLOAT + places(union, f.d) + 4 + 1


def sampled_feedback(L: Any, f: Federated, present: int, seed: int) -> Iterator[Vector]:
    """The points of ``FeedbackStrategy`` with so many clients in a round, drawn at random."""
    feedback, rng = Feedback(L, K, clients=f.n), np.random.default_rng(seed)
    clients: dict[int, Any] = {}
    x = np.zeros(f.d)
    server = feedback.server(x, f.value(x[None]))
    while True:
        drawn = np.sort(rng.choice(f.n, present, replace=False))
        gradients = f.client_gradients(server.x[None])[0]
        messages = [clients.setdefault(i, feedback.client(i)).message(gradients[i]) for i in drawn]
        smallest = float(np.mean([np.abs(message.values).min() for message in messages]))
        s = np.mean([client.memory for client in clients.values()], axis=0)
        y = server.propose(s, server.residual_bound(smallest) if present == f.n else math.inf)
        server.f, after = (float(np.mean([f.clients[i].value(z[None]) for i in drawn])) for z in (server.x, y))
        server.decide(after)
        server.rejections *= present == f.n
        yield server.x


def partial_table(parts: dict[str, Federated], levels: list[float]) -> None:
    """Rounds until f − f*, over all clients, is below each level: the median of the seeds."""
    print("| rows | clients in a round | " + " | ".join(f"{level:g}" for level in levels) + " |")
    print("|---|---:|" + "---:|" * len(levels))
    for name, f in parts.items():
        L, least = f.smoothness(), find_infimum(f).found
        for present in (CLIENTS, 3, 1):
            runs = []
            for seed in range(SEEDS):
                points = np.array(list(islice(sampled_feedback(L, f, present, seed), ROUNDS // 4)))
                runs.append([first_below(f.value(points) - least, level) or math.inf for level in levels])
            cells = [f"{median:.0f}" if math.isfinite(median) else "—" for median in np.median(runs, axis=0)]
            print(f"| {name} | {present} of {CLIENTS} | {' | '.join(cells)} |", flush=True)


def places(count: int, d: int) -> int:
    """Bytes of ``stepsize_opt.flower.wire.pack_places``."""
    return min(2 * count, -(-d // 8))


def until(rounds: Rounds, measure: Gradients, levels: list[float], runs: int) -> list[tuple[float, float, int]]:
    """The bytes up and down to each level, medians over the seeds, and which stepsize needs the fewest up.

    The rows of a round are seed by seed, ``runs`` stepsizes each.
    """
    up: Any = 0
    down: Any = 0
    found: dict[float, Any] = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for X, more_up, more_down in islice(rounds, ROUNDS):
            up, down, size = up + more_up, down + more_down, measure(X)
            for level in levels:
                table = found.setdefault(level, np.full((len(X), 2), math.inf))
                new = (size <= level) & np.isinf(table[:, 0])
                table[new] = np.stack(np.broadcast_arrays(up, down, size)[:2], axis=1)[new]
            if all(np.isfinite(table[:, 0]).all() for table in found.values()):
                break
    medians = [np.median(found[level].reshape(-1, runs, 2), axis=0) for level in levels]
    return [(*one[np.argmin(one[:, 0])], int(np.argmin(one[:, 0]))) for one in medians]


def row(name: str, found: list[tuple[float, float, int]], setup: float, stepsizes: Vector | None = None) -> str:
    cells = [f"{up / 1e3:.2f} / {down / 1e3:.2f}" if math.isfinite(up) else "—" for up, down, _ in found]
    used = [f"{stepsizes[i]:g}" for up, _, i in found if math.isfinite(up)] if stepsizes is not None else []
    return f"| {name} | {' | '.join(cells)} | {setup / 1e3:.1f} | {', '.join(used) or 'none'} |"


def table(f: Federated, L: Matrix, measure: Gradients, levels: list[float], proved: dict[str, Any]) -> None:
    print("| method | " + " | ".join(f"{level:g}" for level in levels) + " | setup | tuned |")
    print("|---|" + "---:|" * (len(levels) + 2))
    gammas = MULTIPLES / np.linalg.eigvalsh(L)[-1]
    for name, method in (("DASHA, tuned", dasha), ("MARINA, tuned", marina)):
        rounds = method(f.client_gradients, f.d, np.tile(gammas, SEEDS), np.random.default_rng(0))
        print(row(name, until(rounds, measure, levels, len(gammas)), 0.0, MULTIPLES), flush=True)
    whole = FLOAT * f.d * (f.d + 1) / 2
    for name, step in proved.items():
        rounds = shared_draws(step, f.gradient, f.d, SEEDS)
        print(row(name, until(rounds, measure, levels, 1), whole), flush=True)
    low_rank = low_rank_bound(L)
    for name, basis, setup in (
        ("feedback", L, whole),
        ("feedback, rank 4 of L", low_rank, FLOAT * low_rank.U.size),
        ("feedback, no L", None, 0.0),
    ):
        print(row(name, until(feedback_rounds(basis, f), measure, levels, 1), setup), flush=True)


def main() -> None:
    data = load_dataset("mushrooms")
    rows = np.column_stack([data.A.toarray(), np.ones(data.m)])
    parts = split(Dataset(data.name, rows, data.b), CLIENTS, np.random.default_rng(42))

    f = Federated(tuple(SquaredError(np.asarray(part.A) * part.b[:, None]) for part in parts))
    L = f.smoothness() + RIDGE * np.eye(f.d)  # one-hot columns and the bias are dependent

    # A step that is too long ends where σ is flat: ‖∇f‖ is small there and f is not, so that f has to tell.  f* = 0.
    print(f"d = {f.d}, k = {K}, {CLIENTS} clients; kB up / down of one client until f ≤\n")
    table(f, L, f.value, [1e-1, 1e-2, 3e-3, 1e-3], {"subspace": optimal_method(L, K)})

    g = federated_logistic(parts, RIDGE, "ridge")
    L, least = g.smoothness(), find_infimum(g).found
    momentum = optimal_method(L, K, goal="linear", strong_convexity=RIDGE, momentum=True).compressor()
    print(f"\nlogistic regression, ridge {RIDGE:g}; kB up / down of one client until f − f* ≤\n")
    table(g, L, lambda X: g.value(X) - least, [1e-2, 1e-3, 1e-4, 1e-6], {"momentum": momentum})

    data = Dataset(data.name, rows, data.b)
    by_label = federated_logistic(split(data, CLIENTS, np.random.default_rng(42), "label"), RIDGE, "ridge")
    print("\nthe same with feedback and absent clients; rounds until f − f* ≤\n")
    partial_table({"at random": g, "sorted by label": by_label}, [1e-2, 1e-3, 1e-4, 1e-6])


if __name__ == "__main__":
    main()
