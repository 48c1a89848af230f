"""Small apps for tests of the trainer, and the trainers that run them."""

import textwrap
from pathlib import Path

from edge_node.trainer.trainer import (
    HealthRules,
    Trainer,
    TrainerConfinement,
    TrainerJob,
    TrainerLimits,
)
from privacy.spec import TensorSpec, VectorSpec
from tidegate.confine.sandbox import SandboxMode
from tidegate.schema import scalars

COLUMNS = ("x0", "x1", "x2", "y")
LINEAR_SPEC = VectorSpec((TensorSpec("weight", (1, 3)), TensorSpec("bias", (1,))))

# loss = (w.x + b - y)^2, whose gradient is known on paper; metrics = the clamped loss and a flag.
LINEAR = """
import os, sys, time
import torch
from torch import nn

def model():
    return nn.Linear(3, 1)

def error(model, batch):
    x = torch.stack([batch["x0"], batch["x1"], batch["x2"]], dim=-1)
    return model(x).squeeze(-1) - batch["y"]

def loss(model, batch):
    return error(model, batch) ** 2

def metrics(model, batch):
    squares = error(model, batch) ** 2
    return torch.stack([squares.clamp(max=1.0), (batch["y"] > 0).to(squares.dtype)], dim=-1)
"""


def write_app(folder: Path, more: str = "", task: str = LINEAR) -> Path:
    """Write an app whose task is `task` followed by `more`."""
    app = folder / "app"
    app.mkdir(exist_ok=True)
    (app / "task.py").write_text(task + "\n" + textwrap.dedent(more))
    return app


def make_trainer(app: Path, **changes: object) -> Trainer:
    """Make a trainer of the linear app; keywords change its job, limits or confinement."""
    parts = (
        dict.fromkeys(TrainerJob.__dataclass_fields__),
        dict.fromkeys(TrainerLimits.__dataclass_fields__),
        dict.fromkeys(TrainerConfinement.__dataclass_fields__),
    )
    defaults = {
        "app_folder": app,
        "task_file": "task.py",
        "schema": scalars(COLUMNS),
        "spec": LINEAR_SPEC,
        "metrics_length": 2,
        "physical_batch": 8,
        "device": "cpu",
        "mode": SandboxMode.BEST_AVAILABLE,
        "health": HealthRules(max_restarts=20, backoff_s=0.0),
    }
    values = defaults | changes
    job, limits, confinement = ({k: v for k, v in values.items() if k in part} for part in parts)
    return Trainer(TrainerJob(**job), TrainerLimits(**limits), TrainerConfinement(**confinement))
