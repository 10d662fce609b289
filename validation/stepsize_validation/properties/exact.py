"""Exact rational arithmetic, by which every certificate is checked.

A float is a rational number, so whether a matrix of floats satisfies a condition can be decided without any rounding.
Nothing here uses the proofs of the library: sketches are read for the numbers that the user gave, and their second
moments are computed from those by definition.  Products and eliminations run on whole numbers over one denominator,
which takes a tenth of a millisecond for d = 8 and about a second for d = 60.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial, singledispatch
from typing import Any, TypeAlias

import numpy as np

from stepsize_opt import (
    BernQ,
    FiniteSketch,
    Gaussian,
    IndependentSampling,
    LayerWise,
    Method,
    RandK,
    Sketch,
    SystematicSampling,
)
from stepsize_opt.methods import get_method
from stepsize_solvers.programs import Matrix, Vector, block_slices

Rational: TypeAlias = list[list[Fraction]]
# Whole numbers of any size in a numpy array of objects: its products are exact.
Whole: TypeAlias = Any


def rational(M: Matrix) -> Rational:
    """The floats of M as the rational numbers that they are; fractions stay."""
    return [[x if isinstance(x, Fraction) else Fraction(float(x)) for x in row] for row in M]


def product(A: Rational, B: Rational) -> Rational:
    """A B."""
    (M, p), (N, q) = _over_one_denominator(A), _over_one_denominator(B)
    return _fractions(M @ N, Fraction(1, p * q))


def _over_one_denominator(A: Rational) -> tuple[Whole, int]:
    """(N, q) with A = N/q."""
    q = math.lcm(*(x.denominator for row in A for x in row))
    return np.array([[x.numerator * (q // x.denominator) for x in row] for row in A], dtype=object), q


def _fractions(N: Whole, unit: Fraction) -> Rational:
    return [[unit * x for x in row] for row in N.tolist()]


def _whole_floats(values: Any) -> tuple[Whole, Fraction]:
    """(N, unit) with values = N·unit, the unit a power of two."""
    mantissa, exponent = np.frexp(values)
    least = int(np.min(exponent, where=values != 0, initial=2000))
    shifts = np.where(values != 0, exponent - least, 0).astype(object)
    return np.ldexp(mantissa, 53).astype(np.int64).astype(object) << shifts, Fraction(2) ** (least - 53)


def combine(*terms: tuple[Fraction | int, Rational]) -> Rational:
    """Σ c_i M_i."""
    d = len(terms[0][1])
    return [[sum((c * M[i][j] for c, M in terms), Fraction(0)) for j in range(d)] for i in range(d)]


def transpose(A: Rational) -> Rational:
    """Aᵀ."""
    return [list(row) for row in zip(*A, strict=True)]


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


def inner(A: Rational, B: Rational) -> Fraction:
    """⟨A, B⟩."""
    return sum((a * b for x, y in zip(A, B, strict=True) for a, b in zip(x, y, strict=True)), Fraction(0))


@dataclass(frozen=True)
class Definiteness:
    """Whether a symmetric matrix is positive semidefinite, and then its determinant (0 when it is not)."""

    semidefinite: bool
    det: Fraction


def definiteness(A: Rational) -> Definiteness:
    """By fraction-free elimination (Bareiss): every entry stays a minor of a matrix of whole numbers."""
    n = len(A)
    rows = [math.lcm(*(x.denominator for x in row)) for row in A]
    q = math.lcm(*rows)
    # One denominator for dyadic entries; for others the congruence Diag(rows) A Diag(rows) has the smaller numbers.
    if q.bit_length() <= 2 * max(rows).bit_length():
        N, scale = [[x.numerator * (q // x.denominator) for x in row] for row in A], Fraction(1, q) ** n
    else:
        N = [[int(x * a * b) for x, b in zip(row, rows, strict=True)] for row, a in zip(A, rows, strict=True)]
        scale = Fraction(1, math.prod(rows) ** 2)
    last, singular = 1, False
    for k in range(n):
        pivot, column = N[k][k], [N[i][k] for i in range(n)]
        if pivot < 0 or (pivot == 0 and any(column[k:])):
            return Definiteness(False, Fraction(0))
        if pivot == 0:  # a zero row of the Schur complement
            singular = True
            continue
        for i in range(k + 1, n):
            row, factor = N[i], column[i]
            for j in range(k + 1, i + 1):
                row[j] = (pivot * row[j] - factor * column[j]) // last
        last = pivot
    return Definiteness(True, Fraction(0) if singular else last * scale)


def is_positive_definite(A: Rational) -> bool:
    """Whether A ≻ 0."""
    return definiteness(A).det > 0


def is_positive_semidefinite(A: Rational) -> bool:
    """Whether A ⪰ 0."""
    if min(A[i][i] for i in range(len(A))) < 0:
        return False
    bits = math.lcm(*(x.denominator for row in A for x in row)).bit_length()
    return (bits > _LONG and is_positive_definite(_rounded_down(A))) or definiteness(A).semidefinite


# Denominators of more bits than this (a product of many 1/p_j) are first rounded, which decides all but close cases.
_LONG = 1024


def _rounded_down(A: Rational) -> Rational:
    """A matrix B with short numbers and B ⪯ A: entries change by less than u, and |E_ij| < u makes E ⪯ d·u·I."""
    least = min(A[i][i] for i in range(len(A))) or Fraction(1)
    # A power of two, about 2⁻⁴⁰⁰ of the smallest diagonal entry.
    u = Fraction(2) ** (least.numerator.bit_length() - least.denominator.bit_length() - 400)
    d = len(A)
    return [[u * (math.floor(x / u) - (d + 1 if i == j else 0)) for j, x in enumerate(row)] for i, row in enumerate(A)]


def log(x: Fraction) -> Decimal:
    """log x to 50 digits."""
    context = Context(prec=50)
    return context.subtract(context.ln(Decimal(x.numerator)), context.ln(Decimal(x.denominator)))


def log_det(A: Rational) -> Decimal:
    """log det A to about 50 digits, for A ≻ 0."""
    return log(definiteness(A).det)


@singledispatch
def second_moment(sketch: Sketch, M: Rational) -> Rational:
    """Return E[S M S] from the listed outcomes.

    Diagonals are divided by their exact mean, matrices are taken as their floats are.  Named sketches, whose numbers
    are rational, register their true coefficients.
    """
    weights, outcomes = sketch.support()
    (w, first), (S, second) = _whole_floats(weights), _whole_floats(outcomes)
    if outcomes.ndim == 2:
        total, sums, squares = w.sum(), w @ S, (S * w[:, None]).T @ S  # the units cancel
        P = [[Fraction(x * total, sums[i] * sums[j]) for j, x in enumerate(row)] for i, row in enumerate(squares)]
        return _entrywise(P, M)
    N, q = _over_one_denominator(M)
    return _fractions(np.tensordot(w, S @ N @ S, axes=1), first * second * second / q)


@second_moment.register
def _(sketch: Gaussian, M: Rational) -> Rational:
    d, k = sketch.d, sketch.k
    trace = sum((M[i][i] for i in range(d)), Fraction(0))
    return [[Fraction(k + 1, k) * M[i][j] + (trace / k if i == j else 0) for j in range(d)] for i in range(d)]


@second_moment.register
def _(sketch: LayerWise, M: Rational) -> Rational:
    return _by_layers(sketch, M, second_moment, [row[:] for row in M])


def _by_layers(sketch: LayerWise, M: Rational, law: Callable[[Sketch, Rational], Rational], out: Rational) -> Rational:
    """Replace the diagonal blocks of ``out`` by the law of each layer."""
    for layer, s in zip(sketch.layers, block_slices([layer.d for layer in sketch.layers]), strict=True):
        for i, row in zip(range(s.start, s.stop), law(layer, [row[s] for row in M[s]]), strict=True):
            out[i][s] = row
    return out


@second_moment.register
def _(sketch: RandK, M: Rational) -> Rational:
    d, k = sketch.d, sketch.k
    off = Fraction(d * (k - 1), k * (d - 1)) if d > 1 else Fraction(1)
    return [[(Fraction(d, k) if i == j else off) * M[i][j] for j in range(d)] for i in range(d)]


@second_moment.register
def _(sketch: IndependentSampling, M: Rational) -> Rational:
    return _coins(range(sketch.d), sketch.p, M)


@second_moment.register
def _(sketch: SystematicSampling, M: Rational) -> Rational:
    weights, outcomes = sketch.support()
    (w, unit), taken = _whole_floats(weights), (outcomes > 0.0).astype(object)
    both = _fractions((taken * w[:, None]).T @ taken, unit)  # P(i and j are sent)
    p = [Fraction(float(x)) for x in sketch.p]
    return _entrywise([[x / (p[i] * p[j]) for j, x in enumerate(row)] for i, row in enumerate(both)], M)


@second_moment.register
def _(sketch: BernQ, M: Rational) -> Rational:
    return _coins(np.repeat(np.arange(len(sketch.sizes)), sketch.sizes).tolist(), sketch.q, M)


def _coins(labels: Sequence[int], q: Vector, M: Rational) -> Rational:
    """P ∘ M with P = 1/q for equal labels and 1 for different ones."""
    inverse, d = [1 / Fraction(float(x)) for x in q], len(M)
    return [[M[i][j] * (inverse[labels[i]] if labels[i] == labels[j] else 1) for j in range(d)] for i in range(d)]


def _entrywise(P: Rational, M: Rational) -> Rational:
    return [[p * m for p, m in zip(*rows, strict=True)] for rows in zip(P, M, strict=True)]


@dataclass(frozen=True, eq=False)
class _Exact:
    """A rational matrix with the operations in which a method writes its formula."""

    rows: Rational

    def __matmul__(self, other: _Exact) -> _Exact:
        return _Exact(product(self.rows, other.rows))

    def __rmul__(self, factor: Fraction | int) -> _Exact:
        return _Exact(combine((factor, self.rows)))

    def __getitem__(self, place: tuple[int, int]) -> Fraction:
        return self.rows[place[0]][place[1]]


def moment(algorithm: str | Method, D: Rational, L: Rational, law: Callable[[Rational], Rational]) -> Rational:
    """T(D) of a method for ``law`` = 𝒫, its variance V(D) for ``law`` = 𝒞."""
    exact: _Exact = get_method(algorithm).moment(_Exact(D), _Exact(L), lambda M: _Exact(law(M.rows)))
    return exact.rows


def condition_slack(D: Rational, L: Rational, sketch: Sketch, algorithm: str | Method) -> Rational:
    """D − T(D): D − E[SDLDS] of condition (3), D − D E[TLT] D of condition (4)."""
    return combine((1, D), (-1, moment(algorithm, D, L, partial(second_moment, sketch))))


def descent_metric(D: Rational, L: Rational, sketch: Sketch, algorithm: str | Method = "det-CGD1") -> Rational:
    """H = 2D − T(D)."""
    return combine((1, D), (1, condition_slack(D, L, sketch, algorithm)))


def satisfies_condition(D: Matrix, L: Matrix, sketch: Sketch, algorithm: str | Method) -> bool:
    """Whether T(D) ≺ D, decided without rounding."""
    D_ = rational(D)
    return is_positive_definite(D_) and is_positive_definite(condition_slack(D_, rational(L), sketch, algorithm))


@singledispatch
def centred_second_moment(sketch: Sketch, M: Rational) -> Rational:
    """E[(S − I) M (S − I)] = E[S M S] − M."""
    return combine((1, second_moment(sketch, M)), (-1, M))


@centred_second_moment.register
def _(sketch: FiniteSketch, M: Rational) -> Rational:
    """Outcome by outcome, because its floats have E[S] = I to rounding only."""
    identity = rational(np.eye(sketch.d))
    terms = []
    for w, S in zip(*sketch.support(), strict=True):
        centred = combine((1, rational(S)), (-1, identity))
        terms.append((Fraction(float(w)), product(product(centred, M), centred)))
    return combine(*terms)


@centred_second_moment.register
def _(sketch: LayerWise, M: Rational) -> Rational:
    """Layer by layer; between layers it vanishes, as the factor 1 there says."""
    zero = [[Fraction(0)] * sketch.d for _ in range(sketch.d)]
    return _by_layers(sketch, M, centred_second_moment, zero)
