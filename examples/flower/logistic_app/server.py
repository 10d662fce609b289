"""The server: rounds of the planned method, then the final x."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from logistic_app.task import method
from stepsize_opt.flower import FeedbackStrategy, SharedSeedStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    step = method(config["method"], config["plan"])
    strategy = (FeedbackStrategy if config["method"] == "feedback" else SharedSeedStrategy)(
        step,
        int(config["clients"]),
        seed=int(config["seed"]),
        fraction_train=float(config["fraction-train"]),
        missing=str(config["missing"]),
    )
    start = ArrayRecord({"x": Array(np.zeros(step.d))})
    result = strategy.start(grid, start, num_rounds=int(config["rounds"]))
    if config["out"]:
        rounds = sorted(result.train_metrics_clientapp)
        loss = "f" if config["method"] == "feedback" else "loss"
        names = {
            "clients": "clients",
            "floats": "floats",
            "bytes-up": "bytes-up",
            "bytes-down": "bytes-down",
            "loss": loss,
        }
        metrics = {saved: [result.train_metrics_clientapp[r][name] for r in rounds] for saved, name in names.items()}
        np.savez(str(config["out"]), x=result.arrays["x"].numpy(), **metrics)
