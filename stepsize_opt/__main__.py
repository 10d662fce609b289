"""``python -m stepsize_opt``: the command ``stepsize-opt`` that the distribution installs, wherever its code lies."""

import sys
from importlib.metadata import entry_points

(command,) = entry_points(group="console_scripts", name="stepsize-opt")
sys.exit(command.load()())
