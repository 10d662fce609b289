"""The solver benchmark at equal certified gap.

Importing it loads no pandas: the processes that measure import this package, too.
"""

from stepsize_validation.bench.plan import Plan as Plan, Task as Task
from stepsize_validation.bench.plots import draw_all as draw_all
from stepsize_validation.bench.process import run_benchmark as run_benchmark
from stepsize_validation.bench.results import (
    Results as Results,
    all_tables as all_tables,
    settings_text as settings_text,
    summary as summary,
)
