"""The limit of compressed methods, decided in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

from stepsize_opt import Method, Sketch
from stepsize_solvers.programs import Matrix
from stepsize_validation.referee.exact import (
    combine,
    descent_metric,
    inner,
    is_positive_semidefinite,
    product,
    rational,
)

# E[rank S] is a sum of at most d floats, rounded.
_ROUNDING = 1 + Fraction(1, 2**48)


def within_limit(D: Matrix, L: Matrix, sketch: Sketch, algorithm: str | Method) -> bool:
    """Whether D and its descent metric H = 2D − T(D) have H ⪯ L⁻¹ and tr(LH) ≤ E[rank S].

    The theorem says so for every D that satisfies its condition, and for H of every D, if E[S] = I without rounding.
    """
    stepsize, exact = rational(D), rational(L)
    metric = descent_metric(stepsize, exact, sketch, algorithm)
    rank = Fraction(sketch.expected_rank) * _ROUNDING
    return all(
        inner(exact, H) <= rank
        and is_positive_semidefinite(combine((1, exact), (-1, product(product(exact, H), exact))))
        for H in (stepsize, metric)
    )
