"""The subspace method x⁺ = x − A_J A_Jᵀ∇f(x), which attains the limit of methods without memory (docs/limit.md).

The directions a_j are L-orthonormal, AᵀLA = I, and J is a random set of them with P(j ∈ J) = h_j.  Then G = A_J A_Jᵀ
has GᵀLG = A_J(A_JᵀLA_J)A_Jᵀ = G, hence E[G] = E[GᵀLG] = A Diag(h) Aᵀ = D: each step minimises the quadratic upper model
of f over the span of the directions drawn, and the numbers A_Jᵀ∇f, one for each of them, are all that is sent.  With
the sketch S = Diag(1_J/h) this is G = C S Cᵀ, C = A Diag(h)^½.

*What is proved of floats.*  AᵀLA ⪯ I, so that A_JᵀLA_J ⪯ I and GᵀLG ⪯ G for every J, and D ⪯ E[G] = A Diag(h) Aᵀ with
the probabilities h of the draws: so E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D for the floats A, h and D that are returned.  For a
LowRankPlusDiagonal neither A nor D is formed, and the floats are those that determine them.

*With momentum* (docs/momentum.md) the update of z takes A_J Diag(w_J) A_Jᵀ∇f with weights w, t²w ≤ h and
A Diag(hw) Aᵀ ⪰ M⁻¹: S = M̂A Diag(w)1_J Aᵀ has E[S] = I exactly for M̂ = (A Diag(hw) Aᵀ)⁻¹ ⪯ M, whatever A is rounded to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, final

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import aslinearoperator

from stepsize_opt.goals import MOMENTUM_GOALS, GoalName, goal_class
from stepsize_opt.inputs import (
    Array,
    Saved,
    Shown,
    check_one_of,
    dimensions,
    from_fields,
    read_only,
    real_array,
)
from stepsize_opt.large import StepsizeOperator, check_stepsize, stepsize_from_arrays
from stepsize_opt.limit import read_limit
from stepsize_opt.methods.base import Condition, Factors, Method
from stepsize_opt.methods.steps import MOMENTUM_UPDATES, SubspaceMomentum
from stepsize_opt.proofs import Certificate, exp_down, exp_up
from stepsize_opt.sketches import Sketch, SystematicSampling
from stepsize_opt.smoothness import BASES, ThinDirections
from stepsize_solvers.programs import Indices, Matrix, PositiveMap, Vector


@final
@dataclass(frozen=True, eq=False, repr=False)
class SubspaceMethod(Shown, Saved, Method, by_name=False):
    """x⁺ = x − A_J A_Jᵀ∇f(x) with L-orthonormal directions and a random set J of them: what ``optimal_method`` returns.

    It belongs to one L and has a stepsize of its own: ``run(f, method.D, method.sketch, algorithm=method)`` runs it, on
    clients with ``client_seeds="shared"``.  ``draw``, ``encode`` and ``decode`` are one round as messages.

    Attributes
    ----------
    directions : numpy.ndarray or ThinDirections
        A, d×d, the directions are its columns; AᵀLA ⪯ I is proved.  For a LowRankPlusDiagonal an operator.
    sketch : SystematicSampling
        The distribution of J, as S = Diag(1_J/h).
    D : numpy.ndarray or StepsizeOperator
        d×d, with D ⪯ E[A_J A_Jᵀ] proved: E f(x⁺) ≤ f(x) − ½‖∇f(x)‖²_D.
    certificate : Certificate
        ``log_det``, the rate of D from below, and ``upper_bound``, the limit: ends of log det D, or of d log t.
    defect : float
        A proved bound on ‖AᵀLA − I‖.
    k : float
        Floats per round, the budget that was given.
    goal : str
        ``"descent"``, ``"euclidean"`` or ``"linear"``; with momentum ``"linear"`` or ``"convex"``.
    basis : str
        How the directions were chosen.
    weights : numpy.ndarray or None
        w of the update of z, with momentum; None without memory.  ``compressor()`` has the rounds.

    Examples
    --------
    See ``optimal_method``.
    """

    name: ClassVar[str] = "subspace"
    update: ClassVar[str] = "x⁺ = x − A_J A_Jᵀ ∇f(x), AᵀLA = I"

    directions: Any
    sketch: SystematicSampling
    D: Any
    certificate: Certificate
    defect: float
    k: float
    goal: str
    basis: str
    weights: Any = None

    def __post_init__(self) -> None:
        A = self.directions
        parts = [A.t, A.U, A.Z] if isinstance(A, ThinDirections) else [A]
        check_stepsize(self.D, self.d, *parts, *([self.weights] if self.momentum else []))

    @property
    def d(self) -> int:
        """Size of D."""
        return self.sketch.d

    @property
    def probabilities(self) -> Vector:
        """h: direction j is drawn with probability h_j, exactly."""
        return self.sketch.p

    @property
    def rate(self) -> float:
        """det(D)^{1/d}, or the t with D ⪰ tM⁻¹, proved from below; with momentum its t."""
        return exp_down(self.certificate.log_det / self.d)

    @property
    def efficiency(self) -> float:
        """``rate`` over the limit: 1 up to rounding."""
        return self.rate / exp_up(self.certificate.log_rate_bound)

    @property
    def momentum(self) -> bool:
        """Whether the method keeps two vectors."""
        return self.weights is not None

    def iterations(
        self, *, accuracy: float, initial_gap: float | None = None, initial_distance: float | None = None
    ) -> int:
        """Return the rounds K with E f(x^K) − f* ≤ accuracy guaranteed: from Δ⁰ (linear) or ‖x⁰ − x*‖ (convex)."""
        if self.goal not in MOMENTUM_GOALS:
            msg = f"iterations of a SubspaceMethod are for the goals linear and convex, got {self.goal!r}"
            raise ValueError(msg)
        aim = goal_class(self.goal, self.momentum)
        name = aim.words.arguments[1]
        given = initial_gap if name == "initial_gap" else initial_distance
        if given is None:
            msg = f"iterations needs {name}"
            raise TypeError(msg)
        return aim.rounds(self.rate, accuracy, given)

    # ---------------------------------------------------------------- one round as messages

    def compressor(self) -> SubspaceMethod | SubspaceMomentum:
        """Return the rounds as messages: the method itself, or with momentum what keeps its two vectors."""
        if not self.momentum:
            return self
        factors = self.factors(self.D, lambda: np.empty((0, 0)))
        return SubspaceMomentum(self.rate, self.goal == "linear", self.sketch, factors, None, self, self.weights)

    def draw(self, rng: np.random.Generator) -> Indices:
        """Draw J, ascending: ⌊k⌋ or ⌈k⌉ directions."""
        return self.sketch.places(rng)

    def encode(self, gradient: Array, draw: Indices) -> Array:
        """Return A_Jᵀg, the numbers that are sent, shape (…, d) → (…, size of J)."""
        g, A, draw = self._vectors("gradient", gradient, self.d), self.directions, self._drawn(draw)
        return A.sent(g, draw) if isinstance(A, ThinDirections) else np.asarray(g @ A[:, draw])

    def decode(self, numbers: Array, draw: Indices) -> Array:
        """Return A_J z, what is subtracted from x, for the numbers z or their mean over clients.

        Shape (…, size of J) → (…, d).  Raises ValueError with momentum, which makes two updates of them.
        """
        if self.momentum:
            msg = "momentum makes two updates of the numbers: use method.compressor(), which keeps x and z"
            raise ValueError(msg)
        return self.combine(numbers, draw)

    def combine(self, numbers: Array, draw: Indices) -> Array:
        """Return A_J z, for numbers z."""
        draw = self._drawn(draw)
        z, A = self._vectors("numbers", numbers, len(draw)), self.directions
        return A.received(z, draw) if isinstance(A, ThinDirections) else np.asarray(z @ A[:, draw].T)

    def _drawn(self, draw: Any) -> Indices:
        """Return J as ``draw`` returns it; raises ValueError for what is no set of directions."""
        J = np.asarray(draw if dimensions(draw) == 1 else None)
        if J.ndim != 1 or (J.size and (J.dtype.kind not in "iu" or J.min() < 0 or J.max() >= self.d)):
            msg = f"draw must hold places of directions from 0 to {self.d - 1}, as method.draw(rng) returns them"
            raise ValueError(msg)
        return J.astype(np.intp)

    def _vectors(self, name: str, value: Array, size: int) -> Array:
        out = real_array(name, value, finite=False)
        if out.ndim < 1 or out.shape[-1] != size:
            msg = f"{name} must have shape (…, {size}), got {out.shape}"
            raise ValueError(msg)
        return out

    # ---------------------------------------------------------------- as a method

    def check(self, sketches: Sequence[Sketch], *, scalar: bool, clients: bool) -> None:
        for sketch in sketches:
            if sketch != self.sketch:
                msg = f"the subspace method has a sketch of its own, method.sketch: got {sketch}"
                raise ValueError(msg)

    def factors(self, D: Any, smoothness: Callable[[], Matrix]) -> Factors:
        if D is not self.D and (isinstance(D, StepsizeOperator) or not np.array_equal(D, self.D)):
            msg = "the subspace method has a stepsize of its own: use method.D"
            raise ValueError(msg)
        A, roots = self.directions, np.sqrt(self.probabilities)
        C = A @ aslinearoperator(sparse.diags_array(roots)) if isinstance(A, ThinDirections) else A * roots
        return Factors(C, C.T)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        C = (self.directions @ np.eye(self.d)) * np.sqrt(self.probabilities)
        return C @ law(C.T @ L @ C) @ C.T

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        msg = "the subspace method has a stepsize of its own: optimal_method(L, k) finds it, optimal_stepsize does not"
        raise ValueError(msg)

    # ---------------------------------------------------------------- shown and saved

    def summary(self) -> dict[str, Any]:
        """Return everything but the matrices, as plain numbers and strings."""
        return {
            "d": self.d,
            "algorithm": self.name,
            "k": self.k,
            "goal": self.goal,
            "momentum": self.momentum,
            "basis": self.basis,
            "rate": self.rate,
            "efficiency": self.efficiency,
            "defect": self.defect,
            "probabilities": self.probabilities.tolist(),
            "certificate": {**asdict(self.certificate), "gap": self.certificate.gap},
        }

    def _shown(self) -> list[tuple[str, str]]:
        h = self.probabilities
        return [
            ("update", MOMENTUM_UPDATES[self.goal] if self.momentum else self.update),
            ("budget", f"{self.k:g} of d = {self.d} floats per round, systematic sampling"),
            ("directions", f"{self.basis}, ‖AᵀLA − I‖ ≤ {self.defect:.1e}"),
            ("probabilities", f"from {h.min():.4g} to {h.max():.4g}"),
            ("rate", f"{self.rate:.9g} ({self.goal})"),
            ("limit", f"reached up to {self.certificate.gap:.1e}"),
        ]

    def _contents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        names = ("defect", "k", "goal", "basis")
        meta = {name: getattr(self, name) for name in names} | {"certificate": asdict(self.certificate)}
        weights = {"weights": self.weights} if self.momentum else {}
        return meta, {"probabilities": self.probabilities, **weights, **self._matrices()}

    def _matrices(self) -> dict[str, Any]:
        A = self.directions
        if isinstance(A, ThinDirections):
            return {"c": np.array(A.c), "t": A.t, "U": A.U, "Z": A.Z, **self.D.arrays()}
        return {"directions": A, "D": self.D}

    @classmethod
    def _of_contents(cls, meta: dict[str, Any], arrays: dict[str, Any]) -> SubspaceMethod:
        sketch = SystematicSampling(arrays["probabilities"])
        if "t" in arrays:
            A: Any = ThinDirections(float(arrays["c"]), *(arrays[name] for name in "tUZ"))
            D: Any = stepsize_from_arrays({name: arrays[name] for name in ("x" if "x" in arrays else "pUC")})
        else:
            D, A = arrays["D"], arrays["directions"]
        return from_fields(cls, meta, D=D, directions=A, sketch=sketch, weights=arrays.get("weights"))


def optimal_method(
    L: Any,
    k: float,
    *,
    goal: GoalName = "descent",
    strong_convexity: Any = None,
    basis: str | None = None,
    momentum: bool = False,
) -> SubspaceMethod:
    """Return the subspace method for L, the best that sends k floats per round, without memory or with momentum.

    Parameters
    ----------
    L
        Smoothness matrix, d×d symmetric positive definite, or a LowRankPlusDiagonal.
    k
        Floats per round on average, 0 < k ≤ d; it need not be whole.
    goal
        ``"descent"``, ``"euclidean"`` or ``"linear"``, with momentum ``"linear"`` or ``"convex"``, as in
        ``compression_limit``.
    strong_convexity
        M of ``"linear"``, 0 ≺ M ⪯ ∇²f: a d×d matrix, or a number μ for μI.
    momentum
        Return the method that keeps two vectors.
    basis
        Where the directions come from.  ``"eigenvectors"`` of L (of LM⁻¹ for ``linear``), which ``euclidean`` and
        ``linear`` need.  For ``descent`` every L-orthonormal basis has the same guarantee; default ``"root"``, L^{−½}.
        A LowRankPlusDiagonal has ``"root"`` for ``descent`` and ``"eigenvectors"`` for the other goals, which need
        equal entries of the diagonal.

    Returns
    -------
    SubspaceMethod
        With ``directions``, ``probabilities``, ``D``, ``rate``, ``draw``, ``encode`` and ``decode``; for a
        LowRankPlusDiagonal ``directions`` and ``D`` are operators, and nothing of size d×d is formed.

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
    problem = read_limit(L, k, goal, strong_convexity, momentum=momentum)
    # Of the bases for descent, the root had the smallest gradient norms in most runs on data (docs/limit.md).
    only = "eigenvectors" if problem.goal.name != "descent" else None
    wanted = (only or "root") if basis is None else basis
    check_one_of("basis", wanted, BASES)
    if only not in (None, wanted):
        msg = f"goal={goal!r} needs basis={only!r}, the only one that reaches its limit, got {basis!r}"
        raise ValueError(msg)
    found = problem.subspace(wanted)
    D = read_only(found.D) if isinstance(found.D, np.ndarray) else found.D
    return SubspaceMethod(
        directions=found.directions,
        sketch=found.sketch,
        D=D,
        certificate=found.certificate,
        defect=found.defect,
        k=problem.k,
        goal=problem.goal.name,
        basis=wanted,
        weights=None if found.weights is None else read_only(found.weights),
    )
