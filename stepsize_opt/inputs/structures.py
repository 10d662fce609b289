"""Structures of the stepsize matrix: full, diagonal, scalar, block-diagonal, or a fixed direction D = γW.

A structure is what the user asks for; ``pattern_of`` turns it into the pattern that a program carries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.sparse.linalg import LinearOperator

from stepsize_opt.inputs.checks import check_dense, did_you_mean, dimensions, items, read_only, real_array, whole_number
from stepsize_opt.inputs.matrices import check_positive_definite, dense, out_of_range, read_matrix
from stepsize_opt.proofs import is_held
from stepsize_solvers.programs import Matrix, Pattern, Vector


@dataclass(frozen=True)
class BlockDiagonal:
    """D = Diag(D₁, …, D_m) with free symmetric positive definite blocks of the given sizes (one for each layer).

    Examples
    --------
    >>> from stepsize_opt import BlockDiagonal, RandK, optimal_stepsize
    >>> L = [[2.0, 1.0, 0.5], [1.0, 3.0, 0.5], [0.5, 0.5, 1.0]]
    >>> optimal_stepsize(L, RandK(3, 1), structure=BlockDiagonal((2, 1))).D[2].round(4).tolist()
    [0.0, 0.0, 0.3333]
    """

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(whole_number("sizes", size) for size in items("sizes", self.sizes)))

    def __str__(self) -> str:
        return f"block({','.join(map(str, self.sizes))})"


@dataclass(frozen=True, eq=False)
class Direction:
    """D = γW for a given positive definite W, or D = Diag(γ₁W₁, …, γ_mW_m) when ``sizes`` names the layers.

    With L = Diag(L₁, …, L_m) of the same layers the best factors are those of the paper's Theorem 2,

        γᵢ = 1/λmax(Wᵢ^{−½} E[Sᵢ Wᵢ Lᵢ Wᵢ Sᵢ] Wᵢ^{−½}).

    The D returned is γW rounded entry by entry; a proved bound holds for every γW, and for that D.

    Parameters
    ----------
    W : array-like or sparse matrix of shape (d, d), or array-like of shape (d,)
        The direction, symmetric positive definite, or a vector w for Diag(w), which is made dense only for a dense L or
        where ``sizes`` name layers.
    sizes
        Sizes of the layers; one layer by default.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import Direction, RandK, optimal_stepsize
    >>> L = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> result = optimal_stepsize(L, RandK(2, 1), structure=Direction(1.0 / np.diagonal(L)))
    >>> np.diagonal(result.D).round(6).tolist()  # γ = ½
    [0.25, 0.166667]
    """

    W: Any = field(repr=False)
    sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.W, LinearOperator):
            kind = type(self.W).__name__
            msg = f"W must be a matrix, or a vector w for Diag(w), got a {kind}: pass its todense(), or its diagonal()"
            raise TypeError(msg)
        W = _positive_vector(self.W) if dimensions(self.W) == 1 else dense(read_matrix("W", self.W))
        if W.ndim == 2:
            check_positive_definite("W", W, "a direction must be positive definite")
        sizes = (len(W),) if self.sizes is None else tuple(whole_number("sizes", s) for s in items("sizes", self.sizes))
        if sum(sizes) != len(W):
            msg = f"sizes {sizes} add up to {sum(sizes)}, but W is {len(W)}×{len(W)}"
            raise ValueError(msg)
        if W.ndim == 1 and len(sizes) > 1:
            W = np.diag(W)
        if W.ndim == 2 and not np.array_equal(W, Pattern(sizes).blocks(W)):
            msg = f"W must be block-diagonal with blocks of sizes {sizes}"
            raise ValueError(msg)
        object.__setattr__(self, "W", read_only(W))
        object.__setattr__(self, "sizes", sizes)

    def matrix(self) -> Matrix:
        """Return W as a d×d array; raises ValueError when there is no memory for it."""
        W: Matrix = self.W
        if W.ndim == 2:
            return W
        check_dense("the direction W", len(W))
        return np.diag(W)

    def __str__(self) -> str:
        layers = len(self.sizes or ())
        return "direction" if layers == 1 else f"direction({layers} layers)"


def _positive_vector(w: Any) -> Vector:
    """Return w of Diag(w); raises ValueError for one that is no direction."""
    out = real_array("W", w)
    if out.size == 0:
        msg = "W must not be empty"
        raise ValueError(msg)
    if not out.min() > 0.0:
        msg = f"a direction must be positive definite: W has an entry {out.min():g}"
        raise ValueError(msg)
    return out


Structure: TypeAlias = Literal["full", "diagonal", "scalar"] | BlockDiagonal | Direction
NAMED_STRUCTURES: dict[str, Structure] = {"full": "full", "diagonal": "diagonal", "scalar": "scalar"}


STRUCTURE_FORMS = "full, diagonal, scalar or block:SIZES such as block:10,20"


def parse_structure(text: str) -> Structure:
    """Read the text of a structure, ``block(10,20)`` as results write it, too; raises ValueError for any other text."""
    if text in NAMED_STRUCTURES:
        return NAMED_STRUCTURES[text]
    name, _, sizes = text.replace("(", ":").removesuffix(")").partition(":")
    words = sizes.split(",")
    if name != "block" or not all(word.isdecimal() and int(word) > 0 for word in words):
        msg = f"expected {STRUCTURE_FORMS}, got {text!r}{did_you_mean(text, NAMED_STRUCTURES)}"
        raise ValueError(msg)
    return BlockDiagonal(tuple(int(word) for word in words))


def pattern_of(structure: Structure, d: int) -> Pattern:
    """Return the pattern of a structure for d×d matrices; raises ValueError for an unknown name or a wrong size."""
    if isinstance(structure, BlockDiagonal):
        _check_size(f"structure {structure}", sum(structure.sizes), d)
        return Pattern(structure.sizes)
    if isinstance(structure, Direction):
        _check_size("the direction W", int(structure.W.shape[0]), d)
        return Pattern(structure.sizes or (d,), structure.matrix())
    if not isinstance(structure, str):
        msg = (
            f"structure must be 'full', 'diagonal', 'scalar', BlockDiagonal(sizes) or Direction(W), "
            f"got {type(structure).__name__}; Direction(W) stands for the multiples of a matrix W"
        )
        raise TypeError(msg)
    if structure == "full":
        return Pattern.full(d)
    if structure == "diagonal":
        return Pattern((1,) * d)
    if structure == "scalar":
        check_dense("the direction I", d)
        return Pattern((d,), np.eye(d))
    meant = did_you_mean(structure, NAMED_STRUCTURES)
    choices = "'full', 'diagonal', 'scalar', BlockDiagonal(sizes) or Direction(W)"
    msg = f"unknown structure {structure!r}{meant}; choose {choices}"
    raise ValueError(msg)


def pattern_with(structure: Structure, D: Matrix) -> Pattern:
    """Return the pattern of a structure for a given D that has it; raises ValueError when D has an entry outside.

    A multiple of W is rounded entry by entry, so for a direction the blocks of D must be those of W up to rounding.
    """
    pattern = pattern_of(structure, len(D))
    inside = pattern.blocks(D)
    if not np.array_equal(D, inside):
        i, j = np.argwhere(inside != D)[0]
        msg = (
            f"D does not have the structure {structure}: its entry ({i}, {j}) is {D[i, j]:.6g} instead of 0; "
            "certify it with structure='full'"
        )
        raise ValueError(msg)
    if pattern.W is not None and not pattern.has_direction(D):
        what = "a multiple of the identity" if structure == "scalar" else f"of the form γW with the W of {structure}"
        msg = f"D does not have the structure {structure}: it is not {what}; certify it with structure='full'"
        raise ValueError(msg)
    return pattern


def multiples_of(structure: Structure, D: Any) -> tuple[float, ...]:
    """Return γᵢ of D = Diag(γ₁W₁, …, γ_mW_m), nothing for another structure.

    The entries of D are rounded ones of γW, so the smallest quotient counts.  Raises ValueError for a γ that float64
    does not hold.
    """
    if not isinstance(structure, Direction):
        return ()
    w = structure.W if structure.W.ndim == 1 else structure.W.diagonal()
    with np.errstate(over="ignore", under="ignore"):
        quotients = D.diagonal() / w
    if not is_held(quotients).all():
        multiple = "the γ of D = γW"
        raise out_of_range(multiple, "give W in other units")
    ends = np.cumsum(structure.sizes or ())[:-1]
    return tuple(float(part.min()) for part in np.split(quotients, ends))


def _check_size(what: str, size: int, d: int) -> None:
    if size != d:
        msg = f"{what} is for d={size} but L is {d}×{d}"
        raise ValueError(msg)
