"""Certificate files and their verifier: it agrees with the library, reads strictly, stands alone, and refuses.

Random changes of files are in ``properties/test_certificate_files.py``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
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

from shared.certificate_files import ANSWERS, EXAMPLES, METHODS, Solved, signed, solved, written
from shared.certificates import is_true_of_the_answer
from shared.goals import GOALS, arguments_of
from stepsize_opt import (
    DiagonalSketch,
    EstimatedSmoothness,
    FiniteSketch,
    Identity,
    LowRankPlusDiagonal,
    RandK,
    compression_limit,
    optimal_distributed_stepsize,
    optimal_method,
    optimal_stepsize,
    verify,
    write_certificate,
)
from stepsize_opt.certificates import LARGEST
from stepsize_validation.cli import main
from stepsize_validation.data import random_smoothness
from stepsize_validation.properties.exact import log
from stepsize_validation.properties.strategies import problems, seeds, smoothness_matrices, structures

STUDY = os.environ.get("HYPOTHESIS_PROFILE") == "study"


# ---------------------------------------------------------------- library and verifier agree


@st.composite
def nodes(draw: st.DrawFn) -> Solved:
    """Answers of every sketch, structure, method and goal, some with momentum."""
    L, sketch = draw(problems(max_d=5, max_condition=1e3))
    goal = draw(st.sampled_from([*GOALS, "convex"]))
    momentum = goal == "convex" or (goal == "linear" and draw(st.booleans()))
    algorithm, structure = draw(st.sampled_from(METHODS)), draw(structures(len(L), max_condition=1e2))
    asked = {**arguments_of(goal, 0.5 * L), "algorithm": algorithm, "structure": structure, "momentum": momentum}
    return solved(optimal_stepsize, L, sketch, **asked)


@st.composite
def limits(draw: st.DrawFn) -> Solved:
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
    return solved(function, L, draw(st.floats(0.1, d)), **asked)


def _agree(found: Solved) -> None:
    """The file is proved, is true, and its ends are those of the library up to 1e-9 of the rate."""
    document = written(*found)
    assert verify.verify(document) == document["statement"]
    assert is_true_of_the_answer(document)
    certificate, d = found.answer.certificate, found.answer.certificate.d
    upper = float.fromhex(document["upper"])
    end = upper if document["M"] is None else d * math.log(upper)
    assert end <= certificate.upper_bound + 1e-9 * d, str(found.answer)


@settings(max_examples=30)
@given(found=nodes())
def test_nodes_are_proved(found: Solved) -> None:
    _agree(found)


@settings(max_examples=15)
@given(found=limits())
def test_limits_and_methods_are_proved(found: Solved) -> None:
    _agree(found)


@pytest.mark.slow
@settings(max_examples=300 if not STUDY else 3000)
@given(found=st.one_of(nodes(), nodes(), limits()))
def test_300_answers_are_proved(found: Solved) -> None:
    _agree(found)


# ---------------------------------------------------------------- it reads strictly

ONE, HALF, ZERO = (1.0).hex(), (0.5).hex(), (0.0).hex()
IDENTITY, ZEROS = [[ONE, ZERO], [ZERO, ONE]], [[ZERO, ZERO], [ZERO, ZERO]]
INDEFINITE = {"diagonal": [ONE, (-1.0).hex()]}


def alone(document: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The document with other values, without a claim about other D."""
    return {**document, "upper": "inf", "multipliers": {}, **changes}


def refusal(document: dict[str, Any]) -> str:
    """Why the verifier refuses a document, its sentence and SHA-256 made anew."""
    with pytest.raises(verify.Refused) as refused:
        verify.verify(signed(document))
    return str(refused.value)


def listed(kind: str, outcomes: list[Any], *weights: float) -> dict[str, Any]:
    return {"kind": kind, "weights": [weight.hex() for weight in weights], kind: outcomes}


