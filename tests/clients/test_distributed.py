"""Optimal stepsizes of n clients: every result is judged in exact arithmetic, and optima against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.clients import TARGETS, judged, problem_of, random_clients
from shared.one_step import distributed_one_step
from stepsize_opt import (
    BernQ,
    BlockDiagonal,
    DiagonalSketch,
    Direction,
    FiniteSketch,
    Gaussian,
    Identity,
    IndependentSampling,
    LayerWise,
    RandK,
    Sketch,
    available_solvers,
    compare_distributed,
    optimal_distributed_stepsize,
    optimal_stepsize,
)
from stepsize_opt.clients import search
from stepsize_opt.clients.fit import Multiples, best_multiple
from stepsize_opt.clients.problem import Targets
from stepsize_opt.goals import CLIENT_GOALS
from stepsize_opt.planning import dcgd_stepsize
from stepsize_opt.problems import Federated, Quadratic
from stepsize_opt.proofs import (
    CentredMap,
    ClientGroup,
    Conditions,
    Enclosed,
    Multipliers,
    Pair,
    dominating_factor,
    metric_bound,
    tangent_bound,
)
from stepsize_opt.results import DistributedResult
from stepsize_solvers.programs import Matrix, Outcome, Pattern, SolverStats, Status
from stepsize_validation import distributed_lambda
from stepsize_validation.properties.exact import (
    combine,
    condition_slack,
    definiteness,
    descent_metric,
    is_positive_semidefinite,
    product,
    rational,
)
from stepsize_validation.properties.judges import DistributedPoint
from stepsize_validation.properties.strategies import seeds, sketches

OTHERS = [solver.name for solver in available_solvers() if solver.available and solver.name != "native"]
BOTH = pytest.mark.parametrize("algorithm", ["det-CGD1", "det-CGD2"])
INVERSE = "D ⪯ L⁻¹"


def solve(clients: Any, sketch: Any, **options: Any) -> DistributedResult:
    return optimal_distributed_stepsize(clients, sketch, **{**TARGETS, **options})


@BOTH
@pytest.mark.parametrize(
    ("structure", "sketch"),
    [
        ("full", RandK(4, 1)),
        ("full", Gaussian(4, 2)),
        ("diagonal", IndependentSampling([0.2, 0.5, 0.7, 1.0])),
        ("scalar", BernQ(0.5, 4)),
        (BlockDiagonal((2, 2)), RandK(4, 1)),
        (Direction(np.eye(4), (1, 3)), Gaussian(4, 2)),
    ],
    ids=str,
)
def test_every_structure_is_optimal(algorithm: str, structure: Any, sketch: Sketch) -> None:
    options = {"algorithm": algorithm, "structure": structure, "delta_inf": 0.4}
    for epsilon2 in (1e-2, 3.0):  # D ⪯ L⁻¹ slack, then active for most
        result = judged(random_clients(4, 3, 1), sketch, epsilon2=epsilon2, **options)
        assert result.status == "optimal" and result.gap <= 1e-6
        assert result.smallest_K <= result.K <= result.smallest_K + 1
        assert result.communication() == pytest.approx(3 * result.K * sketch.expected_nonzeros)


@pytest.mark.parametrize("structure", ["scalar", "diagonal", "full"])
def test_scalar_problems_have_the_closed_form_of_dcgd(structure: str) -> None:
    """Lᵢ = ℓᵢI and D = γI: the remark after Corollary 1."""
    d, scalars = 5, np.array([0.7, 2.0, 1.3])
    for k, epsilon2, initial_gap, delta_inf in ((1, 1e-3, 1.03, 0.1), (2, 0.5, 0.01, 3.07), (4, 4.0, 1.1, 0.0)):
        goal = {"epsilon2": epsilon2, "initial_gap": initial_gap, "delta_inf": delta_inf}
        result = solve([s * np.eye(d) for s in scalars], RandK(d, k), structure=structure, **goal)
        expected = dcgd_stepsize(float(np.mean(scalars)), float(scalars.max()), d / k - 1.0, clients=3, **goal)
        accuracy = 1e-9 if structure == "scalar" else 1e-6
        assert result.rate == pytest.approx(expected.gamma, rel=accuracy)
        # 12Δ⁰/(γε²) may be a whole number exactly; then the proof, which gives way by rounding errors, takes one more.
        assert 0 <= result.K - expected.K <= 1 + accuracy * expected.K


@pytest.mark.parametrize(("omega", "delta_inf"), [(0.0, 0.1), (3.0, 0.0), (3.0, 0.1)])
def test_scalars_satisfy_their_conditions_without_rounding(omega: float, delta_inf: float) -> None:
    """γ is rounded down: nearest floats miss their conditions for some of these numbers."""
    for i in range(1, 20):
        L, L_max = i / 7.0, i / 3.0
        found = dcgd_stepsize(L, L_max, omega, clients=3, epsilon2=0.1, initial_gap=1.0, delta_inf=delta_inf)
        gamma, noise = Fraction(found.gamma), Fraction(L) * Fraction(L_max) * Fraction(omega)
        assert gamma * Fraction(L) <= 1
        assert gamma**2 * noise * found.K <= 3
        assert 4 * gamma * noise * Fraction(delta_inf) <= 3 * Fraction(0.1)


def test_one_client_of_det_cgd2_is_a_geometric_mean() -> None:
    """D = √c (𝒞(L)⁻¹ # L₁⁻¹) when D ⪯ L⁻¹ is slack."""
    (L1,) = random_clients(5, 1, 8)
    L = 2.0 * L1 + 0.1 * np.eye(5)
    result = judged([L1], RandK(5, 1), mean=L, algorithm="det-CGD2", delta_inf=0.2)
    assert result.solver_stats.solver_name == "closed form" and result.gap < 1e-9
    w, V = np.linalg.eigh(RandK(5, 1).centered_second_moment(L))
    R = (V * np.sqrt(w)) @ V.T
    w, V = np.linalg.eigh(R @ np.linalg.inv(L1) @ R)
    mean = np.linalg.inv(R) @ ((V * np.sqrt(w)) @ V.T) @ np.linalg.inv(R)
    np.testing.assert_allclose(result.D / np.trace(result.D), mean / np.trace(mean), rtol=1e-8)


UNTOUCHED = [
    IndependentSampling([1.0, 0.5, 0.5]),
    LayerWise([Identity(1), RandK(2, 1)]),
    DiagonalSketch([[1.0, 2.0, 0.0], [1.0, 0.0, 2.0]], [0.5, 0.5]),
]
# A sketch, other arguments, a note of the rule that answers, and how many programs run.
RULES: list[tuple[Sketch, dict[str, Any], str, int]] = [
    (Identity(3), {}, "closed form D = L⁻¹", 1),
    (RandK(3, 2), {"epsilon2": 3.0}, "closed form D = L⁻¹", 1),
    (RandK(3, 1), {}, "D ⪯ L⁻¹ is slack", 1),
    (RandK(3, 1), {"structure": Direction(np.diag([1.0, 2.0, 4.0]))}, "closed form for a fixed direction", 1),
    # All three conditions bind: the program with n/K does not decide.
    (RandK(3, 2), {"epsilon2": 1.0, "initial_gap": 1e-9, "delta_inf": 2.0, "iterations": 1}, "linear in A", 3),
    # λ_D does not bound a row of D that is never compressed: it stays near L⁻¹ while the others shrink with ε².
    *[(UNTOUCHED[i], {"epsilon2": 1e-10}, "the scale separates for the coordinates", 1 + (i > 0)) for i in range(3)],
    # Only the bound of the rows that λ_D sees is tight here.
    (UNTOUCHED[0], {"epsilon2": 1e-40, "algorithm": "det-CGD2"}, "the scale separates for the coordinates", 2),
]


@pytest.mark.parametrize(("sketch", "options", "note", "programs"), RULES)
def test_which_rule_answers(sketch: Sketch, options: dict[str, Any], note: str, programs: int) -> None:
    clients = random_clients(3, 2, 1)
    result = judged(clients, sketch, **options)
    assert result.status == "optimal" and note in "; ".join(result.reductions)
    assert len(result.solver_stats.extra_stats["runs"]) == programs
    assert (result.solver_stats.solver_name == "closed form") is note.startswith("closed form")
    if isinstance(sketch, Identity):
        assert result.binding == (INVERSE,) and result.lambda_D == 0.0
        np.testing.assert_allclose(result.D, np.linalg.inv(np.mean(clients, axis=0)), rtol=1e-9)


def test_layers_have_a_factor_each() -> None:
    W = np.diag([1.0, 2.0, 4.0])
    result = judged(random_clients(3, 2, 0), RandK(3, 1), structure=Direction(W, (1, 2)))
    assert len(result.gammas) == 2 and "D/W" in str(result)
    np.testing.assert_allclose(np.diagonal(result.D), np.repeat(result.gammas, (1, 2)) * np.diagonal(W), rtol=1e-12)
    assert judged(random_clients(3, 2, 0), RandK(3, 1)).gammas == ()


@pytest.mark.parametrize("status", [Status.INACCURATE, Status.SOLVER_ERROR])
def test_a_program_that_got_stuck_is_no_last_word(status: Status, monkeypatch: pytest.MonkeyPatch) -> None:
    solved, seen = search._solved, []

    def stuck(question: Any, program: Any) -> Outcome:
        seen.append(program)
        settings = replace(question.settings, max_iters=3 if len(seen) == 1 else None)
        outcome = solved(replace(question, settings=settings), program)
        return outcome if len(seen) > 1 else replace(outcome, status=status, message="stuck")

    monkeypatch.setattr(search, "_solved", stuck)
    result = judged(random_clients(3, 2, 1), RandK(3, 1))
    stopped = status is Status.SOLVER_ERROR
    assert len(seen) == 2 - stopped and result.status == ("optimal_inaccurate" if stopped else "optimal")
    assert ("native: stuck" in result.message) is stopped and "native: stuck" in result.reductions


def test_a_limit_of_the_user_before_the_first_point_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_solved", lambda *_: Outcome(Status.USER_LIMIT, None, (), SolverStats("native")))
    result = solve(random_clients(3, 2, 1), RandK(3, 1))
    assert result.status == "user_limit" and result.certificate.feasible


@BOTH
@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar", BlockDiagonal((1, 3))], ids=str)
def test_singular_clients(algorithm: str, structure: Any) -> None:
    """Lᵢ of rank one and two whose mean is positive definite, one of them with a zero row."""
    rng = np.random.default_rng(0)
    factors = [rng.integers(-9, 9, (4, 1)), rng.integers(-9, 9, (4, 2)), np.diag([1, 1, 1, 0])]
    clients = [(A @ A.T).astype(float) for A in factors]  # whole numbers: semidefinite as they stand
    for sketch in (RandK(4, 2), BernQ(0.5, 4)):
        assert judged(clients, sketch, algorithm=algorithm, structure=structure, delta_inf=0.2).status == "optimal"


@pytest.mark.parametrize("structure", ["full", "diagonal", "scalar"])
def test_variance_that_vanishes(structure: str) -> None:
    """The only compressed coordinate is one that no client's loss depends on beyond rounding: λ_D is zero."""
    clients = [np.diag([1.0, 2.0, 0.0]), np.zeros((3, 3))]
    mean = np.diag([0.5, 1.0, 0.1])
    result = judged(clients, IndependentSampling([1.0, 1.0, 0.5]), mean=mean, structure=structure)
    assert result.status == "optimal" and result.lambda_D < 1e-9 and result.binding == (INVERSE,)


@BOTH
@pytest.mark.parametrize("structure", ["full", "diagonal"])
def test_clients_without_a_loss_and_with_sketches_of_their_own(algorithm: str, structure: str) -> None:
    zero, (L, M) = np.zeros((3, 3)), random_clients(3, 2, 3)
    options = {"algorithm": algorithm, "structure": structure}
    result = judged([L, M, zero], [RandK(3, 1), Identity(3), RandK(3, 2)], **options)
    assert result.status == "optimal" and result.floats_per_client == (result.K, 3 * result.K, 2 * result.K)
    result = judged([zero, zero], [RandK(3, 1), RandK(3, 2)], mean=L, **options)
    assert result.status == "optimal" and result.lambda_D == 0.0 and result.binding == (INVERSE,)
    # Families of constraints that never count keep their place in the relaxations.
    laws = [(RandK(4, 1), RandK(4, 2), RandK(4, 3))[i % 3] for i in range(24)]
    assert judged(random_clients(4, 24, 0), laws, **options).status == "optimal"


def test_equal_clients_are_dropped() -> None:
    base = random_clients(4, 2, 0)
    clients = [base[i % 2] for i in range(200)] + [np.zeros((4, 4))] * 2
    L = np.mean(base, axis=0)
    result = judged(clients, RandK(4, 1), mean=L)
    assert "198 clients equal to others" in result.reductions
    assert result.status == "optimal" and len(result.floats_per_client) == 202
    # The same problem with the two that count; n multiplies every bound, so K is divided by 101.
    assert result.K == pytest.approx(judged(base, RandK(4, 1), mean=L).K / 101, rel=1e-5, abs=1)


@BOTH
@pytest.mark.parametrize(("delta_inf", "names"), [(2.0, ["n/K"]), (3.0, ["n/K", "4Δ^inf"]), (4.5, ["4Δ^inf"])])
def test_only_conditions_that_are_tight_bind(algorithm: str, delta_inf: float, names: list[str]) -> None:
    """The two bounds on λ_D are nε²τ over 12Δ⁰ and over 4Δ^inf: here a factor 3/2 apart, or equal."""
    result = judged(random_clients(3, 3, 1), RandK(3, 1), delta_inf=delta_inf, algorithm=algorithm)
    assert result.K > 10**4 and len(result.binding) == len(names)
    assert all(name in condition for name, condition in zip(names, result.binding, strict=True))


@BOTH
@pytest.mark.parametrize("K", [1, 40, 400, 10**9])
def test_a_given_number_of_iterations(algorithm: str, K: int) -> None:
    problem = {"epsilon2": 0.1, "algorithm": algorithm}
    clients, sketch = random_clients(4, 3, 3), RandK(4, 2)
    free = judged(clients, sketch, **problem)
    result = judged(clients, sketch, iterations=K, **problem)
    assert result.status == ("optimal" if free.K <= K else "infeasible")
    assert result.K == max(K, free.K)
    assert (str(free.K) in result.message) is (result.status == "infeasible")
    assert (result.rate < free.rate) is (K > free.K)  # more iterations allow less variance
    assert judged(clients, sketch, initial_gap=0.0, **problem).K == 1


@BOTH
@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(-4.0, 1.0), st.integers(1, 10**5))
def test_a_direction_tells_whether_D_itself_is_feasible(algorithm: str, seed: int, power: float, K: int) -> None:
    """D satisfies (12) for K if and only if γ ≥ 1 and K ≥ 12Δ⁰/(τε²), γD the best multiple; decided by rationals."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((3, 3))
    D = 10.0**power * (A @ A.T + 0.1 * np.eye(3))
    problem = problem_of(random_clients(3, 2, seed), RandK(3, 1), algorithm=algorithm, iterations=K, epsilon2=1.0)
    result = optimal_distributed_stepsize(**{**problem.arguments, "structure": Direction(D)})
    (gamma,) = result.gammas
    np.testing.assert_allclose(result.D, gamma * D, rtol=1e-12)
    assume(abs(gamma - 1.0) > 1e-9)
    point, targets = DistributedPoint(problem, rational(D)), result.targets
    rate = float(point.det) ** (1.0 / 3.0)
    bounds = point.descends() and point.variance_at_most(Fraction(targets.lambda_allowed(K, rate)))
    assert (bounds and targets.enough(K, rate)) is (gamma > 1.0 and targets.enough(K, rate))
    if result.status == "optimal":
        assert bounds is (gamma > 1.0)


@BOTH
@pytest.mark.parametrize("epsilon2", [1e-3, 1.0, 30.0])
def test_the_descent_rate_of_a_result(algorithm: str, epsilon2: float) -> None:
    """H ⪰ D under D ⪯ L⁻¹, and small steps have twice the rate."""
    clients = random_clients(3, 3, 0)
    result = judged(clients, RandK(3, 1), epsilon2=epsilon2, algorithm=algorithm)
    H = 2.0 * result.D - result.D @ np.mean(clients, axis=0) @ result.D
    assert result.descent_rate == pytest.approx(math.exp(np.linalg.slogdet(H)[1] / 3), rel=1e-9)
    assert result.rate <= result.descent_rate <= 2.0 * result.rate
    expected = math.ceil(12.0 / (result.descent_rate * epsilon2))
    assert result.iterations() == min(result.K, max(1, expected))


@BOTH
@pytest.mark.parametrize("lengthened", [1.0, 1.9])
def test_the_step_of_the_descent_proof_by_enumeration(algorithm: str, lengthened: float) -> None:
    """E f(x⁺) ≤ f − ½‖∇f‖²_{2D−DLD} + (λ_D/n)(f − (1/n)Σfᵢ^inf), also for D beyond L⁻¹."""
    rng = np.random.default_rng(2)
    matrices = random_clients(3, 3, 4)
    f = Federated(tuple(Quadratic(L, rng.standard_normal(3)) for L in matrices))
    L, sketch = f.smoothness(), RandK(3, 1)
    D = lengthened * np.linalg.inv(L)
    lam = distributed_lambda(D, L, matrices, sketch, algorithm)
    X = rng.standard_normal((20, 3))
    H = 2.0 * D - D @ L @ D
    assert distributed_one_step(f, D, sketch, X, 0.0, lam, algorithm, H).holds
    # The clients' part aside, the step is an equality on quadratics: no larger metric would do.
    assert np.any(distributed_one_step(f, D, sketch, X, 0.0, 0.0, algorithm, H).excess > 0.0)


@BOTH
@pytest.mark.parametrize("structure", ["full", "diagonal"])
@pytest.mark.parametrize("name", OTHERS)
def test_every_solver_agrees_within_its_certified_gap(name: str, algorithm: str, structure: str) -> None:
    problem = {"epsilon2": 0.3, "algorithm": algorithm, "structure": structure}
    clients, sketch = random_clients(4, 3, 2), RandK(4, 1)
    own = solve(clients, sketch, **problem)
    other = judged(clients, sketch, solver=name, **problem)
    assert other.gap <= (0.05 if name == "scs" else 1e-3)
    assert other.certificate.log_det <= own.certificate.upper_bound
    assert own.certificate.log_det <= other.certificate.upper_bound


def test_sketches_are_read_from_text() -> None:
    clients = random_clients(3, 2, 0)
    assert solve(clients, "randk:1").sketches == (RandK(3, 1), RandK(3, 1))
    assert solve(clients, ["randk:1", RandK(3, 2)]).sketches == (RandK(3, 1), RandK(3, 2))


# ---------------------------------------------------------------- shared seeds: n clients are one node


SHARED: dict[str, Any] = {"epsilon2": 0.1, "initial_gap": 1.0, "delta_inf": 0.5}


@settings(max_examples=25, deadline=None)
@given(
    st.data(),
    st.sampled_from(["det-CGD1", "det-CGD2"]),
    st.sampled_from(CLIENT_GOALS),
    st.sampled_from(["full", "diagonal", "scalar"]),
    seeds,
)
def test_what_is_claimed_is_exact(data: st.DataObject, algorithm: str, goal: Any, structure: Any, seed: int) -> None:
    """For the exact mean L: the condition (or H ≻ 0), the rates, and K ≥ 2Δ⁰/(rate ε²)."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 4))
    sketch = data.draw(sketches(d, "RandK", "BernQ", "IndependentSampling"))
    clients = random_clients(d, 3, seed)
    options: dict[str, Any] = {"algorithm": algorithm, "structure": structure, "goal": goal}
    result = optimal_distributed_stepsize(clients, sketch, seeds="shared", **options, **SHARED)
    assert result.status == "optimal" and result.lambda_D == result.neighbourhood == 0.0
    assert result.binding == (("T(D) ⪯ D",) if goal == "paper" else ())
    D, L = rational(np.array(result.D)), combine(*[(Fraction(1, 3), rational(M)) for M in clients])
    if goal == "paper":
        assert is_positive_semidefinite(condition_slack(D, L, sketch, algorithm))
        assert Fraction(result.rate) ** d <= definiteness(D).det
    assert Fraction(result.descent_rate) ** d <= definiteness(descent_metric(D, L, sketch, algorithm)).det
    for K, rate in ((result.K, result.rate), (result.iterations(), result.descent_rate)):
        assert K * Fraction(rate) * Fraction(0.1) >= 2
    assert result.smallest_K <= result.K <= result.smallest_K + 1
    # The same as one node, and fewer rounds than independent seeds are proved to need.
    node = optimal_stepsize(np.mean(clients, axis=0), sketch, **options)
    assert result.iterations() == pytest.approx(node.iterations(0.1, 1.0), abs=1)
    independent = optimal_distributed_stepsize(clients, sketch, **{**options, "goal": "paper"}, **SHARED)
    assert result.iterations() <= independent.iterations()


