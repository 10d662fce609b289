"""Check a certificate file of stepsize-opt in exact arithmetic: ``python verify.py D.cert.json``.

This file needs nothing but Python's standard library and imports nothing of stepsize-opt: copy it anywhere.  Floats are
rational numbers, so everything is decided without rounding.  Exit code: 0 proved, 1 refused.

The quadratic form of a method is T(D) = 𝒬(DBD): E[SDLDS] for det-CGD1, D E[SLS] D for det-CGD2.  H = 2D − T(D).

    file     goal                what is proved of D                                                 value
    node     paper               D ≻ 0, T(D) ⪯ D                                                     log det D
             descent             H ≻ 0                                                               log det H
             euclidean, linear   H ⪰ tM⁻¹; with momentum H ⪰ t²E[SVS], V ⪰ M⁻¹                       t
    limit    descent, t          D ⪯ L⁻¹, tr(LD) ≤ k, D ⪰ tM⁻¹ (momentum DLD ⪰ t²M⁻¹)           log det D, t
    method   descent, t          AᵀLA ⪯ I, D ⪯ A Diag(h) Aᵀ, Σh ≤ k, D as for the limit         log det D, t

*What a file may contain.*  Every object has a closed set of keys, every key a closed set of values; anything else is
refused, and so is a key that stands twice.  The sentence that is printed names L, M and D by the SHA-256 of their
entries (``mark``), and the sketch by its parameters.

*The sketch* is a distribution with E[S] = I by its definition, but for listed matrices, whose mean is I up to rounding:
then S is S_r with the probability w_r/Σw, E[SMS] is that of this law without rounding, every S_r ⪰ −10⁻⁹tr(S_r)I and
|E[S] − I| ≤ 10⁻⁹ are proved, and the sentence has the largest entry of |E[S] − I|.  The theorems of the goals need
E[S] = I: they hold for such a law up to this number.  Listed vectors are divided by their exact mean.

*How A ≻ 0 is decided:* by elimination with entries of ``BITS`` bits.  Rounding an n×n matrix down by less than one unit
changes it by less than nI units, and this much is subtracted from the diagonal in each step, so the pivots are those of
a matrix below A and their product is a lower bound on det A.  The same with nI added refutes A ⪰ 0.
X ⪰ tM⁻¹ is decided as MXM − tM ⪰ 0.

*No D has a larger value than* ``upper``.  For Y ⪰ 0, R = 𝒬(Y) and any reference D̂ the convex function
⟨Y, 𝒬(DBD)⟩ = ⟨R, DBD⟩ lies above its tangent ⟨N, D⟩ − s, N = RD̂B + BD̂R, s = ⟨R, D̂BD̂⟩.  With the multipliers Y of the
file every feasible D has

    node, paper           ⟨N − Y, D⟩ ≤ s                                because ⟨Y, D − T(D)⟩ ≥ 0
    node, other goals     ⟨Y, H⟩ ≤ s − ⟨N − 2Y, D⟩ ≤ s                  N − 2Y ⪰ 0 is proved
    limit, method         ⟨L, D⟩ ≤ k, or ⟨LYL, D⟩ ≤ ⟨Y, L⟩              tr(LD) ≤ k, or LDL ⪯ L; momentum: for DLD

From ⟨G, X⟩ ≤ s follows log det X ≤ d log(s/d) − log det G.  For X = D with free blocks only the blocks of G count, and
for D = Diag(γᵢWᵢ) the bound is log det W + Σ dᵢ log(dᵢs/(d⟨Gᵢᵢ, Wᵢ⟩)).  From X ⪰ tM⁻¹ follows t ≤ s/w with
w = ⟨G, 2N̂ − N̂MN̂⟩ ≤ ⟨G, M⁻¹⟩ for any N̂ near M⁻¹; with momentum t² ≤ s/w with E[SYS] in place of G.

With momentum the budget gives t ≤ k/⟨L, C⟩ for any C ≻ 0 with CLC ⪯ M⁻¹: then C ⪯ L⁻¹ # M⁻¹, and DLD ⪰ t²M⁻¹ makes
D ⪰ t(L⁻¹ # M⁻¹).

Poor multipliers make an upper end weak, never wrong.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from operator import add, matmul, mul
from typing import Any, NamedTuple

FORMAT = "stepsize-opt certificate 2"
BITS = 320  # of the rounded numbers that decide definiteness unless a matrix is singular up to a share of about 2⁻³⁰⁰
ROUNDING = Fraction(1, 10**9)  # how far the weights, the mean and the signs of a listed sketch may be from a law's


class Refused(Exception):
    """A statement that is false, or that the numbers of the file do not prove."""


def require(holds: bool, statement: str) -> None:
    """Raise Refused unless the statement holds."""
    if not holds:
        msg = f"not proved: {statement}"
        raise Refused(msg)


# ---------------------------------------------------------------- rational matrices


class Exact:
    """A rational matrix: whole numbers ``rows`` times a positive ``unit``."""

    def __init__(self, rows: list[list[int]], unit: Fraction) -> None:
        self.rows, self.unit = rows, unit

    @staticmethod
    def of(entries: Sequence[Sequence[Fraction | int]]) -> Exact:
        require(len(entries) > 0 and len(entries[0]) > 0, "a matrix has rows and columns")
        require(all(len(row) == len(entries[0]) for row in entries), "the rows of a matrix have one length")
        q = math.lcm(*(x.denominator for row in entries for x in row))
        return Exact([[x.numerator * (q // x.denominator) for x in row] for row in entries], Fraction(1, q))

    @staticmethod
    def diagonal(values: Sequence[Fraction | int]) -> Exact:
        return Exact.of([[x if i == j else 0 for j in range(len(values))] for i, x in enumerate(values)])

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: tuple[int, int]) -> Fraction:
        return self.rows[place[0]][place[1]] * self.unit

    @property
    def T(self) -> Exact:
        return Exact([list(column) for column in zip(*self.rows, strict=True)], self.unit)

    def __matmul__(self, other: Exact) -> Exact:
        require(len(self.rows[0]) == len(other), "the sizes of factors fit")
        columns = other.T.rows
        return Exact([[sum(map(mul, row, column)) for column in columns] for row in self.rows], self.unit * other.unit)

    def __rmul__(self, factor: Fraction | int) -> Exact:
        return Exact([[factor.numerator * x for x in row] for row in self.rows], self.unit / factor.denominator)

    def __add__(self, other: Exact) -> Exact:
        require(len(self) == len(other) and len(self.rows[0]) == len(other.rows[0]), "the sizes of terms fit")
        unit = Fraction(1, math.lcm(self.unit.denominator, other.unit.denominator))
        p, q = int(self.unit / unit), int(other.unit / unit)
        pairs = zip(self.rows, other.rows, strict=True)
        return Exact([[p * x + q * y for x, y in zip(*rows, strict=True)] for rows in pairs], unit)

    def __sub__(self, other: Exact) -> Exact:
        return self + -1 * other

    def times(self, other: Exact) -> Exact:
        """The product entry by entry."""
        pairs = zip(self.rows, other.rows, strict=True)
        return Exact([[x * y for x, y in zip(*rows, strict=True)] for rows in pairs], self.unit * other.unit)

    def inner(self, other: Exact) -> Fraction:
        """⟨A, B⟩ = tr(AᵀB)."""
        return sum(map(sum, self.times(other).rows)) * self.unit * other.unit

    def fractions(self) -> list[list[Fraction]]:
        return [[x * self.unit for x in row] for row in self.rows]

    def block(self, part: range) -> Exact:
        return Exact([self.rows[i][part.start : part.stop] for i in part], self.unit)


def shifted(x: int, bits: int) -> int:
    return x << bits if bits >= 0 else x >> -bits


def rounded_determinant(A: Exact, loss: int) -> Fraction | None:
    """A number ≤ det A for ``loss`` = n, ≥ det A for −n; 0 where rounding decides nothing, None unless A ⪰ 0.

    Elimination with whole numbers of BITS bits.  Every entry is rounded down by less than 1, which changes a symmetric
    matrix by a matrix between −nI and nI.  With ``loss`` = n this much is subtracted from the diagonal in each step, so
    that the matrix at hand stays ⪯ the true Schur complement, and the pivots are those of a matrix ⪯ A; with
    ``loss`` = −n they are those of a matrix ⪰ A.
    """
    n, product = len(A), 1
    sizes = [A.rows[i][i].bit_length() // 2 for i in range(n)]
    N = [[shifted(row[j], BITS - sizes[i] - sizes[j]) for j in range(i + 1)] for i, row in enumerate(A.rows)]
    for k in range(n):
        pivot = N[k][k] - (k + 1) * loss
        if pivot <= 0:
            return None if pivot < 0 and loss < 0 else Fraction(0)
        product *= pivot
        column = [N[i][k] for i in range(k + 1, n)]
        for i, c in enumerate(column, k + 1):
            N[i][k + 1 :] = [x - c * y // pivot for x, y in zip(N[i][k + 1 :], column, strict=False)]
    return product * A.unit**n * Fraction(2) ** (2 * sum(sizes) - n * BITS)


def determinant(A: Exact) -> Fraction | None:
    """A number from 0 to det A for a symmetric A ⪰ 0, and above 0 if A ≻ 0; None for any other."""
    kept = [i for i, row in enumerate(A.rows) if any(row)]
    if len(kept) < len(A):  # zero rows
        rest = Exact([[A.rows[i][j] for j in kept] for i in kept], A.unit)
        return Fraction(0) if not kept or determinant(rest) is not None else None
    below = rounded_determinant(A, len(A))
    return below or (exact_determinant(A) if rounded_determinant(A, -len(A)) is not None else None)


def exact_determinant(A: Exact) -> Fraction | None:
    """det A for a symmetric A ⪰ 0, None for any other: elimination without fractions (Bareiss)."""
    N, n, last, singular = [row[:] for row in A.rows], len(A), 1, False
    for k in range(n):
        pivot, column = N[k][k], [row[k] for row in N]
        if pivot < 0 or (pivot == 0 and any(column[k:])):
            return None
        singular = singular or pivot == 0
        for i in range(k + 1, n) if pivot else ():
            for j in range(k + 1, i + 1):
                N[i][j] = (pivot * N[i][j] - column[i] * column[j]) // last  # the division has no remainder
        last = pivot or last
    return Fraction(0) if singular else last * A.unit**n


def semidefinite(A: Exact, statement: str) -> None:
    require(determinant(A) is not None, statement)


def log_det(A: Exact, statement: str) -> Fraction:
    """A lower bound on log det A; raises Refused unless A ≻ 0."""
    det = determinant(A)
    require(det is not None and det > 0, statement)
    return log_ends(det or Fraction(0))[0]


def log_ends(x: Fraction) -> tuple[Fraction, Fraction]:
    """Rational bounds of log x, 2⁻¹¹⁸ apart for x near one: x = 2ⁿ(1 + z)/(1 − z), log x = n log 2 + 2 artanh z."""
    require(x > 0, "the argument of a logarithm is positive")
    n = x.numerator.bit_length() - x.denominator.bit_length()
    m = x / Fraction(2) ** n  # between ½ and 2, so that |z| ≤ ⅓
    middle = 2 * (artanh((m - 1) / (m + 1)) + n * artanh(Fraction(1, 3)))
    error = Fraction(0 if x == 1 else 2 * (1 + abs(n)), 2**120)
    return middle - error, middle + error


def artanh(z: Fraction) -> Fraction:
    """Σ z^(2j+1)/(2j+1) for |z| ≤ ⅓, right to 2⁻¹²⁰: 45 terms leave 2⁻¹⁴⁰, each is rounded by few units of 2⁻¹²⁸."""
    power = math.floor(z * 2**128)
    square, total = power * power, 0
    for j in range(45):
        total += power // (2 * j + 1)
        power = power * square >> 256
    return Fraction(total, 2**128)


# ---------------------------------------------------------------- what a file contains


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; raises Refused where a key stands twice."""
    require(len(dict(pairs)) == len(pairs), f"no key stands twice among {', '.join(name for name, _ in pairs)}")
    return dict(pairs)


