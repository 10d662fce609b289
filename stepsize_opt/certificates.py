"""Certificate files: an answer with its question and its multipliers as JSON, for ``stepsize_opt.verify``.

Every float is written in hexadecimal, so that nothing is rounded on the way.  A file claims what the verifier proves:
the lower end is that of the answer, the upper end that of the answer or, where the multipliers of the file prove less,
what they prove.  Multipliers are written as factors V of VVᵀ ⪰ 0.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import singledispatch
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from stepsize_opt.goals import Goal
from stepsize_opt.inputs.matrices import Symmetric, dense
from stepsize_opt.inputs.structures import Direction, Structure, pattern_of
from stepsize_opt.large.stepsizes import BlockStepsize, DiagonalStepsize, InverseStepsize, StepsizeOperator
from stepsize_opt.limit import CompressionLimit, SubspaceMethod
from stepsize_opt.node import StepsizeResult, optimal_stepsize
from stepsize_opt.proofs import Answer, Stationary, exp_down, exp_up, inverse_of, limit_multipliers
from stepsize_opt.saving import write_text
from stepsize_opt.sketches.base import Sketch
from stepsize_opt.sketches.diagonal import BernQ, Identity, IndependentSampling, RandK, SystematicSampling
from stepsize_opt.sketches.general import Gaussian, LayerWise
from stepsize_opt.smoothness import LowRankPlusDiagonal, ThinDirections, proved_smoothness
from stepsize_solvers.programs import Matrix

Certified: TypeAlias = StepsizeResult | CompressionLimit | SubspaceMethod
Document: TypeAlias = dict[str, Any]
AnyMatrix: TypeAlias = "Symmetric | StepsizeOperator | LowRankPlusDiagonal | ThinDirections"

# A certificate holds dense multipliers and is verified with whole numbers: beyond this size neither makes sense.
LARGEST = 400
# The sketches whose fields the verifier reads by their names.
_NAMED = (Identity, RandK, Gaussian, BernQ, IndependentSampling, SystematicSampling)
_MOST_PARTS = 4  # of a reference
_FINE = 1e-12  # a share of D̂ that costs nothing
# A multiplier that is found for the file is so much finer than the answer, whose bound it then proves.
_FINER = 1e-3


def write_certificate(result: Certified, L: Any, path: str | PathLike[str], *, strong_convexity: Any = None) -> Path:
    """Write an answer with all that proves it as JSON, for ``python -m stepsize_opt.verify``; return the path.

    The file is verified before it is written: an L for which the answer is not proved is refused.

    Parameters
    ----------
    result : StepsizeResult, CompressionLimit or SubspaceMethod
        What ``optimal_stepsize``, ``compression_limit`` or ``optimal_method`` returned, or ``load`` read.
    L : array-like or sparse matrix of shape (d, d) or LowRankPlusDiagonal
        The smoothness matrix that the answer is for.
    path
        The file, such as ``"D.cert.json"``.
    strong_convexity : float, array-like or sparse matrix of shape (d, d), optional
        M of an answer to ``goal="linear"``: the same d×d matrix, or the number μ for μI.

    Raises
    ------
    ValueError, TypeError
        For an answer that the verifier does not prove for this L and M, one that is too large, one of independent
        clients, an EstimatedSmoothness, and a limit with momentum of a LowRankPlusDiagonal, whose D does not attain it.

    See Also
    --------
    stepsize_opt.verify.verify : prove what a file says.
    certify : check a stepsize without a file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from stepsize_opt import RandK, optimal_stepsize, write_certificate
    >>> L = [[2.0, 1.0], [1.0, 3.0]]
    >>> with TemporaryDirectory() as folder:
    ...     write_certificate(optimal_stepsize(L, RandK(2, 1)), L, Path(folder) / "D.cert.json").name
    'D.cert.json'
    """
    if not isinstance(result, Certified):
        msg = (
            "result must be what optimal_stepsize, compression_limit or optimal_method returned, got "
            f"{type(result).__name__}; clients with shared seeds are one node with the mean of their matrices"
        )
        raise TypeError(msg)
    question = _Question.of(result, L, strong_convexity)
    return _write(path, document_of(result, question), *_ends(result, question))


@dataclass(frozen=True, eq=False)
class _Question:
    """What an answer does not hold of its question: L, and the goal with its M."""

    L: Symmetric | LowRankPlusDiagonal
    goal: Goal

    @staticmethod
    def of(result: Certified, L: Any, strong_convexity: Any) -> _Question:
        smoothness, d = proved_smoothness(L), result.d
        if smoothness.d != d:
            msg = f"L is {smoothness.d}×{smoothness.d} but the result is for d={d}"
            raise ValueError(msg)
        if d > LARGEST:
            msg = f"a certificate file holds dense multipliers, so d must be at most {LARGEST}, got {d}"
            raise ValueError(msg)
        goal = Goal.read(result.goal, strong_convexity, d, momentum=result.momentum)
        return _Question(smoothness.formed().matrix if smoothness.is_formed else smoothness.factored(), goal)

    @property
    def M(self) -> Symmetric | float | None:
        return self.goal.M

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

    def plain(self) -> Document:
        """L and M as a file holds them, a number μ of M as μI."""
        M = DiagonalStepsize(np.full(self.d, self.M)) if isinstance(self.M, float) else self.M
        return {"L": plain_matrix(self.L), "M": None if M is None else plain_matrix(M)}


def _ends(result: Certified, question: _Question) -> tuple[float, float]:
    """Return the ends of log det, or of t for the goals with an M."""
    certificate = result.certificate
    if question.M is None:
        return certificate.log_det, certificate.upper_bound
    return exp_down(certificate.log_rate), exp_up(certificate.log_rate_bound)


def _write(path: str | PathLike[str], document: Document, lower: float, upper: float) -> Path:
    """Write a document with the two ends of its claim, once the verifier has proved it."""
    from stepsize_opt import verify  # not before: python -m stepsize_opt.verify warns of a module that is loaded

    unsigned = {"statement": "", "sha256": ""}
    document = {"format": verify.FORMAT, **document, "lower": lower.hex(), "upper": "inf", **unsigned}
    try:
        problem = verify.problem_of(document)
        problem.check(Fraction(lower))
    except verify.Refused as refused:
        msg = (
            f"the certificate is not written, because the verifier refuses it: {refused}; "
            "give the L (and the strong_convexity) that the result was computed for"
        )
        raise ValueError(msg) from refused
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
    """Return numbers as JSON holds them: floats in hexadecimal, arrays as lists."""
    if isinstance(value, np.ndarray | list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return float(value).hex() if isinstance(value, float | np.floating) else value


def plain_matrix(matrix: AnyMatrix) -> Document | list[Any]:
    """Return a matrix, or an operator of this library, in a form that ``verify.matrix`` reads without rounding."""
    if isinstance(matrix, LowRankPlusDiagonal):
        factor = plain_matrix(matrix.U)
        return {"sum": [{"diagonal": plain(matrix.shift)}, {"product": [factor, {"transpose": factor}]}]}
    if isinstance(matrix, DiagonalStepsize):
        return {"diagonal": plain(matrix.x)}
    if isinstance(matrix, InverseStepsize):
        p, U, C = {"diagonal": plain(matrix.p)}, plain_matrix(matrix.U), plain_matrix(matrix.C)
        inner = {"inverse": {"product": [C, {"transpose": C}]}}
        minus = {"diagonal": plain(-matrix.p)}
        return {"sum": [p, {"product": [minus, U, inner, {"transpose": U}, p]}]}
    if isinstance(matrix, ThinDirections):
        return _thin(matrix)
    rows: list[Any] = plain(matrix.array if isinstance(matrix, BlockStepsize) else dense(matrix))
    return rows


def _thin(A: ThinDirections) -> Document:
    """Return c Diag(t)(I + BZBᵀ) with B = [Diag(t)U  E]."""
    d, e = len(A.t), A.e
    t, U = {"diagonal": plain(A.t)}, plain_matrix(np.hstack([A.U, np.zeros((d, e))]))
    B = {"sum": [{"product": [t, U]}, plain_matrix(np.hstack([np.zeros((d, A.U.shape[1])), np.eye(d, e)]))]}
    inner = {"sum": [{"diagonal": plain(np.ones(d))}, {"product": [B, plain_matrix(A.Z), {"transpose": B}]}]}
    return {"product": [{"diagonal": plain(np.full(d, A.c))}, t, inner]}


def plain_structure(structure: Structure, d: int) -> Document:
    """Return the sizes of the blocks, and W of multiples."""
    pattern = pattern_of(structure, d)
    W: AnyMatrix | None = pattern.W
    if structure == "scalar":
        W = DiagonalStepsize(np.ones(d))
    if isinstance(structure, Direction):
        W = structure.W if structure.W.ndim == 2 else DiagonalStepsize(structure.W)
    return {"sizes": list(pattern.sizes), "W": None if W is None else plain_matrix(W)}


def plain_law(sketch: Sketch) -> Document:
    """Return the distribution of a sketch: its kind and parameters, its layers, or its outcomes and weights."""
    if type(sketch) in _NAMED:
        parameters = [one.name for one in fields(sketch) if one.name != "d"]
        return {"kind": type(sketch).__name__} | {name: plain(getattr(sketch, name)) for name in parameters}
    if isinstance(sketch, LayerWise):
        sizes = [layer.d for layer in sketch.layers]
        return {"kind": "LayerWise", "sizes": sizes, "layers": [plain_law(layer) for layer in sketch.layers]}
    weights, outcomes = sketch.support()
    kind = "vectors" if outcomes.ndim == 2 else "matrices"
    drawn = weights > 0.0
    return {"kind": kind, "weights": plain(weights[drawn]), kind: plain(outcomes[drawn])}


# ---------------------------------------------------------------- the documents


@singledispatch
def document_of(result: Certified, question: _Question) -> Document:
    """Return the document of an answer, without its ends."""
    raise NotImplementedError


@document_of.register
def _(result: StepsizeResult, question: _Question) -> Document:
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
        "multipliers": {},
    }
    try:
        return _with_multipliers(document, result, question)
    except ValueError:  # a factorisation failed: nothing is proved from above
        return document


@document_of.register
def _(limit: CompressionLimit, question: _Question) -> Document:
    if limit.momentum and not isinstance(limit.D, np.ndarray):
        msg = "a limit with momentum of a LowRankPlusDiagonal has no certificate: use L.todense(), or optimal_method"
        raise ValueError(msg)
    return {"kind": "limit", **_document_of_limit(limit, question)}


@document_of.register
def _(method: SubspaceMethod, question: _Question) -> Document:
    parts = {"A": plain_matrix(method.directions), "h": plain(method.probabilities)}
    weights = plain(method.weights) if method.momentum else None
    return {"kind": "method", **_document_of_limit(method, question), **parts, "w": weights}


def _document_of_limit(limit: CompressionLimit | SubspaceMethod, question: _Question) -> Document:
    M = question.curvature()
    try:
        found = {} if M is None else limit_multipliers(question.smoothness(), M, limit.k, limit.momentum)
    except ValueError:  # a factorisation failed: nothing is proved from above
        found = {}
    return {
        **question.plain(),
        "k": plain(limit.k),
        "goal": limit.goal,
        "momentum": limit.momentum,
        "D": plain_matrix(limit.D),
        "multipliers": plain(found),
    }


# ---------------------------------------------------------------- multipliers of one node


def _with_multipliers(document: Document, result: StepsizeResult, question: _Question) -> Document:
    """Return the document with the multipliers that float64 finds."""
    L, M = question.smoothness(), question.curvature()
    answer = _in_floats(result, question, L, M)
    if question.goal.needs_condition:
        document["multipliers"] = plain({"factor": answer.of_condition(), "reference": answer.D})
        return document
    factor, reference = answer.of_metric()
    inverse = {} if M is None else {"inverse": inverse_of(M)}
    document["multipliers"] = plain({"factor": factor, "reference": reference.D, **inverse})
    return _sharpened(document, reference, answer.D)


def _in_floats(result: StepsizeResult, question: _Question, L: Matrix, M: Matrix | None) -> Answer:
    law = result.sketch.map
    condition = result.method.condition(law)
    floor = None if M is None else inverse_of(M)
    if floor is not None and result.momentum:
        floor = law.apply(floor)
    return Answer(
        D=result.stepsize.todense(),
        B=condition.inner.apply(L),
        Q=condition.outer.apply,
        pattern=pattern_of(result.structure, question.d),
        blocks=[(block.indices, block.Z) for block in _with_dual(result, question, L).blocks],
        floor=floor,
    )


def _with_dual(result: StepsizeResult, question: _Question, L: Matrix) -> StepsizeResult:
    """Return the answer, or for one of a large L, which holds no multiplier, that of the dense L."""
    if result.multiplier is not None:
        return result
    return optimal_stepsize(
        L,
        result.sketch,
        algorithm=result.method,
        structure=result.structure,
        goal=question.goal,
        tol=_FINER * result.tol,
    )


def _sharpened(document: Document, found: Stationary, D: Matrix) -> Document:
    """Return the document with a reference D̂ in several parts.

    Each takes away what the exact left side of Σ(RD̂B + BD̂R) ⪰ 2Y lacks.
    """
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