@pytest.mark.parametrize(("K", "status"), [(1, "infeasible"), (41, "optimal"), (1000, "optimal")])
def test_a_given_number_of_rounds(K: int, status: str) -> None:
    clients = random_clients(5, 3, 0)
    result = optimal_distributed_stepsize(clients, RandK(5, 1), seeds="shared", iterations=K, **SHARED)
    assert result.status == status and result.K == max(K, 41)
    assert result.floats_per_client == (result.K,) * 3
    assert ("too small under the condition" in result.message) == (status == "infeasible")
    mean = 2.0 * clients[0]
    other = optimal_distributed_stepsize(clients, RandK(5, 1), mean_smoothness=mean, seeds="shared", **SHARED)
    np.testing.assert_allclose(other.D, optimal_stepsize(mean, RandK(5, 1)).D, rtol=1e-4)


def test_what_is_shown() -> None:
    """One K stands on the first line, that of the run; shared seeds are recommended where they can be."""
    clients = random_clients(5, 3, 0)
    result, mixed = solve(clients, RandK(5, 1)), solve(clients, [RandK(5, 1), RandK(5, 2), RandK(5, 2)])
    shown = f"{result.iterations():_}".replace("_", " ")
    assert repr(result).splitlines()[1].removeprefix("  run").strip().startswith(f"K = {shown} iterations, by descent")
    assert result.summary()["guarantee_used"] == "descent, det(H)^(1/d)" and result.iterations() < result.K
    assert result.neighbourhood <= TARGETS["epsilon2"] / 2.0 * (1.0 + 1e-12)
    assert "if all clients draw the same sketch" in str(result) and "shared seeds" not in str(mixed)


