"""The kinds of attack, in the order in which the summary lists them.  A new kind is one module and one row."""

from __future__ import annotations

from stepsize_validation.attack import (
    budgets,
    certify,
    checkpoints,
    clients,
    files,
    goals,
    inputs,
    large,
    laws,
    resumes,
    scales,
    solvers,
    structures,
    threads,
)
from stepsize_validation.attack.protocol import Kind

KINDS: dict[str, Kind] = {
    module.KIND.name: module.KIND
    for module in (
        laws,
        structures,
        goals,
        scales,
        large,
        solvers,
        certify,
        clients,
        resumes,
        checkpoints,
        files,
        inputs,
        budgets,
        threads,
    )
}
