"""cD − 𝒫(DLD) for L = Diag(s) + UUᵀ and D = Diag(a) ± VVᵀ with thin U (d×r) and V (d×m), by small matrices.

𝒫(M) = Diag(α∘diag M + b tr M) + βM.  c = 1 is the paper's condition, c = 2 the descent metric H.  With X = Diag(a∘s)V,
the rows w of DU and T = VᵀDiag(s)V,

    DLD = Diag(a²∘s) ± XVᵀ ± VXᵀ + VTVᵀ + (DU)(DU)ᵀ,      (DLD)_jj = a_j²s_j ± 2a_js_j‖v_j‖² + v_jᵀTv_j + ‖w_j‖²,

and cD − 𝒫(DLD) = Diag(δ) + W K Wᵀ with δ = ca − α∘diag(DLD) − b tr(DLD) − β a²∘s.  For any number κ and matrix N,
with X̃ = X − κV, Z = Diag(a)U − VN and B = N ± VᵀU, so that DU = Z + VB,

    W = [V  X̃  Z],      K = [±(c − 2βκ)I − βT − βBBᵀ  ∓βI  −βB;  ∓βI  0  0;  −βBᵀ  0  −βI].

κ and N that make X̃ and Z small keep columns that nearly depend on each other from making G = WᵀDiag(δ)⁻¹W singular.
Let δ > 0 and CCᵀ = G + F with F ⪰ 0.  The matrix is positive definite when I + CᵀKC is, and

    log det ≥ Σ log δ_j + log det(I + CᵀKC) − tr(F K₊).

*Proof.*  Add rows F^½ to W and ones to δ.  What belongs to W then is CCᵀ, the determinant is Π δ_j det(I + CᵀKC), and
the matrix in question is a principal block; the block next to it is I + F^½KF^½, and det of the whole is at most the
product of the two (Fischer).  ∎  Rows with δ_j ≤ 0, of which a positive definite matrix has no more than W has columns,
count as δ_j = θ_j > 0, with a column √(θ_j − δ_j) e_j of W more and −1 in K for it.

*Bound for every D.*  For Y = Diag(η) + ZZᵀ, R = 𝒫*(Y) and any D, log det H ≤ ⟨Y, H⟩ − d − log det Y, and
2⟨Y, D⟩ − ⟨R, DLD⟩ ≤ tr(YR⁻¹YL⁻¹) =: q because 2⟨Y, D⟩ = 2⟨R^{−½}YL^{−½}, R^½DL^½⟩.  Over multiples of Y

    log det H ≤ d log(q/d) − log det Y.

Every number comes with a bound on its rounding, and what is proved holds for the very floats of a, V, s and U.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack

from stepsize_opt.proofs.arithmetic import Enclosed, enclosed, sum_of_logs
from stepsize_opt.proofs.cholesky import cholesky_shift, is_proved_definite, log_det_from_above, log_det_from_below
from stepsize_opt.proofs.grams import GramSum, chunks, weighted_gram
from stepsize_opt.proofs.intervals import Interval
from stepsize_opt.proofs.roundings import power_of_two_scaling, twice_gamma
from stepsize_opt.proofs.thin import in_range
from stepsize_solvers.programs import Matrix, Vector, add_to_diagonal

# The error of a column of W, after scaling; that of its products with the others is about as large.
_SMALLEST_ERROR = 2.0**-40


@dataclass(frozen=True, eq=False)
class ThinStepsize:
    """D = Diag(a) + sign·VVᵀ with a > 0, V (d×m) and a sign of ±1."""

    a: Vector
    V: Matrix
    sign: float

    def log_det(self) -> Interval | None:
        """Return log det D = Σ log a + log det(I ± VᵀDiag(1/a)V); None unless D ≻ 0 is proved."""
        if not (in_range(self.a, self.V) and self.a.min() > 0.0):
            return None
        inner = (self.sign * weighted_gram(self.V, 1.0 / self.a)).plus_diagonal(1.0)
        below, above = log_det_from_below(inner), log_det_from_above(inner)
        return None if below is None or above is None else sum_of_logs(self.a) + Interval(below, above)


@dataclass(frozen=True, eq=False)
class _Stretch:
    """Some rows: which, a and s of them, V and U, and (DLD)_jj."""

    part: slice
    a: Vector
    s: Vector
    V: Enclosed
    U: Matrix
    energy: Enclosed


@dataclass(frozen=True, eq=False)
class ThinMetric:
    """s and U of L; α, β and b of 𝒫 from below (``low``) and from above (``high``)."""

    s: Vector
    U: Matrix
    low: tuple[Vector, float, float]
    high: tuple[Vector, float, float]

    @staticmethod
    def of(s: Vector, U: Matrix, alpha: Vector, beta: float, trace: float, roundings: int) -> ThinMetric:
        """Return the metric for coefficients of which α + β, β and b went through so many roundings."""
        doubt = twice_gamma(roundings + 4)
        slack = doubt * (alpha + 2.0 * beta)
        low = (np.maximum(alpha - slack, 0.0), beta * (1.0 - doubt), trace * (1.0 - doubt))
        return ThinMetric(s, U, low, (alpha + slack, beta * (1.0 + doubt), trace * (1.0 + doubt)))

    def _stretches(self, D: ThinStepsize, T: Enclosed, cross: Enclosed) -> Iterator[_Stretch]:
        """Yield all rows, a few at a time; T = VᵀDiag(s)V, cross = VᵀU."""
        for part in chunks(len(D.a)):
            V, U, a, s = enclosed(D.V[part]), self.U[part], D.a[part], self.s[part]
            image = enclosed(a[:, None]) * U + D.sign * (V @ cross)
            diagonal = enclosed(a) * s * (a + 2.0 * D.sign * V.row_products(V))
            energy = diagonal + (V @ T).row_products(V) + image.row_products(image)
            yield _Stretch(part, a, s, V, U, energy)

    def log_det(self, D: ThinStepsize, c: float) -> float | None:
        """Return log det(cD − 𝒫(DLD)) from below; None when the matrix is not proved positive definite."""
        if not in_range(D.a, D.V, self.U, self.s):
            return None
        alpha, beta, trace = self.high
        T, cross = weighted_gram(D.V, self.s), weighted_gram(D.V, None, self.U)
        shift = 0.0
        if trace > 0.0:
            energy = Interval.total(rows.energy.total() for rows in self._stretches(D, T, cross))
            shift = (trace * energy).high
        mean, N = float((D.a * self.s).mean()), _projection(D, cross.value)
        m, r = N.shape
        gram, logs = GramSum.of_size(2 * m + r), [Interval.exact(0.0)]
        sides: list[Enclosed] = []
        corner: list[Enclosed] = []
        for rows in self._stretches(D, T, cross):
            a, s = rows.a, enclosed(rows.s)
            delta = (c * a - alpha[rows.part] * rows.energy - beta * (s * a * a) - shift).low
            small = (a * s - mean)[:, None] * rows.V
            W = Enclosed.side_by_side([rows.V, small, enclosed(a[:, None]) * rows.U - rows.V @ N])
            low = np.flatnonzero(~(delta > 0.0))
            if low.size > 0:
                # θ in the place of δ, and √(θ − δ)e_j as a column of W more.
                theta = c * a[low]
                drop = theta - enclosed(delta[low])
                delta[low] = theta
                sides.append(W[low] * (drop.sqrt() / theta)[:, None])
                corner.append(drop / theta)
                if not sum(len(side.value) for side in sides) <= 2 * m + r:
                    return None
            gram.add(W, delta)
            logs.append(sum_of_logs(delta))
        K = self._middle(T, N + D.sign * cross, mean, D.sign, c)
        # Columns that are little more than their error are made so small that it does not matter.
        G, sizes = gram.enclosed(), np.maximum(gram.norms, gram.apart / _SMALLEST_ERROR)
        if sides:
            side, own = Enclosed.side_by_side([part.T for part in sides]), Enclosed.side_by_side(corner)
            G = Enclosed.symmetric_blocks(G, side, own[:, None] * np.eye(len(own.value)))
            K = Enclosed.symmetric_blocks(K, side * 0.0, enclosed(-np.eye(len(own.value))))
            sizes = np.append(sizes, np.sqrt(own.value))
        found = _small_part(G, K, sizes)
        return None if found is None else Interval.total([*logs, found]).low

    def quotient(self, D: ThinStepsize, z: Vector) -> float:
        """Return zᵀ𝒫(DLD)z/zᵀDz from below, for b = 0: γ𝒫(DLD) ⪯ D needs γ ≤ 1/quotient.  0 without a proof."""
        if not (in_range(D.a, D.V, self.U, self.s, z) and self.high[2] == 0.0):
            return 0.0
        (alpha, beta, _), exact = self.low, enclosed(z)
        inner = D.V.T @ exact
        below = (D.a * exact).inner(exact) + D.sign * inner.inner(inner)  # zᵀDz = Σ a z² ± ‖Vᵀz‖²
        T, cross = weighted_gram(D.V, self.s), weighted_gram(D.V, None, self.U)
        # Σ α_j (DLD)_jj z_j², and zᵀDLDz = Σ s y² + ‖Uᵀy‖² for y = Dz
        own = Interval.total(
            (alpha[rows.part] * rows.energy * exact[rows.part]).inner(exact[rows.part])
            for rows in self._stretches(D, T, cross)
        )
        y = D.a * exact + D.sign * (D.V @ inner)
        image = self.U.T @ y
        above = own + beta * ((self.s * y).inner(y) + image.inner(image))
        return (max(above.low, 0.0) / below).low if below.low > 0.0 else 0.0

    def _middle(self, T: Enclosed, B: Enclosed, mean: float, sign: float, c: float) -> Enclosed:
        """Return K."""
        (m, r), beta = B.value.shape, self.high[1]
        first = (T + B @ B.T).plus_diagonal(2.0 * sign * mean)
        side = Enclosed.side_by_side([enclosed(-sign * beta * np.eye(m)), -beta * B])
        rest = np.diag(np.repeat([0.0, -beta], [m, r]))
        return Enclosed.symmetric_blocks((-beta * first).plus_diagonal(sign * c), side, enclosed(rest)).symmetric()

    def bound(self, eta: Vector, Z: Matrix) -> float:
        """Return the bound of Y = Diag(η) + ZZᵀ on log det H over all D, for b = 0; +inf when it is not proved."""
        if not (in_range(eta, Z) and eta.min() > 0.0 and self.high[2] == 0.0):
            return math.inf
        alpha, beta, _ = self.low
        # R and L may be made smaller: 1/ρ and 1/s are rounded up.
        rho = (alpha * (eta + enclosed(Z).row_products(Z)) + beta * enclosed(eta)).low
        if not rho.min() > 0.0:
            return math.inf
        p, t = (1.0 / enclosed(rho)).high, (1.0 / enclosed(self.s)).high
        # Both matrices are R⁻¹-weighted: Z̃ = Diag(η∘p)Z is Z with other weights in what follows.
        ratio = eta * p
        S, M0, M1, M2, inner = (weighted_gram(Z, w) for w in (p, t, t * ratio, t * ratio * ratio, 1.0 / eta))
        J0, J3 = weighted_gram(self.U, t), weighted_gram(self.U, t * t * ratio * eta)
        J1, J2 = weighted_gram(self.U, t, Z), weighted_gram(self.U, t * ratio, Z)
        log_det = log_det_from_below(inner.plus_diagonal(1.0))
        Q, B = _inverse_of_more_than_one(S * beta), _inverse_of_more_than_one(J0)
        if log_det is None or Q is None or B is None:
            return math.inf
        # tr(YR⁻¹YL⁻¹) with R⁻¹Z = Diag(p)ZQ and L⁻¹ = Diag(t) − Diag(t)UBUᵀDiag(t)
        A0, A1, A2 = M0 - J1.T @ B @ J1, M1 - J1.T @ B @ J2, M2 - J2.T @ B @ J2
        first = (enclosed(eta) * eta * p).inner(t)
        rest = Q.inner(2.0 * A1 - beta * A2) + (S @ Q).inner(A0)
        energy, d = (first - B.inner(J3) + rest).high, len(eta)
        if not energy > 0.0:
            return math.inf
        return (d * (Interval.exact(energy) / d).log() - sum_of_logs(eta) - log_det).high


def _projection(D: ThinStepsize, cross: Matrix) -> Matrix:
    """N that makes Diag(a)U − VN small in the norm of Diag(1/a), in plain floating point."""
    G = D.V.T @ (D.V / D.a[:, None])
    scale = 1.0 / np.sqrt(np.maximum(G.diagonal(), 1e-300))
    return np.asarray(
        scale[:, None] * (np.linalg.pinv(G * scale[:, None] * scale, 1e-12, True) @ (scale[:, None] * cross))
    )


def _small_part(G: Enclosed, K: Enclosed, sizes: Vector) -> float | None:
    """Return log det(I + CᵀKC) − tr(FK₊) from below, for a C of its own choice.

    sizes: by which columns of W are divided, to powers of two: G gets a diagonal of at most about one.
    """
    scale = np.ldexp(1.0, np.rint(-np.log2(np.maximum(sizes, 2.0**-450))).astype(np.intc))
    both = np.multiply.outer(scale, scale)
    G, K = Enclosed(G.value * both, G.error * both), Enclosed(K.value / both, K.error / both)
    raised = G.value.copy()
    # Above the error of G, that of the factor and what proves F ⪰ 0.
    add_to_diagonal(raised, 2.0 * cholesky_shift(G) + 8.0 * cholesky_shift(np.eye(len(scale))))
    C, info = lapack.dpotrf(raised, lower=1, clean=1)
    if info != 0:
        return None
    factor = enclosed(np.asarray(C))
    F = (factor @ factor.T - G).symmetric()
    inner = log_det_from_below((factor.T @ K @ factor).plus_diagonal(1.0).symmetric())
    if inner is None or not is_proved_definite(F):
        return None
    # K₊ may be any larger matrix: that of the row sums of |K|.
    return (inner - F.diagonal().inner(K.row_sums())).low


def _inverse_of_more_than_one(S: Enclosed) -> Enclosed | None:
    """Return (I + S)⁻¹ for S ⪰ 0, from an approximation and its residual; nearly exact where S is nearly diagonal."""
    matrix = S.plus_diagonal(1.0)
    scale = power_of_two_scaling(matrix.value.diagonal())
    both = np.multiply.outer(scale, scale)
    near_one = matrix * both
    guess = np.linalg.inv(near_one.value)
    guess = 0.5 * (guess + guess.T)
    residual = (near_one @ guess).plus_diagonal(-1.0).frobenius_norm()
    # M⁻¹ − guess = −M⁻¹(M·guess − I), and ‖M⁻¹‖ ≤ ‖guess‖/(1 − ‖M·guess − I‖)
    if not residual < 0.5:
        return None
    error = (2.0 * Interval.exact(residual) * enclosed(guess).frobenius_norm()).high
    return Enclosed(guess, np.full_like(guess, error)) * both
