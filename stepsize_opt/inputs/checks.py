"""Checks of arguments: each names the argument, what came and what was expected."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Set
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeGuard, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from stepsize_opt.proofs import SMALLEST_NORMAL
from stepsize_solvers.programs import Settings, Vector

Array: TypeAlias = NDArray[np.float64]
A = TypeVar("A", bound=NDArray[Any])
Kind = TypeVar("Kind")

# Relative slack of the checks E[S] = I, S ⪰ 0, Sᵀ = S and P ⪰ 11ᵀ.  Arrays computed in double precision (a
# projection from a QR factorisation, an average of 10⁵ terms) miss these by 1e-11 or less; a value typed with a
# few digits (0.333 for 1/3) or stored in single precision misses them by 1e-8 or more.  1e-9 tells them apart.
SLACK = 1e-9
# Every check, factorisation or solve here holds at least so many matrices of the size of D at once.
_AT_ONCE = 3
# Above this d a d×d matrix takes more than 128 MiB, and none is formed where there is another way.
LARGE = 4096
_MOST_FLOAT = 10**308  # larger whole numbers are no floats


def read_only(array: A) -> A:
    array.setflags(write=False)
    return array


def generator(rng: np.random.Generator) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        msg = f"rng must be a numpy Generator, such as np.random.default_rng(0), got {rng!r}"
        raise TypeError(msg)
    return rng


def real_number(name: str, value: object, expected: str = "a number") -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        msg = f"{name} must be {expected}, got {value!r}"
        raise TypeError(msg)
    try:
        return float(value)
    except OverflowError:
        return math.inf if value == abs(value) else -math.inf


def check_kind(name: str, value: object, kind: type, hint: str = "") -> None:
    """Raise TypeError unless ``value`` is of a class; ``hint`` follows its name in the message."""
    if not isinstance(value, kind):
        msg = f"{name} must be a {kind.__name__}{hint}, got {type(value).__name__}"
        raise TypeError(msg)


def check_objective(name: str, value: object) -> None:
    """Raise TypeError for what is no objective."""
    missing = [part for part in ("d", "smoothness", "value", "gradient") if not hasattr(value, part)]
    if missing:
        msg = f"{name} must be an objective such as LogisticRegression, got {type(value).__name__} without {missing[0]}"
        raise TypeError(msg)


def known_curvature(objective: Any) -> Any:
    """Return the M ⪯ ∇²f that an objective knows, a number μ for μI where d is large; None where it knows none."""
    try:
        return objective.curvature_from_below if objective.d > LARGE else objective.strong_convexity()
    except AttributeError:  # an objective of a user's own, or layers or clients of which one is
        return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that names the closest of the known words; nothing where none is close."""
    meant = get_close_matches(word, list(known), 1)
    return f" (did you mean {meant[0]!r}?)" if meant else ""


