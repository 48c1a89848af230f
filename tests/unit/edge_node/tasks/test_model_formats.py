"""A converted model computes what the task computes, or is not written."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from safetensors.torch import save_file

from edge_node.tasks import model_formats

JOB = """
[job]
name = "linear"
dataset = "d"
rounds = 1
[[columns]]
name = "x"
shape = [3]
low = -1.0
high = 1.0
[[columns]]
name = "level"
dtype = "int64"
levels = 4
[[columns]]
name = "label"
low = 0.0
high = 1.0
[privacy]
mode = "none"
clipping_norm = 1.0
[local]
steps = 1
batch_size = 2
learning_rate = 0.1
[strategy]
name = "FedAvg"
[round]
target_sites = 3
"""
TASK = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.level = nn.Embedding(4, 2)
        self.out = nn.Linear(5, 1)

    def forward(self, batch):
        mixed = torch.cat([batch["x"], self.level(batch["level"])], dim=-1)
        return self.out(torch.tanh(mixed)).squeeze(-1)

def model():
    return Net()

def loss(model, batch):
    return (model(batch) - batch["label"]) ** 2
"""
PREDICT = """
def predict(model, batch):
    return torch.sigmoid(model(batch))
"""
TENSORS = {
    "level.weight": torch.linspace(-1, 1, 8).reshape(4, 2),
    "out.weight": torch.linspace(-2, 2, 5).reshape(1, 5),
    "out.bias": torch.tensor([0.25]),
}


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("tidegate_task", None)


def write_files(tmp_path, name, task=TASK, tensors=TENSORS):
    app = tmp_path / "app"
    app.mkdir()
    (app / "task.py").write_text(textwrap.dedent(task))
    (tmp_path / "job.toml").write_text(JOB)
    save_file(tensors, tmp_path / "model.safetensors")
    files = [app, tmp_path / "job.toml", tmp_path / "model.safetensors", tmp_path / name]
    return list(map(str, files))


@pytest.fixture
def convert(monkeypatch, capsys):
    """Run the program in this process: what it exits with, and what it prints."""

    def convert(files):
        monkeypatch.setattr(sys, "argv", ["model_formats", *files])
        status = model_formats.main()
        return status, capsys.readouterr()

    return convert


def expected(x, level):
    mixed = np.concatenate([x, TENSORS["level.weight"].numpy()[level]], axis=1)
    logits = np.tanh(mixed) @ TENSORS["out.weight"].numpy()[0] + 0.25
    return 1 / (1 + np.exp(-logits))


X = np.random.default_rng(1).uniform(-1, 1, (7, 3)).astype(np.float32)
LEVEL = np.arange(7) % 4


def test_onnx_computes_the_prediction_from_the_columns_it_looks_at(tmp_path):
    files = write_files(tmp_path, "m.onnx", TASK + PREDICT)
    done = subprocess.run(
        [sys.executable, "-m", "edge_node.tasks.model_formats", *files],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["inputs"] == ["x", "level"]
    model = onnx.load(tmp_path / "m.onnx")
    # Seven rows, traced with four: the number of records is free.
    (found,) = ReferenceEvaluator(model).run(None, {"x": X, "level": LEVEL})
    np.testing.assert_allclose(found, expected(X, LEVEL), atol=1e-6)


def test_torch_export_computes_the_prediction(tmp_path, convert):
    status, said = convert(write_files(tmp_path, "m.pt2", TASK + PREDICT))
    assert status == 0, said.err
    module = torch.export.load(tmp_path / "m.pt2").module()
    found = module(torch.from_numpy(X), torch.from_numpy(LEVEL)).detach().numpy()
    np.testing.assert_allclose(found, expected(X, LEVEL), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "task", "tensors", "why"),
    [
        ("m.txt", TASK, TENSORS, "must end in one of .pt2, .onnx"),
        ("m.pt2", TASK, {"out.bias": torch.zeros(1)}, "other tensors than the app's model"),
        ("m.pt2", TASK + "\ndef predict(model, batch):\n    raise KeyError('no')\n", TENSORS,
         "(task.py, line"),
        ("m.pt2", TASK + "\ndef predict(model, batch):\n    return 3\n", TENSORS, "one tensor"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_refused_with_the_reason(
    tmp_path, convert, name, task, tensors, why
):
    status, said = convert(write_files(tmp_path, name, task, tensors))
    assert status == 2
    assert why in said.err
    assert not (tmp_path / name).exists()


def test_a_file_that_computes_something_else_is_not_left_behind(tmp_path, convert, monkeypatch):
    def wrong(_program, columns, _names, out):
        out.write_bytes(b"not what was asked for")
        return torch.full((len(columns[0]),), 7.0)

    monkeypatch.setattr(model_formats, "_write_torch_export", wrong)
    status, said = convert(write_files(tmp_path, "m.pt2", TASK + PREDICT))
    assert status == 2
    assert "another result" in said.err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "app",
        "job.toml",
        "model.safetensors",
    ]
