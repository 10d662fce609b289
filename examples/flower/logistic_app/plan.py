"""Write the plan: the only moment at which the clients' smoothness matrices are needed, never their data.

python -m logistic_app.plan plan.npz --clients 4 --sketch randk:8
"""

import argparse

from logistic_app.task import problem
from stepsize_opt import optimal_method, optimal_stepsize, parse_sketch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--sketch", default="randk:8")
    parser.add_argument("--algorithm", default="det-CGD1")
    parser.add_argument("--subspace", type=float, metavar="K", help="the subspace method with K floats per round")
    given = parser.parse_args()
    f = problem(given.clients)
    if given.subspace is not None:
        plan = optimal_method(f.smoothness(), given.subspace)
    else:
        plan = optimal_stepsize(f.smoothness(), parse_sketch(given.sketch, f.d), algorithm=given.algorithm)
    plan.save(given.path)
    print(plan)


if __name__ == "__main__":
    main()
