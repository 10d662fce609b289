"""Check a certificate file of stepsize-opt in exact arithmetic: ``python verify.py D.cert.json``.

This file needs nothing but Python's standard library and imports nothing of stepsize-opt: copy it anywhere.  Floats are
rational numbers, so everything is decided without rounding.  Exit code: 0 proved, 1 refused.

The quadratic form of a method is T(D) = 𝒬(DBD): E[SDLDS] for det-CGD1, D E[SLS] D for det-CGD2.  H = 2D − T(D).

    file     goal                what is proved of D                                                 value
    node     paper               D ≻ 0, T(D) ⪯ D                                                     log det D
             convex              D ≻ 0, E[SDS] ⪯ L⁻¹                                                 log det D
             descent             H ≻ 0                                                               log det H
             euclidean, linear   H ⪰ tM⁻¹; with momentum H ⪰ t²E[SVS], V ⪰ M⁻¹                       t
    limit    descent, t          D ⪯ L⁻¹, tr(LD) ≤ k, D ⪰ tM⁻¹ (momentum DLD ⪰ t²M⁻¹)           log det D, t
    method   descent, t          AᵀLA ⪯ I, D ⪯ A Diag(h) Aᵀ, Σh ≤ k, D as for the limit         log det D, t

*How A ≻ 0 is decided:* by elimination with entries of ``BITS`` bits.  Rounding an n×n matrix down by less than one unit
changes it by less than nI units, and this much is subtracted from the diagonal in each step, so the pivots are those of
a matrix below A and their product is a lower bound on det A.  The same with nI added refutes A ⪰ 0.
X ⪰ tM⁻¹ is decided as MXM − tM ⪰ 0.

*No D has a larger value than* ``upper``.  For Y ⪰ 0, R = 𝒬(Y) and any reference D̂ the convex function
⟨Y, 𝒬(DBD)⟩ = ⟨R, DBD⟩ lies above its tangent ⟨N, D⟩ − s, N = RD̂B + BD̂R, s = ⟨R, D̂BD̂⟩.  With the multipliers Y of the
file every feasible D has

    node, paper           ⟨N − Y, D⟩ ≤ s                                because ⟨Y, D − T(D)⟩ ≥ 0
    node, convex          ⟨E[SLYLS], D⟩ ≤ ⟨Y, L⟩                        L E[SDS] L ⪯ L
    node, other goals     ⟨Y, H⟩ ≤ s − ⟨N − 2Y, D⟩ ≤ s                  N − 2Y ⪰ 0 is proved
    limit, method         ⟨L, D⟩ ≤ k, or ⟨LYL, D⟩ ≤ ⟨Y, L⟩              tr(LD) ≤ k, or LDL ⪯ L; momentum: for DLD

From ⟨G, X⟩ ≤ s follows log det X ≤ d log(s/d) − log det G.  For X = D
with free blocks only the blocks of G count, and for D = Diag(γᵢWᵢ) the bound is
log det W + Σ dᵢ log(dᵢs/(d⟨Gᵢᵢ, Wᵢ⟩)).  From X ⪰ tM⁻¹ follows t ≤ s/w with w = ⟨G, 2N̂ − N̂MN̂⟩ ≤ ⟨G, M⁻¹⟩ for any N̂ near
M⁻¹; with momentum t² ≤ s/w with E[SYS] in place of G.

With momentum the budget gives t ≤ k/⟨L, C⟩ for any C ≻ 0 with CLC ⪯ M⁻¹: then C ⪯ L⁻¹ # M⁻¹, and DLD ⪰ t²M⁻¹ makes
D ⪰ t(L⁻¹ # M⁻¹).

Poor multipliers make an upper end weak, never wrong.  R ⪰ 0 and B ⪰ 0 hold because 𝒬 is an expectation; for layers with
a ``FiniteSketch``, whose mean is I up to rounding only, both are proved.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from operator import add, matmul, mul
from typing import Any

FORMAT = "stepsize-opt certificate 1"
BITS = 320  # of the rounded numbers that decide definiteness unless a matrix is singular up to a share of about 2⁻³⁰⁰


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
        require(all(len(row) == len(other) for row in self.rows), "the sizes of factors fit")
        columns = other.T.rows
        return Exact([[sum(map(mul, row, column)) for column in columns] for row in self.rows], self.unit * other.unit)

    def __rmul__(self, factor: Fraction | int) -> Exact:
        return Exact([[factor.numerator * x for x in row] for row in self.rows], self.unit / factor.denominator)

    def __add__(self, other: Exact) -> Exact:
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
    require(A.rows == A.T.rows and d in (None, len(A)), "L, M, D and all but factors are symmetric and of one size")
    return A


def gram(plain: Any) -> Exact:
    """VVᵀ of a factor V that a file holds: positive semidefinite by construction."""
    V = matrix(plain)
    return V @ V.T


def parts(sizes: Sequence[int], d: int) -> list[range]:
    """The places of blocks of the given sizes, one after the other."""
    require(all(isinstance(size, int) and size > 0 for size in sizes), "sizes are whole numbers above 0")
    require(sum(sizes) == d, "the sizes of blocks or layers add up to d")
    return [range(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]


def whole(k: Any, most: float) -> int:
    require(isinstance(k, int) and 1 <= k <= most, f"{k!r} is a whole number from 1 to {most}")
    return int(k)


def probabilities(texts: Sequence[str]) -> list[Fraction]:
    p = numbers(texts)
    require(all(0 < x <= 1 for x in p), "probabilities lie in (0, 1]")
    return p


# ---------------------------------------------------------------- sketches


def moment(law: dict[str, Any], M: Exact) -> Exact:
    """E[SMS] of the sketch S by its definition; E[S] = I but for rounded ``finite`` ones."""
    d, kind = len(M), law["kind"]
    if kind == "Gaussian":  # S = GGᵀ/k
        k, trace = whole(law["k"], d), sum(M[i, i] for i in range(d))
        return Fraction(k + 1, k) * M + Exact.diagonal([Fraction(trace) / k] * d)
    if kind == "finite":
        weights, outcomes = probabilities(law["weights"]), [symmetric(S, d) for S in law["finite"]]
        return reduce(add, (w * (S @ M @ S) for w, S in zip(weights, outcomes, strict=True)))
    if kind == "LayerWise":  # independent layers: E[SᵢMᵢⱼSⱼ] = Mᵢⱼ
        out = M
        for part, (_, layer) in zip(parts([size for size, _ in law["layers"]], d), law["layers"], strict=True):
            out = out + embedded(moment(layer, M.block(part)) - M.block(part), part, d)
        return out
    P = second_moments(law, d)
    require(len(P) == d and all(len(row) == d for row in P), f"the sketch has dimension {d}")
    return Exact.of(P).times(M)


def positive_moment(law: dict[str, Any], M: Exact) -> Exact:
    """The moment of an M ⪰ 0, which is ⪰ 0; layers of rounded ``finite`` sketches are no law, so there it is proved."""
    found = moment(law, M)
    if law["kind"] == "LayerWise":
        semidefinite(found, "E[SMS] ⪰ 0 for M ⪰ 0")
    return found


def embedded(A: Exact, part: range, d: int) -> Exact:
    """The d×d matrix that is A in some rows and columns and zero elsewhere."""
    padded = [[0] * part.start + row + [0] * (d - part.stop) for row in A.rows]
    return Exact([padded[i - part.start] if i in part else [0] * d for i in range(d)], A.unit)


def second_moments(law: dict[str, Any], d: int) -> list[list[Fraction]]:
    """P = E[ssᵀ] of a diagonal sketch S = Diag(s), E[s] = 1, for which E[SMS] = P ∘ M."""
    kind, places = law["kind"], range(d)
    if kind == "Identity":
        return [[Fraction(1)] * d for _ in places]
    if kind == "RandK":  # k of d coordinates, times d/k
        k = whole(law["k"], d)
        return [[Fraction(d, k) * (1 if i == j else Fraction(k - 1, d - 1)) for j in places] for i in places]
    if kind in ("BernQ", "IndependentSampling"):  # each layer, or coordinate, is sent with probability q, divided by q
        q = probabilities(law["q"])
        sent = [pair for pair in zip(q, parts(law.get("sizes", [1] * len(q)), d), strict=True) for _ in pair[1]]
        return [[1 / p if here == there else Fraction(1) for _, there in sent] for p, here in sent]
    if kind == "SystematicSampling":  # intervals of lengths p, end to end, and the points x, x + 1, … of a uniform x
        p = probabilities(law["p"])
        starts = [Fraction(sum(p[:i])) % 1 for i in range(len(p))]
        arcs = list(zip(starts, p, strict=True))
        both = [[sum(overlap(a, x, b + turn, y) for turn in (-1, 0, 1)) for b, y in arcs] for a, x in arcs]
        return [[Fraction(x) / (p[i] * p[j]) for j, x in enumerate(row)] for i, row in enumerate(both)]
    if kind == "moments":
        P = symmetric(law["moments"], d)
        semidefinite(P - Exact.of([[1] * d] * d), "P − 11ᵀ ⪰ 0 for the sketch's moments: P is one plus a covariance")
        return [[P[i, j] for j in places] for i in places]
    require(kind == "support", f"{kind!r} is a kind of sketch")
    weights, vectors = numbers(law["weights"]), Exact.of([numbers(row) for row in law["support"]])
    require(min(weights) >= 0 < sum(weights), "weights are not negative")
    w = Exact.diagonal([x / sum(weights) for x in weights])
    means = [sum(w[r, r] * vectors[r, i] for r in range(len(w))) for i in places]
    squares = vectors.T @ w @ vectors
    return [[squares[i, j] / (means[i] * means[j]) for j in places] for i in places]


def overlap(a: Fraction, x: Fraction, b: Fraction, y: Fraction) -> Fraction:
    """How much the intervals [a, a + x] and [b, b + y] have in common."""
    return max(Fraction(0), min(a + x, b + y) - max(a, b))


# ---------------------------------------------------------------- proofs


class Quadratic:
    """D ↦ 𝒬(DBD): E[SDLDS] for det-CGD1, D E[SLS] D for det-CGD2."""

    def __init__(self, method: str, law: dict[str, Any], L: Exact) -> None:
        require(method in ("det-CGD1", "det-CGD2"), "the method is det-CGD1 or det-CGD2")
        self.law, self.outside = law, method == "det-CGD1"
        self.B = L if self.outside else positive_moment(law, L)

    def __call__(self, D: Exact) -> Exact:
        X = D @ self.B @ D
        return moment(self.law, X) if self.outside else X

    def tangent(self, Y: Exact, D: Exact) -> tuple[Exact, Fraction]:
        """G and s with ⟨Y, 𝒬(XBX)⟩ = ⟨R, XBX⟩ ≥ ⟨G, X⟩ − s for all X: the tangent at D; convex, as R = 𝒬(Y), B ⪰ 0."""
        R = positive_moment(self.law, Y) if self.outside else Y
        half = R @ D @ self.B
        return half + half.T, half.inner(D)


class Structure:
    """The D ≻ 0 that are compared: free blocks of given sizes, or Diag(γᵢWᵢ) beside multiples of D's own blocks."""

    def __init__(self, plain: dict[str, Any], D: Exact) -> None:
        self.parts = parts(plain["sizes"], len(D))
        self.directions = [] if plain["W"] is None else [symmetric(plain["W"], len(D)), D]
        for A in [D, *self.directions]:
            blocks = reduce(add, (embedded(A.block(part), part, len(D)) for part in self.parts))
            require(not any(map(any, (A - blocks).rows)), "D has no entry outside the blocks of its structure")
        for W in self.directions:
            log_det(W, "the direction W is positive definite")
            require(all(near_multiple(D.block(part), W.block(part)) for part in self.parts), "D is a multiple of W")

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


