"""The paper's experiments with the optimal stepsize, the limit, what people tune, and a study of a wrong L.

Needs the extra ``reports`` (docs/install.md).
"""

from stepsize_validation.experiments.report import print_progress as print_progress, reproduce as reproduce
from stepsize_validation.experiments.spec import Plan as Plan
