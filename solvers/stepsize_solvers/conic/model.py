"""The one translation of a ``Program`` into cvxpy, exact.

Write F_j(X) = (c + eτ) I + aX − H_jᵀ 𝒬(φ(X)) H_j.  A linear family, φ(X) = X, is an LMI as it stands.  For φ(X) = XBX
with B = EEᵀ there are three exact forms.

*Compact lift, every map.*  𝒬 keeps the order, so X is feasible if and only if some symmetric Y has

    [ Y     X E ]
    [ EᵀX    I  ] ⪰ 0     (that is Y ⪰ XBX)      and      (c + eτ) I + aX − H_jᵀ 𝒬(Y) H_j ⪰ 0.

*Quadratic lift, H = I and 𝒬(M) = Diag(α ∘ diag M) + βM with α, β ≥ 0.*  With d extra variables t_j ≥ x_jᵀ B x_j
(second-order cones, x_j the columns of X) the Schur complement of the remaining βXBX gives

    [ (c + eτ) I + aX − Diag(α ∘ t)   √β X E ]
    [ √β EᵀX                            I    ] ⪰ 0.

*Schur complement, 𝒬 the identity.*  [ (c + eτ) I, H_jᵀXE ; EᵀXH_j, I ] ⪰ 0 beside factors; with H = I it is the
quadratic lift without α.

*Objective.*  With Δ lower triangular, [ X  Δ ; Δᵀ  Diag(δ) ] ⪰ 0, δ = diag Δ, holds if and only if Π δ_j ≤ det X is
attainable, so log det X is the largest Σ log δ_j (exponential cones) and det(X)^{1/d} the largest geometric mean of δ
(second-order cones).  Both have the same maximiser; the second serves solvers without an exponential cone.
τ = (det X)^{1/root} e^{−offset/root} is bounded above by a power of that geometric mean.  The same pivots of the matrix
G = aX − 𝒬(Y), with Y of the compact lift, serve log det G(X); the largest t with G(X) ⪰ t·E is a variable.

The multiplier Z_j of F_j(X) ⪰ 0 is the dual of its LMI, or the leading block of it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from stepsize_solvers.programs import Family, Matrix, Pattern, Program, Stack, UnsupportedProgram


class Lift(Enum):
    """How a quadratic term becomes conic."""

    COMPACT = "compact"
    QUADRATIC = "quadratic"


class Objective(Enum):
    """Which of two equivalent objectives is maximised."""

    LOG_DET = "log_det"
    ROOT_DET = "root_det"


def choose_lift(program: Program, requested: str = "auto") -> Lift:
    """The quadratic lift where it applies, otherwise the compact one; a request that does not apply is an error."""
    applies = program.objective is None and all(_has_quadratic_lift(family) for family in program.families)
    if requested == "auto":
        return Lift.QUADRATIC if applies else Lift.COMPACT
    lift = Lift(requested)
    if lift is Lift.QUADRATIC and not applies:
        msg = "the quadratic lift needs 𝒬(M) = Diag(α∘diag M) + βM with α, β ≥ 0, and log det X; use lift='compact'"
        raise UnsupportedProgram(msg)
    return lift


def _has_quadratic_lift(family: Family) -> bool:
    split = family.Q.diagonal_plus_scaled
    if family.B is None or family.factors is not None or split is None:
        return False
    return split.beta >= 0.0 and bool(np.all(split.alpha >= 0.0))


@dataclass(frozen=True, eq=False)
class ConicModel:
    """A cvxpy problem.

    lmis: for each family its inequalities, one for each factor; metric: the inequality whose multiplier, or the leading
    block of it, is Y of the objective's metric, None without one.
    """

    problem: Any
    X: Any
    lmis: tuple[tuple[Any, ...], ...]
    metric: Any = None

    def duals(self, program: Program) -> tuple[Stack, ...]:
        """The multipliers of each family, shape (n, r, r), and of the metric; zeros where the solver returned none."""
        out = [_multipliers(lmis, family.rows) for family, lmis in zip(program.families, self.lmis, strict=True)]
        if self.metric is not None:
            out.append(_multipliers((self.metric,), program.d))
        return tuple(out)


def _multipliers(lmis: Sequence[Any], rows: int) -> Stack:
    """The leading blocks of the multipliers of some inequalities, one stack."""
    Z = np.zeros((len(lmis), rows, rows))
    for i, lmi in enumerate(lmis):
        if lmi.dual_value is not None:
            value = np.asarray(lmi.dual_value, dtype=float)[:rows, :rows]
            Z[i] = 0.5 * (value + value.T)
    return Z


def square_root_factor(B: Matrix) -> Matrix:
    """E with EEᵀ = B for a PSD matrix B, by its eigendecomposition (works for a singular B)."""
    w, V = np.linalg.eigh(B)
    return np.asarray(V * np.sqrt(np.maximum(w, 0.0)))


# cvxpy numbers its variables with a counter of the process: expressions are built and compiled by one thread at a time.
COMPILING = threading.RLock()


def conic_model(program: Program, lift: Lift, objective: Objective = Objective.LOG_DET) -> ConicModel:
    """The cvxpy problem of a program."""
    with COMPILING:
        return _build(program, lift, objective)


def _build(program: Program, lift: Lift, objective: Objective) -> ConicModel:
    import cvxpy as cp

    X, pivots, constraints = matrix_variable(program.pattern)
    metric, t = None, cp.Variable()
    if program.objective is not None:
        if not any(family.e for family in program.families):
            constraints = []  # nobody asks for the pivots of X
        left = program.objective.left
        (G,) = _inequalities(left, X, None, lift, constraints, metric=True)
        if program.objective.floor is not None:
            metric = G - t * program.objective.floor >> 0
            constraints.append(metric)
        else:
            pivots, more = _pivots(G)
            metric = more[0]
            constraints.extend(more)
    root_det = cp.geo_mean(pivots)
    tau = None
    if any(family.e for family in program.families):
        power = cp.power(root_det, program.power) if program.power < 1.0 else root_det
        tau = cp.Variable(nonneg=True)
        constraints.append(tau <= math.exp(-program.offset / program.root) * power)
    lmis = []
    for family in program.families:
        parts = _inequalities(family, X, tau, lift, constraints)
        lmis.append(tuple(part >> 0 for part in parts))
        constraints.extend(lmis[-1])
    if program.objective is not None and program.objective.floor is not None:
        goal = t
    else:
        goal = root_det if objective is Objective.ROOT_DET else cp.sum(cp.log(pivots))
    return ConicModel(cp.Problem(cp.Maximize(goal), constraints), X, tuple(lmis), metric)


def _inequalities(
    family: Family, X: Any, tau: Any, lift: Lift, constraints: list[Any], metric: bool = False
) -> list[Any]:
    """The expressions F_j(X), or the larger matrices whose Schur complements they are; more constraints are added.

    For a metric it is F(X) itself, or a matrix below it that may reach it.
    """
    import cvxpy as cp

    d, r = family.Q.d, family.rows
    right: Any = family.a * X if family.a else np.zeros((r, r))
    if family.c:
        right = right + family.c * np.eye(r)
    if family.e:
        right = right + (family.e * tau) * np.eye(r)
    split, E = family.Q.diagonal_plus_scaled, None if family.B is None else square_root_factor(family.B)
    if E is None:
        image = family.Q.expression(X)
    elif lift is Lift.QUADRATIC and split is not None:
        t = cp.Variable(d)
        # t_j ≥ ‖Eᵀx_j‖²  ⟺  ‖(2Eᵀx_j, t_j − 1)‖ ≤ t_j + 1
        constraints.append(cp.SOC(t + 1, cp.vstack([2 * E.T @ X, cp.reshape(t - 1, (1, d), order="C")]), axis=0))
        return [_schur(right - cp.diag(cp.multiply(split.alpha, t)), X @ (np.sqrt(split.beta) * E))]
    elif family.is_plain and not metric:
        XE = X @ E
        return [_schur(right, XE)] if family.factors is None else [_schur(right, H.T @ XE) for H in family.factors]
    else:
        Y = cp.Variable((d, d), symmetric=True)
        constraints.append(_schur(Y, X @ E) >> 0)
        image = family.Q.expression(Y)
    if family.factors is None:
        return [right - image]
    parts = [right - H.T @ image @ H for H in family.factors]
    return [0.5 * (part + part.T) for part in parts]


def _schur(A: Any, B: Any) -> Any:
    """[ A, B ; Bᵀ, I ], positive semidefinite if and only if A ⪰ BBᵀ."""
    import cvxpy as cp

    return cp.bmat([[A, B], [B.T, np.eye(B.shape[1])]])


def matrix_variable(pattern: Pattern) -> tuple[Any, Any, list[Any]]:
    """X as an expression with its pattern, pivots δ > 0 with Π δ ≤ det X attainable, and their constraints."""
    import cvxpy as cp

    if pattern.W is not None:
        factors = [cp.Variable(nonneg=True) for _ in pattern.slices]
        X = sum(factor * _padded(pattern.W, s) for factor, s in zip(factors, pattern.slices, strict=True))
        # log det(γᵢWᵢ) = dᵢ log γᵢ + const, so γᵢ repeated dᵢ times has the right geometric mean.
        repeated = []
        for factor, s, size in zip(factors, pattern.slices, pattern.sizes, strict=True):
            root = np.exp(np.linalg.slogdet(pattern.W[s, s])[1] / size)
            repeated.append(root * factor * np.ones(size))
        return X, cp.hstack(repeated), []
    if pattern.is_diagonal:
        x = cp.Variable(pattern.d, nonneg=True)
        return cp.diag(x), x, []
    diagonal_blocks = [cp.Variable((size, size), symmetric=True) for size in pattern.sizes]
    found = [_pivots(block) for block in diagonal_blocks]
    pivots = [delta for delta, _ in found]
    constraints = [constraint for _, more in found for constraint in more]
    if pattern.is_full:
        return diagonal_blocks[0], pivots[0], constraints
    rows = [
        [diagonal_blocks[i] if i == j else np.zeros((a, b)) for j, b in enumerate(pattern.sizes)]
        for i, a in enumerate(pattern.sizes)
    ]
    return cp.bmat(rows), cp.hstack(pivots), constraints


def _pivots(G: Any) -> tuple[Any, list[Any]]:
    """Pivots δ > 0 with Π δ ≤ det G attainable for a symmetric expression G, and their one constraint."""
    import cvxpy as cp

    size = G.shape[0]
    delta = cp.Variable(size)
    lower = cp.diag(delta)
    if size > 1:
        lower = lower + _strictly_lower(cp.Variable(size * (size - 1) // 2), size)
    return delta, [cp.bmat([[G, lower], [lower.T, cp.diag(delta)]]) >> 0]


def _strictly_lower(entries: Any, size: int) -> Any:
    """A strictly lower triangular matrix from a vector of its entries, as one sparse product."""
    import cvxpy as cp
    from scipy.sparse import csr_array

    rows, cols = np.tril_indices(size, -1)
    place = csr_array((np.ones(rows.size), (rows + size * cols, np.arange(rows.size))), shape=(size**2, rows.size))
    return cp.reshape(place @ entries, (size, size), order="F")


def _padded(W: Matrix, s: slice) -> Matrix:
    out = np.zeros_like(W)
    out[s, s] = W[s, s]
    return out
