"""n clients: shared seeds, conditions (12) and (12′), and the smallest number of iterations that they allow."""
