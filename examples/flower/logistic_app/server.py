"""The server: rounds with a shared seed, then the final x."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from logistic_app.task import compressor
from stepsize_opt.flower import SharedSeedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    step = compressor(str(config["method"]), str(config["plan"]))
    strategy = SharedSeedStrategy(
        step, int(config["clients"]), seed=int(config["seed"]), missing=str(config["missing"])
    )
    start = ArrayRecord({"x": Array(np.zeros(step.d))})
    result = strategy.start(grid, start, num_rounds=int(config["rounds"]))
    if config["out"]:
        rounds = sorted(result.train_metrics_clientapp)
        names = ("clients", "numbers", "bytes-up", "bytes-down")
        metrics = {name: [result.train_metrics_clientapp[r][name] for r in rounds] for name in names}
        np.savez(str(config["out"]), x=result.arrays["x"].numpy(), **metrics)