def parsed(text: str) -> Any:
    """The content of a file: no key twice, and no numbers but whole ones."""

    def refuse(constant: str) -> None:
        require(False, f"{constant} is a whole number; others are hexadecimal")

    return json.loads(text, object_pairs_hook=once, parse_float=refuse, parse_constant=refuse)


def fields(plain: Any, *names: str) -> list[Any]:
    """The values of an object that has exactly these keys."""
    found = sorted(plain) if isinstance(plain, dict) else type(plain).__name__
    require(found == sorted(names), f"an object has the keys {', '.join(names)} and no other, not {found}")
    return [plain[name] for name in names]


def items(plain: Any) -> list[Any]:
    require(isinstance(plain, list) and len(plain) > 0, "a list is a list and not empty")
    return list(plain)


def one_of(words: Sequence[Any], plain: Any) -> Any:
    require(any(type(plain) is type(word) and plain == word for word in words), f"{plain!r} is one of {words}")
    return plain


def number(text: Any) -> Fraction:
    """A finite float as ``float.hex`` writes it."""
    try:
        x = float.fromhex(text)
    except (TypeError, ValueError, OverflowError):
        x = math.nan
    require(math.isfinite(x) and x.hex() == text, f"{text!r} is a finite float as float.hex writes it")
    return Fraction(x)


