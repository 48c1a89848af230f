"""One long parameter: the model of ``benchmarks/memory.py``, whose sites send a constant delta.

Nothing runs this file there: the simulated sites do not train. It is a whole task all the same.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

LENGTH = 25_000_000


class Constant(nn.Module):
    """Hold a vector and answer its mean for every record."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(LENGTH))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return one value a record, shape (B,)."""
        return self.flat.mean() + 0.0 * batch["x"]


def model() -> nn.Module:
    """Make the untrained model."""
    return Constant()


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the squared distance from each record, shape (B,)."""
    answers: Tensor = model(batch)
    return (answers - batch["x"]) ** 2
