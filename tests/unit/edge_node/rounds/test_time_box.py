"""Time-boxed rounds at one site: what leaves is normalised, bounded and charged ahead."""

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from edge_node.commands import Train, Trained, UpdateKey
from edge_node.data import from_table
from edge_node.rounds import local_dp, row_draw
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.local_dp import LocalDp
from edge_node.rounds.plain_training import PlainTraining
from edge_node.rounds.task_rounds import make_task_round
from edge_node.updates import UpdateDesk
from privacy.accounting.events import GaussianRecordEvent, NoDpEvent
from privacy.decode import decode_sum
from privacy.errors import PeerError, Reason
from privacy.planning import CohortRules, derive_encoding, step_event
from privacy.spec import TensorSpec, VectorSpec
from tests.unit.edge_node.test_local_charges import POLICY, WANTED, Site
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile

CAP, BOX_S, RATE, BATCH = 8, 10.0, 0.5, 20
RULES = CohortRules(1, 4, 4)
SPEC = VectorSpec((TensorSpec("w", (2,)),))
MODEL_D = np.array([1.0, -1.0], np.float32)
HEAD = """
[job]
name = "boxed"
dataset = "d"
rounds = 1
[[columns]]
name = "x0"
[[columns]]
name = "x1"
[strategy]
name = "FedAvg"
"""
ROUND = f"[round]\ntarget_sites = 4\ndeadline_s = 30.0\ntime_box_s = {BOX_S}\n"
NONE = f"""
[privacy]
mode = "none"
clipping_norm = 4.0
[local]
steps = {CAP}
batch_size = 4
learning_rate = {RATE}
"""
LOCAL = f"""
[privacy]
mode = "record-local"
epsilon = 100.0
delta_dp = 1e-5
sampling_rate = 0.1
clipping_norm = 2.0
expected_batch_size = {BATCH}
noise_multiplier = 0.04
update_norm = 64.0
[local]
steps = {CAP}
learning_rate = {RATE}
"""


def job_of(text, round_table=ROUND):
    job = JobFile.parse((HEAD + text + round_table).encode())
    plan = derive_encoding(privacy_terms(job), SPEC, RULES, b"m" * 32)
    table = np.full((100, 2), 0.5, np.float32)
    dataset = from_table("d", "d", ("x0", "x1"), table)
    return JobAtSite("job-1", job, plan, SPEC, step_event(plan, RULES), "enforced", dataset)


class SlowTrainer:
    """Each step takes the same time and moves the model by the same vector."""

    def __init__(self, step_s, move_D=(0.25, -0.125)):
        self.step_s, self.now_s, self.steps = step_s, 50.0, 0
        self.move_D = np.array(move_D, np.float32)

    def clock(self):
        return self.now_s

    def step(self):
        self.now_s += self.step_s
        self.steps += 1

    async def local_steps(self, model_D, batches, _rate, box=None):
        if box is not None:
            box.begin()
        for taken, _ in enumerate(batches):
            if taken and box is not None and box.is_over:
                break
            self.step()
            model_D = model_D + self.move_D
        return model_D, np.zeros((self.steps, 0), np.float32)

    async def record_gradients(self, model_D, rows_NW, on_chunk):
        self.step()
        for begin in range(0, len(rows_NW), 64):
            rows = rows_NW[begin : begin + 64]
            gradients = np.tile(-self.move_D, (len(rows), 1))
            on_chunk(gradients, np.zeros((len(rows), 0), np.float32), len(rows))


def decoded(work, monkeypatch, model_D=MODEL_D):
    monkeypatch.setattr("edge_node.rounds.site_delta.encoding_of", lambda plan, *_: (plan, b""))
    update = asyncio.run(work.make_update(RoundRequest(1, 0, model_D)))
    ring = (update.vector_D % 2**work.job.plan.bits).astype(np.uint32)
    return decode_sum(work.job.plan, ring, 1.0).gradient_D


@pytest.mark.parametrize(
    ("step_s", "taken"), [(0.01, CAP), (1.25, CAP), (4.0, 3), (10.0, 1), (60.0, 1)]
)
def test_fast_and_slow_sites_send_the_same_for_the_same_steps(monkeypatch, step_s, taken):
    trainer = SlowTrainer(step_s)
    sent_D = decoded(PlainTraining(job_of(NONE), trainer, trainer.clock), monkeypatch)
    assert trainer.steps == taken
    np.testing.assert_allclose(sent_D, trainer.move_D * CAP, atol=1e-3)