def test_a_comparison_shows_shared_seeds_first() -> None:
    clients = random_clients(4, 3, 1)
    seen: list[tuple[int, int, str]] = []
    table = compare_distributed(clients, RandK(4, 1), on_progress=lambda *now: seen.append(now), **SHARED)
    assert [(done, total) for done, total, _ in seen] == [(i, len(table.rows)) for i in range(len(table.rows) + 1)]
    solved = [name.partition(",")[0] for _, _, name in seen[:-1]]
    assert sorted(solved) == sorted(row.method for row in table.rows)
    assert [row.seeds for row in table.rows[:3]] == ["shared", "shared", "independent"]
    assert [row.rounds for row in table.rows] == sorted(row.rounds for row in table.rows)
    by = {(row.method, row.stepsize): row.rounds for row in table.rows if row.seeds == "independent"}
    for method in ("D-det-CGD1", "D-det-CGD2"):
        assert by[method, "full"] <= by[method, "diagonal"]
    assert table.to_records()[0]["seeds"] == "shared"
    assert "D-det-CGD2" in repr(table)
    mixed = compare_distributed(clients, [RandK(4, 1), RandK(4, 2), RandK(4, 2)], **SHARED)
    assert all(row.seeds == "independent" for row in mixed.rows)


# ----------------------------------------------------------------
# what is proved for n clients: bounds from any multipliers, the true mean, targets and units of every size


