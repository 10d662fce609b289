"""The one translation of a :class:`LogDetProgram` into cvxpy, exact and DPP-compliant.

Two lifts make G(D) = C + aD + c det(D)^{1/d} E − 𝒬(DBD) ⪰ 0 a set of conic constraints.  Let B = HHᵀ.

*Compact lift, every map.*  𝒬 keeps the order, so D is feasible just when some symmetric Y has

    [ Y     D H ]
    [ HᵀD    I  ] ⪰ 0     (that is Y ⪰ DBD)      and      C + aD + c det(D)^{1/d} E − 𝒬(Y) ⪰ 0.

*Quadratic lift, 𝒬(M) = Diag(α ∘ diag M) + βM with α, β ≥ 0.*  With d extra variables t_j ≥ d_jᵀ B d_j (second-order
cones, d_j the columns of D) the Schur complement of the remaining βDBD gives

    [ C + aD + c det(D)^{1/d} E − Diag(α ∘ t)   √β D H ]
    [ √β HᵀD                                     I     ] ⪰ 0.

*Objective.*  With Δ lower triangular, [ D  Δ ; Δᵀ  Diag(δ) ] ⪰ 0, δ = diag Δ, holds just when Π δ_j ≤ det D is
attainable, so log det D is the largest Σ log δ_j (exponential cones) and det(D)^{1/d} the largest geometric mean of δ
(second-order cones).  Both have the same maximiser; the second serves solvers without an exponential cone.

The multiplier Z_j of G_j(D) ⪰ 0 is the dual of the last LMI, or its leading d×d block.

B, α, β, P, C and E enter as cvxpy parameters, so programs of the same shape are compiled once per solver.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from stepsize_solvers.programs import (
    BlockPattern,
    CongruenceSum,
    Constraint,
    Layered,
    LogDetProgram,
    Matrix,
    PositiveMap,
    ScaledPlusTrace,
    UnsupportedProgram,
    block_slices,
)


class Lift(Enum):
    """How the quadratic term becomes conic."""

    COMPACT = "compact"
    QUADRATIC = "quadratic"


class Objective(Enum):
    """Which of two equivalent objectives is maximised."""

    LOG_DET = "log_det"
    ROOT_DET = "root_det"


def choose_lift(program: LogDetProgram, requested: str = "auto") -> Lift:
    """The quadratic lift where it applies, otherwise the compact one; a request that does not apply is an error."""
    if requested == "auto":
        return Lift.QUADRATIC if program.quadratic_lift_applies else Lift.COMPACT
    lift = Lift(requested)
    if lift is Lift.QUADRATIC and not program.quadratic_lift_applies:
        msg = "the quadratic lift needs 𝒬(M) = Diag(α∘diag M) + βM with α, β ≥ 0; use lift='compact'"
        raise UnsupportedProgram(msg)
    return lift


@dataclass(eq=False)
class ConicModel:
    """A compiled cvxpy problem with slots for the data of programs of one shape."""

    problem: Any
    D: Any
    lmis: tuple[Any, ...]
    slots: tuple[dict[str, Any], ...]
    lift: Lift
    d: int

    def load(self, program: LogDetProgram) -> None:
        """Put the numbers of ``program`` into the parameters."""
        for con, slot in zip(program.constraints, self.slots, strict=True):
            for name, value in _slot_values(con, self.lift).items():
                slot[name].value = value

    def duals(self) -> tuple[Matrix, ...]:
        """One multiplier Z_j for each constraint; zeros where the solver returned none."""
        out = []
        for lmi in self.lmis:
            value = lmi.dual_value
            Z = np.zeros((self.d, self.d)) if value is None else np.asarray(value, dtype=float)[: self.d, : self.d]
            out.append(0.5 * (Z + Z.T))
        return tuple(out)


def square_root_factor(B: Matrix) -> Matrix:
    """H with HHᵀ = B for a PSD matrix B, by its eigendecomposition (works for a singular B)."""
    w, V = np.linalg.eigh(B)
    return np.asarray(V * np.sqrt(np.maximum(w, 0.0)))


def _slot_values(con: Constraint, lift: Lift) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if con.C is not None:
        values["C"] = con.C
    if con.E is not None and con.c != 0.0:
        values["cE"] = con.c * con.E
    if con.Q is None or con.B is None:
        return values
    H = square_root_factor(con.B)
    values["H"] = H
    if lift is Lift.QUADRATIC:
        alpha, beta = con.Q.alpha, con.Q.beta  # type: ignore[attr-defined]  # checked by choose_lift
        values["alpha"] = alpha
        values["root_beta_H"] = np.sqrt(beta) * H
    else:
        P = con.Q.hadamard_matrix
        if P is not None:
            values["P"] = P
    return values


def _shape_key(program: LogDetProgram, lift: Lift, objective: Objective) -> tuple[Any, ...] | None:
    """What two programs must share to use the same compiled model; None when the model holds constants."""
    if not isinstance(program.pattern, BlockPattern):
        return None
    parts: list[Any] = [program.pattern.sizes, lift, objective]
    for con in program.constraints:
        if lift is Lift.COMPACT and con.Q is not None and con.Q.hadamard_matrix is None:
            return None
        parts.append((con.Q is not None, con.a, con.C is not None, con.E is not None and con.c != 0.0))
    return tuple(parts)


class _Models(threading.local):
    """The compiled models of recent shapes.  A model holds the data of one solve, so each thread has its own."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[Any, ...], ConicModel] = OrderedDict()


