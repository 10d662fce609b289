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
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.certificates import best_known, is_true_of_the_answer
from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    DiagonalSketch,
    FiniteSketch,
    Gaussian,
    IndependentSampling,
    LowRankPlusDiagonal,
    RandK,
    compression_limit,
    optimal_method,
    optimal_stepsize,
    verify,
)
from stepsize_opt.results import CompressionLimit, StepsizeResult, SubspaceMethod
from stepsize_validation.cli import main
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import log
from stepsize_validation.properties.strategies import problems, seeds, smoothness_matrices, structures

STUDY = os.environ.get("HYPOTHESIS_PROFILE") == "study"
METHODS = ("det-CGD1", "det-CGD2")
Answer = StepsizeResult | CompressionLimit | SubspaceMethod


def written(answer: Answer, folder: Path) -> dict[str, Any]:
    """The document that an answer writes."""
    document: dict[str, Any] = json.loads(answer.certificate_file(folder / "D.cert.json").read_text())
    return document


def signed(document: dict[str, Any]) -> dict[str, Any]:
    """A changed document with the sentence and the SHA-256 of its new content."""
    document = {**document, "statement": verify.statement(document, verify.KINDS[document["kind"]](document))}
    return {**document, "sha256": verify.digest(document)}


REFUSALS = (verify.Refused, LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


def accepts(document: dict[str, Any]) -> bool:
    """Whether the verifier proves the document, its sentence and SHA-256 made anew."""
    try:
        verify.verify(signed(document))
    except REFUSALS:
        return False
    return True


def accepts_lower(document: dict[str, Any]) -> bool:
    """Whether the verifier proves what the document says of its answer."""
    return accepts({**document, "upper": "inf"})


# ---------------------------------------------------------------- library and verifier agree


@st.composite
def nodes(draw: st.DrawFn) -> Answer:
    """Answers of every sketch, structure, method and goal, some with momentum."""
    L, sketch = draw(problems(max_d=5, max_condition=1e3))
    goal = draw(st.sampled_from(list(GOALS)))
    momentum = goal in ("linear", "convex") and draw(st.booleans())
    algorithm, structure = draw(st.sampled_from(METHODS)), draw(structures(len(L), max_condition=1e2))
    asked = {**arguments_of(goal, 0.5 * L), "algorithm": algorithm, "structure": structure, "momentum": momentum}
    try:
        return optimal_stepsize(L, sketch, **asked)
    except ValueError:  # the goal convex with a det-CGD2 that does not commute
        assert goal == "convex" and algorithm == "det-CGD2" and not momentum
        return optimal_stepsize(L, sketch, **{**asked, "algorithm": "det-CGD1"})


@st.composite
def limits(draw: st.DrawFn) -> Answer:
    """Limits and subspace methods of every goal, some with momentum, of matrices and of factors."""
    L: Any = draw(smoothness_matrices(max_d=5, max_condition=1e3))
    d = len(L)
    momentum = draw(st.booleans())
    goal = draw(st.sampled_from(["linear", "convex"] if momentum else ["descent", "euclidean", "linear"]))
    asked: dict[str, Any] = {**arguments_of(goal, 0.5 * L), "momentum": momentum}
    function = draw(st.sampled_from([compression_limit, optimal_method]))
    if draw(st.booleans()) and (function is optimal_method or not momentum):
        rng = np.random.default_rng(draw(seeds))
        L = LowRankPlusDiagonal(rng.standard_normal((d, draw(st.integers(1, d)))), np.full(d, 0.5))
        asked = {**arguments_of(goal, 0.25), "momentum": momentum}
    return function(L, draw(st.floats(0.1, d)), **asked)


def _agree(answer: Answer, folder: Path) -> None:
    """The file is proved, is true, and its ends are those of the library up to 1e-9 of the rate."""
    document = written(answer, folder)
    assert verify.verify(document) == document["statement"]
    assert is_true_of_the_answer(document)
    certificate, d = answer.certificate, answer.certificate.d
    upper = float.fromhex(document["upper"])
    end = upper if document["M"] is None else d * math.log(upper)
    assert end <= certificate.upper_bound + 1e-9 * d, str(answer)


@settings(max_examples=30)
@given(answer=nodes())
def test_nodes_are_proved(answer: Answer, tmp_path_factory: pytest.TempPathFactory) -> None:
    _agree(answer, tmp_path_factory.mktemp("certificate"))


@settings(max_examples=15)
@given(answer=limits())
def test_limits_and_methods_are_proved(answer: Answer, tmp_path_factory: pytest.TempPathFactory) -> None:
    _agree(answer, tmp_path_factory.mktemp("certificate"))


@pytest.mark.slow
@settings(max_examples=300 if not STUDY else 3000)
@given(answer=st.one_of(nodes(), nodes(), limits()))
def test_300_answers_are_proved(answer: Answer, tmp_path_factory: pytest.TempPathFactory) -> None:
    _agree(answer, tmp_path_factory.mktemp("certificate"))


# ---------------------------------------------------------------- it says no


def _examples() -> dict[str, Answer]:
    """One answer for each kind of file, goal and distribution, small enough that every number can be changed."""
    rng = np.random.default_rng(3)
    L = random_smoothness(rng, 2, 20.0)
    coins = IndependentSampling([0.5, 0.9])
    found: dict[str, Answer] = {
        goal: optimal_stepsize(L, coins, **arguments_of(goal, 0.5 * L), structure="full") for goal in GOALS
    }
    found["boundary"] = optimal_stepsize(np.diag([1.0, 4.0]), RandK(2, 1))
    found["momentum"] = optimal_stepsize(L, coins, goal="linear", strong_convexity=0.5 * L, momentum=True)
    found["det-CGD2"] = optimal_stepsize(L, coins, algorithm="det-CGD2", structure="diagonal")
    vectors = np.array([[1.0, 0.0], [2.0, 2.0], [0.5, 1.0]])
    found["support"] = optimal_stepsize(L, DiagonalSketch.from_support(vectors, [0.25, 0.25, 0.5]), structure="scalar")
    S = np.array([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]])
    found["finite"] = optimal_stepsize(L, FiniteSketch(S, [0.5, 0.5]))
    found["Gaussian"] = optimal_stepsize(L, Gaussian(2, 1))
    found["limit"] = compression_limit(L, 1.5)
    found["limit of t"] = compression_limit(L, 1.5, goal="linear", strong_convexity=0.5 * L)
    found["limit with momentum"] = compression_limit(L, 0.5, goal="convex", momentum=True)
    found["method"] = optimal_method(L, 1.5)
    found["method with momentum"] = optimal_method(L, 0.5, goal="linear", strong_convexity=0.5 * L, momentum=True)
    return found


