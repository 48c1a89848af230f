"""Read handwritten digits, at a stated pace: the model of ``benchmarks/asynchrony.py``.

A site's rows carry how long a step takes there: the loss waits so many milliseconds, without using
the processor. So one machine with few cores holds sites of different speed, each its own processes.

Shapes: B = records.
"""

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = Mapping[str, Tensor]
HIDDEN = 32


class Digits(nn.Module):
    """Map 64 grey values to ten scores through one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))

    def forward(self, batch: Batch) -> Tensor:
        """Return scores, shape (B, 10)."""
        scores: Tensor = self.layers(batch["pixels"])
        return scores


def model() -> nn.Module:
    """Make the untrained model."""
    return Digits()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Wait as the site's rows say; then return each record's log loss, shape (B,), in nats."""
    time.sleep(float(batch["pause_ms"].nan_to_num().max()) / 1000)  # the rehearsal has NaN
    scores: Tensor = model(batch)
    return functional.cross_entropy(scores, batch["digit"], reduction="none")


def metrics(model: nn.Module, batch: Batch) -> Tensor:
    """Return whether each record is read right, shape (B, 1)."""
    right = model(batch).argmax(dim=-1) == batch["digit"]
    return right.to(torch.float32).unsqueeze(-1)
