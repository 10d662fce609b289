"""Linear algebra that the project's own methods share, and when they stop."""

from stepsize_solvers.numerics.curvature import Curvatures as Curvatures, PatternCurvature as PatternCurvature
from stepsize_solvers.numerics.krylov import (
    ChebyshevInverse as ChebyshevInverse,
    chebyshev_inverse as chebyshev_inverse,
    conjugate_gradients as conjugate_gradients,
    images_of_solution as images_of_solution,
    within_scaled_tolerance as within_scaled_tolerance,
)
from stepsize_solvers.numerics.linalg import (
    Array as Array,
    blas_threads as blas_threads,
    cholesky as cholesky,
    congruence_diagonal as congruence_diagonal,
    dominant_vector as dominant_vector,
    eigenvalues as eigenvalues,
    eigh as eigh,
    largest_eigenvalue as largest_eigenvalue,
    log_det_from_cholesky as log_det_from_cholesky,
    lower_congruence as lower_congruence,
    lower_product as lower_product,
    lower_solve as lower_solve,
    lower_transposed_product as lower_transposed_product,
    smallest_eigenvalue as smallest_eigenvalue,
    smallest_eigenvalue_from_factor as smallest_eigenvalue_from_factor,
    sym as sym,
    triangular_inverse as triangular_inverse,
    weighted_gram as weighted_gram,
)
from stepsize_solvers.numerics.progress import (
    Best as Best,
    Bounds as Bounds,
    Limits as Limits,
    OutOfTime as OutOfTime,
    Progress as Progress,
    Work as Work,
)
from stepsize_solvers.numerics.sizes import Sizes as Sizes
