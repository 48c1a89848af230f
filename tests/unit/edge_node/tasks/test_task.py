"""Loading a task file."""

import sys

import pytest
import torch
from torch import nn

from edge_node.tasks.task import TaskError, load_task
from tidegate.schema import scalars

GOOD = "from torch import nn\ndef model(): return nn.Linear(2, 1)\ndef loss(m, b): return b['y']\n"


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    for name in ("tidegate_task", "features_of_the_app"):
        sys.modules.pop(name, None)


def load(tmp_path, text, seed=0):
    (tmp_path / "task.py").write_text(text)
    return load_task(tmp_path, "task.py", seed)


def test_a_task_may_import_its_own_modules_and_leaves_no_bytecode(tmp_path):
    (tmp_path / "features_of_the_app.py").write_text("WIDTH = 5\n")
    text = "import features_of_the_app\n" + GOOD.replace("(2,", "(features_of_the_app.WIDTH,")
    assert load(tmp_path, text).model.in_features == 5
    assert not list(tmp_path.rglob("*.pyc"))


def test_the_seed_decides_the_initial_parameters(tmp_path):
    weights = [load(tmp_path, GOOD, seed).model.weight.tolist() for seed in (1, 1, 2)]
    assert weights[0] == weights[1] != weights[2]


def test_metrics_are_optional(tmp_path):
    assert load(tmp_path, GOOD).metrics is None
    assert load(tmp_path, GOOD + "def metrics(m, b): ...\n").metrics is not None


@pytest.mark.parametrize(
    "module",
    [
        "nn.BatchNorm1d(2)",
        "nn.Sequential(nn.Linear(2, 2), nn.BatchNorm2d(2, track_running_stats=False))",
        "nn.SyncBatchNorm(2)",
        "nn.InstanceNorm1d(2, track_running_stats=True)",
    ],
)
def test_modules_that_mix_records_are_refused_by_name(tmp_path, module):
    with pytest.raises(TaskError, match=r"mixes the records.*GroupNorm"):
        load(tmp_path, GOOD.replace("nn.Linear(2, 1)", module))


def test_modules_that_keep_records_apart_are_not(tmp_path):
    text = GOOD.replace("nn.Linear(2, 1)", "nn.Sequential(nn.LayerNorm(2), nn.InstanceNorm1d(2))")
    assert isinstance(load(tmp_path, text).model, nn.Sequential)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "define a function model"),
        ("def model(): ...", "define a function loss"),
        ("model = 3\ndef loss(m, b): ...", "define a function model"),
        ("def model(): return 3\ndef loss(m, b): ...", "must return a torch.nn.Module, not int"),
    ],
)
def test_a_file_that_is_no_task_is_refused(tmp_path, text, says):
    with pytest.raises(TaskError, match=says):
        load(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"no Python file other\.py"):
        load_task(tmp_path, "other.py", 0)


BASED = """
from torch import nn
def model(base_models):
    return nn.Linear(len((base_models["tiny"] / "words.txt").read_text()), 1)
def loss(m, b): return b['y']
"""


def test_a_model_is_given_the_folders_of_its_base_models(tmp_path):
    (tmp_path / "words.txt").write_text("seven..")
    (tmp_path / "task.py").write_text(BASED)
    assert load_task(tmp_path, "task.py", 0, {"tiny": tmp_path}).model.in_features == 7
    with pytest.raises(TaskError, match="takes base models, and the job declares none"):
        load_task(tmp_path, "task.py", 0)
    (tmp_path / "task.py").write_text(GOOD)
    with pytest.raises(TaskError, match=r"must define model\(base_models\)"):
        load_task(tmp_path, "task.py", 0, {"tiny": tmp_path})


def test_a_normalisation_in_eval_mode_is_a_constant_and_allowed(tmp_path):
    norm = "nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()"
    text = GOOD.replace("nn.Linear(2, 1)", norm)
    assert isinstance(load(tmp_path, text).model, nn.Sequential)


def test_faults_name_the_functions_own_line(tmp_path):
    task = load(tmp_path, GOOD)
    assert str(task.fault(task.loss, "is wrong")) == "task.py, line 3: is wrong"
    with pytest.raises(TaskError, match=r"line 3: loss.*reduction='none'"):
        task.losses({"y": torch.ones(())}, 4)


@pytest.mark.parametrize(
    ("collate", "says"),
    [
        ("return 3", "dict of tensors"),
        ("return {'y': [1, 2]}", "dict of tensors"),
        ("return {'y': b['y'].sum()}", r"'y' the shape \(\) for a batch of 4 records"),
    ],
)
def test_collate_must_keep_the_records(tmp_path, collate, says):
    task = load(tmp_path, GOOD + f"def collate(b):\n    {collate}\n")
    with pytest.raises(TaskError, match=says):
        task.batch(torch.ones(4, 1), scalars(("y",)))
    task = load(tmp_path, GOOD + "def collate(b):\n    return {'z': b['y'].repeat(3, 1).T}\n")
    assert task.batch(torch.ones(4, 1), scalars(("y",)))["z"].shape == (4, 3)
