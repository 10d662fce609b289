"""Runs of ``Feedback``, message by message."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepsize_opt.inputs.checks import check_objective, positive_number, real_array, whole_number
from stepsize_opt.methods import Feedback, FeedbackClient, FeedbackMessage, FeedbackServer
from stepsize_opt.problems import Federated, Objective
from stepsize_solvers.programs import Matrix, Tabled, Vector, plain_rows


@dataclass(frozen=True, eq=False, repr=False)
class FeedbackRun(Tabled):
    """The record of K rounds of ``Feedback``; there is one run, because nothing in it is random.

    Attributes
    ----------
    algorithm : str
        The method, its rule and its places.
    values : numpy.ndarray
        f at the last checked point after 0, …, K rounds, shape (K + 1,).
    bounds : numpy.ndarray
        ‖s‖ + ρ ≥ ‖∇f(xᵏ)‖ in the norm of L̂⁻¹, known in round k, shape (K,); infinite while unknown.
    decrease : numpy.ndarray
        What the steps up to round k lowered f by at least, as the rule required, shape (K,).
    checked : numpy.ndarray
        Whether f was evaluated in a round, shape (K,).
    accepted : numpy.ndarray
        Whether x moved to y, shape (K,).
    floats : numpy.ndarray
        Floats that a client has sent after 0, …, K rounds, on average over the clients, shape (K + 1,); the setup and
        the value of f at the start are among them.
    places : numpy.ndarray
        Indices that a client has sent, in the same way.
    final_point : numpy.ndarray
        The last checked point, with f = ``values[-1]``.
    status : str
        ``"running"`` at the end of the rounds or floats, or ``"stationary to rounding"``.

    Examples
    --------
    See ``run_feedback``.
    """

    algorithm: str
    values: Vector
    bounds: Vector
    decrease: Vector
    checked: Any
    accepted: Any
    floats: Vector
    places: Vector
    final_point: Vector
    status: str

    def __repr__(self) -> str:
        moves = f"{self.checked.sum()} checked, {(self.checked & self.accepted).sum()} of them accepted"
        sent = f"{self.floats[-1]:.6g} floats per client"
        counts = f"{self.iterations} rounds, {moves}, {sent}"
        return f"FeedbackRun({self.algorithm}, {counts}, f = {self.values[-1]:.6g}, {self.status})"

    def _shown(self) -> list[tuple[str, str]]:
        sent = {"floats of a client": self.floats[-1], "places of a client": self.places[-1]}
        values = {"f at the start": self.values[0], "f at the end": self.values[-1], "status": self.status}
        counts = {"rounds": self.iterations, "checked": int(self.checked.sum())}
        return plain_rows({"method": self.algorithm, **counts, **sent, **values})

    @property
    def iterations(self) -> int:
        """K, the rounds that were made."""
        return len(self.accepted)


def run_feedback(
    objective: Objective | Federated,
    feedback: Feedback,
    *,
    rounds: int | None = None,
    floats: float | None = None,
    start: Vector | None = None,
) -> FeedbackRun:
    """Run ``Feedback`` from ``start`` until its rounds or floats are spent or f decreases no further.

    Parameters
    ----------
    objective
        One node, or a ``Federated`` objective with the clients of the ``Feedback``.
    feedback
        The method.
    rounds
        The largest number of rounds; 1000 where ``floats`` is not given either.
    floats
        The run ends before a client sends more floats on average, the setup of the ``Feedback`` included.
    start
        x⁰, default 0.

    Raises
    ------
    ValueError
        For another number of clients, or arguments of the wrong shape or range.

    See Also
    --------
    run : run a stepsize.
    stepsize_opt.Feedback : the method.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt.methods import Feedback
    >>> from stepsize_opt.problems import Quadratic
    >>> from stepsize_validation import run_feedback
    >>> L = np.diag([1.0, 4.0])
    >>> record = run_feedback(Quadratic(L, np.ones(2)), Feedback(L, 1), rounds=20)
    >>> record.iterations, bool(record.values[-1] < record.values[0])
    (20, True)
    """
    if isinstance(objective, Feedback):
        msg = "objective and feedback are swapped: run_feedback(objective, feedback) takes the objective first"
        raise TypeError(msg)
    check_objective("objective", objective)
    if feedback.clients != (objective.n if isinstance(objective, Federated) else 1):
        msg = f"objective must have the {feedback.clients} clients of the Feedback: Feedback(L, k, clients=n)"
        raise ValueError(msg)
    budget = math.inf if floats is None else positive_number("floats", floats)
    start_floats = 1.0 + feedback.setup_floats.mean
    if budget < start_floats + feedback.floats:
        msg = f"floats must have room for one round after the {start_floats:g} floats of setup and f(x0), got {floats}"
        raise ValueError(msg)
    most = whole_number("rounds", rounds) if rounds is not None else 1000 if floats is None else math.inf
    x0 = np.zeros(objective.d) if start is None else real_array("start", start)
    server = feedback.server(feedback.vector("start", x0, objective.d), objective.value(x0[None]))
    clients = [feedback.client(i) for i in range(feedback.clients)]
    gradients = _gradients(objective, server.x)
    values, sent = [server.f], [start_floats]
    rounds_made: list[tuple[float, float, bool, bool]] = []
    while len(rounds_made) < most and sent[-1] + _floats(server) <= budget and server.status == "running":
        sent.append(sent[-1] + _floats(server))
        x, checked = server.x, server.checks
        y = server.proposal(_messages(feedback, server, clients, gradients))
        bound = server.bound
        accepted = server.decide(objective.value(y[None]) if checked else None)
        values.append(server.f)
        rounds_made.append((bound, server.decrease, checked, accepted))
        if server.x is not x:
            gradients = _gradients(objective, server.x)
    bounds, decrease, checks, moves = np.array(rounds_made, dtype=np.float64).reshape(-1, 4).T
    choosers = feedback.clients if feedback.places == "shared" else 1
    return FeedbackRun(
        algorithm=f"feedback, {feedback.rule}, {feedback.places} places",
        values=np.array(values),
        bounds=bounds,
        decrease=decrease,
        checked=checks > 0.0,
        accepted=moves > 0.0,
        floats=np.array(sent),
        places=np.arange(len(values), dtype=np.float64) * feedback.k / choosers,
        final_point=server.checked,
        status=server.status,
    )


def _floats(server: FeedbackServer) -> int:
    """Return the floats that a client sends in the next round."""
    return server.feedback.floats + int(server.checks)


def _gradients(objective: Objective | Federated, x: Vector) -> Matrix:
    """Return ∇fᵢ(x), a row for each client."""
    return objective.client_gradients(x[None])[0] if isinstance(objective, Federated) else objective.gradient(x[None])


def _messages(
    feedback: Feedback, server: FeedbackServer, clients: list[FeedbackClient], gradients: Matrix
) -> list[FeedbackMessage]:
    if feedback.places == "own":
        return [client.message(g) for client, g in zip(clients, gradients, strict=True)]
    first = server.chooser
    chosen = clients[first].message(gradients[first])
    return [chosen if i == first else client.message(gradients[i], chosen.places) for i, client in enumerate(clients)]
