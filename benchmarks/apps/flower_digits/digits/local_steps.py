"""A site's local training, the same in Flower's processes and in the benchmark's own.

Shapes: N = records of a site, B = of a batch, K = local steps.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def batches(
    seed: int, site: int, server_round: int, records: int, steps: int, size: int
) -> NDArray[np.int64]:
    """Draw a round's batches with replacement, as Tidegate's sites do: indices, shape (K, B)."""
    draw = np.random.default_rng((seed, site, server_round))
    return draw.integers(records, size=(steps, size))


def train(
    task: Any,
    model: torch.nn.Module,
    shard: Mapping[str, NDArray[Any]],
    batches_KB: NDArray[np.int64],
    rate: float,
) -> None:
    """Take plain gradient steps on the mean loss of each batch, in place."""
    tensors = {name: torch.from_numpy(array) for name, array in shard.items()}
    weights = list(model.parameters())
    for batch_B in batches_KB:
        chosen_B = torch.from_numpy(batch_B)
        batch = {name: tensor[chosen_B] for name, tensor in tensors.items()}
        gradients = torch.autograd.grad(task.loss(model, batch).mean(), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=rate)
