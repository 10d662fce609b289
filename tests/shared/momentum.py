"""One round of momentum on quadratics, for all states at once and without rounding.

For f with Hessian F and minimiser 0, Ψ before a round less E Ψ after it is a quadratic form of (x, z, w): the theorem
says that it is positive semidefinite, whatever w is.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from shared.certificates import weighted
from shared.moments import listed
from stepsize_opt import Sketch
from stepsize_opt.methods import Compressor
from stepsize_opt.results import SubspaceMethod
from stepsize_solvers.programs import Matrix
from stepsize_validation.properties.exact import Rational, combine, inverse, product, rational, transpose


@dataclass(frozen=True, eq=False)
class ExactRounds:
    """The outcomes of a round as (probability, G, VS), V and t, all rational."""

    outcomes: list[tuple[Fraction, Rational, Rational]]
    V: Rational
    t: Fraction
    strong: bool

    @staticmethod
    def of_subspace(method: SubspaceMethod) -> ExactRounds:
        """G = A_J A_Jᵀ, VS = A_J Diag(w_J) A_Jᵀ, V = A Diag(hw) Aᵀ."""
        A, w = rational(method.directions), [Fraction(float(x)) for x in method.weights]
        h = [Fraction(float(x)) for x in method.probabilities]
        outcomes = []
        for probability, s in zip(*method.sketch.support(), strict=True):
            taken = [Fraction(int(x > 0.0)) for x in s]
            along = [x * y for x, y in zip(taken, w, strict=True)]
            outcomes.append((Fraction(float(probability)), weighted(A, taken), weighted(A, along)))
        V = weighted(A, [x * y for x, y in zip(h, w, strict=True)])
        return ExactRounds(outcomes, V, Fraction(method.rate), method.goal == "linear")

    @staticmethod
    def of_sketch(D: Matrix, V: Matrix | float, t: float, sketch: Sketch, *, strong: bool, last: bool) -> ExactRounds:
        """G = DS, or TD with ``last``; for sketches whose floats have E[S] = I."""
        inner = rational(V * np.eye(sketch.d) if isinstance(V, float) else V)
        outcomes = []
        for probability, s in zip(*listed(sketch), strict=True):
            S, exact = rational(s), rational(D)
            G = product(S, exact) if last else product(exact, S)
            outcomes.append((Fraction(float(probability)), G, product(inner, S)))
        return ExactRounds(outcomes, inner, Fraction(t), strong)

    def decrease(self, F: Rational, rounds: int = 1) -> Rational:
        """(1 − t)Ψ − E Ψ⁺ in the round with this number as a matrix of size 3d, twice; for convex f Ψ − E Ψ⁺."""
        d, t = len(F), self.t
        x, z, w = (_columns(d, place) for place in range(3))
        share = t / (1 + t) if self.strong else Fraction(2 * (rounds + 1), rounds * (rounds + 3))
        y = combine_any((1 - share, x), (share, z))
        g = product(F, y)
        before = combine((1 - t if self.strong else 1, self._potential(F, x, z, w, rounds - 1)))
        terms = [(Fraction(1), before)]
        for probability, G, along in self.outcomes:
            new_x = combine_any((1, y), (-1, product(G, g)))
            if self.strong:
                new_z = combine_any((1 - t, z), (t, y), (-t, product(along, g)))
            else:
                new_z = combine_any((1, z), (-Fraction(rounds + 1, 2) * t * t, product(along, g)))
            terms.append((-probability, self._potential(F, new_x, new_z, w, rounds)))
        return combine(*terms)

    def _potential(self, F: Rational, x: Rational, z: Rational, w: Rational, rounds: int) -> Rational:
        """2Ψ as a quadratic form."""
        weight = Fraction(1) if self.strong else Fraction(rounds * (rounds + 3), 4)
        share = Fraction(1) if self.strong else 1 / self.t**2
        away = combine_any((1, z), (-1, w))
        return combine((weight, _form(F, x)), (-weight, _form(F, w)), (share, _form(inverse(self.V), away)))


def _columns(d: int, place: int) -> Rational:
    """The d×3d matrix that takes one of x, z and w out of (x, z, w)."""
    return [[Fraction(int(j == place * d + i)) for j in range(3 * d)] for i in range(d)]


def combine_any(*terms: tuple[Fraction | int, Rational]) -> Rational:
    """Σ c_i M_i of matrices that need not be square."""
    rows = range(len(terms[0][1]))
    columns = range(len(terms[0][1][0]))
    return [[sum((c * M[i][j] for c, M in terms), Fraction(0)) for j in columns] for i in rows]


def _form(F: Rational, x: Rational) -> Rational:
    """xᵀFx."""
    return product(transpose(x), product(F, x))


def rounds_of(result: object) -> Compressor:
    """The rounds of a result with momentum."""
    rounds = result if isinstance(result, Compressor) else result.compressor()  # type: ignore[attr-defined]
    assert isinstance(rounds, Compressor) and rounds.memory is not None
    return rounds
