"""Property checks: Proposition 1, feasibility and sketches, in exact arithmetic.

``check_sketch`` and the functions of ``claims`` need no other package; ``checks`` and ``strategies`` need Hypothesis
(the extra ``properties``).  ``stepsize-opt check`` runs all of them.
"""

from stepsize_validation.properties.sketch_checks import (
    Checked as Checked,
    check_sketch as check_sketch,
)
