"""Certificate files: an answer with its question and its multipliers as JSON, for ``stepsize_opt.verify``.

Every float is written in hexadecimal, so that nothing is rounded on the way.  A file claims what the verifier proves:
the lower end is that of the answer, the upper end that of the answer or, where the multipliers of the file prove less,
what they prove.  Multipliers are written as factors V of VVᵀ ⪰ 0.

Where H is judged, the proof needs Σ(RD̂B + BD̂R) ⪰ 2Y on the structure for the images R of the multipliers and a
reference D̂ (the head of ``verify``).  ``Stationary`` solves for equality, ``_sharpened`` adds what rounding leaves.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import eigh, eigvalsh
from scipy.sparse.linalg import LinearOperator, cg

from stepsize_opt.inputs import Direction, Immutable, Structure, dense, pattern_of, read_only, write_text
from stepsize_opt.large import (
    BlockStepsize,
    DiagonalStepsize,
    InverseStepsize,
    LowRankStepsize,
)
from stepsize_opt.proofs import Certificate, exp_down, exp_up
from stepsize_opt.sketches import (
    BernQ,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    SystematicSampling,
)
from stepsize_opt.smoothness import LowRankPlusDiagonal, ThinDirections
from stepsize_solvers.programs import Matrix, Pattern

# A certificate holds dense multipliers and is verified with whole numbers: beyond this size neither makes sense.
LARGEST = 400
# The parameters of the sketches that have a name, under the names that the verifier reads.
_PARAMETERS: dict[type[Sketch], dict[str, str]] = {
    Identity: {},
    RandK: {"k": "k"},
    Gaussian: {"k": "k"},
    BernQ: {"q": "q", "sizes": "sizes"},
    IndependentSampling: {"p": "p"},
    SystematicSampling: {"p": "p"},
}
_EPSILON = float(np.finfo(float).eps)
_MOST_STEPS = 500  # of conjugate gradients
_MOST_PARTS = 4  # of a reference
_FINE = 1e-12  # a share of D̂ that costs nothing
# A multiplier Y of a t may be singular, where rounding leaves no proof: such a share of H⁻¹ is added.
_SHARE = 1e-10


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

    def plain(self) -> dict[str, Any]:
        """L and M as a file holds them, a number μ of M as μI."""
        M = DiagonalStepsize(np.full(self.d, self.M)) if isinstance(self.M, float) else self.M
        return {"L": plain_matrix(self.L), "M": None if M is None else plain_matrix(M)}


def _kept(matrix: Any) -> Any:
    if isinstance(matrix, np.ndarray):
        return read_only(matrix.copy())
    return matrix.copy() if sparse.issparse(matrix) else matrix


def asked(question: Any) -> Any:
    """Return the question; raises ValueError where it is not known or too large for a file."""
    if question is None:
        msg = "an answer that was read from a file does not know its L: solve again, then write the certificate"
        raise ValueError(msg)
    if question.d > LARGEST:
        msg = f"a certificate file holds dense multipliers, so d must be at most {LARGEST}, got {question.d}"
        raise ValueError(msg)
    return question


def ends(certificate: Certificate, M: Any) -> tuple[float, float]:
    """The ends of log det, or of t for the goals with an M."""
    if M is None:
        return certificate.log_det, certificate.upper_bound
    return exp_down(certificate.log_det / certificate.d), exp_up(certificate.log_rate_bound)


def write(path: str | PathLike[str], document: dict[str, Any], lower: float, upper: float) -> Path:
    """Write a document with the two ends of its claim, once the verifier has proved it.

    Raises ArithmeticError where it does not prove the lower end.
    """
    from stepsize_opt import verify  # not before: python -m stepsize_opt.verify warns of a module that is loaded

    unsigned = {"statement": "", "sha256": ""}
    document = {"format": verify.FORMAT, **document, "lower": lower.hex(), "upper": "inf", **unsigned}
    try:
        problem = verify.problem_of(document)
        problem.check(Fraction(lower))
    except verify.Refused as refused:
        msg = f"the verifier refuses the certificate, so it is not written: {refused}"
        raise ArithmeticError(msg) from refused
    unit = abs(upper) if document["M"] is not None else abs(upper) + problem.d
    end = _proved_upper_end(problem, upper, unit)
    document["upper"] = "inf" if end == math.inf else end.hex()
    if end == math.inf:
        document["multipliers"] = {}
    document["statement"] = verify.statement(document, problem)
    document["sha256"] = verify.digest(document)
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return Path(path)


def _proved_upper_end(problem: Any, upper: float, unit: float) -> float:
    """Return the upper end of the answer, or what the multipliers prove where that is less; infinity for nothing."""
    from stepsize_opt.verify import Refused

    try:
        proves = problem.bound()
        for n in range(-53, 10):
            if math.isfinite(upper) and proves(Fraction(upper)):
                return upper
            upper = max(upper + 2.0**n * unit, math.nextafter(upper, math.inf))
    except (Refused, OverflowError):  # there are no multipliers, or they prove nothing
        pass
    return math.inf


# ---------------------------------------------------------------- plain forms


def plain(value: Any) -> Any:
    """Numbers as JSON holds them: floats in hexadecimal, arrays as lists."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return float(value).hex() if isinstance(value, float | np.floating) else value


