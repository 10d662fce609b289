"""Settings shared by all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

# A shell makes what it starts in the background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

INTEGRATIONS = Path(__file__).parent / "integrations"

# A shared machine makes single examples slow at random, so no deadline.  The tests are derandomised, so that CI repeats
# itself, and show a failure as it was found.  ``make study`` (HYPOTHESIS_PROFILE=study) draws other examples each time,
# shrinks a failure, and prints the problem and the line that repeats it.
common = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("project", derandomize=True, phases=[Phase.explicit, Phase.reuse, Phase.generate], **common)
settings.register_profile("study", phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink], **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "project"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests of the extras run where they are named: make test-integrations, in an environment of its own."""
    named = any(Path(argument).resolve().is_relative_to(INTEGRATIONS) for argument in config.args)
    return True if collection_path == INTEGRATIONS and not named else None
