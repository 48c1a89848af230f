"""The scikit-learn example is a task like any other: its gradients and metrics are the job's."""

from pathlib import Path

import numpy as np
import pytest
import torch

from edge_node.tasks.batches import draw_rows
from edge_node.tasks.record_gradients import RecordGradients
from edge_node.tasks.task import load_task, spec_of
from tidegate.jobfile import JobFile

pytest.importorskip("sklearn")
FOLDER = Path(__file__).parents[3] / "examples" / "credit-sklearn"


def test_the_example_trains_record_by_record_and_comes_back_as_a_pipeline():
    job = JobFile.parse((FOLDER / "job.toml").read_bytes())
    task = load_task(FOLDER, "task.py", seed=0)
    spec = spec_of(task.model)
    rows = draw_rows(job.schema, 32, torch.Generator().manual_seed(1))
    taken = RecordGradients(task, spec, job.schema, job.metrics_length)
    gradients = torch.zeros(32, spec.length)
    metrics = torch.zeros(32, job.metrics_length)
    taken.set_model(torch.zeros(spec.length))
    taken(rows, gradients, metrics)
    label = rows[:, job.schema.places["default"]].squeeze(1)
    bias = gradients[:, -1]
    assert torch.allclose(bias, 0.5 - label, atol=1e-6)  # of log loss, at a margin of 0
    assert torch.isfinite(gradients).all()
    assert np.allclose(metrics[:, 0], np.log(2) / 4.0)
