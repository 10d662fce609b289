"""Data for the objectives: svmlight files from a folder, or embedded sets, and their rows over clients.

``breast_cancer`` comes with this package; ``digits`` and svmlight files need scikit-learn.

Files are looked up in the folder that the environment variable ``STEPSIZE_OPT_DATA`` names.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt.inputs.checks import (
    check_dense,
    check_kind,
    check_one_of,
    generator,
    positive_number,
    read_rows,
    real_array,
    whole_number,
)
from stepsize_opt.saving import broken_is_value_error
from stepsize_solvers.programs import Indices, Vector

DATA_VARIABLE = "STEPSIZE_OPT_DATA"
EMBEDDED = ("breast_cancer", "digits")
# Widths that the files themselves do not show, because their last features never occur.
_FEATURES = {"a1a": 123, "a9a": 123}


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Rows with labels ±1.

    Parameters
    ----------
    name : str
        As it stands in tables.
    A : array-like or sparse matrix of shape (m, d)
        Rows of the data.
    b : array-like of shape (m,)
        Labels −1 and +1.

    Raises
    ------
    ValueError, TypeError
        Unless A is a finite matrix with at least one row, b has one entry for each row, and every label is ±1.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import Dataset
    >>> Dataset("two rows", np.eye(2), np.array([1.0, -1.0]))
    Dataset('two rows', m = 2 rows, d = 2 features, 50% labels +1)
    """

    name: str
    A: Any
    b: Vector

    def __post_init__(self) -> None:
        check_kind("name", self.name, str)
        object.__setattr__(self, "A", read_rows("A", self.A))
        object.__setattr__(self, "b", real_array("b", self.b))
        if self.b.shape != (self.A.shape[0],):
            msg = f"b must have one label for each of the {self.A.shape[0]} rows of A, got shape {self.b.shape}"
            raise ValueError(msg)
        if not np.all(np.abs(self.b) == 1.0):
            msg = f"b must hold the labels −1 and +1, got {np.unique(self.b)[:5]}; signs(labels) maps two-valued labels"
            raise ValueError(msg)

    def __repr__(self) -> str:
        kind = "sparse, " if sparse.issparse(self.A) else ""
        labels = f"{np.mean(self.b > 0):.0%} labels +1"
        return f"Dataset({self.name!r}, m = {self.m} rows, d = {self.d} features, {kind}{labels})"

    @property
    def m(self) -> int:
        """Number of rows."""
        return int(self.A.shape[0])

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.A.shape[1])

    def rows(self, indices: Indices) -> Dataset:
        """Return the data set of the given rows, in their order."""
        return Dataset(self.name, self.A[indices], self.b[indices])

    def columns(self, start: int, stop: int) -> Dataset:
        """Return the data set that sees the features start … stop − 1 only."""
        return Dataset(f"{self.name}[{start}:{stop}]", self.A[:, start:stop], self.b)


def load_dataset(name: str) -> Dataset:
    """Return a data set by its name.

    Parameters
    ----------
    name : str
        ``"breast_cancer"`` or ``"digits"``, an svmlight file in the folder that the environment variable
        ``STEPSIZE_OPT_DATA`` names or at this path.

    Raises
    ------
    FileNotFoundError
        When there is no such set; the message lists the known ones.
    ValueError
        For a file of another kind, or labels that do not have two values.

    Examples
    --------
    >>> from stepsize_validation.data import load_dataset
    >>> load_dataset("breast_cancer")
    Dataset('breast_cancer', m = 569 rows, d = 30 features, 63% labels +1)
    """
    if not isinstance(name, str):
        msg = f"name must be the name of a data set or a path, got {name!r}"
        raise TypeError(msg)
    if name in EMBEDDED:
        return _embedded(name)
    path = _find(name)
    with broken_is_value_error(path, "an svmlight file"):
        A, labels = _read_svmlight(path)
        if not np.isfinite(A.data).all():
            msg = "a feature is NaN or infinite"
            raise ValueError(msg)
        check_dense("L", A.shape[1])  # one wrong index makes d as large as the index
        return Dataset(path.name, sparse.csr_array(A), signs(labels))


def _read_svmlight(path: Path) -> tuple[Any, Any]:
    """Return the rows and labels of the file.

    The reader's own error quotes a line, and a file that was named by mistake may hold anything.
    """
    read = _sklearn_datasets("reading svmlight files").load_svmlight_file
    try:
        return read(str(path), n_features=_FEATURES.get(path.name))  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        msg = "each line must be a label with pairs index:value of ascending indices behind it"
    raise ValueError(msg)