def plain_matrix(matrix: Any) -> Any:
    """A matrix, or an operator of this library, in a form that ``verify.matrix`` reads without rounding."""
    if isinstance(matrix, LowRankPlusDiagonal):
        return _low_rank(matrix.shift, matrix.U, 1.0)
    if isinstance(matrix, LowRankStepsize):
        return _low_rank(matrix.a, matrix.V, matrix.sign)
    if isinstance(matrix, DiagonalStepsize):
        return {"diagonal": plain(matrix.x)}
    if isinstance(matrix, InverseStepsize):
        p, U, C = {"diagonal": plain(matrix.p)}, plain_matrix(matrix.U), plain_matrix(matrix.C)
        inner = {"inverse": {"product": [C, {"transpose": C}]}}
        minus = {"diagonal": plain(-matrix.p)}
        return {"sum": [p, {"product": [minus, U, inner, {"transpose": U}, p]}]}
    if isinstance(matrix, ThinDirections):
        return _thin(matrix)
    return plain(matrix.array if isinstance(matrix, BlockStepsize) else dense(matrix))


def _low_rank(diagonal: Any, U: Any, sign: float) -> Any:
    factor, signs = plain_matrix(U), {"diagonal": plain([sign] * U.shape[1])}
    return {"sum": [{"diagonal": plain(diagonal)}, {"product": [factor, signs, {"transpose": factor}]}]}


def _thin(A: ThinDirections) -> Any:
    """c Diag(t)(I + BZBᵀ) with B = [Diag(t)U  E]."""
    d, e = len(A.t), A.e
    t, U = {"diagonal": plain(A.t)}, plain_matrix(np.hstack([A.U, np.zeros((d, e))]))
    B = {"sum": [{"product": [t, U]}, plain_matrix(np.hstack([np.zeros((d, A.U.shape[1])), np.eye(d, e)]))]}
    inner = {"sum": [{"diagonal": plain(np.ones(d))}, {"product": [B, plain_matrix(A.Z), {"transpose": B}]}]}
    return {"product": [{"diagonal": plain(np.full(d, A.c))}, t, inner]}


def plain_structure(structure: Structure, d: int) -> dict[str, Any]:
    """The sizes of the blocks, and W of multiples."""
    pattern = pattern_of(structure, d)
    W: Any = pattern.W
    if structure == "scalar":
        W = DiagonalStepsize(np.ones(d))
    if isinstance(structure, Direction):
        W = structure.W
    return {"sizes": list(pattern.sizes), "W": None if W is None else plain_matrix(W)}


