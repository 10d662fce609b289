"""Write the plan: the only moment at which the clients' smoothness matrices are needed, never their data.

python -m logistic_app.plan plan.npz --method feedback --floats 25 --clients 4
"""

import argparse

import numpy as np

from logistic_app.task import REG, problem
from stepsize_opt import RandK, optimal_method, optimal_stepsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--method", choices=["sketch", "subspace", "momentum", "feedback"], default="feedback")
    parser.add_argument("--floats", type=int, default=25, metavar="K", help="floats per round of each client")
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    f, k = problem(given.clients), given.floats
    L = f.smoothness()
    if given.method == "feedback":
        np.savez(given.path, L=L, k=k, clients=given.clients)
        return
    if given.method == "sketch":
        plan = optimal_stepsize(L, RandK(f.d, k))
    elif given.method == "subspace":
        plan = optimal_method(L, k)
    else:
        plan = optimal_method(L, k, goal="linear", strong_convexity=REG, momentum=True)
    plan.save(given.path)
    print(plan)


if __name__ == "__main__":
    main()