def value_bound(Y: Exact, s: Fraction, M: Exact | None, proof: dict[str, Any]) -> Fraction:
    """An upper bound on log det X, or on t with X ⪰ tM⁻¹, for all X with ⟨Y, X⟩ ≤ s.

    Any N near M⁻¹ bounds ⟨Y, M⁻¹⟩ from below: M⁻¹ − 2N + NMN = (M⁻¹ − N)M(M⁻¹ − N) ⪰ 0.
    """
    if M is None:
        return scaled_log(s, len(Y)) - log_det(Y, "Y ≻ 0 for the multiplier")
    N = symmetric(proof["inverse"], len(M))
    weight = Y.inner(2 * N - N @ M @ N)
    require(weight > 0, "⟨Y, M⁻¹⟩ > 0 for the multiplier Y")
    return s / weight


# ---------------------------------------------------------------- the kinds of files


class Problem:
    """What all files hold: L ≻ 0, D, multipliers, and M ≻ 0 or None."""

    goals: tuple[str, ...]  # those without an M

    def __init__(self, c: dict[str, Any], L: Exact) -> None:
        self.c, self.L, self.d, self.proof = c, L, len(L), c["multipliers"]
        known = self.goals if c.get("M") is None else ("euclidean", "linear", "convex")
        require(c["goal"] in known, f"the goal is one of {', '.join(known)}")
        self.D = symmetric(c["D"], self.d)
        self.M = None if c.get("M") is None else symmetric(c["M"], self.d)
        for A in (L, self.M) if self.M is not None else (L,):
            log_det(A, "L ≻ 0 and M ≻ 0")

    @property
    def goal(self) -> str:
        """The goal; with an M it is a t, whatever its name."""
        return "t" if self.M is not None else str(self.c["goal"])

    @property
    def reference(self) -> Exact:
        return symmetric(self.proof["reference"], self.d)