@pytest.mark.parametrize(
    ("sketch", "reason"),
    [
        (listed("matrices", [IDENTITY], 2.0**-20), "add up to 1"),
        (listed("matrices", [IDENTITY], 1.0 - 1e-8), "add up to 1"),
        (listed("matrices", [IDENTITY] * 2, 1.5, -0.5), "(0, 1]"),
        (listed("matrices", [IDENTITY] * 2, 1.0, 0.0), "(0, 1]"),
        (listed("matrices", [IDENTITY], 0.5, 0.5), "every outcome has a weight"),
        (listed("matrices", [[[(2.0**-10).hex(), ZERO], [ZERO, ONE]]], 1.0), "E[S] = I"),
        (listed("matrices", [[[ONE, (1e-8).hex()], [(1e-8).hex(), ONE]]], 1.0), "E[S] = I"),
        (listed("matrices", [{"diagonal": [(3.0).hex(), ONE]}, INDEFINITE], 0.5, 0.5), "S ⪰ 0"),
        (listed("matrices", [[[ONE]]], 1.0), "one size"),
        (listed("vectors", [[ONE, ONE]], 0.5), "add up to 1"),
        (listed("vectors", [[(3.0).hex(), ONE], [(-1.0).hex(), ONE]], 0.5, 0.5), "from 0 on"),
        (listed("vectors", [[HALF, ONE]], 1.0), "E[s] = 1"),
        (listed("vectors", [[ONE]], 1.0), "2 entries"),
        ({"kind": "RandK", "k": 0}, "from 1 to 2"),
        ({"kind": "RandK", "k": 3}, "from 1 to 2"),
        ({"kind": "RandK", "k": True}, "whole number"),
        ({"kind": "RandK", "k": ONE}, "whole number"),
        ({"kind": "RandK"}, "the keys kind, k"),
        ({"kind": "Identity", "k": 1}, "the keys kind"),
        ({"kind": "Gaussian", "k": 3}, "from 1 to 2"),
        ({"kind": "IndependentSampling", "p": [ONE, ZERO]}, "(0, 1]"),
        ({"kind": "IndependentSampling", "p": [ONE, (1.5).hex()]}, "(0, 1]"),
        ({"kind": "SystematicSampling", "p": [ONE]}, "dimension 2"),
        ({"kind": "BernQ", "q": [HALF], "sizes": [1, 1]}, "every layer has a probability"),
        ({"kind": "BernQ", "q": [HALF], "sizes": [True]}, "whole number"),
        ({"kind": "LayerWise", "sizes": [1, 1], "layers": [{"kind": "Identity"}]}, "every layer has a sketch"),
        ({"kind": "LayerWise", "sizes": [1], "layers": [{"kind": "Identity"}]}, "add up to d"),
        ({"kind": "LayerWise", "sizes": [2], "layers": [listed("vectors", [[ONE, ONE]], 0.5)]}, "add up to 1"),
        ({"kind": "moments", "moments": IDENTITY}, "is one of"),
        ("RandK", "is one of"),
        (None, "is one of"),
    ],
    ids=str,
)
def test_a_sketch_is_an_unbiased_distribution(sketch: Any, reason: str) -> None:
    for name in ("paper", "descent, det-CGD2", "momentum"):
        assert reason in refusal(alone(EXAMPLES[name], sketch=sketch))


def test_a_law_is_that_of_the_file() -> None:
    """A mean that is off by less than 1e-9 is in the sentence, and so are the probabilities of layers."""
    off = 1.0 - 2.0**-31
    nearly = listed("matrices", [{"diagonal": [off.hex(), ONE]}], 1.0)
    D = {"diagonal": [(0.01).hex()] * 2}
    for sketch in (nearly, {"kind": "LayerWise", "sizes": [2], "layers": [nearly]}):
        text = verify.verify(signed(alone(EXAMPLES["paper"], sketch=sketch, D=D, lower=(-10.0).hex())))
        assert f"with |E[S] − I| ≤ {1.0 - off!r}" in text
    layers = {"kind": "LayerWise", "sizes": [1, 1], "layers": [listed("matrices", [[[off.hex()]]], 1.0)] * 2}
    M = verify.Exact.of([[2, 1], [1, 3]])
    assert verify.law(layers, 2).moment(M).fractions()[0] == [2 * Fraction(off) ** 2, Fraction(off) ** 2]


@pytest.mark.parametrize("name", ["paper", "linear", "momentum", "limit, descent", "method, momentum"])
def test_keys_are_those_of_the_kind(name: str) -> None:
    document = EXAMPLES[name]
    assert "and no other" in refusal({**document, "rate": "1000"})
    for key in document:
        if key not in ("statement", "sha256", "kind"):
            assert "and no other" in refusal({other: value for other, value in document.items() if other != key})


