"""Logistic regression over clients that send k numbers a round."""
