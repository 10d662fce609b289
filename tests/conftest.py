"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A shared machine makes single examples slow at random, so no deadline; derandomised, so that CI repeats itself.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("project")