def numbers(plain: Any) -> list[Fraction]:
    return [number(text) for text in items(plain)]


def whole(plain: Any, most: int) -> int:
    require(type(plain) is int and 1 <= plain <= most, f"{plain!r} is a whole number from 1 to {most}")
    return int(plain)


def probabilities(plain: Any) -> list[Fraction]:
    p = numbers(plain)
    require(all(0 < x <= 1 for x in p), "probabilities lie in (0, 1]")
    return p


def matrix(plain: Any) -> Exact:
    """A matrix by its rows, or {"diagonal": …}, {"sum": […]}, {"product": […]}, {"transpose": …}, {"inverse": …}."""
    if isinstance(plain, list):
        return Exact.of([numbers(row) for row in plain])
    kind = next(iter(plain), None) if isinstance(plain, dict) else None
    (of,) = fields(plain, one_of(("diagonal", "sum", "product", "transpose", "inverse"), kind))
    if kind == "diagonal":
        return Exact.diagonal(numbers(of))
    if kind in ("sum", "product"):
        return reduce(add if kind == "sum" else matmul, map(matrix, items(of)))
    return matrix(of).T if kind == "transpose" else inverse(matrix(of))


def inverse(A: Exact) -> Exact:
    n = len(A)
    require(len(A.rows[0]) == n, "a matrix with an inverse is square")
    rows = [[*(A[i, j] for j in range(n)), *(Fraction(i == j) for j in range(n))] for i in range(n)]
    for k in range(n):
        require(rows[k][k] != 0, "the pivots of an inverse are not 0")
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in (i for i in range(n) if i != k):
            rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return Exact.of([row[n:] for row in rows])


def symmetric(plain: Any, d: int | None = None) -> Exact:
    A = matrix(plain)
    require(A.rows == A.T.rows and d in (None, len(A)), "L, M, D and all but factors are symmetric and of one size")
    return A


def gram(plain: Any, d: int) -> Exact:
    """VVᵀ of a factor V that a file contains: positive semidefinite by construction."""
    V = matrix(plain)
    require(len(V) == d, "factors have d rows")
    return V @ V.T


