"""Flower: rounds with a shared seed, in which each client sends k numbers.

Needs the extra ``flower`` (``pip install 'stepsize-opt[flower]'``); nothing else in the library imports it.
"""

from stepsize_opt.flower.mod import compress_mod as compress_mod
from stepsize_opt.flower.strategy import MissingReplies as MissingReplies, SharedSeedStrategy as SharedSeedStrategy
