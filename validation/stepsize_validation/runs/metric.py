"""The descent metric of a run, and what its steps show of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh

from stepsize_opt import Sketch
from stepsize_opt.inputs.checks import items
from stepsize_opt.inputs.matrices import dense, read_matrix
from stepsize_opt.methods import Factors, Method, get_method
from stepsize_opt.problems import Federated, Objective
from stepsize_opt.sketches.base import sketch_of_each
from stepsize_solvers.numerics.linalg import sym
from stepsize_solvers.programs import Matrix, Vector


@dataclass(frozen=True, eq=False)
class DescentMetric:
    """The descent metric H of a run: 2D − T(D) on one node; Theorem 3 has 2D − DLD and counts the variance apart.

    Clients that share their draws are one node.
    """

    D: Matrix
    objective: Objective | Federated
    sketches: tuple[Sketch, ...]
    factors: Factors
    one_node: bool

    @cached_property
    def L(self) -> Matrix:
        """The smoothness matrix of the objective."""
        return self.objective.smoothness()

    @cached_property
    def H(self) -> Matrix:
        """2D − T(D), with clients 2D − DLD."""
        D, L = self.D, self.L
        T = moment_of(self.factors, L, self.sketches[0].second_moment) if self.one_node else D @ L @ D
        return 2.0 * D - T

    @property
    def drawn(self) -> tuple[Sketch, ...]:
        """The sketches that are drawn: one for each client, one for clients that share their draws."""
        return self.sketches[:1] if self.one_node else self.sketches

    def norms(self, gradient: Matrix) -> Vector:
        """Return ‖g‖²_H for each seed."""
        return np.asarray(np.einsum("sd,sd->s", gradient, gradient @ self.H))

    def decrease(self, gradient: Matrix, along: Matrix, step: Matrix) -> Vector:
        """Return 2⟨g, step⟩ − ‖v‖²_L for each seed: v is the step on one node, Dg (``along``) with clients."""
        v = step if self.one_node else along
        return np.asarray(2.0 * np.einsum("sd,sd->s", gradient, step) - np.einsum("sd,sd->s", v, v @ self.L))

    @cached_property
    def rate(self) -> float:
        """det(D)^{1/d}."""
        return math.exp(float(np.linalg.slogdet(self.D)[1]) / len(self.D))

    @cached_property
    def eigenvalues(self) -> Vector:
        """Of H, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.H), dtype=np.float64)

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue of H."""
        return float(self.eigenvalues[0])

    @property
    def descent_rate(self) -> float:
        """det(H)^{1/d}; 0 when H is not positive definite."""
        return math.exp(float(np.log(self.eigenvalues).mean())) if self.smallest > 0.0 else 0.0

    @cached_property
    def condition(self) -> float:
        """The largest eigenvalue of D⁻¹T(D) = 2I − D⁻¹H, less its rounding: D satisfies T(D) ⪯ D when it is at most 1.

        With clients T(D) is DLD, as in H.
        """
        largest = float(eigh(2.0 * self.D - self.H, self.D, eigvals_only=True)[-1])
        return largest - len(self.D) * float(np.finfo(float).eps) * float(np.linalg.cond(self.D))

    @cached_property
    def growth(self) -> float:
        """The largest factor by which one step can multiply f − f^inf; infinite where the outcomes cannot be listed.

        L-smoothness gives f(x − Gg) ≤ f(x) − ½gᵀ(G + Gᵀ − GᵀLG)g and ‖g‖²_{L⁻¹} ≤ 2(f(x) − f^inf), so that an outcome
        of the sketch multiplies f − f^inf by at most max(1, ‖I − L^½GL^½‖²).
        """
        try:
            outcomes = self.sketches[0].support()[1]
        except ValueError:
            return math.inf
        factors = self.factors
        w, V = np.linalg.eigh(self.L)
        root = (V * np.sqrt(np.maximum(w, 0.0))) @ V.T
        left = root if factors.left is None else root @ factors.left
        right = root if factors.right is None else factors.right @ root
        largest = 1.0
        for S in outcomes:
            step = (left * S if S.ndim == 1 else left @ S) @ right
            largest = max(largest, float(np.linalg.norm(np.eye(len(w)) - step, 2)) ** 2)
        return largest

    @cached_property
    def lambda_D(self) -> float:
        """λ_D of Theorem 3; 0 on one node."""
        if not isinstance(self.objective, Federated):
            return 0.0
        return largest_variance(self.factors, self.L, self.objective.client_smoothness(), self.sketches)


def moment_of(factors: Factors, L: Matrix, law: Callable[[Matrix], Matrix]) -> Matrix:
    """Return T(D) = E[GᵀLG] of G = A S B for ``law`` = 𝒫 of the sketch, the variance V(D) for ``law`` = 𝒞."""
    A, B = factors.left, factors.right
    inner = law(sym(L if A is None else A.T @ L @ A))
    return np.asarray(inner if B is None else B.T @ inner @ B)


def distributed_lambda(
    D: Matrix, L: Matrix, client_L: Sequence[Matrix], sketch: Sketch | Sequence[Sketch], algorithm: str | Method
) -> float:
    """Return λ_D of Theorem 3, or λ′_D of its analogue for det-CGD2.

        λ_D = maxᵢ λmax(Lᵢ^½ E[(Sᵢ−I) DLD (Sᵢ−I)] Lᵢ^½),
        λ′_D = maxᵢ λmax(Lᵢ^½ D E[(Tᵢ−I) L (Tᵢ−I)] D Lᵢ^½).

    Parameters
    ----------
    D : numpy.ndarray
        Stepsize matrix, shape (d, d).
    L : numpy.ndarray
        Smoothness matrix of f.
    client_L : sequence of numpy.ndarray
        Those of the clients.
    sketch : Sketch or sequence of Sketch
        The sketch, or one for each client.
    algorithm : str or Method
        Its variance V(D) stands between the roots of Lᵢ: 𝒞(DLD) for det-CGD1, D𝒞(L)D for det-CGD2.

    Raises
    ------
    ValueError
        For a matrix that is not symmetric or not finite, or sizes that do not fit.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK
    >>> from stepsize_validation import distributed_lambda
    >>> round(distributed_lambda(0.1 * np.eye(2), np.eye(2), [np.eye(2)], RandK(2, 1), "det-CGD1"), 6)
    0.01
    """
    D, L = dense(read_matrix("D", D)), dense(read_matrix("L", L))
    client_L = [dense(read_matrix(f"client_L[{i}]", Li)) for i, Li in enumerate(items("client_L", client_L))]
    for name, M in (("L", L), *((f"client_L[{i}]", Li) for i, Li in enumerate(client_L))):
        if M.shape != D.shape:
            msg = f"{name} is {len(M)}×{len(M)} but D is {len(D)}×{len(D)}"
            raise ValueError(msg)
    factors = get_method(algorithm).factors(D, lambda: L)
    return largest_variance(factors, L, client_L, sketch_of_each(sketch, len(client_L), len(D)))


def largest_variance(factors: Factors, L: Matrix, client_L: Sequence[Matrix], sketches: Sequence[Sketch]) -> float:
    """Return the largest λmax(Lᵢ^½ V(D) Lᵢ^½) of the clients."""
    inner: dict[Sketch, Matrix] = {}
    largest = 0.0
    for Li, one in zip(client_L, sketches, strict=True):
        if one not in inner:
            inner[one] = moment_of(factors, L, one.centered_second_moment)
        w, V = np.linalg.eigh(Li)
        root = (V * np.sqrt(np.maximum(w, 0.0))) @ V.T
        largest = max(largest, float(np.linalg.eigvalsh(root @ inner[one] @ root)[-1]))
    return largest
