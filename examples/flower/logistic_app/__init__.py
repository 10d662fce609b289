"""Logistic regression over clients that send k floats per round."""
