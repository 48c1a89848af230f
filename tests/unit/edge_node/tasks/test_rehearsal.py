"""What a site would refuse later is said before the job leaves, with the line and the mend."""

import json
import re
import subprocess
import sys
import textwrap

import pytest

from edge_node.tasks.base_models import folder_digest
from edge_node.tasks.rehearsal import rehearse
from edge_node.tasks.task import TaskError
from privacy.errors import UsageError
from privacy.spec import VectorSpec
from tidegate.jobfile import JobFile

TASK = """
import torch
from torch import nn
def model():
    return nn.Linear(3, 2)
def inputs(batch):
    kind = (batch["kind"].unsqueeze(1) == torch.arange(2)).to(torch.float32)
    return torch.cat([torch.nan_to_num(batch["x"]).unsqueeze(1), kind], 1)
def loss(model, batch):
    return nn.functional.cross_entropy(model(inputs(batch)), batch["y"], reduction="none")
def metrics(model, batch):
    return (loss(model, batch) / 4).clamp(0, 1).unsqueeze(1)
"""
COLUMNS = """
[[columns]]
name = "x"
low = -2.0
high = 2.0
[[columns]]
name = "kind"
dtype = "int64"
levels = 3
[[columns]]
name = "y"
dtype = "int64"
levels = 2
"""
METRICS = '[[metrics]]\nname = "loss"\nkind = "mean"\nupper = 4.0\n'
MODES = {
    "record-distributed": """
        [privacy]
        mode = "record-distributed"
        epsilon = 3.0
        delta_dp = 1e-5
        sampling_rate = 0.1
        clipping_norm = 1.0
        metrics_norm = 1.0
        expected_batch_size = 100
        """,
    "record-local": """
        [local]
        steps = 2
        [privacy]
        mode = "record-local"
        epsilon = 3.0
        delta_dp = 1e-5
        sampling_rate = 0.1
        clipping_norm = 1.0
        metrics_norm = 1.0
        expected_batch_size = 100
        update_norm = 1.0
        """,
    "none": """
        [local]
        steps = 2
        batch_size = 8
        learning_rate = 0.1
        [privacy]
        mode = "none"
        clipping_norm = 1.0
        metrics_norm = 1.0
        """,
}
COLLATE = "def collate(batch):\n    return {}\ndef inputs"
OPTIMIZER = "def optimizer(parameters):\n    return torch.optim.Adam(parameters, lr=0.01)\n"


def job_of(mode="record-distributed", columns=COLUMNS, metrics=METRICS, task=""):
    text = f"""
[job]
name = "j"
dataset = "d"
rounds = 3
[task]
file = "task.py"
physical_batch = 16
{task}
{textwrap.dedent(MODES[mode])}
{columns}
{metrics}
[strategy]
name = "FedAvg"
[round]
target_sites = 4
deadline_s = 30.0
max_attempts = 3
"""
    if not metrics:
        text = text.replace("metrics_norm = 1.0\n", "")
    return text


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("tidegate_task", None)


def run(tmp_path, task=TASK, **job):
    app, out = tmp_path / "app", tmp_path / "out"
    app.mkdir(exist_ok=True)
    out.mkdir(exist_ok=True)
    (app / "task.py").write_text(task)
    report = rehearse(app, JobFile.parse(job_of(**job).encode()), out, {})
    return report, out


def refused(tmp_path, **arguments):
    with pytest.raises((TaskError, UsageError)) as caught:
        run(tmp_path, **arguments)
    return str(caught.value)