class Node(Problem):
    """One node."""

    goals = ("paper", "convex", "descent")

    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__(c, symmetric(c["L"]))
        self.law, self.T = c["sketch"], Quadratic(c["method"], c["sketch"], self.L)
        self.structure = Structure(c["structure"], self.D)
        self.V = None if c["V"] is None else symmetric(c["V"], self.d)

    def check(self, lower: Fraction) -> None:
        """Prove what D is said to satisfy, and that its value is at least ``lower``."""
        X = self.D
        if self.goal == "paper":
            semidefinite(X - self.T(X), "T(D) ⪯ D")
        elif self.goal == "convex":
            semidefinite(self.L - self.L @ moment(self.law, X) @ self.L, "E[SDS] ⪯ L⁻¹")
        else:
            X = 2 * X - self.T(X)
        if self.V is None:
            check_value(X, self.M, lower)
        else:
            check_value(self.V, self.M, Fraction(1))
            require(self.goal == "t" and lower > 0, "t > 0")
            semidefinite(X - lower**2 * moment(self.law, self.V), "H ⪰ t²E[SVS]")

    def tangent(self) -> tuple[Exact, Exact, Fraction]:
        """Y, and G and s with ⟨G, D⟩ ≤ s for all feasible D, or ⟨Y, H⟩ ≤ s − ⟨G, D⟩ where H is judged."""
        Y = gram(self.proof["factor"])
        if self.goal == "convex":  # ⟨LYL, E[SDS]⟩ ≤ ⟨LYL, L⁻¹⟩
            return Y, moment(self.law, self.L @ Y @ self.L), Y.inner(self.L)
        G, s = self.T.tangent(Y, self.reference)  # ⟨Y, aD − T(D)⟩ ≤ s − ⟨G − aY, D⟩
        return Y, G - (1 if self.goal == "paper" else 2) * Y, s

    def bound(self) -> Callable[[Fraction], bool]:
        """Return whether the multipliers prove that no D has a value above a given number."""
        Y, G, s = self.tangent()
        if self.goal in ("paper", "convex"):
            end = scaled_log(s, self.d) + self.structure.volume(G)
            return lambda upper: upper >= end
        self.structure.nonnegative(G)
        end = value_bound(Y if self.V is None else positive_moment(self.law, Y), s, self.M, self.proof)
        return lambda upper: (upper if self.V is None else upper * abs(upper)) >= end

    def words(self) -> tuple[str, str, str]:
        T = "E[SDLDS]" if self.T.outside else "D E[SLS] D"
        among = "of the same structure" + ("" if self.V is None else ", with V = M⁻¹,")
        value, says = {
            "paper": ("log det D", f"D ≻ 0 satisfies {T} ⪯ D"),
            "convex": ("log det D", "D ≻ 0 satisfies E[SDS] ⪯ L⁻¹"),
            "descent": ("log det H", f"H = 2D − {T} is positive definite"),
            "t": ("t", f"H = 2D − {T} satisfies H ⪰ {'tM⁻¹' if self.V is None else 't²E[SVS], V ⪰ M⁻¹,'}"),
        }[self.goal]
        return says, value, among