def parts(plain: Any, d: int) -> list[range]:
    """The places of blocks of the given sizes, one after the other."""
    sizes = [whole(size, d) for size in items(plain)]
    require(sum(sizes) == d, "the sizes of blocks or layers add up to d")
    return [range(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]


# ---------------------------------------------------------------- words


def mark(rows: Iterable[Iterable[Fraction]]) -> str:
    """The first 16 digits of the SHA-256 of the entries in lowest terms, such as 1/2,-3;-3,4 for a 2×2 matrix."""
    text = ";".join(",".join(map(str, row)) for row in rows)
    return f"(SHA-256 {hashlib.sha256(text.encode()).hexdigest()[:16]})"


def named(name: str, A: Exact) -> str:
    """A matrix in words: a multiple of I by its number, any other by its mark."""
    x = A[0, 0]
    is_float = abs(x) < 2**1023 and Fraction(float(x)) == x
    is_multiple = is_float and A.rows == Exact.diagonal([A.rows[0][0]] * len(A)).rows
    return f"{name} = {float(x)!r} I" if is_multiple else f"{name} {mark(A.fractions())}"


def listed(values: Sequence[Fraction]) -> str:
    """Floats in words: all of a few, the mark of many."""
    few = len(values) <= 8
    return ", ".join(repr(float(x)) for x in values) if few else f"{len(values)} numbers {mark([values])}"


def sizes_of(blocks: list[range]) -> str:
    return ", ".join(str(len(block)) for block in blocks)


def error_above(x: Fraction) -> float:
    """A float that is not below x."""
    near = float(x)
    return near if Fraction(near) >= x else math.nextafter(near, math.inf)


# ---------------------------------------------------------------- sketches


class Law(NamedTuple):
    """A distribution of S in words, M ↦ E[SMS], and E[S], None for I."""

    words: str
    moment: Callable[[Exact], Exact]
    mean: Exact | None = None


def law(plain: Any, d: int) -> Law:
    """The sketch of a file, proved to be a distribution of symmetric d×d matrices with E[S] = I."""
    kind = plain.get("kind") if isinstance(plain, dict) else None
    return LAWS[one_of(tuple(LAWS), kind)](plain, d)


def diagonal_law(words: str, P: Sequence[Sequence[Fraction]], d: int) -> Law:
    """S = Diag(s) with P = E[ssᵀ], for which E[SMS] = P ∘ M."""
    require(len(P) == d, f"the sketch has dimension {d}")
    exact = Exact.of(P)
    return Law(words, exact.times)


def identity(plain: Any, d: int) -> Law:
    fields(plain, "kind")
    return Law("S = I", lambda M: M)


def rand_k(plain: Any, d: int) -> Law:
    """k of d coordinates, times d/k."""
    k = whole(fields(plain, "kind", "k")[1], d)
    both = [[Fraction(d, k) * (1 if i == j else Fraction(k - 1, d - 1)) for j in range(d)] for i in range(d)]
    return diagonal_law(f"RandK with k = {k}", both, d)


def gaussian(plain: Any, d: int) -> Law:
    """S = GGᵀ/k with a d×k matrix G of independent standard normal entries."""
    k = whole(fields(plain, "kind", "k")[1], d)

    def moment(M: Exact) -> Exact:
        trace = sum((M[i, i] for i in range(d)), Fraction(0))
        return Fraction(k + 1, k) * M + Exact.diagonal([trace / k] * d)

    return Law(f"Gaussian with k = {k}", moment)


def coins(q: list[Fraction], blocks: list[range]) -> list[list[Fraction]]:
    """E[ssᵀ] where each block is sent with its probability q, divided by q, independently of the others."""
    require(len(q) == len(blocks), "every layer has a probability")
    sent = [(x, i) for i, (x, block) in enumerate(zip(q, blocks, strict=True)) for _ in block]
    return [[1 / x if i == j else Fraction(1) for _, j in sent] for x, i in sent]


def bern_q(plain: Any, d: int) -> Law:
    _, q, sizes = fields(plain, "kind", "q", "sizes")
    p, blocks = probabilities(q), parts(sizes, d)
    words = f"BernQ with q = {listed(p)} and layers of {sizes_of(blocks)} coordinates"
    return diagonal_law(words, coins(p, blocks), d)


def independent_sampling(plain: Any, d: int) -> Law:
    p = probabilities(fields(plain, "kind", "p")[1])
    return diagonal_law(f"IndependentSampling with p = {listed(p)}", coins(p, [range(1)] * len(p)), d)


def systematic_sampling(plain: Any, d: int) -> Law:
    """Intervals of lengths p, end to end; coordinate i is sent if one of x, x + 1, … for a uniform x is in its own."""
    p = probabilities(fields(plain, "kind", "p")[1])
    starts = [Fraction(sum(p[:i])) % 1 for i in range(len(p))]
    arcs = list(zip(starts, p, strict=True))
    both = [[sum(overlap(a, x, b + turn, y) for turn in (-1, 0, 1)) for b, y in arcs] for a, x in arcs]
    P = [[Fraction(x) / (p[i] * p[j]) for j, x in enumerate(row)] for i, row in enumerate(both)]
    return diagonal_law(f"SystematicSampling with p = {listed(p)}", P, d)


def overlap(a: Fraction, x: Fraction, b: Fraction, y: Fraction) -> Fraction:
    """How much the intervals [a, a + x] and [b, b + y] have in common."""
    return max(Fraction(0), min(a + x, b + y) - max(a, b))


def weights_of(plain: Any, count: int) -> list[Fraction]:
    """Probabilities of ``count`` outcomes: the weights over their sum, which must be 1 up to rounding."""
    weights = probabilities(plain)
    total = sum(weights, Fraction(0))
    require(len(weights) == count and abs(total - 1) <= ROUNDING, "every outcome has a weight, and they add up to 1")
    return [x / total for x in weights]


def listed_vectors(plain: Any, d: int) -> Law:
    """S = Diag(s/E[s]) for listed vectors s ≥ 0 whose mean is 1 up to rounding."""
    _, texts, outcomes = fields(plain, "kind", "weights", "vectors")
    vectors = Exact.of([numbers(row) for row in items(outcomes)])
    weights = weights_of(texts, len(vectors))
    require(len(vectors.rows[0]) == d and min(map(min, vectors.rows)) >= 0, f"vectors have {d} entries from 0 on")
    means = (Exact.of([weights]) @ vectors).fractions()[0]
    require(all(abs(m - 1) <= ROUNDING for m in means), "E[s] = 1 for the listed vectors")
    squares = (vectors.T @ Exact.diagonal(weights) @ vectors).fractions()
    P = [[x / (m * n) for x, n in zip(row, means, strict=True)] for row, m in zip(squares, means, strict=True)]
    content = mark([weights, *vectors.fractions()])
    return diagonal_law(f"S = Diag(s/E[s]) with {len(vectors)} listed vectors s {content}", P, d)


def listed_matrices(plain: Any, d: int) -> Law:
    """S = S_r with the probability w_r, for S_r ⪰ 0 whose mean is I, all up to rounding."""
    _, texts, matrices = fields(plain, "kind", "weights", "matrices")
    outcomes = [symmetric(S, d) for S in items(matrices)]
    weights = weights_of(texts, len(outcomes))
    one = Exact.diagonal([1] * d)
    for S in outcomes:
        semidefinite(S + ROUNDING * S.inner(one) * one, "S ⪰ 0 for the listed matrices")
    mean = reduce(add, (w * S for w, S in zip(weights, outcomes, strict=True)))
    error = max(abs(x) for row in (mean - one).fractions() for x in row)
    require(error <= ROUNDING, "E[S] = I for the listed matrices")
    content = mark([weights, *(row for S in outcomes for row in S.fractions())])
    unbiased = f" with |E[S] − I| ≤ {error_above(error)!r}" if error else ""
    return Law(
        f"{len(outcomes)} listed matrices S {content}{unbiased}",
        lambda M: reduce(add, (w * (S @ M @ S) for w, S in zip(weights, outcomes, strict=True))),
        mean if error else None,
    )


def layer_wise(plain: Any, d: int) -> Law:
    """Independent layers: E[SᵢMᵢⱼSⱼ] = E[Sᵢ] Mᵢⱼ E[Sⱼ]."""
    _, sizes, sketches = fields(plain, "kind", "sizes", "layers")
    blocks = parts(sizes, d)
    require(len(items(sketches)) == len(blocks), "every layer has a sketch")
    layers = [(block, law(sketch, len(block))) for block, sketch in zip(blocks, sketches, strict=True)]
    means = [(block, layer.mean or Exact.diagonal([1] * len(block))) for block, layer in layers]
    biased = any(layer.mean for _, layer in layers)
    mean = reduce(add, (embedded(A, block, d) for block, A in means)) if biased else None

    def moment(M: Exact) -> Exact:
        out = mean @ M @ mean if mean else M
        for block, layer in layers:
            out = out + embedded(layer.moment(M.block(block)) - out.block(block), block, d)
        return out

    words = "; ".join(f"{len(block)}: {layer.words}" for block, layer in layers)
    return Law(f"LayerWise with the layers [{words}]", moment, mean)


def embedded(A: Exact, part: range, d: int) -> Exact:
    """The d×d matrix that is A in some rows and columns and zero elsewhere."""
    padded = [[0] * part.start + row + [0] * (d - part.stop) for row in A.rows]
    return Exact([padded[i - part.start] if i in part else [0] * d for i in range(d)], A.unit)


LAWS: dict[str, Callable[[Any, int], Law]] = {
    "Identity": identity,
    "RandK": rand_k,
    "Gaussian": gaussian,
    "BernQ": bern_q,
    "IndependentSampling": independent_sampling,
    "SystematicSampling": systematic_sampling,
    "vectors": listed_vectors,
    "matrices": listed_matrices,
    "LayerWise": layer_wise,
}


# ---------------------------------------------------------------- proofs


class Quadratic:
    """D ↦ 𝒬(DBD): E[SDLDS] for det-CGD1, D E[SLS] D for det-CGD2."""

    def __init__(self, method: Any, law: Law, L: Exact) -> None:
        self.outside = one_of(("det-CGD1", "det-CGD2"), method) == "det-CGD1"
        self.moment, self.B = law.moment, L if self.outside else law.moment(L)

    def __call__(self, D: Exact) -> Exact:
        X = D @ self.B @ D
        return self.moment(X) if self.outside else X

    def tangent(self, Y: Exact, D: Exact) -> tuple[Exact, Fraction]:
        """G and s with ⟨Y, 𝒬(XBX)⟩ = ⟨R, XBX⟩ ≥ ⟨G, X⟩ − s for all X: the tangent at D; convex, as R = 𝒬(Y), B ⪰ 0."""
        R = self.moment(Y) if self.outside else Y
        half = R @ D @ self.B
        return half + half.T, half.inner(D)


class Structure:
    """The D ≻ 0 that are compared: free blocks of given sizes, or Diag(γᵢWᵢ) beside multiples of D's own blocks."""

    def __init__(self, plain: Any, D: Exact) -> None:
        sizes, W = fields(plain, "sizes", "W")
        self.parts = parts(sizes, len(D))
        self.directions = [] if W is None else [symmetric(W, len(D)), D]
        for A in [D, *self.directions]:
            blocks = reduce(add, (embedded(A.block(part), part, len(D)) for part in self.parts))
            require(not any(map(any, (A - blocks).rows)), "D has no entry outside the blocks of its structure")
        for W in self.directions:
            log_det(W, "the direction W is positive definite")
            require(all(near_multiple(D.block(part), W.block(part)) for part in self.parts), "D is a multiple of W")

    @property
    def words(self) -> str:
        n, d = len(self.parts), sum(map(len, self.parts))
        sizes = "full" if n == 1 else "diagonal" if n == d else f"blocks of {sizes_of(self.parts)}"
        if not self.directions:
            return sizes
        W = named("W", self.directions[0])
        return f"multiples of {W} or of D" + ("" if n == 1 else f", one for each block ({sizes})")

    def seen(self, G: Exact) -> list[tuple[Fraction, list[tuple[int, Exact]]]]:
        """What D sees of G: (0, free blocks), or for each W (log det W, ⟨G, Wᵢ⟩ over the size), both with weights."""
        if not self.directions:
            return [(Fraction(0), [(1, G.block(part)) for part in self.parts])]
        found = []
        for W in self.directions:
            shares = [(len(x), Exact.of([[G.block(x).inner(W.block(x)) / len(x)]])) for x in self.parts]
            found.append((log_ends(rounded_determinant(W, -len(W)) or Fraction(0))[1], shares))
        return found

    def volume(self, G: Exact) -> Fraction:
        """An upper bound on log det D over all D of the structure with ⟨G, D⟩ ≤ d."""
        statement = "the multipliers prove a bound: G ≻ 0"
        return max(x - sum(weight * log_det(A, statement) for weight, A in blocks) for x, blocks in self.seen(G))

    def nonnegative(self, G: Exact) -> None:
        """Prove ⟨G, D⟩ ≥ 0 for all D ⪰ 0 of the structure."""
        for _, A in (pair for _, blocks in self.seen(G) for pair in blocks):
            semidefinite(A, "the multipliers prove a bound: G ⪰ 0")


def near_multiple(D: Exact, W: Exact) -> bool:
    """Whether D is the multiple of W with the same first entry, up to 8 roundings of each entry."""
    near, rest = D[0, 0] * W, W[0, 0] * D - D[0, 0] * W
    return all(abs(rest[i, j]) * 2**49 <= abs(near[i, j]) for i in range(len(D)) for j in range(len(D)))


def scaled_log(s: Fraction, d: int) -> Fraction:
    """d log(s/d) from above."""
    return d * log_ends(s / d)[1]


def check_value(X: Exact, M: Exact | None, lower: Fraction) -> None:
    """Prove log det X ≥ lower, or for an M that X ⪰ tM⁻¹ for t = lower."""
    if M is None:
        require(log_det(X, "D ≻ 0, or H ≻ 0") >= lower, "the lower end of the value")
    else:
        require(lower > 0, "t > 0")
        semidefinite(M @ X @ M - lower * M, "D or H ⪰ tM⁻¹")


# ---------------------------------------------------------------- the kinds of files


class Problem:
    """What all files contain: L ≻ 0, D, multipliers, and M ≻ 0 or None; M = I but for the goal ``linear``.

    names: the keys of a file beside those of all files; goals: those without an M.
    """

    names: tuple[str, ...]
    goals: tuple[str, ...]

    def __init__(self, document: dict[str, Any], momentum: bool) -> None:
        self.momentum = momentum
        self.L = symmetric(document["L"])
        self.d = len(self.L)
        self.D = symmetric(document["D"], self.d)
        known = (*self.goals, "euclidean", "linear")
        self.name = str(one_of(("linear", "convex") if momentum else known, document["goal"]))
        has_no_M = self.name in self.goals and not momentum
        require((document["M"] is None) == has_no_M, "an M stands beside the goals that have one and no other")
        self.M = None if has_no_M else symmetric(document["M"], self.d)
        log_det(self.L, "L ≻ 0")
        if self.M is not None:
            log_det(self.M, "M ≻ 0")
            one = self.name == "linear" or named("M", self.M) == "M = 1.0 I"
            require(one, f"M = I for the goal {self.name}")
        self.proof = document["multipliers"]
        found = set(self.proof) if isinstance(self.proof, dict) else None
        require(found in (set(), *self.multipliers()), f"the multipliers have the keys of one of {self.multipliers()}")

    @property
    def goal(self) -> str:
        """The goal; with an M it is a t, whatever its name."""
        return self.name if self.M is None else "t"

    def multiplier(self, name: str) -> Any:
        require(name in self.proof, f"the multipliers have a {name}")
        return self.proof[name]

    @property
    def reference(self) -> Exact:
        return symmetric(self.multiplier("reference"), self.d)

    @property
    def factor(self) -> Exact:
        return gram(self.multiplier("factor"), self.d)

    def value_bound(self, Y: Exact, s: Fraction) -> Fraction:
        """An upper bound on log det X, or on t with X ⪰ tM⁻¹, for all X with ⟨Y, X⟩ ≤ s.

        Any N near M⁻¹ bounds ⟨Y, M⁻¹⟩ from below: M⁻¹ − 2N + NMN = (M⁻¹ − N)M(M⁻¹ − N) ⪰ 0.
        """
        if self.M is None:
            return scaled_log(s, self.d) - log_det(Y, "Y ≻ 0 for the multiplier")
        N = symmetric(self.multiplier("inverse"), self.d)
        weight = Y.inner(2 * N - N @ self.M @ N)
        require(weight > 0, "⟨Y, M⁻¹⟩ > 0 for the multiplier Y")
        return s / weight

    def multipliers(self) -> list[set[str]]:
        """The keys of multipliers that prove an upper end."""
        raise NotImplementedError

    def about(self) -> str:
        goal = f"goal {self.name}" + (" with momentum" if self.momentum else "")
        return f"d = {self.d}, {named('L', self.L)}, {goal}" + ("" if self.M is None else f", {named('M', self.M)}")


class Node(Problem):
    """One node."""

    names = ("sketch", "method", "structure", "V")
    goals = ("paper", "descent")

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document, document["V"] is not None)
        self.law = law(document["sketch"], self.d)
        self.T = Quadratic(document["method"], self.law, self.L)
        self.structure = Structure(document["structure"], self.D)
        self.V = symmetric(document["V"], self.d) if self.momentum else None

    def multipliers(self) -> list[set[str]]:
        """Y, the reference and M⁻¹, as far as the goal needs them."""
        names = {"factor", "reference"}
        return [names if self.M is None else names | {"inverse"}]

    def check(self, lower: Fraction) -> None:
        """Prove what D is said to satisfy, and that its value is at least ``lower``."""
        X = self.D
        if self.goal == "paper":
            semidefinite(X - self.T(X), "T(D) ⪯ D")
        else:
            X = 2 * X - self.T(X)
        if self.V is None:
            check_value(X, self.M, lower)
        else:
            check_value(self.V, self.M, Fraction(1))
            require(lower > 0, "t > 0")
            semidefinite(X - lower**2 * self.law.moment(self.V), "H ⪰ t²E[SVS]")

    def tangent(self) -> tuple[Exact, Exact, Fraction]:
        """Y, and G and s with ⟨G, D⟩ ≤ s for all feasible D, or ⟨Y, H⟩ ≤ s − ⟨G, D⟩ where H is judged."""
        Y = self.factor
        G, s = self.T.tangent(Y, self.reference)  # ⟨Y, aD − T(D)⟩ ≤ s − ⟨G − aY, D⟩
        return Y, G - (1 if self.goal == "paper" else 2) * Y, s

    def bound(self) -> Callable[[Fraction], bool]:
        """Return whether the multipliers prove that no D has a value above a given number."""
        Y, G, s = self.tangent()
        if self.goal == "paper":
            end = scaled_log(s, self.d) + self.structure.volume(G)
            return lambda upper: upper >= end
        self.structure.nonnegative(G)
        end = self.value_bound(Y if self.V is None else self.law.moment(Y), s)
        return lambda upper: (upper if self.V is None else upper * abs(upper)) >= end

    def words(self) -> tuple[str, str, str, str]:
        method, T = ("det-CGD1", "E[SDLDS]") if self.T.outside else ("det-CGD2", "D E[SLS] D")
        about = f"{self.about()}, {method}, sketch {self.law.words}, structure {self.structure.words}"
        floor = "tM⁻¹" if self.V is None else f"t²E[SVS], {named('V', self.V)} ⪰ M⁻¹,"
        value, says = {
            "paper": ("log det D", f"D ≻ 0 satisfies {T} ⪯ D"),
            "descent": ("log det H", f"H = 2D − {T} is positive definite"),
            "t": ("t", f"H = 2D − {T} satisfies H ⪰ {floor}"),
        }[self.goal]
        among = "of this structure for which this holds" + ("" if self.V is None else ", for V = M⁻¹,")
        return about, says, value, among


