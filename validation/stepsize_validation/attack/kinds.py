"""The kinds of attack, in the order in which the summary lists them.  A module says its own in ``KINDS``."""

from __future__ import annotations

from stepsize_validation.attack import certify, checkpoints, clients, files, goals, inputs, nodes, threads
from stepsize_validation.attack.protocol import Kind

_MODULES = (nodes, goals, certify, clients, checkpoints, files, inputs, threads)
KINDS: dict[str, Kind] = {kind.name: kind for module in _MODULES for kind in module.KINDS}
