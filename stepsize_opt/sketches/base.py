"""Sketches: the random matrices S that compress a gradient, and their second moments.

A sketch is a random symmetric positive semidefinite d×d matrix S with E[S] = I (Li, Karagulyan, Richtárik,
"Det-CGD: Compressed Gradient Descent with Matrix Stepsizes for Non-Convex Optimization", 2023, the assumption
on the sketches).  The stepsize conditions of det-CGD see a sketch only through the positive linear map

    𝒫(M) = E[S M S]      and its centred form      𝒞(M) = E[(S − I) M (S − I)] = 𝒫(M) − M.

For a diagonal sketch S = Diag(s), 𝒫(M) = P ∘ M with P = E[s sᵀ] ⪰ 11ᵀ.

Sketches are immutable, compare by value and hold read-only copies of the arrays that they were given (numpy drops the
flag in pickles).

*The distribution that certificates are about.*  It is defined by the float64 numbers that the sketch holds, as real
numbers: 1/p is the real quotient, RandK and Gaussian have their rational coefficients.
Vectors s_r with weights w_r are divided by their exact mean, and the weights by their sum, so that E[S] = I is exact.
Matrices S_r of a FiniteSketch are used as they are, 𝒫(M) = Σ_r w_r S_r M S_r without rounding: they have the mean I
up to rounding, and results have no limit.  A mean that is off by more than 1e-9 is refused.  Between the layers of a
LayerWise the factor is 1, because E[Sᵢ] = I.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from inspect import signature
from math import prod
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepsize_opt.inputs.checks import (
    Array,
    check_memory,
    did_you_mean,
    enter_class,
    generator,
    is_list,
    read_only,
    real_array,
    symmetric_part,
    whole_number,
)
from stepsize_opt.sketches.draws import CoordinatesDraw, Draw, FactorDraw
from stepsize_solvers.programs import Matrix, PositiveMap, Tabled, Vector, plain_rows

Law: TypeAlias = tuple[Vector, Array]

# support() lists at most this many outcomes.
_MAX_OUTCOMES = 100_000

# The classes that have a text form, by the name with which it begins.
FORMS: dict[str, type[Sketch]] = {}
# All classes by their names, which files of results hold.
KINDS: dict[str, type[Sketch]] = {}


@dataclass(frozen=True, eq=False, repr=False)
class Sketch(Tabled):
    """A random symmetric positive semidefinite d×d matrix S with E[S] = I.

    Every random number comes from the ``numpy.random.Generator`` passed in: equal generators give equal draws, and
    ``apply(x, rng)`` on a vector equals ``sample(rng) @ x`` for a generator in the same state.  ``sample_diagonal`` of
    n draws goes through the same random numbers as n single draws.

    A subclass is a frozen dataclass that defines ``_map``, ``expected_nonzeros``, ``text``, and ``_sample`` with
    ``_apply_rows`` or, if it derives from ``DiagonalBase``, ``_diagonals`` alone.  If it has a ``form``,
    ``parse_sketch`` reads it: what stands before the colon is the name, the rest goes to ``parse``.  Files of results
    hold the name of its class and its fields; the class must be defined before such a file is read.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import RandK, Sketch
    >>> sketch = RandK(4, 2)
    >>> isinstance(sketch, Sketch), sketch.expected_nonzeros
    (True, 2.0)
    >>> rng = np.random.default_rng
    >>> np.array_equal(sketch.apply(np.ones(4), rng(0)), sketch.sample(rng(0)) @ np.ones(4))
    True
    """

    form: ClassVar[str] = ""
    unbiased_by_formula: ClassVar[bool] = False
    # Arrays that the constructor divides by their mean: a file holds them as they are after that.
    normalised: ClassVar[tuple[str, ...]] = ()
    d: int

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        enter_class(KINDS, cls.__name__, cls)
        if cls.__dict__.get("form"):
            enter_class(FORMS, cls.form.partition(":")[0], cls)

    @classmethod
    def parse(cls, argument: str, d: int) -> Sketch:
        """Read the sketch of dimension d from its text after the colon, in lower case; defined with ``form``."""
        msg = f"{cls.__name__} has no text form; give it a class attribute form and a class method parse"
        raise TypeError(msg)

    @cached_property
    def map(self) -> PositiveMap:
        """𝒫(M) = E[S M S] as an exact positive map, in its cheapest form."""
        return self._map()

    def second_moment(self, M: ArrayLike) -> Matrix:
        """Return E[S M S] for a symmetric d×d matrix M.

        Raises ValueError if M is not a symmetric d×d matrix of finite numbers.
        """
        return self.map.apply(self._square("M", M))

    def centered_second_moment(self, M: ArrayLike) -> Matrix:
        """Return E[(S − I) M (S − I)] = E[S M S] − M for a symmetric d×d matrix M; raises as ``second_moment``."""
        return self.map.centered().apply(self._square("M", M))

    def adjoint(self, Z: ArrayLike) -> Matrix:
        """Return 𝒫*(Z), defined by ⟨𝒫*(Z), M⟩ = ⟨Z, 𝒫(M)⟩; it is E[S Z S] again, because S is symmetric."""
        return self.map.adjoint(self._square("Z", Z))

    def sample(self, rng: np.random.Generator) -> Matrix:
        """Draw S as a dense d×d matrix, for tests and small d; use ``apply`` to compress vectors."""
        return self._sample(generator(rng))

    def apply(self, x: ArrayLike, rng: np.random.Generator) -> Array:
        """Return S x for a vector x of shape (d,); for rows of shape (m, d), each row with its own independent S.

        No d×d matrix is formed.  Raises ValueError if x has another shape.
        """
        X = real_array("x", x, finite=False)
        if X.ndim not in (1, 2) or X.shape[-1] != self.d:
            msg = f"x must have shape ({self.d},) or (m, {self.d}), got {X.shape}"
            raise ValueError(msg)
        return self._apply_rows(np.atleast_2d(X), generator(rng)).reshape(X.shape)

    def draw(self, rng: np.random.Generator) -> Draw:
        """Draw S as what travels: ``encode(x)`` gives the numbers to send, ``decode`` of them S x.

        Both are linear, so the sum of several senders' numbers decodes to S times the sum of their vectors.  It is the
        draw that ``sample(rng)`` makes for a generator in the same state.
        """
        return self._draw(generator(rng))

    @property
    @abstractmethod
    def expected_nonzeros(self) -> float:
        """Numbers sent per round, on average: for a diagonal sketch the expected nonzeros of S x."""

    @property
    def expected_rank(self) -> float:
        """E[rank S], or a bound from above: what the limit of methods without memory counts (docs/limit.md).

        A class that does not know better returns d.
        """
        return float(self.d)

    @property
    def is_exactly_unbiased(self) -> bool:
        """Whether E[S] = I holds without rounding, which the limit requires; a class sets ``unbiased_by_formula``."""
        return self.unbiased_by_formula

    @property
    def omega(self) -> float:
        """The smallest ω with E‖Sx − x‖² ≤ ω‖x‖² for every x, which is λmax(E[S²]) − 1."""
        variance = self.map.centered()
        if self.is_diagonal:
            return max(0.0, float(variance.diagonal_action.max()))
        return max(0.0, float(np.linalg.eigvalsh(variance.apply(np.eye(self.d)))[-1]))

    @property
    @abstractmethod
    def text(self) -> str:
        """The form that ``parse_sketch`` reads, such as ``randk:8``; a description in brackets where none exists."""

    def support(self) -> Law:
        """Return the law of S, outcome by outcome: weights (R,), and diagonals (R, d) or matrices (R, d, d).

        Raises ValueError if the law is not finite, not known, or has more than 100 000 outcomes.
        """
        msg = f"{self} has no finite support to list"
        raise ValueError(msg)

    @property
    def untouched(self) -> NDArray[np.bool_]:
        """The coordinates j that are never compressed: S e_j = e_j for every outcome, shape (d,)."""
        P = self.map.hadamard_matrix
        # E[s_j²] = 1 = E[s_j] leaves s_j no variance.  1/p rounds to 1 for p = 1 only, so no other p is taken for it.
        return np.zeros(self.d, dtype=bool) if P is None else np.all(P == 1.0, axis=0)

    @property
    def sampling_probabilities(self) -> Vector:
        """Lower bounds on the probabilities that a round samples the directions, for a sample that must miss none.

        S samples a unit vector v when vᵀSv > 0.  By Cauchy–Schwarz 1 = (E[vᵀSv])² ≤ P(vᵀSv > 0) vᵀE[S²]v, with equality
        for a coordinate that is either 0 or 1/p; the directions are the eigenvectors of E[S²].  A class that lists its
        outcomes returns their probabilities instead.
        """
        return np.asarray(1.0 / np.maximum(1.0, np.linalg.eigvalsh(self.map.apply(np.eye(self.d)))))

    @property
    def is_diagonal(self) -> bool:
        """True when every outcome of S is a diagonal matrix."""
        return False

    @property
    def second_moment_matrix(self) -> Matrix:
        """P = E[s sᵀ] of a diagonal sketch S = Diag(s), dense; raises ValueError if the sketch is not diagonal."""
        P = self.map.hadamard_matrix
        if P is None:
            raise self._not_diagonal()
        return read_only(P)

    def sample_diagonal(self, rng: np.random.Generator, size: int) -> Matrix:
        """Draw ``size`` independent diagonals of S, shape (size, d); raises ValueError for another sketch."""
        count = whole_number("size", size, low=0)
        check_memory(f"size={count} diagonals of {self.d} numbers", 8 * count * self.d)
        return self._diagonals(generator(rng), count)

    @abstractmethod
    def _map(self) -> PositiveMap: ...

    @abstractmethod
    def _sample(self, rng: np.random.Generator) -> Matrix: ...

    @abstractmethod
    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix: ...

    def _draw(self, rng: np.random.Generator) -> Draw:
        return FactorDraw.of(self._sample(rng))

    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix:
        raise self._not_diagonal()

    def _not_diagonal(self) -> ValueError:
        return ValueError(f"{self} is not diagonal: it has neither a matrix P nor diagonals to sample")

    def _square(self, name: str, value: ArrayLike) -> Matrix:
        M = real_array(name, value)
        if M.shape != (self.d, self.d):
            msg = f"{name} must have shape ({self.d}, {self.d}), as {self} has d={self.d}; got {M.shape}"
            raise ValueError(msg)
        return np.asarray(symmetric_part(name, M))

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _key(self) -> tuple[object, ...]:
        values = (getattr(self, f.name) for f in fields(self))
        return tuple((v.shape, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and type(other) is type(self) and other._key() == self._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.text}>"

    def _shown(self) -> list[tuple[str, str]]:
        return plain_rows({name: getattr(self, name) for name in ("text", "d", "expected_nonzeros", "expected_rank")})


class DiagonalBase(Sketch):
    """What all diagonal sketches share: S x is an entrywise product with a sampled diagonal."""

    @property
    def is_diagonal(self) -> bool:
        return True

    @property
    def expected_rank(self) -> float:
        return self.expected_nonzeros

    @property
    def sampling_probabilities(self) -> Vector:
        return np.asarray(1.0 / self.map.diagonal_action)

    def _sample(self, rng: np.random.Generator) -> Matrix:
        return np.diag(self._diagonals(rng, 1)[0])

    def _apply_rows(self, X: Matrix, rng: np.random.Generator) -> Matrix:
        return X * self._diagonals(rng, len(X))

    def _draw(self, rng: np.random.Generator) -> Draw:
        return CoordinatesDraw.of(self._diagonals(rng, 1)[0])

    @abstractmethod
    def _diagonals(self, rng: np.random.Generator, size: int) -> Matrix: ...


@dataclass(frozen=True, eq=False)
class KFloats(Sketch):
    """What sketches share that send k floats, a whole number from 1 to d, whatever is drawn."""

    unbiased_by_formula: ClassVar[bool] = True
    k: int

    def __post_init__(self) -> None:
        d = whole_number("d", self.d)
        self._set(d=d, k=whole_number("k", self.k, high=d))

    @property
    def expected_nonzeros(self) -> float:
        return float(self.k)

    @property
    def expected_rank(self) -> float:
        return float(self.k)

    @property
    def text(self) -> str:
        return f"{self.form.partition(':')[0]}:{self.k}"


def plain_sketch(sketch: Sketch) -> dict[str, Any]:
    """Return a sketch as JSON holds it: the name of its class and its fields.  Raises TypeError for other fields."""
    values = {one.name: _plain(getattr(sketch, one.name)) for one in fields(sketch)}
    return {"kind": type(sketch).__name__, **values}


def _plain(value: Any) -> Any:
    if isinstance(value, Sketch):
        return plain_sketch(value)
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | float | str | None):
        return value
    msg = f"a file holds sketches whose fields are numbers, texts, arrays, tuples or sketches, not {value!r}"
    raise TypeError(msg)


def sketch_of_plain(plain: dict[str, Any]) -> Sketch:
    """Read what ``plain_sketch`` wrote; raises ValueError for a class that is not defined."""
    kind = KINDS.get(plain["kind"].lower())
    if kind is None:
        msg = f"no sketch is called {plain['kind']!r}; import the module that defines its class first"
        raise ValueError(msg)
    values = {name: _of_plain(value) for name, value in plain.items() if name != "kind"}
    sketch = kind(**{name: values[name] for name in signature(kind).parameters})
    sketch._set(**{name: read_only(values[name]) for name in kind.normalised})
    return sketch


def _of_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return np.array(value["array"]) if "array" in value else sketch_of_plain(value)
    return tuple(_of_plain(item) for item in value) if isinstance(value, list) else value


def read_sketch(sketch: object) -> Sketch:
    """Return ``sketch`` itself; raises TypeError if it is no Sketch."""
    if not isinstance(sketch, Sketch):
        msg = f"sketch must be a Sketch such as RandK(d, k), got {type(sketch).__name__}; parse_sketch reads text"
        raise TypeError(msg)
    return sketch


def sketch_of_each(sketch: object, n: int, d: int) -> list[Sketch]:
    """Return one sketch for each of n clients, read where it is text; raises TypeError or ValueError for any other."""
    each = sketch if is_list(sketch) else [sketch] * n
    sketches = [parse_sketch(one, d) if isinstance(one, str) else read_sketch(one) for one in each]
    if len(sketches) != n:
        msg = f"sketch must be one sketch or one for each of the {n} clients, got {len(sketches)}"
        raise ValueError(msg)
    for one in sketches:
        if one.d != d:
            msg = f"sketch is for d={one.d} but the problem has d={d}"
            raise ValueError(msg)
    return sketches


def check_listable(sketch: Sketch, outcomes: int) -> int:
    if outcomes > _MAX_OUTCOMES:
        msg = f"the law of {sketch} with d={sketch.d} has more than the {_MAX_OUTCOMES} outcomes that support() lists"
        raise ValueError(msg)
    return outcomes


def independent_law(sketch: Sketch, laws: Sequence[Law]) -> Law:
    """Return the law of independent layers: all combinations of their outcomes, the first layer varying slowest."""
    check_listable(sketch, prod(weights.size for weights, _ in laws))
    if any(values.ndim == 3 for _, values in laws):
        laws = [(w, V if V.ndim == 3 else V[:, :, None] * np.eye(V.shape[1])) for w, V in laws]
    return reduce(_combine, laws)


def _combine(first: Law, second: Law) -> Law:
    (v, A), (w, B) = first, second
    A, B = np.repeat(A, w.size, axis=0), np.tile(B, (v.size,) + (1,) * (B.ndim - 1))
    weights = np.outer(v, w).ravel()
    if A.ndim == 2:
        return weights, np.hstack([A, B])
    a, b = A.shape[1], B.shape[1]
    out = np.zeros((weights.size, a + b, a + b))
    out[:, :a, :a], out[:, a:, a:] = A, B
    return weights, out


def parse_sketch(text: str, d: int) -> Sketch:
    """Read the sketch of dimension ``d`` that ``text`` names, such as ``randk:8``; the inverse of ``Sketch.text``.

    Upper and lower case count the same, and blanks around the parts do not count.  The class of each sketch describes
    its text; sketches that hold arrays (finite, general diagonal) have none, their ``text`` describes them.
    Raises ValueError, naming the text, for an unknown form, a wrong number or sizes that do not add up to d;
    TypeError if ``text`` is not a string or ``d`` not a number.

    Examples
    --------
    >>> from stepsize_opt import parse_sketch
    >>> parse_sketch("randk:25%", 8)
    RandK(d=8, k=2)
    """
    if not isinstance(text, str):
        msg = f"a sketch's text must be a string such as 'randk:8', got {text!r}"
        raise TypeError(msg)
    size = whole_number("d", d)
    name, _, argument = text.strip().lower().partition(":")
    try:
        kind = _class_of(name.strip())
    except ValueError as error:
        msg = f"sketch {text!r}: {error}"
        raise ValueError(msg) from None
    try:
        return kind.parse(argument.strip(), size)
    except ValueError as error:
        msg = f"sketch {text!r}: {error}" + ("" if argument.strip() else f"; write it like {kind.form}")
        raise ValueError(msg) from None


def sketch_forms() -> str:
    """Return examples of all forms, with commas between them."""
    return ", ".join(kind.form for kind in FORMS.values())


def _class_of(name: str) -> type[Sketch]:
    if "(" in name:
        msg = "this only describes a sketch and cannot be parsed; build it with its class, such as FiniteSketch"
        raise ValueError(msg)
    kind = FORMS.get(name)
    if kind is None:
        msg = f"unknown name {name!r}{_hint(name)}; the known forms are {sketch_forms()}"
        raise ValueError(msg)
    return kind


_BIASED = "depends on the gradient and is biased, so it is no sketch; Feedback sends top-k"
_NOT_LINEAR = "rounds entries and is not linear, so it is no sketch"
_NO_SKETCH = {"topk": _BIASED, "top": _BIASED, "sign": _BIASED, "qsgd": _NOT_LINEAR, "natural": _NOT_LINEAR}


def _hint(name: str) -> str:
    """Return why a known compressor is no sketch, or the form that was probably meant."""
    reason = _NO_SKETCH.get(name.replace("-", ""))
    if reason:
        return f", which {reason} (see docs/faq.md)"
    return did_you_mean(name, FORMS)


def number(what: str, text: str) -> float:
    """Read a number; the error names what it stands for."""
    try:
        return float(text)
    except ValueError:
        msg = f"{what} must be a number, got {text.strip()!r}"
        raise ValueError(msg) from None


def numbers(what: str, text: str) -> list[float]:
    """Read numbers with commas between them."""
    return [number(what, part) for part in text.split(",")]


def one_or_each(what: str, text: str, d: int) -> list[float]:
    """Read d numbers with commas between them, or one that stands for all."""
    values = numbers(what, text)
    if len(values) not in (1, d):
        msg = f"{what} must be one number or d={d} numbers, got {len(values)}"
        raise ValueError(msg)
    return values * d if len(values) == 1 else values


def check_sizes(sizes: list[int], d: int) -> None:
    """Raise ValueError unless the layer sizes add up to d."""
    if sum(sizes) != d:
        msg = f"the layer sizes {', '.join(str(n) for n in sizes)} add up to {sum(sizes)}, but d={d}"
        raise ValueError(msg)


def shortest(values: Vector) -> Vector:
    """Return one value for all when they are equal."""
    return values[:1] if np.all(values == values[0]) else values


def join(values: Iterable[float]) -> str:
    """Write numbers with commas between them, each with the fewest digits that read back as the same number."""
    return ",".join(repr(float(v)).removesuffix(".0") for v in values)


def counted(count: int, singular: str, plural: str) -> str:
    """Return a count with its noun."""
    return f"{count} {singular if count == 1 else plural}"
