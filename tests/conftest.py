"""Settings shared by all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

# A shared machine makes single examples slow at random, so no deadline; derandomised, so that CI repeats itself.
# Examples call solvers: shrinking a failure would take minutes, so a failure is shown as it was found.
settings.register_profile(
    "project",
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("project")
