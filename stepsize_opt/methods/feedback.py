"""Error feedback in an L-orthonormal basis with a measured stepsize (proofs: docs/feedback.md).

A is a d×d matrix with A Aᵀ = L̂⁻¹.  Client i remembers eᵢ, everybody knows x, s = (1/n) Σ eᵢ and c.  One round:

    client i:  tᵢ = Aᵀ∇fᵢ(x), eᵢ ← tᵢ at the k places where |tᵢ − eᵢ| is largest; it sends what changed
    everybody: ρ ≥ (1/n) Σ‖tᵢ − eᵢ‖, y = x − cAs, q = c max(τ‖s‖², σ(‖s‖ + ρ)²)

Every second round is checked; in between x ← y.  At a check client i sends fᵢ(y), and with z the last checked point and
p the q of the step from there to x (0 where x = z):

    accept     x ← y if f(y) ≤ f(z) − p − q, and c grows; else x ← z, c shrinks, and every round is checked until one
               is accepted.

What a client did not send is at most its smallest change sent, so that ρ costs no float: ‖tᵢ − eᵢ‖ ≤ √(d − k) times it.
Aᵀ∇f(x) = s + r̄ with ‖r̄‖ ≤ ρ, so ‖s‖ + ρ bounds ‖∇f(x)‖ in the norm of L̂⁻¹.  For an L-smooth f with L ⪯ L̂,

    f(y) ≤ f(x) − c‖s‖² − c⟨r̄, s⟩ + ½c²‖s‖²,

so that a step from x = z with ρ ≤ ¼‖s‖ and c ≤ 2(¾ − τ) is accepted; and while x stays, ρ = 0 after ⌈d/k⌉ rounds.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from stepsize_opt.inputs.checks import (
    Array,
    check_kind,
    check_one_of,
    items,
    read_only,
    real_array,
    real_number,
    whole_number,
)
from stepsize_opt.inputs.matrices import EstimatedSmoothness, dense, read_matrix
from stepsize_opt.smoothness import LowRankPlusDiagonal, Smoothness, read_smoothness
from stepsize_solvers.programs import Indices, Matrix, Tabled, Vector, plain_rows

# τ and σ: an accepted step lowers f by at least c max(τ‖s‖², σ(‖s‖ + ρ)²).  From 0.1 to 0.3 for τ and up to 0.01 for σ,
# the floats to f − f* ≤ 1e-6 changed by less than 5 % in the geometric mean over 12 problems.
MEASURED, SUFFICIENT = 0.2, 0.01
SETTLED = 0.25  # a step with ρ ≤ ¼‖s‖ is rejected for its length alone
FLOOR = 0.5  # c does not fall below it for a ρ that is too large
_CEILING = 1e6  # keeps c finite where f falls for ever
_GROWTH, _SHRINK = 1.1, 0.5
_SHARE = 20  # k of ``from_client`` is d/20: better than d/4 for feedback and for EF21 on nearly all data sets
_RELATIVE_RANK = 1e-12  # an eigenvalue below that share of the largest is rounding
_UNIT = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).tiny)

RULES = ("worst-case", "measured")
PLACES = ("own", "shared")
RUNNING, STATIONARY = "running", "stationary to rounding"


@dataclass(frozen=True, eq=False)
class FeedbackMessage:
    """What a client sends in one round: ``values`` at ``places``, and ``residual`` = ‖tᵢ − eᵢ‖ where it is sent.

    An infinite ``residual`` tells that the gradient was not finite, and nothing changes.
    """

    values: Vector
    places: Indices
    residual: float | None

    @property
    def floats(self) -> int:
        """Floats of the message: k, and one for a residual."""
        return len(self.values) + (self.residual is not None)


class SetupFloats(NamedTuple):
    """Floats that are sent before the first round: on average over the clients, and by the one who sends most."""

    mean: float
    largest: int


def _leading(L: Matrix, rank: int) -> LowRankPlusDiagonal:
    """Return UUᵀ + tI with the largest eigenvalues of L, and t the next one."""
    w, V = np.linalg.eigh(L)
    rest = float(w[-rank - 1])
    if not rest > _RELATIVE_RANK * w[-1]:
        msg = (
            f"L1 must have a rank above rank={rank}, got an eigenvalue {rest:.2g} beside {w[-1]:.2g}; pass a smaller "
            "rank=, or L1 with its regulariser"
        )
        raise ValueError(msg)
    return LowRankPlusDiagonal(V[:, -rank:] * np.sqrt(w[-rank:] - rest), rest)


def default_floats(d: int) -> int:
    """Return the k of ``Feedback.from_client``."""
    return max(1, d // _SHARE)


def _floats_of(L: Smoothness, more: int) -> int:
    """Return the floats of L: its triangle, its diagonal, or its factor with so many more columns and a number."""
    d = L.d
    if not L.is_formed:
        thin = L.factored()
        return d * (thin.rank + more) + (1 if thin.has_constant_shift else d) * (1 - more)
    matrix = L.todense()
    is_diagonal = np.count_nonzero(matrix - np.diag(np.diagonal(matrix))) == 0
    return d if is_diagonal else d * (d + 1) // 2


@dataclass(frozen=True, eq=False)
class Feedback(Tabled):
    """Error feedback with a measured stepsize: k floats per client and round, nothing to tune, f never rises.

    Parameters
    ----------
    L : array-like or sparse matrix of shape (d, d), LowRankPlusDiagonal or EstimatedSmoothness, or None
        Where the basis comes from: a smoothness matrix as ``optimal_method`` takes it or an estimate, or None for plain
        coordinates.
    k
        Floats of the gradient that each client sends in one round, from 1 to d.
    clients
        Their number n.
    rule
        ``"worst-case"``: steps are accepted by f and ρ, and a theorem bounds the rounds; with shared places clients
        send ‖tᵢ − eᵢ‖ for it.  ``"measured"``: by f alone; f never rises, and nothing bounds the rounds.
    places
        ``"own"``: each client chooses its k places.  ``"shared"``: one client, another in each round, chooses the
        places for all, so that the mean of the messages is an all-reduce of k floats.
    basis
        ``"eigenvectors"`` of L, or its ``"root"``.
    one_client
        Whether L comes from one client alone, as in ``from_client``: the others then send nothing for it.

    Raises
    ------
    ValueError, TypeError
        For arguments that are not as described.

    See Also
    --------
    Feedback.from_client : where L is not known to anybody: the basis costs 4d floats of one client.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import Feedback
    >>> from stepsize_opt.problems import Quadratic
    >>> f = Quadratic(np.diag([1.0, 4.0, 9.0]), np.ones(3))
    >>> feedback = Feedback(f.smoothness(), 1)
    >>> client, x0 = feedback.client(0), np.zeros(3)
    >>> server = feedback.server(x0, f.value(x0[None])[0])
    >>> for _ in range(30):
    ...     message = client.message(f.gradient(server.x[None])[0])
    ...     y = server.proposal([message])
    ...     moved = server.decide(f.value(y[None]) if server.checks else None)
    >>> message.floats, bool(server.f < 1e-4)
    (1, True)
    """

    L: Any = field(repr=False)
    k: int
    clients: int = 1
    rule: Literal["worst-case", "measured"] = "worst-case"
    places: Literal["own", "shared"] = "own"
    basis: Literal["eigenvectors", "root"] = "eigenvectors"
    one_client: bool = False

    @staticmethod
    def from_client(L1: Any, k: int | None = None, *, clients: int = 1, rank: int = 4) -> Feedback:
        """Return feedback in the metric of one client, who sends it to everybody before the first round.

        The metric is UUᵀ + tI with the largest ``rank`` eigenvalues of L₁ and t the next one.  The message of this
        client reveals that many directions of its data.

        Parameters
        ----------
        L1 : array-like or sparse matrix of shape (d, d)
            The smoothness matrix of the client, with a rank above ``rank``.
        k
            Floats of the gradient that each client sends in one round, default max(1, d/20).
        clients
            Their number n.
        rank
            How many eigenvectors are sent; all of L₁ where it has no more.

        Raises
        ------
        ValueError, TypeError
            For an L₁ that is not symmetric, or whose rank is too small.

        Examples
        --------
        >>> import numpy as np
        >>> from stepsize_opt import Feedback
        >>> feedback = Feedback.from_client(np.diag(np.arange(1.0, 41.0)), clients=10)
        >>> feedback.k, feedback.setup_floats
        (2, SetupFloats(mean=16.1, largest=161))
        """
        matrix = dense(read_matrix("L1", L1))
        d = len(matrix)
        metric = matrix if whole_number("rank", rank) >= d else _leading(matrix, rank)
        chosen = default_floats(d) if k is None else k
        estimate = EstimatedSmoothness(metric, 1.0, "the metric of one client")
        return Feedback(estimate, chosen, clients, one_client=True)

    def __post_init__(self) -> None:
        check_one_of("rule", self.rule, RULES)
        check_one_of("places", self.places, PLACES)
        check_one_of("basis", self.basis, ("eigenvectors", "root"))
        object.__setattr__(self, "clients", whole_number("clients", self.clients))
        object.__setattr__(self, "k", whole_number("k", self.k, high=self.d))

    @cached_property
    def _smoothness(self) -> Smoothness | None:
        return None if self.L is None else read_smoothness(self.L)

    @cached_property
    def directions(self) -> Any:
        """A with AᵀLA ⪯ I, an array or an operator; None for plain coordinates."""
        return None if self._smoothness is None else self._smoothness.orthonormal_directions(self.basis)

    @property
    def d(self) -> int | None:
        """Size of the gradients; None for plain coordinates, which take any."""
        return None if self.directions is None else int(self.directions.shape[0])

    @property
    def certified(self) -> bool:
        """Whether L is a bound, and not an estimate or absent."""
        return self._smoothness is not None and not self._smoothness.estimated

    @property
    def floats(self) -> int:
        """Floats that a client sends in a round that is not checked: k and, where it is sent, the residual.

        A checked round has one more, the value of f.
        """
        return self.k + self.sends_residual

    @property
    def setup_floats(self) -> SetupFloats:
        """Floats that a client sends before the first round, so that everybody knows L.

        A dense L of size d is d(d + 1)/2 floats, a diagonal one d; a ``LowRankPlusDiagonal`` with r columns is sketched
        in one pass with r + 1 vectors (Nyström).  The mean L of the clients takes that from each of them; with
        ``one_client`` it is a message of one.
        """
        each = 0 if self._smoothness is None else _floats_of(self._smoothness, 0 if self.one_client else 1)
        return SetupFloats(each / self.clients if self.one_client else float(each), each)

    def _shown(self) -> list[tuple[str, str]]:
        names = ("d", "k", "clients", "rule", "places", "basis", "certified", "floats")
        values = {name: getattr(self, name) for name in names}
        return plain_rows({**values, "setup_floats.largest": self.setup_floats.largest})

    def rounds(self, accepted: int) -> int:
        """Return a bound on the rounds with so many accepted checks, for ∇²f ⪯ L (docs/feedback.md, (b))."""
        if self.d is None or self.rule != "worst-case":
            msg = "the rounds are bounded for rule='worst-case' and an L"
            raise ValueError(msg)
        waiting = -(-self.d // self.k)
        return (accepted + 1) * (waiting + 2) + 28 * accepted // 100 + 2

    def known_residual(self, bound: float, settled: int, d: int) -> float:
        """Return ρ of a round in which all clients sent, from a bound on (1/n) Σ‖tᵢ − eᵢ‖; infinite where unknown.

        ``settled`` counts the rounds before this one in which all of them sent at the same x.
        """
        if (settled + 1) * self.k >= d:
            return 0.0  # while x stays, every round sends k places that were not sent since it moved
        return math.inf if self.rule == "measured" else bound

    def residual_bound(self, smallest: float, d: int) -> float:
        """Return a bound on (1/n) Σ‖tᵢ − eᵢ‖ from the mean of the smallest change that each client sent."""
        return math.sqrt(d - self.k) * smallest

    @property
    def sends_residual(self) -> bool:
        """Whether clients send ‖tᵢ − eᵢ‖: with shared places the values sent do not bound it."""
        return self.rule == "worst-case" and self.places == "shared"

    def coefficients(self, gradient: Vector) -> Vector:
        """Return t = Aᵀg."""
        return gradient if self.directions is None else np.asarray(self.directions.T @ gradient)

    def step(self, coefficients: Vector) -> Vector:
        """Return A s."""
        return coefficients if self.directions is None else np.asarray(self.directions @ coefficients)

    def vector(self, name: str, value: Any, d: int | None = None, *, finite: bool = True) -> Vector:
        """Return a new array of d (finite) numbers; raises ValueError or TypeError for any other."""
        out, size = real_array(name, value, finite=finite), d or self.d
        if out.ndim != 1 or len(out) < self.k or (size is not None and len(out) != size):
            msg = f"{name} must have shape ({size or f'd ≥ {self.k}'},), got {out.shape}"
            raise ValueError(msg)
        return out

    def client(self, i: int) -> FeedbackClient:
        """Return client i, from 0 to n − 1, with nothing remembered."""
        if whole_number("i", i, low=0) >= self.clients:
            msg = f"i must be a client from 0 to {self.clients - 1}, got {i}"
            raise ValueError(msg)
        return FeedbackClient(self)

    def server(self, x0: Array, f0: Any) -> FeedbackServer:
        """Return the state that everybody has at the start.

        Parameters
        ----------
        x0 : array-like of shape (d,)
            Where the clients start.
        f0 : float or array-like of shape (n,)
            f(x0), or the values of the clients there.
        """
        x = self.vector("x0", x0)
        f = self.mean_value("f0", f0)
        if not math.isfinite(f):
            msg = f"f0 must be finite, got {f}"
            raise ValueError(msg)
        return FeedbackServer(self, x, f)

    def mean_value(self, name: str, values: Any) -> float:
        """Return f from its value, or from those of all clients; raises ValueError for another number of values."""
        array = real_array(name, values, finite=False)
        if array.size not in (1, self.clients) or array.ndim > 1:
            msg = f"{name} must be f, or one value for each of the {self.clients} clients; got shape {array.shape}"
            raise ValueError(msg)
        with np.errstate(invalid="ignore"):  # inf − inf is NaN, which no rule accepts
            return float((array / array.size).sum())  # a sum of the largest floats would overflow


class FeedbackClient:
    """One client: what it has sent so far, ``memory`` = eᵢ in the basis A; made by ``Feedback.client``."""

    def __init__(self, feedback: Feedback) -> None:
        self.feedback = feedback
        self.memory: Vector = np.zeros(feedback.d or 0)
        self._last: Vector = np.zeros(feedback.d or 0)  # the round in which each place was sent
        self._rounds = 0

    def message(self, gradient: Array, places: Indices | None = None) -> FeedbackMessage:
        """Remember and return what is sent of ∇fᵢ(x).

        A gradient that is not finite changes nothing: the message has zeros and an infinite residual, and a
        RuntimeWarning is issued.

        Parameters
        ----------
        gradient
            ∇fᵢ(x), shape (d,).
        places
            With ``places="shared"`` the places of the message of the client that chooses (``server.chooser``); that
            client itself, and all clients with ``"own"``, choose theirs.
        """
        g = self.feedback.vector("gradient", gradient, len(self.memory), finite=False)
        given = None if places is None else _read_places(places, self.feedback.k, len(g))
        memory = self.memory.copy() if len(self.memory) else np.zeros(len(g))
        last = self._last if len(self._last) else np.zeros(len(g))
        with np.errstate(over="ignore", invalid="ignore"):
            t = self.feedback.coefficients(g)
            J, values, rest = exchange(t, memory, lambda sizes: self._choose(sizes, last) if given is None else given)
        if not (np.isfinite(t).all() and np.isfinite(values).all()):  # the largest changes are among the values
            return self._no_change(given)
        self._rounds += 1
        last[J] = self._rounds
        self.memory, self._last = memory, last
        return FeedbackMessage(values, J, _norm(rest) if self.feedback.sends_residual else None)

    def _no_change(self, places: Indices | None) -> FeedbackMessage:
        k = self.feedback.k
        warnings.warn(
            "a gradient or its change is not finite: the client sends no change", RuntimeWarning, stacklevel=3
        )
        return FeedbackMessage(np.zeros(k), np.arange(k) if places is None else places, math.inf)

    def _choose(self, sizes: Vector, last: Vector) -> Indices:
        """Return the k places with the largest change; for all clients, of equal ones those sent longest ago."""
        if self.feedback.places == "own":
            return largest(sizes, self.feedback.k)
        return np.sort(np.lexsort((last, -sizes))[: self.feedback.k])


def exchange(
    t: Any, memory: Any, choose: Callable[[Any], Any], rounded: Callable[[Any], Any] = lambda values: values
) -> tuple[Any, Any, Any]:
    """Send entries of t that the memory e lacks: e grows by what is sent, and what is left of t − e is returned.

    Parameters
    ----------
    t, memory
        Aᵀ∇fᵢ and eᵢ, arrays of numpy or tensors; ``memory`` is changed.
    choose
        Returns the places to send, given |t − e|.
    rounded
        Returns the values as the message carries them; what rounding left stays in the rest.

    Returns
    -------
    tuple
        The places, the values sent, and the rest t − e, whose norm is the residual.
    """
    rest = t - memory
    places = choose(abs(rest))
    values = rounded(rest[places])
    memory[places] += values
    rest[places] -= values
    return places, values, rest


def largest(sizes: Vector, k: int) -> Indices:
    """Return the places of the k largest numbers, ascending."""
    return np.sort(np.argpartition(sizes, len(sizes) - k)[-k:])


def _norm(v: Vector) -> float:
    """Return ‖v‖, also where the squares of the entries overflow or underflow."""
    scale = float(np.abs(v).max())
    return scale * float(np.linalg.norm(v / scale)) if scale else 0.0


@dataclass(eq=False)
class MeasuredStepsize:
    """The stepsize c, and the rule that accepts steps by the values of f at checked points.

    A step must lower f by at least c max(τ‖s‖², σ(‖s‖ + ρ)²).  Every second round is checked, and after a check that
    failed every round until one is accepted.

    Attributes
    ----------
    floor : float
        Where ρ or an unchecked step may be the reason of a rejection, c does not fall below it.
    c : float
        The stepsize.
    decrease : float
        The sum of what the accepted steps were required to lower f by.
    settled : int
        Rounds in a row in which all clients sent changes at the present x.
    unchecked : float
        What the step since the last check must have lowered f by; 0 where x is the last checked point.
    careful : bool
        Whether every round is checked.
    status : str
        ``"running"``, or ``"stationary to rounding"``.
    """

    floor: float = FLOOR
    c: float = 1.0
    decrease: float = 0.0
    settled: int = 0
    unchecked: float = 0.0
    careful: bool = False
    status: str = RUNNING

    @property
    def checks(self) -> bool:
        """Whether f at y decides on this round; else x moves to y without it."""
        return self.careful or self.unchecked > 0.0

    def advance(self, size: float, residual: float) -> None:
        """Record a step that is not checked, for ‖s‖ = ``size`` and ρ."""
        self.unchecked = max(self._required(size, residual), _TINY)
        self.settled = 0

    def accepts(self, f: float, value: float, size: float, residual: float, unit: float = _UNIT) -> bool:
        """Return whether x moves to y, and not back to the last checked point.

        Parameters
        ----------
        f, value
            f at the last checked point, and at y.
        size, residual
            ‖s‖ and ρ.
        unit
            The rounding of f.
        """
        required = self.unchecked + self._required(size, residual)
        if math.isfinite(value) and math.isfinite(required) and f - value >= required and value < f:
            self._accept(required)
            return True
        self._reject(abs(f), size, residual, unit)
        return False

    def _required(self, size: float, residual: float) -> float:
        bound = size + (0.0 if math.isinf(residual) else residual)
        # Products of huge floats are infinite, which accepts nothing; powers would raise.
        return max(MEASURED * self.c * size * size, SUFFICIENT * self.c * bound * bound)

    def _accept(self, required: float) -> None:
        steps = 2 if self.unchecked > 0.0 else 1
        self.decrease += required
        self.c = min(_GROWTH**steps * self.c, _CEILING)
        self.settled, self.unchecked, self.careful, self.status = 0, 0.0, False, RUNNING

    def _reject(self, f: float, size: float, residual: float, unit: float) -> None:
        alone = self.unchecked == 0.0
        if alone and residual <= SETTLED * size:
            if 0.5 * self.c * size * size <= 8.0 * unit * f:
                self.status = STATIONARY
            else:
                self.c *= _SHRINK
        else:
            self.c = max(_SHRINK * self.c, min(self.c, self.floor))
        self.settled = self.settled + 1 if alone else 0
        self.unchecked, self.careful = 0.0, True


class FeedbackServer(MeasuredStepsize):
    """The state that everybody has; every client can keep one, as it depends on the messages alone.

    Attributes
    ----------
    x : numpy.ndarray
        The point at which the clients take their gradients.
    checked : numpy.ndarray
        The last checked point.
    f : float
        f at the last checked point; it never rises.
    s : numpy.ndarray
        The mean of what the clients remember.
    c : float
        The stepsize.
    bound : float
        ‖s‖ + ρ ≥ ‖∇f‖ in the norm of L̂⁻¹, at the point of the last messages; infinite while unknown.
    decrease : float
        The sum of what the accepted steps were required to lower f by: f(x⁰) − f is at least that.
    rounds : int
        Rounds made.
    status : str
        ``"running"``, or ``"stationary to rounding"``: the step that the theorem accepts changes f by less than the
        rounding of f.
    """

    def __init__(self, feedback: Feedback, x: Vector, f: float) -> None:
        super().__init__()
        self.feedback = feedback
        self.x, self.s = read_only(x), np.zeros(len(x))
        self.checked = self.x
        self.f, self.residual, self.rounds = f, math.inf, 0
        self._proposed: Vector | None = None
        self._complete = False

    @property
    def chooser(self) -> int:
        """The client that chooses the places of this round, with ``places="shared"``."""
        return self.rounds % self.feedback.clients

    @property
    def bound(self) -> float:
        return _norm(self.s) + self.residual

    def proposal(self, messages: Sequence[FeedbackMessage]) -> Vector:
        """Return y, where the clients evaluate f.

        Parameters
        ----------
        messages
            One from each client, in their order; with ``places="shared"`` also their mean, in a list.

        Raises
        ------
        ValueError, TypeError
            For a message that no client of this ``Feedback`` sends; the server is then as it was before.
        """
        received = self._read(messages)
        s = self.s.copy()
        with np.errstate(over="ignore"):  # propose refuses an s that is not finite
            for message in received:
                s[message.places] += message.values / len(received)
        return self.propose(s, self._residual(received))

    def propose(self, s: Vector, residual: float) -> Vector:
        """Return y for the s of a caller that keeps the memories of the clients itself.

        Parameters
        ----------
        s
            The mean of what the clients remember, with the weights of the caller.
        residual
            A bound on (1/n) Σ‖tᵢ − eᵢ‖: what ``Feedback.residual_bound`` returns, or infinity where clients are absent,
            whose tᵢ nobody knows.
        """
        if self._proposed is not None:
            msg = "proposal must be followed by decide: the values of f at the last proposal are missing"
            raise ValueError(msg)
        mean, bound = self.feedback.vector("s", s, len(self.x)), _read_residual(residual)
        with np.errstate(over="ignore", invalid="ignore"):  # decide rejects a y that is not finite
            y = self.x - self.c * self.feedback.step(mean)
        self._complete = math.isfinite(bound)
        self.s, self.residual, self._proposed = mean, self._known(bound), read_only(y)
        return y

    def _residual(self, messages: list[FeedbackMessage]) -> float:
        if any(one.residual == math.inf for one in messages):
            return math.inf
        if self.feedback.places == "own":
            smallest = math.fsum(np.abs(one.values).min() / len(messages) for one in messages)
            return self.feedback.residual_bound(smallest, len(self.x))
        return math.fsum((one.residual or 0.0) / len(messages) for one in messages)

    def _known(self, bound: float) -> float:
        """Return ρ; infinite where nothing bounds (1/n) Σ‖tᵢ − eᵢ‖."""
        return self.feedback.known_residual(bound, self.settled, len(self.x)) if self._complete else math.inf

    def _read(self, messages: Any) -> list[FeedbackMessage]:
        received, feedback = items("messages", messages), self.feedback
        mean = feedback.places == "shared" and len(received) == 1
        if len(received) != feedback.clients and not mean:
            msg = f"messages must hold one of each of the {feedback.clients} clients, got {len(received)}"
            raise ValueError(msg)
        read = [self._read_one(f"messages[{i}]", message) for i, message in enumerate(received)]
        if feedback.places == "shared" and any(not np.array_equal(one.places, read[0].places) for one in read):
            msg = f"messages must have the places of client {self.chooser} with places='shared', got others"
            raise ValueError(msg)
        return read

    def _read_one(self, name: str, message: Any) -> FeedbackMessage:
        """Return a message with arrays of its own; raises ValueError or TypeError for what no client sends."""
        check_kind(name, message, FeedbackMessage, " of a client")
        feedback = self.feedback
        places = _read_places(message.places, feedback.k, len(self.x), f"{name}.places")
        values = real_array(f"{name}.values", message.values)
        if values.shape != (feedback.k,):
            msg = f"{name}.values must hold {feedback.k} floats, got shape {values.shape}"
            raise ValueError(msg)
        sent = message.residual
        residual = None if sent is None else _read_residual(sent, f"{name}.residual")
        if residual == math.inf:
            return FeedbackMessage(np.zeros(feedback.k), places, math.inf)
        if (residual is None) == feedback.sends_residual:
            msg = f"{name} must come from a client with rule={feedback.rule!r}, places={feedback.places!r}"
            raise ValueError(msg)
        return FeedbackMessage(values, places, residual)

    def decide(self, values: Any = None) -> bool:
        """End the round; return whether x moved to y.

        Parameters
        ----------
        values
            In a round that ``checks``: the values fᵢ(y) of the clients or their mean.  Others need none.
        """
        if self._proposed is None:
            msg = "decide must follow proposal: there is no y whose values these are"
            raise ValueError(msg)
        if values is not None and not self.checks:
            msg = "values must be left out where server.checks is False: nobody evaluates f at y in this round"
            raise ValueError(msg)
        moved = self._check(self._proposed, values) if self.checks else self._advance(self._proposed)
        self._proposed = None
        self.rounds += 1
        return moved

    def _check(self, y: Vector, values: Any) -> bool:
        value = self.feedback.mean_value("values", values)
        if not np.isfinite(y).all():
            value = math.inf  # f may be finite there, but no step starts from such a point
        accepted = self.accepts(self.f, value, _norm(self.s), self.residual)
        if accepted:
            self.checked, self.f = y, value
        if not self._complete:
            self.settled = 0  # that all places were sent since x moved is not known of the absent
        self.x = self.checked
        return accepted

    def _advance(self, y: Vector) -> bool:
        if np.isfinite(y).all():
            self.advance(_norm(self.s), self.residual)
            self.x = y
        else:
            self.careful = True
        return self.x is y


def _read_places(places: Any, k: int, d: int, name: str = "places") -> Indices:
    """Return k ascending places below d as a new array; raises ValueError for any other."""
    J = places if isinstance(places, np.ndarray) else np.empty(0)
    # Differences of small or unsigned types would wrap around; comparisons do not.
    ascending = J.shape == (k,) and J.dtype.kind == "i" and bool(np.all(J[:-1] < J[1:]))
    if not ascending or J[0] < 0 or J[-1] >= d:
        msg = f"{name} must be an array of {k} ascending signed integers from 0 to {d - 1}, as message.places is"
        raise ValueError(msg)
    return J.astype(np.intp)


def _read_residual(residual: Any, name: str = "residual") -> float:
    number = real_number(name, residual)
    if not number >= 0.0:
        msg = f"{name} must be at least 0, got {number}"
        raise ValueError(msg)
    return number