def conditions_of(clients: list[Matrix], sketch: Sketch, *, outside: bool) -> Conditions:
    d = sketch.d
    group = ClientGroup(CentredMap(sketch.map, np.arange(d)), np.array(clients))
    L = Pair.exact(np.mean(clients, axis=0))
    return Conditions(L, (group,), outside, Pattern.full(d), np.ones(d))


@BOTH
def test_any_multipliers_give_a_valid_bound(algorithm: str) -> None:
    """Random multipliers: no bound is below the optimum."""
    clients, sketch = random_clients(4, 3, 12), RandK(4, 1)
    known = judged(clients, sketch, epsilon2=1.0, algorithm=algorithm)
    linear = algorithm == "det-CGD1"
    conditions = conditions_of(clients, sketch, outside=linear)
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(40):
        U = rng.standard_normal((3, 4, 4)) * 10.0 ** rng.uniform(-2, 1)
        inverse = np.triu(rng.standard_normal((4, 4))) * 10.0 ** rng.uniform(-1, 1) if rng.random() < 0.7 else None
        reference = known.D * 10.0 ** rng.uniform(-1, 0.3)
        multipliers = Multipliers((U,), inverse)
        bound = metric_bound(conditions, multipliers) if linear else tangent_bound(conditions, multipliers, reference)
        if bound is None:
            continue
        for value in (bound.at_factor(known.targets.log_limits(None)[1]), bound.at_lambda(math.log(known.lambda_D))):
            found += math.isfinite(value)
            assert value >= known.certificate.log_rate - 1e-9
    assert found > 20


