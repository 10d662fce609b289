"""The named claims on random problems, by Hypothesis: Proposition 1, feasibility, sketches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

from stepsize_opt import Sketch
from stepsize_solvers.programs import Matrix
from stepsize_validation.properties import claims
from stepsize_validation.properties.claims import Mixture
from stepsize_validation.properties.exact import rational
from stepsize_validation.properties.judges import Candidate, Clients, Floats, Node
from stepsize_validation.properties.sketch_checks import Checked, check_sketch, sketch_claims
from stepsize_validation.properties.strategies import seeds, sketches, smoothness_matrices

Sketches = Callable[[int], st.SearchStrategy[Sketch]]

powers = st.integers(-2, 2).map(lambda exponent: 10.0**exponent)
shares = st.fractions(0, 1, max_denominator=8)
algorithms = st.sampled_from(["det-CGD1", "det-CGD2"])


@st.composite
def nodes(draw: st.DrawFn, of_size: Sketches, min_d: int = 1, max_d: int = 5) -> Node:
    """Problems of one node, for det-CGD1 and det-CGD2."""
    L = draw(smoothness_matrices(min_d, max_d, 1e4))
    return Node(L, draw(of_size(len(L))), draw(algorithms))


@st.composite
def mixtures(draw: st.DrawFn, problems: st.SearchStrategy[Node]) -> Mixture:
    """Two stepsizes that satisfy the condition of a problem, on its boundary or inside, and a share."""
    node = draw(problems)
    return Mixture(node, draw(feasible_stepsizes(node)), draw(feasible_stepsizes(node)), draw(shares))


@st.composite
def feasible_stepsizes(draw: st.DrawFn, node: Node) -> Floats:
    """γW for a random W ≻ 0 and the largest γ that rational arithmetic accepts, times a share."""
    rng = np.random.default_rng(draw(seeds))
    root = rng.standard_normal(node.L.shape)
    W: Matrix = root @ root.T + 0.1 * np.eye(len(root))
    gamma = draw(st.sampled_from([1.0, 0.5])) * largest_multiple(node, W)
    return gamma * W


def largest_multiple(node: Node, W: Floats) -> float:
    """Return a γ with γW inside the condition, within 1 % of the largest: γT(W) ⪯ W."""
    T = np.array(claims.moment_of(node, rational(W)), dtype=float)
    root = np.linalg.inv(np.linalg.cholesky(W))
    gamma = 1.0 / float(np.linalg.eigvalsh(root @ T @ root.T)[-1])
    while not Candidate.of(node, gamma * W).satisfies_condition():
        gamma *= 0.999
    return gamma


@st.composite
def clients(draw: st.DrawFn, of_size: Sketches, min_d: int = 1, max_d: int = 4) -> Clients:
    """Two to four clients with one sketch and ordinary targets."""
    first = draw(smoothness_matrices(min_d, max_d, 1e3))
    d = len(first)
    others = draw(st.lists(smoothness_matrices(d, d, 1e3), min_size=1, max_size=3))
    matrices, sketch = (first, *others), draw(of_size(d))
    epsilon2, initial_gap, delta_inf = (draw(powers) for _ in range(3))
    return Clients(matrices, (sketch,) * len(matrices), epsilon2, initial_gap, delta_inf, draw(algorithms))


@dataclass(frozen=True)
class Check:
    """A claim, the problems that it is about, and the function that raises AssertionError where it is false."""

    claim: str
    unit: str
    problems: st.SearchStrategy[Any]
    holds: Callable[[Any], object]


def checks(of_size: Sketches = sketches, d: int | None = None) -> tuple[Check, ...]:
    """Return the named checks, for the sketches and the size given or for all."""
    sizes = {} if d is None else {"min_d": d, "max_d": d}
    node, distributed = nodes(of_size, **sizes), clients(of_size, **sizes)
    pairs = {
        "Proposition 1: the D that satisfy (3) or (4) are a convex set": claims.feasible_set_is_convex,
        "Proposition 1: E[SDLDS] and D E[SLS] D are matrix-convex": claims.moment_is_matrix_convex,
        "Proposition 1: −log det is convex": claims.log_det_is_concave,
    }
    optima = {
        "the optimal D satisfies (3) or (4)": claims.returned_is_feasible,
        "the optimal D enlarged by 1 % does not": claims.enlarged_violates,
    }
    optima_of_clients = {
        "D and K of clients satisfy (12) or (12′)": claims.clients_are_feasible,
        "D enlarged by 1 % does not for this K": claims.enlarged_clients_violate,
    }
    drawn = node.map(lambda problem: problem.sketch)
    return (
        *(Check(claim, "pairs of D", mixtures(node), holds) for claim, holds in pairs.items()),
        *(Check(claim, "problems", node, holds) for claim, holds in optima.items()),
        *(Check(claim, "problems", distributed, holds) for claim, holds in optima_of_clients.items()),
        Check("a sketch is what it says", "sketches", drawn, partial(check_sketch, samples=500)),
    )


def check_claims(examples: int, seed: int, sketch: Sketch | None = None) -> Iterator[Checked]:
    """Yield every claim with its outcome, for sketches of every kind; a given one is first checked claim by claim."""
    if sketch is None:
        chosen = checks()
    else:
        yield from sketch_claims(sketch, samples=4000, seed=seed)
        chosen = checks(lambda d: st.just(sketch), sketch.d)[:-1]
    for check in chosen:
        yield run_check(check, examples, seed)


def run_check(check: Check, examples: int, seed: int) -> Checked:
    """Check a claim on random examples; a failure has the smallest example that Hypothesis finds."""
    seen: list[Any] = []

    @with_seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example),
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
    )
    @given(check.problems)
    def holds(example: Any) -> None:
        seen.append(example)
        check.holds(example)

    try:
        holds()
    except AssertionError as error:
        return Checked(check.claim, len(seen), check.unit, f"{error}; smallest example: {seen[-1]!r}")
    return Checked(check.claim, len(seen), check.unit)
