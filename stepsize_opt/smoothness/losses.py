"""One function for each loss: the mean of ℓ(aᵢᵀx) over the rows aᵢ of X, plus a regulariser, with ℓ″ bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from stepsize_opt.inputs import check_memory, check_objective, positive_number, whole_number
from stepsize_opt.problems import (
    Federated,
    LeastSquares,
    LogisticRegression,
    Objective,
    read_penalty,
)
from stepsize_opt.proofs import twice_gamma
from stepsize_opt.smoothness.matrices import LowRankPlusDiagonal, read_smoothness
from stepsize_opt.smoothness.truncation import covered, gram_plus_diagonal, squares


def logistic(X: Any, reg: float, penalty: str = "nonconvex", **cut: Any) -> LowRankPlusDiagonal:
    """L of logistic regression (``LogisticRegression``): XᵀX/(4m) + 2λI, with the ridge XᵀX/(4m) + λI.

    Parameters
    ----------
    X
        Rows aᵢ, shape (m, d), dense or sparse.
    reg
        λ > 0.
    penalty
        ``"nonconvex"`` or ``"ridge"``.
    cut
        ``rank``, as in ``gram_plus_diagonal``.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.logistic(np.ones((3, 5)), 0.1)
    LowRankPlusDiagonal(d=5, rank=3)
    """
    return gram_plus_diagonal(X, 0.25, read_penalty(penalty).most * positive_number("reg", reg), **cut)


def least_squares(X: Any, reg: float, **cut: Any) -> LowRankPlusDiagonal:
    """L = XᵀX/m + λI of (1/2m)‖Xx − b‖² + (λ/2)‖x‖²; arguments as in ``logistic``.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.least_squares(np.ones((3, 5)), 0.1)
    LowRankPlusDiagonal(d=5, rank=3)
    """
    return gram_plus_diagonal(X, 1.0, positive_number("reg", reg), **cut)


def poisson(X: Any, reg: float, largest_rate: float, **cut: Any) -> LowRankPlusDiagonal:
    """L = (largest_rate/m) XᵀX + λI of Poisson regression, exp(aᵢᵀx) − bᵢaᵢᵀx, plus (λ/2)‖x‖².

    Parameters
    ----------
    X, reg, cut
        As in ``logistic``.
    largest_rate
        A bound on exp(aᵢᵀx), the second derivative, for all x that the method visits: outside of it f is not L-smooth.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.poisson(np.ones((3, 5)), 0.1, largest_rate=2.0)
    LowRankPlusDiagonal(d=5, rank=3)
    """
    return gram_plus_diagonal(X, positive_number("largest_rate", largest_rate), positive_number("reg", reg), **cut)


def softmax(X: Any, classes: int, reg: float, **cut: Any) -> LowRankPlusDiagonal:
    """L of a softmax head on features: ½ I ⊗ XᵀX/m + λI, of size classes·d, class by class.

    The Hessian of the loss of a row is (Diag(p) − ppᵀ) ⊗ aaᵀ, and Diag(p) − ppᵀ ⪯ ½I for every distribution p.

    Parameters
    ----------
    X, reg, cut
        As in ``logistic``; ``rank`` is for the factor of one class.
    classes
        Number of classes, at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> smoothness.softmax(np.ones((3, 5)), 4, 0.1)
    LowRankPlusDiagonal(d=20, rank=12)
    """
    number = whole_number("classes", classes, low=2)
    one = gram_plus_diagonal(X, 0.5, positive_number("reg", reg), **cut)
    if sparse.issparse(one.U):
        factor: Any = sparse.kron(sparse.eye_array(number), one.U, format="csr")
    else:
        check_memory("the factor of all classes", 8 * one.U.size * number**2)
        factor = np.kron(np.eye(number), one.U)
    return LowRankPlusDiagonal(factor, float(one.shift[0]), cut=one.cut)


def of(objective: Objective | Federated) -> Any:
    """L of an objective by its factor, where it has one: logistic regression, least squares with a ridge, their mean.

    Parameters
    ----------
    objective
        One node, or clients f = (1/n) Σ fᵢ with L = (1/n) Σ Lᵢ.

    Returns
    -------
    LowRankPlusDiagonal; for any other objective what its ``smoothness()`` returns.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import smoothness
    >>> from stepsize_opt.problems import LeastSquares
    >>> smoothness.of(LeastSquares(np.ones((3, 5)), np.ones(3), 0.1))
    LowRankPlusDiagonal(d=5, rank=3)
    """
    check_objective("objective", objective)
    if isinstance(objective, LogisticRegression):
        return logistic(objective.A, objective.reg, objective.penalty)
    if isinstance(objective, LeastSquares) and objective.reg > 0.0:
        return least_squares(objective.A, objective.reg)
    if isinstance(objective, Federated):
        parts = [of(client) for client in objective.clients]
        read = [read_smoothness(part) for part in parts]
        if not any(part.is_formed for part in read):
            return _mean([part.factored() for part in read])
    return objective.smoothness()


def _mean(parts: list[LowRankPlusDiagonal]) -> LowRankPlusDiagonal:
    """(1/n) Σ Lᵢ, with the columns Uᵢ/√n side by side."""
    n, factors = len(parts), [part.U for part in parts]
    U: Any = (sparse.hstack(factors) if any(map(sparse.issparse, factors)) else np.hstack(factors)) / np.sqrt(n)
    meant, lacking = np.mean([part.shift - part.cut for part in parts], axis=0), np.mean([part.cut for part in parts])
    # The entries of U are rounded by two units each, and means by n: both may have made L smaller.
    rounding = twice_gamma(6) * squares(U) + twice_gamma(n + 2) * float(meant.max() + lacking)
    return covered(U, meant, float(lacking) + rounding)
