"""Random symmetric matrices with a given spectrum."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stepsize_opt.inputs import check_dense, generator, positive_number, real_array, whole_number
from stepsize_solvers.programs import Matrix


def with_spectrum(rng: np.random.Generator, eigenvalues: ArrayLike) -> Matrix:
    """Return Q Diag(λ) Qᵀ with the given λ and random orthonormal eigenvectors Q, exactly symmetric.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where Q comes from.
    eigenvalues : array_like
        λ, shape (d,).

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import with_spectrum
    >>> np.linalg.eigvalsh(with_spectrum(np.random.default_rng(0), [1.0, 2.0])).round(6).tolist()
    [1.0, 2.0]
    """
    values = real_array("eigenvalues", eigenvalues)
    if values.ndim != 1 or not values.size:
        msg = f"eigenvalues must be a list of numbers, got shape {values.shape}"
        raise ValueError(msg)
    Q = np.linalg.qr(generator(rng).standard_normal((values.size, values.size)))[0]
    M = (Q * values) @ Q.T
    return np.asarray(0.5 * (M + M.T))


def random_smoothness(rng: np.random.Generator, d: int, condition: float) -> Matrix:
    """Return a random smoothness matrix: log-spaced eigenvalues from 1 down to 1/condition, random eigenvectors.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the eigenvectors come from.
    d : int
        Size.
    condition : float
        Largest eigenvalue over the smallest, at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_validation.data import random_smoothness
    >>> L = random_smoothness(np.random.default_rng(0), 3, condition=100.0)
    >>> np.linalg.eigvalsh(L).round(6).tolist()
    [0.01, 0.1, 1.0]
    """
    largest = positive_number("condition", condition)
    if largest < 1.0:
        msg = f"condition must be at least 1, got {condition}"
        raise ValueError(msg)
    size = whole_number("d", d)
    check_dense("the matrix", size)
    return with_spectrum(rng, np.logspace(0.0, -np.log10(largest), size))
