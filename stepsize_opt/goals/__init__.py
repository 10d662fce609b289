"""The goals of a stepsize: what is maximised, and what that guarantees.

With T(D) the left-hand side of the method's condition, H = 2D − T(D) its descent metric and Δ⁰ = f(x⁰) − f^inf:

=========  ==============================  ==================================================================
goal       the rate that is maximised      what it guarantees after K rounds
=========  ==============================  ==================================================================
paper      det(D)^{1/d} with T(D) ⪯ D      (1/K) Σ E‖∇f(xᵏ)‖² ≤ 2Δ⁰/(rate K) in the norm of D/det(D)^{1/d}
descent    det(H)^{1/d}                    the same with H in place of D, without a condition
euclidean  t with H ⪰ tI                   (1/K) Σ E‖∇f(xᵏ)‖² ≤ 2Δ⁰/(t K) in the Euclidean norm
linear     t with H ⪰ tM⁻¹, M ⪯ ∇²f        E f(x^K) − f* ≤ (1 − t)^K Δ⁰
=========  ==============================  ==================================================================

The goals of ``METRIC_GOALS`` judge the descent metric; they are those of ``compression_limit`` and ``plan``.

With momentum (docs/momentum.md) the rate is the t with H ⪰ t²𝒫(M⁻¹), M = I for ``convex``, which needs momentum:

=========  ==================================================================
linear     E f(x^K) − f* ≤ 2(1 − t)^K Δ⁰
convex     E f(x^K) − f* ≤ 2‖x⁰ − x*‖²/(t²K(K + 3)) in the Euclidean norm
=========  ==================================================================

Each is a class: ``base`` has the questions that a goal answers, ``determinants`` log det D and log det H, ``floors``
the largest t, ``momentum`` the t of a method with momentum.
"""

from stepsize_opt.goals.base import (
    Goal as Goal,
    GoalName as GoalName,
    GoalWords as GoalWords,
    Proof as Proof,
    Units as Units,
    coordinates_sent as coordinates_sent,
    goal_class as goal_class,
    stepsize_out_of_range as stepsize_out_of_range,
)
from stepsize_opt.goals.determinants import DescentGoal as DescentGoal, PaperGoal as PaperGoal
from stepsize_opt.goals.floors import (
    EuclideanGoal as EuclideanGoal,
    FloorGoal as FloorGoal,
    LinearGoal as LinearGoal,
    read_strong_convexity as read_strong_convexity,
)
from stepsize_opt.goals.momentum import (
    ConvexMomentum as ConvexMomentum,
    LinearMomentum as LinearMomentum,
    MomentumGoal as MomentumGoal,
)

GOAL_NAMES: tuple[GoalName, ...] = ("paper", "descent", "euclidean", "linear")
METRIC_GOALS: tuple[GoalName, ...] = ("descent", "euclidean", "linear")
CLIENT_GOALS: tuple[GoalName, ...] = ("paper", "descent")
MOMENTUM_GOALS: tuple[GoalName, ...] = ("linear", "convex")
