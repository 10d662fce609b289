"""Callers' values become checked values."""
