"""What belongs to the whole process, and calls in another one."""

from stepsize_solvers.process.other import ProcessEnded as ProcessEnded, call_within as call_within
from stepsize_solvers.process.state import (
    Shared as Shared,
    interrupts_held as interrupts_held,
    silenced as silenced,
    without_warnings as without_warnings,
)