@pytest.mark.parametrize("mode", MODES)
def test_a_good_task_is_tried_in_all_that_a_site_does(tmp_path, mode):
    task = TASK + (OPTIMIZER if mode == "record-local" else "")
    report, out = run(tmp_path, mode=mode, task=task)
    spec = VectorSpec.from_bytes((out / "spec").read_bytes())
    assert [tensor.name for tensor in spec.tensors] == ["weight", "bias"]
    assert len((out / "model").read_bytes()) == 4 * 8
    assert report["parameters"] == 8
    assert report["skipped"] == ""
    assert report["notes"] == []
    by_record = mode != "none"
    assert report["engine"] == ("torch.func" if by_record else "")
    assert ("gradients: as a loop over single records" in report["checks"]) == by_record
    assert ("optimizer" in report["checks"]) == (mode == "record-local")
    assert ("one local step" in report["checks"]) == (mode == "none")


def test_what_torch_func_cannot_map_goes_to_opacus_by_itself(tmp_path):
    arange = '(batch["kind"].unsqueeze(1) == torch.arange(2))'
    one_hot = 'nn.functional.one_hot(batch["kind"], 3)[:, :2]'
    assert arange in TASK
    report, _ = run(tmp_path, task=TASK.replace(arange, one_hot))
    assert report["engine"] == "opacus"


def test_without_columns_it_says_that_nothing_was_made_up(tmp_path):
    report, _ = run(tmp_path, columns="")
    assert "no [[columns]]" in report["skipped"]
    assert report["checks"] == ["modules"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (', reduction="none")', ")", r"task.py, line 9: loss.*shape \(\) .*reduction='none'"),
        ("return nn.functional.cross", "return 2 / batch['x'] * 0 + nn.functional.cross",
         r"line 9: loss.*gave (inf|nan).*finite.*at the bounds"),
        ('batch["y"], red', 'batch["why"], red', "line 10: KeyError: 'why'.*drawn between"),
        ("torch.arange(2)", "torch.arange(5)", "line 10: RuntimeError: mat1.*made-up data"),
        (".unsqueeze(1)\n", "\n", r"line 11: metrics.*shape \(16,\).*\(16, 1\)"),
        (" / 4).clamp(0, 1)", " * 4)", "line 11: .*block of 'loss' a norm of .*at most 1"),
        ("def metrics", "def metric", "define metrics"),
        ("nn.Linear(3, 2)", "nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))",
         r"'1' is a BatchNorm1d.*GroupNorm\(8, 8\)"),
        ("nn.Linear(3, 2)", "nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.1))", "'1' .Dropout"),
        ("nn.Linear(3, 2)", "nn.Linear(3, 2, dtype=torch.bfloat16)", "must be float32"),
        ("nn.Linear(3, 2)", "nn.Linear(3, 2, device='meta')", "meta device"),
        ("nn.Linear(3, 2)", "nn.Linear(3, 2).requires_grad_(False)", "no trainable parameter"),
        ("nn.Linear(3, 2)", "3", "must return a torch.nn.Module, not int"),
        ("    return nn.Linear", "    raise SystemExit\n    return nn.Linear", "line 5: Sys"),
        ("def model():", "def model(:", "task.py, line 4"),
        ("def model():", "def model(base_models):", "takes base models.*declares none"),
        ("def inputs", COLLATE.format("{k: v[:1] for k, v in batch.items()}"),
         r"line 6: collate.*shape \(1,\).*first dimension"),
        ("def inputs", COLLATE.format("batch | {'x': batch['x'] - batch['x'].mean()}"),
         "not that of the record alone"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_line_and_mend(tmp_path, old, new, says):
    assert old in TASK
    message = refused(tmp_path, task=TASK.replace(old, new, 1))
    assert re.search(says, message), message


def test_a_missing_value_may_lose_the_record_but_is_said(tmp_path):
    report, _ = run(tmp_path, task=TASK.replace('torch.nan_to_num(batch["x"])', 'batch["x"]'))
    assert "without a value of x has no finite loss" in report["notes"][0]


BUFFER = """
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))
    def forward(self, x):
        if torch._C._functorch.maybe_get_level(x) == -1:
            self.seen += 1
        return self.inner(x)
def model():
    return Counts()
"""


def test_a_buffer_that_changes_is_named(tmp_path):
    message = refused(tmp_path, task=TASK + BUFFER)
    assert "buffer 'seen'" in message


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", r"no learning_rate, so task.py must define optimizer\(parameters\)"),
        ("def optimizer(parameters):\n    return 3\n", "must return a torch.optim.Optimizer"),
        ("def optimizer(p):\n    return torch.optim.SGD([nn.Parameter(torch.ones(1))])\n",
         "no others"),
        ("def optimizer(p):\n    return torch.optim.LBFGS(p)\n", "closure"),
        ("def optimizer(p):\n    return torch.optim.SGD(p, lr=0.0)\n", "does not move"),
    ],
)  # fmt: skip
def test_optimizers_are_tried(tmp_path, more, says):
    message = refused(tmp_path, task=TASK + more, mode="record-local")
    assert re.search(says, message), message


