"""The golden file: stored problems with the answers of a commit, by which a change of shape is told from a change.

``PYTHONPATH=tests python -m golden.golden`` solves all problems and prints every number with all its bits: run it at
two commits on one machine and compare the texts.  A solver that stops at other points moves answers inside the
tolerance; ``--tol 1e-9`` solves to a finer one, where the rates of both commits agree to 1e-9.  With ``--write`` the
answers in ``golden.json`` are written anew, which a commit does only if its message explains every answer that changed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shared.stored import goal_arguments, read_structure
from stepsize_opt import (
    LowRankPlusDiagonal,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
)
from stepsize_opt.sketches import sketch_of_plain

FILE = Path(__file__).with_name("golden.json")

Case = dict[str, Any]
Answer = dict[str, Any]


def read_matrix(plain: Any) -> Any:
    """A dense matrix, or a diagonal plus low rank from its factor and diagonal."""
    if isinstance(plain, dict):
        return LowRankPlusDiagonal(np.array(plain["factor"]), np.array(plain["diagonal"]))
    return np.array(plain)


def node(case: Case, matrices: dict[str, Any], tol: float = 1e-6) -> Answer:
    """Solve the problem of one node."""
    L = matrices[case["L"]]
    result = optimal_stepsize(
        L,
        sketch_of_plain(case["sketch"], L.shape[0]),
        algorithm=case["algorithm"],
        tol=tol,
        structure=read_structure(case["structure"]),
        **goal_arguments(case["goal"], case.get("strong_convexity")),
    )
    certificate = result.certificate
    return {
        "status": result.status,
        "lower": certificate.log_det,
        "upper": certificate.upper_bound,
        "rate": result.rate,
        "K": result.iterations(epsilon2=1e-6, initial_gap=1.0) if case["goal"] in ("paper", "descent") else None,
    }


def clients(case: Case, matrices: dict[str, Any], tol: float = 1e-6) -> Answer:
    """Solve the problem of n clients."""
    d = matrices[case["L"][0]].shape[0]
    result = optimal_distributed_stepsize(
        [matrices[name] for name in case["L"]],
        [sketch_of_plain(sketch, d) for sketch in case["sketch"]],
        algorithm=case["algorithm"],
        tol=tol,
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


def limit(case: Case, matrices: dict[str, Any], tol: float = 1e-6) -> Answer:
    """The limit of k floats per round without memory, a formula whatever ``tol`` is."""
    L = matrices[case["L"]]
    goal = goal_arguments(case["goal"], case.get("strong_convexity"))
    found = compression_limit(L, case["k"], **goal)
    return {"status": "optimal", "lower": found.value, "upper": found.upper, "rate": found.value, "K": None}


def subspace(case: Case, matrices: dict[str, Any], tol: float = 1e-6) -> Answer:
    """The subspace method that attains the limit, a formula, too."""
    L = matrices[case["L"]]
    goal = goal_arguments(case["goal"], case.get("strong_convexity"))
    found = optimal_method(L, case["k"], **goal)
    certificate = found.certificate
    return {
        "status": "optimal",
        "lower": certificate.log_det,
        "upper": certificate.upper_bound,
        "rate": found.rate,
        "K": None,
    }


CALLS: dict[str, Callable[..., Answer]] = {
    "node": node,
    "clients": clients,
    "limit": limit,
    "subspace": subspace,
}


def stored() -> tuple[dict[str, Any], list[Case]]:
    """The plain matrices by name, and the cases."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return content["matrices"], content["cases"]


def answers(tol: float = 1e-6) -> Iterator[tuple[Case, Answer]]:
    """Every case with the answer of the code as it is."""
    plain, cases = stored()
    matrices = {name: read_matrix(matrix) for name, matrix in plain.items()}
    for case in cases:
        yield case, CALLS[case["call"]](case, matrices, tol)


def write(matrices: dict[str, Any], cases: list[Case]) -> None:
    """Write the file, a matrix or a case on each line."""
    lines = [
        '{"matrices": {',
        ",\n".join(f"{json.dumps(name)}: {json.dumps(matrix)}" for name, matrix in matrices.items()),
        '}, "cases": [',
        ",\n".join(json.dumps(case) for case in cases),
        "]}",
    ]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def bits(value: Any) -> str:
    """A number with all its bits."""
    return value.hex() if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the answers to golden.json")
    parser.add_argument("--tol", type=float, default=1e-6, help="tolerance of the answers that are printed")
    given = parser.parse_args()
    if given.write:
        write(stored()[0], [{**case, "answer": answer} for case, answer in answers()])
        return
    for number, (_, answer) in enumerate(answers(given.tol)):
        print(number, *map(bits, answer.values()))


if __name__ == "__main__":
    main()
