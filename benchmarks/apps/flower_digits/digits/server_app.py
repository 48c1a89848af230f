"""Run fp32 FedAvg from a given first model; leave the last one and the rounds' times."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()
NODE_POLL_S = 0.2


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds in one go, as users do."""
    config = context.run_config
    nodes = int(config["nodes"])
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(NODE_POLL_S)
    with np.load(str(config["first"])) as archive:
        arrays = ArrayRecord({name: Array(archive[name]) for name in archive.files})
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    begin_s = time.monotonic()
    rounds = int(config["rounds"])
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
    per_round_s = (time.monotonic() - begin_s) / rounds
    np.savez(str(config["last"]), **{name: result.arrays[name].numpy() for name in result.arrays})
    out = Path(str(config["out"]))
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps({"rounds_s": [per_round_s] * rounds}))
    partial.replace(out)