@pytest.mark.parametrize(
    "change",
    [
        {"D": [[ONE, "1.0"], ["1.0", ONE]]},
        {"D": {"diagonal": [ONE, "nan"]}},
        {"D": {"diagonal": [ONE, "inf"]}},
        {"D": {"diagonal": [1, 1]}},
        {"D": {"diagonal": [ONE, ONE], "sum": []}},
        {"D": {"sum": []}},
        {"goal": None},
        {"goal": "paper"},
        {"goal": "convex"},
        {"goal": "euclidean"},
        {"kind": "clients"},
        {"kind": None},
        {"structure": {"sizes": [2]}},
        {"structure": {"sizes": [2.0], "W": None}},
        {"upper": "nan"},
        {"upper": None},
        {"upper": "inf"},
        {"lower": "inf"},
        {"lower": 1},
        {"format": "stepsize-opt certificate 1"},
        {"V": IDENTITY},
        *({"method": method} for method in (None, "", "det-CGD3", 1, True, ["det-CGD1"])),
    ],
    ids=str,
)
def test_values_are_those_of_the_key(change: dict[str, Any]) -> None:
    for name in ("linear", "momentum, det-CGD2") if "method" in change else ("linear",):
        assert refusal({**EXAMPLES[name], **change})


def times(factor: float, part: Any) -> dict[str, Any]:
    """A multiple of a 2×2 matrix."""
    return {"product": [{"diagonal": [factor.hex()] * 2}, part]}


def moved(name: str, part: str, factor: float, **changes: Any) -> dict[str, Any]:
    """An example with a multiple of one of its parts, without a claim about other D."""
    old = EXAMPLES[name][part]
    new = (factor * float.fromhex(old)).hex() if isinstance(old, str) else times(factor, old)
    return alone(EXAMPLES[name], **{part: new}, **changes)


