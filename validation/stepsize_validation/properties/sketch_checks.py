"""``check_sketch``: whether a sketch is what its class says, without Hypothesis.

𝒫(M) = E[SMS] is linear in M, so it is enough to compare it on the matrices e_i e_jᵀ + e_j e_iᵀ.  Where ``support()``
lists the outcomes the comparison is with their sum; where it does not, with a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np

from stepsize_opt import Sketch
from stepsize_solvers.programs import Matrix, Vector

# log(2/δ) of Bernstein's inequality: a true claim about a sampled mean is refused with a probability of at most 1e-9.
_CONFIDENCE = 21.4
# The documented rounding of E[S] = I, and that of a sum of products.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Checked:
    """A claim, how many examples it was checked on, and what failed: an empty text where it holds."""

    claim: str
    examples: int
    unit: str
    failure: str = ""

    def __str__(self) -> str:
        return f"{self.claim}: {self.failure or 'holds'} ({self.examples} {self.unit})"


def check_sketch(sketch: Sketch, *, samples: int = 4000, seed: int = 0) -> tuple[Checked, ...]:
    """Check that a sketch is what it says: E[S] = I, E[SMS], its adjoint, positivity, samples and floats sent.

    Parameters
    ----------
    sketch
        A sketch, of the library or of your own; d up to about 20, because d(d + 1)/2 matrices are compared.
    samples
        The number of samples that are compared with the moments.
    seed
        Of the samples: equal seeds give equal results.

    Returns
    -------
    tuple of Checked
        One record for each claim.

    Raises
    ------
    AssertionError
        If a claim is false; the message has a line for each that failed, with the first matrix in which it does.

    Examples
    --------
    >>> from stepsize_opt import RandK
    >>> from stepsize_validation.properties import check_sketch
    >>> for checked in check_sketch(RandK(4, 2)):
    ...     print(checked)
    E[S] = I: holds (6 outcomes)
    E[SMS] is the sum over the outcomes: holds (10 matrices)
    the adjoint of E[SMS]: holds (100 pairs of matrices)
    E[SMS] ⪰ 0 for M ⪰ 0: holds (16 matrices)
    samples are symmetric and positive semidefinite: holds (4000 samples)
    samples have the mean I and the moments E[SMS]: holds (4000 samples)
    decode(encode(x)) = S x: holds (4000 samples)
    floats sent per round: holds (4000 samples)
    """
    checked = tuple(sketch_claims(sketch, samples, seed))
    failed = [str(one) for one in checked if one.failure]
    if failed:
        msg = "\n".join([f"{sketch} is not what it says", *failed])
        raise AssertionError(msg)
    return checked


def sketch_claims(sketch: Sketch, samples: int, seed: int) -> Iterator[Checked]:
    """Yield every claim about a sketch with its outcome."""
    law = _listed(sketch)
    if law is not None:
        weights, outcomes = law
        yield _unbiased(weights, outcomes)
        yield _sum_over_outcomes(sketch, weights, outcomes)
    yield _adjoint(sketch)
    yield _positive(sketch)
    drawn = _Samples.of(sketch, None if law is None else law[1], samples, seed)
    yield drawn.semidefinite()
    yield drawn.moments()
    yield drawn.messages()
    yield drawn.floats()


def _listed(sketch: Sketch) -> tuple[Vector, Matrix] | None:
    """Return weights and outcomes as matrices, None where the sketch lists none."""
    try:
        weights, outcomes = sketch.support()
    except ValueError:
        return None
    return weights, outcomes[:, :, None] * np.eye(sketch.d) if outcomes.ndim == 2 else outcomes


def _basis(d: int) -> Iterator[tuple[str, Matrix]]:
    """Yield the symmetric matrices with one or two entries of 1."""
    for i, j in combinations_with_replacement(range(d), 2):
        M = np.zeros((d, d))
        M[i, j] = M[j, i] = 1.0
        yield f"M = e{i} e{i}ᵀ" if i == j else f"M = e{i} e{j}ᵀ + e{j} e{i}ᵀ", M


def _first(failures: Iterator[str]) -> str:
    return next(failures, "")


def _unbiased(weights: Vector, outcomes: Matrix) -> Checked:
    mean = np.tensordot(weights, outcomes, axes=1)
    off = np.abs(mean - np.eye(len(mean)))
    i, j = np.unravel_index(int(off.argmax()), off.shape)
    failure = "" if off[i, j] <= _ROUNDING else f"E[S] has the entry {mean[i, j]:.6g} at ({i}, {j})"
    return Checked("E[S] = I", len(weights), "outcomes", failure)


def _sum_over_outcomes(sketch: Sketch, weights: Vector, outcomes: Matrix) -> Checked:
    def failures() -> Iterator[str]:
        for name, M in _basis(sketch.d):
            true, claimed = np.tensordot(weights, outcomes @ M @ outcomes, axes=1), sketch.second_moment(M)
            if not np.allclose(true, claimed, rtol=_ROUNDING, atol=_ROUNDING * np.abs(true).max()):
                yield f"for {name} the outcomes give {true.tolist()} and second_moment {claimed.tolist()}"

    return Checked("E[SMS] is the sum over the outcomes", math.comb(sketch.d + 1, 2), "matrices", _first(failures()))


def _adjoint(sketch: Sketch) -> Checked:
    basis = list(_basis(sketch.d))

    def failures() -> Iterator[str]:
        images = [(sketch.second_moment(M), sketch.adjoint(M)) for _, M in basis]
        for (first, A), (_, adjoint) in zip(basis, images, strict=True):
            for (second, B), (image, _) in zip(basis, images, strict=True):
                left, right = float(np.vdot(A, image)), float(np.vdot(adjoint, B))
                if not math.isclose(left, right, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
                    yield f"⟨Z, E[SMS]⟩ = {left:.6g} but ⟨adjoint(Z), M⟩ = {right:.6g} for Z: {first}, {second}"

    return Checked("the adjoint of E[SMS]", len(basis) ** 2, "pairs of matrices", _first(failures()))


def _positive(sketch: Sketch) -> Checked:
    d = sketch.d
    pairs = [(i, j, sign) for i in range(d) for j in range(i + 1) for sign in ((1.0, -1.0) if j < i else (0.0,))]

    def failures() -> Iterator[str]:
        for i, j, sign in pairs:
            v = np.eye(d)[i] + sign * np.eye(d)[j]
            values = np.linalg.eigvalsh(sketch.second_moment(np.outer(v, v)))
            if values[0] < -_ROUNDING * max(1.0, values[-1]):
                yield f"E[SMS] has the eigenvalue {values[0]:.6g} for M = vvᵀ, v = {v.tolist()}"

    return Checked("E[SMS] ⪰ 0 for M ⪰ 0", len(pairs), "matrices", _first(failures()))


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples of S, and what the same random numbers send for a fixed x; ``outcomes`` are all, where they are known."""

    sketch: Sketch
    S: Matrix
    outcomes: Matrix
    x: Vector
    decoded: Matrix
    sent: Vector

    @staticmethod
    def of(sketch: Sketch, outcomes: Matrix | None, count: int, seed: int) -> _Samples:
        rng, again = (np.random.default_rng(seed) for _ in range(2))
        x = np.arange(1.0, sketch.d + 1.0)
        S = np.array([sketch.sample(rng) for _ in range(count)])
        draws = [sketch.draw(again) for _ in range(count)]
        decoded = np.array([one.decode(one.encode(x)) for one in draws])
        sent = np.array([float(one.size) for one in draws])
        return _Samples(sketch, S, S if outcomes is None else outcomes, x, decoded, sent)

    def _checked(self, claim: str, failures: Iterator[str]) -> Checked:
        return Checked(claim, len(self.S), "samples", _first(failures))

    def semidefinite(self) -> Checked:
        def failures() -> Iterator[str]:
            for S in self.S:
                if not np.array_equal(S, S.T) or np.linalg.eigvalsh(S)[0] < -_ROUNDING * np.abs(S).max():
                    yield f"S = {S.tolist()} is not"

        return self._checked("samples are symmetric and positive semidefinite", failures())

    def moments(self) -> Checked:
        M = np.outer(self.x, self.x) + np.diag(self.x)

        def failures() -> Iterator[str]:
            images, claimed = self.outcomes @ M @ self.outcomes, self.sketch.second_moment(M)
            yield from _far("E[S]", self.S, np.eye(self.sketch.d), np.abs(self.outcomes).max(axis=0))
            yield from _far("E[SMS]", self.S @ M @ self.S, claimed, np.abs(images).max(axis=0))

        return self._checked("samples have the mean I and the moments E[SMS]", failures())

    def messages(self) -> Checked:
        def failures() -> Iterator[str]:
            true = self.S @ self.x
            for decoded, product in zip(self.decoded, true, strict=True):
                if not np.allclose(decoded, product, rtol=_ROUNDING, atol=_ROUNDING * np.abs(true).max()):
                    yield f"decode(encode(x)) = {decoded.tolist()} but S x = {product.tolist()}"

        return self._checked("decode(encode(x)) = S x", failures())

    def floats(self) -> Checked:
        claimed = np.array(self.sketch.expected_nonzeros)
        largest = np.array(float(self.sketch.d))
        return self._checked("floats sent per round", _far("the mean of the floats sent", self.sent, claimed, largest))


def _far(name: str, samples: Matrix, claimed: Matrix, largest: Matrix) -> Iterator[str]:
    """Yield where the mean of the samples is further from the claimed number than Bernstein's inequality allows.

    ``largest`` bounds the size of a sample.  The variance of a number between −b and b with mean μ is at most bE|X|,
    which is bμ for the entries that are never negative; the larger of this and the sample's is used.
    """
    mean, n = samples.mean(axis=0), len(samples)
    variance = np.maximum(samples.var(axis=0), largest * np.abs(claimed))
    error = np.sqrt(2.0 * variance * _CONFIDENCE / n) + 2.0 * _CONFIDENCE * (largest + np.abs(claimed)) / (3.0 * n)
    far = np.abs(mean - claimed) > error + _ROUNDING * (1.0 + np.abs(claimed))
    for place in zip(*np.nonzero(np.atleast_1d(far)), strict=True):
        found, said, allowed = (float(np.atleast_1d(values)[place]) for values in (mean, claimed, error))
        where = f" at {tuple(map(int, place))}" if samples.ndim > 1 else ""
        yield f"{name}{where} is {found:.4g} in the sample, claimed is {said:.6g} (chance allows ± {allowed:.2g})"
