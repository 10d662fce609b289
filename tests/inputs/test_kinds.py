"""What is handed over as L: numbers are read, other kinds of objects get an answer that names the remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from stepsize_opt import EstimatedSmoothness, RandK, certify, compare, optimal_stepsize, to_cvxpy
from stepsize_opt.inputs.matrices import read_matrix
from stepsize_opt.results import StepsizeResult

L = np.array([[2.0, 1.0], [1.0, 3.0]])
LABELS = ["slope", "offset"]
ESTIMATE = EstimatedSmoothness(L, 1.5, "two Hessians")


def test_labels_of_a_frame_must_agree() -> None:
    frame = pd.DataFrame(L, index=LABELS, columns=LABELS)
    np.testing.assert_array_equal(read_matrix("L", frame), L)
    np.testing.assert_array_equal(read_matrix("L", pd.DataFrame(L, columns=LABELS)), L)
    with pytest.raises(ValueError, match="L must be symmetric"):
        read_matrix("L", frame.loc[LABELS[::-1]])
    np.testing.assert_array_equal(read_matrix("L", frame.loc[LABELS[::-1]].loc[LABELS]), L)
    np.testing.assert_array_equal(read_matrix("L", frame.convert_dtypes()), L)  # numpy makes objects of it


@pytest.mark.parametrize("operator", [aslinearoperator(L), LinearOperator((2, 2), matvec=lambda x: L @ x)])
def test_an_operator_is_refused_with_the_remedy(operator: Any) -> None:
    with pytest.raises(TypeError, match="Write L as LowRankPlusDiagonal"):
        optimal_stepsize(operator, RandK(2, 1))
    with pytest.raises(TypeError, match=r"H is an operator, whose entries are needed here; pass H @ np\.eye"):
        read_matrix("H", operator)
    np.testing.assert_array_equal(read_matrix("L", operator @ np.eye(operator.shape[0])), L)


class Tensor:
    """What a tensor with a gradient looks like to those who do not import its package."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        msg = "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
        raise RuntimeError(msg)


def test_a_tensor_with_a_gradient_is_refused_with_the_remedy() -> None:
    with pytest.raises(TypeError, match=r"L does not turn into an array .*detach"):
        optimal_stepsize(Tensor(), RandK(2, 1))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: optimal_stepsize("L.npy", RandK(2, 1)), TypeError, r"L .*file name.*np\.load"),
        (lambda: optimal_stepsize(Path("L.csv"), RandK(2, 1)), TypeError, r"L .*file name.*np\.load"),
        (lambda: optimal_stepsize(pd.DataFrame(L).reset_index(), RandK(2, 1)), ValueError, r"index=False"),
        (lambda: optimal_stepsize(np.diag([1.0, -1.0]), RandK(2, 1)), ValueError, "L is indefinite.*absolute"),
        (lambda: optimal_stepsize([[1.0, 2.0], [2.0, 1.0]], RandK(2, 1)), ValueError, "L is indefinite.*absolute"),
        (lambda: optimal_stepsize(np.ones((2, 2)), RandK(2, 1)), ValueError, "L is singular.*regulariser"),
        (lambda: certify(0.1, L, RandK(2, 1)), ValueError, r"D .*c\*np\.eye"),
        (lambda: optimal_stepsize(L, "rndk:1"), ValueError, "did you mean 'randk'"),
        (lambda: optimal_stepsize(L, "randk:1", structure="diag"), ValueError, "did you mean 'diagonal'"),
        (lambda: optimal_stepsize(L, "randk:1", goal="descend"), ValueError, "did you mean 'descent'"),
        (lambda: optimal_stepsize(L, "randk:1", algorithm="det-CGD11"), ValueError, "did you mean 'det-CGD1'"),
    ],
)
def test_the_fix_of_a_common_mistake_is_named(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_what_rests_on_an_estimate_says_so(tmp_path: Path) -> None:
    result = optimal_stepsize(ESTIMATE, RandK(2, 1))
    proved = optimal_stepsize(1.5 * L, RandK(2, 1))
    np.testing.assert_array_equal(result.D, proved.D)
    assert proved.certified and not result.certified and not ESTIMATE.certified
    assert "certified=False" not in repr(proved)
    for shown in (repr(result), result._repr_html_(), repr(compare(ESTIMATE, RandK(2, 1))), repr(ESTIMATE)):
        assert "certified=False" in shown
    assert "two Hessians, margin 1.5" in result.summary()["estimated"]
    loaded = StepsizeResult.load(result.save(tmp_path / "D"))
    assert loaded.estimated == result.estimated
    check = certify(result, ESTIMATE)
    assert check.feasible and check.estimated == result.estimated and "certified=False" in repr(check)
    assert certify(result, ESTIMATE.matrix).estimated == ""
    with pytest.raises(TypeError, match=r"L is estimated and this function returns proofs; pass L\.matrix"):
        to_cvxpy(ESTIMATE, RandK(2, 1))
    for margin in (0.0, 0.5, math.nextafter(1.0, 0.0), math.inf, math.nan):
        with pytest.raises(ValueError, match="margin must be a factor of at least 1"):
            EstimatedSmoothness(L, margin, "two Hessians")
