"""Check a certificate file of stepsize-opt in exact arithmetic: ``python verify.py D.cert.json``.

This file needs nothing but Python's standard library and imports nothing of stepsize-opt: copy it anywhere.  A float is
a rational number, so every statement is decided without rounding.  With 𝒫(M) = E[SMS], T(D) = 𝒫(DLD) for det-CGD1 and
D𝒫(L)D for det-CGD2 (both have the form 𝒬(DBD)), and H = 2D − T(D), the statements and the values with two ends are

    paper                D ≻ 0, T(D) ⪯ D                                    log det D
    convex               D ≻ 0, L𝒫(D)L ⪯ L, that is 𝒫(D) ⪯ L⁻¹              log det D
    descent              H ≻ 0                                              log det H
    euclidean, linear    MHM ⪰ tM, that is H ⪰ tM⁻¹                         t

Upper ends come from weak duality: multipliers prove ⟨G, X⟩ ≤ s for all that is feasible, hence det X ≤ (s/d)ᵈ/det G.
Poor multipliers make them weak, never wrong.  docs/reliability.md derives them.  Exit code: 0 proved, 1 refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import reduce
from operator import add, matmul, mul
from typing import Any

FORMAT = "stepsize-opt certificate 1"
SMALL = 16  # a larger matrix is tried with rounded factors before it is eliminated exactly
BITS = 320  # of the rounded factors, which find every matrix definite that is so by a share of 2⁻²⁰⁰


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
        columns = list(zip(*other.rows, strict=True))
        return Exact([[sum(map(mul, row, column)) for column in columns] for row in self.rows], self.unit * other.unit)

    def __rmul__(self, factor: Fraction | int) -> Exact:
        return Exact([[factor.numerator * x for x in row] for row in self.rows], self.unit / factor.denominator)

    def __add__(self, other: Exact) -> Exact:
        a, b = self.unit, other.unit
        unit = Fraction(1, math.lcm(a.denominator, b.denominator))
        p, q = int(a / unit), int(b / unit)
        pairs = zip(self.rows, other.rows, strict=True)
        return Exact([[p * x + q * y for x, y in zip(*rows, strict=True)] for rows in pairs], unit)

    def __sub__(self, other: Exact) -> Exact:
        return self + -1 * other

    def times(self, other: Exact) -> Exact:
        """The product entry by entry."""
        rows = [[x * y for x, y in zip(*pair, strict=True)] for pair in zip(self.rows, other.rows, strict=True)]
        return Exact(rows, self.unit * other.unit)

    def inner(self, other: Exact) -> Fraction:
        """⟨A, B⟩ = tr(AᵀB)."""
        return sum(map(sum, self.times(other).rows)) * self.unit * other.unit

    def block(self, part: range) -> Exact:
        return Exact([self.rows[i][part.start : part.stop] for i in part], self.unit)


def determinant(A: Exact) -> Fraction | None:
    """det A for a symmetric A ⪰ 0, None for any other: LDLᵀ by elimination without fractions (Bareiss)."""
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


def determinant_from_below(A: Exact) -> Fraction | None:
    """A number from 0 to det A for a symmetric A ⪰ 0, and above 0 if A ≻ 0; None for any other.

    Large matrices: let N be A scaled by powers of two and rounded, and L̃D̃L̃ᵀ near N − δI in BITS bits.  If the rest
    N − L̃D̃L̃ᵀ, computed exactly, has diagonal entries above the sums of the others, then N ≻ L̃D̃L̃ᵀ and det N ≥ det D̃.
    """
    n = len(A)
    sizes = [A.rows[i][i].bit_length() // 2 for i in range(n)]
    if n <= SMALL or min(A.rows[i][i] for i in range(n)) <= 0:
        return determinant(A)
    N = [[shifted(A.rows[i][j], BITS - sizes[i] - sizes[j]) for j in range(n)] for i in range(n)]
    factor: list[list[int]] = []
    pivots: list[int] = []
    for i in range(n):
        row: list[int] = []  # of L̃, in units of 2^−BITS
        for j in range(i):
            known = sum(x * y * p for x, y, p in zip(row, factor[j], pivots, strict=False))
            row.append(((N[i][j] << 2 * BITS) - known) // (pivots[j] << BITS))
        known = sum(x * x * p for x, p in zip(row, pivots, strict=True))
        pivots.append(N[i][i] - (1 << BITS - 200) - (known >> 2 * BITS))
        if pivots[i] <= 0:
            return determinant(A)
        factor.append([*row, 1 << BITS])
    for i in range(n):
        rest = [(N[i][j] << 2 * BITS) - _row_product(factor, pivots, i, j) for j in range(n)]
        if 2 * rest[i] <= sum(map(abs, rest)) + (n + 1 << 2 * BITS):  # every entry of N was rounded by less than 1
            return determinant(A)
    return math.prod(pivots) * A.unit**n * Fraction(2) ** (2 * sum(sizes) - n * BITS)


def _row_product(factor: list[list[int]], pivots: list[int], i: int, j: int) -> int:
    return sum(x * y * p for x, y, p in zip(factor[i], factor[j], pivots, strict=False))


def shifted(x: int, bits: int) -> int:
    return x << bits if bits >= 0 else x >> -bits


def log_ends(x: Fraction) -> tuple[Fraction, Fraction]:
    """Rational bounds of log x, 2⁻¹¹⁰ apart for x near one: x = 2ⁿ(1 + z)/(1 − z) and log x = n log 2 + 2 artanh z."""
    require(x > 0, "the argument of a logarithm is positive")
    if x == 1:
        return Fraction(0), Fraction(0)
    n = x.numerator.bit_length() - x.denominator.bit_length()
    m = x / Fraction(2) ** n  # between ½ and 2
    z = Fraction(math.floor((m - 1) / (m + 1) * 2**128), 2**128)
    # |z| ≤ ⅓: 45 terms leave less than 2⁻¹⁴⁰, and the rounding of z moves artanh z by less than 2⁻¹²⁷.
    middle, log2 = (2 * sum(y ** (2 * j + 1) / (2 * j + 1) for j in range(45)) for y in (z, Fraction(1, 3)))
    middle, error = middle + n * log2, (1 + abs(n)) * Fraction(1, 2**120)
    return middle - error, middle + error


# ---------------------------------------------------------------- what a file holds


def number(text: str) -> Fraction:
    return Fraction(float.fromhex(text))


def numbers(texts: Sequence[str]) -> list[Fraction]:
    return [number(text) for text in texts]


def matrix(plain: Any) -> Exact:
    """A matrix by its rows, or {"diagonal": …}, {"sum": […]}, {"product": […]}, {"transpose": …}, {"inverse": …}."""
    if isinstance(plain, list):
        return Exact.of([numbers(row) for row in plain])
    ((kind, of),) = plain.items()
    if kind == "diagonal":
        return Exact.diagonal(numbers(of))
    if kind in ("sum", "product"):
        return reduce(add if kind == "sum" else matmul, map(matrix, of))
    require(kind in ("transpose", "inverse"), f"{kind!r} is a form of a matrix")
    return matrix(of).T if kind == "transpose" else inverse(matrix(of))


def inverse(A: Exact) -> Exact:
    n = len(A)
    rows = [[*(A[i, j] for j in range(n)), *(Fraction(i == j) for j in range(n))] for i in range(n)]
    for k in range(n):
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i in (i for i in range(n) if i != k):
            rows[i] = [x - rows[i][k] * y for x, y in zip(rows[i], rows[k], strict=True)]
    return Exact.of([row[n:] for row in rows])


def symmetric(plain: Any, d: int | None = None) -> Exact:
    A = matrix(plain)
    require(A.rows == A.T.rows and d in (None, len(A)), "L, M, D, W, N and S are symmetric matrices of one size")
    return A


def parts(sizes: Sequence[int]) -> list[range]:
    """The places of blocks of the given sizes, one after the other."""
    require(all(isinstance(size, int) and size > 0 for size in sizes), "sizes are whole numbers above 0")
    return [range(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]


def moment(law: dict[str, Any], M: Exact) -> Exact:
    """E[SMS] of the sketch S by its definition."""
    d, kind = len(M), law["kind"]
    if kind == "Gaussian":  # S = GGᵀ/k
        k, trace = whole(law["k"], d), total(M[i, i] for i in range(d))
        return Fraction(k + 1, k) * M + Exact.diagonal([trace / k] * d)
    if kind == "FiniteSketch":
        weights = probabilities(law["weights"])
        outcomes = [symmetric(S, d) for S in law["matrices"]]
        return reduce(add, (w * (S @ M @ S) for w, S in zip(weights, outcomes, strict=True)))
    if kind == "LayerWise":  # independent layers: E[SᵢMᵢⱼSⱼ] = Mᵢⱼ
        places, out = parts([size for size, _ in law["layers"]]), M
        require(places[-1].stop == d, "the layers of the sketch add up to d")
        for part, (_, layer) in zip(places, law["layers"], strict=True):
            out = out + embedded(moment(layer, M.block(part)) - M.block(part), part, d)
        return out
    P = second_moments(law, d)
    require(len(P) == d and all(len(row) == d for row in P), f"the sketch has dimension {d}")
    return Exact.of(P).times(M)


def embedded(A: Exact, part: range, d: int) -> Exact:
    """The d×d matrix that is A in some rows and columns and zero elsewhere."""
    padded = [[0] * part.start + row + [0] * (d - part.stop) for row in A.rows]
    return Exact([padded[i - part.start] if i in part else [0] * d for i in range(d)], A.unit)


def second_moments(law: dict[str, Any], d: int) -> list[list[Fraction]]:
    """P = E[ssᵀ] of a diagonal sketch S = Diag(s), for which E[SMS] = P ∘ M."""
    kind, places = law["kind"], range(d)
    if kind == "Identity":
        return [[Fraction(1)] * d for _ in places]
    if kind == "RandK":  # k of d coordinates, times d/k
        k = whole(law["k"], d)
        return [[Fraction(d, k) * (1 if i == j else Fraction(k - 1, d - 1)) for j in places] for i in places]
    if kind in ("BernQ", "IndependentSampling"):  # each layer is sent with probability q, divided by q
        q, layers = probabilities(law["q"]), parts(law["sizes"])
        pairs = [pair for pair in zip(q, layers, strict=True) for _ in pair[1]]
        return [[1 / p if here == there else Fraction(1) for _, there in pairs] for p, here in pairs]
    if kind == "SystematicSampling":  # intervals of lengths p, end to end, and the points x, x + 1, … of a uniform x
        p = probabilities(law["p"])
        starts = [total(p[:i]) % 1 for i in range(len(p))]
        arcs = [(start, start + length) for start, length in zip(starts, p, strict=True)]
        both = [[total(overlap(a, (b[0] + turn, b[1] + turn)) for turn in (-1, 0, 1)) for b in arcs] for a in arcs]
        return [[x / (p[i] * p[j]) for j, x in enumerate(row)] for i, row in enumerate(both)]
    if kind == "moments":  # of a vector with mean 1: P is one plus a covariance
        P = symmetric(law["P"], d)
        require(determinant_from_below(P - Exact.of([[1] * d] * d)) is not None, "P − 11ᵀ ⪰ 0 for the sketch's moments")
        return [[P[i, j] for j in places] for i in places]
    require(kind == "support", f"{kind!r} is a kind of sketch")
    weights, vectors = probabilities(law["weights"]), Exact.of([numbers(row) for row in law["vectors"]])
    w = Exact.diagonal([x / sum(weights) for x in weights])
    means = [sum(w[r, r] * vectors[r, i] for r in range(len(w))) for i in places]
    squares = vectors.T @ w @ vectors
    return [[squares[i, j] / (means[i] * means[j]) for j in places] for i in places]


def overlap(a: tuple[Fraction, Fraction], b: tuple[Fraction, Fraction]) -> Fraction:
    return max(Fraction(0), min(a[1], b[1]) - max(a[0], b[0]))


def whole(k: Any, most: int) -> int:
    require(isinstance(k, int) and 1 <= k <= most, f"{k!r} is a whole number from 1 to {most}")
    return int(k)


def probabilities(texts: Sequence[str]) -> list[Fraction]:
    p = numbers(texts)
    require(all(0 < x <= 1 for x in p), "probabilities lie in (0, 1]")
    return p


# ---------------------------------------------------------------- proofs


def total(values: Iterable[Fraction]) -> Fraction:
    return sum(values, Fraction(0))


def semidefinite(A: Exact, statement: str) -> None:
    require(determinant_from_below(A) is not None, statement)


def log_det(A: Exact, statement: str) -> Fraction:
    """A lower bound on log det A; raises Refused unless A ≻ 0."""
    det = determinant_from_below(A)
    require(det is not None and det > 0, statement)
    return log_ends(det or Fraction(0))[0]


def gram(plain: Any) -> Exact:
    """VVᵀ of a factor V that a file holds: positive semidefinite by construction."""
    V = matrix(plain)
    return V @ V.T


def diagonal_of(A: Exact) -> Exact:
    return Exact.diagonal([A[i, i] for i in range(len(A))])


class Structure:
    """The D that are compared: free blocks of given sizes, or Diag(γᵢWᵢ) beside multiples of D's own blocks."""

    def __init__(self, plain: dict[str, Any], D: Exact) -> None:
        d = len(D)
        self.parts = parts(plain["sizes"])
        require(self.parts[-1].stop == d, "the blocks of the structure add up to d")
        self.directions = [] if plain["W"] is None else [symmetric(plain["W"], d), D]
        for A in [D, *self.directions]:
            blocks = reduce(add, (embedded(A.block(part), part, d) for part in self.parts))
            require((A - blocks).inner(A - blocks) == 0, "D has no entry outside the blocks of its structure")
        for W in self.directions:
            log_det(W, "the direction W is positive definite")
        for part in self.parts if self.directions else ():
            require(near_multiple(D.block(part), self.directions[0].block(part)), "D is a multiple of W up to rounding")

    def volume(self, G: Exact) -> Fraction:
        """An upper bound on log det D over all D of the structure with ⟨G, D⟩ ≤ d."""
        if not self.directions:
            return -total(log_det(G.block(part), "the multipliers prove a bound: G ≻ 0") for part in self.parts)
        found = []
        for W in self.directions:
            weights = [(len(part), G.block(part).inner(W.block(part))) for part in self.parts]
            require(all(g > 0 for _, g in weights), "the multipliers prove a bound: ⟨G, W⟩ > 0")
            det = determinant(W) or Fraction(0)
            found.append(log_ends(det)[1] + sum(n * log_ends(n / g)[1] for n, g in weights))
        return max(found)

    def representatives(self, X: Exact, R: Exact) -> list[Exact]:
        """Matrices E with ⟨E, D⟩ = ⟨X, D⟩ for all D of the structure, zero in the rows in which R is zero."""
        if not self.directions:
            return [reduce(add, (embedded(X.block(part), part, len(X)) for part in self.parts))]
        found = []
        for W in self.directions:
            values = [Fraction(0)] * len(X)
            for part in self.parts:
                places = [i for i in part if R[i, i] > 0] or list(part)
                for i in places:
                    values[i] = X.block(part).inner(W.block(part)) / (len(places) * W[i, i])
            found.append(Exact.diagonal(values))
        return found


