"""Certificate files and their verifier: it agrees with the library, stands alone, and is able to say no.

The truth of a changed certificate is decided by the exact checker of the tests, which shares nothing with either.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.exact import log
from shared.goals import GOALS, arguments_of
from shared.judges import Candidate, Node
from shared.strategies import problems, seeds, structures
from stepsize_opt import IndependentSampling, LowRankPlusDiagonal, RandK, optimal_stepsize, verify
from stepsize_opt.certificate_files import asked, node_document, plain_matrix
from stepsize_opt.results import StepsizeResult
from stepsize_validation.cli import main
from stepsize_validation.data import random_smoothness

STUDY = os.environ.get("HYPOTHESIS_PROFILE") == "study"
METHODS = ("det-CGD1", "det-CGD2")


def written(result: StepsizeResult, folder: Path) -> dict[str, Any]:
    """The document that a result writes."""
    document: dict[str, Any] = json.loads(result.certificate_file(folder / "D.cert.json").read_text())
    return document


def signed(document: dict[str, Any]) -> dict[str, Any]:
    """A changed document with the sentence and the SHA-256 of its new content."""
    document = {**document, "statement": verify.statement(document)}
    return {**document, "sha256": verify.digest(document)}


def accepts(document: dict[str, Any]) -> bool:
    """Whether the verifier proves the document, its sentence and SHA-256 made anew."""
    try:
        verify.verify(signed(document))
    except verify.Refused:
        return False
    return True


def accepts_lower(document: dict[str, Any]) -> bool:
    """Whether the verifier proves what the document says of its D."""
    try:
        verify.Node(document).check(verify.number(document["lower"]))
    except verify.Refused:
        return False
    return True


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Problems of every sketch, structure, method and goal."""
    L, sketch = draw(problems(max_d=5, max_condition=1e3))
    goal = draw(st.sampled_from(list(GOALS)))
    structure = draw(structures(len(L), max_condition=1e2))
    return Node(L, sketch, draw(st.sampled_from(METHODS)), structure, **arguments_of(goal, 0.5 * L))


