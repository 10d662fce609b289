"""The same programs through cvxpy."""
