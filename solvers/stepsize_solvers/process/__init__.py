"""What belongs to the whole process, and calls in another one."""

from stepsize_solvers.process.other import ProcessEnded, call_within
from stepsize_solvers.process.state import Shared, interrupts_held, silenced, without_warnings

__all__ = ["ProcessEnded", "Shared", "call_within", "interrupts_held", "silenced", "without_warnings"]
