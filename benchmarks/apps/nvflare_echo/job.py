"""Write NVFLARE's job: python job.py PARAMETERS CLIENTS ROUNDS OUT_FOLDER FIRST_MODEL.npy."""

import sys
from pathlib import Path

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe


def main() -> None:
    parameters, clients, rounds, out, first = sys.argv[1:]
    np.save(first, np.zeros(int(parameters), np.float32))
    recipe = NumpyFedAvgRecipe(
        name="echo",
        min_clients=int(clients),
        num_rounds=int(rounds),
        train_script=str(Path(__file__).with_name("client.py")),
        initial_ckpt=first,
        model=None,
    )
    recipe.export(job_dir=out)


if __name__ == "__main__":
    main()
