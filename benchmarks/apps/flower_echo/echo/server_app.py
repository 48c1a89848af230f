"""Run FedAvg and write down when each round began and ended."""

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
    """Time ``rounds`` rounds one by one; the first pays for starting the clients."""
    config = context.run_config
    rounds, nodes = int(config["rounds"]), int(config["nodes"])
    while len(list(grid.get_node_ids())) < nodes:
        time.sleep(NODE_POLL_S)
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    arrays = ArrayRecord({"flat": Array(np.zeros(int(config["parameters"]), np.float32))})
    rounds_s = []
    for _ in range(rounds):
        begin_s = time.monotonic()
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)
        rounds_s.append(time.monotonic() - begin_s)
        arrays = result.arrays
    out = Path(str(config["out"]))
    partial = out.with_suffix(".part")
    partial.write_text(json.dumps({"rounds_s": rounds_s}))
    partial.replace(out)
