"""Reading a smoothness matrix L: whatever the caller has becomes a checked symmetric float64 matrix.

f is L-smooth when f(x) ≤ f(y) + ⟨∇f(y), x − y⟩ + ½⟨L(x − y), x − y⟩ (paper, Assumption 2).  L must be positive
definite: along a null vector of L a stepsize may grow without bound, so log det D has no maximum.

*Units.*  The stepsize for L is 4⁻ⁿ times the one for 4⁻ⁿL.  Powers of four have exact roots: L = UUᵀ + Diag(a) becomes
(2⁻ⁿU)(2⁻ⁿU)ᵀ + Diag(4⁻ⁿa), in which numbers are near one, so that no product leaves float64's range.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import numpy as np
from scipy import sparse
from scipy.linalg import eigvalsh

from stepsize_opt.inputs.checks import (
    Array,
    check_dense,
    check_kind,
    real_array,
    real_number,
    real_numbers,
    real_sparse,
    symmetric_part,
)
from stepsize_opt.proofs import LOG_2, log_det_from_below, log_det_power, power_of_two_scaling
from stepsize_solvers.programs import Matrix, Vector

# A sparse matrix with fewer rows is read whatever it holds; beyond, its row pointers alone would fill the memory of a
# small machine, on the word of a file that may hold a single entry.
_ALWAYS_READ = 10**6
SparseMatrix: TypeAlias = Any  # scipy.sparse's csr_array; its generic type differs between scipy versions
Symmetric: TypeAlias = "Matrix | SparseMatrix"


@dataclass(frozen=True, eq=False)
class EstimatedSmoothness:
    """A matrix that was measured and may be too small: f need not be L-smooth with it.

    ``optimal_stepsize``, ``certify``, ``compare`` and ``Feedback`` take it in place of L and label what they return as
    not certified; all other functions refuse it.  ``matrix`` hands it over without the label, on your responsibility.

    Parameters
    ----------
    curvature : array-like of shape (d, d) or LowRankPlusDiagonal
        What was measured, symmetric positive definite.
    margin : float
        The factor of at least 1 with which it is used, L̂ = margin · curvature.
    source : str
        How it was measured, in words.

    Examples
    --------
    >>> import numpy as np
    >>> from stepsize_opt import EstimatedSmoothness, RandK, optimal_stepsize
    >>> estimate = EstimatedSmoothness(np.eye(3), margin=1.5, source="Hessians at two points")
    >>> optimal_stepsize(estimate, RandK(3, 1)).certified
    False
    """

    certified: ClassVar[bool] = False
    curvature: Any
    margin: float
    source: str

    def __post_init__(self) -> None:
        if not hasattr(self.curvature, "scaled"):
            object.__setattr__(self, "curvature", real_array("curvature", self.curvature))
        if len(self.curvature.shape) != 2 or self.curvature.shape[0] != self.curvature.shape[1]:
            msg = f"curvature must be a square matrix, got shape {self.curvature.shape}"
            raise ValueError(msg)
        if not 1.0 <= real_number("margin", self.margin, "a factor of at least 1") < math.inf:
            msg = f"margin must be a factor of at least 1 by which the measured curvature is raised, got {self.margin}"
            raise ValueError(msg)
        check_kind("source", self.source, str)

    @property
    def matrix(self) -> Any:
        """L̂ = margin · curvature, d×d, of the kind of ``curvature``."""
        if isinstance(self.curvature, np.ndarray):
            return self.margin * self.curvature
        return self.curvature.scaled(self.margin)

    @property
    def note(self) -> str:
        """What tables say of results that rest on it."""
        return f"L is estimated, certified=False ({self.source}, margin {self.margin:.3g}): no guarantee holds by proof"

    def __repr__(self) -> str:
        d = self.curvature.shape[0]
        return f"EstimatedSmoothness(d={d}, margin={self.margin:.3g}, source={self.source!r}, certified=False)"


def estimate_refused(name: str) -> TypeError:
    """Return the error for an estimate where only a proved matrix has an answer."""
    return TypeError(
        f"{name} is estimated and this function returns proofs; pass {name}.matrix to treat the estimate as exact"
    )


def _refuse_other_kinds(name: str, value: Any) -> None:
    """Raise TypeError or ValueError, with the fix, for objects whose numbers are not simply those of a matrix."""
    if isinstance(value, EstimatedSmoothness):
        raise estimate_refused(name)
    if isinstance(value, str | os.PathLike):
        msg = f"{name} must be a matrix, and {str(value)!r} is a file name: pass np.load(file) or np.loadtxt(file)"
        raise TypeError(msg)
    if hasattr(value, "matvec") and not hasattr(value, "__array__"):
        msg = f"{name} is an operator, whose entries are needed here; pass {name} @ np.eye({name}.shape[0])"
        raise TypeError(msg)


def read_matrix(name: str, value: Any) -> Symmetric:
    """Read ``value`` as a new square symmetric float64 array, or as a csr_array when it is a scipy sparse matrix.

    Takes arrays of integers and floats, nested lists, pandas frames, sparse matrices and read-only arrays, and never
    changes them.  Raises TypeError for what is not a matrix of real numbers, ValueError for a wrong shape, a NaN or
    infinite entry, masked entries, or an asymmetry beyond rounding, which a frame has whose rows are in another order
    than its columns.  Operators and estimated matrices are refused with the fix.
    """
    M: Any
    if sparse.issparse(value):
        _check_shape(name, value.shape)
        if value.nnz < value.shape[0] > _ALWAYS_READ:
            msg = f"{name} has {value.nnz} entries in {value.shape[0]} rows; rows without any make it singular"
            raise ValueError(msg)
        M, dtype = real_sparse(name, value).copy(), value.dtype
        M.eliminate_zeros()
    else:
        _refuse_other_kinds(name, value)
        raw = real_numbers(name, value)
        _check_shape(name, raw.shape)
        M, dtype = real_array(name, raw), raw.dtype
    # AᵀA computed by a general product is asymmetric by about d rounding errors of √(M_ii M_jj).
    unit = np.finfo(dtype if dtype.kind == "f" else np.float64).eps
    return symmetric_part(name, M, 8.0 * M.shape[0] * float(unit))


def dense(M: Symmetric) -> Matrix:
    """Return the matrix as an array, an array as it is; raises ValueError when there is no memory for it."""
    if isinstance(M, np.ndarray):
        return M
    check_dense("a sparse matrix", M.shape[0])
    return np.asarray(M.toarray())


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) != 2 or shape[0] != shape[1]:
        msg = f"{name} must be a square matrix, got {f'shape {shape}' if shape else 'a number'}{_hint(name, shape)}"
        raise ValueError(msg)
    if shape[0] == 0:
        msg = f"{name} is empty; expected at least a 1×1 matrix"
        raise ValueError(msg)


def _hint(name: str, shape: tuple[int, ...]) -> str:
    """Return what a matrix of another shape may be, and the fix."""
    if not shape:
        return f"; a multiple c of the identity is {name} = c*np.eye(d)"
    if len(shape) == 2 and shape[1] == shape[0] + 1:
        return "; a column more than rows may be row labels: write the file with to_csv(index=False)"
    return "; stepsize_opt.smoothness makes it from data" if name == "L" and len(shape) == 2 else ""


@dataclass(frozen=True, eq=False)
class Scaling:
    """A change of units by Λ = Diag(factors), powers of two: without rounding within the range of float64.

    In the new units L, M and the multipliers of stepsizes are ΛXΛ, and a stepsize D is Λ⁻¹DΛ⁻¹.
    """

    factors: Vector

    @staticmethod
    def of(diagonal: Vector) -> Scaling:
        """Return the scaling that brings the diagonal of ΛXΛ near one."""
        return Scaling(power_of_two_scaling(diagonal))

    @cached_property
    def exponents(self) -> Any:
        """Their binary logarithms, whole numbers."""
        return np.frexp(self.factors)[1] - 1

    def times(self, X: Array) -> Array:
        """Return ΛXΛ of a matrix, or of the vector of a diagonal."""
        return np.asarray((self.factors if X.ndim == 1 else self.factors[:, None]) * X * self.factors)

    def over(self, X: Array) -> Array:
        """Return Λ⁻¹XΛ⁻¹ of a matrix, or of the vector of a diagonal."""
        return np.asarray(X / (self.factors if X.ndim == 1 else self.factors[:, None]) / self.factors)


def check_positive_definite(name: str, M: Matrix, remedy: str) -> float:
    """Prove that M is positive definite; return a lower bound on log det M.

    Raises ValueError unless M is proved positive definite in float64, saying whether it is indefinite or singular.
    """
    diagonal = M.diagonal()
    low = diagonal.min()
    if not low > 0.0:
        j = int(np.argmin(diagonal))
        singular = diagonal[j] == 0.0 and not np.any(M[j])
        kind, remedy = ("singular", remedy) if singular else ("indefinite", INDEFINITE)
        msg = f"{name} is {kind}: a diagonal entry is {diagonal[j]:.6g}; {remedy}"
        raise ValueError(msg)
    # Scaling changes no digit of the factor: it keeps products within the range of float64.
    scaling = Scaling.of(diagonal)
    scaled = scaling.times(M)
    below = log_det_from_below(scaled)
    if below is not None:
        return (below - log_det_power(scaling.factors) * LOG_2).low
    spectrum = eigvalsh(scaled)
    least, most = float(spectrum[0]), float(spectrum[-1])
    # eigvalsh is backward stable: eigenvalues are right to about d rounding errors of the largest.
    if least < -4.0 * len(M) * np.finfo(float).eps * most:
        msg = f"{name} is indefinite: after diagonal scaling its smallest eigenvalue is {least:.3g}; {INDEFINITE}"
        raise ValueError(msg)
    condition = math.inf if least <= 0.0 else most / least
    msg = f"{name} is singular to working precision (condition number {condition:.2g} after diagonal scaling); {remedy}"
    raise ValueError(msg)


REGULARISE = "add a regulariser (L + 2λI) or drop the dependent coordinates"
SMOOTHNESS_REMEDY = f"a singular L leaves log det D unbounded; {REGULARISE}"

INDEFINITE = "it must be positive definite, as V|Λ|Vᵀ with the absolute values of its eigenvalues is"

LARGEST_SPREAD = 150  # binary digits; a condition number of 2⁵³ is the most that float64 resolves
_NEAR = 32  # binary digits from one that leave room for every product, so that large arrays need no copy


def binary_exponent(x: float) -> int:
    """Return the least e with x < 2ᵉ; below every exponent of a float for x = 0."""
    return math.frexp(x)[1] if x > 0.0 else -sys.maxsize


def power_of_four(name: str, largest: int, smallest: int) -> int:
    """Return n such that 4⁻ⁿ brings numbers with exponents from ``smallest`` to ``largest`` near one; 0 if they are.

    Raises ValueError for numbers that lie too far apart for proofs in float64.
    """
    if largest - smallest > LARGEST_SPREAD:
        msg = (
            f"{name} has numbers whose sizes differ by 2^{largest - smallest}, and proofs in float64 take at most "
            f"2^{LARGEST_SPREAD}; rescale the variables, or raise the smallest of them (a regulariser)"
        )
        raise ValueError(msg)
    return 0 if abs(largest) <= _NEAR else largest // 2


def scaled_exactly(name: str, array: Array, exponent: int) -> Array:
    """Return 2^exponent times an array, without rounding; raises ValueError where float64 does not hold it."""
    if exponent == 0:
        return array
    with np.errstate(over="ignore"):  # what is lost shows on the way back
        out = np.ldexp(array, exponent)
    if not np.array_equal(np.ldexp(out, -exponent), array):
        what = f"an entry of {name}"
        raise out_of_range(what)
    return out


_OTHER_SCALE = "solve for cL with a factor c that brings D into this range: the stepsize for L is c times that for cL"


def out_of_range(what: str, remedy: str = _OTHER_SCALE) -> ValueError:
    """Return the error for a number that float64 does not hold."""
    return ValueError(f"{what} lies outside the range of float64, 2.3e-308 to 1.8e308; {remedy}")
