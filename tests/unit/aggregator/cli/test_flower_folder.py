"""An unchanged Flower app folder is rehearsed, refused with the reason, or given a job file."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from aggregator.cli.flower_folder import (
    FlowerOptions,
    describe_rehearsal,
    draft_job,
    is_flower_folder,
)
from aggregator.cli.strategy_scan import refuse_strategies
from aggregator.cli.submission import prepare
from privacy.errors import UsageError
from privacy.spec import VectorSpec
from tests.support.flower_rounds import SPEC
from tests.support.flower_site import flower_app, flower_job
from tidegate import appbundle
from tidegate.jobfile import SERVER_APP, STRATEGY, JobFile

OPTIONS = FlowerOptions(dataset="credit", mode="none", clipping_norm=5.0, sites=5)
BOTH = dataclasses.replace(OPTIONS, metrics=("loss=20",), evaluation_metrics=("loss=20",))


@pytest.fixture
def app_folder(tmp_path):
    def make(*arguments, **files):
        folder = tmp_path / "my app!"
        appbundle.unpack(flower_app(*arguments, **files), folder)
        return folder

    return make


def test_a_folder_without_a_job_file_is_given_one_that_says_what_main_asks_for(app_folder):
    folder = app_folder()
    assert is_flower_folder(folder)
    assert not is_flower_folder(folder / "demo")
    job = JobFile.parse(draft_job(folder, BOTH))
    assert (job.name, job.rounds, job.work.driver) == ("my app", 8, SERVER_APP)
    assert (job.privacy.mode, job.privacy.metrics_norm) == ("none", 1.25)
    assert not (folder / "final_model.npy").exists()


def test_without_evaluation_metrics_evaluations_are_not_counted(app_folder):
    text = draft_job(app_folder(), OPTIONS)
    assert JobFile.parse(text).rounds == 4
    report = {"complete": True, "trainings": 4, "evaluations": 0, "strategy": "FedAdam"}
    first, second = describe_rehearsal({**report, "skipped_evaluations": 4})
    assert first == "rehearsed main to its end: 4 trainings, 0 evaluations by FedAdam"
    assert "4 evaluations will not be made" in second


def test_a_strategy_of_the_operators_takes_settings_and_model_from_main(app_folder):
    body = "    Krum().start(grid, arrays, 3, train_config=ConfigRecord({'lr': 0.5}))"
    folder = app_folder(body, "Krum")  # not run: [strategy] takes its place
    options = dataclasses.replace(BOTH, strategy="FedYogi", evaluate_every=2)
    text = draft_job(folder, options)
    job = JobFile.parse(text)
    assert (job.rounds, job.work.driver, job.strategy.name) == (4, STRATEGY, "FedYogi")
    assert job.work.train_config == {"lr": 0.5}
    submission = prepare(folder, text)
    assert VectorSpec.from_bytes(submission.vector_spec) == SPEC
    np.testing.assert_array_equal(np.frombuffer(submission.model, "<f4"), np.zeros(SPEC.length))


def test_run_config_is_read_by_the_apps_own_kinds(app_folder):
    folder = app_folder()
    options = dataclasses.replace(OPTIONS, rounds=3, run_config=("num-server-rounds=2", "lr=0.75"))
    job = JobFile.parse(draft_job(folder, options))
    assert (job.rounds, job.work.run_config) == (3, {"num-server-rounds": 2, "lr": 0.75})
    for wrong in ("lr", "lr=fast", "epochs=3"):
        with pytest.raises(UsageError, match=wrong.partition("=")[0]):
            draft_job(folder, dataclasses.replace(OPTIONS, run_config=(wrong,)))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": ""}, "--dataset is missing"),
        ({"mode": "site"}, "--epsilon, --delta-dp are missing"),
        ({"mode": "record-distributed"}, "an unchanged app runs in mode site or none"),
        ({"evaluate_every": 2}, "--evaluate-every goes with --strategy"),
    ],
)
def test_what_a_draft_lacks_is_named(app_folder, changes, says):
    with pytest.raises(UsageError, match=says):
        draft_job(app_folder(), dataclasses.replace(OPTIONS, **changes))


def test_a_faulty_main_is_named_by_file_and_line(app_folder):
    folder = app_folder("    raise ValueError('no luck')", "FedAvg")
    with pytest.raises(UsageError, match=r"no luck \(demo/server_app.py, line 15\)"):
        prepare(folder, flower_job())


def test_the_scan_comes_before_the_rehearsal(app_folder):
    folder = app_folder("    if grid is None:\n        Krum()", "Krum")
    with pytest.raises(UsageError, match=r"server_app.py, line 16: the strategy Krum cannot"):
        prepare(folder, flower_job())


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("from flwr.serverapp.strategy import Krum\nx = Krum", False),
        ("from flwr.serverapp.strategy import Krum\nx = Krum()", True),
        ("from flwr.serverapp.strategy import Krum as K\n\nclass A(K):\n    pass", True),
        ("import flwr.serverapp.strategy as s\nif 0:\n    s.QFedAvg()", True),
        ("import flwr\nflwr.serverapp.strategy.Bulyan()", True),
        ("from flwr.serverapp import strategy\nstrategy.FedXgbBagging()", True),
        ("from mine import Krum\nKrum()", False),
        ("def Krum():\n    pass\nKrum()", False),
        ("from flwr.serverapp.strategy import FedAvg\nFedAvg()", False),
    ],
)
def test_the_scan_reads_branches_that_no_rehearsal_takes(source, refused):
    files = {"a/server.py": source.encode(), "pyproject.toml": b"]"}
    if not refused:
        refuse_strategies(files)
        return
    line = source.count("\n") if "pass" in source else source.count("\n") + 1
    with pytest.raises(UsageError, match=rf"a/server.py, line {line}: .* cannot run") as caught:
        refuse_strategies(files)
    assert "; use " in str(caught.value)


def test_a_file_that_is_no_python_is_named():
    with pytest.raises(UsageError, match=r"a\.py: is no Python"):
        refuse_strategies({"a.py": b"def"})


def test_a_folder_may_be_named_from_within(app_folder, monkeypatch):
    monkeypatch.chdir(app_folder())
    text = draft_job(Path(), OPTIONS)
    assert prepare(Path(), text).parameters == SPEC.length
