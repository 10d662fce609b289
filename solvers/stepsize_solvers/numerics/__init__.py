"""Linear algebra that the project's own methods share."""

from stepsize_solvers.numerics.cg import conjugate_gradients, within_scaled_tolerance
from stepsize_solvers.numerics.linalg import (
    SIZE_FOR_LANCZOS,
    Array,
    blas_threads,
    cholesky,
    congruence_diagonal,
    dominant_vector,
    eigh,
    half_triangle,
    largest_eigenvalue,
    log_det_from_cholesky,
    lower_product,
    lower_solve,
    lower_transposed_product,
    smallest_eigenvalue,
    smallest_eigenvalue_from_factor,
    sym,
    triangular_inverse,
    upper_product,
)
from stepsize_solvers.numerics.options import NativeOptions
from stepsize_solvers.numerics.progress import Best, Bounds, Counters, Limits, Progress
from stepsize_solvers.numerics.scaling import Scaling, nesterov_todd
from stepsize_solvers.numerics.steps import identity_path, largest_step

__all__ = [
    "SIZE_FOR_LANCZOS",
    "Array",
    "Best",
    "Bounds",
    "Counters",
    "Limits",
    "NativeOptions",
    "Progress",
    "Scaling",
    "blas_threads",
    "cholesky",
    "congruence_diagonal",
    "conjugate_gradients",
    "dominant_vector",
    "eigh",
    "half_triangle",
    "identity_path",
    "largest_eigenvalue",
    "largest_step",
    "log_det_from_cholesky",
    "lower_product",
    "lower_solve",
    "lower_transposed_product",
    "nesterov_todd",
    "smallest_eigenvalue",
    "smallest_eigenvalue_from_factor",
    "sym",
    "triangular_inverse",
    "upper_product",
    "within_scaled_tolerance",
]
