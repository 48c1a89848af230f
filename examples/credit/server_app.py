"""Lead the training of the credit task under plain Flower, with Adam at the server.

Tidegate's aggregator needs no server app: it builds the same strategy from ``job.toml`` and calls
it with the securely aggregated mean.
"""

import task
import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam
from safetensors.torch import save_file

BANKS = 5

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the run's rounds and save the last model as ``model.safetensors``."""
    torch.manual_seed(0)
    strategy = FedAdam(
        min_train_nodes=BANKS,
        min_evaluate_nodes=BANKS,
        min_available_nodes=BANKS,
        eta=0.01,
        beta_1=0.9,
        beta_2=0.99,
        tau=1e-3,
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(task.model().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    save_file(result.arrays.to_torch_state_dict(), "model.safetensors")
