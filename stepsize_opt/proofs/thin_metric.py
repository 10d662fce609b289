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

from stepsize_opt.proofs.arithmetic import Enclosed, Plain
from stepsize_opt.proofs.cholesky import log_det_from_above, log_det_from_factor, proved_cholesky
from stepsize_opt.proofs.roundings import UNIT, gamma
from stepsize_opt.proofs.thin import (
    ROWS_AT_ONCE,
    chunks,
    in_range,
    sum_below,
    sum_of_logs,
    weighted_gram,
)
from stepsize_solvers.programs import Matrix, Vector, add_to_diagonal

# The error of a column of W, after scaling; that of its products with the others is about as large.
_SMALLEST_ERROR = 2.0**-40


@dataclass(frozen=True, eq=False)
class ThinStepsize:
    """D = Diag(a) + sign·VVᵀ with a > 0, V (d×m) and a sign of ±1."""

    a: Vector
    V: Matrix
    sign: float

    def log_det(self) -> tuple[float, float] | None:
        """log det D = Σ log a + log det(I ± VᵀDiag(1/a)V) from below and from above; None unless D ≻ 0 is proved."""
        if not (in_range(self.a, self.V) and self.a.min() > 0.0):
            return None
        G = weighted_gram(self.V, 1.0 / self.a)
        identity = np.eye(len(G.value))
        inner = (Plain.exact(identity) + Plain.enclosing(self.sign * G.value, G.error)).rounded().symmetric()
        factor = proved_cholesky(inner)
        above = log_det_from_above(inner.value + np.diag(2.0 * inner.error.sum(axis=1)))
        if factor is None or above is None:
            return None
        low, high = sum_of_logs(self.a)
        return sum_below(low, log_det_from_factor(factor)), -sum_below(-high, -above)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows: V, (DLD)_jj from above and from below, and the sum of its terms' sizes."""

    part: slice
    V: Matrix
    energy: Vector
    least: Vector
    size: Vector