HUGE = {"diagonal": [(0.5).hex(), (2.0**40).hex()]}
TWO, NEAR_ONE = (2.0).hex(), math.nextafter(1.0, 2.0).hex()
TINY = {"diagonal": [(2.0**-60).hex()] * 2}
# A false statement, its name, and the reason for which it is refused: no other check refuses it.
FALSE = {
    "D of paper": (lambda: moved("paper", "D", 1.0001), "T(D) ⪯ D"),
    "D of det-CGD2": (lambda: moved("paper, det-CGD2", "D", 1.0001), "T(D) ⪯ D"),
    "value of paper": (lambda: moved("paper", "lower", 1.0001), "the lower end of the value"),
    "value of descent": (lambda: moved("descent", "lower", 1.0001), "the lower end of the value"),
    "value of euclidean": (lambda: moved("euclidean", "lower", 1.0001), "D or H ⪰ tM⁻¹"),
    "negative t": (lambda: moved("euclidean", "lower", -1.0), "t > 0"),
    "V": (lambda: moved("momentum", "V", 0.9999), "D or H ⪰ tM⁻¹"),
    "value of momentum": (lambda: moved("momentum", "lower", 1.0001), "H ⪰ t²E[SVS]"),
    "negative t of momentum": (lambda: moved("momentum", "lower", -1.0), "t > 0"),
    "D of limit": (lambda: moved("limit, descent", "D", 1.0001), "tr(LD) ≤ k"),
    "large D of limit": (lambda: moved("limit, descent", "D", 1.4, k=(3.0).hex()), "D ⪯ L⁻¹"),
    "negative D of limit": (lambda: moved("limit, momentum", "D", -1.0), "D ≻ 0"),
    "value of limit": (lambda: moved("limit, descent", "lower", 1.0001), "the lower end of the value"),
    "value of limit with M": (lambda: moved("limit, linear", "lower", 1.0001), "D or H ⪰ tM⁻¹"),
    "value of limit with momentum": (lambda: moved("limit, momentum", "lower", 1.0001), "D or H ⪰ tM⁻¹"),
    "negative t of limit": (lambda: moved("limit, momentum", "lower", -1.0), "t > 0"),
    "k of method": (lambda: moved("method, descent", "k", 0.9999), "Σh ≤ k"),
    "A": (lambda: moved("method, descent", "A", 1.0001), "AᵀLA ⪯ I"),
    "D of method": (lambda: moved("method, descent", "D", 1.0001), "D ⪯ A Diag(h) Aᵀ"),
    "negative D of method": (lambda: moved("method, momentum", "D", -1.0), "D ≻ 0"),
    "value of method": (lambda: moved("method, descent", "lower", 1.0001), "the lower end of the value"),
    "value of method with M": (lambda: moved("method, linear", "lower", 1.0001), "D or H ⪰ tM⁻¹"),
    "value of method with momentum": (lambda: moved("method, momentum", "lower", 1.0001), "t²w ≤ h"),
    "negative t of method": (lambda: moved("method, momentum", "lower", -1.0), "t²w ≤ h"),
    "w": (lambda: alone(EXAMPLES["method, momentum"], w=[HALF] * 2), "D or H ⪰ tM⁻¹"),
    "w without momentum": (lambda: alone(EXAMPLES["method, descent"], w=[ONE, ONE]), "beside momentum"),
    "no w": (lambda: alone(EXAMPLES["method, momentum"], w=None), "beside momentum"),
    "size of A": (lambda: alone(EXAMPLES["method, descent"], A=[[ZERO], [ZERO]]), "have size 2"),
    "size of h": (lambda: alone(EXAMPLES["method, descent"], h=[ONE] * 3), "have size 2"),
    "size of w": (lambda: alone(EXAMPLES["method, momentum"], w=[ONE] * 3), "have size 2"),
    "no method": (lambda: alone(EXAMPLES["paper"], method=None), "is one of ('det-CGD1', 'det-CGD2')"),
    "indefinite L": (lambda: alone(EXAMPLES["Identity"], L=INDEFINITE, D=HUGE, lower=ONE), "L ≻ 0"),
    "singular M": (lambda: alone(EXAMPLES["linear"], M=ZEROS, lower=(1e6).hex()), "M ≻ 0"),
    "M of paper": (lambda: alone(EXAMPLES["paper"], M=IDENTITY), "an M stands beside"),
    "no M": (lambda: alone(EXAMPLES["linear"], M=None), "an M stands beside"),
    "M of euclidean": (lambda: alone(EXAMPLES["euclidean"], M={"diagonal": [TWO, TWO]}), "M = I"),
    "M near I": (lambda: alone(EXAMPLES["euclidean"], M={"diagonal": [NEAR_ONE] * 2}), "M = I"),
    "M nearer to I": (lambda: alone(EXAMPLES["euclidean"], M={"sum": [IDENTITY, TINY]}), "M = I"),
    "W": (lambda: alone(EXAMPLES["scalar"], structure={"sizes": [2], "W": INDEFINITE}), "W is positive definite"),
    "D beside W": (lambda: alone(EXAMPLES["scalar"], D={"diagonal": [HALF, ONE]}), "D is a multiple of W"),
    "D beside W of paper": (
        lambda: alone(EXAMPLES["paper"], structure={"sizes": [2], "W": IDENTITY}),
        "a multiple of W",
    ),
    "blocks of D": (lambda: alone(EXAMPLES["paper"], structure={"sizes": [1, 1], "W": None}), "outside the blocks"),
    "list by keys": (lambda: alone(EXAMPLES["paper"], D={"diagonal": {HALF: 0, ONE: 0}}), "a list is a list"),
    "other hexadecimals": (lambda: alone(EXAMPLES["paper"], D={"diagonal": ["0.1", "0.1"]}), "as float.hex writes it"),
    "size of D": (lambda: alone(EXAMPLES["paper"], D=[[ONE]]), "of one size"),
    "no rows": (lambda: alone(EXAMPLES["paper"], L=[]), "rows and columns"),
    "no columns": (lambda: alone(EXAMPLES["paper"], L=[[]]), "not empty"),
    "lengths of rows": (lambda: alone(EXAMPLES["paper"], D=[[ONE], [ZERO, ONE]]), "one length"),
    "sizes of a product": (
        lambda: alone(EXAMPLES["paper"], D={"product": [IDENTITY, [*IDENTITY, [ONE, ONE]]]}),
        "factors fit",
    ),
    "sizes of a sum": (lambda: alone(EXAMPLES["paper"], D={"sum": [IDENTITY, [[ONE]]]}), "terms fit"),
    "inverse of no square": (lambda: alone(EXAMPLES["paper"], D={"inverse": [[ONE, ZERO]]}), "is square"),
    "inverse of a singular matrix": (lambda: alone(EXAMPLES["paper"], D={"inverse": ZEROS}), "pivots"),
}


