"""A rehearsal runs main as the aggregator will: learns the model, refuses what cannot run."""

import sys

import numpy as np
import pytest
import torch

from aggregator.server_app.rehearsal import rehearse
from privacy.errors import UsageError
from tests.support.flower_rounds import SPEC
from tests.support.flower_site import FEDADAM, flower_app, flower_job
from tidegate import appbundle
from tidegate.jobfile import JobFile

CHANGES_SHAPE = """
    strategy = FedAvg()
    strategy.start(grid, arrays, 1)
    strategy.start(grid, ArrayRecord({'x': arrays['w']}), 1)
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Rehearse an app in this process, and forget it afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.chdir(scratch)  # main saves its model
    modules, threads = set(sys.modules), torch.get_num_threads()

    def run(body=FEDADAM, imports="FedAdam", values=None, **files):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        appbundle.unpack(flower_app(body, imports, **files), folder)
        for name in set(sys.modules) - modules:
            if name.startswith("demo"):
                del sys.modules[name]
        return rehearse(folder, JobFile.parse(flower_job(**(values or {}))))

    yield run
    torch.set_num_threads(threads)
    for name in set(sys.modules) - modules:
        if name.startswith("demo"):
            del sys.modules[name]


def test_a_rehearsal_learns_model_settings_and_calls(run):
    seen = run()
    assert seen.spec == SPEC
    np.testing.assert_array_equal(seen.first_D, np.zeros(SPEC.length))
    assert seen.report() == {
        "trainings": 4,
        "evaluations": 4,
        "skipped_evaluations": 0,
        "complete": True,
        "strategy": "FedAdam",
        "train_config": {"lr": 0.25},
        "evaluate_config": {},
    }


def test_what_main_draws_is_the_same_in_every_run(run):
    draws = (
        """
    import random
    import torch
    drawn = [torch.rand(1).item(), np.random.rand(), random.random()]
    arrays["b"] = Array(np.asarray(drawn, np.float32))
"""
        + FEDADAM
    )
    first, second = run(draws), run(draws)
    assert first.first_D.any()
    np.testing.assert_array_equal(first.first_D, second.first_D)


def test_who_vouches_for_a_strategy_of_the_apps_own_may_run_it(run):
    seen = run(OWN.format(base="FedAvg"), "FedAvg", {"flower": "single_reply = true"})
    assert seen.strategy == "Own"
    with pytest.raises(UsageError, match="derives from Krum"):
        run(OWN.format(base="Krum"), "Krum", {"flower": "single_reply = true"})


def test_an_older_app_is_told_so(run):
    older = "from flwr.serverapp import ServerApp\napp = ServerApp(server_fn=lambda c: None)\n"
    with pytest.raises(UsageError, match="older API"):
        run(**{"demo/server_app.py": older})
    with pytest.raises(UsageError, match=r"not a flwr\.serverapp\.ServerApp"):
        run(**{"demo/server_app.py": "app = 3\n"})


OWN = """
    class Own({base}):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, replies)
    Own().start(grid, arrays, 1)
"""


@pytest.mark.parametrize(
    ("body", "imports", "says"),
    [
        ("    getattr(flwr_s, 'FedMedian')()", "FedAvg", "FedMedian cannot run on secure sums"),
        (OWN.format(base="FedAvg"), "FedAvg", "would be given ONE reply"),
        ("    grid.push_messages([])", "FedAvg", "no replies of single sites"),
        ("    pass", "FedAvg", "without a call to the sites"),
        ("    FedAvg().start(grid, arrays, 9)", "FedAvg", "more than .job. rounds = 8"),
        (
            CHANGES_SHAPE,
            "FedAvg",
            "cannot be broadcast",
        ),
    ],
)
def test_what_the_rehearsal_refuses(run, body, imports, says):
    with pytest.raises(UsageError, match=says):
        run("    import flwr.serverapp.strategy as flwr_s\n" + body, imports)


MODEL = """
import torch
from collections import OrderedDict

def net():
    return torch.nn.BatchNorm1d(2)

def arrays():
    return [torch.ones(2, 2).numpy(), torch.zeros(1)]

def nothing():
    return None
"""


def test_the_first_model_may_come_from_a_function(run):
    strategy = '[strategy]\nname = "FedAvg"\n'

    def values(function):
        flower = f'model = "demo.model:{function}"'
        return {"driver": "strategy", "flower": flower, "strategy": strategy}

    def names(function):
        seen = run(values=values(function), **{"demo/model.py": MODEL})
        return [tensor.name for tensor in seen.spec.tensors]

    assert names("net") == [
        "weight",
        "bias",
        "running_mean",
        "running_var",
        "num_batches_tracked",
    ]
    assert names("arrays") == ["0", "1"]
    with pytest.raises(UsageError, match="gave a NoneType"):
        names("nothing")
    with pytest.raises(UsageError, match="has no 'missing'"):
        names("missing")
