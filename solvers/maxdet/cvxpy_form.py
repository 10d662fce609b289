def solve_with_cvxpy(): pass
