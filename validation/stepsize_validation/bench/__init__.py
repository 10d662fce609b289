"""Benchmarks of the solvers and of the library."""

from stepsize_validation.bench.prose import summary
from stepsize_validation.bench.records import Task
from stepsize_validation.bench.report import write_report
from stepsize_validation.bench.solvers import Plan, run_benchmark
from stepsize_validation.bench.store import Results
from stepsize_validation.bench.stored import STORED, check, check_table
from stepsize_validation.bench.tables import all_tables

__all__ = [
    "STORED",
    "Plan",
    "Results",
    "Task",
    "all_tables",
    "check",
    "check_table",
    "run_benchmark",
    "summary",
    "write_report",
]