@pytest.mark.parametrize("name", FALSE)
def test_every_check_refuses_what_no_other_does(name: str) -> None:
    change, reason = FALSE[name]
    assert reason in refusal(change())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("linear", "L"),
        ("linear", "M"),
        ("linear", "D"),
        ("momentum", "V"),
        ("scalar", "structure"),
        ("matrices", "sketch"),
    ],
)
def test_a_matrix_that_is_not_symmetric_is_refused(name: str, part: str) -> None:
    skew: Any = [[ONE, HALF], [ZERO, ONE]]
    values = {"structure": {"sizes": [2], "W": skew}, "sketch": listed("matrices", [skew], 1.0)}
    assert "symmetric and of one size" in refusal(alone(EXAMPLES[name], **{part: values.get(part, skew)}))


# What the multipliers of an example become, and the reason for which they prove nothing.
POOR = {
    "reference of paper": ("paper", "reference", 0.25, "G ≻ 0"),
    "reference of descent": ("descent", "reference", 0.5, "G ⪰ 0"),
    "reference of euclidean": ("euclidean", "reference", 0.5, "G ⪰ 0"),
    "reference of momentum": ("momentum", "reference", 0.5, "G ⪰ 0"),
    "reference of a multiple": ("direction", "reference", 0.5, "G ⪰ 0"),
    "reference of a scalar": ("scalar", "reference", 0.25, "G ≻ 0"),
    "no reference": ("paper", "reference", 0.0, "argument of a logarithm"),
    "inverse of euclidean": ("euclidean", "inverse", 3.0, "⟨Y, M⁻¹⟩ > 0"),
    "inverse of limit": ("limit, linear", "inverse", 3.0, "⟨Y, M⁻¹⟩ > 0"),
    "C": ("limit, momentum", "reference", 1.0001, "CLC ⪯ M⁻¹"),
    "negative C": ("limit, momentum", "reference", -1.0, "C ≻ 0"),
}


@pytest.mark.parametrize("case", POOR)
def test_multipliers_that_prove_nothing_are_refused(case: str) -> None:
    """Whatever upper end is claimed."""
    name, part, factor, reason = POOR[case]
    parts = EXAMPLES[name]["multipliers"]
    document = {**EXAMPLES[name], "multipliers": {**parts, part: times(factor, parts[part])}}
    with pytest.raises(verify.Refused, match=re.escape(reason)):
        verify.problem_of(document).bound()


@pytest.mark.parametrize("name", ["paper", "euclidean", "limit, euclidean", "limit, momentum", "method, linear"])
def test_multipliers_have_the_keys_of_their_goal(name: str) -> None:
    document = EXAMPLES[name]
    parts = document["multipliers"]
    assert "the multipliers have the keys" in refusal({**document, "multipliers": {**parts, "w": IDENTITY}})
    assert "the multipliers have the keys" in refusal({**document, "multipliers": sorted(parts)})
    assert "the multipliers have a" in refusal({**document, "multipliers": {}})
    for part in parts:
        wrong = [[ONE, HALF], [ZERO, ONE]] if part != "factor" else [[ONE]] * 3
        reason = "symmetric and of one size" if part != "factor" else "factors have d rows"
        assert reason in refusal({**document, "multipliers": {**parts, part: wrong}})
    lower = document["lower"]
    below = {**document, "upper": (float.fromhex(lower) - 1e-3).hex()}
    assert "the upper end of the value" in refusal(below)


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(2, 3), Fraction(1, 10), Fraction(1, 2)])
def test_words_round_an_error_up(x: Fraction) -> None:
    assert x <= Fraction(verify.error_above(x)) <= x * (1 + Fraction(1, 2**52))


@pytest.mark.parametrize(
    "change", [{"sha256": "0" * 64}, {"lower": TWO}, {"statement": "D is the best matrix."}], ids=str
)
def test_a_changed_file_is_refused(change: dict[str, Any]) -> None:
    """With the SHA-256 of the old content and with that of the new one."""
    changed = {**EXAMPLES["RandK"], **change}
    with pytest.raises(verify.Refused, match="SHA-256 was taken"):
        verify.verify(changed)
    if "sha256" not in change:
        with pytest.raises(verify.Refused, match="sentence"):
            verify.verify({**changed, "sha256": verify.digest(changed)})


def test_a_number_that_is_no_float_is_named_by_its_digits() -> None:
    third, huge = verify.Exact.diagonal([Fraction(1, 3)] * 2), verify.Exact.diagonal([2**1200] * 2)
    assert verify.named("L", third).startswith("L (SHA-256") and verify.named("L", huge).startswith("L (SHA-256")