def plain_law(sketch: Sketch) -> dict[str, Any]:
    """The distribution of a sketch: its kind and parameters, or its plain form, which holds the support or moments."""
    known = _PARAMETERS.get(type(sketch))
    if known is not None:
        return {"kind": type(sketch).__name__} | {name: plain(getattr(sketch, of)) for name, of in known.items()}
    if isinstance(sketch, LayerWise):
        sizes = [layer.d for layer in sketch.layers]
        return {"kind": "LayerWise", "sizes": sizes, "layers": [plain_law(layer) for layer in sketch.layers]}
    weights, outcomes = sketch.support()
    kind = "vectors" if outcomes.ndim == 2 else "matrices"
    drawn = weights > 0.0
    return {"kind": kind, "weights": plain(weights[drawn]), kind: plain(outcomes[drawn])}


# ---------------------------------------------------------------- the documents


def node_document(result: Any, question: Question) -> dict[str, Any]:
    """The document of a StepsizeResult, without its ends."""
    V = result.inverse_curvature
    V = DiagonalStepsize(np.full(question.d, V)) if isinstance(V, float) else V
    document = {
        "kind": "node",
        **question.plain(),
        "sketch": plain_law(result.sketch),
        "method": result.algorithm,
        "structure": plain_structure(result.structure, question.d),
        "goal": result.goal,
        "D": plain_matrix(result.stepsize),
        "V": None if V is None else plain_matrix(V),
    }
    return _with_multipliers(document, NodeMultipliers.of(result, question).found, result.stepsize.todense())


def _with_multipliers(document: dict[str, Any], find: Callable[[], dict[str, Any]], D: Matrix) -> dict[str, Any]:
    """The document with the multipliers that float64 finds; without any, nothing is proved from above."""
    try:
        found = find()
        reference = found.get("reference")
        if isinstance(reference, Stationary):
            document["multipliers"] = plain({**found, "reference": reference.D})
            return _sharpened(document, reference, D)
    except ValueError:  # a factorisation failed
        found = {}
    return {**document, "multipliers": plain(found)}


def limit_document(limit: Any, question: Question) -> dict[str, Any]:
    """The document of a CompressionLimit, without its ends."""
    return {
        "kind": "limit",
        **question.plain(),
        "k": plain(limit.k),
        "goal": limit.goal,
        "momentum": limit.momentum,
        "D": plain_matrix(limit.D),
        "multipliers": plain(_limit_multipliers(limit, question)),
    }


def method_document(method: Any, question: Question) -> dict[str, Any]:
    """The document of a SubspaceMethod, without its ends."""
    parts = {"A": plain_matrix(method.directions), "h": plain(method.probabilities)}
    weights = plain(method.weights) if method.momentum else None
    return {**limit_document(method, question), "kind": "method", **parts, "w": weights}


# ---------------------------------------------------------------- multipliers, in floating point


def _limit_multipliers(limit: Any, question: Question) -> dict[str, Any]:
    """The budget proves the limit, or the top eigenvector of LM⁻¹."""
    L, M = question.smoothness(), question.curvature()
    if M is None:
        return {}
    values, vectors = eigh(L, M)
    inverse = _inverse(M)
    roots = np.sqrt(values) if limit.momentum else values
    if roots[-1] * limit.k > roots.sum():
        return {"factor": vectors[:, -1:], "inverse": inverse}
    if not limit.momentum:
        return {"inverse": inverse}
    mean = (vectors / roots) @ vectors.T  # C = L⁻¹ # M⁻¹, with CLC = M⁻¹ up to rounding
    excess = eigvalsh(M @ mean @ L @ mean @ M, M)[-1] - 1.0
    return {"reference": _symmetric(mean) * (1.0 - abs(excess) - 64.0 * len(L) * _EPSILON)}