def test_an_optimizer_beside_a_learning_rate_is_ambiguous(tmp_path):
    assert "remove one of the two" in refused(tmp_path, task=TASK + OPTIMIZER, mode="none")


BASED = TASK.replace(
    "def model():\n    return nn.Linear(3, 2)",
    """def model(base_models):
    width = int((base_models["tiny"] / "width.txt").read_text())
    return nn.Sequential(nn.Linear(3, width).requires_grad_(False), nn.Linear(width, 2))""",
)


def test_base_models_are_given_by_name_and_checked_by_digest(tmp_path):
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "width.txt").write_text("5")
    digest = folder_digest(weights)
    table = f'[[task.base_models]]\nname = "tiny"\nsha256 = "{digest}"\n'
    job = JobFile.parse(job_of(task=table).encode())
    (tmp_path / "app").mkdir()
    (tmp_path / "app/task.py").write_text(BASED)
    report = rehearse(tmp_path / "app", job, tmp_path, {"tiny": weights})
    assert report["parameters"] == 12
    with pytest.raises(UsageError, match="--base-model tiny=PATH"):
        rehearse(tmp_path / "app", job, tmp_path, {})
    with pytest.raises(UsageError, match="declares no base model other"):
        rehearse(tmp_path / "app", job, tmp_path, {"tiny": weights, "other": weights})
    (weights / "width.txt").write_text("6")
    with pytest.raises(UsageError, match=f"declares {digest}"):
        rehearse(tmp_path / "app", job, tmp_path, {"tiny": weights})


@pytest.mark.parametrize("good", [True, False])
def test_the_program_keeps_the_report_apart_from_what_the_app_prints(tmp_path, good):
    app, out = tmp_path / "app", tmp_path / "out"
    app.mkdir()
    out.mkdir()
    (app / "more.py").write_text("print('hello from the app')\n")
    text = "import more\n" + TASK + ("" if good else "raise KeyError('k')\n")
    (app / "task.py").write_text(text)
    (tmp_path / "job.toml").write_text(job_of(columns=""))
    done = subprocess.run(
        [sys.executable, "-m", "edge_node.tasks.rehearsal", app, tmp_path / "job.toml", out],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "hello from the app" in done.stderr
    assert sorted(path.name for path in app.iterdir()) == ["more.py", "task.py"]
    if good:
        assert json.loads(done.stdout)["parameters"] == 8
        return
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "task.py, line 14: KeyError: 'k'"
    assert list(out.iterdir()) == []


def test_the_architecture_is_said_and_another_one_than_the_jobs_is_refused(tmp_path):
    said = run(tmp_path)[0]["architecture"]
    sys.modules.pop("tidegate_task", None)
    assert run(tmp_path, task=TASK)[0]["architecture"] == said
    wrong = refused_job(tmp_path, f'architecture = "{"0" * 64}"')
    assert said in wrong
    assert "architecture" in wrong


def refused_job(tmp_path, line):
    app = tmp_path / "app"
    sys.modules.pop("tidegate_task", None)
    with pytest.raises(TaskError) as caught:
        rehearse(app, JobFile.parse(job_of(task=line).encode()), tmp_path / "out", {})
    return str(caught.value)
