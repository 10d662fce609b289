"""Everything that runs the library: runs with checks of rates, experiments, benchmarks, attacks, the command line."""