@pytest.mark.parametrize("rank", [2, 3])
def test_the_factor_dominates_in_exact_arithmetic(rank: int) -> None:
    A = np.random.default_rng(rank).standard_normal((3, rank))
    L = A @ A.T
    L = 0.5 * (L + L.T)
    H = dominating_factor(L)
    assert H is not None
    assert definiteness(combine((1, product(rational(H), rational(H.T))), (-1, rational(L)))).det > 0
    assert dominating_factor(np.diag([1.0, -1.0, 1.0])) is None


def test_no_bound_on_the_variance_is_proved_by_a_number_that_is_none() -> None:
    conditions = conditions_of([np.eye(2)], RandK(2, 1), outside=True)
    for arithmetic in (Enclosed, Pair):
        at = conditions.at(np.eye(2), arithmetic)
        assert at.proves(1.1) and at.proves(math.inf)
        for c in (0.9, math.nan, -math.inf):
            assert not at.proves(c)


def test_targets_are_decided_by_rational_numbers() -> None:
    targets = Targets(0.1, 1.0, 0.3, 7)
    assert targets.enough(120, 1.0) is (Fraction(120) * Fraction(0.1) >= 12)
    K = targets.least_iterations(0.37)
    assert targets.enough(K, 0.37) and not targets.enough(K - 1, 0.37)
    assert Fraction(targets.lambda_allowed(3 * 10**12, 1.0)) <= Fraction(7, 3 * 10**12)
    assert Targets(0.1, 0.0, 0.0, 1).kappa is None and Targets(0.1, 0.0, 0.0, 1).log_limits(None)[1] == math.inf
    for i in range(1, 20):
        lam, rate = Fraction(i / 7.0), Fraction(i / 3.0)
        exact = 2 * lam * Fraction(0.3) / (rate * 7)
        assert exact <= Fraction(targets.neighbourhood(float(lam), float(rate)))


