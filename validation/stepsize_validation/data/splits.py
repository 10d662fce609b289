"""Splitting rows over clients: shuffled equal parts as in the paper, and two heterogeneous ways.

``split`` chooses one of the three by name.  Each of them returns n index arrays that together hold every row at
most once; a client's data set is ``data.rows(part)``.
"""

from __future__ import annotations

import numpy as np

from stepsize_opt.inputs import check_kind, check_one_of, generator, positive_number, whole_number
from stepsize_solvers.programs import Indices
from stepsize_validation.data.datasets import Dataset

SPLITS = ("shuffled", "label", "dirichlet")


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
        ``"shuffled"``: equal parts of the shuffled rows, as in the paper.  ``"label"``: equal parts of the rows sorted
        by label, so that all but one client see a single label.  ``"dirichlet"``: for each label, shares drawn from a
        Dirichlet distribution.
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
    check_one_of("kind", kind, SPLITS)
    generator(rng)
    if kind == "shuffled":
        parts = shuffled_equal(data.m, clients, rng)
    elif kind == "label":
        parts = by_label(data, clients, rng)
    else:
        parts = dirichlet(data, clients, rng, concentration)
    return tuple(data.rows(part) for part in parts)


def shuffled_equal(m: int, clients: int, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Return a random permutation of the m rows cut into equal parts; the m mod n rows left over are dropped.

    Equal parts make the mean of the clients' losses the loss of the rows used.
    """
    n = _clients(m, clients)
    order = rng.permutation(m)[: m - m % n]
    return tuple(np.asarray(part, dtype=np.intp) for part in np.split(order, n))


def by_label(data: Dataset, clients: int, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Return rows sorted by label, shuffled within a label, in equal parts: all but one client see a single label."""
    n = _clients(data.m, clients)
    order = rng.permutation(data.m)
    order = order[np.argsort(data.b[order], kind="stable")]
    kept = order[: data.m - data.m % n]
    return tuple(np.asarray(part, dtype=np.intp) for part in np.split(kept, n))


def dirichlet(data: Dataset, clients: int, rng: np.random.Generator, concentration: float) -> tuple[Indices, ...]:
    """Give the rows of each label to the clients in proportions drawn from Dirichlet(concentration, …).

    Small concentrations give clients of very different sizes and label shares.  Every row is used.  A client that
    would stay empty takes one row from the largest.
    """
    n = _clients(data.m, clients)
    alpha = positive_number("concentration", concentration)
    parts: list[list[int]] = [[] for _ in range(n)]
    for label in (-1.0, 1.0):
        rows = rng.permutation(np.flatnonzero(data.b == label))
        shares = rng.dirichlet(np.full(n, alpha))
        cuts = np.rint(np.cumsum(shares)[:-1] * rows.size).astype(int)
        for part, chosen in zip(parts, np.split(rows, cuts), strict=True):
            part.extend(chosen.tolist())
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return tuple(np.array(part, dtype=np.intp) for part in parts)


def _clients(m: int, clients: int) -> int:
    n = whole_number("clients", clients)
    if n > m:
        msg = f"clients must be at most the number of rows, {m}; got {n}"
        raise ValueError(msg)
    return n