def near_multiple(D: Exact, W: Exact) -> bool:
    """Whether D is the multiple of W with the same first entry, up to a share of 2⁻⁴⁵ of the diagonal entries."""
    places = range(len(D))
    near, rest = D[0, 0] * W, W[0, 0] * D - D[0, 0] * W
    return all(rest[i, j] ** 2 <= near[i, i] * near[j, j] / 2**90 for i in places for j in places)


def largest(Y: Exact, R: Exact, B: Exact, structure: Structure, proof: dict[str, Any]) -> Fraction:
    """An upper bound on 2⟨Y, D⟩ − ⟨R, DBD⟩ over all D of the structure, R and B ⪰ 0.

    For every K with ⟨K, D⟩ = ⟨Y, D⟩ it is at most tr(KᵀR⁻¹KB⁻¹), by 2⟨a, b⟩ ≤ ‖a‖² + ‖b‖² for a = R^−½KB^−½ and
    b = R^½DB^½.  K = RD̂B + E with a reference D̂ gives ⟨R, D̂BD̂⟩ + 2⟨E, D̂⟩ + tr(EᵀR⁻¹EB⁻¹), E next to zero.
    """
    reference, (r, b) = symmetric(proof["reference"], len(Y)), numbers(proof["shares"])
    require(min(r, b) > 0, "the shares are positive")
    semidefinite(R - r * diagonal_of(R), "R ⪰ share·diag(R) for the image R of the multiplier")
    semidefinite(B - b * diagonal_of(B), "B ⪰ share·diag(B)")
    half, places = R @ reference @ B, range(len(Y))
    found = []
    for E in structure.representatives(Y - Fraction(1, 2) * (half + half.T), R):
        error = Fraction(0)
        for i in places:
            squares = sum((E[i, j] ** 2 / B[j, j] for j in places), Fraction(0))
            require(R[i, i] > 0 or squares == 0, "the multiplier bounds every D")
            error += squares / (r * b * R[i, i]) if squares else 0
        found.append(half.inner(reference) + 2 * E.inner(reference) + error)
    return max(found)