@pytest.mark.parametrize("error", [0.0, 1e-9, 1e-7])
def test_the_rate_before_K_is_rounded_satisfies_its_condition(error: float) -> None:
    """λ_D ≤ κτ for the real K = 12Δ⁰/(τε²) is proved, also where the estimate of λ_D that sets the scale is too low.

    D = sI, L = I and RandK(2, 1): λ_D = s² and τ = s, so that the largest s is κ.
    """
    conditions, targets = conditions_of([np.eye(2)], RandK(2, 1), outside=True), Targets(1e-3, 1.0, 0.3, 1)
    direction = Multiples.of(conditions, np.eye(2))
    assert direction is not None and direction.log_lambda == pytest.approx(0.0, abs=1e-14)
    best = best_multiple(conditions, targets, replace(direction, log_lambda=direction.log_lambda - error), None)
    assert best is not None and targets.kappa is not None
    assert -1e-6 <= best.free_log_rate - math.log(targets.kappa) <= 0.0


@BOTH
@pytest.mark.parametrize("n", [41, 100])
def test_the_mean_that_is_meant_is_not_a_float(algorithm: str, n: int) -> None:
    """n equal clients with D ⪯ L⁻¹ active: a sum of n floats divided by n misses the matrix by many roundings."""
    L1 = np.array([[1.1, 0.5], [0.5, 1 / 3 + 0.1]])
    targets = {"epsilon2": 1e6, "initial_gap": 1e-6, "delta_inf": 0.0}
    for structure in ("full", "diagonal", "scalar"):
        result = judged([L1] * n, RandK(2, 1), algorithm=algorithm, structure=structure, **targets)
        assert result.status == "optimal" and "D ⪯ L⁻¹" in result.binding


