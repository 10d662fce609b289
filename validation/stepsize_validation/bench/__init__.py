"""The solver benchmark at equal certified gap.

Importing it loads no pandas: the processes that measure import this package, too.
"""

from stepsize_validation.bench.plan import Plan, Task
from stepsize_validation.bench.process import run_benchmark
from stepsize_validation.bench.report import all_tables, summary, write_report
from stepsize_validation.bench.results import Results

__all__ = ["Plan", "Results", "Task", "all_tables", "run_benchmark", "summary", "write_report"]
