"""Programs that the tests of the extras start as processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "FLWR_TELEMETRY_ENABLED": "0",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_memory_monitor_refresh_ms": "0",  # Ray would end its own workers when others fill the memory
}
SECONDS = 300.0  # to wait for a program


def python(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder; return what it printed, whatever its exit code."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
