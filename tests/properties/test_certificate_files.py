"""Fuzzing of the verifier: files of every kind are changed at random, and what it accepts must be true.

The exact checker of ``shared.certificates`` decides the truth; it shares nothing with the verifier.  The last test
plants faults in the verifier, and the same changes must notice each.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from properties.study import examples, note
from shared.certificate_files import (
    ANSWERS,
    EXAMPLES,
    Mutator,
    accepts,
    at,
    false_statement,
    leaves,
    mirrored,
)
from shared.certificates import best_known, is_true_of_the_answer
from stepsize_opt import verify
from stepsize_validation.properties.strategies import seeds

NAMES = tuple(ANSWERS)
CHANGES = (1.0, -1.0, 1e-12, -1e-3)  # ±1: to the next float, or by one


def donors() -> list[dict[str, Any]]:
    return [EXAMPLES[name] for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
@given(seed=seeds)
@examples(6, share=0.02)
def test_a_false_file_is_refused(name: str, seed: int) -> None:
    """Every error but Refused fails, too."""
    changed = Mutator(seed, donors())(EXAMPLES[name])
    assert false_statement(changed) is None
    note("accepted" if accepts(changed) else "refused")


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_proved_and_true_and_has_an_upper_end(name: str) -> None:
    document = EXAMPLES[name]
    assert accepts(document) and is_true_of_the_answer(document)
    assert best_known(document) <= verify.number(document["upper"])


def changed_leaf(document: dict[str, Any], path: tuple[Any, ...], change: float) -> dict[str, Any]:
    """The document with another value at the path; a symmetric matrix stays one."""
    out = copy.deepcopy(document)
    for place in mirrored(path):
        old: Any = at(document, place)
        if isinstance(old, bool):
            new: Any = not old
        elif isinstance(old, int):
            new = old + (1 if change > 0.0 else -1)
        elif isinstance(old, str) and old.lstrip("-").startswith("0x"):
            x = float.fromhex(old)
            new = (math.nextafter(x, change * math.inf) if abs(change) == 1.0 else x + change).hex()
        else:
            new = "paper"
        at(out, place[:-1])[place[-1]] = new
    return out


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_number_counts(name: str) -> None:
    """One leaf after the other is changed: what becomes false is refused, what stays true of D passes."""
    verdicts = []
    for path in leaves(EXAMPLES[name]):
        for change in CHANGES:
            changed = changed_leaf(EXAMPLES[name], path, change)
            assert false_statement(changed) is None, path
            verdicts.append(accepts(changed))
            if path[0] != "multipliers":  # an upper end that they no longer prove is refused, however true it is
                alone = {**changed, "upper": "inf", "multipliers": {}}
                assert accepts(alone) == is_true_of_the_answer(alone), path
    assert any(verdicts) and not all(verdicts)


@given(name=st.sampled_from(NAMES), seed=seeds, scale=st.sampled_from([1e-14, 1e-9, 1e-3, 1.0]))
@settings(max_examples=25)
def test_other_multipliers_prove_no_more_than_is_true(name: str, seed: int, scale: float) -> None:
    """With all multipliers changed the bound is not below the value of the best answer known."""
    rng, document = np.random.default_rng(seed), copy.deepcopy(EXAMPLES[name])
    multipliers = document["multipliers"]
    for path in leaves(multipliers) if multipliers else []:
        x = float.fromhex(at(multipliers, path))
        at(multipliers, path[:-1])[path[-1]] = (x * (1.0 + scale * rng.standard_normal())).hex()
    value = best_known(document)
    below = value - abs(value) / 10**9 - verify.Fraction(1, 10**12)
    try:
        assert not verify.problem_of(document).bound()(below)
    except verify.Refused:
        return


# ---------------------------------------------------------------- planted faults

# What is replaced, by what, and a part of the names of the examples in which it shows.
FAULTS = {
    "any method": ('one_of(("det-CGD1", "det-CGD2"), method) == "det-CGD1"', 'method == "det-CGD1"', ""),
    "unknown keys": ("found == sorted(names)", "set(found) >= set(names)", ""),
    "numbers as they come": ("math.isfinite(x) and x.hex() == text", "math.isfinite(x)", ""),
    "L may be indefinite": ('log_det(self.L, "L ≻ 0")', "None", ""),
    "M may be indefinite": ('log_det(self.M, "M ≻ 0")', "None", "linear"),
    "M of the goal": ('one = self.name == "linear" or', "one = True or", "euclidean"),
    "weights add up to anything": ("abs(total - 1) <= ROUNDING", "True", "vectors"),
    "a mean of vectors": ('all(abs(m - 1) <= ROUNDING for m in means), "E[s]', 'True, "E[s]', "vectors"),
    "vectors of any sign": ("min(map(min, vectors.rows)) >= 0", "True", "vectors"),
    "a mean of matrices": ("require(error <= ROUNDING", "require(True", "matrices"),
    "matrices of any sign": ('semidefinite(S + ROUNDING * S.inner(one) * one, "S', 'require(True, "S', "matrices"),
    "probabilities above 1": ("all(0 < x <= 1 for x in p)", "all(0 < x for x in p)", "Sampling"),
    "no trace of a Gaussian": ("[trace / k] * d", "[trace / (k + 1)] * d", "Gaussian"),
    "layers by their means": ("layer.moment(M.block(block)) - out", "M.block(block) - out", "layers"),
    "the condition": ('semidefinite(X - self.T(X), "T(D)', 'require(True, "T(D)', "paper"),
    "H below its floor": ("M @ X @ M - lower * M", "M @ X @ M - lower / 2 * M", "linear"),
    "the lower end": ('log_det(X, "D ≻ 0, or H ≻ 0") >= lower', 'log_det(X, "") >= lower - Fraction(1, 2)', ""),
    "any V": ("check_value(self.V, self.M, Fraction(1))", "None", "momentum, convex"),
    "D above the inverse of L": ('semidefinite(L - L @ D @ L, "D ⪯ L⁻¹")', "None", "limit"),
    "any trace": ("require(L.inner(D) <= self.k", "require(True", "limit"),
    "any sum of probabilities": ("require(sum(h) <= self.k", "require(True", "method"),
    "any directions": ('- A.T @ self.L @ A, "AᵀLA', '- 0 * A, "AᵀLA', "method"),
    "D above the method": ("A @ Exact.diagonal(h) @ A.T - self.D", "A @ Exact.diagonal(h) @ A.T", "method"),
    "any weights w": ("lower**2 * x <= y", "lower**3 * x <= y", "method, momentum"),
    "G of any sign": ('semidefinite(A, "the multipliers prove a bound: G ⪰ 0")', "None", "descent"),
    "half the tangent": ("return half + half.T, half.inner(D)", "return half + half.T, half.inner(D) / 2", ""),
    "any C": ('semidefinite(M - M @ C @ self.L @ C @ M, "CLC', 'require(True, "CLC', "limit"),
    "the weight of M": ("Y.inner(2 * N - N @ self.M @ N)", "Y.inner(3 * N - N @ self.M @ N)", "linear"),
    "entries outside the blocks": ("require(not any(map(any, (A - blocks).rows))", "require(True", "layers"),
    "no multiple of W": ("* 2**49 <=", "<=", "scalar"),
}


def with_fault(old: str, new: str) -> ModuleType:
    """The verifier with a part of its text replaced."""
    text = Path(verify.__file__).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{text.count(old)} times: {old}"
    module = ModuleType("verify_with_a_fault")
    exec(compile(text.replace(old, new), "verify_with_a_fault", "exec"), module.__dict__)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str) -> None:
    old, new, where = FAULTS[fault]
    verifier, parts = with_fault(old, new), donors()
    names = [name for name in NAMES if where in name]
    for seed in range(20_000):
        try:
            changed = Mutator(seed, parts)(EXAMPLES[names[seed % len(names)]])
            if false_statement(changed, verifier) is not None:
                return
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError):  # the fault lets it crash
            continue
    pytest.fail("no change noticed the fault")