@dataclass(frozen=True, eq=False)
class ThinMetric:
    """s and U of L; α, β and b of 𝒫 from below (``low``) and from above (``high``)."""

    s: Vector
    U: Matrix
    low: tuple[Vector, float, float]
    high: tuple[Vector, float, float]

    @staticmethod
    def of(s: Vector, U: Matrix, alpha: Vector, beta: float, trace: float, roundings: int) -> ThinMetric:
        """For coefficients of which α + β, β and b went through so many roundings."""
        doubt = gamma(roundings + 4)
        slack = doubt * (alpha + 2.0 * beta)
        low = (np.maximum(alpha - slack, 0.0), beta * (1.0 - doubt), trace * (1.0 - doubt))
        return ThinMetric(s, U, low, (alpha + slack, beta * (1.0 + doubt), trace * (1.0 + doubt)))

    def _rows(self, D: ThinStepsize, T: Enclosed, cross: Enclosed) -> Iterator[_Rows]:
        """T = VᵀDiag(s)V, cross = VᵀU."""
        m, r = D.V.shape[1], self.U.shape[1]
        around_T, around_cross = (A.error + gamma(m + 2) * np.abs(A.value) for A in (T, cross))
        for part in chunks(len(D.a)):
            V, U, a, s = D.V[part], self.U[part], D.a[part], self.s[part]
            size = np.abs(V)
            scaled = a[:, None] * U
            image = scaled + D.sign * (V @ cross.value)
            error = (size @ around_cross + gamma(4) * (np.abs(scaled) + np.abs(image))) * (1.0 + gamma(m + 4))
            own, square = a * a * s, 2.0 * a * s * np.einsum("ij,ij->i", V, V)
            middle = np.einsum("ij,ij->i", V @ T.value, V)
            lost = np.einsum("ij,ij->i", size @ around_T, size)
            outer = np.abs(image) + error
            rest = np.einsum("ij,ij->i", outer, outer)
            total = own + square + np.abs(middle) + lost + rest
            inner = np.maximum(np.abs(image) - error, 0.0)
            known, slack = own + D.sign * square + middle, lost + gamma(2 * m + r + 8) * total
            least = np.maximum(known + np.einsum("ij,ij->i", inner, inner) - slack, 0.0)
            yield _Rows(part, V, known + rest + slack, least, total)

    def log_det(self, D: ThinStepsize, c: float) -> float | None:
        """log det(cD − 𝒫(DLD)) from below; None when the matrix is not proved positive definite."""
        if not in_range(D.a, D.V, self.U, self.s):
            return None
        alpha, beta, trace = self.high
        T, cross = weighted_gram(D.V, self.s), weighted_gram(D.V, None, self.U)
        shift = 0.0
        if trace > 0.0:
            energies = [math.fsum(rows.energy.tolist()) for rows in self._rows(D, T, cross)]
            shift = trace * math.fsum(energies) * (1.0 + gamma(8))
        m, r, parts = D.V.shape[1], self.U.shape[1], 0
        mean, N = float((D.a * self.s).mean()), _projection(D, cross.value)
        G, lost, logs = np.zeros((2 * m + r,) * 2), np.zeros(m + r), []
        raised: list[Matrix] = []
        blurred: list[Matrix] = []
        for rows in self._rows(D, T, cross):
            a, s = D.a[rows.part], self.s[rows.part]
            terms = (c * a, alpha[rows.part] * rows.energy, beta * a * a * s)
            room = alpha[rows.part] * rows.size + shift
            delta = terms[0] - terms[1] - terms[2] - shift - gamma(12) * (terms[0] + terms[2] + room)
            V, image, size = rows.V, a[:, None] * self.U[rows.part], np.abs(rows.V)
            W = np.hstack([V, (a * s - mean)[:, None] * V, image - V @ N])
            blur = [gamma(4) * (a * s + mean)[:, None] * size, gamma(m + 6) * (np.abs(image) + size @ np.abs(N))]
            errors = np.hstack(blur)
            low = np.flatnonzero(~(delta > 0.0))
            if low.size > 0:
                theta = c * a[low]
                drop = np.sqrt((theta - delta[low]) * (1.0 + gamma(4)))
                delta[low] = theta
                raised.append(np.column_stack([W[low] * (drop / theta)[:, None], drop / np.sqrt(theta)]))
                blurred.append(errors[low] * (drop / theta)[:, None])
                if not sum(map(len, raised)) <= len(G):
                    return None
            W /= np.sqrt(delta)[:, None]
            G += W.T @ W
            lost += (errors * errors / delta[:, None]).sum(axis=0)
            logs.append(sum_of_logs(delta)[0])
            parts += 1
        norms = np.sqrt(G.diagonal())
        apart = np.concatenate([np.zeros(m), np.sqrt(lost) * (1.0 + gamma(ROWS_AT_ONCE + parts + 8))])
        error = gamma(min(len(D.a), ROWS_AT_ONCE) + parts + 12) * np.multiply.outer(norms, norms)
        mixed = np.multiply.outer(apart, norms) * (1.0 + gamma(4))
        error += mixed + mixed.T + np.multiply.outer(apart, apart)
        K = self._middle(T, Plain.exact(N) + Plain.enclosing(D.sign * cross.value, cross.error), mean, D.sign, c)
        # Columns that are little more than their error are made so small that it does not matter.
        sizes = np.maximum(norms, apart / _SMALLEST_ERROR)
        if raised:
            G, error, K = _with_rows(G, error, K, np.vstack(raised), np.vstack(blurred))
            sizes = np.append(sizes, np.sqrt(G.diagonal()[2 * m + r :]))
        small = _small_part(Enclosed(G, error).symmetric(), K, sizes)
        return None if small is None else sum_below(*logs, small)

    def quotient(self, D: ThinStepsize, z: Vector) -> float:
        """zᵀ𝒫(DLD)z/zᵀDz from below, for b = 0: γ𝒫(DLD) ⪯ D needs γ ≤ 1/quotient.  0 when nothing is proved."""
        if not (in_range(D.a, D.V, self.U, self.s, z) and self.high[2] == 0.0):
            return 0.0
        (alpha, beta, _), m, r = self.low, D.V.shape[1], self.U.shape[1]
        size = np.abs(z)
        inner, lost = D.V.T @ z, gamma(len(z) + 2) * (np.abs(D.V).T @ size)
        # zᵀDz = Σ a z² ± ‖Vᵀz‖² from above
        plain = math.fsum((D.a * z * z).tolist()) * (1.0 + gamma(4))
        outer = np.maximum(np.abs(inner) + D.sign * lost, 0.0)
        square = float(outer @ outer) * (1.0 + D.sign * gamma(m + 4))
        above = plain + D.sign * square + 4.0 * UNIT * (plain + square)
        T, cross = weighted_gram(D.V, self.s), weighted_gram(D.V, None, self.U)
        own = math.fsum(
            math.fsum((alpha[rows.part] * rows.least * z[rows.part] ** 2).tolist()) for rows in self._rows(D, T, cross)
        )
        # y = Dz, and yᵀLy = Σ s y² + ‖Uᵀy‖²
        y = D.a * z + D.sign * (D.V @ inner)
        error = np.abs(D.V) @ (lost + gamma(m + 4) * np.abs(inner)) + gamma(4) * (D.a * size + np.abs(y))
        least = np.maximum(np.abs(y) - error * (1.0 + gamma(m + 4)), 0.0)
        image = np.abs(self.U.T @ y) - np.abs(self.U).T @ (error + gamma(len(z) + 4) * np.abs(y)) * (1.0 + gamma(4))
        image = np.maximum(image * (1.0 - gamma(len(z) + 4)), 0.0)
        energy = math.fsum((self.s * least * least).tolist()) + float(image @ image)
        return (own + beta * energy) * (1.0 - gamma(r + 16)) / above if above > 0.0 else 0.0

    def _middle(self, T: Enclosed, B: Plain, mean: float, sign: float, c: float) -> Enclosed:
        """K."""
        (m, r), beta = B.value.shape, self.high[1]
        first = Plain.enclosing(T.value, T.error) + B @ B.T + Plain.exact(2.0 * sign * mean * np.eye(m))
        corner = (first.scaled(-beta) + Plain.exact(sign * c * np.eye(m))).rounded()
        side = B.scaled(-beta).rounded()
        K, error = np.zeros((2 * m + r,) * 2), np.zeros((2 * m + r,) * 2)
        K[:m, :m], error[:m, :m] = corner.value, corner.error
        K[:m, m : 2 * m] = K[m : 2 * m, :m] = -sign * beta * np.eye(m)
        K[:m, 2 * m :], error[:m, 2 * m :] = side.value, side.error
        K[2 * m :, :m], error[2 * m :, :m] = side.value.T, side.error.T
        K[2 * m :, 2 * m :] = -beta * np.eye(r)
        return Enclosed(K, error).symmetric()

    def bound(self, eta: Vector, Z: Matrix) -> float:
        """The bound of Y = Diag(η) + ZZᵀ on log det H over all D, for b = 0; +inf when it is not proved."""
        if not (in_range(eta, Z) and eta.min() > 0.0 and self.high[2] == 0.0):
            return math.inf
        alpha, beta, _ = self.low
        # R and L may be made smaller: 1/ρ and 1/s are rounded up.
        total = eta + np.einsum("ij,ij->i", Z, Z)
        rho = (alpha * total + beta * eta) * (1.0 - gamma(Z.shape[1] + 8))
        if not rho.min() > 0.0:
            return math.inf
        p, t = (1.0 + 4.0 * UNIT) / rho, (1.0 + 4.0 * UNIT) / self.s
        # Both matrices are R⁻¹-weighted: Z̃ = Diag(η∘p)Z is Z with other weights in what follows.
        ratio = eta * p
        plain = [weighted_gram(Z, w) for w in (p, t, t * ratio, t * ratio * ratio, 1.0 / eta)]
        S, M0, M1, M2, inner = (Plain.enclosing(A.value, A.error) for A in plain)
        J0, J1, J2, J3 = (
            Plain.enclosing(A.value, A.error)
            for A in (
                weighted_gram(self.U, t),
                weighted_gram(self.U, t, Z),
                weighted_gram(self.U, t * ratio, Z),
                weighted_gram(self.U, t * t * ratio * eta),
            )
        )
        one = Plain.exact(np.eye(Z.shape[1]))
        log_det = proved_cholesky((one + inner).rounded().symmetric())
        Q, B = _inverse_of_more_than_one(S.scaled(beta)), _inverse_of_more_than_one(J0)
        if log_det is None or Q is None or B is None:
            return math.inf
        first = math.fsum((eta * ratio * t).tolist()) * (1.0 + gamma(8))
        # tr(YR⁻¹YL⁻¹) with R⁻¹Z = Diag(p)ZQ and L⁻¹ = Diag(t) − Diag(t)UBUᵀDiag(t)
        A0, A1, A2 = M0 + -(J1.T @ B @ J1), M1 + -(J1.T @ B @ J2), M2 + -(J2.T @ B @ J2)
        q = [first, (-B).inner_from_above(J3), Q.scaled(-beta).inner_from_above(A2)]
        q += [Q.scaled(2.0).inner_from_above(A1), (S @ Q).inner_from_above(A0)]
        energy, d = math.fsum(q) + 4.0 * UNIT * math.fsum(map(abs, q)), len(eta)
        if not energy > 0.0:
            return math.inf
        term, logs = d * math.log(energy / d), sum_below(sum_of_logs(eta)[0], log_det_from_factor(log_det))
        return term - logs + 8.0 * UNIT * (d + abs(term) + abs(logs))


