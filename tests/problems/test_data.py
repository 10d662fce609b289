"""Data: label maps, files, and how rows are split over clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.datasets
from scipy import sparse

from stepsize_validation.data import DATA_VARIABLE, Dataset, available_datasets, datasets, load_dataset, split
from stepsize_validation.data.datasets import signs


@pytest.mark.parametrize("low_high", [(-1, 1), (0, 1), (1, 2), (2.0, 4.0)])
def test_two_valued_labels_become_signs(low_high: tuple[float, float]) -> None:
    low, high = low_high
    np.testing.assert_array_equal(signs([high, low, low, high]), [1.0, -1.0, -1.0, 1.0])


@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 1, 2], [1, np.nan, 1], [0, 1, np.nan], [1, np.inf]])
def test_labels_that_are_not_two_numbers_are_refused(labels: list[float]) -> None:
    with pytest.raises(ValueError, match=r"binary labels expected|labels must be finite numbers"):
        signs(labels)


def test_svmlight_files_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").write_text("1 1:0.5 3:2\n2 2:1\n1 3:-1\n")
    (tmp_path / "broken").write_text("not svmlight\n")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert {"tiny", "breast_cancer", "digits"} <= set(available_datasets())
    data = load_dataset("tiny")
    assert sparse.issparse(data.A) and (data.m, data.d) == (3, 3)
    np.testing.assert_array_equal(data.b, [-1.0, 1.0, -1.0])
    np.testing.assert_array_equal(data.A.toarray(), [[0.5, 0, 2], [0, 1, 0], [0, 0, -1]])
    with pytest.raises(ValueError, match="cannot be read as an svmlight file"):
        load_dataset("broken")
    with pytest.raises(FileNotFoundError, match=r"known here: .*tiny"):
        load_dataset("absent")


def test_the_embedded_set_is_that_of_scikit_learn() -> None:
    ours, theirs = load_dataset("breast_cancer"), sklearn.datasets.load_breast_cancer()
    np.testing.assert_array_equal(ours.A, datasets._standardised(theirs.data))
    np.testing.assert_array_equal(ours.b, signs(theirs.target))
    digits = load_dataset("digits")
    assert np.all(np.ptp(digits.A, axis=0) > 0.0) and set(digits.b) == {-1.0, 1.0}


def labelled(m: int = 101) -> Dataset:
    rng = np.random.default_rng(5)
    return Dataset("x", np.arange(m)[:, None], np.where(rng.random(m) < 0.4, 1.0, -1.0))


def rows_of(kind: str, clients: int, seed: int = 0, concentration: float = 0.5) -> list[list[int]]:
    """The rows that each client gets."""
    parts = split(labelled(), clients, np.random.default_rng(seed), kind, concentration)
    return [part.A[:, 0].tolist() for part in parts]


@pytest.mark.parametrize(("kind", "used"), [("shuffled", 100), ("label", 100), ("dirichlet", 101)])
def test_every_row_goes_to_one_client(kind: str, used: int) -> None:
    """Equal parts drop the rows that are left over."""
    parts = rows_of(kind, 10)
    rows = [row for part in parts for row in part]
    assert len(rows) == len(set(rows)) == used
    assert kind == "dirichlet" or {len(part) for part in parts} == {10}
    assert parts == rows_of(kind, 10) != rows_of(kind, 10, seed=1)


def test_a_split_by_label_gives_all_but_one_client_a_single_label() -> None:
    parts = split(labelled(), 10, np.random.default_rng(0), "label")
    assert sum(len(set(part.b)) > 1 for part in parts) <= 1


def test_a_dirichlet_split_is_uneven_for_a_small_concentration() -> None:
    uneven, even = (rows_of("dirichlet", 8, concentration=c) for c in (0.1, 1000.0))
    assert min(map(len, uneven)) >= 1
    assert np.std(list(map(len, uneven))) > 4.0 * np.std(list(map(len, even)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Dataset("x", np.eye(2), np.array([0.0, 1.0])), "labels −1 and"),
        (lambda: Dataset("x", np.eye(2), np.ones(3)), "one label for each"),
        (lambda: split(labelled(), 3, np.random.default_rng(0), "alphabetical"), "kind must be one of"),
        (lambda: split(labelled(), 102, np.random.default_rng(0)), "at most the number of rows"),
    ],
)
def test_wrong_arguments_are_named(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
