"""The one interior-point iteration and the problems with one inequality; log det of the metric by damped Newton steps.

A diagonal D follows the central path by steps of its own.

One step, to read: ``driver`` (the loop), ``condition`` (the problem), ``frame`` (one D and its derivatives), ``schur``
or ``dense`` (the linear system).
"""

from stepsize_solvers.interior.condition import Condition as Condition, ConditionPoint as ConditionPoint
from stepsize_solvers.interior.dense import listed as listed
from stepsize_solvers.interior.diagonal import solve_diagonal as solve_diagonal
from stepsize_solvers.interior.driver import Drive as Drive, Rules as Rules
from stepsize_solvers.interior.floor import (
    Former as Former,
    Factorised as Factorised,
    Floor as Floor,
    FloorPoint as FloorPoint,
)
from stepsize_solvers.interior.frame import Frame as Frame, is_graded as is_graded
from stepsize_solvers.interior.metric import DampedNewton as DampedNewton, MetricPoint as MetricPoint
from stepsize_solvers.interior.starts import (
    cold_start as cold_start,
    metric_start as metric_start,
    warm_start as warm_start,
)
from stepsize_solvers.interior.whitened import Whitening as Whitening