def _with_rows(G: Matrix, error: Matrix, K: Enclosed, rows: Matrix, blurred: Matrix) -> tuple[Matrix, Matrix, Enclosed]:
    """G and K with the columns √(θ − δ)e_j of W; rows: √(θ − δ)w_j/θ and √((θ − δ)/θ), blurred: the error for DU."""
    n, more = len(G), len(rows)
    cross, own = rows[:, :n], rows[:, n] ** 2
    doubt = gamma(12) * np.abs(cross)
    doubt[:, n - blurred.shape[1] :] += blurred * (1.0 + gamma(12))
    bigger = np.block([[G, cross.T], [cross, np.diag(own)]])
    middle = np.zeros((n + more,) * 2)
    middle[:n, :n], middle[n:, n:] = K.value, -np.eye(more)
    apart = np.block([[error, doubt.T], [doubt, gamma(12) * np.diag(own)]])
    return bigger, apart, Enclosed(middle, np.pad(K.error, (0, more)))


def _projection(D: ThinStepsize, cross: Matrix) -> Matrix:
    """N that makes Diag(a)U − VN small in the norm of Diag(1/a), in plain floating point."""
    G = D.V.T @ (D.V / D.a[:, None])
    scale = 1.0 / np.sqrt(np.maximum(G.diagonal(), 1e-300))
    return np.asarray(
        scale[:, None] * (np.linalg.pinv(G * scale[:, None] * scale, 1e-12, True) @ (scale[:, None] * cross))
    )