class Limit(Problem):
    """D ⪯ L⁻¹ with tr(LD) ≤ k: what methods that send k floats per round attain."""

    goals = ("descent",)
    attained = ""

    def __init__(self, c: dict[str, Any]) -> None:
        super().__init__(c, symmetric(c["L"]))
        self.k, self.momentum = number(c["k"]), c["momentum"] is True
        require(self.M is not None or not self.momentum, "momentum has an M")

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
            Y = gram(self.proof["factor"])
            end = value_bound(self.L @ Y @ self.L, Y.inner(self.L), self.M, self.proof)
            return lambda upper: (upper * abs(upper) if self.momentum else upper) >= end
        if self.M is None or not self.momentum:
            end = value_bound(self.L, self.k, self.M, self.proof)
            return lambda upper: upper >= end
        # CLC ⪯ M⁻¹ makes C ⪯ L⁻¹ # M⁻¹, and DLD ⪰ t²M⁻¹ makes D ⪰ t(L⁻¹ # M⁻¹): X ↦ L⁻¹ # X is monotone.
        C = self.reference
        log_det(C, "C ≻ 0")
        semidefinite(self.M - self.M @ C @ self.L @ C @ self.M, "CLC ⪯ M⁻¹")
        return lambda upper: upper * self.L.inner(C) >= self.k

    def words(self) -> tuple[str, str, str]:
        limit, value, floor = f"D ⪯ L⁻¹, tr(LD) ≤ {float(self.k)!r}", "t", "D ⪰ tM⁻¹"
        if self.M is None:
            value, floor = "log det D", "D ≻ 0"
        elif self.momentum:
            floor = "t²w ≤ h, A Diag(hw) Aᵀ ⪰ M⁻¹" if self.attained else "DLD ⪰ t²M⁻¹"
        return f"D satisfies {self.attained or limit}, {floor}", value, f"with {limit}"


