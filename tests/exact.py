"""Exact rational arithmetic for small cases: the referee of the certificate."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from stepsize_opt import BernQ, Gaussian, Identity, IndependentSampling, RandK, Sketch

Rational = list[list[Fraction]]


def rational(M: NDArray[np.float64]) -> Rational:
    """The floats of M as the rational numbers that they are."""
    return [[Fraction(float(x)) for x in row] for row in M]


def product(A: Rational, B: Rational) -> Rational:
    columns = list(zip(*B, strict=True))
    return [[sum((a * b for a, b in zip(row, col, strict=True)), Fraction(0)) for col in columns] for row in A]


def combine(*terms: tuple[Fraction | int, Rational]) -> Rational:
    """Σ c_i M_i."""
    d = len(terms[0][1])
    return [[sum((c * M[i][j] for c, M in terms), Fraction(0)) for j in range(d)] for i in range(d)]


def transpose(A: Rational) -> Rational:
    return [list(row) for row in zip(*A, strict=True)]


def inner(A: Rational, B: Rational) -> Fraction:
    return sum((a * b for x, y in zip(A, B, strict=True) for a, b in zip(x, y, strict=True)), Fraction(0))


def pivots(A: Rational) -> list[Fraction]:
    """The pivots of Gaussian elimination on a symmetric matrix: all positive just when A ≻ 0; product det A."""
    A = [row[:] for row in A]
    out = []
    for k in range(len(A)):
        out.append(A[k][k])
        if A[k][k] == 0:
            return out
        for i in range(k + 1, len(A)):
            factor = A[i][k] / A[k][k]
            for j in range(k, len(A)):
                A[i][j] -= factor * A[k][j]
    return out


def is_positive_definite(A: Rational) -> bool:
    found = pivots(A)
    return len(found) == len(A) and all(p > 0 for p in found)


def log(x: Fraction) -> Decimal:
    """log x to 50 digits."""
    context = Context(prec=50)
    return context.subtract(context.ln(Decimal(x.numerator)), context.ln(Decimal(x.denominator)))


def log_det(A: Rational) -> Decimal:
    return sum((log(p) for p in pivots(A)), Decimal(0))


def second_moment(sketch: Sketch, M: Rational) -> Rational:
    """E[S M S] with the true rational coefficients of the sketch, not their floats."""
    d = sketch.d
    if isinstance(sketch, Gaussian):
        k = sketch.k
        trace = sum((M[i][i] for i in range(d)), Fraction(0))
        return [[Fraction(k + 1, k) * M[i][j] + (trace / k if i == j else 0) for j in range(d)] for i in range(d)]
    return [[_coefficient(sketch, i, j) * M[i][j] for j in range(d)] for i in range(d)]


def _coefficient(sketch: Sketch, i: int, j: int) -> Fraction:
    if isinstance(sketch, Identity):
        return Fraction(1)
    if isinstance(sketch, RandK):
        d, k = sketch.d, sketch.k
        return Fraction(d, k) if i == j else Fraction(d * (k - 1), k * (d - 1))
    if isinstance(sketch, IndependentSampling):
        return 1 / Fraction(float(sketch.p[i])) if i == j else Fraction(1)
    if isinstance(sketch, BernQ):
        layer = np.repeat(np.arange(len(sketch.sizes)), sketch.sizes)
        return 1 / Fraction(float(sketch.q[layer[i]])) if layer[i] == layer[j] else Fraction(1)
    msg = f"no exact moments for {type(sketch).__name__}"
    raise TypeError(msg)


def satisfies_condition(D: NDArray[np.float64], L: NDArray[np.float64], sketch: Sketch, algorithm: str) -> bool:
    """Whether condition (3) or (4) holds strictly, decided without rounding."""
    D_, L_ = rational(D), rational(L)
    if algorithm == "det-CGD1":
        left = second_moment(sketch, product(product(D_, L_), D_))
    else:
        left = product(product(D_, second_moment(sketch, L_)), D_)
    return is_positive_definite(D_) and is_positive_definite(combine((1, D_), (-1, left)))
