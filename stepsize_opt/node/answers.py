"""What is proved of the answer of a solver, for each goal: a D with its certificate, in scaled coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from stepsize_opt.node.pieces import NO_UNDERFLOW, Component, Proved
from stepsize_opt.proofs import (
    Certificate,
    ConvexStep,
    Descent,
    Enclosed,
    Evaluation,
    Pair,
    ProvedDiagonal,
    prove_diagonal,
    repair,
    repair_in_basis,
)
from stepsize_solvers.programs import Matrix, Outcome

# What a closed form may lose to the rounding of the proof, relative to D: no more than its own rounding.
_EXACT_LOSS = 1e-12


@dataclass(frozen=True, eq=False)
class Answer:
    """What is proved of one D of a component, in scaled coordinates; D itself in the original ones.

    dual: the multiplier that a result carries; descent: of H = 2D − T(D), without an upper bound.
    """

    D: Matrix
    dual: Matrix | None
    certificate: Certificate
    descent: Certificate
    satisfies_condition: bool


@dataclass(frozen=True, eq=False)
class _Judged(Generic[Proved]):
    """A stepsize in scaled coordinates, D in the original ones, and the certificate of the goal."""

    at: Proved
    D: Matrix
    certificate: Certificate


def prove(component: Component, outcome: Outcome, tol: float) -> Answer:
    """The proved answer next to the raw one, under the goal of the component."""
    if component.is_convex:
        return _convex(component, outcome)
    if component.program.objective is None:
        return _under_condition(component, outcome, tol)
    return _under_descent(component, outcome, tol)


def _dual(outcome: Outcome) -> Matrix | None:
    return outcome.duals[0][0] if outcome.duals else None


def _no_stepsize(outcome: Outcome) -> RuntimeError:
    return RuntimeError(f"the answer of {outcome.stats.solver_name} could not be repaired to a feasible stepsize")


def _repaired(component: Component, outcome: Outcome, tol: float) -> Evaluation:
    """The point next to the raw one that satisfies the condition."""
    single = component.single
    # A thousandth of the tolerance is no loss worth a second round of verified arithmetic; a closed form is exact.
    loss = 1e-3 * tol if outcome.stats.num_iters != 0 else _EXACT_LOSS
    # Where not even a multiple of the raw point is feasible: the best multiple of a plain matrix, a poor answer but
    # a proved one, and the gap says so.
    repaired = repair(single, np.asarray(outcome.X), loss) or repair(single, single.pattern.member)
    if repaired is None:
        raise _no_stepsize(outcome)
    return repaired


def _under_condition(component: Component, outcome: Outcome, tol: float) -> Answer:
    """Repair the raw point to one that satisfies the condition, and certify log det D."""
    raw, dual = np.asarray(outcome.X), _dual(outcome)
    thin = None if outcome.thin is None else prove_diagonal(component.single, raw.diagonal(), outcome.thin)
    answer = None if thin is None or not thin.certificate.is_optimal(tol) else _thin(component, thin, dual)
    if answer is not None:
        return answer
    repaired, D = component.held(_repaired(component, outcome, tol))
    certificate = repaired.certificate(dual, tol, (raw,))
    done = outcome.status.is_stopped or dual is None or certificate.is_optimal(tol)
    finer = None if done else repair_in_basis(component.single, raw)
    if finer is not None:
        # Rounding may be all that is left of the gap: in the basis of D it counts least.
        point, held = component.held(finer)
        again = point.certificate(dual, tol, (raw,))
        if again.gap < certificate.gap:
            repaired, D, certificate = point, held, again
    return Answer(D, dual, certificate, repaired.descent(), certificate.feasible)


def _thin(component: Component, thin: ProvedDiagonal, dual: Matrix | None) -> Answer | None:
    """What is proved of a diagonal stepsize with a thin multiplier; None where float64 may not hold it."""
    with np.errstate(over="ignore"):  # what overflows is refused by the general path
        D = component.scale * thin.x * component.scale
    if not (D.min() > NO_UNDERFLOW and D.max() < 1.0 / NO_UNDERFLOW):
        return None
    descent = Certificate(True, 1.0 + thin.certificate.margin, thin.descent_log_det, math.inf, len(D))
    return Answer(np.diag(D), dual, thin.certificate, descent, satisfies_condition=True)


def _convex(component: Component, outcome: Outcome) -> Answer:
    """Repair the raw point to one with 𝒬(D) ⪯ L⁻¹, and certify log det D."""
    H, Z, single = component.program.families[0].H[0], _dual(outcome), component.single
    product = None if Z is None else H @ Z @ H.T
    U = None if product is None else 0.5 * (product + product.T)
    found = ConvexStep(single, np.asarray(outcome.X)).repaired() or ConvexStep(single, single.pattern.member).repaired()
    if found is None:
        raise _no_stepsize(outcome)
    found, D = component.held(found)
    return Answer(D, U, found.certificate(U), found.descent(), found.satisfies_condition)


def _under_descent(component: Component, outcome: Outcome, tol: float) -> Answer:
    """Certify log det H or t of the raw point, with H ≻ 0 proved, in twice the precision where plain is not enough."""
    program, raw, dual = component.single, np.asarray(outcome.X), _dual(outcome)
    found: list[_Judged[Descent]] = []
    for arithmetic in (Enclosed, Pair):
        at = Descent(program, program.pattern.nearest(raw), arithmetic)
        if at.feasible:
            at, D = component.held(at)
            found.append(_Judged(at, D, _judged(at, component, dual, tol)))
            if found[-1].certificate.is_optimal(tol):
                break
    if not found:
        # The condition makes H ⪰ D ≻ 0: take the best multiple of the raw point, or of a plain matrix, that has it.
        repaired = repair(program, raw) or repair(program, program.pattern.member)
        if repaired is None:
            raise _no_stepsize(outcome)
        at, D = component.held(Descent(program, repaired.D))
        found.append(_Judged(at, D, _judged(at, component, dual, tol)))
    best = min(found, key=lambda one: one.certificate.gap)
    at = best.at
    descent = replace(best.certificate, upper_bound=math.inf) if component.bound is None else at.descent()
    return Answer(best.D, dual, best.certificate, descent, at.satisfies_condition)


def _judged(at: Descent, component: Component, dual: Matrix | None, tol: float) -> Certificate:
    """The certificate of log det H, or of t, in scaled coordinates."""
    if component.bound is None:
        return at.certificate(dual, tol)
    return at.floor_certificate(dual, component.bound.M, tol)
