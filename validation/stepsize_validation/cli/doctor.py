"""The command ``doctor``: what is installed, which solvers can run, BLAS and threads."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from stepsize_opt import __version__
from stepsize_solvers import available_solvers
from stepsize_validation.cli.common import EXIT_OPTIMAL, print_columns, print_json
from stepsize_validation.cli.options import add, command
from stepsize_validation.data import DATA_VARIABLE
from stepsize_validation.origin import version_of


def add_parsers(commands: Any) -> None:
    """Register the command."""
    add(command(commands, "doctor", _doctor), "--json")


def _packages() -> dict[str, str]:
    """Return the version of every package that the project and its extras need."""
    required = [re.split(r"[\[<>=; ]", line)[0] for line in metadata.requires("stepsize-opt") or []]
    return {name: version_of(name) for name in dict.fromkeys(required) if name != "stepsize-opt"}


def _known(value: object) -> str | int | None:
    """Return text and numbers; some libraries that solvers load do not tell threadpoolctl their version."""
    return value if isinstance(value, str | int) else None


def _report() -> dict[str, Any]:
    import numpy as np
    from threadpoolctl import threadpool_info

    np.linalg.inv(np.eye(2))  # BLAS is listed once it is loaded
    data = os.environ.get(DATA_VARIABLE)
    folder = data or f"not set ({DATA_VARIABLE})"
    if data and not Path(data).is_dir():
        folder = f"{data} does not exist; set {DATA_VARIABLE} to a folder with svmlight files"
    return {
        "stepsize-opt": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "data folder": folder,
        "blas": [
            {key: _known(pool.get(key)) for key in ("internal_api", "version", "num_threads", "architecture")}
            for pool in threadpool_info()
        ],
        "packages": _packages(),
        "solvers": [{"name": e.name, "available": e.available, "reason": e.reason} for e in available_solvers()],
    }


def _doctor(args: argparse.Namespace) -> int:
    """Show what is installed: packages, licences, BLAS, threads, versions.

    examples:
      stepsize-opt doctor
      stepsize-opt doctor --json
    """
    report = _report()
    if args.json:
        print_json(report)
        return EXIT_OPTIMAL
    print(f"stepsize-opt {__version__}, Python {report['python']} on {report['platform']}")
    print(f"executable: {sys.executable}")
    print(f"cores: {report['cores']}; data folder: {report['data folder']}")
    for pool in report["blas"]:
        print(f"BLAS: {pool['internal_api']} {pool['version']}, threads: {pool['num_threads']}")
    solvers = [[e["name"], "runs" if e["available"] else "does not run", e["reason"] or ""] for e in report["solvers"]]
    print_columns("solvers", solvers)
    print_columns("packages", list(report["packages"].items()))
    return EXIT_OPTIMAL
