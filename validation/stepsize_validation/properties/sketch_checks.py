"""``check_sketch``: whether a sketch is what its class says, without Hypothesis.

𝒫(M) = E[SMS] is linear in M, so it is enough to compare it on the matrices e_i e_jᵀ + e_j e_iᵀ.  Where ``support()``
lists the outcomes the comparison is with their sum; where it does not, with a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product

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

    See Also
    --------
    stepsize_opt.Sketch : what a sketch of your own states.
    stepsize_validation.check_rate : whether runs keep the predicted rate.

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
    for claim, examples, unit, failures in _claims(sketch, samples, seed):
        yield Checked(claim, examples, unit, next(failures, ""))


def _claims(sketch: Sketch, samples: int, seed: int) -> Iterator[tuple[str, int, str, Iterator[str]]]:
    """Yield each claim, its examples with their unit, and where it fails."""
    law, matrices = _listed(sketch), math.comb(sketch.d + 1, 2)
    if law is not None:
        yield "E[S] = I", len(law[0]), "outcomes", _biased(*law)
        yield "E[SMS] is the sum over the outcomes", matrices, "matrices", _wrong_sums(sketch, *law)
    yield "the adjoint of E[SMS]", matrices**2, "pairs of matrices", _wrong_adjoints(sketch)
    yield "E[SMS] ⪰ 0 for M ⪰ 0", sketch.d**2, "matrices", _negative_images(sketch)
    x = np.arange(1.0, sketch.d + 1.0)
    S, messages, sent = _sampled(sketch, x, samples, seed)
    largest = np.array(float(sketch.d))
    for claim, failures in (
        ("samples are symmetric and positive semidefinite", _indefinite(S)),
        ("samples have the mean I and the moments E[SMS]", _wrong_moments(sketch, S, S if law is None else law[1], x)),
        ("decode(encode(x)) = S x", _wrong_messages(messages, S @ x)),
        (
            "floats sent per round",
            _far("the mean of the floats sent", sent, np.array(sketch.expected_nonzeros), largest),
        ),
    ):
        yield claim, samples, "samples", failures


def _listed(sketch: Sketch) -> tuple[Vector, Matrix] | None:
    """Return weights and outcomes as matrices, None where the sketch lists none."""
    try:
        weights, outcomes = sketch.support()
    except ValueError:
        return None
    return weights, outcomes[:, :, None] * np.eye(sketch.d) if outcomes.ndim == 2 else outcomes


def _sampled(sketch: Sketch, x: Vector, count: int, seed: int) -> tuple[Matrix, Matrix, Vector]:
    """Return samples of S, and what the same random numbers decode x to and send."""
    rng, again = (np.random.default_rng(seed) for _ in range(2))
    S = np.array([sketch.sample(rng) for _ in range(count)])
    draws = [sketch.draw(again) for _ in range(count)]
    return S, np.array([one.decode(one.encode(x)) for one in draws]), np.array([float(one.size) for one in draws])


def _basis(d: int) -> Iterator[tuple[str, Matrix]]:
    """Yield the symmetric matrices with one or two entries of 1."""
    for i, j in combinations_with_replacement(range(d), 2):
        M = np.zeros((d, d))
        M[i, j] = M[j, i] = 1.0
        yield f"M = e{i} e{i}ᵀ" if i == j else f"M = e{i} e{j}ᵀ + e{j} e{i}ᵀ", M


def _close(found: Matrix, true: Matrix, scale: Matrix) -> bool:
    return np.allclose(found, true, rtol=_ROUNDING, atol=_ROUNDING * np.abs(scale).max())


def _biased(weights: Vector, outcomes: Matrix) -> Iterator[str]:
    mean = np.tensordot(weights, outcomes, axes=1)
    off = np.abs(mean - np.eye(len(mean)))
    i, j = np.unravel_index(int(off.argmax()), off.shape)
    if off[i, j] > _ROUNDING:
        yield f"E[S] has the entry {mean[i, j]:.6g} at ({i}, {j})"


def _wrong_sums(sketch: Sketch, weights: Vector, outcomes: Matrix) -> Iterator[str]:
    for name, M in _basis(sketch.d):
        true, claimed = np.tensordot(weights, outcomes @ M @ outcomes, axes=1), sketch.second_moment(M)
        if not _close(true, claimed, true):
            yield f"for {name} the outcomes give {true.tolist()} and second_moment {claimed.tolist()}"


def _wrong_adjoints(sketch: Sketch) -> Iterator[str]:
    basis = [(name, M, sketch.second_moment(M), sketch.adjoint(M)) for name, M in _basis(sketch.d)]
    for (first, A, _, adjoint), (second, B, image, _) in product(basis, repeat=2):
        left, right = float(np.vdot(A, image)), float(np.vdot(adjoint, B))
        if not math.isclose(left, right, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            yield f"⟨Z, E[SMS]⟩ = {left:.6g} but ⟨adjoint(Z), M⟩ = {right:.6g} for Z: {first}, {second}"


def _negative_images(sketch: Sketch) -> Iterator[str]:
    unit = np.eye(sketch.d)
    pairs = [one + sign * other for one, other in combinations(unit, 2) for sign in (1.0, -1.0)]
    for v in (*unit, *pairs):
        values = np.linalg.eigvalsh(sketch.second_moment(np.outer(v, v)))
        if values[0] < -_ROUNDING * max(1.0, values[-1]):
            yield f"E[SMS] has the eigenvalue {values[0]:.6g} for M = vvᵀ, v = {v.tolist()}"


def _indefinite(samples: Matrix) -> Iterator[str]:
    for S in samples:
        if not np.array_equal(S, S.T) or np.linalg.eigvalsh(S)[0] < -_ROUNDING * np.abs(S).max():
            yield f"S = {S.tolist()} is not"


def _wrong_moments(sketch: Sketch, S: Matrix, outcomes: Matrix, x: Vector) -> Iterator[str]:
    """``outcomes`` are all, where they are known; they bound the size of a sample."""
    M = np.outer(x, x) + np.diag(x)
    yield from _far("E[S]", S, np.eye(sketch.d), np.abs(outcomes).max(axis=0))
    yield from _far("E[SMS]", S @ M @ S, sketch.second_moment(M), np.abs(outcomes @ M @ outcomes).max(axis=0))


def _wrong_messages(messages: Matrix, true: Matrix) -> Iterator[str]:
    for message, product_with_x in zip(messages, true, strict=True):
        if not _close(message, product_with_x, true):
            yield f"decode(encode(x)) = {message.tolist()} but S x = {product_with_x.tolist()}"


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
