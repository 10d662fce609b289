"""The program of one node as a cvxpy problem, for those who want to add constraints of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.goals import Goal, GoalName
from stepsize_opt.inputs import Structure, pattern_of
from stepsize_opt.methods import Method, get_method
from stepsize_opt.node.api import read_problem
from stepsize_opt.node.reductions import equivalent_method
from stepsize_opt.sketches import Sketch
from stepsize_opt.smoothness import proved_smoothness
from stepsize_solvers.conic import fresh_model
from stepsize_solvers.programs import Program


@dataclass(frozen=True, eq=False)
class CvxpyForm:
    """A cvxpy problem and the stepsize in it.

    Attributes
    ----------
    problem : cvxpy.Problem
        Maximises what the goal maximises: log det D, log det H, or t.
    D : cvxpy.Expression
        The d×d stepsize matrix, with the structure asked for.

    Examples
    --------
    See ``to_cvxpy``.
    """

    problem: Any
    D: Any


def to_cvxpy(
    L: Any,
    sketch: Sketch,
    *,
    algorithm: str | Method = "det-CGD1",
    structure: Structure = "full",
    goal: GoalName = "paper",
    strong_convexity: Any = None,
    lift: str = "compact",
) -> CvxpyForm:
    """The program that ``optimal_stepsize`` solves, as a cvxpy problem in D itself, unscaled and in one piece.

    What cvxpy returns is neither repaired nor proved: hand ``form.D.value`` to ``certify``, whose ``largest_scale``
    says by how much to shrink a D that rounding has put outside.

    Parameters
    ----------
    L, sketch, algorithm, structure, goal, strong_convexity
        As in ``optimal_stepsize``.
    lift
        ``"compact"``, or ``"quadratic"`` for rand-k and independent sampling: smaller, and less robust for a D that is
        diagonal or a multiple of a direction.

    Raises
    ------
    ValueError, TypeError
        As ``optimal_stepsize``, and for a lift that does not apply.

    Examples
    --------
    The best D whose first coordinate moves by at most a tenth of its gradient:

    >>> import cvxpy as cp
    >>> import numpy as np
    >>> from stepsize_opt import RandK, to_cvxpy
    >>> form = to_cvxpy(np.array([[2.0, 1.0], [1.0, 3.0]]), RandK(2, 1))
    >>> small = cp.Problem(form.problem.objective, [*form.problem.constraints, form.D[0, 0] <= 0.1])
    >>> _ = small.solve(solver="CLARABEL")
    >>> [round(float(x), 4) for x in np.diagonal(form.D.value)]
    [0.1, 0.1718]
    """
    method = get_method(algorithm)
    asked = Goal.read(goal, strong_convexity, getattr(sketch, "d", 0))
    read = proved_smoothness(read_problem(L, sketch)).formed()
    read.log_det()
    smoothness = read.todense()
    every = np.arange(sketch.d)
    asked.check(smoothness, every)
    pattern = pattern_of(structure, sketch.d)
    method.check([sketch], scalar=pattern.is_scalar, clients=False)
    condition = equivalent_method(asked, method, pattern, sketch.map).condition(sketch.map)
    B, Q = condition.inner.apply(smoothness), condition.outer
    if asked.is_convex:
        program = Program.convex(np.asarray(np.linalg.cholesky(B), dtype=np.float64), Q, pattern)
    elif asked.judges_metric:
        floor = None if asked.M is None else np.asarray(np.linalg.inv(asked.block(every)), dtype=np.float64)
        program = Program.descent(B, Q, pattern, floor)
    else:
        program = Program.single(B, Q, pattern)
    model = fresh_model(program, lift)
    return CvxpyForm(model.problem, model.X)
