"""The subspace method x⁺ = x − A_J A_Jᵀ∇f(x), which attains the limit for compressed methods (docs/limit.md).

The directions a_j are L-orthonormal, AᵀLA = I, and J is a random set of them with P(j ∈ J) = h_j.  Then G = A_J A_Jᵀ
has GᵀLG = A_J(A_JᵀLA_J)A_Jᵀ = G, hence E[G] = E[GᵀLG] = A Diag(h) Aᵀ = D: each step minimises the quadratic upper model
of f over the span of the directions drawn, and the numbers A_Jᵀ∇f, one for each of them, are all that is sent.  With
the sketch S = Diag(1_J/h) this is G = C S Cᵀ, C = A Diag(h)^½.

*What is proved of floats.*  AᵀLA ⪯ I, so that A_JᵀLA_J ⪯ I and GᵀLG ⪯ G for every J, and D ⪯ E[G] = A Diag(h) Aᵀ with
the probabilities h of the draws: so E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D for the floats A, h and D that are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final, overload

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.inputs import (
    Array,
    Saved,
    Shown,
    check_one_of,
    check_symmetric_finite,
    from_fields,
    generator,
    read_only,
    real_array,
)
from stepsize_opt.limit import LARGEST_LOSS, LimitProblem, Spectrum, equal_probabilities, floor_probabilities
from stepsize_opt.methods.base import Condition, Factors, Method
from stepsize_opt.methods.large_subspace import (
    NO_CONDITION,
    OWN_STEPSIZE,
    LargeSubspaceMethod,
    check_own_sketch,
    large_subspace_method,
)
from stepsize_opt.operators import LowRankPlusDiagonal
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Enclosed,
    Pair,
    exp_down,
    exp_up,
    gamma,
    power_of_two_scaling,
    proved_cholesky,
)
from stepsize_opt.sketches import IndependentSampling, Sketch, SystematicSampling, rounded_to_budget
from stepsize_solvers.numerics import blas_threads
from stepsize_solvers.programs import Indices, Matrix, PositiveMap, Vector

BASES = ("cholesky", "eigenvectors", "root", "rotation")
SAMPLINGS: dict[str, type[SystematicSampling | IndependentSampling]] = {
    "systematic": SystematicSampling,
    "independent": IndependentSampling,
}
# Newton steps A ← A(3I − AᵀLA)/2: each squares the defect of AᵀLA, and rounding of A leaves what the second would gain.
_REFINEMENTS = 2


@final
@dataclass(frozen=True, eq=False, repr=False)
class SubspaceMethod(Shown, Saved, Method, by_name=False):
    """x⁺ = x − A_J A_Jᵀ∇f(x) with L-orthonormal directions and a random set J of them: what ``optimal_method`` returns.

    It belongs to one L and has a stepsize of its own: ``run(f, method.D, method.sketch, algorithm=method)`` runs it, on
    clients with ``client_seeds="shared"``.  ``draw``, ``encode`` and ``decode`` are one round as messages.

    Attributes
    ----------
    directions : numpy.ndarray
        A, d×d, the directions are its columns; AᵀLA ⪯ I is proved.
    sketch : SystematicSampling or IndependentSampling
        The law of J, as S = Diag(1_J/h).
    D : numpy.ndarray
        d×d, with D ⪯ E[A_J A_Jᵀ] proved: E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D.
    certificate : Certificate
        ``log_det``, the criterion of D from below, and ``upper_bound``, the limit: ends of log det D, or of d log t.
    defect : float
        A proved bound on ‖AᵀLA − I‖.
    k : float
        Numbers a round, the budget that was given.
    criterion, basis : str
        What was asked for.
    """

    name: ClassVar[str] = "subspace"
    update: ClassVar[str] = "x⁺ = x − A_J A_Jᵀ ∇f(x), AᵀLA = I"

    directions: Matrix
    sketch: SystematicSampling | IndependentSampling
    D: Matrix
    certificate: Certificate
    defect: float
    k: float
    criterion: str
    basis: str

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def d(self) -> int:
        """Size of D."""
        return len(self.D)

    @property
    def probabilities(self) -> Vector:
        """h: direction j is drawn with probability h_j, exactly."""
        return self.sketch.p

    @property
    def rate(self) -> float:
        """det(D)^{1/d}, or the t with D ⪰ tM⁻¹, proved from below."""
        return exp_down(self.certificate.log_det / self.d)

    @property
    def efficiency(self) -> float:
        """``rate`` over the limit: 1 up to rounding."""
        return self.rate / exp_up(self.certificate.upper_bound / self.d)

    # ---------------------------------------------------------------- one round as messages

    def draw(self, rng: np.random.Generator) -> Indices:
        """J, ascending: ⌊k⌋ or ⌈k⌉ directions for systematic sampling."""
        return np.flatnonzero(self.sketch.sample_diagonal(rng, 1)[0])

    def encode(self, gradient: Array, draw: Indices) -> Array:
        """A_Jᵀg, the numbers that are sent, shape (…, d) → (…, size of J)."""
        return np.asarray(self._vectors("gradient", gradient, self.d) @ self.directions[:, draw])

    def decode(self, numbers: Array, draw: Indices) -> Array:
        """A_J z, what is subtracted from x, for the numbers z or their mean over clients.

        Shape (…, size of J) → (…, d).
        """
        return np.asarray(self._vectors("numbers", numbers, len(draw)) @ self.directions[:, draw].T)

    def _vectors(self, name: str, value: Array, size: int) -> Array:
        out = real_array(name, value, finite=False)
        if out.ndim < 1 or out.shape[-1] != size:
            msg = f"{name} must have shape (…, {size}), got {out.shape}"
            raise ValueError(msg)
        return out

    # ---------------------------------------------------------------- as a method

    def check(self, sketches: Sequence[Sketch], *, scalar: bool, clients: bool) -> None:
        check_own_sketch(sketches, self.sketch)

    def factors(self, D: Matrix, smoothness: Callable[[], Matrix]) -> Factors:
        if not np.array_equal(D, self.D):
            raise ValueError(OWN_STEPSIZE)
        C = self.directions * np.sqrt(self.probabilities)
        return Factors(C, C.T)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        C = self.directions * np.sqrt(self.probabilities)
        return C @ law(C.T @ L @ C) @ C.T

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        raise ValueError(NO_CONDITION)

    # ---------------------------------------------------------------- shown and saved

    def summary(self) -> dict[str, Any]:
        """Everything but the matrices, as plain numbers and strings."""
        return {
            "d": self.d,
            "algorithm": self.name,
            "k": self.k,
            "criterion": self.criterion,
            "basis": self.basis,
            "sampling": self._sampling,
            "rate": self.rate,
            "efficiency": self.efficiency,
            "defect": self.defect,
            "probabilities": self.probabilities.tolist(),
            "certificate": {**asdict(self.certificate), "gap": self.certificate.gap},
        }

    @property
    def _sampling(self) -> str:
        return next(name for name, kind in SAMPLINGS.items() if isinstance(self.sketch, kind))

    def rows(self) -> list[tuple[str, str]]:
        h = self.probabilities
        return [
            ("update", self.update),
            ("budget", f"{self.k:g} of d = {self.d} numbers a round, {self._sampling} sampling"),
            ("directions", f"{self.basis}, ‖AᵀLA − I‖ ≤ {self.defect:.1e}"),
            ("probabilities", f"from {h.min():.4g} to {h.max():.4g}"),
            ("rate", f"{self.rate:.9g} ({self.criterion})"),
            ("limit", f"reached up to {self.certificate.gap:.1e}"),
        ]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        names = ("defect", "k", "criterion", "basis")
        meta = {name: getattr(self, name) for name in names}
        meta |= {"sampling": self._sampling, "certificate": asdict(self.certificate)}
        return meta, {"directions": self.directions, "D": self.D, "probabilities": self.probabilities}

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> SubspaceMethod:
        D, A = arrays["D"], arrays["directions"]
        check_symmetric_finite(D)
        sketch = SAMPLINGS[meta["sampling"]](arrays["probabilities"])
        if A.shape != D.shape or A.dtype != np.float64 or not np.isfinite(A).all() or sketch.d != len(D):
            msg = "its directions, probabilities and D do not fit together"
            raise ValueError(msg)
        return from_fields(cls, meta, D=D, directions=A, sketch=sketch)


@overload
def optimal_method(  # pyright: ignore[reportOverlappingOverload]
    L: LowRankPlusDiagonal,
    k: float,
    criterion: str = "det",
    *,
    lower: Any = None,
    basis: str | None = None,
    sampling: str = "systematic",
    rng: np.random.Generator | None = None,
) -> LargeSubspaceMethod: ...


@overload
def optimal_method(
    L: Any,
    k: float,
    criterion: str = "det",
    *,
    lower: Any = None,
    basis: str | None = None,
    sampling: str = "systematic",
    rng: np.random.Generator | None = None,
) -> SubspaceMethod: ...


def optimal_method(
    L: Any,
    k: float,
    criterion: str = "det",
    *,
    lower: Any = None,
    basis: str | None = None,
    sampling: str = "systematic",
    rng: np.random.Generator | None = None,
) -> SubspaceMethod | LargeSubspaceMethod:
    """The method that reaches the limit of k numbers a round: the best of all compressed methods for the criterion.

    Parameters
    ----------
    L, k, criterion, lower
        As in ``compression_limit``.
    basis
        Where the directions come from.  ``"eigenvectors"`` of L (of LM⁻¹ for ``linear``), which ``euclidean`` and
        ``linear`` need.  For ``det`` every L-orthonormal basis has the same guarantee: ``"cholesky"``, R^{−ᵀ} of
        L = RRᵀ; ``"root"``, L^{−½}; ``"rotation"``, L^{−½} times a random rotation.  Default: ``"root"``.
    sampling
        ``"systematic"``: ⌊k⌋ or ⌈k⌉ directions in every round.  ``"independent"``: each direction by a coin of its own.
    rng
        For ``"rotation"``; default ``np.random.default_rng(0)``.

    Returns
    -------
    SubspaceMethod with ``directions``, ``probabilities``, ``D``, ``rate``, ``draw``, ``encode`` and ``decode``; for a
    LowRankPlusDiagonal a LargeSubspaceMethod, whose directions are applied and not formed.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described, a singular L, k > d, or a basis that does not reach the limit.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import optimal_method
    >>> method = optimal_method([[2.0, 1.0], [1.0, 3.0]], 1)
    >>> draw = method.draw(np.random.default_rng(0))
    >>> numbers = method.encode(np.array([1.0, -1.0]), draw)
    >>> numbers.size, method.decode(numbers, draw).size, round(method.rate, 6)
    (1, 2, 0.223607)
    """
    if isinstance(L, LowRankPlusDiagonal):
        return large_subspace_method(L, k, criterion)
    problem = LimitProblem.read(L, k, criterion, lower)
    # Of the bases for det, the root had the smallest gradient norms in most runs on data (docs/limit.md).
    default = "root" if problem.M is None else "eigenvectors"
    wanted = default if basis is None else basis
    check_one_of("basis", wanted, BASES)
    check_one_of("sampling", sampling, SAMPLINGS)
    d = len(problem.L)
    with blas_threads(d):
        if problem.M is None:
            h, A = equal_probabilities(d, problem.k), _directions(problem.L, wanted, rng)
        else:
            if wanted != "eigenvectors":
                msg = f"criterion={criterion!r} needs basis='eigenvectors', the only one that reaches its limit"
                raise ValueError(msg)
            spectrum = Spectrum.of(problem.L, problem.M)
            h, A = floor_probabilities(spectrum.values, problem.k), spectrum.directions
        sketch = SAMPLINGS[sampling](rounded_to_budget(h, problem.k))
        scale = power_of_two_scaling(problem.L.diagonal())
        X, defect = _proved_directions(scale[:, None] * problem.L * scale, A / scale[:, None])
        D = _proved_mean(X, sketch.p)
        A, D = scale[:, None] * X, scale[:, None] * D * scale
        return SubspaceMethod(
            directions=read_only(A),
            sketch=sketch,
            D=read_only(D),
            certificate=problem.certificate(D),
            defect=defect,
            k=problem.k,
            criterion=problem.criterion,
            basis=wanted,
        )


def _directions(L: Matrix, basis: str, rng: np.random.Generator | None) -> Matrix:
    """An L-orthonormal basis in plain floating point."""
    if basis == "cholesky":
        scale = power_of_two_scaling(L.diagonal())
        R, _ = lapack.dpotrf(scale[:, None] * L * scale, 1, 1)  # lower, clean
        return np.asarray(scale[:, None] * lapack.dtrtri(R, 1)[0].T)
    spectrum = Spectrum.of(L)
    if basis == "eigenvectors":
        return spectrum.directions
    root = spectrum.directions @ spectrum.vectors.T
    if basis == "root":
        return np.asarray(root)
    Q, R = np.linalg.qr(generator(np.random.default_rng(0) if rng is None else rng).standard_normal(L.shape))
    return np.asarray(root @ (Q * np.sign(np.diagonal(R))))  # the signs make Q uniform


def _gram(L: Matrix, A: Matrix) -> Enclosed:
    exact = Pair.exact
    return (exact(A).T @ (exact(L) @ exact(A))).rounded().symmetric()


def _proved_directions(L: Matrix, A: Matrix) -> tuple[Matrix, float]:
    """A, refined and scaled until AᵀLA ⪯ I is proved, and a bound on ‖AᵀLA − I‖."""
    identity = np.eye(len(L))
    for _ in range(_REFINEMENTS):
        A = A @ (1.5 * identity - 0.5 * _gram(L, A).value)
    rounding, loss = 1.0 + gamma(len(L) + 2), UNIT
    while True:
        gram = _gram(L, A)
        # The largest row sum bounds the largest eigenvalue.
        top = float((np.abs(gram.value) + gram.error).sum(axis=1).max()) * rounding
        if top <= 1.0:
            away = np.abs(gram.value - identity) + gram.error
            return A, float(away.sum(axis=1).max()) * rounding
        if not top < 2.0:
            msg = "L is too close to singular for L-orthonormal directions in float64; add a regulariser (L + 2λI)"
            raise ValueError(msg)
        loss *= 2.0  # the rounding of A may count more than what is taken off
        A = A * ((1.0 - loss) / np.sqrt(top))


def _proved_mean(A: Matrix, h: Vector) -> Matrix:
    """D next to A Diag(h) Aᵀ, below it by proof."""
    exact = Pair.exact(A)
    mean = (exact.scaled(h[None, :]) @ exact.T).rounded().symmetric()
    loss = 4.0 * len(A) * UNIT
    while loss <= LARGEST_LOSS:
        D = (1.0 - loss) * mean.value
        rest = mean.value - D
        if proved_cholesky(Enclosed(rest, mean.error + UNIT * np.abs(rest))) is not None:
            return np.asarray(D)
        loss *= 2.0
    msg = "L is too close to singular for the mean of the steps to be proved in float64; add a regulariser (L + 2λI)"
    raise ValueError(msg)
