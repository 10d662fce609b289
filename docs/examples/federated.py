"""Federated learning with heterogeneous clients: how many rounds each method needs, proved."""

import numpy as np

from stepsize_opt import RandK, compare_distributed, optimal_stepsize
from stepsize_opt.problems import find_federated_infimum
from stepsize_validation.data import federated_logistic, load_dataset, split

data = load_dataset("breast_cancer")
rng = np.random.default_rng(0)
clients = federated_logistic(split(data, 6, rng, kind="dirichlet", concentration=0.5), reg=0.1)
infimum = find_federated_infimum(clients)
gap = float(clients.value(np.zeros((1, clients.d)))[0]) - infimum.whole.proved

table = compare_distributed(
    clients.client_smoothness(),
    RandK(clients.d, 3),
    epsilon2=1e-2,
    initial_gap=gap,
    delta_inf=infimum.delta_inf,
)
print(f"{clients.n} clients with {[client.m for client in clients.clients]} samples, Δ^inf = {infimum.delta_inf:.3f}")
print(table)

# Each row above bounds the gradient in a norm of its own.  DCGD's is the Euclidean norm: compare in that one.
dcgd = next(row.rounds for row in table.rows if row.method == "DCGD")
shared = optimal_stepsize(clients.smoothness(), RandK(clients.d, 3), goal="euclidean")
rounds = shared.iterations(epsilon2=1e-2, initial_gap=gap)
print(f"Euclidean norm: textbook DCGD {dcgd} rounds, a shared sketch {rounds}")