def split(
    data: Dataset, clients: int, rng: np.random.Generator, kind: str = "shuffled", concentration: float = 0.5
) -> tuple[Dataset, ...]:
    """Return the rows of a data set shared out over clients.

    Parameters
    ----------
    data : Dataset
        What is split.
    clients : int
        Their number n, at most the number of rows.
    rng : numpy.random.Generator
        Where the shuffle comes from.
    kind : str
        ``"shuffled"``: equal parts of the shuffled rows, as in the paper; the m mod n rows left over are dropped.
        ``"label"``: equal parts of the rows sorted by label, so that all but one client see a single label.
        ``"dirichlet"``: for each label, shares drawn from a Dirichlet distribution.
    concentration : float
        Of the Dirichlet distribution; the smaller, the more the clients differ.

    Returns
    -------
    tuple of Dataset
        One for each client.

    Raises
    ------
    ValueError
        For an unknown kind, or fewer rows than clients.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import load_dataset, split
    >>> [part.m for part in split(load_dataset("breast_cancer"), 4, np.random.default_rng(0))]
    [142, 142, 142, 142]
    """
    check_kind("data", data, Dataset)
    check_one_of("kind", kind, ("shuffled", "label", "dirichlet"))
    generator(rng)
    n = whole_number("clients", clients)
    if n > data.m:
        msg = f"clients must be at most the number of rows, {data.m}; got {n}"
        raise ValueError(msg)
    if kind == "dirichlet":
        parts = _dirichlet(data.b, n, rng, positive_number("concentration", concentration))
    else:
        order = rng.permutation(data.m)
        if kind == "label":
            order = order[np.argsort(data.b[order], kind="stable")]
        # Equal parts make the mean of the clients' losses the loss of the rows used.
        parts = np.split(order[: data.m - data.m % n], n)
    return tuple(data.rows(part) for part in parts)


def _dirichlet(b: Vector, n: int, rng: np.random.Generator, alpha: float) -> list[Indices]:
    """Give the rows of each label to the clients in proportions drawn from Dirichlet(α, …).

    Small α give clients of very different sizes and label shares.  Every row is used.  A client that would stay empty
    takes one row from the largest.
    """
    parts: list[list[int]] = [[] for _ in range(n)]
    for label in (-1.0, 1.0):
        rows = rng.permutation(np.flatnonzero(b == label))
        shares = rng.dirichlet(np.full(n, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * rows.size).astype(int)
        for part, chosen in zip(parts, np.split(rows, cuts), strict=True):
            part.extend(chosen.tolist())
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return [np.array(part, dtype=np.intp) for part in parts]


def signs(labels: Any) -> Vector:
    """Return two-valued labels ({0,1}, {1,2}, {−1,+1}, …) as −1 for the smaller and +1 for the larger value.

    Raises ValueError for labels that are not finite or not two.
    """
    values = np.unique(np.asarray(labels, dtype=float))
    if not np.all(np.isfinite(values)):
        msg = "labels must be finite numbers, got NaN or infinity; drop the rows without a label"
        raise ValueError(msg)
    if values.size != 2:
        msg = f"binary labels expected, got {values.size} distinct values"
        raise ValueError(msg)
    return np.where(np.asarray(labels, dtype=float) == values[1], 1.0, -1.0)


def available_datasets() -> list[str]:
    """Return names that ``load_dataset`` knows here: embedded sets, then the files of the data folder.

    Raises FileNotFoundError when the environment variable names a folder that does not exist.

    Examples
    --------
    >>> from stepsize_validation.data import available_datasets
    >>> available_datasets()[:2]
    ['breast_cancer', 'digits']
    """
    folder = _data_folder()
    files = sorted(p.name for p in folder.iterdir() if p.is_file() and not p.suffix) if folder else []
    return [*EMBEDDED, *files]


def _data_folder() -> Path | None:
    name = os.environ.get(DATA_VARIABLE)
    if name and not Path(name).is_dir():
        msg = f"{DATA_VARIABLE} names the folder {name}, which does not exist; set it to a folder with svmlight files"
        raise FileNotFoundError(msg)
    return Path(name) if name else None


def _find(name: str) -> Path:
    folder = _data_folder()
    candidates = [Path(name)] + ([folder / name] if folder else [])
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    hint = "" if folder else f"; set {DATA_VARIABLE} to a folder with svmlight files for more"
    msg = f"no data set {name!r}; known here: {', '.join(available_datasets())}{hint}"
    raise FileNotFoundError(msg)


def _sklearn_datasets(purpose: str) -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        msg = f"{purpose} needs scikit-learn: pip install scikit-learn"
        raise ModuleNotFoundError(msg) from error
    return datasets


def _embedded(name: str) -> Dataset:
    if name == "breast_cancer":
        table = np.loadtxt(Path(__file__).with_name("breast_cancer.csv.gz"), delimiter=",", skiprows=1)
        return Dataset(name, _standardised(table[:, :-1]), signs(table[:, -1]))
    bunch = _sklearn_datasets("the data set digits").load_digits()
    # Pixels 0…16 become 0…1; pixels that are the same in every image carry nothing; odd against even digits.
    A = np.asarray(bunch.data, dtype=float)
    return Dataset(name, A[:, np.ptp(A, axis=0) > 0.0] / 16.0, signs(bunch.target % 2))


def _standardised(A: Any) -> Any:
    """Return columns with mean 0 and variance 1, because units are arbitrary; columns without variance are dropped."""
    kept = A[:, np.ptp(A, axis=0) > 0.0]
    return (kept - kept.mean(axis=0)) / kept.std(axis=0)
