"""The sizes at which a solve changes its method or its use of memory, each with what was measured.

Times are processor times on one thread.  Sizes are dimensions d unless the name says otherwise; unknowns are the
numbers that describe a direction.  Shares of a size and limits of iterations are constants of their modules.
"""

from __future__ import annotations


class Sizes:
    """The table."""

    # The condition with a full D: up to here factorised Newton systems beat conjugate gradients, in the time of a whole
    # call rand-k / Gaussian map 2× / 2× at d = 5, 1.7× / 1.7× at 10, 1.7× / 1.1× at 14, 1.3× / 0.8× at 17.  A map that
    # is not entrywise costs one more product.
    CONDITION_DENSE_ENTRYWISE = 17
    CONDITION_DENSE = 16
    # The same for the condition over two blocks: 1.6× at d = 8, 1.7× at 12, 1.0× at 16 (72 unknowns).  And for the
    # largest t: a full D 1.6× at d = 8, 1.4× at 12, 0.05× at 40; two blocks 6× at d = 12, 4× at 16.
    DENSE_UNKNOWNS = 80
    # The floats that the d⁴ of a factorised system may take, 80 MB: up to d = 56 the largest t may go on by factorised
    # systems after a breakdown of conjugate gradients.
    FACTORISED_FLOATS = 10**7
    # Families: a factorisation beats conjugate gradients up to here: with 4 clients and rand-k a call with d = 20 takes
    # 96 ms by conjugate gradients and 102 factorised.  After slow conjugate gradients it pays as long as the matrix of
    # the system, 8 bytes for each pair of unknowns, takes half a gigabyte (a full X, d = 126).
    FAMILIES_DENSE = 100
    FAMILIES_DENSE_AFTER_SLOW = 8100
    # Pairs of active directions in the preconditioner of families: their matrix takes 200 MB.
    PAIRS = 5000
    # From here on cutting surfaces pay: 1.05 to 2.8 times faster at d = 60 to 200, slower at d = 20 and 40 with 4 to 30
    # clients.  100 clients would gain a quarter at d = 10 and 20, and nothing at 30.
    CUTS = 50
    # From here on directions of the condition with a full D are in single precision: 1.2× faster at d = 100, 1.4× at
    # 300.
    SINGLE_PRECISION = 48

    # Up to here P∘M is faster than Diag(α∘diag M) + βM, by 2 to 8 % of a whole call (d = 5 to 28).
    PLAIN_ENTRYWISE = 30
    # Up to here conjugate gradients on all rows are faster than on the active ones, by a tenth at d = 20 and 28.
    ALL_ROWS = 30
    # Up to here one eigenvalue comes from a reduction to tridiagonal form: 124 µs at d = 64, 191 at 80, 526 at 128.
    # Ten Lanczos steps from a factor take 157, 172 and 232 µs, 25 steps with the matrix 283, 286 and 319.
    LANCZOS = 64
    # Up to here a dominant vector comes from an eigendecomposition: 6 µs at d = 8, 21 at 16, 44 at 24.  Twelve power
    # steps take 24, 24 and 25 µs.
    POWER_STEPS = 16

    # A low rank r: rows for each of the r(r + 1)/2 unknowns that stand for all of them in the Hessian.  With all rows
    # a solve takes 2.4 times as long at d = 20 000, r = 10, with 100 for each unknown 0.9 times (0.6 at d = 200 000).
    ROWS_FOR_UNKNOWN = 25
    # Rows of the factor that are multiplied at a time: 2.6 MB at r = 10.  With all at once a solve with d = 200 000
    # takes 1.1 times as long, and the memory of the factor once more.
    ROWS_AT_ONCE = 2**15

    # Beyond here "auto" leaves out the solvers of cvxpy's, which lift d×d matrices: with the Gaussian map Clarabel
    # takes 0.2 GB at d = 20, 1.0 at 40 and 3.7 at 60.
    LIFTED = 60
    # Sizes of all inequalities together up to which a process takes longer to start than a model to compile or a solver
    # to make a step: at 10 these took at most 0.5 s and 0.2 s on a busy machine, at 30 up to 9 s and 25 s.
    WITHOUT_PROCESS = 10

    # Up to here BLAS uses one thread by itself: a limit costs more than some of the operations under it.  Beyond it a
    # second thread saves a fifth of the time (d = 700, 1000), and beside two busy processes on two cores a call takes
    # five times as long.
    BLAS_WITHOUT_LIMIT = 8
