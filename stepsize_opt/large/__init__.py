"""Stepsizes that are applied, not formed, and the problems of an L that is never made dense."""
