"""Certificate files: an answer with its question and its multipliers as JSON, for ``stepsize_opt.verify``.

Every float is written in hexadecimal, so that nothing is rounded on the way.  A file claims what the verifier proves:
the lower end is that of the answer, the upper end that of the answer or, where the multipliers of the file prove less,
what they prove.  Multipliers are written as factors V of VVᵀ ⪰ 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import eigh

from stepsize_opt.inputs import Direction, Immutable, Structure, dense, pattern_of, read_only, write_text
from stepsize_opt.operators import (
    BlockStepsize,
    DiagonalStepsize,
    InverseStepsize,
    LowRankStepsize,
)
from stepsize_opt.proofs import rounded_up
from stepsize_opt.sketches import (
    BernQ,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
)
from stepsize_opt.smoothness import LowRankPlusDiagonal
from stepsize_solvers.programs import Indices, Matrix, Pattern, Vector

# A certificate holds dense multipliers and is verified with whole numbers: beyond this size neither makes sense.
LARGEST = 400
# More unknowns of D than this are not solved for: D itself is the reference then.
_MOST_UNKNOWNS = 3000


@dataclass(frozen=True, eq=False)
class Question(Immutable):
    """What an answer does not hold of its question: L, and M of the goals that have one.

    multiplier: finds one where the answer has none, because its L was never made dense.
    """

    L: Any
    M: Any = None
    multiplier: Callable[[], Matrix | None] | None = None

    @staticmethod
    def of(L: Any, M: Any = None, multiplier: Callable[[], Matrix | None] | None = None) -> Question:
        """Keep copies: the caller's arrays may change."""
        return Question(_kept(L), _kept(M), multiplier)

    @property
    def d(self) -> int:
        return int(self.L.shape[0])

    def smoothness(self) -> Matrix:
        """L as an array of floats."""
        return self.L.todense() if isinstance(self.L, LowRankPlusDiagonal) else dense(self.L)

    def curvature(self) -> Matrix | None:
        """M as an array of floats; None for goals without one."""
        if self.M is None:
            return None
        return self.M * np.eye(self.d) if isinstance(self.M, float) else dense(self.M)


def _kept(matrix: Any) -> Any:
    if isinstance(matrix, np.ndarray):
        return read_only(matrix.copy())
    return matrix.copy() if sparse.issparse(matrix) else matrix


def asked(question: Question | None) -> Question:
    """Return the question; raises ValueError where it is not known or too large for a file."""
    if question is None:
        msg = "an answer that was read from a file does not know its L: solve again, then write the certificate"
        raise ValueError(msg)
    if question.d > LARGEST:
        msg = f"a certificate file holds dense multipliers, so d must be at most {LARGEST}, got {question.d}"
        raise ValueError(msg)
    return question


def write(path: str | PathLike[str], document: dict[str, Any], lower: float, upper: float) -> Path:
    """Write a document with the two ends of its claim, once the verifier has proved it.

    Raises ArithmeticError where it does not prove the lower end.
    """
    from stepsize_opt import verify  # not before: python -m stepsize_opt.verify warns of a module that is loaded

    document = {"format": verify.FORMAT, **document, "lower": lower.hex()}
    try:
        problem = verify.KINDS[document["kind"]](document)
        try:
            upper = max(upper, rounded_up(problem.upper_end()))
        except verify.Refused:  # the multipliers prove nothing
            upper = math.inf
        document["upper"] = upper.hex()
        document["statement"] = verify.statement(document)
        document["sha256"] = verify.digest(document)
        verify.verify(document)
    except verify.Refused as refused:
        msg = f"an error of the library: the certificate is refused, {refused}"
        raise ArithmeticError(msg) from refused
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return Path(path)


# ---------------------------------------------------------------- plain forms


def plain_vector(values: Any) -> list[str]:
    """The floats of a vector in hexadecimal."""
    return [float(x).hex() for x in values]


