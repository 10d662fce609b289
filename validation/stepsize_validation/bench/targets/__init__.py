"""Numbers that the library has to reach, measured by named studies."""

from stepsize_validation.bench.targets import call, clients, descent, native, runner, scale
from stepsize_validation.bench.targets.harness import Measurement, Study, Target, chosen, worst

_SUBJECTS = (native, call, clients, descent, runner, scale)
STUDIES: tuple[Study, ...] = tuple(study for subject in _SUBJECTS for study in subject.STUDIES)

__all__ = ["STUDIES", "Measurement", "Study", "Target", "chosen", "worst"]
