"""The demo's comparison rows: what a bank gets alone, and all data pooled without privacy.

Only this harness reads every shard, and only to measure; nothing here is part of a federation. Each
model is the example's own, trained without noise or clipping until a held-out tenth of its own
training data no longer improves.

Shapes: N = rows.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn

Table = Mapping[str, NDArray[np.float32]]

BATCH = 256
LEARNING_RATE = 2e-3
PATIENCE = 5
MAX_EPOCHS = 60
MAX_STEPS_PER_EPOCH = 200
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Comparison:
    """Areas under the ROC curve on the consortium's test data."""

    pooled: float
    alone: tuple[float, ...]


def compare(task: ModuleType, train: Mapping[str, Table], test: Table, seed: int) -> Comparison:
    """Train each bank's model alone and one on all data, and rate all on the same test data.

    Args:
        task: The example's task.
        train: Training tables by bank.
        test: The consortium's test table.
        seed: Of initial weights, validation draw and batch order.
    """
    tables = list(train.values())
    pooled = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    return Comparison(
        pooled=auc(task, train_alone(task, pooled, seed), test),
        alone=tuple(auc(task, train_alone(task, table, seed), test) for table in tables),
    )


def train_alone(task: ModuleType, table: Table, seed: int) -> nn.Module:
    """Train the task's model without privacy until its validation loss stops falling."""
    torch.manual_seed(seed)
    module: nn.Module = task.model()
    batch = _tensors(table)
    rows = len(next(iter(batch.values())))
    order_N = torch.randperm(rows)
    held = max(1, round(rows * VALIDATION_SHARE))
    validation = {name: column[order_N[:held]] for name, column in batch.items()}
    training_N = order_N[held:]
    optimiser = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
    best_loss, best_state, left = float("inf"), copy.deepcopy(module.state_dict()), PATIENCE
    for _ in range(MAX_EPOCHS):
        shuffled_N = training_N[torch.randperm(len(training_N))]
        for rows_B in shuffled_N.split(BATCH)[:MAX_STEPS_PER_EPOCH]:
            optimiser.zero_grad()
            records = {name: column[rows_B] for name, column in batch.items()}
            task.loss(module, records).mean().backward()
            optimiser.step()
        with torch.no_grad():
            loss = float(task.loss(module, validation).mean())
        left -= 1
        if loss < best_loss:
            best_loss, best_state, left = loss, copy.deepcopy(module.state_dict()), PATIENCE
        if not left:
            break
    module.load_state_dict(best_state)
    return module


def load_flat(task: ModuleType, arrays: Mapping[str, Tensor]) -> nn.Module:
    """Return the task's model with the released parameters in it."""
    module: nn.Module = task.model()
    module.load_state_dict(dict(arrays))
    return module


def auc(task: ModuleType, module: nn.Module, table: Table) -> float:
    """Return the exact area under the ROC curve, ties counted half (Mann-Whitney)."""
    batch = _tensors(table)
    with torch.no_grad():
        scores_N = module(batch).double().numpy()
    positive_N = batch[task.TARGET].numpy() > 0.5
    positives, negatives = int(positive_N.sum()), int((~positive_N).sum())
    ranks_N = rankdata(scores_N)
    wins = ranks_N[positive_N].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))


def _tensors(table: Table) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(table[name])) for name in table}
