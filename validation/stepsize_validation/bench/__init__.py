"""The solver benchmark at equal certified gap.

Importing it loads no pandas: the processes that measure import this package, too.
"""

from stepsize_validation.bench.plan import Plan as Plan, Task as Task
from stepsize_validation.bench.process import run_benchmark as run_benchmark
from stepsize_validation.bench.report import all_tables as all_tables, summary as summary, write_report as write_report
from stepsize_validation.bench.results import Results as Results
