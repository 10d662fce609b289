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

matrices, epsilon2 = clients.client_smoothness(), 1e-2
table = compare_distributed(
    matrices, RandK(clients.d, 3), epsilon2=epsilon2, initial_gap=gap, delta_inf=infimum.delta_inf
)
print(f"{clients.n} clients with {[client.m for client in clients.clients]} samples, Δ^inf = {infimum.delta_inf:.3f}")
print(table)

# Each row above bounds the gradient in a norm of its own.  DCGD's is the Euclidean norm: compare in that one.
dcgd = next(row.rounds for row in table.rows if row.method == "DCGD")
shared = optimal_stepsize(clients.smoothness(), RandK(clients.d, 3), goal="euclidean")
rounds = shared.iterations(epsilon2=epsilon2, initial_gap=gap)

# The closed form of DCGD after Corollary 1, with the scalars ω = d/k − 1, L of f, and the largest of the clients.
top, largest = (np.linalg.eigvalsh(L)[..., -1].max() for L in (clients.smoothness(), np.stack(matrices)))
target, noise = 12.0 * gap / epsilon2, top * largest * (clients.d / 3 - 1.0) / clients.n
formula = target * max(top, target * noise, 4.0 * infimum.delta_inf * noise / epsilon2)
print(f"textbook DCGD by its closed form: {np.ceil(formula):.0f} rounds")
print(f"Euclidean norm: textbook DCGD {dcgd} rounds, a shared sketch {rounds}")
