"""Plain fp32 FedAvg in this process: the baseline's accuracy over many rounds and seeds.

Local training is the very code that Flower's clients run (``apps/flower_digits``), with the same
batches, and every site counts alike; so a Flower deployment must give the same model, which the
traffic benchmark checks over its first rounds. The outer optimiser is FedAvg's mean.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.digits_data import Table

LOCAL_STEPS = Path(__file__).parent / "apps" / "flower_digits" / "digits" / "local_steps.py"

Weights = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Training:
    """How every site trains in a round.

    Attributes:
        steps: Local steps.
        batch: Records of a step, drawn with replacement.
        rate: Of plain gradient descent.
    """

    steps: int
    batch: int
    rate: float


def load_module(path: Path, name: str) -> Any:
    """Import a file that is in no package."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def fedavg(
    task: Any,
    first: Weights,
    sites: Sequence[Table],
    training: Training,
    rounds: int,
    seed: int,
) -> Weights:
    """Train for some rounds from a first model; gives the last one."""
    local = load_module(LOCAL_STEPS, "benchmarks_local_steps")
    model: torch.nn.Module = task.model()
    weights = {name: np.array(array) for name, array in first.items()}
    for server_round in range(1, rounds + 1):
        total = {name: np.zeros_like(array) for name, array in weights.items()}
        for site, shard in enumerate(sites):
            load(model, weights)
            drawn = local.batches(
                seed, site, server_round, len(shard["digit"]), training.steps, training.batch
            )
            local.train(task, model, shard, drawn, training.rate)
            for name, weight in model.named_parameters():
                total[name] += weight.detach().numpy()
        weights = {name: array / np.float32(len(sites)) for name, array in total.items()}
    return weights


def load(model: torch.nn.Module, weights: Weights) -> None:
    """Set a model's parameters."""
    state = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
    model.load_state_dict(state)


def accuracy(task: Any, weights: Weights, test: Table) -> float:
    """Give the share of test records told right."""
    model: torch.nn.Module = task.model()
    load(model, weights)
    with torch.no_grad():
        scores_NC = model({"pixels": torch.from_numpy(test["pixels"])})
    return float(np.mean(scores_NC.argmax(1).numpy() == test["digit"]))