_MODELS = _Models()
_MODELS_KEPT = 16  # each holds O(d³) numbers
# cvxpy numbers its variables with a counter of the process: expressions are built and compiled by one thread at a time.
COMPILING = threading.RLock()


def conic_model(program: LogDetProgram, lift: Lift, objective: Objective) -> tuple[ConicModel, bool]:
    """This thread's model loaded with the program, and whether it was compiled before."""
    key = _shape_key(program, lift, objective)
    kept = _MODELS.kept
    model = kept.get(key) if key is not None else None
    known = model is not None
    if model is None:
        with COMPILING:
            model = _build(program, lift, objective)
    if key is not None:
        kept[key] = model
        kept.move_to_end(key)
        while len(kept) > _MODELS_KEPT:
            kept.popitem(last=False)
    model.load(program)
    return model, known


def forget_models() -> None:
    """Drop this thread's compiled models, so that its next solve compiles again."""
    _MODELS.kept.clear()


def _build(program: LogDetProgram, lift: Lift, objective: Objective) -> ConicModel:
    import cvxpy as cp

    d = program.d
    D, pivots, constraints = stepsize_variable(program)
    root_det = None
    if objective is Objective.ROOT_DET or any(con.c != 0.0 for con in program.constraints):
        root_det = cp.geo_mean(pivots)
    lmis: list[Any] = []
    slots: list[dict[str, Any]] = []
    for con in program.constraints:
        slot: dict[str, Any] = {}
        G = con.a * D
        if con.C is not None:
            slot["C"] = cp.Parameter((d, d), symmetric=True)
            G = G + slot["C"]
        if con.E is not None and con.c != 0.0:
            # det(D)^{1/d} enters through a variable below it, because a parameter times a concave atom is not DPP.
            tau = cp.Variable(nonneg=True)
            constraints.append(tau <= root_det)
            slot["cE"] = cp.Parameter((d, d), symmetric=True)
            G = G + tau * slot["cE"]
        if con.Q is not None:
            slot["H"] = cp.Parameter((d, d))
            if lift is Lift.QUADRATIC:
                G, extra = _quadratic_lift(D, G, slot, d)
            else:
                G, extra = _compact_lift(D, G, slot, con.Q)
            constraints.extend(extra)
        lmi = G >> 0
        constraints.append(lmi)
        lmis.append(lmi)
        slots.append(slot)
    goal = root_det if objective is Objective.ROOT_DET else cp.sum(cp.log(pivots))
    problem = cp.Problem(cp.Maximize(goal), constraints)
    return ConicModel(problem, D, tuple(lmis), tuple(slots), lift, d)


def _compact_lift(D: Any, G: Any, slot: dict[str, Any], Q: PositiveMap) -> tuple[Any, list[Any]]:
    import cvxpy as cp

    d = Q.d
    Y = cp.Variable((d, d), symmetric=True)
    DH = D @ slot["H"]
    schur = cp.bmat([[Y, DH], [DH.T, np.eye(d)]]) >> 0
    return G - _parametrised_map(Q, Y, slot), [schur]