def weight_of_inverse(Y: Exact, M: Exact, approximate: Any) -> Fraction:
    """A lower bound on ⟨Y, M⁻¹⟩ from any N near M⁻¹: M⁻¹ − 2N + NMN = (M⁻¹ − N)M(M⁻¹ − N) ⪰ 0."""
    N = symmetric(approximate, len(M))
    found = Y.inner(2 * N - N @ M @ N)
    require(found > 0, "⟨Y, M⁻¹⟩ > 0 for the multiplier Y")
    return found


def scaled_log(s: Fraction, d: int) -> Fraction:
    """d log(s/d) from above."""
    return d * log_ends(s / d)[1]


class Node:
    """One node: D under the goals paper, convex, descent, euclidean and linear."""

    def __init__(self, c: dict[str, Any]) -> None:
        self.goal, self.proof = c["goal"], c["multipliers"]
        self.L = symmetric(c["L"])
        d = len(self.L)
        log_det(self.L, "L ≻ 0")
        self.D = symmetric(c["D"], d)
        self.structure = Structure(c["structure"], self.D)
        self.law, self.first = c["sketch"], c["method"] == "det-CGD1"
        require(c["method"] in ("det-CGD1", "det-CGD2"), "the method is det-CGD1 or det-CGD2")
        self.B = self.L if self.first else self.P(self.L)
        self.M = None if c["M"] is None else symmetric(c["M"], d)
        self.H = 2 * self.D - self.Q(self.D @ self.B @ self.D)

    def P(self, X: Exact) -> Exact:
        """𝒫(X) = E[SXS]."""
        return moment(self.law, X)

    def Q(self, X: Exact) -> Exact:
        """𝒬 of T(D) = 𝒬(DBD): 𝒫 for det-CGD1, with B = L, and the identity for det-CGD2, with B = 𝒫(L)."""
        return self.P(X) if self.first else X

    def check(self, lower: Fraction) -> None:
        """Prove what D is said to satisfy, and that its value is at least ``lower``."""
        D, H, M = self.D, self.H, self.M
        if M is not None:
            log_det(M, "M ≻ 0")
            semidefinite(M @ H @ M - lower * M, "H ⪰ tM⁻¹")
            require(lower > 0, "t > 0")
            return
        value = log_det(H, "H ≻ 0") if self.goal == "descent" else log_det(D, "D ≻ 0")
        if self.goal == "paper":
            semidefinite(H - D, "T(D) ⪯ D")
        elif self.goal == "convex":
            semidefinite(self.L - self.L @ self.P(D) @ self.L, "E[SDS] ⪯ L⁻¹")
        require(value >= lower, "the lower end of the value")

    def excludes(self, upper: Fraction) -> bool:
        """Whether no D of the structure has a larger value, by the multipliers."""
        return upper >= self.upper_end()

    def upper_end(self) -> Fraction:
        """What the multipliers prove of every D of the structure: no value is larger."""
        d, Y = len(self.D), gram(self.proof["factor"])
        if self.goal == "convex":  # ⟨U, 𝒫(D)⟩ ≤ ⟨U, L⁻¹⟩ for U = LYL
            return scaled_log(Y.inner(self.L), d) + self.structure.volume(self.P(self.L @ Y @ self.L))
        R = self.Q(Y)
        if self.goal == "paper":  # 0 ≤ ⟨Y, D − T(D)⟩ ≤ s − ⟨G, D⟩, because −⟨R, DBD⟩ lies below its tangent at D̂ = D
            semidefinite(R, "the image of the multiplier is positive semidefinite")
            semidefinite(self.B, "B ⪰ 0")
            half = R @ self.D @ self.B
            return scaled_log(half.inner(self.D), d) + self.structure.volume(half + half.T - Y)
        q = largest(Y, R, self.B, self.structure, self.proof)  # ⟨Y, H⟩ ≤ q
        if self.M is None:
            return scaled_log(q, d) - log_det(Y, "Y ≻ 0 for the multiplier")
        return q / weight_of_inverse(Y, self.M, self.proof["inverse"])

    def sentence(self, lower: str, upper: str) -> str:
        T = "E[SDLDS]" if self.first else "D E[SLS] D"
        value, says = {
            "paper": ("log det D", f"D ≻ 0 satisfies {T} ⪯ D"),
            "convex": ("log det D", "D ≻ 0 satisfies E[SDS] ⪯ L⁻¹"),
            "descent": ("log det H", f"H = 2D − {T} is positive definite"),
        }.get(self.goal, ("t", f"H = 2D − {T} satisfies H ⪰ tM⁻¹"))
        return f"{says} with {value} ≥ {lower}, and no D of the same structure has {value} > {upper}."