def plain_matrix(matrix: Any) -> Any:
    """A matrix, or an operator of this library, in a form that ``verify.matrix`` reads without rounding."""
    if isinstance(matrix, LowRankPlusDiagonal):
        return _low_rank(matrix.shift, matrix.U, 1.0)
    if isinstance(matrix, LowRankStepsize):
        return _low_rank(matrix.a, matrix.V, matrix.sign)
    if isinstance(matrix, DiagonalStepsize):
        return {"diagonal": plain_vector(matrix.x)}
    if isinstance(matrix, InverseStepsize):
        p, U, C = matrix.p, plain_matrix(matrix.U), plain_matrix(matrix.C)
        inner = {"inverse": {"product": [C, {"transpose": C}]}}
        product = [{"diagonal": plain_vector(-p)}, U, inner, {"transpose": U}, {"diagonal": plain_vector(p)}]
        return {"sum": [{"diagonal": plain_vector(p)}, {"product": product}]}
    if isinstance(matrix, BlockStepsize):
        return plain_matrix(matrix.array)
    return [plain_vector(row) for row in dense(matrix)]


def _low_rank(diagonal: Vector, U: Any, sign: float) -> Any:
    factor = plain_matrix(U)
    signs = {"diagonal": plain_vector([sign] * U.shape[1])}
    return {"sum": [{"diagonal": plain_vector(diagonal)}, {"product": [factor, signs, {"transpose": factor}]}]}


def plain_curvature(M: Any, d: int) -> Any:
    """M, a number standing for a multiple of I."""
    return {"diagonal": plain_vector([M] * d)} if isinstance(M, float) else None if M is None else plain_matrix(M)


def plain_structure(structure: Structure, d: int) -> dict[str, Any]:
    """The sizes of the blocks, and W of multiples."""
    pattern = pattern_of(structure, d)
    W = None if pattern.W is None else plain_matrix(pattern.W)
    if structure == "scalar":
        W = {"diagonal": plain_vector([1.0] * d)}
    if isinstance(structure, Direction) and not isinstance(structure.W, np.ndarray):
        W = plain_matrix(structure.W)
    return {"sizes": list(pattern.sizes), "W": W}


def plain_law(sketch: Sketch) -> dict[str, Any]:
    """The distribution of a sketch; raises ValueError for a class that the verifier does not know."""
    kind = type(sketch).__name__
    if isinstance(sketch, Identity):
        return {"kind": kind}
    if isinstance(sketch, RandK | Gaussian):
        return {"kind": kind, "k": sketch.k}
    if isinstance(sketch, BernQ):
        return {"kind": kind, "q": plain_vector(sketch.q), "sizes": list(sketch.sizes)}
    if isinstance(sketch, IndependentSampling):
        return {"kind": kind, "q": plain_vector(sketch.p), "sizes": [1] * sketch.d}
    if isinstance(sketch, SystematicSampling):
        return {"kind": kind, "p": plain_vector(sketch.p)}
    if isinstance(sketch, LayerWise):
        return {"kind": kind, "layers": [[layer.d, plain_law(layer)] for layer in sketch.layers]}
    try:
        weights, outcomes = sketch.support()
    except ValueError:  # given by its moments
        return {"kind": "moments", "P": plain_matrix(sketch.second_moment_matrix)}
    occur = weights > 0.0
    law = {"kind": kind, "weights": plain_vector(weights[occur])}
    if isinstance(sketch, FiniteSketch):
        return {**law, "matrices": [plain_matrix(S) for S in outcomes[occur]]}
    return {**law, "kind": "support", "vectors": [plain_vector(s) for s in outcomes[occur]]}


# ---------------------------------------------------------------- one node


def node_document(result: Any, question: Question) -> dict[str, Any]:
    """The document of a StepsizeResult, without its ends."""
    d = question.d
    document = {
        "kind": "node",
        "L": plain_matrix(question.L),
        "sketch": plain_law(result.sketch),
        "method": result.algorithm,
        "structure": plain_structure(result.structure, d),
        "goal": result.goal,
        "M": plain_curvature(question.M, d),
        "D": plain_matrix(result.stepsize),
    }
    return {**document, "multipliers": NodeMultipliers.of(result, question).plain()}


