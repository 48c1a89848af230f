"""A chain of square layers: a model of any size that learns in one cheap pass a record.

A Tidegate task. The benchmarks set WIDTH and LAYERS anew; the model has LAYERS * WIDTH ** 2 float32
parameters, WIDTH of them for each layer and input. Records are what ``benchmarks/rounds.py`` draws:
32 standard-normal columns and a noisy label.

Shapes: B = records, F = columns.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = Mapping[str, Tensor]

WIDTH = 160
LAYERS = 1
TARGET = "label"
FEATURES = tuple(f"x{index:02d}" for index in range(32))
COLUMNS = (TARGET, *FEATURES)


class Chain(nn.Module):
    """Pad the columns to WIDTH, pass them through the layers; log-odds is the mean of the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, shape (B,)."""
        inputs_BF = torch.stack([batch[name] for name in FEATURES], dim=-1)
        state = functional.pad(inputs_BF, (0, WIDTH - len(FEATURES)))
        for layer in self.layers:
            state = state + torch.tanh(layer(state))
        return state.mean(dim=-1)


def model() -> nn.Module:
    """Make the untrained model."""
    return Chain()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the log loss of each record, shape (B,), in nats."""
    logits: Tensor = model(batch)
    return functional.binary_cross_entropy_with_logits(logits, batch[TARGET], reduction="none")
