"""Everything that runs the library: runs with checks of the rates, experiments, benchmarks, attacks, the command line."""
