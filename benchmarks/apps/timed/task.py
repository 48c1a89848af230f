"""A model of any size whose training step takes as long as the records say: an emulated device.

A Tidegate task. ``benchmarks/wan.py`` sets WIDTH and LAYERS anew; the model has LAYERS * WIDTH ** 2
float32 parameters. The column ``compute_s`` is how long the step of a real accelerator would take:
it is waited for, so that sites that share a machine's few cores do not slow each other down. The
pass through the model that the loss makes besides is real, and small.

Shapes: B = records.
"""

import time
from collections.abc import Mapping

import torch
from torch import Tensor, nn

Batch = Mapping[str, Tensor]

WIDTH = 160
LAYERS = 1
COLUMNS = ("compute_s", "signal")


class Timed(nn.Module):
    """Pass one number a record through a chain of square layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, batch: Batch) -> Tensor:
        """Return one number a record, shape (B,)."""
        state = batch["signal"].unsqueeze(-1).expand(-1, WIDTH)
        for layer in self.layers:
            state = state + torch.tanh(layer(state))
        return state.mean(dim=-1)


def model() -> nn.Module:
    """Make the untrained model."""
    return Timed()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Wait as long as the step takes, then return squares, shape (B,)."""
    time.sleep(float(batch["compute_s"].nan_to_num(0.0).clamp(min=0.0).max()))
    answers: Tensor = model(batch)
    return answers.square()
