"""What an evaluation adds up: each record's clipped metrics and itself, and padding never."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from edge_node.data import from_table
from edge_node.rounds import evaluation
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.evaluation import EvaluationSums
from edge_node.trainer.frames import METRICS
from edge_node.trainer.trainer import TrainerFailure
from privacy.accounting.events import NoDpEvent
from privacy.decode import decode_sum
from privacy.errors import UsageError
from privacy.planning import CohortRules, derive_encoding
from privacy.ring import reduce_in_place
from privacy.spec import TensorSpec, VectorSpec
from tests.support.trainer_apps import COLUMNS, LINEAR_SPEC, make_trainer, write_app
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.jobfile import JobFile

SPEC = VectorSpec((TensorSpec("w", (3,)),))
JOB = """
[job]
name = "credit"
dataset = "credit"
[task]
physical_batch = 8
[evaluation]
[privacy]
{privacy}
[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0
[[metrics]]
name = "flag"
kind = "mean"
upper = 1.0
[round]
target_sites = 4
"""
NONE = 'mode = "none"\nmax_records = 1000'
RECORD = """mode = "record-distributed"
epsilon = 100.0
delta_dp = 1e-5
max_records = 1000
noise_multiplier = 0.01
sampling_rate = {}"""


class FakeTalk:
    """Answers each chunk with the rows' first two numbers; counts what it is shown."""

    def __init__(self, shown):
        slots = [SimpleNamespace(metrics_PM=np.zeros((8, 2), np.float32)) for _ in range(2)]
        self.arrays = SimpleNamespace(slots=slots)
        self.shown = shown
        self.ahead = 0

    async def begin(self, frame, model_D):
        assert frame["action"] == METRICS
        assert model_D.tolist() == [0.0, 0.0, 0.0]

    async def put(self, number, rows):
        self.ahead += 1
        assert self.ahead <= 2, "more batches ahead than there are slots"
        self.shown.append(len(rows))
        slot = self.arrays.slots[number % 2]
        slot.metrics_PM[: len(rows)] = rows[:, :2]
        slot.metrics_PM[len(rows) :] = np.nan  # padding of the process, which nobody may count

    async def wait(self, number):
        self.ahead -= 1

    async def end(self):
        pass


class FakeTrainer:
    def __init__(self):
        self.shown = []

    @asynccontextmanager
    async def conversation(self):
        yield FakeTalk(self.shown)


def job_of(privacy, table, columns=COLUMNS, spec=SPEC):
    job_file = JobFile.parse(JOB.format(privacy=privacy).encode())
    rules = CohortRules(colluders=1, min_survivors=4, members=4)
    terms = privacy_terms(job_file)
    plan = derive_encoding(terms, update_spec(job_file, spec), rules, bytes(32))
    dataset = from_table("credit", "credit", columns, table)
    return JobAtSite("j", job_file, plan, spec, NoDpEvent(1), "none", dataset)


def sums_of(job, trainer, model_D=None):
    model_D = np.zeros(job.spec.length, np.float32) if model_D is None else model_D
    request = RoundRequest(1, 0, model_D)
    update = asyncio.run(EvaluationSums(job, trainer, 8).make_update(request))
    ring = reduce_in_place(update.vector_D.astype(np.uint32), job.plan.bits)
    return decode_sum(job.plan, ring, 1.0).gradient_D


def table(rows):
    return np.random.default_rng(3).uniform(0, 1, (rows, 4)).astype(np.float32)


@pytest.mark.parametrize("rows", [0, 1, 21, 100])
@pytest.mark.parametrize(("privacy", "off"), [(NONE, 1e-4), (RECORD.format(1.0), 0.5)])
def test_the_sum_counts_records_and_adds_their_metrics(monkeypatch, rows, privacy, off):
    monkeypatch.setattr(evaluation, "_BLOCK_ROWS", 40)
    values, trainer = table(rows), FakeTrainer()
    found = sums_of(job_of(privacy, values), trainer)
    np.testing.assert_allclose(found, [rows, *values[:, :2].sum(axis=0)], atol=off)
    assert sum(trainer.shown) == rows


@pytest.mark.parametrize("privacy", [NONE, RECORD.format(1.0)])
def test_a_record_that_is_not_finite_counts_nowhere(privacy):
    values = table(20)
    values[3, 0], values[4, 1] = np.nan, np.inf
    found = sums_of(job_of(privacy, values), FakeTrainer())
    kept = np.delete(values, [3, 4], axis=0)
    np.testing.assert_allclose(found, [18, *kept[:, :2].sum(axis=0)], atol=0.5)


def test_metrics_beyond_their_bound_move_the_sum_no_further_than_the_plan_says():
    values = np.full((1, 4), 1e30, np.float32)
    job = job_of(RECORD.format(1.0), values)
    assert np.linalg.norm(sums_of(job, FakeTrainer())) < job.plan.clip_gradient + 0.5


def test_a_sample_is_filled_up_to_a_public_number_of_rows():
    values, shown = table(400), set()
    for _ in range(3):
        trainer = FakeTrainer()
        found = sums_of(job_of(RECORD.format(0.1), values), trainer)
        assert 10 < found[0] < 75
        shown.add(sum(trainer.shown))
    assert len(shown) == 1
    assert shown.pop() < 120


def test_more_records_than_the_job_allows_are_refused():
    with pytest.raises(UsageError, match="n_max"):
        sums_of(job_of(RECORD.format(1.0), table(1001)), FakeTrainer())


def run_real(folder, more="", rows=21):
    """Evaluate in a real confined process."""
    values = table(rows)
    job = job_of(NONE, values, spec=LINEAR_SPEC)
    trainer = make_trainer(write_app(folder, more), serves=METRICS)
    model_D = np.array([0.5, -0.25, 0.1, 0.2], np.float32)

    async def scenario():
        round_ = EvaluationSums(job, trainer, 8)
        try:
            await round_.start()
            return await round_.make_update(RoundRequest(1, 0, model_D))
        finally:
            await round_.stop()

    update = asyncio.run(scenario())
    ring = reduce_in_place(update.vector_D.astype(np.uint32), job.plan.bits)
    squares = (values[:, :3] @ model_D[:3] + model_D[3] - values[:, 3]) ** 2
    expected = [rows, np.minimum(squares, 1).sum(), (values[:, 3] > 0).sum()]
    return decode_sum(job.plan, ring, 1.0).gradient_D, expected


def test_the_app_in_its_process_gives_the_metrics_on_paper(tmp_path):
    found, expected = run_real(tmp_path)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_metrics_that_mix_records_are_refused_before_a_record_is_shown(tmp_path):
    mixing = """
    def metrics(model, batch):
        centred = batch["x0"] - batch["x0"].mean()
        return torch.stack([centred, centred], dim=-1)
    """
    with pytest.raises(TrainerFailure) as caught:
        run_real(tmp_path, mixing)
    assert "depend on the other records" in caught.value.detail