@settings(max_examples=300 if STUDY else 40)
@given(node=nodes())
def test_the_verifier_proves_what_the_library_claims(node: Node, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        result = optimal_stepsize(**node.arguments)
    except ValueError:  # the goal convex with a det-CGD2 that does not commute
        assert node.goal == "convex" and node.algorithm == "det-CGD2"
        return
    document = written(result, tmp_path_factory.mktemp("certificate"))
    assert verify.verify(document) == document["statement"]
    upper = float.fromhex(document["upper"])
    end = result.d * math.log(upper) if node.floor is not None else upper
    assert end <= result.certificate.upper_bound + 1e-9 * result.d


def _places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all hexadecimal floats of a document."""
    if isinstance(document, dict):
        return [place for name, value in document.items() for place in _places(value, (*path, name))]
    if isinstance(document, list):
        return [place for i, value in enumerate(document) for place in _places(value, (*path, i))]
    return [path] if isinstance(document, str) and document.lstrip("-").startswith("0x") else []


def _changed(document: dict[str, Any], path: tuple[Any, ...], change: float) -> dict[str, Any]:
    """The document with another float; a symmetric matrix stays one."""
    out: dict[str, Any] = json.loads(json.dumps(document))
    places = [path]
    if path[0] in ("L", "D", "M") and isinstance(path[1], int):
        places.append((path[0], path[2], path[1]))
    for place in places:
        holder: Any = out
        for step in place[:-1]:
            holder = holder[step]
        old = float.fromhex(holder[place[-1]])
        new = math.nextafter(old, math.copysign(math.inf, change)) if abs(change) == 1.0 else old + change
        holder[place[-1]] = new.hex()
    return out


def _floats(rows: Any) -> Any:
    return np.array([[float.fromhex(x) for x in row] for row in rows])


def is_true_of_D(node: Node, document: dict[str, Any]) -> bool:
    """Whether what the document says of its D holds, by the exact checker."""
    goal, M = node.goal, None
    if document["M"] is not None:  # the I of euclidean is a matrix like any other
        plain = document["M"]
        goal, M = "linear", np.diag(_floats([plain["diagonal"]])[0]) if isinstance(plain, dict) else _floats(plain)
    sketch = node.sketch
    if document["sketch"]["kind"] == "IndependentSampling":
        sketch = type(sketch)([float.fromhex(q) for q in document["sketch"]["q"]])
    changed = Node(_floats(document["L"]), sketch, node.algorithm, node.structure, goal, M)
    one, lower = Candidate.of(changed, _floats(document["D"])), float.fromhex(document["lower"])
    value = Decimal(lower) if changed.floor is None else len(one.D) * log(Fraction(lower)) if lower > 0.0 else None
    if value is None or not one.is_feasible():
        return False
    if changed.floor is not None:
        return one.is_above_floor(one.metric, Fraction(lower))
    return one.reaches(value)


CHANGES = (1.0, -1.0, 1e-12, -1e-3)  # ±1: to the next float


@pytest.mark.parametrize("goal", GOALS)
def test_every_number_counts(goal: str, tmp_path: Path) -> None:
    """Change one float after the other: what becomes false is refused, and D is judged as by the exact checker."""
    L = random_smoothness(np.random.default_rng(3), 2, 20.0)
    node = Node(L, IndependentSampling([0.5, 0.9]), **arguments_of(goal, 0.5 * L))
    document = written(optimal_stepsize(**node.arguments), tmp_path)
    assert accepts(document) and is_true_of_D(node, document)
    refused = 0
    for path in _places(document):
        for change in CHANGES:
            changed = _changed(document, path, change)
            if path[0] == "sketch" and not 0.0 < float.fromhex(changed["sketch"]["q"][path[-1]]) <= 1.0:
                continue
            true = path[0] == "multipliers" or is_true_of_D(node, changed)
            assert accepts_lower(changed) == true, (path, change)
            accepted = accepts(changed)
            assert true or not accepted, (path, change)
            refused += not accepted
    assert refused > len(CHANGES)


@settings(max_examples=200 if STUDY else 25)
@given(seed=seeds, scale=st.sampled_from([1e-14, 1e-9, 1e-3, 1.0]))
def test_other_multipliers_prove_no_more_than_is_true(seed: int, scale: float) -> None:
    """The bound of any multiplier lies above the value of the best D known."""
    rng = np.random.default_rng(seed)
    L, goal = random_smoothness(rng, 3, 20.0), str(rng.choice(list(GOALS)))
    result = optimal_stepsize(L, RandK(3, 2), **arguments_of(goal, 0.5 * L))
    document = {**node_document(result, asked(result.question)), "lower": "0x1p+0"}
    factor = _floats(document["multipliers"]["factor"])
    factor *= 1.0 + scale * rng.standard_normal(factor.shape)
    document["multipliers"]["factor"] = plain_matrix(factor)
    try:
        end = verify.Node(document).upper_end()
    except verify.Refused:
        return
    assert end >= Fraction(result.rate if goal in ("euclidean", "linear") else result.log_det)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    L = random_smoothness(np.random.default_rng(0), 4, 10.0)
    return written(optimal_stepsize(L, RandK(4, 2)), tmp_path_factory.mktemp("certificate"))


@pytest.mark.parametrize(
    "change",
    [
        {"lower": (0.5).hex()},
        {"statement": "D is the best matrix there is."},
        {"format": "stepsize-opt certificate 0"},
        {"kind": "clients"},
        {"D": []},
        {"sketch": {"kind": "RandK", "k": 5}},
        {"sketch": {"kind": "IndependentSampling", "q": [(2.0).hex()] * 4, "sizes": [1] * 4}},
        {"upper": "nan"},
        {"structure": {"sizes": [2, 2], "W": None}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_file_is_refused(document: dict[str, Any], change: dict[str, Any], tmp_path: Path) -> None:
    """With the SHA-256 of the old content and with that of the new one."""
    stale, fresh = {**document, **change}, {**document, **change}
    fresh["sha256"] = verify.digest(fresh)
    for i, one in enumerate((stale, fresh)):
        path = tmp_path / f"{i}.json"
        path.write_text(json.dumps(one))
        run = _alone(tmp_path, path)
        assert run.returncode == 1 and "REFUSED" in run.stdout, run.stdout + run.stderr


def _alone(folder: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    """Run a copy of the verifier without site-packages, in a folder that holds nothing else of ours."""
    copy = shutil.copy(verify.__file__, folder / "verify.py")
    command = [sys.executable, "-I", "-S", copy, *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False)


def test_it_runs_alone_and_accepts(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "D.cert.json"
    path.write_text(json.dumps(document))
    run = _alone(tmp_path, path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert document["statement"] in run.stdout


def test_the_example_of_the_docs_is_proved() -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "D.cert.json"
    assert "no D of the same structure" in verify.verify(json.loads(example.read_text()))


@given(seed=seeds, rank=st.integers(15, 22), shift=st.sampled_from([-1, 0, 1]))
@settings(max_examples=20)
def test_rounded_factors_agree_with_exact_elimination(seed: int, rank: int, shift: int) -> None:
    """Definite, singular and indefinite whole matrices above the size that is eliminated at once."""
    n = verify.SMALL + 4
    G = np.random.default_rng(seed).integers(-3, 4, (n, rank))
    A = verify.Exact.of((G @ G.T + shift * np.eye(n, dtype=int)).tolist())
    exact, below = verify.determinant(A), verify.determinant_from_below(A)
    assert (exact is None) == (below is None)
    if exact is not None and below is not None:
        assert exact * (1 - Fraction(1, 10**20)) <= below <= exact


@given(x=st.fractions(min_value=Fraction(1, 10**9), max_value=10**9))
@settings(max_examples=50)
def test_logarithms_are_enclosed(x: Fraction) -> None:
    low, high = verify.log_ends(x)
    assert low <= Fraction(log(x)) + Fraction(1, 10**40) and Fraction(log(x)) - Fraction(1, 10**40) <= high
    assert high - low < Fraction(1, 10**30)


@pytest.mark.parametrize("goal", ["paper", "descent"])
def test_low_rank_matrices_keep_their_factors(goal: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    L = LowRankPlusDiagonal(rng.standard_normal((6, 2)), rng.uniform(0.5, 2.0, 6))
    result = optimal_stepsize(L, RandK(6, 2), algorithm="det-CGD2", goal=goal)
    document = written(result, tmp_path)
    assert "inverse" in json.dumps(document["D"]) and "sum" in document["L"]
    assert float.fromhex(document["upper"]) <= result.certificate.upper_bound + 1e-6


def test_a_result_from_a_file_does_not_know_its_L(tmp_path: Path) -> None:
    path = optimal_stepsize(np.diag([1.0, 2.0]), RandK(2, 1)).save(tmp_path / "D.npz")
    with pytest.raises(ValueError, match="does not know its L"):
        StepsizeResult.load(path).certificate_file(tmp_path / "D.cert.json")


def test_a_method_with_momentum_has_no_file(tmp_path: Path) -> None:
    result = optimal_stepsize(np.diag([1.0, 2.0]), RandK(2, 1), goal="linear", strong_convexity=0.5, momentum=True)
    with pytest.raises(ValueError, match="momentum"):
        result.certificate_file(tmp_path / "D.cert.json")


def test_the_command_writes_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "L.npy", random_smoothness(np.random.default_rng(0), 3, 10.0))
    target = tmp_path / "D.cert.json"
    assert main(["solve", str(tmp_path / "L.npy"), "--sketch", "randk:1", "--certificate", str(target)]) == 0
    assert verify.verify(json.loads(target.read_text()))
    assert "D.cert.json" in capsys.readouterr().err