class Limit(Problem):
    """D ⪯ L⁻¹ with tr(LD) ≤ k: what methods that send k floats per round attain."""

    names: tuple[str, ...] = ("k", "momentum")
    goals = ("descent",)

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document, one_of((True, False), document["momentum"]))
        self.k = number(document["k"])

    def multipliers(self) -> list[set[str]]:
        """None or M⁻¹ for the budget, C with momentum; Y and M⁻¹ for D ⪯ L⁻¹."""
        if self.M is None:
            return []
        return [{"reference"} if self.momentum else {"inverse"}, {"factor", "inverse"}]

    def check(self, lower: Fraction) -> None:
        """Prove that D is attained, and that its value is at least ``lower``."""
        L, D = self.L, self.D
        semidefinite(L - L @ D @ L, "D ⪯ L⁻¹")
        require(L.inner(D) <= self.k, "tr(LD) ≤ k")
        log_det(D, "D ≻ 0")
        check_value(D @ L @ D if self.momentum else D, self.M, lower * abs(lower) if self.momentum else lower)

    def bound(self) -> Callable[[Fraction], bool]:
        """Return whether no D has a value above a given number: ⟨L, D⟩ ≤ k, or ⟨LYL, D or DLD⟩ ≤ ⟨Y, L⟩."""
        if "factor" in self.proof:
            Y = self.factor
            end = self.value_bound(self.L @ Y @ self.L, Y.inner(self.L))
            return lambda upper: (upper * abs(upper) if self.momentum else upper) >= end
        if self.M is None or not self.momentum:
            end = self.value_bound(self.L, self.k)
            return lambda upper: upper >= end
        return self.budget_with_momentum(self.M)

    def budget_with_momentum(self, M: Exact) -> Callable[[Fraction], bool]:
        """CLC ⪯ M⁻¹ makes C ⪯ L⁻¹ # M⁻¹, and DLD ⪰ t²M⁻¹ makes D ⪰ t(L⁻¹ # M⁻¹): X ↦ L⁻¹ # X is monotone."""
        C = self.reference
        log_det(C, "C ≻ 0")
        semidefinite(M - M @ C @ self.L @ C @ M, "CLC ⪯ M⁻¹")
        return lambda upper: upper * self.L.inner(C) >= self.k

    @property
    def floor(self) -> str:
        return "D ≻ 0" if self.M is None else "DLD ⪰ t²M⁻¹" if self.momentum else "D ⪰ tM⁻¹"

    def words(self) -> tuple[str, str, str, str]:
        limit, value = f"D ⪯ L⁻¹, tr(LD) ≤ {float(self.k)!r}", "log det D" if self.M is None else "t"
        return self.about(), f"D satisfies {limit}, {self.floor}", value, f"with {limit}, {self.floor}"