@dataclass(frozen=True, eq=False)
class NodeMultipliers:
    """The multipliers of an answer in floating point: T(D) = 𝒬(DBD), and blocks of multipliers beside those of D."""

    goal: str
    pattern: Pattern
    Q: Callable[[Matrix], Matrix]
    L: Matrix
    B: Matrix
    M: Matrix | None
    D: Matrix
    blocks: list[tuple[Any, Matrix]]

    @staticmethod
    def of(result: Any, question: Question) -> NodeMultipliers:
        L, law = question.smoothness(), result.sketch.map
        first = result.algorithm == "det-CGD1"
        blocks = [(block.indices, block.Z) for block in result.blocks]
        if not blocks and question.multiplier is not None:
            found = question.multiplier()
            blocks = [] if found is None else [(np.arange(question.d), found)]
        return NodeMultipliers(
            goal=result.goal,
            pattern=pattern_of(result.structure, question.d),
            Q=law.apply if first else lambda M: M,
            L=L,
            B=L if first else law.apply(L),
            M=question.curvature(),
            D=result.stepsize.todense(),
            blocks=blocks,
        )

    def plain(self) -> dict[str, Any]:
        """The multipliers as a file holds them."""
        if self.goal == "convex":
            return {"factor": plain_matrix(np.linalg.solve(self.L, _root(self._whole())))}
        if self.goal == "paper":
            return {"factor": plain_matrix(_root(self._scaled()))}
        found = [proof for Y in self._candidates() if (proof := self._metric_proof(Y)) is not None]
        best = min(found, key=lambda proof: proof.bound, default=None)
        return {} if best is None else best.plain(self.M)

    def _whole(self) -> Matrix:
        out = np.zeros_like(self.L)
        for indices, Z in self.blocks:
            out[np.ix_(indices, indices)] = np.diag(Z) if Z.ndim == 1 else Z
        return out

    def _scaled(self) -> Matrix:
        """Z with the best factor for each block, d/⟨𝒬(Z), DBD⟩ of it."""
        square, Z = self.D @ self.B @ self.D, self._whole()
        for indices, part in self.blocks:
            for place in indices[:, None] if part.ndim == 1 else [indices]:
                inside = np.ix_(place, place)
                alone = np.zeros_like(Z)
                alone[inside] = Z[inside]
                energy = float(np.vdot(self.Q(alone), square))
                Z[inside] *= len(place) / energy if energy > 0.0 else 0.0
        return Z

    @property
    def _metric(self) -> Matrix:
        return 2.0 * self.D - self.Q(self.D @ self.B @ self.D)

    def _candidates(self) -> list[Matrix]:
        """Multipliers Y of the goals that judge H: that of the solver, H⁻¹, and for t those of a component alone."""
        inverse = np.linalg.inv(self._metric)
        inverse = 0.5 * (inverse + inverse.T)
        if self.M is None:
            return [self._whole(), inverse]
        out = []
        for indices, part in self.blocks:
            for place in indices[:, None] if part.ndim == 1 else [indices]:
                inside = np.ix_(place, place)
                Y = np.zeros_like(self.L)
                Y[inside] = self._whole()[inside]
                energy = float(np.vdot(Y, self._metric))
                for share in (0.0, 1e-12, 1e-10, 1e-8) if energy > 0.0 else ():
                    mixed = Y.copy()
                    mixed[inside] += share * energy * inverse[inside]
                    out.append(mixed)
        return out

    def _metric_proof(self, Y: Matrix) -> MetricProof | None:
        """What Y proves in floating point; None where it proves nothing."""
        V = _root(Y)
        Y = V @ V.T
        R = self.Q(Y)
        shares = _share_of_diagonal(R), _share_of_diagonal(self.B)
        if not min(shares) > 0.0:
            return None
        reference = _stationary(R, self.B, Y, self.pattern)
        if reference is None:
            reference = self.D
        q = 2.0 * float(np.vdot(Y, reference)) - float(np.vdot(R, reference @ self.B @ reference))
        if self.M is not None:
            inverse = np.linalg.inv(self.M)
            return MetricProof(V, reference, shares, q / float(np.vdot(Y, inverse)))
        sign, log_det = np.linalg.slogdet(Y)
        if not (sign > 0.0 and q > 0.0):
            return None
        return MetricProof(V, reference, shares, len(Y) * math.log(q / len(Y)) - float(log_det))