def check_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise ValueError unless ``value`` is one of the ``known`` names, which the message lists."""
    choices = tuple(known)
    if not (isinstance(value, str) and value in choices):  # an array compares entry by entry
        meant = did_you_mean(value, choices) if isinstance(value, str) else ""
        msg = f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}{meant}"
        raise ValueError(msg)


def positive_number(name: str, value: object) -> float:
    """Return ``value`` as a float; raises TypeError or ValueError unless it is a finite positive number."""
    number = real_number(name, value)
    if not (math.isfinite(number) and number > 0.0):
        msg = f"{name} must be a finite positive number, got {value!r}"
        raise ValueError(msg)
    return number


def nonnegative_number(name: str, value: object) -> float:
    """Return ``value`` as a float; raises TypeError or ValueError unless it is a finite number of at least zero."""
    number = real_number(name, value)
    if not 0.0 <= number < math.inf:
        msg = f"{name} must be a finite number of at least 0, got {value!r}; round what is below 0 by an error up to 0"
        raise ValueError(msg)
    return number + 0.0  # no −0


def whole_number(name: str, value: object, low: int = 1, high: int | None = None) -> int:
    """Return ``value`` as an int, also of a whole float; raises ValueError, TypeError for a bool or no number."""
    expected = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"
    # An int stays one: above 2⁵³ a float would be another number.
    exact = isinstance(value, Integral) and not isinstance(value, bool)
    number = int(value) if exact else real_number(name, value, expected)  # type: ignore[call-overload]
    whole = exact or (math.isfinite(number) and float(number).is_integer())
    if not whole or number < low or (high is not None and number > high):
        msg = f"{name} must be {expected}, got {int(number) if whole else value}"
        raise ValueError(msg)
    return int(number)


def solve_settings(
    *, tol: object, verbose: bool, time_limit: object, max_iters: object, options: Mapping[str, Any] | None
) -> Settings:
    """Return the settings of a call, whose time counts from now on; raises ValueError or TypeError for a bad value."""
    if options is not None and not isinstance(options, Mapping):
        msg = f"options must be a dictionary of the solver's own options or None, got {options!r}"
        raise TypeError(msg)
    return Settings(
        tol=positive_number("tol", tol),
        verbose=verbose,
        # 0 means "no limit" to some solvers and "stop at once" to others: it is refused, as is a boolean.
        time_limit=None if time_limit is None else positive_number("time_limit (None for no limit)", time_limit),
        max_iters=None if max_iters is None else whole_number("max_iters (None for no limit)", max_iters),
        extra=dict(options or {}),
    )


def is_list(values: object) -> TypeGuard[Iterable[Any]]:
    """Return whether something holds several things in an order: no text, set or mapping, and no sparse matrix."""
    return isinstance(values, Iterable) and not (
        isinstance(values, str | bytes | Set | Mapping) or sparse.issparse(values)
    )


def items(name: str, values: object) -> list[Any]:
    if not is_list(values):
        msg = f"{name} must be a list, got {values!r}"
        raise TypeError(msg)
    items = list(values)
    if not items:
        msg = f"{name} must not be empty"
        raise ValueError(msg)
    return items


def layer_sizes(sizes: object) -> tuple[int, ...]:
    if is_list(sizes):
        return tuple(whole_number(f"sizes[{i}]", n) for i, n in enumerate(items("sizes", sizes)))
    return (whole_number("sizes", sizes),)


def dimensions(value: object) -> int:
    """Return the number of dimensions of an array, a nested list or a number; −1 for rows of different lengths."""
    try:
        return np.ndim(value)  # type: ignore[arg-type]
    except ValueError:
        return -1


def real_array(name: str, value: ArrayLike, *, finite: bool = True, copy: bool = True) -> Array:
    """Return an array of real numbers as float64; without ``copy`` an array that is one already is shared."""
    array = real_numbers(name, value)
    if finite and not np.isfinite(array).all():
        first = np.argwhere(~np.isfinite(array))[0].tolist()
        msg = f"{name} must be finite, got NaN or infinity, the first at {first}"
        raise ValueError(msg)
    return array.astype(np.float64, copy=copy)


def real_numbers(name: str, value: Any) -> NDArray[Any]:
    """Return what holds real numbers as an array of their type, not copied."""
    for part in value if isinstance(value, list | tuple) else [value]:
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):  # as numbers masked entries are garbage
            msg = f"{name} has masked entries; give every entry a value, for example with {name}.filled(0.0)"
            raise ValueError(msg)
    try:
        array = np.asarray(value)
    except ValueError as error:
        msg = f"{name} must be an array of numbers, with rows of one length: {error}"
        raise ValueError(msg) from None
    except (TypeError, RuntimeError) as error:  # tensors with a gradient, on a device, or of a type that numpy lacks
        msg = f"{name} does not turn into an array ({error}); pass it as an array of float64"
        raise TypeError(msg) from error
    if array.dtype == object:  # a frame of pandas' nullable types, or whole numbers beyond 64 bits
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            msg = f"{name} must hold real numbers that float64 holds, got entries of type object"
            raise TypeError(msg) from error
    if array.dtype.kind not in "iuf":
        msg = f"{name} must hold real numbers, got an array of {array.dtype}"
        raise TypeError(msg)
    return array


def real_sparse(name: str, value: Any) -> Any:
    """Return a scipy sparse matrix of real numbers as a csr_array of finite float64 without duplicates.

    It shares the memory of a value that is one already.  Products in a smaller type would overflow or lose digits.
    """
    if value.dtype.kind not in "fiub":
        msg = f"{name} must hold real numbers, got a matrix of {value.dtype}"
        raise TypeError(msg)
    out: Any = sparse.csr_array(value, dtype=np.float64)
    if not out.has_canonical_format:
        out = out.copy()
        out.sum_duplicates()
    if not np.isfinite(out.data).all():
        msg = f"{name} must be finite, got NaN or infinity"
        raise ValueError(msg)
    return out


def read_rows(name: str, value: Any) -> Any:
    """Return data, a row for each example (m×d), as float64, csr if sparse; data of this kind are shared, not copied.

    Raises TypeError for what is not a matrix of real numbers, ValueError for an empty one or one that is not finite.
    """
    A = real_sparse(name, value) if sparse.issparse(value) else real_array(name, value, copy=False)
    if A.ndim != 2 or 0 in A.shape:
        msg = f"{name} must be a matrix with at least one row and one column, got shape {A.shape}"
        raise ValueError(msg)
    return A


def symmetric_part(name: str, M: Any, slack: float = SLACK) -> Any:
    """Return the symmetric part of a matrix, an array or a csr_array, that is symmetric up to rounding.

    Entries M_ij and M_ji are compared with the largest of √|M_ii M_jj|, |M_ij| and |M_ji|: rounding of AᵀA or of a
    symmetric product is small against √(M_ii M_jj), however far apart the diagonal entries are.
    """
    if isinstance(M, np.ndarray) and (M == M.T).all():
        return M
    apart = sparse.coo_array(0.5 * M - 0.5 * M.T)  # halves, because a difference of the largest numbers overflows
    apart.eliminate_zeros()
    if not apart.nnz:
        return M
    rows, columns = apart.coords
    root = np.sqrt(np.abs(M.diagonal()))
    size = np.maximum(root[rows] * root[columns], np.maximum(np.abs(M[rows, columns]), np.abs(M[columns, rows])))
    difference = float((2.0 * np.abs(apart.data) / size).max())
    if difference > slack:
        msg = (
            f"{name} must be symmetric, but |{name} − {name}ᵀ| reaches {difference:.3g} of √({name}_ii {name}_jj); "
            f"pass ({name} + {name}.T)/2 if that is rounding"
        )
        raise ValueError(msg)
    return 0.5 * M + 0.5 * M.T


def probability_array(name: str, value: ArrayLike, dimensions: tuple[int, ...]) -> Vector:
    p = real_array(name, value)
    if p.ndim not in dimensions or p.size == 0:
        wanted = "a list of numbers" if 0 not in dimensions else "a number or a list of numbers"
        msg = f"{name} must be {wanted} in (0, 1], got shape {p.shape}"
        raise ValueError(msg)
    for i, v in enumerate(p.flat):
        entry = name if p.ndim == 0 else f"{name}[{i}]"
        if not 0.0 < v <= 1.0:
            msg = f"{entry} must be in (0, 1], got {v:g}"
            raise ValueError(msg)
        if v < SMALLEST_NORMAL:
            msg = f"{entry} is {v:g}, and 1/{v:g} is beyond float64; use at least 2.3e-308"
            raise ValueError(msg)
    return read_only(p)


def distribution(weights: ArrayLike, count: int, plural: str) -> Vector:
    """Return the weights of ``count`` outcomes, divided by their sum; raises ValueError where it is not 1."""
    w = real_array("weights", weights)
    if w.shape != (count,):
        msg = f"weights must have one entry for each of the {count} {plural}, got shape {w.shape}"
        raise ValueError(msg)
    if np.any(w < 0.0):
        msg = f"weights must be nonnegative, got {w.min():g}"
        raise ValueError(msg)
    if abs(w.sum() - 1.0) > SLACK:
        msg = f"weights must add up to 1, got {w.sum():.12g}"
        raise ValueError(msg)
    return read_only(w / math.fsum(w.tolist()))


def check_unbiased(name: str, mean: Array, target: Array, size: Array) -> None:
    """Raise ValueError unless E[S] = I, up to the rounding of numbers as large as ``size`` = E|S|."""
    error = np.abs(mean - target)
    if np.any(error > SLACK * (1.0 + size)):
        msg = f"{name} must average to the identity (E[S] = I); their weighted mean is off by {error.max():g}"
        raise ValueError(msg)


def memory_size() -> int | None:
    """Return the bytes that this process can hold: the machine's memory or the process's limit; None when unknown."""
    sizes: list[int] = []
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        import resource
    except ImportError:  # only Unix has it
        return min(sizes, default=None)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        sizes.append(soft)
    return min(sizes, default=None)


def check_memory(what: str, size: int, remedy: str = "") -> None:
    """Raise ValueError when ``what`` takes more bytes than there is memory; ``remedy`` ends its message."""
    most = memory_size()
    if most is not None and size > most:
        needed = size / 1e9 if size < _MOST_FLOAT else math.inf
        msg = f"{what} would take {needed:.3g} GB, but there are {most / 1e9:.3g} GB of memory{remedy}"
        raise ValueError(msg)


def check_dense(what: str, d: int, remedy: str = "") -> None:
    """Raise ValueError when there is no memory to work with a dense d×d matrix of float64."""
    check_memory(f"{what}, dense {d}×{d}, with the copies that every step makes", _AT_ONCE * 8 * d * d, remedy)


def enter_class(table: dict[str, type[Kind]], name: str, cls: type[Kind]) -> None:
    """Enter a class under its name, in lower case; a class that is defined again, as in a notebook, replaces itself.

    Raises TypeError for a name that belongs to another class.
    """
    known = table.get(name.lower(), cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        msg = f"the name {name!r} belongs to {known.__module__}.{known.__qualname__}; give {cls.__qualname__} another"
        raise TypeError(msg)
    table[name.lower()] = cls
