"""The command line ``stepsize-opt``."""
