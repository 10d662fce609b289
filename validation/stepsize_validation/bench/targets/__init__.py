"""Numbers that the library has to reach, measured by named studies."""

from stepsize_validation.bench.targets import call, clients, descent, native, runner
from stepsize_validation.bench.targets.harness import Measurement, Study, Target, chosen, worst

STUDIES: tuple[Study, ...] = (*native.STUDIES, *call.STUDIES, *clients.STUDIES, *descent.STUDIES, *runner.STUDIES)

__all__ = ["STUDIES", "Measurement", "Study", "Target", "chosen", "worst"]