@pytest.mark.parametrize(("step_s", "taken"), [(0.01, CAP), (4.0, 3), (60.0, 1)])
def test_noised_steps_are_normalised_as_others(monkeypatch, step_s, taken):
    monkeypatch.setattr(row_draw, "poisson_sample", lambda *_: np.arange(BATCH))
    trainer = SlowTrainer(step_s)
    sent_D = decoded(LocalDp(job_of(LOCAL), trainer, None, trainer.clock), monkeypatch)
    assert trainer.steps == taken
    np.testing.assert_allclose(sent_D, RATE * trainer.move_D * CAP, atol=0.08)


def test_the_factor_comes_before_the_clip(monkeypatch):
    trainer = SlowTrainer(60.0, (3.0, 0.0))  # one step of 3, times 8: beyond the norm of 4
    sent_D = decoded(PlainTraining(job_of(NONE), trainer, trainer.clock), monkeypatch)
    np.testing.assert_allclose(sent_D, [4.0, 0.0], atol=1e-3)


def test_a_delta_that_the_factor_makes_infinite_is_refused(monkeypatch):
    trainer = SlowTrainer(60.0, (3e38, 0.0))
    with pytest.raises(PeerError) as caught:
        decoded(PlainTraining(job_of(NONE), trainer, trainer.clock), monkeypatch)
    assert caught.value.reason is Reason.NOT_FINITE


def test_the_cap_is_charged_and_each_step_has_the_noise_that_it_was_charged_for(monkeypatch):
    """A slow site takes fewer steps; neither the charge nor a step's noise tells how many."""
    job, fixed = job_of(LOCAL), job_of(LOCAL, ROUND.replace(f"time_box_s = {BOX_S}\n", ""))
    assert isinstance(job.event, GaussianRecordEvent)
    assert job.event.steps == CAP
    assert (job.event, job.plan) == (fixed.event, fixed.plan)
    variances, original = [], local_dp.LocalStepAccumulator.finish

    def finish(self, seed):
        variances.append(self._noise.level_variance)
        return original(self, seed)

    monkeypatch.setattr(local_dp.LocalStepAccumulator, "finish", finish)
    trainer = SlowTrainer(4.0)
    decoded(LocalDp(job, trainer, None, trainer.clock), monkeypatch)
    assert variances == [job.plan.local.level_variance] * 3


def test_a_box_beyond_the_sites_own_limit_is_refused_before_anything_is_trained(tmp_path):
    job = dataclasses.replace(job_of(NONE), event=NoDpEvent())
    config = SimpleNamespace(trainer=SimpleNamespace(time_limit_s=BOX_S))
    with pytest.raises(PeerError, match="time_limit_s of 10 s") as caught:
        make_task_round(job, job.job_file.work, config, tmp_path)
    assert caught.value.reason is Reason.POLICY


class KilledTrainer(SlowTrainer):
    """Takes this process down in the middle of the third step."""

    def step(self):
        super().step()
        if self.steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)


class BoxedSite(Site):
    """The shell's parts that charge, around real noised steps of a time-boxed job."""

    def __init__(self, folder, trainer):
        job = job_of(LOCAL.replace("noise_multiplier = 0.04", "noise_multiplier = 4.0"))
        super().__init__(folder, plan=job.plan)
        dataset = from_table("loans", "loans", ("x0", "x1"), np.full((100, 2), 0.5, np.float32))
        job = dataclasses.replace(job, dataset=dataset)
        self.bench.jobs["job-1"] = LocalDp(job, trainer, None, trainer.clock)
        self.desk = UpdateDesk(None, self, POLICY, (self.ledgers, self.steps), self.bench)

    async def come_to(self, _wanted, _job):
        return SimpleNamespace(model_D=MODEL_D, passed_lint=True)

    def make(self):
        train = Train("job-1", UpdateKey(1, 0, ""), WANTED, b"")
        return asyncio.run(self.desk.make(train))


KILLED = """
import pathlib, sys
from tests.unit.edge_node.rounds.test_time_box import BoxedSite, KilledTrainer
BoxedSite(pathlib.Path(sys.argv[1]), KilledTrainer(0.01)).make()
"""


def test_a_kill_between_two_steps_leaves_the_whole_cap_charged(tmp_path):
    """Two steps ran, eight are paid; the next update is charged anew, whatever it takes."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    slow = SlowTrainer(60.0)
    site = BoxedSite(tmp_path, slow)
    try:
        assert [entry.event.steps for entry in site.entries()] == [CAP]
        assert isinstance(site.make(), Trained)
        assert slow.steps == 1
        assert [entry.event.steps for entry in site.entries()] == [CAP, CAP]
    finally:
        site.store.close()
