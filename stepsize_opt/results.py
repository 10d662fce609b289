"""The classes of what the functions of ``stepsize_opt`` return and raise: for type hints, ``load`` and ``except``."""

from stepsize_opt.clients.result import DistributedResult as DistributedResult
from stepsize_opt.limit import CompressionLimit as CompressionLimit
from stepsize_opt.limit import SubspaceMethod as SubspaceMethod
from stepsize_opt.node import CvxpyForm as CvxpyForm
from stepsize_opt.node import StepsizeCheck as StepsizeCheck
from stepsize_opt.node import StepsizeResult as StepsizeResult
from stepsize_opt.proofs import Certificate as Certificate
from stepsize_opt.tables import Measured as Measured
from stepsize_opt.tables import Row as Row
from stepsize_opt.tables import Table as Table
from stepsize_solvers import Availability as Availability
from stepsize_solvers.programs import SolverUnavailable as SolverUnavailable