@pytest.mark.parametrize("x", [0, -1])
def test_only_positive_numbers_have_a_logarithm(x: int) -> None:
    with pytest.raises(verify.Refused, match="argument of a logarithm"):
        verify.log_ends(Fraction(x))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "1.5"])
def test_text_is_read_strictly(constant: str) -> None:
    text = json.dumps(EXAMPLES["RandK"])
    assert verify.verify(verify.parsed(text))
    for wrong in (f'{{"L": [["{ONE}"]], {text[1:]}', text.replace('"k": 1', '"k": 1, "k": 1')):
        with pytest.raises(verify.Refused, match="no key stands twice"):
            verify.parsed(wrong)
    with pytest.raises(verify.Refused, match="is a whole number"):
        verify.parsed(text.replace('"k": 1', f'"k": {constant}'))


def test_the_sentence_tells_what_it_is_about() -> None:
    document = EXAMPLES["BernQ"]
    L = np.array([[float.fromhex(x) for x in row] for row in document["L"]])
    # The recipe of docs/reliability.md.
    entries = ";".join(",".join(str(Fraction(x)) for x in row) for row in L.tolist())
    digest = hashlib.sha256(entries.encode()).hexdigest()[:16]
    assert document["statement"].startswith(
        f"d = 2, L (SHA-256 {digest}), goal paper, det-CGD1, sketch BernQ with q = "
    )


# A part of the sentence of an example: its question, or what is proved.
CLAIMS = [
    ("BernQ", "sketch BernQ with q = 0.5 and layers of 2 coordinates, structure full"),
    ("scalar", "structure multiples of W = 1.0 I or of D"),
    ("momentum, det-CGD2", "structure diagonal"),
    ("linear", "goal linear, M (SHA-256"),
    ("limit, convex", "goal convex with momentum, M = 1.0 I"),
    ("vectors", "sketch S = Diag(s/E[s]) with 3 listed vectors s (SHA-256"),
    ("paper", "D ≻ 0 satisfies E[SDLDS] ⪯ D with log det D ≥"),
    ("paper, det-CGD2", "D ≻ 0 satisfies D E[SLS] D ⪯ D with log det D ≥"),
    ("descent", "H = 2D − E[SDLDS] is positive definite with log det H ≥"),
    ("euclidean", "H = 2D − E[SDLDS] satisfies H ⪰ tM⁻¹ with t ≥"),
    ("momentum", "⪰ M⁻¹, with t ≥"),
    ("layers", "LayerWise with the layers [1: IndependentSampling with p = 0.5; 2: 3 listed matrices S (SHA-256"),
    ("layers", "structure blocks of 1, 2"),
    ("method, descent", "x⁺ = x − A_J A_Jᵀ∇f(x) with A (SHA-256"),
    ("limit, descent", "D ⪯ L⁻¹, tr(LD) ≤ 1.5, D ≻ 0 with log det D ≥"),
    ("limit, euclidean", "D ⪯ L⁻¹, tr(LD) ≤ 1.5, D ⪰ tM⁻¹ with t ≥"),
    ("limit, momentum", "D ⪯ L⁻¹, tr(LD) ≤ 0.5, DLD ⪰ t²M⁻¹ with t ≥"),
    ("method, descent", "D ⪯ E[A_J A_Jᵀ], AᵀLA ⪯ I, Σh ≤ 1.5, D ≻ 0 with log det D ≥"),
    ("method, momentum", "t²w ≤ h, A Diag(hw) Aᵀ ⪰ M⁻¹ for the weights w (SHA-256"),
]


@pytest.mark.parametrize(("name", "words"), CLAIMS)
def test_the_sentence_names_what_is_asked_and_proved(name: str, words: str) -> None:
    assert words in EXAMPLES[name]["statement"]


def test_other_content_has_another_sentence() -> None:
    """Every part of the question and of D is in the sentence."""
    document = EXAMPLES["paper"]
    other = {
        "L": {"sum": [document["L"], {"diagonal": [(2.0**-60).hex()] * 2}]},
        "D": {"sum": [document["D"], {"diagonal": [(2.0**-60).hex()] * 2}]},
        "sketch": {"kind": "IndependentSampling", "p": [HALF, math.nextafter(0.9, 1.0).hex()]},
        "method": "det-CGD2",
        "structure": {"sizes": [2], "W": document["D"]},
        "goal": "descent",
    }
    sentences = {signed({**document, name: value})["statement"] for name, value in other.items()}
    assert len(sentences | {document["statement"]}) == len(other) + 1


