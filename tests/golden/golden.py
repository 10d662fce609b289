"""The golden file: stored problems with their answers, which distinguish a change of shape from a change of behaviour.

``make golden`` solves all problems to a tolerance of 1e-9 and compares: rates must agree to 1e-9 with those stored, the
interval of a certificate must meet the stored one, no status may be worse, and runs must reach the same values.  It
exits with 1 where an answer differs.  ``--write`` stores the answers anew, which a commit does only if its message
explains what changed.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import Feedback, LowRankPlusDiagonal, compression_limit, optimal_method, optimal_stepsize
from stepsize_opt import optimal_distributed_stepsize as optimal_for_clients
from stepsize_opt.problems import Quadratic
from stepsize_validation import run, run_feedback
from stepsize_validation.properties.stored import goal_arguments, read_sketch, read_structure

FILE = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-9
# Forty rounds amplify what a solved stepsize has of rounding.
RUNS_TOLERANCE = 1e-6
# From the best to the worst.
STATUSES = ("optimal", "optimal_inaccurate", "user_limit", "infeasible", "solver_error")

Case = dict[str, Any]
Answer = dict[str, Any]


def read_matrix(plain: Any) -> Any:
    """Read a dense matrix, or a diagonal plus low rank from its factor and diagonal."""
    if isinstance(plain, dict):
        return LowRankPlusDiagonal(np.array(plain["factor"]), np.array(plain["diagonal"]))
    return np.array(plain)


def goal_of(case: Case) -> dict[str, Any]:
    """Return the arguments that choose the goal, and momentum where the case has it."""
    momentum = {"momentum": True} if case.get("momentum") else {}
    return goal_arguments(case["goal"], case.get("strong_convexity")) | momentum


def question(case: Case) -> dict[str, Any]:
    """Return the method, the structure and the tolerance of a case."""
    structure = read_structure(case["structure"])
    return {"algorithm": case["algorithm"], "structure": structure, "tol": TOLERANCE}


def interval(result: Any, lower: float, upper: float) -> Answer:
    """Return the status of a result, the interval of its certificate and its rate."""
    return {"status": getattr(result, "status", "optimal"), "lower": lower, "upper": upper, "rate": result.rate}


def node(case: Case, L: Any) -> Any:
    """Solve the problem of one node."""
    return optimal_stepsize(L, read_sketch(case["sketch"], L.shape[0]), **question(case), **goal_of(case))


def clients(case: Case, matrices: list[Any]) -> Answer:
    """Solve the problem of n clients."""
    sketches = [read_sketch(sketch, len(matrices[0])) for sketch in case["sketch"]]
    asked = {"goal": case["goal"], "iterations": case["iterations"], **case["targets"]}
    result = optimal_for_clients(matrices, sketches, **question(case), **asked)
    return interval(result, result.certificate.log_rate, result.certificate.log_rate_bound)


def run_of(case: Case, L: Any) -> Answer:
    """Run a method for 40 rounds and two seeds on f(x) = xᵀLx/2 − 1ᵀx."""
    f, asked = Quadratic(L, np.ones(len(L))), {"iterations": 40, "seeds": 2}
    if case["method"] == "subspace":
        record = run(f, optimal_method(L, case["k"], **goal_of(case)), **asked)
    elif case.get("momentum"):
        record = run(f, node(case, L), **asked)
    else:
        D, sketch = case["scale"] * np.diag(1.0 / np.diag(L)), read_sketch(case["sketch"], len(L))
        record = run(f, D, sketch, algorithm=case["method"], **asked)
    norms = record.euclidean[:, -1].tolist()
    return {"values": record.values[:, -1].tolist(), "norms": norms, "sent": float(record.sent.sum())}


def feedback(case: Case, L: Any) -> Answer:
    """Run feedback for 40 rounds on f(x) = xᵀLx/2 − 1ᵀx."""
    metric = {"full": L, "diagonal": np.diag(np.diag(L)), "none": None}[case["metric"]]
    record = run_feedback(Quadratic(L, np.ones(len(L))), Feedback(metric, case["k"]), rounds=40)
    counts = {"sent": float(record.floats[-1]), "accepted": int(record.accepted.sum())}
    return {"values": [float(record.values[-1])], "norms": record.bounds[-1:].tolist(), **counts}


def answer(case: Case, matrices: dict[str, Any]) -> Answer:
    """Return the answer of the code as it is."""
    kind = case["call"]
    if kind == "clients":
        return clients(case, [matrices[name] for name in case["L"]])
    L = matrices[case["L"]]
    if kind in ("run", "feedback"):
        return run_of(case, L) if kind == "run" else feedback(case, L)
    if kind == "limit":
        found = compression_limit(L, case["k"], **goal_of(case))
        return {"status": "optimal", "lower": found.value, "upper": found.upper, "rate": found.value}
    result = node(case, L) if kind == "node" else optimal_method(L, case["k"], **goal_of(case))
    return interval(result, result.certificate.log_det, result.certificate.upper_bound)


def agree(kept: Answer, now: Answer) -> bool:
    """Compare where a run ends and what it sent; or status, rate and the interval of the certificate."""
    if "values" in kept:
        numbers = (np.concatenate([one["values"], one["norms"]]) for one in (kept, now))
        same = all(math.isclose(x, y, rel_tol=RUNS_TOLERANCE) for x, y in zip(*numbers, strict=True))
        return same and all(kept.get(name) == now.get(name) for name in ("sent", "accepted"))
    no_worse = STATUSES.index(now["status"]) <= STATUSES.index(kept["status"])
    meet = now["lower"] <= kept["upper"] and kept["lower"] <= now["upper"]
    return no_worse and meet and math.isclose(kept["rate"], now["rate"], rel_tol=TOLERANCE)


def write(plain: dict[str, Any], cases: list[Case]) -> None:
    """Write the file, a matrix or a case on each line."""
    matrices = ",\n".join(f"{json.dumps(name)}: {json.dumps(matrix)}" for name, matrix in plain.items())
    lines = ",\n".join(map(json.dumps, cases))
    FILE.write_text(f'{{"matrices": {{\n{matrices}\n}}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> int:
    """Compare all answers with those stored, and print those that differ; or store them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the answers to golden.json")
    wanted, content = parser.parse_args(), json.loads(FILE.read_text(encoding="utf-8"))
    plain, cases = content["matrices"], content["cases"]
    matrices = {name: read_matrix(matrix) for name, matrix in plain.items()}
    answers = [answer(case, matrices) for case in cases]
    if wanted.write:
        write(plain, [{**case, "answer": now} for case, now in zip(cases, answers, strict=True)])
        return 0
    differing = [(case, now) for case, now in zip(cases, answers, strict=True) if not agree(case["answer"], now)]
    for case, now in differing:
        print(f"{case} became {now}")
    print(f"{len(cases)} answers, {len(differing)} differ from those stored")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
