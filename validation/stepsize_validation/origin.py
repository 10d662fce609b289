"""The stamp of a stored file: what made it, and where."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from stepsize_opt import __version__

_ROOT = Path(__file__).parents[2]


def origin(command: str) -> str:
    """Return the stamp of a file: the command that made it, version, commit of a checkout, machine and date."""
    made_by = f"# {command}; version {__version__}"
    if (_ROOT / ".git").exists():
        made_by += f", commit {_commit()}"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {processor()}"
    return f"{made_by}, {machine}, {datetime.now(UTC):%Y-%m-%d}"


def processor() -> str:
    """Return the model name that Linux gives, elsewhere what Python knows of it."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def environment(packages: Sequence[str]) -> dict[str, str]:
    """Return the kind of machine, and versions, also of the packages."""
    out = {"python": platform.python_version(), "machine": platform.machine(), "processor": processor()}
    out |= {"cores": str(os.cpu_count()), "stepsize-opt": __version__}
    return out | {package: version_of(package) for package in packages}


def version_of(package: str) -> str:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the commit, marked when a Python file differs from it; a result that is being stored does not count."""
    git = ["git", "-C", str(_ROOT)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    differs = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"], check=False).returncode
    return commit.stdout.strip() + ("-dirty" if differs else "")