# ---------------------------------------------------------------- it stands alone


def _alone(folder: Path, *files: Path, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """Run a copy of the verifier without site-packages, in a folder that contains nothing else of ours."""
    copy = shutil.copy(verify.__file__, folder / "verify.py")
    command = [sys.executable, "-s", "-S", copy, *files]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": ""}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding=encoding, check=False, env=environment
    )


def test_it_runs_alone_and_accepts_every_kind(tmp_path: Path) -> None:
    paths = []
    for i, name in enumerate(ANSWERS):
        paths.append(tmp_path / f"{i}.cert.json")
        paths[i].write_text(json.dumps(EXAMPLES[name]))
    run = _alone(tmp_path, *paths)
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(EXAMPLES[name]["statement"] in run.stdout for name in ANSWERS)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_the_exit_code_does_not_depend_on_the_encoding_of_the_output(encoding: str, tmp_path: Path) -> None:
    true, false = tmp_path / "größer.json", tmp_path / "⪯.json"
    true.write_text(json.dumps(EXAMPLES["paper"]))
    false.write_text(json.dumps({**EXAMPLES["paper"], "goal": "descent"}))
    for path, code, word in ((true, 0, "proved: d = 2"), (false, 1, "REFUSED")):
        run = _alone(tmp_path, path, encoding=encoding)
        assert (run.returncode, run.stderr) == (code, "") and word in run.stdout


@pytest.mark.parametrize("text", ["", "[", "[]", "1", "{}", "[" * 100_000, '{"kind": "node"}', r'"\ud800"', "1" * 5000])
def test_what_is_no_certificate_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "D.cert.json"
    path.write_text(text)
    run = _alone(tmp_path, path)
    assert (run.returncode, run.stderr) == (1, "") and "REFUSED" in run.stdout


def test_the_examples_of_the_docs_are_proved() -> None:
    folder = Path(__file__).parents[2] / "docs" / "examples"
    files = sorted(folder.glob("*.cert.json"))
    assert files
    for file in files:
        assert "and no D ≻ 0" in verify.verify(verify.parsed(file.read_text(encoding="utf-8")))


# ---------------------------------------------------------------- its arithmetic


@given(
    seed=seeds,
    rank=st.integers(5, 12),
    shift=st.sampled_from([-1, 0, 1]),
    unit=st.sampled_from([Fraction(1), Fraction(1, 3), Fraction(7)]),
)
@settings(max_examples=20)
def test_rounded_pivots_agree_with_exact_elimination(seed: int, rank: int, shift: int, unit: Fraction) -> None:
    """Definite, singular and indefinite matrices, whole and not."""
    G = np.random.default_rng(seed).integers(-3, 4, (10, rank))
    A = unit * verify.Exact.of((G @ G.T + shift * np.eye(10, dtype=int)).tolist())
    exact, below = verify.exact_determinant(A), verify.determinant(A)
    assert (exact is None) == (below is None)
    if exact is not None and below is not None:
        above = verify.rounded_determinant(A, -10)
        assert exact * (1 - Fraction(1, 10**20)) <= below <= exact
        assert above is not None and (above == 0 or exact <= above <= exact + (1 + exact) / 10**20)


def test_the_determinant_of_a_nearly_singular_matrix_is_exact() -> None:
    """Rounded pivots decide nothing: |A| = 2⁻⁷⁰⁰ beside entries near one."""
    tiny = Fraction(1, 2**700)
    A = Fraction(1, 3) * verify.Exact.of([[1 + tiny, 1], [1, 1]])
    assert verify.rounded_determinant(A, 2) == 0 and verify.determinant(A) == tiny / 9