@dataclass(frozen=True, eq=False)
class NodeMultipliers:
    """The multipliers of an answer: T(D) = 𝒬(DBD), and blocks of multipliers beside those of D."""

    goal: str
    pattern: Pattern
    law: Callable[[Matrix], Matrix]
    first: bool
    momentum: bool
    L: Matrix
    M: Matrix | None
    D: Matrix
    blocks: list[tuple[Any, Matrix]]

    @staticmethod
    def of(result: Any, question: Question) -> NodeMultipliers:
        blocks = [(block.indices, block.Z) for block in result.blocks]
        if not blocks and question.multiplier is not None:
            found = question.multiplier()
            blocks = [] if found is None else [(np.arange(question.d), found)]
        return NodeMultipliers(
            goal=result.goal,
            pattern=pattern_of(result.structure, question.d),
            law=result.sketch.map.apply,
            first=result.algorithm == "det-CGD1",
            momentum=result.momentum,
            L=question.smoothness(),
            M=question.curvature(),
            D=result.stepsize.todense(),
            blocks=blocks,
        )

    @property
    def B(self) -> Matrix:
        return self.L if self.first else self.law(self.L)

    def Q(self, X: Matrix) -> Matrix:
        return self.law(X) if self.first else X

    def found(self) -> dict[str, Any]:
        """The multipliers as a file holds them."""
        if self.goal == "paper":
            return {"factor": _root(self._scaled()), "reference": self.D}
        V = _root(self._judge())
        Y = V @ V.T
        found = {"factor": V, "reference": Stationary([(self.Q(Y), self.B)], Y, self.pattern)}
        return found if self.M is None else {**found, "inverse": _inverse(self.M)}

    def _whole(self) -> Matrix:
        out = np.zeros_like(self.L)
        for indices, Z in self.blocks:
            out[np.ix_(indices, indices)] = np.diag(Z) if Z.ndim == 1 else Z
        return out

    def _alone(self) -> list[tuple[Any, Matrix]]:
        """The places of each component, and its multiplier with zeros elsewhere."""
        found, whole = [], self._whole()
        for indices, part in self.blocks:
            for place in indices[:, None] if part.ndim == 1 else [indices]:
                inside = np.ix_(place, place)
                alone = np.zeros_like(whole)
                alone[inside] = whole[inside]
                found.append((inside, alone))
        return found

    def _scaled(self) -> Matrix:
        """Z with the best factor for each component, its size/⟨𝒬(Z), DBD⟩."""
        square, out = self.D @ self.B @ self.D, np.zeros_like(self.D)
        for inside, Z in self._alone():
            energy = float(np.vdot(self.Q(Z), square))
            out += Z * (len(inside[0]) / energy if energy > 0.0 else 0.0)
        return out

    def _judge(self) -> Matrix:
        """Y of the goals that judge H: H⁻¹, or for t the multiplier of the component with the least t."""
        H = 2.0 * self.D - self.Q(self.D @ self.B @ self.D)
        inverse = _inverse(H)
        if self.M is None:
            return inverse
        floor = _inverse(self.M)
        floor = self.law(floor) if self.momentum else floor
        energies = [(float(np.vdot(Y, H)), float(np.vdot(Y, floor)), inside, Y) for inside, Y in self._alone()]
        energy, _, inside, Y = min((one for one in energies if one[1] > 0.0), key=lambda one: one[0] / one[1])
        Y[inside] += _SHARE * energy / len(inside[0]) * inverse[inside]
        return Y


