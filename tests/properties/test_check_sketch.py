"""``check_sketch`` accepts every sketch of the library and finds what a wrong sketch of one's own has wrong."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shared.sketch_examples import EXAMPLES
from stepsize_opt import RandK, Sketch
from stepsize_opt.sketches import DiagonalBase
from stepsize_solvers.programs import Matrix, PositiveMap, hadamard
from stepsize_validation.properties import check_sketch


@pytest.mark.parametrize("sketch", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_sketches_of_the_library_are_what_they_say(sketch: Sketch) -> None:
    assert all(not checked.failure and checked.examples > 0 for checked in check_sketch(sketch, samples=1000))


@dataclass(frozen=True, eq=False, repr=False)
class Coins(DiagonalBase):
    """Each coordinate is sent with probability ½, times ``factor``; the moments claim ``moment`` on the diagonal."""

    factor: float = 2.0
    moment: float = 2.0
    floats: float = 0.5
    listed: bool = True

    @property
    def text(self) -> str:
        return "coins (own)"

    @property
    def expected_nonzeros(self) -> float:
        return self.floats * self.d

    def _map(self) -> PositiveMap:
        return hadamard(np.where(np.eye(self.d) > 0.0, self.moment, 1.0))

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        return self.factor * (rng.random((size, self.d)) < 0.5)

    def support(self) -> Any:
        if not self.listed:
            return super().support()
        sent = (np.arange(2**self.d)[:, None] >> np.arange(self.d)) & 1
        return np.full(2**self.d, 0.5**self.d), self.factor * sent


def test_a_right_sketch_of_one_s_own() -> None:
    check_sketch(Coins(3))
    check_sketch(Coins(3, listed=False))


WRONG = {
    "mean": (Coins(2, factor=1.0), r"E\[S\] = I: E\[S\] has the entry 0.5 at \(0, 0\)"),
    "mean, sampled": (Coins(2, factor=1.0, listed=False), r"E\[S\] at \(0, 0\) is 0\.[45]"),
    "moments": (Coins(2, moment=3.0), "for M = e0 e0ᵀ the outcomes give"),
    "moments, sampled": (Coins(2, moment=3.0, listed=False), r"E\[SMS\] at \(0, 0\)"),
    "positivity": (Coins(2, moment=0.5), "has the eigenvalue"),
    "floats": (Coins(4, floats=0.9), "the mean of the floats sent is"),
}


@pytest.mark.parametrize(("sketch", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named(sketch: Sketch, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_sketch(sketch)


def test_a_draw_that_decodes_to_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = RandK.draw
    monkeypatch.setattr(RandK, "draw", lambda self, rng: draw(self, np.random.default_rng(0)))
    with pytest.raises(AssertionError, match="but S x ="):
        check_sketch(RandK(4, 2))


def test_an_adjoint_of_another_map_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandK, "adjoint", lambda self, Z: np.tril(Z))
    with pytest.raises(AssertionError, match="adjoint"):
        check_sketch(RandK(3, 1))


def test_a_matrix_that_is_not_symmetric_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandK, "sample", lambda self, rng: np.triu(np.ones((3, 3))))
    with pytest.raises(AssertionError, match="positive semidefinite"):
        check_sketch(RandK(3, 1))


def test_check_sketch_needs_no_hypothesis() -> None:
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from stepsize_opt import RandK\n"
        "from stepsize_validation.properties import check_sketch\n"
        "check_sketch(RandK(3, 1))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
