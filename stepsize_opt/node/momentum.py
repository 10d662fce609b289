"""Momentum for any sketch: the program of the goal ``linear`` with another M (docs/momentum.md).

The largest t with H(D) ⪰ t²𝒫(M⁻¹) is the root of the largest τ with H(D) ⪰ τM′⁻¹, M′ = 𝒫(M⁻¹)⁻¹.  In floats V ⪰ M⁻¹ is
what the update of z multiplies by, and M′ ⪯ 𝒫(V)⁻¹: H ⪰ τM′⁻¹ ⪰ τ𝒫(V) is proved for the method that runs, whose
M̂ = V⁻¹ ⪯ M is a bound on ∇²f, too.  With M′⁻¹ ⪯ e^loss 𝒫(M⁻¹), no D has τ above e^loss times the bound for M′.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from scipy import sparse

from stepsize_opt.goals import Goal
from stepsize_opt.inputs import Symmetric, check_dense, check_positive_definite, dense, read_only
from stepsize_opt.node.result import StepsizeResult
from stepsize_opt.proofs import (
    UNIT,
    Certificate,
    Enclosed,
    coefficient_roundings,
    image,
    proved_inverse,
    rounded_up,
    twice_gamma,
)
from stepsize_solvers.programs import Indices, Matrix, PositiveMap, Status, Vector


@dataclass(frozen=True, eq=False, kw_only=True)
class MomentumGoal(Goal):
    """A goal with momentum for one sketch: M is M′ of the program, ``given`` the goal with the M that was given."""

    given: Goal
    V: Matrix | float
    loss: float

    @staticmethod
    def of(given: Goal, law: PositiveMap) -> MomentumGoal:
        """Raises Unproved where M is too close to singular for float64, ValueError where memory does not hold M⁻¹."""
        assert given.M is not None
        excess = 2.0 * UNIT
        if isinstance(given.M, float):
            V: Matrix | float = rounded_up(1 / Fraction(given.M))
        else:
            M = dense(given.M)
            check_positive_definite("strong_convexity", M, "goal='linear' needs M ≻ 0")
            V, excess = proved_inverse(Enclosed.exact(M), above=True, name="strong_convexity")
        M_prime, share = _inverse_image(law, V)
        loss = (excess + share / (1.0 - share)) * (1.0 + 8.0 * UNIT)
        return MomentumGoal(given.name, M_prime, momentum=True, given=given, V=V, loss=loss)

    def curvature(self, indices: Indices) -> Matrix | float | None:
        return self.given.restricted(indices)

    def certificate_of_t(self, certificate: Certificate) -> Certificate:
        """Return the certificate of t = √τ, as d log t, from that of τ for M′."""
        d = certificate.d
        upper = certificate.upper_bound + d * self.loss
        slack = 4.0 * UNIT * (abs(certificate.upper_bound) + d)
        return replace(certificate, log_det=0.5 * certificate.log_det, upper_bound=0.5 * (upper + slack))

    def result(self, found: StepsizeResult) -> StepsizeResult:
        """Return the result of the program for M′ as one of momentum."""
        certificate = self.certificate_of_t(found.certificate)
        status, message = found.status, found.message
        if certificate.is_optimal(found.tol):
            status, message = Status.OPTIMAL.value, ""
        elif status == Status.OPTIMAL.value:
            status = Status.INACCURATE.value
            message = f"{Status.INACCURATE.meaning}; {Status.INACCURATE.remedy}"
        return replace(
            found,
            certificate=certificate,
            status=status,
            message=message,
            limit=math.sqrt(found.limit) * (1.0 + 2.0 * UNIT),
            inverse_curvature=read_only(self.V) if isinstance(self.V, np.ndarray) else self.V,
        )


def _inverse_image(law: PositiveMap, V: Matrix | float) -> tuple[Symmetric | float, float]:
    """Return M′ and a share ε with (1 − ε)𝒫(V)⁻¹ ⪯ M′ ⪯ 𝒫(V)⁻¹; a number where 𝒫(V) is a multiple of I."""
    if isinstance(V, np.ndarray):
        whole = V
    elif law.is_entrywise:
        return _inverse_diagonal(V * law.diagonal_action, twice_gamma(coefficient_roundings(law) + 2))
    else:
        check_dense("𝒫(M⁻¹)", law.d)
        whole = V * np.eye(law.d)
    found = image(law, Enclosed.exact(whole)).symmetric()
    diagonal, error = found.value.diagonal(), found.error.diagonal()
    if np.array_equal(found.value, np.diag(diagonal)) and np.array_equal(found.error, np.diag(error)):
        return _inverse_diagonal(diagonal, float((error / diagonal).max()))
    return proved_inverse(found, above=False, name="𝒫(M⁻¹)")


def _inverse_diagonal(q: Vector, error: float) -> tuple[Symmetric | float, float]:
    """Return M′ of 𝒫(V) = Diag(q), q right to a relative error."""
    share = 2.0 * error + 8.0 * UNIT
    inverse = (1.0 - 0.5 * share) / q
    if (inverse == inverse[0]).all():
        return float(inverse[0]), share
    return sparse.csr_array(sparse.diags_array(inverse)), share
