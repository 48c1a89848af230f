"""Loading a task file."""

import sys

import pytest
from torch import nn

from edge_node.task import TaskError, load_task

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
        ("def model(): return 3\ndef loss(m, b): ...", "must return a torch.nn.Module"),
    ],
)
def test_a_file_that_is_no_task_is_refused(tmp_path, text, says):
    with pytest.raises(TaskError, match=says):
        load(tmp_path, text)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"no Python file other\.py"):
        load_task(tmp_path, "other.py", 0)
