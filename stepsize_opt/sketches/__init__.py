"""Random unbiased sketches: one law, one class."""
