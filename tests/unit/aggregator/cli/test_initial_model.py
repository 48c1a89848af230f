"""Building a task's first model: what a site would refuse later is said before the job leaves."""

import subprocess
import sys

import pytest

from aggregator.cli.initial_model import build, load_task
from privacy.errors import UsageError
from privacy.spec import VectorSpec

TASK = """
import torch
from torch import nn
def model():
    return nn.Linear(2, 1)
def loss(model, batch):
    return batch["x"]
"""


def task_of(folder, text=TASK):
    (folder / "task.py").write_text(text)
    return load_task(folder, "task.py")


def refused(folder, text):
    with pytest.raises(UsageError) as caught:
        build(task_of(folder, text), 0)
    return str(caught.value)


def test_frozen_parameters_are_no_part_of_the_vector(tmp_path):
    """Sites train what requires a gradient; another vector here would never fit theirs."""
    text = TASK.replace("nn.Linear(2, 1)", "nn.Linear(2, 1).requires_grad_(False)")
    both = f"{text}\ndef model():\n    return nn.Sequential(nn.Linear(2, 1), frozen())\n"
    both = both.replace("def model():", "def frozen():", 1)
    spec, model = build(task_of(tmp_path, both), 0)
    assert [tensor.name for tensor in VectorSpec.from_bytes(spec).tensors] == ["0.weight", "0.bias"]
    assert len(model) == 3 * 4
    assert "no trainable parameter" in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("nn.Linear(2, 1, dtype=torch.bfloat16)", "torch.bfloat16; it must be float32"),
        ("nn.Linear(2, 1, dtype=torch.complex64)", "torch.complex64; it must be float32"),
        ("nn.Linear(2, 1, device='meta')", "meta device"),
        ("nn.ReLU()", "no trainable parameter"),
        ("3", "returned int"),
    ],
)
def test_models_that_sites_cannot_train_are_refused(tmp_path, change, says):
    assert says in refused(tmp_path, TASK.replace("nn.Linear(2, 1)", change))


def test_a_task_without_loss_is_refused(tmp_path):
    assert "no `loss" in refused(tmp_path, TASK.replace("def loss", "def los"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys\nsys.exit(0)\n", "line 2: SystemExit"),
        ("x = 1\nraise KeyError('k')\n", "line 2: KeyError: 'k'"),
        (TASK.replace("return nn.Linear(2, 1)", "return {}['gone']"), "line 5: KeyError: 'gone'"),
        ("def model(:\n", "task.py, line 1"),
    ],
)
def test_what_the_app_raises_is_one_line_that_names_its_line(tmp_path, text, says):
    (tmp_path / "task.py").write_text(text)
    program = [sys.executable, "-m", "aggregator.cli.initial_model"]
    done = subprocess.run(
        [*program, str(tmp_path), "task.py", "0", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "spec").exists()