class Method(Limit):
    """The subspace method x⁺ = x − A_J A_Jᵀ∇f(x) with P(j ∈ J) = h_j, and weights w with momentum."""

    attained = "D ⪯ E[A_J A_Jᵀ], AᵀLA ⪯ I, Σh ≤ k"

    def check(self, lower: Fraction) -> None:
        """Prove that the method attains D, and that its value is at least ``lower``."""
        A, h = matrix(self.c["A"]), probabilities(self.c["h"])
        require(sum(h) <= self.k, "Σh ≤ k")
        semidefinite(Exact.diagonal([1] * self.d) - A.T @ self.L @ A, "AᵀLA ⪯ I")
        semidefinite(A @ Exact.diagonal(h) @ A.T - self.D, "D ⪯ A Diag(h) Aᵀ")
        if self.momentum:
            w = numbers(self.c["w"])
            require(lower > 0 and all(lower**2 * x <= y for x, y in zip(w, h, strict=True)), "t²w ≤ h")
            check_value(A @ Exact.diagonal(list(map(mul, w, h))) @ A.T, self.M, Fraction(1))
        else:
            check_value(self.D, self.M, lower)


# ---------------------------------------------------------------- the file

KINDS: dict[str, Any] = {"node": Node, "limit": Limit, "method": Method}


def digest(document: dict[str, Any]) -> str:
    """SHA-256 of all of a document but this number."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def statement(document: dict[str, Any], problem: Any) -> str:
    """What a document says, in one sentence."""
    says, value, among = problem.words()
    lower, upper = (repr(float.fromhex(document[name])) for name in ("lower", "upper"))
    return f"{says} with {value} ≥ {lower}, and no D ≻ 0 {among} has {value} > {upper}."


def verify(document: dict[str, Any]) -> str:
    """Prove what a document says and return it; raises Refused for what is false or not proved."""
    require(document["format"] == FORMAT, f"the file has the format {FORMAT!r}")
    require(document["sha256"] == digest(document), "the content is that of which the SHA-256 was taken")
    problem = KINDS[document["kind"]](document)
    require(document["statement"] == statement(document, problem), "the sentence of the file is what its numbers say")
    problem.check(number(document["lower"]))
    if float.fromhex(document["upper"]) != math.inf:
        require(problem.bound()(number(document["upper"])), "the upper end of the value")
    return str(document["statement"])


def main() -> int:
    """Check the files named on the command line."""
    parser = argparse.ArgumentParser(description="Check certificate files of stepsize-opt in exact arithmetic.")
    parser.add_argument("files", nargs="+", metavar="D.cert.json")
    refused = 0
    for name in parser.parse_args().files:
        try:
            with open(name, encoding="utf-8") as file:
                print(f"{name}: proved: {verify(json.load(file))}")
        except (Refused, OSError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            refused = 1
            print(f"{name}: REFUSED, {error if isinstance(error, Refused) else f'no certificate file: {error!r}'}")
    return refused


if __name__ == "__main__":
    sys.exit(main())
