"""Data: label maps, files, downloads, and how rows are split over clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import sklearn.datasets
from scipy import sparse
from sklearn.utils import Bunch

from stepsize_validation.data import DATA_VARIABLE, Dataset, available_datasets, datasets, load_dataset, split
from stepsize_validation.data.datasets import signs
from stepsize_validation.data.splits import by_label, dirichlet, shuffled_equal


@pytest.mark.parametrize("low_high", [(-1, 1), (0, 1), (1, 2), (2.0, 4.0)])
def test_two_valued_labels_become_signs(low_high: tuple[float, float]) -> None:
    low, high = low_high
    np.testing.assert_array_equal(signs([high, low, low, high]), [1.0, -1.0, -1.0, 1.0])


@pytest.mark.parametrize("labels", [[1, 1, 1], [0, 1, 2]])
def test_labels_that_are_not_two_are_refused(labels: list[int]) -> None:
    with pytest.raises(ValueError, match="binary labels expected"):
        signs(labels)


@pytest.mark.parametrize("labels", [[1, np.nan, 1], [np.nan, np.nan], [0, 1, np.nan], [1, np.inf]])
def test_labels_that_are_no_numbers_are_refused(labels: list[float]) -> None:
    with pytest.raises(ValueError, match="labels must be finite numbers"):
        signs(labels)


def test_missing_values_are_refused_not_dropped() -> None:
    A = np.array([[1.0, np.nan, 3.0], [2.0, 1.0, np.inf], [0.0, 1.0, 5.0]])
    with pytest.raises(ValueError, match=r"columns 1, 2 hold NaN or infinity \(2 such columns\)"):
        datasets._standardised(A)


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


def test_embedded_sets_have_no_constant_columns() -> None:
    for name in datasets.EMBEDDED:
        data = load_dataset(name)
        assert np.all(np.ptp(data.A, axis=0) > 0.0)
        assert set(np.unique(data.b)) == {-1.0, 1.0}


def test_the_embedded_set_is_that_of_scikit_learn() -> None:
    ours, theirs = load_dataset("breast_cancer"), sklearn.datasets.load_breast_cancer()
    np.testing.assert_array_equal(ours.A, datasets._standardised(theirs.data))
    np.testing.assert_array_equal(ours.b, signs(theirs.target))


def fetched(**changes: Any) -> Callable[..., Bunch]:
    """A stand-in for ``fetch_openml``: downloads, checksums and the cache are scikit-learn's concern."""
    answer = Bunch(
        data=np.array([[1.5, 0.0, 7.0], [2.5, 1.0, 7.0], [5.0, 1.0, 7.0]]),
        target=np.array(["no", "yes", "no"]),
        feature_names=["weight", "flag", "unit"],
        categories={"flag": ["0", "1"]},
    )
    return lambda name, **options: Bunch(**{**answer, **changes})


def test_a_set_of_openml_is_standardised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetched())
    data = load_dataset("openml:small")
    np.testing.assert_array_equal(data.b, [-1.0, 1.0, -1.0])
    np.testing.assert_array_equal(data.A, datasets._standardised(fetched()("").data[:, :2]))  # unit is constant
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetched(data=sparse.csr_matrix(np.eye(3))))
    np.testing.assert_array_equal(load_dataset("openml:small").A.toarray(), np.eye(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"categories": {"flag": ["a", "b"]}}, "openml:small has features that are not numbers: flag"),
        ({"target": np.array(["yes", "no", "maybe"])}, "openml:small has 3 classes"),
    ],
)
def test_a_set_of_openml_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetched(**changes))
    with pytest.raises(ValueError, match=message):
        load_dataset("openml:small")


def test_without_a_connection_the_error_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        msg = "no route to host"
        raise URLError(msg)

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", offline)
    with pytest.raises(ConnectionError, match=r"openml:anything could not be downloaded .*STEPSIZE_OPT_DATA"):
        load_dataset("openml:anything")


def test_dataset_is_checked() -> None:
    with pytest.raises(ValueError, match="labels −1 and"):
        Dataset("x", np.eye(2), np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="one label for each"):
        Dataset("x", np.eye(2), np.ones(3))


def labelled(m: int = 101) -> Dataset:
    rng = np.random.default_rng(5)
    return Dataset("x", rng.standard_normal((m, 3)), np.where(rng.random(m) < 0.4, 1.0, -1.0))


def test_shuffled_parts_are_equal_and_disjoint() -> None:
    parts = shuffled_equal(101, 10, np.random.default_rng(0))
    assert [len(part) for part in parts] == [10] * 10
    assert len(set(np.concatenate(parts).tolist())) == 100
    again = shuffled_equal(101, 10, np.random.default_rng(0))
    other = shuffled_equal(101, 10, np.random.default_rng(1))
    np.testing.assert_array_equal(parts, again)
    assert not np.array_equal(parts, other)


def test_split_by_label_gives_all_but_one_client_a_single_label() -> None:
    data = labelled()
    parts = by_label(data, 10, np.random.default_rng(0))
    assert sum(len(set(data.b[part])) > 1 for part in parts) <= 1
    assert len(set(np.concatenate(parts).tolist())) == 100


def test_dirichlet_split_uses_every_row_once_and_is_uneven_for_small_concentration() -> None:
    data = labelled()
    spread = {}
    for concentration in (0.1, 1000.0):
        parts = dirichlet(data, 8, np.random.default_rng(0), concentration)
        assert sorted(np.concatenate(parts).tolist()) == list(range(101))
        assert min(len(part) for part in parts) >= 1
        spread[concentration] = float(np.std([len(part) for part in parts]))
    assert spread[0.1] > 4.0 * spread[1000.0]


def test_split_chooses_by_name_and_checks_the_number_of_clients() -> None:
    data = labelled(12)
    for kind in ("shuffled", "label", "dirichlet"):
        assert len(split(data, 3, np.random.default_rng(0), kind)) == 3
    with pytest.raises(ValueError, match="kind must be one of"):
        split(data, 3, np.random.default_rng(0), "alphabetical")
    with pytest.raises(ValueError, match="at most the number of rows"):
        split(data, 13, np.random.default_rng(0))
