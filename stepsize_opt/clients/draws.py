"""n clients with independent draws of k numbers each: the best draws for a stepsize, and a stepsize that suits them.

x⁺ = x − (1/n)ΣGᵢ∇fᵢ(x) with independent Gᵢ, E[Gᵢ] = D, obeys Theorem 3 of the paper with Vᵢ = E[GᵢᵀLGᵢ] − DLD.

*The best draws for D.*  A pair D, T ⪰ DLD is E[G], E[GᵀLG] of draws of expected rank k if and only if tr(LDT⁻¹D) ≤ k.
So client i reaches λ ≤ c with kᵢ numbers if and only if Σ_j α_ij/(α_ij + c) ≤ kᵢ, α_ij the eigenvalues of
Lᵢ^½ A Lᵢ^½, A = DLD: an effective dimension.  With L = RRᵀ, Lᵢ = HHᵀ and the singular value decomposition
RᵀDH = U Diag(√α) Wᵀ, direction a_j = R⁻ᵀu_j is drawn with probability h_j = α_j/(α_j + c), and client i sends
u_jᵀRᵀD∇fᵢ/h_j for the j that were drawn.

*A stepsize.*  The condition is not convex in A: Σα/(α + c) is concave.  Σα/(α + c) ≤ Σα/c gives the inner program
max log det A subject to ⟨Lᵢ, A⟩ ≤ kᵢ (c = 1), whose solution is (Σyᵢ Lᵢ)⁻¹ with n weights, a D-optimal design.  Scaled
up to the exact condition it is where tangents of the concave functions give the next inner program of the same kind;
each is feasible and no worse.  D = L⁻¹ # A, scaled by (12), its part beyond L⁻¹ cut off.

*What is proved.*  For the D returned, in exact arithmetic: D ⪯ L⁻¹ (or 2D − DLD ≻ 0), the rate, and that draws of k
numbers with λ ≤ ``lambda_D`` exist, so K.  tr(M(M + cI)⁻¹) = d − c tr((M + cI)⁻¹), and tr B⁻¹ ≥ 2 tr V − tr(VBV) for
every symmetric V.  The directions and probabilities are those draws to rounding, computed and not proved.  That D is
best is not claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.linalg import eigh, solve_triangular

from stepsize_opt.clients.reductions import read_smoothness
from stepsize_opt.clients.targets import Targets
from stepsize_opt.goals import CLIENT_GOALS, GoalName
from stepsize_opt.inputs import SMOOTHNESS_REMEDY, Immutable, check_one_of, check_positive_definite, is_list, read_only
from stepsize_opt.limit import read_budget
from stepsize_opt.proofs import Conditions, Pair, dominating_factor, exp_down, exponent_above, mean_of
from stepsize_opt.sketches import SystematicSampling
from stepsize_solvers.numerics import sym
from stepsize_solvers.programs import Matrix, Pattern, Vector

# The weights of a design are right to this share of log det/d, far below what the choice of D leaves open.
_DESIGN = 1e-4
_MOST_UPDATES = 300
# Inner programs, each from the tangents at the answer before, until log det/d gains less than _DESIGN.
_MOST_PROGRAMS = 12
# Halvings of the logarithm of a root that lies in an interval of a few units.
_HALVINGS = 60
# A proof gives way by this at first, then by four times as much; 2 % is a failure.
_FIRST_RETREAT, _LAST_RETREAT = 1e-13, 0.02
# Where D is cut off, next to L⁻¹: far enough for D ⪯ L⁻¹ to be proved.
_CUT = 1.0 - 1e-11
# Directions whose share of the variance is below this fraction of the largest carry nothing that a client would send.
_RANK_CUT = 1e-13


@dataclass(frozen=True, eq=False)
class ClientDraw:
    """How one client draws, sends and is heard: G = Σ_{j drawn} receive_j send_jᵀ/p_j.

    Attributes
    ----------
    send : numpy.ndarray
        Shape (d, r): the number for direction j is the inner product of column j with ∇fᵢ, divided by p_j.
    receive : numpy.ndarray
        Shape (d, r): the directions, L-orthonormal, along which the server adds the numbers.
    law : SystematicSampling
        Draws ⌊k⌋ or ⌈k⌉ of the r directions with the probabilities p.

    Examples
    --------
    See ``best_client_draws``.
    """

    send: Matrix
    receive: Matrix
    law: SystematicSampling

    def step(self, gradient: Vector, rng: np.random.Generator) -> Vector:
        """G∇fᵢ for a fresh draw."""
        return np.asarray(self.receive @ self.law.apply(self.send.T @ gradient, rng))


@dataclass(frozen=True, eq=False, repr=False)
class ClientDraws(Immutable):
    """A stepsize with the best draws of n clients, and the rounds that they are proved to need.

    Attributes
    ----------
    D : numpy.ndarray
        The stepsize matrix E[Gᵢ], d×d, read-only.
    K : int
        Rounds, proved by Corollary 1 of the paper with ``lambda_D`` and ``rate``.
    lambda_D : float
        Draws with this λ_D or less exist for D, proved.
    rate : float
        A proved lower bound on det(D)^{1/d}, or det(2D − DLD)^{1/d} for the goal ``descent``.
    goal : str
        ``condition`` or ``descent``.
    numbers : tuple of float
        kᵢ, what each client sends in a round, in expectation.
    draws : tuple of ClientDraw
        One for each client, computed in floating point.
    targets : Targets
        ε², Δ⁰, Δ^inf and n.

    Examples
    --------
    See ``best_client_draws``.
    """

    D: Matrix
    K: int
    lambda_D: float
    rate: float
    goal: str
    numbers: tuple[float, ...]
    draws: tuple[ClientDraw, ...]
    targets: Targets

    @property
    def communication(self) -> float:
        """Numbers sent by all clients in all K rounds, in expectation."""
        return self.K * math.fsum(self.numbers)

    def __repr__(self) -> str:
        rate = "det(H)^(1/d)" if self.goal == "descent" else "det(D)^(1/d)"
        return (
            f"ClientDraws(K={self.K}, proved for D; lambda_D={self.lambda_D:.6g}, {rate}={self.rate:.6g}, "
            f"{len(self.draws)} clients, at most {max(self.numbers):g} numbers each; draws computed, not proved)"
        )


def best_client_draws(
    smoothness: Sequence[Any],
    k: float | Sequence[float],
    *,
    epsilon2: float,
    initial_gap: float,
    delta_inf: float,
    mean_smoothness: Any = None,
    goal: GoalName = "paper",
) -> ClientDraws:
    """Draws of k numbers a client for n clients with independent seeds, a stepsize that suits them, and its K.

    Parameters
    ----------
    smoothness
        The clients' matrices L₁, …, L_n, each d×d symmetric positive semidefinite.
    k
        Numbers that a client sends in a round, in expectation, or one for each client.
    epsilon2, initial_gap, delta_inf, mean_smoothness, goal
        As in ``optimal_distributed_stepsize``.

    Returns
    -------
    ClientDraws with ``D``, ``K``, ``lambda_D``, ``rate`` and the ``draws`` of each client.

    Raises
    ------
    ValueError, TypeError
        For input that is not as described; the message names the argument.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import best_client_draws
    >>> clients = [np.diag([1.0, 2.0]), np.diag([3.0, 1.0])]
    >>> best_client_draws(clients, 1, epsilon2=1.0, initial_gap=1.0, delta_inf=0.5).K <= 306
    True
    """
    check_one_of("goal", goal, CLIENT_GOALS)
    matrices, mean = read_smoothness(smoothness, mean_smoothness)
    budgets = [read_budget(x, len(matrices[0])) for x in (k if is_list(k) else [k] * len(matrices))]
    if len(budgets) != len(matrices):
        msg = f"k must be one number or one for each of the {len(matrices)} clients, got {len(budgets)}"
        raise ValueError(msg)
    targets = Targets(epsilon2, initial_gap, delta_inf, len(matrices))
    L = mean_of(matrices) if mean is None else Pair.exact(mean)
    if mean is None:
        check_positive_definite("the mean of the clients' matrices", L.hi, SMOOTHNESS_REMEDY)
    factors = [dominating_factor(M) for M in matrices]
    d = len(L.hi)
    conditions = Conditions(L, (), True, Pattern.full(d), np.ones(d), metric=goal == "descent")
    plan = _Plan(conditions, targets, matrices, [H for H in factors if H is not None], budgets)
    return plan.answer(goal)


@dataclass(frozen=True, eq=False)
class _Plan:
    """The problem: L and the goal, the targets, Lᵢ with factors HHᵀ ⪰ Lᵢ, and kᵢ."""

    conditions: Conditions
    targets: Targets
    matrices: list[Matrix]
    factors: list[Matrix]
    budgets: list[float]

    def answer(self, goal: str) -> ClientDraws:
        R = np.linalg.cholesky(self.conditions.L.hi)
        # A shape that no client bounds in some directions may spread too far for a proof; L⁻¹ does not.
        for shape in (self.shape, self.inverse):
            nu, Q = eigh(sym(R.T @ shape() @ R))
            ray = _Ray(solve_triangular(R.T, Q, lower=False), np.sqrt(np.maximum(nu, 0.0)), self)
            log_s = ray.balanced()
            for _ in range(8):  # a proof that gives way may ask for one more round, and so for a smaller scale
                found = self._proved(ray.stepsize(log_s), goal)
                if found is not None:
                    return found
                log_s -= 1e-9
        msg = "the conditions could not be proved for the stepsize found; rescale the smoothness matrices towards one"
        raise RuntimeError(msg)

    def _proved(self, D: Matrix, goal: str) -> ClientDraws | None:
        """The answer for a multiple of D with a whole K; None when a proof fails."""
        targets, conditions = self.targets, self.conditions
        log_rate = conditions.log_rate(D)
        variance = self.variance(D)
        if log_rate is None or variance is None or not conditions.allows(D):
            return None
        K = targets.least_iterations(exp_down(log_rate))
        for more in (0, 1, 2, max(3, K >> 40)):
            allowed = targets.lambda_allowed(K + more, exp_down(log_rate))
            s = min(1.0, math.sqrt(allowed / variance)) if variance > 0.0 else 1.0
            smaller = np.asarray((1.0 - 2.0**-44) * s * D) if s < 1.0 else D
            rate, size = conditions.log_rate(smaller), self.variance(smaller)
            if rate is None or size is None or not conditions.allows(smaller):
                continue
            value = exp_down(rate)
            if size <= targets.lambda_allowed(K + more, value) and targets.enough(K + more, value):
                read_only(smaller)
                draws = tuple(self.draw(smaller, i) for i in range(len(self.matrices)))
                return ClientDraws(smaller, K + more, size, value, goal, tuple(self.budgets), draws, targets)
        return None

    # ---------------------------------------------------------------- the draws of a given D

    def variance(self, D: Matrix) -> float | None:
        """A proved λ: every client has draws of kᵢ numbers with E[G] = D and λ_D at most that; None without a proof."""
        exact = Pair.exact(D)
        A = exact @ (self.conditions.L @ exact)
        found = [_smallest(A, H, k) for H, k in zip(self.factors, self.budgets, strict=True)]
        proved = [c for c in found if c is not None]
        return max(proved) if len(proved) == len(found) else None

    def draw(self, D: Matrix, i: int) -> ClientDraw:
        """The draws of client i for the smallest λ that its numbers allow, in floating point."""
        R = np.linalg.cholesky(self.conditions.L.hi)
        U, sigma, _ = np.linalg.svd(R.T @ D @ self.factors[i], full_matrices=False)
        alpha = sigma**2  # which no choice of units changes
        keep = alpha > _RANK_CUT * alpha.max()
        U, alpha = U[:, keep], alpha[keep]
        if not alpha.size:  # a client without a loss sends nothing of use; one direction keeps the shapes
            U, alpha = np.eye(len(D))[:, :1], np.ones(1)
        own = _root(alpha, self.budgets[i])
        law = SystematicSampling(alpha / (alpha + own))
        return ClientDraw(D @ R @ U, solve_triangular(R.T, U, lower=False), law)

    # ---------------------------------------------------------------- a stepsize

    def inverse(self) -> Matrix:
        """L⁻¹, the shape without a client that bounds it."""
        return np.asarray(np.linalg.inv(self.conditions.L.hi), dtype=np.float64)

    def shape(self) -> Matrix:
        """A up to a factor: the inner program, then those of the tangents at its answers."""
        d = self.conditions.d
        # A share of L keeps the design regular where no client sees a direction.
        small = 1e-10 * self.conditions.L.hi
        pairs = zip(self.matrices, self.budgets, strict=True)
        bound = [(M + small, k) for M, k in pairs if np.linalg.matrix_rank(M) > k]
        if not bound:
            return self.inverse()
        A = _design([M / k for M, k in bound])
        best, value = A, -math.inf
        for _ in range(_MOST_PROGRAMS):
            spectra = [_spectrum(A, M) for M, _ in bound]
            top = max(_root(alpha, k) for (alpha, _), (_, k) in zip(spectra, bound, strict=True))
            if not top > 0.0:  # A is singular to rounding
                break
            A = A / top
            now = float(np.linalg.slogdet(A)[1]) / d
            if now > value:
                best, gain, value = A, now - value, now
                if gain < _DESIGN:
                    break
            tangents = []
            for M, k in bound:
                alpha, S = _spectrum(A, M)
                # B = S Diag(1/(1 + α)²) Sᵀ is the gradient of Σα/(1 + α), S Sᵀ = M.
                B = (S / (1.0 + alpha) ** 2) @ S.T
                room = k - float(np.sum(alpha / (1.0 + alpha))) + float(np.sum(alpha / (1.0 + alpha) ** 2))
                if not room > 0.0:  # k numbers carry nearly everything, and nothing is left to gain
                    return best
                tangents.append(sym(B) / room)
            try:
                A = _design(tangents)
            except np.linalg.LinAlgError:  # with k near d the tangents are nearly flat, and nothing is left to gain
                break
        return best


@dataclass(frozen=True, eq=False)
class _Ray:
    """D(s) = B Diag(min(s·x, 1)) Bᵀ with BᵀLB = I: multiples of a direction, cut off at L⁻¹."""

    B: Matrix
    x: Vector
    plan: _Plan

    def stepsize(self, log_s: float) -> Matrix:
        return sym((self.B * self._cut(log_s)) @ self.B.T)

    def _cut(self, log_s: float) -> Vector:
        top = float(self.x[-1])
        return np.maximum(np.minimum(math.exp(min(log_s + math.log(top), 700.0)) * (self.x / top), _CUT), 1e-300)

    def excess(self, log_s: float) -> float:
        """log λ − log(κ·rate) of D(s), −inf without variance."""
        plan, cut = self.plan, self._cut(log_s)
        turned = [self.B.T @ H for H in plan.factors]
        tops = [
            _root(np.asarray(np.linalg.svd(cut[:, None] * G, compute_uv=False), dtype=np.float64) ** 2, k)
            for G, k in zip(turned, plan.budgets, strict=True)
        ]
        if max(tops) <= 0.0 or not math.isfinite(plan.targets.log_kappa):
            return -math.inf
        log_L = float(np.linalg.slogdet(plan.conditions.L.hi)[1]) / len(cut)
        rate = np.log(2.0 * cut - cut * cut) if plan.conditions.metric else np.log(cut)
        return math.log(max(tops)) - plan.targets.log_kappa - float(np.mean(rate)) + log_L

    def balanced(self) -> float:
        """The largest log s with λ ≤ κ·rate, a little below; from there on all of D(s) is L⁻¹."""
        high = -math.log(max(float(self.x[0]), 1e-300))
        if self.excess(high) <= 0.0:
            return high - _FIRST_RETREAT
        low = -math.log(float(self.x[-1]))
        while self.excess(low) > 0.0:
            # λ falls with s², the rate with s.
            low -= max(1.0, self.excess(low))
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self.excess(middle) <= 0.0 else (low, middle)
        return low - 1e-11


def _spectrum(A: Matrix, M: Matrix) -> tuple[Vector, Matrix]:
    """α and S with S Sᵀ = M and SᵀAS = Diag(α)."""
    w, V = eigh(M)
    half = V * np.sqrt(np.maximum(w, 0.0))
    alpha, W = eigh(sym(half.T @ A @ half))
    return np.maximum(alpha, 0.0), half @ W


def _root(alpha: Vector, k: float) -> float:
    """The smallest c ≥ 0 with Σα/(α + c) ≤ k; 0 when k numbers carry everything."""
    alpha = alpha[alpha > 0.0]
    if alpha.size <= k:
        return 0.0
    # Σα/(α + c) ≤ min(Σα/c, number): between these the root of a convex decreasing function, in log c.
    low, high = math.log(float(alpha.min())) + math.log(alpha.size / k - 1.0), math.log(float(alpha.sum()) / k)
    low = min(low, high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if np.sum(alpha / (alpha + math.exp(middle))) <= k else (middle, high)
    return math.exp(high)


def _smallest(A: Pair, H: Matrix, k: float) -> float | None:
    """A c with tr(M(M + cI)⁻¹) ≤ k proved for M = HᵀAH, next to the smallest; None without a proof."""
    d = len(H)
    if k >= d:
        return 0.0
    exact = Pair.exact(H)
    M = exact.T @ (A @ exact)
    exponent = -exponent_above(M.hi)
    if exponent == 0 and not np.any(M.hi):
        return 0.0
    M = M.scaled(math.ldexp(1.0, exponent))
    c = _root(np.maximum(np.linalg.eigvalsh(sym(M.hi)), 0.0), k)
    retreat = _FIRST_RETREAT
    while retreat < _LAST_RETREAT:
        # Where kᵢ numbers carry all of M, c is 0: then the smallest that the rounding of M leaves is asked for.
        larger = c * (1.0 + retreat) + 1e-15 * (retreat / _FIRST_RETREAT)
        B = M + Pair.exact(larger * np.eye(d))
        V = sym(np.asarray(np.linalg.inv(sym(B.hi)), dtype=np.float64))
        product = Pair.exact(V) @ B
        above = product.inner_from_above(Pair.exact(V))
        trace = 2 * sum((Fraction(float(v)) for v in np.diagonal(V)), Fraction(0)) - Fraction(above)
        if d - Fraction(larger) * trace <= Fraction(k):
            return math.ldexp(larger, -exponent)
        retreat *= 4.0
    return None


def _design(matrices: Sequence[Matrix]) -> Matrix:
    """A of largest determinant with ⟨Mᵢ, A⟩ ≤ 1, up to 10⁻⁴ in log det A/d: multiplicative updates of the weights."""
    stack = np.array(matrices)
    n, d = len(stack), stack.shape[1]
    weights = np.full(n, 1.0 / n)
    for update in range(_MOST_UPDATES):
        inverse: Matrix = np.asarray(np.linalg.inv(sym(np.tensordot(weights, stack, axes=1))), dtype=np.float64)
        gains = np.einsum("nij,ij->n", stack, inverse)
        top = float(gains.max())
        if not 0.0 < top < math.inf:
            msg = "the matrices are singular to rounding"
            raise np.linalg.LinAlgError(msg)
        if top <= d * (1.0 + _DESIGN) or update == _MOST_UPDATES - 1:
            return sym(inverse) / top
        weights = weights * gains / d
        weights /= weights.sum()
    raise AssertionError  # the last update returns
