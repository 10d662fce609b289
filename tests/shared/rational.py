"""What tests need of rational matrices beyond the referee."""

from __future__ import annotations

from fractions import Fraction

from stepsize_validation.referee import Rational


def inverse(A: Rational) -> Rational:
    """A⁻¹ by elimination, for A ≻ 0."""
    n = len(A)
    rows = [list(row) + [Fraction(int(i == j)) for j in range(n)] for i, row in enumerate(A)]
    for k in range(n):
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in range(n):
            if i != k:
                rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return [row[n:] for row in rows]
