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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from stepsize_opt import (
    Feedback,
    LowRankPlusDiagonal,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
)
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
Matrices = dict[str, Any]


def read_matrix(plain: Any) -> Any:
    """Read a dense matrix, or a diagonal plus low rank from its factor and diagonal."""
    if isinstance(plain, dict):
        return LowRankPlusDiagonal(np.array(plain["factor"]), np.array(plain["diagonal"]))
    return np.array(plain)


def goal_of(case: Case) -> dict[str, Any]:
    """Return the arguments that choose the goal, and momentum where the case has it."""
    momentum = {"momentum": True} if case.get("momentum") else {}
    return goal_arguments(case["goal"], case.get("strong_convexity")) | momentum


def solved(case: Case, L: Any) -> Any:
    """Solve the problem of one node."""
    return optimal_stepsize(
        L,
        read_sketch(case["sketch"], L.shape[0]),
        algorithm=case["algorithm"],
        tol=TOLERANCE,
        structure=read_structure(case["structure"]),
        **goal_of(case),
    )


def node(case: Case, matrices: Matrices) -> Answer:
    """Solve the problem of one node; K only for goals in which it depends on nothing else."""
    result = solved(case, matrices[case["L"]])
    certificate = result.certificate
    return {
        "status": result.status,
        "lower": certificate.log_det,
        "upper": certificate.upper_bound,
        "rate": result.rate,
        "K": result.iterations(epsilon2=1e-6, initial_gap=1.0) if case["goal"] in ("paper", "descent") else None,
    }


def clients(case: Case, matrices: Matrices) -> Answer:
    """Solve the problem of n clients."""
    d = matrices[case["L"][0]].shape[0]
    result = optimal_distributed_stepsize(
        [matrices[name] for name in case["L"]],
        [read_sketch(sketch, d) for sketch in case["sketch"]],
        algorithm=case["algorithm"],
        tol=TOLERANCE,
        structure=read_structure(case["structure"]),
        goal=case["goal"],
        iterations=case["iterations"],
        **case["targets"],
    )
    return {
        "status": result.status,
        "lower": result.certificate.log_rate,
        "upper": result.certificate.log_rate_bound,
        "rate": result.rate,
        "K": result.K,
    }


def limit(case: Case, matrices: Matrices) -> Answer:
    """Compute the limit of k floats per round."""
    found = compression_limit(matrices[case["L"]], case["k"], **goal_of(case))
    return {"status": "optimal", "lower": found.value, "upper": found.upper, "rate": found.value}


def subspace(case: Case, matrices: Matrices) -> Answer:
    """Compute the subspace method that attains the limit."""
    found = optimal_method(matrices[case["L"]], case["k"], **goal_of(case))
    certificate = found.certificate
    return {"status": "optimal", "lower": certificate.log_det, "upper": certificate.upper_bound, "rate": found.rate}


def runs(case: Case, matrices: Matrices) -> Answer:
    """Run a method for 40 rounds and two seeds on f(x) = xᵀLx/2 − 1ᵀx; the stepsize is not solved for."""
    L = matrices[case["L"]]
    objective = Quadratic(L, np.ones(len(L)))
    if case["method"] == "subspace":
        record = run(objective, optimal_method(L, case["k"], **goal_of(case)), iterations=40, seeds=2)
    elif case.get("momentum"):
        record = run(objective, solved(case, L), iterations=40, seeds=2)
    else:
        sketch = read_sketch(case["sketch"], len(L))
        D = case["scale"] * np.diag(1.0 / np.diag(L))
        record = run(objective, D, sketch, algorithm=case["method"], iterations=40, seeds=2)
    return {
        "values": record.values[:, -1].tolist(),
        "norms": record.euclidean[:, -1].tolist(),
        "sent": float(record.sent.sum()),
    }


def feedback(case: Case, matrices: Matrices) -> Answer:
    """Run feedback for 40 rounds on f(x) = xᵀLx/2 − 1ᵀx."""
    L = matrices[case["L"]]
    metric = {"full": L, "diagonal": np.diag(np.diag(L)), "none": None}[case["metric"]]
    record = run_feedback(Quadratic(L, np.ones(len(L))), Feedback(metric, case["k"]), rounds=40)
    return {
        "values": [float(record.values[-1])],
        "norms": record.bounds[-1:].tolist(),
        "sent": float(record.floats[-1]),
        "accepted": int(record.accepted.sum()),
    }


CALLS: dict[str, Callable[[Case, Matrices], Answer]] = {
    "node": node,
    "clients": clients,
    "limit": limit,
    "subspace": subspace,
    "run": runs,
    "feedback": feedback,
}


def stored() -> tuple[Matrices, list[Case]]:
    """Read the plain matrices by name, and the cases."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return content["matrices"], content["cases"]


def answers(plain: Matrices, cases: list[Case]) -> Iterator[tuple[Case, Answer]]:
    """Yield every case with the answer of the code as it is."""
    matrices = {name: read_matrix(matrix) for name, matrix in plain.items()}
    for case in cases:
        yield case, CALLS[case["call"]](case, matrices)


def differences(kept: Answer, now: Answer) -> list[str]:
    """Describe what an answer has worse than, or apart from, the stored one."""
    return differences_of_runs(kept, now) if "values" in kept else differences_of_results(kept, now)


def differences_of_results(kept: Answer, now: Answer) -> list[str]:
    """Compare status, rate and the interval of the certificate."""
    found = []
    if STATUSES.index(now["status"]) > STATUSES.index(kept["status"]):
        found.append(f"status {kept['status']} became {now['status']}")
    if not math.isclose(kept["rate"], now["rate"], rel_tol=TOLERANCE):
        found.append(f"rate {kept['rate']!r} became {now['rate']!r}")
    if now["lower"] > kept["upper"] or kept["lower"] > now["upper"]:
        found.append(f"[{now['lower']}, {now['upper']}] and [{kept['lower']}, {kept['upper']}] have no common point")
    return found


def differences_of_runs(kept: Answer, now: Answer) -> list[str]:
    """Compare where a run ends and what it sent."""
    close = all(
        math.isclose(x, y, rel_tol=RUNS_TOLERANCE)
        for name in ("values", "norms")
        for x, y in zip(kept[name], now[name], strict=True)
    )
    equal = all(kept.get(name) == now.get(name) for name in ("sent", "accepted"))
    return [] if close and equal else [f"{kept} became {now}"]


def write(matrices: Matrices, cases: list[Case]) -> None:
    """Write the file, a matrix or a case on each line."""
    lines = [
        '{"matrices": {',
        ",\n".join(f"{json.dumps(name)}: {json.dumps(matrix)}" for name, matrix in matrices.items()),
        '}, "cases": [',
        ",\n".join(json.dumps(case) for case in cases),
        "]}",
    ]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compare(plain: Matrices, cases: list[Case]) -> int:
    """Print every difference; return how many answers differ."""
    differing = 0
    for case, answer in answers(plain, cases):
        found = differences(case["answer"], answer)
        differing += bool(found)
        question = {name: value for name, value in case.items() if name != "answer"}
        for sentence in found:
            print(f"{question}: {sentence}")
    print(f"{len(cases)} answers, {differing} differ from those stored")
    return differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the answers to golden.json")
    plain, cases = stored()
    if parser.parse_args().write:
        write(plain, [{**case, "answer": answer} for case, answer in answers(plain, cases)])
        return 0
    return int(compare(plain, cases) > 0)


if __name__ == "__main__":
    sys.exit(main())
