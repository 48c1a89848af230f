"""Classify synthetic records: the model of ``benchmarks/rounds.py``, 10,029 parameters.

A Tidegate task. What the benchmark measures is rounds, not accuracy: the records are drawn from a
fixed seed by the benchmark itself, 32 standard-normal columns and a noisy label.

Shapes: B = records, M = metric coordinates.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = Mapping[str, Tensor]

TARGET = "label"
FEATURES = tuple(f"x{index:02d}" for index in range(32))
COLUMNS = (TARGET, *FEATURES)
HIDDEN = (96, 70)

# What job.toml declares under [[metrics]].
LOSS_UPPER = 4.0
AUC_BINS = 20
SCORE_RANGE = (-4.0, 4.0)


class Mlp(nn.Module):
    """Map 32 columns to log-odds through two tanh layers."""

    def __init__(self) -> None:
        super().__init__()
        first, second = HIDDEN
        self.layers = nn.Sequential(
            nn.Linear(len(FEATURES), first),
            nn.Tanh(),
            nn.Linear(first, second),
            nn.Tanh(),
            nn.Linear(second, 1),
        )

    def forward(self, batch: Batch) -> Tensor:
        """Return log-odds, shape (B,)."""
        inputs = torch.stack([batch[name] for name in FEATURES], dim=-1)
        logits: Tensor = self.layers(inputs)
        return logits.squeeze(-1)


def model() -> nn.Module:
    """Make the untrained model."""
    return Mlp()


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Return the log loss of each record, shape (B,), in nats."""
    logits: Tensor = model(batch)
    return functional.binary_cross_entropy_with_logits(logits, batch[TARGET], reduction="none")


def metrics(model: nn.Module, batch: Batch) -> Tensor:
    """Return each record's loss and its (label, score bin) as a one-hot, shape (B, M), M = 41."""
    logits: Tensor = model(batch)
    label = batch[TARGET]
    losses = functional.binary_cross_entropy_with_logits(logits, label, reduction="none")
    share = (losses / LOSS_UPPER).clamp(0.0, 1.0)
    low, high = SCORE_RANGE
    score_bin = ((logits - low) / (high - low) * AUC_BINS).floor().clamp(0, AUC_BINS - 1)
    place = score_bin + AUC_BINS * label
    places = torch.arange(2 * AUC_BINS, dtype=logits.dtype, device=logits.device)
    return torch.cat([share.unsqueeze(-1), (place.unsqueeze(-1) == places).to(logits.dtype)], -1)
