"""What a method is, and how it is found by its name.

Every method moves by x⁺ = x − G∇f(x), or with n clients by x⁺ = x − (1/n) Σ Gᵢ∇fᵢ(x), where

    G = A S B,      E[S] = I,      E[G] = A B = D,

S is a draw of the sketch and D the stepsize matrix.  L-smoothness gives E f(x⁺) ≤ f(x) − ⟨∇f, D∇f⟩ + ½⟨∇f, T(D)∇f⟩ with

    T(D) = E[GᵀLG],

so that T(D) ⪯ D is what a stepsize has to satisfy, and V(D) = E[(G − D)ᵀL(G − D)] is the variance that clients add.
With 𝒫(M) = E[SMS] and 𝒞(M) = 𝒫(M) − M:

=========  =====  =====  ==========  ==========  ==========================
method     A      B      T(D)        V(D)        D
=========  =====  =====  ==========  ==========  ==========================
det-CGD1   D      I      𝒫(DLD)      𝒞(DLD)      any, condition (3)
det-CGD2   I      D      D𝒫(L)D      D𝒞(L)D      any, condition (4)
=========  =====  =====  ==========  ==========  ==========================

det-CGD1 with D = γI is CGD on one node and DCGD with n clients; without compression, S = I, it is gradient descent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, final

from stepsize_opt.inputs.checks import did_you_mean, enter_class
from stepsize_opt.sketches.base import Sketch
from stepsize_solvers.programs import DiagonalPlusScaled, Matrix, PositiveMap

# A method by its name, that of a class of one's own among them, or as an object.
Algorithm: TypeAlias = "Literal['det-CGD1', 'det-CGD2'] | str | Method"

_METHODS: dict[str, type[Method]] = {}


@dataclass(frozen=True, eq=False)
class Factors:
    """A and B of G = A S B, d×d: arrays, or operators of large models; None stands for the identity."""

    left: Any
    right: Any


@dataclass(frozen=True, eq=False)
class Condition:
    """T(D) = 𝒬(D B D) with the map 𝒬 = ``outer`` and the matrix B = ``inner``(L).

    words: what the reduction to this pair is called among ``StepsizeResult.reductions``; "" if there is none.
    """

    outer: PositiveMap
    inner: PositiveMap
    words: str = ""


@dataclass(frozen=True)
class Method(ABC):
    """A method x⁺ = x − G∇f(x), G = A S B: its update, its second moment and its stepsize condition.

    A class with a ``name`` is found under this name as soon as it is defined: ``algorithm="det-CGD1"`` (in any case)
    means ``DetCGD1()``.  One that is not made without arguments is declared as
    ``class Own(Method, by_name=False)``.  A subclass states ``name``, ``update`` and the three abstract methods; the
    table at the top of ``stepsize_opt.methods.base`` has those of the library.

    Attributes
    ----------
    name : str
        The name that users write and results carry.
    update : str
        The update as a formula.

    Examples
    --------
    >>> from stepsize_opt.methods import get_method
    >>> get_method("DET-cgd1").update
    'x⁺ = x − D S ∇f(x)'
    """

    name: ClassVar[str]
    update: ClassVar[str]

    def __init_subclass__(cls, *, by_name: bool = True) -> None:
        super().__init_subclass__()
        if by_name and "name" in cls.__dict__:
            enter_class(_METHODS, cls.name, cls)

    @abstractmethod
    def factors(self, D: Matrix, smoothness: Callable[[], Matrix]) -> Factors:
        """Return A and B of G = A S B, with A B = D.

        Parameters
        ----------
        D : numpy.ndarray or StepsizeOperator
            Stepsize matrix, shape (d, d).
        smoothness : callable
            Returns L, for methods whose factors depend on it.
        """

    @abstractmethod
    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        """Return T(D) for ``law`` = 𝒫, V(D) for ``law`` = 𝒞, in the arithmetic of the matrices given.

        D and L are symmetric matrices with ``A @ B``, ``number * A`` and ``A[i, j]``: numpy arrays, or matrices of
        rational numbers.
        """

    @abstractmethod
    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        """Return T(D) as 𝒬(D B D), the form of the program 𝒬(D B D) ⪯ D.

        Parameters
        ----------
        law : PositiveMap
            𝒫 of the sketch; with 𝒞 the pair is that of V(D).
        commutes : bool
            Every outcome of the sketch commutes with every D that is allowed, so that 𝒫(DLD) = D𝒫(L)D.
        """

    def check(self, sketches: Sequence[Sketch]) -> None:  # noqa: B027
        """Raise ValueError unless the method goes with the sketch of the node, or with those of the clients."""

    def __str__(self) -> str:
        return self.name


def method_names() -> tuple[str, ...]:
    """Return the names of all methods."""
    return tuple(method.name for method in _METHODS.values())


def get_method(algorithm: str | Method) -> Method:
    """Return the method of a name, in any case; a Method is returned as it is.

    Parameters
    ----------
    algorithm : str or Method
        ``"det-CGD1"``, ``"det-CGD2"``, the name of a method of yours, or a method.

    Raises
    ------
    ValueError
        For a name that no method has; the message lists the names.
    TypeError
        For what is neither a name nor a method.

    Examples
    --------
    >>> from stepsize_opt.methods import get_method
    >>> get_method("det-cgd2").name
    'det-CGD2'
    """
    if isinstance(algorithm, Method):
        return algorithm
    known = _METHODS.get(algorithm.lower()) if isinstance(algorithm, str) else None
    if known is None:
        kinds = f"algorithm must be one of {', '.join(map(repr, method_names()))} or a Method"
        if isinstance(algorithm, str):
            msg = f"{kinds}, got {algorithm!r}{did_you_mean(algorithm, method_names())}"
            raise ValueError(msg)
        msg = f"{kinds}, got a {type(algorithm).__name__}; what optimal_method returns has a stepsize of its own"
        raise TypeError(msg)
    return known()


@final
@dataclass(frozen=True)
class DetCGD1(Method):
    """det-CGD1: the gradient is compressed, then multiplied by D.  Its condition is (3), E[S D L D S] ⪯ D.

    Examples
    --------
    >>> from stepsize_opt.methods import DetCGD1
    >>> DetCGD1().update
    'x⁺ = x − D S ∇f(x)'
    """

    name: ClassVar[str] = "det-CGD1"
    update: ClassVar[str] = "x⁺ = x − D S ∇f(x)"

    def factors(self, D: Matrix, smoothness: Callable[[], Matrix]) -> Factors:
        return Factors(D, None)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        return law(D @ L @ D)

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        identity = DiagonalPlusScaled.identity(law.d)
        if commutes:
            return Condition(identity, law, "the sketch commutes with D: condition (3) is D ⪯ (E[SLS])⁻¹")
        return Condition(law, identity)


@final
@dataclass(frozen=True)
class DetCGD2(Method):
    """det-CGD2: the gradient is multiplied by D, then compressed.  Its condition is (4), D E[TLT] D ⪯ D.

    D ≻ 0 makes (4) the same as D ⪯ (E[TLT])⁻¹, which is the largest of all D that satisfy it.

    Examples
    --------
    >>> from stepsize_opt import RandK, optimal_stepsize
    >>> result = optimal_stepsize([[2.0, 1.0], [1.0, 3.0]], RandK(2, 1), algorithm="det-CGD2")
    >>> result.D.round(6).tolist()  # E[TLT]⁻¹, and E[TLT] = 2 diag(L)
    [[0.25, 0.0], [0.0, 0.166667]]
    """

    name: ClassVar[str] = "det-CGD2"
    update: ClassVar[str] = "x⁺ = x − T D ∇f(x)"

    def factors(self, D: Matrix, smoothness: Callable[[], Matrix]) -> Factors:
        return Factors(None, D)

    def moment(self, D: Any, L: Any, law: Callable[[Any], Any]) -> Any:
        return D @ law(L) @ D

    def condition(self, law: PositiveMap, *, commutes: bool = False) -> Condition:
        return Condition(DiagonalPlusScaled.identity(law.d), law, "condition (4) is D ⪯ (E[TLT])⁻¹")
