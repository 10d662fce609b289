"""A simulation in which one of three clients fails from round 2 on, each time in another way, under both settings.

python failing_client.py OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from stepsize_opt import CompressedStep, RandK
from stepsize_opt.flower import MissingReplies, SharedSeedStrategy, compress_mod

STEP = CompressedStep.of(0.5 * np.eye(3), RandK(3, 2))
client, server = ClientApp(mods=[compress_mod(lambda context: STEP)]), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    place = int(context.node_config["partition-id"])
    gradient, name = message.content["arrays"]["x"].numpy() - place, "x"
    if place == 1:
        match message.content["config"]["server-round"]:
            case 2:
                msg = "out of memory"
                raise RuntimeError(msg)
            case 3:
                gradient[0] = np.nan
            case 4:
                name = "y"
            case 5:
                gradient = gradient.astype(int)
    return Message(RecordDict({"arrays": ArrayRecord({name: Array(gradient)})}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    start, out = ArrayRecord({"x": Array(np.zeros(3))}), {}
    done = SharedSeedStrategy(STEP, 3, seed=1, missing="reweight").start(grid, start, num_rounds=6)
    out["x"] = done.arrays["x"].numpy().tolist()
    out["clients"] = [done.train_metrics_clientapp[k]["clients"] for k in range(1, 7)]
    try:
        SharedSeedStrategy(STEP, 3, seed=1).start(grid, start, num_rounds=3)
    except MissingReplies as error:
        out["error"] = str(error)
    Path(sys.argv[1]).write_text(json.dumps(out))


if __name__ == "__main__":
    run_simulation(server, client, num_supernodes=3, backend_config={"client_resources": {"num_cpus": 1}})