EXAMPLES = (
    *GOALS,
    *("boundary", "momentum", "det-CGD2", "support", "finite", "Gaussian"),
    *("limit", "limit of t", "limit with momentum", "method", "method with momentum"),
)


class Examples(dict[str, dict[str, Any]]):
    """Documents by name; the text of a failure does not repeat them."""

    def __repr__(self) -> str:
        return "the examples"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """The documents of all examples, proved and true."""
    folder = tmp_path_factory.mktemp("certificates")
    found = Examples({name: written(answer, folder) for name, answer in _examples().items()})
    assert tuple(found) == EXAMPLES
    for name, document in found.items():
        assert accepts(document) and is_true_of_the_answer(document), name
    return found


def _leaves(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all numbers, words and flags of a document, but for its format, sentence and digest."""
    if isinstance(document, dict):
        names = [name for name in document if name not in ("format", "statement", "sha256")]
        return [leaf for name in names for leaf in _leaves(document[name], (*path, name))]
    if isinstance(document, list):
        return [leaf for i, value in enumerate(document) for leaf in _leaves(value, (*path, i))]
    return [path]


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        document = document[step]
    return document


WORDS = (*GOALS, *METHODS, "node", "limit", "Identity", "RandK")
CHANGES = (1.0, -1.0, 1e-12, -1e-12, -1e-3, 1e-3)  # ±1: to the next float, or by one
ARRAYS = ("L", "D", "M", "V")


def _changed(document: dict[str, Any], path: tuple[Any, ...], change: float, word: str) -> dict[str, Any]:
    """The document with another value at the path; a symmetric matrix stays one."""
    out: dict[str, Any] = json.loads(json.dumps(document))
    places = [path]
    if path[0] in ARRAYS and len(path) > 2 and isinstance(path[-1], int) and isinstance(path[-2], int):
        places.append((*path[:-2], path[-1], path[-2]))
    for place in places:
        holder, old = _at(out, place[:-1]), _at(document, place)
        if isinstance(old, bool):
            new: Any = not old
        elif isinstance(old, int):
            new = old + (1 if change > 0.0 else -1)
        elif isinstance(old, str) and old.lstrip("-").startswith("0x"):
            x = float.fromhex(old)
            toward = math.copysign(math.inf, change)
            new = (math.nextafter(x, toward) if abs(change) == 1.0 else x + change).hex()
        else:
            new = word
        holder[place[-1]] = new
    return out


def _judge(document: dict[str, Any], path: tuple[Any, ...]) -> bool:
    """Check that the verifier is right about a changed document; return whether it accepts it."""
    true = is_true_of_the_answer(document)
    if path[0] != "multipliers":  # an upper end that they no longer prove is refused, however true it is
        assert accepts_lower(document) == true, (path, document["statement"])
    accepted = accepts(document)
    assert true or not accepted, path
    if accepted:
        assert best_known(document) <= Fraction(float.fromhex(document["upper"])), path
    return accepted


@settings(max_examples=2000 if STUDY else 150)
@given(name=st.sampled_from(EXAMPLES), place=seeds, change=st.sampled_from(CHANGES), word=st.sampled_from(WORDS))
def test_what_is_false_is_refused(examples: Examples, name: str, place: int, change: float, word: str) -> None:
    document = examples[name]
    leaves = _leaves(document)
    path = leaves[place % len(leaves)]
    _judge(_changed(document, path, change, word), path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_number_counts(examples: Examples, name: str) -> None:
    """Change one leaf after the other in all ways: what becomes false is refused, what stays true of D passes."""
    document = examples[name]
    verdicts = [
        _judge(_changed(document, path, change, "paper"), path) for path in _leaves(document) for change in CHANGES
    ]
    assert any(verdicts) and not all(verdicts)


@settings(max_examples=200 if STUDY else 25)
@given(name=st.sampled_from(EXAMPLES), seed=seeds, scale=st.sampled_from([1e-14, 1e-9, 1e-3, 1.0]))
def test_other_multipliers_prove_no_more_than_is_true(examples: Examples, name: str, seed: int, scale: float) -> None:
    """With all multipliers changed the bound is not below the value of the best answer known."""
    rng, document = np.random.default_rng(seed), json.loads(json.dumps(examples[name]))
    for path in _leaves(document["multipliers"]):
        holder = _at(document["multipliers"], path[:-1])
        holder[path[-1]] = (float.fromhex(holder[path[-1]]) * (1.0 + scale * rng.standard_normal())).hex()
    value = best_known(document)
    below = value - abs(value) * Fraction(1, 10**9) - Fraction(1, 10**12)
    try:
        assert not verify.KINDS[document["kind"]](document).bound()(below)
    except verify.Refused:
        return


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
        {"sketch": {"kind": "IndependentSampling", "q": [(2.0).hex()] * 4}},
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


# ---------------------------------------------------------------- it stands alone


def _alone(folder: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    """Run a copy of the verifier without site-packages, in a folder that holds nothing else of ours."""
    copy = shutil.copy(verify.__file__, folder / "verify.py")
    command = [sys.executable, "-I", "-S", copy, *files]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False)


def test_it_runs_alone_and_accepts_every_kind(examples: Examples, tmp_path: Path) -> None:
    paths = []
    for i, document in enumerate(examples.values()):
        paths.append(tmp_path / f"{i}.cert.json")
        paths[i].write_text(json.dumps(document))
    run = _alone(tmp_path, *paths)
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(document["statement"] in run.stdout for document in examples.values())


def test_the_examples_of_the_docs_are_proved() -> None:
    folder = Path(__file__).parents[2] / "docs" / "examples"
    files = sorted(folder.glob("*.cert.json"))
    assert files
    for file in files:
        assert "and no D ≻ 0" in verify.verify(json.loads(file.read_text()))


# ---------------------------------------------------------------- its arithmetic


@given(seed=seeds, rank=st.integers(5, 12), shift=st.sampled_from([-1, 0, 1]))
@settings(max_examples=20)
def test_rounded_pivots_agree_with_exact_elimination(seed: int, rank: int, shift: int) -> None:
    """Definite, singular and indefinite whole matrices."""
    G = np.random.default_rng(seed).integers(-3, 4, (10, rank))
    A = verify.Exact.of((G @ G.T + shift * np.eye(10, dtype=int)).tolist())
    exact, below = verify.exact_determinant(A), verify.determinant(A)
    assert (exact is None) == (below is None)
    if exact is not None and below is not None:
        above = verify.rounded_determinant(A, -10)
        assert exact * (1 - Fraction(1, 10**20)) <= below <= exact
        assert above is not None and (above == 0 or exact <= above <= exact + Fraction(1, 10**20))


@given(x=st.fractions(min_value=Fraction(1, 10**9), max_value=10**9))
@settings(max_examples=50)
def test_logarithms_are_enclosed(x: Fraction) -> None:
    low, high = verify.log_ends(x)
    assert low <= Fraction(log(x)) + Fraction(1, 10**40) and Fraction(log(x)) - Fraction(1, 10**40) <= high
    assert high - low < Fraction(1, 10**30)


# ---------------------------------------------------------------- the files


@pytest.mark.parametrize("goal", ["paper", "descent"])
def test_low_rank_matrices_keep_their_factors(goal: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    L = LowRankPlusDiagonal(rng.standard_normal((6, 2)), rng.uniform(0.5, 2.0, 6))
    result = optimal_stepsize(L, RandK(6, 2), algorithm="det-CGD2", goal=goal)
    document = written(result, tmp_path)
    assert "inverse" in json.dumps(document["D"]) and "sum" in document["L"]
    assert float.fromhex(document["upper"]) <= result.certificate.upper_bound + 1e-6


def test_answers_from_a_file_do_not_know_their_L(tmp_path: Path) -> None:
    L = np.diag([1.0, 2.0])
    answers: list[Any] = [
        optimal_stepsize(L, RandK(2, 1)),
        compression_limit(L, 1),
        optimal_method(L, 1),
    ]
    for answer in answers:
        read = type(answer).load(answer.save(tmp_path / "D.npz"))
        with pytest.raises(ValueError, match="does not know its L"):
            read.certificate_file(tmp_path / "D.cert.json")


def test_a_limit_with_momentum_of_factors_has_no_file(tmp_path: Path) -> None:
    L = LowRankPlusDiagonal(np.ones((3, 1)), np.ones(3))
    with pytest.raises(ValueError, match="momentum"):
        compression_limit(L, 1, goal="convex", momentum=True).certificate_file(tmp_path / "D.cert.json")


def test_the_command_writes_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "L.npy", random_smoothness(np.random.default_rng(0), 3, 10.0))
    target = tmp_path / "D.cert.json"
    assert main(["solve", str(tmp_path / "L.npy"), "--sketch", "randk:1", "--certificate", str(target)]) == 0
    assert verify.verify(json.loads(target.read_text()))
    assert "D.cert.json" in capsys.readouterr().err