def _small_part(G: Enclosed, K: Enclosed, sizes: Vector) -> float | None:
    """log det(I + CᵀKC) − tr(FK₊) from below, for a C of its own choice; sizes: by which columns of W are divided."""
    n = len(G.value)
    # Powers of two, without rounding: G gets a diagonal of at most about one.
    scale = np.ldexp(1.0, np.rint(-np.log2(np.maximum(sizes, 2.0**-450))).astype(np.intc))
    both = np.multiply.outer(scale, scale)
    value, error = G.value * both, G.error * both
    raised = value.copy()
    # Above the error of G, that of the factor and what proves F ⪰ 0.
    add_to_diagonal(raised, 4.0 * error.sum(axis=1) + 16.0 * n * gamma(n + 4))
    C, info = lapack.dpotrf(raised, lower=1, clean=1)
    if info != 0:
        return None
    factor = Plain.exact(np.asarray(C))
    F = (factor @ factor.T + -Plain.enclosing(value, error)).rounded().symmetric()
    if proved_cholesky(F) is None:
        return None
    middle = Plain.enclosing(K.value / both, K.error / both)
    inner = proved_cholesky((Plain.exact(np.eye(n)) + factor.T @ middle @ factor).rounded().symmetric())
    if inner is None:
        return None
    # K₊ may be any larger matrix: that of the row sums of |K|.
    most = ((np.abs(K.value) + K.error) / both).sum(axis=1)
    loss = float((F.value.diagonal() + F.error.diagonal()) @ most)
    return log_det_from_factor(inner) - loss * (1.0 + gamma(2 * n + 8))


def _inverse_of_more_than_one(S: Plain) -> Plain | None:
    """(I + S)⁻¹ for S ⪰ 0, from an approximation and its residual; exact to rounding where S is nearly diagonal."""
    n = len(S.value)
    matrix = Plain.exact(np.eye(n)) + S
    scale = np.ldexp(1.0, np.rint(-0.5 * np.log2(matrix.value.diagonal())).astype(np.intc))
    both = np.multiply.outer(scale, scale)
    near_one = matrix.scaled(both)
    guess = np.linalg.inv(near_one.value)
    guess = 0.5 * (guess + guess.T)
    rest = (near_one @ Plain.exact(guess) + Plain.exact(-np.eye(n))).rounded()
    residual, size = (
        float(np.linalg.norm(A)) * (1.0 + gamma(n * n + 4)) for A in (np.abs(rest.value) + rest.error, guess)
    )
    # M⁻¹ − guess = −M⁻¹(M·guess − I), and ‖M⁻¹‖ ≤ ‖guess‖/(1 − ‖M·guess − I‖)
    if not residual < 0.5:
        return None
    return Plain.enclosing(guess, np.full((n, n), 2.0 * size * residual)).scaled(both)