# ---------------------------------------------------------------- the file

KINDS: dict[str, Any] = {"node": Node}


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of all of a document but this number."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def statement(document: dict[str, Any]) -> str:
    """What a document says, in one sentence."""
    ends = (repr(float.fromhex(document[name])) for name in ("lower", "upper"))
    return str(KINDS[document["kind"]](document).sentence(*ends))


def verify(document: dict[str, Any]) -> str:
    """Prove what a document says and return it; raises Refused for what is false or not proved."""
    require(document["format"] == FORMAT, f"the file has the format {FORMAT!r}")
    require(document["sha256"] == digest(document), "the content is that of which the SHA-256 was taken")
    problem = KINDS[document["kind"]](document)
    problem.check(number(document["lower"]))
    if float.fromhex(document["upper"]) != math.inf:
        require(problem.excludes(number(document["upper"])), "the upper end of the value")
    require(document["statement"] == statement(document), "the sentence of the file is what its numbers say")
    return str(document["statement"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Check certificate files of stepsize-opt in exact arithmetic.")
    parser.add_argument("files", nargs="+", metavar="D.cert.json")
    code = 0
    for name in parser.parse_args().files:
        try:
            with open(name, encoding="utf-8") as file:
                print(f"{name}: proved: {verify(json.load(file))}")
        except Refused as reason:
            print(f"{name}: REFUSED, {reason}")
            code = 1
        except (OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            print(f"{name}: REFUSED, this is no certificate file: {error!r}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
