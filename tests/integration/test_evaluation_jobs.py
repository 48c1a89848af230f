"""An evaluation over real sites: the model's own metrics, noised, charged once to the data."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from safetensors.numpy import load

from edge_node.trainer.frames import METRICS
from privacy.accounting.chain import TIER_NONE
from tests.integration.test_edge_node import charges, run
from tests.support.live_aggregator import SPEC, job_toml
from tests.support.live_site import FakeTrainer, market

METRICS_TOML = b"""
[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0
[[metrics]]
name = "auc"
kind = "binned-auc"
bins = 2
"""
RECORD = 'mode = "record-distributed"\nepsilon = 4.0\ndelta_dp = 1e-6\nmax_records = 1000'
NONE = 'mode = "none"\nmax_records = 1000'


def evaluation_toml(privacy):
    """Turn the training job of the other tests into an evaluation of it."""
    text = job_toml(privacy="").decode()
    head, _, rest = text.partition("[compression]")
    rounds = rest[rest.index("[round]") :]
    head = head.replace("rounds = 3\n", "").replace("[privacy]\n", f"[privacy]\n{privacy}\n")
    return f"{head}[evaluation]\nof_job = 'credit-1'\nversion = 3\n{rounds}".encode() + METRICS_TOML


class Talk:
    """Gives each record a loss of 1 and its place among positives or negatives."""

    def __init__(self, shown):
        slots = [SimpleNamespace(metrics_PM=np.zeros((64, 5), np.float32)) for _ in range(2)]
        self.arrays = SimpleNamespace(slots=slots)
        self.shown = shown

    async def begin(self, frame, model_D):
        assert frame["action"] == METRICS
        self.shown.append(model_D.copy())

    async def put(self, number, rows):
        metrics_PM = self.arrays.slots[number % 2].metrics_PM
        metrics_PM[:] = 0
        metrics_PM[:, 0] = 0.25
        kinds = rows[:, 0].astype(int) % 8  # 4 negatives: bins 0 0 0 1; 4 positives: 0 1 1 1
        places = np.array([1, 1, 1, 2, 3, 4, 4, 4])[kinds]
        metrics_PM[np.arange(len(rows)), places] = 1

    async def wait(self, number):
        await asyncio.sleep(0)

    async def end(self):
        pass


class EvaluatingTrainer(FakeTrainer):
    shown: ClassVar = []

    @asynccontextmanager
    async def conversation(self):
        assert self.job.serves == METRICS
        assert self.job.metrics_length == 5
        yield Talk(self.shown)


@pytest.fixture(autouse=True)
def evaluating_trainer(monkeypatch):
    monkeypatch.setattr("edge_node.rounds.task_rounds.Trainer", EvaluatingTrainer)
    monkeypatch.setattr(EvaluatingTrainer, "shown", [])


def evaluate(folder, privacy):
    model_D = np.linspace(-1, 1, SPEC.length, dtype=np.float32)

    async def scenario():
        async with market(folder) as (live, sites):
            job_id = await live.submit(evaluation_toml(privacy), model_D=model_D)
            job = await live.watch(job_id)
            assert (job.state, job.round, job.detail) == ("finished", 1, "")
            model = load(await live.export(job_id))
            return dict(job.metrics), model, [charges(site) for site in sites]

    metrics, model, ledgers = run(scenario())
    np.testing.assert_array_equal(SPEC.flatten(model), model_D)
    assert all((shown == model_D).all() for shown in EvaluatingTrainer.shown)
    return metrics, ledgers


def test_an_evaluation_is_one_noised_sum_and_one_charge(tmp_path):
    metrics, ledgers = evaluate(tmp_path, RECORD)
    for line in ledgers:
        assert (line.charges, line.by_tier) == (1, {"enforced": 1})
    assert metrics["records_error"] > 0.5
    for name, truth in (("records", 1000), ("loss", 1.0), ("auc", 0.75)):
        assert abs(metrics[name] - truth) < 5 * metrics[f"{name}_error"], name


def test_without_privacy_the_metrics_are_exact(tmp_path):
    metrics, ledgers = evaluate(tmp_path, NONE)
    assert all(line.by_tier == {TIER_NONE: 1} for line in ledgers)
    assert metrics["records"] == 1000
    assert metrics["records_error"] == 0
    assert metrics["loss"] == pytest.approx(1.0, abs=1e-4)
    assert metrics["auc"] == pytest.approx(0.75, abs=1e-4)
