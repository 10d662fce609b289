"""Linear algebra that the project's own methods share."""

from stepsize_solvers.numerics.cg import (
    conjugate_gradients as conjugate_gradients,
    within_scaled_tolerance as within_scaled_tolerance,
)
from stepsize_solvers.numerics.curvature import Curvatures as Curvatures, PatternCurvature as PatternCurvature
from stepsize_solvers.numerics.linalg import (
    SIZE_FOR_LANCZOS as SIZE_FOR_LANCZOS,
    Array as Array,
    blas_threads as blas_threads,
    cholesky as cholesky,
    cholesky_of_each as cholesky_of_each,
    congruence_diagonal as congruence_diagonal,
    dominant_vector as dominant_vector,
    eigh as eigh,
    every as every,
    half_triangle as half_triangle,
    inner as inner,
    largest_eigenvalue as largest_eigenvalue,
    log_det_from_cholesky as log_det_from_cholesky,
    log_dets_from_cholesky as log_dets_from_cholesky,
    lower_product as lower_product,
    lower_solve as lower_solve,
    lower_transposed_product as lower_transposed_product,
    smallest_eigenvalue as smallest_eigenvalue,
    smallest_eigenvalue_from_factor as smallest_eigenvalue_from_factor,
    some as some,
    sym as sym,
    transposed as transposed,
    triangular_inverse as triangular_inverse,
    upper_product as upper_product,
)
from stepsize_solvers.numerics.options import NativeOptions as NativeOptions
from stepsize_solvers.numerics.progress import (
    Best as Best,
    Bounds as Bounds,
    Counters as Counters,
    Limits as Limits,
    Progress as Progress,
)
from stepsize_solvers.numerics.scaling import Scaling as Scaling, nesterov_todd as nesterov_todd
from stepsize_solvers.numerics.steps import identity_path as identity_path, largest_step as largest_step