class Stationary:
    """D̂ of a pattern with Σ(RD̂B + BD̂R) = 2Y as far as the pattern sees it, up to rounding."""

    def __init__(self, terms: list[tuple[Matrix, Matrix]], Y: Matrix, pattern: Pattern) -> None:
        self.terms, self.Y, self.pattern = terms, Y, pattern
        labels = pattern.labels
        masks = [(labels[:, None] == i) & (labels == i) for i in range(len(pattern.sizes))]
        self.directions = [] if pattern.W is None else [np.where(mask, pattern.W, 0.0) for mask in masks]
        self.D = self.solve(2.0 * Y)

    def solve(self, F: Matrix) -> Matrix:
        """X of the pattern with Σ(RXB + BXR) = F as far as the pattern sees it."""
        return self._multiples(F) if self.directions else self._blocks(F)

    def _image(self, X: Matrix) -> Matrix:
        halves = [R @ X @ B for R, B in self.terms]
        return np.asarray(sum(half + half.T for half in halves))

    def _multiples(self, F: Matrix) -> Matrix:
        images = [self._image(W) for W in self.directions]
        system = np.array([[np.vdot(image, W) for W in self.directions] for image in images])
        scale = 1.0 / np.sqrt(np.maximum(system.diagonal(), np.finfo(float).tiny))
        right = np.array([np.vdot(F, W) for W in self.directions])
        gamma = scale * np.linalg.lstsq(scale[:, None] * system * scale, scale * right)[0]
        return np.asarray(sum(x * W for x, W in zip(gamma, self.directions, strict=True)))

    def _blocks(self, F: Matrix) -> Matrix:
        """By conjugate gradients; with one term and a full D the first guess is the solution."""
        d = len(F)
        values, C = eigh(sum(R for R, _ in self.terms), sum(B for _, B in self.terms) / len(self.terms))
        weights = values[:, None] + values
        weights = np.maximum(weights, _EPSILON * weights.max())

        def blocks(x: Any) -> Matrix:
            return self.pattern.blocks(np.reshape(x, (d, d)))

        def guess(x: Any) -> Any:
            return np.ravel(blocks(C @ ((C.T @ blocks(x) @ C) / weights) @ C.T))

        def image(x: Any) -> Any:
            return np.ravel(blocks(self._image(blocks(x))))

        size: Any = (d * d, d * d)
        A, inverse = LinearOperator(size, image), LinearOperator(size, guess)
        return _symmetric(blocks(cg(A, np.ravel(blocks(F)), rtol=1e-13, maxiter=_MOST_STEPS, M=inverse)[0]))

    def least(self, G: Matrix, D: Matrix) -> float:
        """The largest c with G ⪰ 2cY as far as the pattern sees it; D counts as a direction of its own."""
        if not self.directions:
            return min(_least_ratio(G[s, s], 2.0 * self.Y[s, s]) for s in self.pattern.slices)
        along = [W for part in self.directions for W in (part, np.where(part != 0.0, D, 0.0))]
        return min(float(np.vdot(G, W) / np.vdot(2.0 * self.Y, W)) for W in along if np.vdot(self.Y, W) > 0.0)


def _least_ratio(A: Matrix, B: Matrix) -> float:
    """The largest c with A ⪰ cB, for B ⪰ 0, whose zero rows do not count."""
    rows = np.flatnonzero(B.diagonal())
    inside = np.ix_(rows, rows)
    return float(eigvalsh(A[inside], B[inside])[0]) if rows.size else 0.0


def _sharpened(document: dict[str, Any], found: Stationary, D: Matrix) -> dict[str, Any]:
    """The document with a reference D̂ in several parts: each takes away what the exact left side lacks of 2Y."""
    from stepsize_opt import verify

    parts, missing = [found.D], math.inf
    while missing > _FINE and len(parts) <= _MOST_PARTS:
        document["multipliers"]["reference"] = {"sum": [plain(part) for part in parts]}
        try:
            G = verify.Node(document).tangent()[1]
        except verify.Refused:  # ``write`` reports it
            return document
        rest = np.array([[float(G[i, j]) for j in range(len(G))] for i in range(len(G))])
        missing = -found.least(rest, D)
        if missing > _FINE:
            parts.append(-found.solve(rest))
    parts.append((2.0 * missing + _FINE) * found.D)
    document["multipliers"]["reference"] = {"sum": [plain(part) for part in parts]}
    return document


def _symmetric(A: Matrix) -> Matrix:
    return np.asarray(0.5 * (A + A.T))


def _inverse(A: Matrix) -> Matrix:
    return _symmetric(np.asarray(np.linalg.inv(A), dtype=np.float64))


def _root(Z: Matrix) -> Matrix:
    """V with VVᵀ near the positive semidefinite part of Z."""
    w, V = np.linalg.eigh(_symmetric(Z))
    return np.asarray(V * np.sqrt(np.maximum(w, 0.0)))
