"""The first line of a file of results."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

from stepsize_opt import __version__

_ROOT = Path(__file__).parents[2]


def origin(command: str) -> str:
    """Return a comment with the command that made a file, the version, the commit of a checkout, and the date."""
    made_by = [f"version {__version__}"]
    if (_ROOT / ".git").exists():
        git = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
        made_by.append(f"commit {subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()}")
    return f"# {command}; {', '.join([*made_by, f'{datetime.now(UTC):%Y-%m-%d}'])}"
