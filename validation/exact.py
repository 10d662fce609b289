"""Exact rational arithmetic for small cases: the referee of the certificate.

A float is a rational number, so whether a matrix of floats satisfies a condition can be decided without any rounding.
Gaussian elimination on rationals takes milliseconds up to d ≈ 10; the referee is for tests and studies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from solvers.maps import Matrix, block_slices
from stepsize_opt import BernQ, FiniteSketch, Gaussian, Identity, IndependentSampling, LayerWise, RandK, Sketch
from stepsize_opt.distributed_result import DistributedResult

Rational: TypeAlias = list[list[Fraction]]


def rational(M: Matrix) -> Rational:
    """The floats of M as the rational numbers that they are."""
    return [[Fraction(float(x)) for x in row] for row in M]


def product(A: Rational, B: Rational) -> Rational:
    """A B."""
    columns = list(zip(*B, strict=True))
    return [[sum((a * b for a, b in zip(row, col, strict=True)), Fraction(0)) for col in columns] for row in A]


def combine(*terms: tuple[Fraction | int, Rational]) -> Rational:
    """Σ c_i M_i."""
    d = len(terms[0][1])
    return [[sum((c * M[i][j] for c, M in terms), Fraction(0)) for j in range(d)] for i in range(d)]


def transpose(A: Rational) -> Rational:
    """Aᵀ."""
    return [list(row) for row in zip(*A, strict=True)]


def inner(A: Rational, B: Rational) -> Fraction:
    """⟨A, B⟩."""
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
    """Whether A ≻ 0."""
    found = pivots(A)
    return len(found) == len(A) and all(p > 0 for p in found)


def is_positive_semidefinite(A: Rational) -> bool:
    """Whether A ⪰ 0: elimination, where a zero pivot must have a zero row."""
    A = [row[:] for row in A]
    for k, pivot in enumerate(A):
        if pivot[k] < 0 or (pivot[k] == 0 and any(pivot[k:])):
            return False
        for row in A[k + 1 :] if pivot[k] else ():
            factor = row[k] / pivot[k]
            row[k:] = [x - factor * y for x, y in zip(row[k:], pivot[k:], strict=True)]
    return True


def log(x: Fraction) -> Decimal:
    """log x to 50 digits."""
    context = Context(prec=50)
    return context.subtract(context.ln(Decimal(x.numerator)), context.ln(Decimal(x.denominator)))


def log_det(A: Rational) -> Decimal:
    """log det A to about 50 digits, for A ≻ 0."""
    return sum((log(p) for p in pivots(A)), Decimal(0))


def second_moment(sketch: Sketch, M: Rational) -> Rational:
    """E[S M S], with the true rational coefficients of the named sketches rather than their floats."""
    d = sketch.d
    if isinstance(sketch, Gaussian):
        k = sketch.k
        trace = sum((M[i][i] for i in range(d)), Fraction(0))
        return [[Fraction(k + 1, k) * M[i][j] + (trace / k if i == j else 0) for j in range(d)] for i in range(d)]
    if isinstance(sketch, FiniteSketch):
        terms = [
            (Fraction(float(w)), product(product(rational(S), M), rational(S)))
            for w, S in zip(*sketch.support(), strict=True)
        ]
        return combine(*terms)
    if isinstance(sketch, LayerWise):
        out = [row[:] for row in M]
        for layer, s in zip(sketch.layers, block_slices([layer.d for layer in sketch.layers]), strict=True):
            inside = second_moment(layer, [row[s] for row in M[s]])
            for i, row in zip(range(s.start, s.stop), inside, strict=True):
                out[i][s] = row
        return out
    P = _coefficients(sketch)
    return [[P[i][j] * M[i][j] for j in range(d)] for i in range(d)]


def _coefficients(sketch: Sketch) -> Rational:
    """P of a diagonal sketch; a sketch given by numbers is what its floats say."""
    d = sketch.d
    if isinstance(sketch, RandK):
        k = sketch.k
        off = Fraction(d * (k - 1), k * (d - 1)) if d > 1 else Fraction(1)
        return [[Fraction(d, k) if i == j else off for j in range(d)] for i in range(d)]
    if isinstance(sketch, Identity):
        labels, inverse = [0] * d, [Fraction(1)]
    elif isinstance(sketch, IndependentSampling):
        labels, inverse = list(range(d)), [1 / Fraction(float(p)) for p in sketch.p]
    elif isinstance(sketch, BernQ):
        labels = np.repeat(np.arange(len(sketch.sizes)), sketch.sizes).tolist()
        inverse = [1 / Fraction(float(q)) for q in np.broadcast_to(sketch.q, len(sketch.sizes))]
    else:
        return rational(sketch.second_moment_matrix)
    return [[inverse[labels[i]] if labels[i] == labels[j] else Fraction(1) for j in range(d)] for i in range(d)]


def satisfies_condition(D: Matrix, L: Matrix, sketch: Sketch, algorithm: str) -> bool:
    """Whether condition (3) or (4) holds strictly, decided without rounding."""
    D_, L_ = rational(D), rational(L)
    if algorithm == "det-CGD1":
        left = second_moment(sketch, product(product(D_, L_), D_))
    else:
        left = product(product(D_, second_moment(sketch, L_)), D_)
    return is_positive_definite(D_) and is_positive_definite(combine((1, D_), (-1, left)))


def centred_second_moment(sketch: Sketch, M: Rational) -> Rational:
    """E[(S − I) M (S − I)]; a finite sketch outcome by outcome, because its floats have E[S] = I to rounding only."""
    if isinstance(sketch, FiniteSketch):
        identity = rational(np.eye(sketch.d))
        terms = []
        for w, S in zip(*sketch.support(), strict=True):
            centred = combine((1, rational(S)), (-1, identity))
            terms.append((Fraction(float(w)), product(product(centred, M), centred)))
        return combine(*terms)
    return combine((1, second_moment(sketch, M)), (-1, M))


def violated_conditions(
    result: DistributedResult, clients: Sequence[Matrix], laws: Sequence[Sketch], mean: Matrix | None = None
) -> list[str]:
    """The statements of a distributed result about its D, K, λ_D and rate that are wrong, without any rounding.

    λmax(Lᵢ^½VLᵢ^½) ≤ λ just when V^½LᵢV^½ ⪯ λI, that is λV − VLᵢV ⪰ 0.
    """
    n, d, targets = len(clients), result.d, result.targets
    L = combine(*((Fraction(1, n), rational(M)) for M in clients)) if mean is None else rational(mean)
    D = rational(result.D)
    A = product(product(D, L), D)
    variance, rate = Fraction(result.lambda_D), Fraction(result.rate)
    wrong = []
    if not is_positive_definite(D) or rate**d > math.prod(pivots(D)):
        wrong.append("rate")
    if not is_positive_semidefinite(combine((1, D), (-1, A))):
        wrong.append("D ⪯ L⁻¹")
    for M, law in {(M.tobytes(), law): (M, law) for M, law in zip(clients, laws, strict=True)}.values():
        if result.algorithm == "det-CGD1":
            V = centred_second_moment(law, A)
        else:
            V = product(product(D, centred_second_moment(law, L)), D)
        if not is_positive_semidefinite(combine((variance, V), (-1, product(product(V, rational(M)), V)))):
            wrong.append("λ_D")
    if variance * result.K > n:
        wrong.append("λ_D ≤ n/K")
    if 4 * variance * Fraction(targets.delta_inf) > n * Fraction(targets.epsilon2) * rate:
        wrong.append("λ_D ≤ nε² det(D)^(1/d)/(4Δ^inf)")
    if result.K * rate * Fraction(targets.epsilon2) < 12 * Fraction(targets.initial_gap):
        wrong.append("K")
    return wrong