class Method(Limit):
    """The subspace method x⁺ = x − A_J A_Jᵀ∇f(x) with P(j ∈ J) = h_j, and weights w with momentum."""

    names = ("k", "momentum", "A", "h", "w")

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(document)
        self.A, self.h = matrix(document["A"]), probabilities(document["h"])
        require((document["w"] is None) != self.momentum, "weights w stand beside momentum and nothing else")
        self.w = numbers(document["w"]) if self.momentum else []
        sizes = {self.d, len(self.A), len(self.A.rows[0]), len(self.h), len(self.w) if self.momentum else self.d}
        require(sizes == {self.d}, f"A, h and w have size {self.d}")

    def check(self, lower: Fraction) -> None:
        """Prove that the method attains D, and that its value is at least ``lower``."""
        A, h = self.A, self.h
        require(sum(h) <= self.k, "Σh ≤ k")
        semidefinite(Exact.diagonal([1] * self.d) - A.T @ self.L @ A, "AᵀLA ⪯ I")
        semidefinite(A @ Exact.diagonal(h) @ A.T - self.D, "D ⪯ A Diag(h) Aᵀ")
        log_det(self.D, "D ≻ 0")
        if self.momentum:
            require(lower > 0 and all(lower**2 * x <= y for x, y in zip(self.w, h, strict=True)), "t²w ≤ h")
            check_value(A @ Exact.diagonal(list(map(mul, self.w, h))) @ A.T, self.M, Fraction(1))
        else:
            check_value(self.D, self.M, lower)

    def words(self) -> tuple[str, str, str, str]:
        about, _, value, among = super().words()
        floor = f"t²w ≤ h, A Diag(hw) Aᵀ ⪰ M⁻¹ for the weights w {mark([self.w])}," if self.momentum else self.floor
        about = f"{about}, x⁺ = x − A_J A_Jᵀ∇f(x) with A {mark(self.A.fractions())}, P(j ∈ J) = h_j, h {mark([self.h])}"
        return about, f"D ≻ 0 satisfies D ⪯ E[A_J A_Jᵀ], AᵀLA ⪯ I, Σh ≤ {float(self.k)!r}, {floor}", value, among