def test_untouched_coordinates_are_those_of_the_law_not_of_rounded_moments() -> None:
    nearly = DiagonalSketch([[1.0 - 2.0**-30, 2.0], [1.0 + 2.0**-30, 0.0]], [0.5, 0.5])
    assert nearly.second_moment_matrix[0, 0] == 1.0 and not nearly.untouched.any()
    assert IndependentSampling([1.0, 1.0 - 2.0**-53]).untouched.tolist() == [True, False]
    rotation = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    assert FiniteSketch([rotation, 2.0 * np.eye(3) - rotation], [0.5, 0.5]).untouched.tolist() == [True, False, False]
    assert LayerWise([Identity(1), Gaussian(2, 1)]).untouched.tolist() == [True, False, False]


@BOTH
@pytest.mark.parametrize("ratio", [0.0, 1e6])
def test_orders_of_magnitude_do_not_cost_accuracy(algorithm: str, ratio: float) -> None:
    goal = {"epsilon2": 1e-8, "initial_gap": 1e-3, "delta_inf": 1e-3 * ratio}
    assert judged(random_clients(5, 3, 7), RandK(5, 1), algorithm=algorithm, **goal).status == "optimal"


@BOTH
@pytest.mark.parametrize("power", [-100, 100])
def test_units_of_any_size(algorithm: str, power: int) -> None:
    """L and ε², Δ⁰, Δ^inf in other units: exact powers of two are taken out, so that nothing is lost."""
    clients, sketch = random_clients(3, 3, 2), RandK(3, 1)
    unit = 10.0**power
    plain = judged(clients, sketch, algorithm=algorithm)
    result = judged(clients, sketch, epsilon2=1e-2 * unit, initial_gap=unit, delta_inf=0.1 * unit, algorithm=algorithm)
    assert result.status == "optimal" and result.K == pytest.approx(plain.K, rel=1e-6)
    other = judged([unit * L for L in clients], sketch, epsilon2=1e-2 * unit, algorithm=algorithm)
    # λ_D does not change when D is divided by the unit, so ε²τ does not either.
    assert other.status == "optimal" and other.K == pytest.approx(plain.K, rel=1e-6)