@pytest.mark.parametrize("seed", [193, 220, 240, 359, *range(20)])
def test_a_singular_matrix_has_no_positive_pivots_however_few_bits_there_are(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first four the rounding of all steps together counts: less than (k + 1) n in step k is too little."""
    monkeypatch.setattr(verify, "BITS", 12)
    G = np.random.default_rng(seed).integers(-9, 10, (11, 10))
    A = verify.Exact.of((G @ G.T).tolist())
    assert verify.exact_determinant(A) == 0
    assert verify.rounded_determinant(A, 11) == 0 and verify.rounded_determinant(A, -11) is not None


@given(x=st.fractions(min_value=Fraction(1, 10**9), max_value=10**9))
@settings(max_examples=50)
def test_logarithms_are_enclosed(x: Fraction) -> None:
    low, high = verify.log_ends(x)
    assert low <= Fraction(log(x)) + Fraction(1, 10**40) and Fraction(log(x)) - Fraction(1, 10**40) <= high
    assert high - low < Fraction(1, 10**30)


# ---------------------------------------------------------------- the files


@pytest.mark.parametrize("goal", ["paper", "descent"])
def test_low_rank_matrices_keep_their_factors(goal: str) -> None:
    rng = np.random.default_rng(1)
    L = LowRankPlusDiagonal(rng.standard_normal((6, 2)), rng.uniform(0.5, 2.0, 6))
    result = optimal_stepsize(L, RandK(6, 2), algorithm="det-CGD2", goal=goal)
    document = written(result, L)
    assert "inverse" in json.dumps(document["D"]) and "sum" in document["L"]
    assert float.fromhex(document["upper"]) <= result.certificate.upper_bound + 1e-6


@pytest.mark.parametrize("name", ["paper", "linear", "limit, euclidean", "method, descent"])
def test_a_loaded_answer_is_written_as_the_answer_itself(name: str, tmp_path: Path) -> None:
    answer, L, M = ANSWERS[name]()
    read = type(answer).load(answer.save(tmp_path / "D.npz"))
    assert written(read, L, M) == EXAMPLES[name]


@pytest.mark.parametrize("name", ["paper", "linear", "limit, euclidean", "method, descent"])
def test_another_L_is_refused(name: str, tmp_path: Path) -> None:
    """Nothing is written of a larger L, for which the answer is false; nor of an M that is not I."""
    answer, L, M = ANSWERS[name]()
    path = tmp_path / "D.cert.json"
    with pytest.raises(ValueError, match="give the L"):
        write_certificate(answer, 2.0 * L, path, strong_convexity=M)
    with pytest.raises(ValueError, match="L is 3×3"):
        write_certificate(answer, np.eye(3), path, strong_convexity=M)
    with pytest.raises(ValueError, match="strong_convexity"):
        write_certificate(answer, L, path, strong_convexity=np.eye(2) if M is None else None)
    assert not path.exists()


def test_what_has_no_certificate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "D.cert.json"
    L = LowRankPlusDiagonal(np.ones((3, 1)), np.ones(3))
    limit = compression_limit(L, 1, goal="convex", momentum=True)  # its D does not attain it
    with pytest.raises(ValueError, match="momentum"):
        write_certificate(limit, L, path)
    large = np.arange(1.0, LARGEST + 2.0)
    with pytest.raises(ValueError, match=f"at most {LARGEST}"):
        write_certificate(optimal_stepsize(np.diag(large), Identity(len(large))), np.diag(large), path)
    estimate = EstimatedSmoothness(np.eye(2), 1.5, "two Hessians")
    with pytest.raises(TypeError, match="L is estimated"):
        write_certificate(optimal_stepsize(estimate, RandK(2, 1)), estimate, path)
    clients = optimal_distributed_stepsize([np.eye(2)], RandK(2, 1), epsilon2=1.0, initial_gap=1.0, delta_inf=0.1)
    with pytest.raises(TypeError, match="one node"):
        write_certificate(clients, np.eye(2), path)  # type: ignore[arg-type]


def test_a_sketch_that_never_draws_one_of_its_matrices_has_a_file() -> None:
    S = np.array([[[2.0, 0.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]], np.zeros((2, 2))])
    L = np.array([[2.0, 1.0], [1.0, 3.0]])
    for sketch in (
        FiniteSketch(S, [0.5, 0.5, 0.0]),
        DiagonalSketch(np.diagonal(S, 0, 1, 2), [0.5, 0.5, 0.0]),
    ):
        document = written(optimal_stepsize(L, sketch), L)
        assert len(document["sketch"]["weights"]) == 2 and document["upper"] != "inf"


def test_the_command_writes_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "L.npy", random_smoothness(np.random.default_rng(0), 3, 10.0))
    target = tmp_path / "D.cert.json"
    assert main(["solve", str(tmp_path / "L.npy"), "--sketch", "randk:1", "--certificate", str(target)]) == 0
    assert verify.verify(verify.parsed(target.read_text()))
    assert "D.cert.json" in capsys.readouterr().err
