"""The command line ``stepsize-opt``."""

from stepsize_validation.cli.root import main as main