# ---------------------------------------------------------------- the file

KINDS: dict[str, Any] = {"node": Node, "limit": Limit, "method": Method}
NAMES = ("format", "kind", "L", "M", "goal", "D", "multipliers", "lower", "upper", "statement", "sha256")


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of all of a document but this number."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def problem_of(document: Any) -> Any:
    """What a document says, read strictly; proved is so far that the sketch is a law, that L ≻ 0 and that M ≻ 0."""
    kind = document.get("kind") if isinstance(document, dict) else None
    found = KINDS[one_of(tuple(KINDS), kind)]
    fields(document, *NAMES, *found.names)
    return found(document)


def ends(document: dict[str, Any]) -> tuple[Fraction, Fraction | None]:
    """The ends of the claim; None for no upper end, which has no multipliers."""
    lower = number(document["lower"])
    upper = None if document["upper"] == "inf" else number(document["upper"])
    require(upper is not None or document["multipliers"] == {}, "multipliers stand beside an upper end")
    return lower, upper


def statement(document: dict[str, Any], problem: Any) -> str:
    """What a document says, in one sentence."""
    about, says, value, among = problem.words()
    lower, upper = ends(document)
    others = "nothing is said of any other D" if upper is None else f"no D ≻ 0 {among} has {value} > {float(upper)!r}"
    return f"{about}, D {mark(problem.D.fractions())}: {says} with {value} ≥ {float(lower)!r}, and {others}."