def _parametrised_map(Q: PositiveMap, Y: Any, slot: dict[str, Any]) -> Any:
    """𝒬(Y) as a cvxpy expression; the entrywise maps take their matrix P from a parameter."""
    import cvxpy as cp

    if Q.hadamard_matrix is not None:
        slot["P"] = cp.Parameter((Q.d, Q.d), symmetric=True)
        return cp.multiply(slot["P"], Y)
    return map_expression(Q, Y)


def map_expression(Q: PositiveMap, Y: Any) -> Any:
    """𝒬(Y) as a cvxpy expression with constant coefficients."""
    import cvxpy as cp

    P = Q.hadamard_matrix
    if P is not None:
        return cp.multiply(P, Y)
    if isinstance(Q, ScaledPlusTrace):
        return Q.a * Y + Q.b * cp.trace(Y) * np.eye(Q.d)
    if isinstance(Q, CongruenceSum):
        return sum(w * (S @ Y @ S.T) for w, S in zip(Q.weights, Q.matrices, strict=True))
    if isinstance(Q, Layered):
        slices = block_slices([layer.d for layer in Q.layers])
        rows = [
            [map_expression(Q.layers[i], Y[s, s]) if i == j else Q.between * Y[s, t] for j, t in enumerate(slices)]
            for i, s in enumerate(slices)
        ]
        return cp.bmat(rows)
    msg = f"no cvxpy expression for a map of type {type(Q).__name__}"
    raise UnsupportedProgram(msg)


def _quadratic_lift(D: Any, G: Any, slot: dict[str, Any], d: int) -> tuple[Any, list[Any]]:
    import cvxpy as cp

    slot["alpha"] = cp.Parameter(d, nonneg=True)
    slot["root_beta_H"] = cp.Parameter((d, d))
    t = cp.Variable(d)
    HD = slot["H"].T @ D
    # t_j ≥ ‖Hᵀd_j‖²  ⟺  ‖(2Hᵀd_j, t_j − 1)‖ ≤ t_j + 1
    cones = cp.SOC(t + 1, cp.vstack([2 * HD, cp.reshape(t - 1, (1, d), order="C")]), axis=0)
    DH = D @ slot["root_beta_H"]
    block = cp.bmat([[G - cp.diag(cp.multiply(slot["alpha"], t)), DH], [DH.T, np.eye(d)]])
    return block, [cones]


def stepsize_variable(program: LogDetProgram) -> tuple[Any, Any, list[Any]]:
    """D as an expression with its pattern, pivots δ > 0 with Π δ ≤ det D attainable, and their constraints."""
    import cvxpy as cp

    pattern = program.pattern
    if not isinstance(pattern, BlockPattern):
        blocks = block_slices(pattern.sizes)
        factors = [cp.Variable(nonneg=True) for _ in blocks]
        D = sum(factor * _padded(pattern.W, s) for factor, s in zip(factors, blocks, strict=True))
        # log det(γᵢWᵢ) = dᵢ log γᵢ + const, so γᵢ repeated dᵢ times has the right geometric mean up to a constant.
        roots = [np.exp(np.linalg.slogdet(pattern.W[s, s])[1] / (s.stop - s.start)) for s in blocks]
        repeated = [root * f * np.ones(s.stop - s.start) for root, f, s in zip(roots, factors, blocks, strict=True)]
        return D, cp.hstack(repeated), []
    if max(pattern.sizes) == 1:
        x = cp.Variable(pattern.d, nonneg=True)
        return cp.diag(x), x, []
    diagonal_blocks: list[Any] = []
    pivots: list[Any] = []
    constraints: list[Any] = []
    for size in pattern.sizes:
        block = cp.Variable((size, size), symmetric=True)
        delta = cp.Variable(size)
        strict_part = cp.Variable(size * (size - 1) // 2) if size > 1 else None
        lower = cp.diag(delta)
        if strict_part is not None:
            lower = lower + _strictly_lower(strict_part, size)
        constraints.append(cp.bmat([[block, lower], [lower.T, cp.diag(delta)]]) >> 0)
        diagonal_blocks.append(block)
        pivots.append(delta)
    if pattern.is_full:
        return diagonal_blocks[0], pivots[0], constraints
    rows = [
        [diagonal_blocks[i] if i == j else np.zeros((a, b)) for j, b in enumerate(pattern.sizes)]
        for i, a in enumerate(pattern.sizes)
    ]
    return cp.bmat(rows), cp.hstack(pivots), constraints


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
