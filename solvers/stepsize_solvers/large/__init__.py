"""Methods for many coordinates, without a d×d matrix: products with M, or a thin factor of it, are enough.

*Diagonal D with a thin multiplier.*  For Diag(x) M Diag(x) ⪯ Diag(x), that is M^½ Diag(x) M^½ ⪯ I, and any matrix Q
with d rows

    Σ_j x_j ‖(MQ)_j‖² = ⟨Q, M Diag(x) M Q⟩ ≤ tr(QᵀMQ),

and the inequality between the means makes of it  Σ log x_j ≤ d log(tr(QᵀMQ)/d) − Σ log ‖(MQ)_j‖².  It is an equality at
the best x for MQ = Diag(x)⁻¹Q with rows of Q of the norms √x_j.  Each method returns points with such x and Q.
"""