def verify(document: Any) -> str:
    """Prove what a document says and return it; raises Refused for what is false or not proved.

    Parameters
    ----------
    document : dict
        The content of a certificate file, as ``json.load`` returns it.
    """
    problem = problem_of(document)
    one_of((FORMAT,), document["format"])
    lower, upper = ends(document)
    require(document["sha256"] == digest(document), "the content is that of which the SHA-256 was taken")
    require(document["statement"] == statement(document, problem), "the sentence of the file is what its numbers say")
    problem.check(lower)
    if upper is not None:
        require(problem.bound()(upper), "the upper end of the value")
    return str(document["statement"])


def show(text: str) -> None:
    """Print a line; what the output cannot encode is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def main() -> int:
    """Check the files named on the command line."""
    parser = argparse.ArgumentParser(description="Check certificate files of stepsize-opt in exact arithmetic.")
    parser.add_argument("files", nargs="+", metavar="D.cert.json")
    refused = 0
    for name in parser.parse_args().files:
        try:
            with open(name, encoding="utf-8") as file:
                show(f"{name}: proved: {verify(parsed(file.read()))}")
        except (Refused, OSError, ValueError, RecursionError) as error:
            refused = 1
            show(f"{name}: REFUSED, {error if isinstance(error, Refused) else f'no certificate file: {error!r}'}")
    return refused


if __name__ == "__main__":
    sys.exit(main())