def test_the_units_of_coordinates_do_not_matter() -> None:
    """Coordinates in other units give the same stepsize in those units, up to the scale that the targets set."""
    clients, sketch = random_clients(4, 3, 2), RandK(4, 2)
    units = np.array([2.0**-20, 1.0, 2.0**10, 2.0**5])
    plain, scaled = judged(clients, sketch), judged([units[:, None] * M * units for M in clients], sketch)
    factor = math.exp(2.0 * float(np.mean(np.log(units))))
    # For the same λ_D, τ is divided by the factor; λ_D ≤ κτ then divides the scale of D by it once more.
    assert scaled.status == plain.status == "optimal"
    shapes = [D / math.exp(np.linalg.slogdet(D)[1] / 4) for D in (units[:, None] * scaled.D * units, plain.D)]
    np.testing.assert_allclose(*shapes, rtol=1e-4, atol=1e-7)
    assert scaled.K == pytest.approx(plain.K * factor**2, rel=1e-5, abs=1.5)  # K is whole


@BOTH
def test_small_targets_are_solved_or_refused(algorithm: str) -> None:
    clients, sketch = random_clients(3, 2, 1), RandK(3, 1)
    result = judged(clients, sketch, epsilon2=1e-140, algorithm=algorithm)
    assert result.status == "optimal" and result.K > 10**270
    tiny: dict[str, Any] = {"epsilon2": 1e300, "initial_gap": 1e-9, "delta_inf": 0.0}
    for matrices, options, message in (
        (clients, {"epsilon2": 1e-200}, r"λ_D would be about 1e-40\d, beyond what float64 holds; take epsilon2"),
        ([L * 1e-308 for L in clients], tiny, r"the rate would be about 1e\+3"),
        ([np.diag([1e-309, 1.0, 1.0])], {"epsilon2": 1e9}, "diagonal of D reaches"),
        (clients, {"iterations": 10**400}, "iterations would be about"),
    ):
        with pytest.raises(ValueError, match=message):
            judged(matrices, sketch, algorithm=algorithm, **options)
    for K in (2**53 + 1, 10**30 + 1):  # whole numbers stay exact
        assert judged(clients, sketch, algorithm=algorithm, iterations=K).K == K
