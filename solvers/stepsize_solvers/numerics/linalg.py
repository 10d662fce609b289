"""Dense symmetric linear algebra with little overhead: thin calls of LAPACK in the precision of the argument.

Every function takes and returns plain arrays, float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack
from threadpoolctl import ThreadpoolController

from stepsize_solvers.numerics.sizes import Sizes
from stepsize_solvers.process import Shared
from stepsize_solvers.programs import Matrix, Vector

Array = NDArray[Any]  # float64, or float32 where that is enough: directions


@lru_cache(maxsize=1)
def _blas_libraries() -> list[Any]:
    # Finding the libraries takes milliseconds, asking one for its threads a microsecond.
    return [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]


@contextmanager
def _one_thread() -> Iterator[None]:
    limited = [(library, library.num_threads) for library in _blas_libraries() if (library.num_threads or 1) > 1]
    for library, _ in limited:
        library.set_num_threads(1)
    try:
        yield
    finally:
        for library, threads in limited:
            # Newer versions of threadpoolctl let only the thread that set a limit change it, until it is released; the
            # last thread to leave may be another one.
            _release(library)
            library.set_num_threads(threads)
            _release(library)


def _release(library: Any) -> None:
    release = getattr(library, "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


# numpy and scipy come with a BLAS each.  Threads of one that wait for work keep the cores from those of the other: with
# two threads for both, d = 1000 takes 37 s, with one for both 28 s.
_ONE_THREAD = Shared(_one_thread)
_AS_IT_IS = nullcontext()


def blas_threads(d: int) -> Any:
    """A context in which BLAS uses one thread for matrices of size d."""
    return _AS_IT_IS if d <= Sizes.BLAS_WITHOUT_LIMIT else _ONE_THREAD


def sym(M: Array) -> Array:
    """(M + Mᵀ)/2, for one matrix or a stack, in the precision of M."""
    S = M.mT.copy()  # faster than a sum of matrices in both orders
    S += M
    S *= 0.5
    return S


def _trmm(A: Array) -> Callable[..., Array]:
    """The triangular product of BLAS in the precision of A."""
    return blas.strmm if A.dtype == np.float32 else blas.dtrmm  # type: ignore[no-any-return]


def cholesky(M: Array, overwrite: bool = False) -> Array | None:
    """Lower triangular K with KKᵀ = M, or None when M is not numerically positive definite.

    ``overwrite``: M, in the order of rows, is not needed any more.
    """
    # LAPACK wants columns: Mᵀ is the same matrix in that order, and a lower factor of it comes back as one.
    potrf = lapack.spotrf if M.dtype == np.float32 else lapack.dpotrf
    K, info = potrf(M.T, 1, 1, overwrite)  # lower, clean: keywords take as long as a small factorisation
    return None if info != 0 else K


def eigh(M: Array) -> tuple[Array, Array]:
    """Eigenvalues ascending and eigenvectors as columns."""
    syevd = lapack.ssyevd if M.dtype == np.float32 else lapack.dsyevd
    w, V, info = syevd(M.T, 1, 1)  # compute_v, lower
    if info == 0:
        return w, V
    values, vectors = np.linalg.eigh(M)
    return values, vectors


def eigenvalues(M: Array) -> Array:
    """Eigenvalues ascending, by reduction to tridiagonal form."""
    syevd = lapack.ssyevd if M.dtype == np.float32 else lapack.dsyevd
    w, _, info = syevd(M.T, 0, 1)  # compute_v, lower
    return np.asarray(w if info == 0 else np.linalg.eigvalsh(M))


def smallest_eigenvalue(M: Array) -> float:
    """λmin(M)."""
    return float(eigenvalues(M)[0])


def triangular_inverse(K: Array) -> Array:
    """K⁻¹ of a lower triangular K."""
    trtri = lapack.strtri if K.dtype == np.float32 else lapack.dtrtri
    inverse, _ = trtri(K, 1)  # lower
    return np.asarray(inverse)


def lower_product(K: Array, M: Array) -> Array:
    """K M for a lower triangular K, at half the cost of a product."""
    return np.asarray(_trmm(K)(1.0, K, M, 0, 1))  # side, lower: keywords take as long as a small product


def lower_transposed_product(K: Array, M: Array) -> Array:
    """Kᵀ M for a lower triangular K, at half the cost of a product."""
    return np.asarray(_trmm(K)(1.0, K, M, 0, 1, 1))  # side, lower, trans_a


def lower_solve(K: Array, M: Array) -> Array:
    """K⁻¹ M for a lower triangular K."""
    trsm = blas.strsm if K.dtype == np.float32 else blas.dtrsm
    return np.asarray(trsm(1.0, K, M, 0, 1))  # side, lower


def lower_congruence(K: Array, M: Array) -> Array:
    """Kᵀ M K for a lower triangular K and a symmetric M, symmetric up to rounding."""
    half = _trmm(K)(1.0, K, M.T, 0, 1, 1)  # side, lower, trans_a
    return np.asarray(_trmm(K)(1.0, K, half, 1, 1, 0, 0, 1))  # side, lower, trans_a, diag, overwrite_b


def congruence_diagonal(A: Array, M: Array) -> Array:
    """diag(A M Aᵀ)."""
    return np.asarray(np.einsum("ij,ij->i", A.dot(M), A))


def weighted_gram(A: Array, w: Array) -> Array:
    """Aᵀ Diag(w) A."""
    return np.asarray((A.T * w).dot(A))


def log_det_from_cholesky(K: Array) -> float:
    """log det(KKᵀ) = 2 Σ log K_ii."""
    return 2.0 * float(np.log(K.diagonal()).sum(dtype=np.float64))


def _top_of_spectrum(apply: Callable[[Vector], Vector], d: int, steps: int) -> float:
    """An upper estimate of the largest eigenvalue: the top Ritz value of a few Lanczos steps plus its residual norm."""
    basis = np.empty((steps, d))
    q = np.random.default_rng(0).standard_normal(d)
    q /= np.linalg.norm(q)
    alphas: list[float] = []
    betas: list[float] = []
    for j in range(steps):
        basis[j] = q
        w = apply(q)
        alphas.append(float(q @ w))
        w = w - basis[: j + 1].T @ (basis[: j + 1] @ w)
        betas.append(float(np.linalg.norm(w)))
        if betas[-1] <= 1e-10 * abs(alphas[-1]):  # the Krylov space is invariant: its Ritz values are eigenvalues
            break
        q = w / betas[-1]
    m = len(alphas)
    ritz, vectors = np.linalg.eigh(np.diag(alphas) + np.diag(betas[: m - 1], 1) + np.diag(betas[: m - 1], -1))
    return float(ritz[-1]) + abs(betas[-1] * float(vectors[-1, -1]))


def smallest_eigenvalue_from_factor(K: Array, steps: int = 10) -> float:
    """A lower estimate of λmin(KKᵀ) from the Cholesky factor K, by Lanczos on the inverse.

    2d² operations a step instead of the (4/3)d³ of a reduction.  An estimate may err when the start is nearly
    orthogonal to the eigenvector, so final answers use ``smallest_eigenvalue``.
    """
    potrs = lapack.spotrs if K.dtype == np.float32 else lapack.dpotrs
    return 1.0 / _top_of_spectrum(lambda q: np.asarray(potrs(K, q, lower=1)[0]), K.shape[0], steps)


def largest_eigenvalue(M: Matrix, steps: int = 25) -> float:
    """λmax(M) of one symmetric matrix: exact for small ones, an upper estimate by Lanczos for large ones."""
    d = M.shape[0]
    if d <= Sizes.LANCZOS:
        return -float(smallest_eigenvalue(-M))
    return _top_of_spectrum(lambda q: np.asarray(M @ q), d, steps)