@dataclass(frozen=True, eq=False)
class MetricProof:
    """A factor of Y, the D̂ at which 2⟨Y, D⟩ − ⟨R, DBD⟩ is largest, shares of diag(R) and diag(B), and the bound."""

    factor: Matrix
    reference: Matrix
    shares: tuple[float, float]
    bound: float

    def plain(self, M: Matrix | None) -> dict[str, Any]:
        out = {
            "factor": plain_matrix(self.factor),
            "reference": plain_matrix(self.reference),
            "shares": plain_vector(self.shares),
        }
        return out if M is None else {**out, "inverse": plain_matrix(_inverse(M))}


def _inverse(A: Matrix) -> Matrix:
    out = np.linalg.inv(A)
    return np.asarray(0.5 * (out + out.T))


def _root(Z: Matrix) -> Matrix:
    """V with VVᵀ near the positive semidefinite part of Z."""
    w, V = np.linalg.eigh(0.5 * (Z + Z.T))
    return np.asarray(V * np.sqrt(np.maximum(w, 0.0)))


def _share_of_diagonal(A: Matrix) -> float:
    """A number r > 0 with A ⪰ r diag(A) by a margin, 0 if there is none; zero rows do not count."""
    rows = np.flatnonzero(A.diagonal())
    scale = 1.0 / np.sqrt(np.abs(A.diagonal()[rows]))
    least = float(np.linalg.eigvalsh(scale[:, None] * A[np.ix_(rows, rows)] * scale)[0])
    return 0.5 * least if least > 64.0 * len(A) * np.finfo(float).eps else 0.0


def _stationary(R: Matrix, B: Matrix, Y: Matrix, pattern: Pattern) -> Matrix | None:
    """D of the pattern with RDB + BDR = 2Y as far as the pattern sees it; None where there are too many unknowns."""
    rows = np.flatnonzero(R.diagonal())
    inside = np.ix_(rows, rows)
    out = np.zeros_like(R)
    if pattern.is_full:
        values, C = eigh(R[inside], B[inside])
        out[inside] = C @ (2.0 * (C.T @ Y[inside] @ C) / (values[:, None] + values)) @ C.T
        return 0.5 * (out + out.T)
    if pattern.W is not None:
        return _best_multiples(R, B, Y, pattern)
    first, second = _unknowns(pattern, rows)
    if len(first) > _MOST_UNKNOWNS:
        return None
    half = np.where(first == second, 0.5, 1.0)
    orders = ((first, second), (second, first))
    products = [R[np.ix_(i, k)] * B[np.ix_(j, m)] for i, j in orders for k, m in orders]
    system = half[:, None] * sum(products, np.zeros((len(first), len(first)))) * half
    for _ in range(3):  # the first solution, then what rounding has left of it
        image = R @ out @ B
        x = half * _solved(system, half * (2.0 * Y - image - image.T)[first, second])
        out[first, second] += x
        out[second, first] += x
    return out


def _unknowns(pattern: Pattern, rows: Indices) -> tuple[Indices, Indices]:
    """The places of the free entries of a symmetric D with free blocks, on and above the diagonal, in given rows."""
    i, j = np.meshgrid(rows, rows, indexing="ij")
    free = (i <= j) & (pattern.labels[i] == pattern.labels[j])
    return i[free], j[free]


def _best_multiples(R: Matrix, B: Matrix, Y: Matrix, pattern: Pattern) -> Matrix:
    """The stationary D = Diag(γᵢWᵢ)."""
    assert pattern.W is not None
    labels = pattern.labels
    parts = [np.where((labels[:, None] == i) & (labels == i), pattern.W, 0.0) for i in range(len(pattern.sizes))]
    images = [R @ W @ B for W in parts]
    seen = [i for i, image in enumerate(images) if np.vdot(image, parts[i]) > 0.0]
    system = np.array([[np.vdot(images[i], parts[j]) for j in seen] for i in seen])
    out = np.zeros_like(R)
    for _ in range(3):
        image = R @ out @ B
        rest = Y - 0.5 * (image + image.T)
        right = np.array([float(np.vdot(rest, parts[i])) for i in seen])
        gamma = _solved(0.5 * (system + system.T), right)
        for i, value in zip(seen, gamma, strict=True):
            out += value * parts[i]
    return out


def _solved(A: Matrix, b: Vector) -> Vector:
    """A⁻¹b for a positive definite A with a diagonal of any size."""
    scale = 1.0 / np.sqrt(A.diagonal())
    return np.asarray(scale * np.linalg.solve(scale[:, None] * A * scale, scale * b))
