"""Noised local steps at one site: what they compute, what the app is handed, what may step."""

import asyncio

import numpy as np
import pytest

from edge_node.data import from_table
from edge_node.rounds import row_draw
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.local_dp import LocalDp
from edge_node.rounds.record_sums import RecordSums
from edge_node.rounds.row_draw import RowDraw, rows_a_step
from privacy.accounting.events import NoDpEvent
from privacy.decode import decode_sum
from privacy.errors import PeerError, Reason, UsageError
from privacy.planning import CohortRules, derive_encoding
from privacy.spec import TensorSpec, VectorSpec
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile, PrivacyUnit

PHYSICAL_BATCH, STEPS, RATE, BATCH = 16, 3, 0.5, 20
SPEC = VectorSpec((TensorSpec("w", (2,)),))
MODEL_D = np.array([1.0, -1.0], np.float32)
JOB = f"""
[job]
name = "local"
dataset = "d"
rounds = 1
[task]
physical_batch = {PHYSICAL_BATCH}
[[columns]]
name = "x"
shape = [2]
[local]
steps = {STEPS}
learning_rate = {RATE}
[privacy]
mode = "record-local"
epsilon = 100.0
delta_dp = 1e-5
sampling_rate = 0.1
clipping_norm = 2.0
metrics_norm = 1.0
expected_batch_size = {BATCH}
noise_multiplier = 0.03
update_norm = 4.0
[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0
[strategy]
name = "FedAvg"
[round]
target_sites = 4
deadline_s = 30.0
max_attempts = 3
"""
USER = 'unit = "user"\nuser_column = "who"\nmax_rows_per_user = 3\n'


class ScriptedTrainer:
    """An app whose loss is (w - x)^2 / 2 in each coordinate and whose metric is x_0."""

    def __init__(self):
        self.models, self.sizes = [], []

    async def record_gradients(self, model_D, rows_NW, on_chunk):
        self.models.append(model_D.copy())
        self.sizes.append(len(rows_NW))
        for begin in range(0, len(rows_NW), PHYSICAL_BATCH):
            rows = rows_NW[begin : begin + PHYSICAL_BATCH]
            on_chunk(model_D - rows, rows[:, :1].copy(), len(rows))


class ScriptedOptimiser:
    """Steps by the sign, as an optimizer that is no plain descent."""

    async def optimise(self, model_D, gradient_D):
        return model_D - 0.1 * np.sign(gradient_D)


def data(n_rows=100):
    source = np.random.default_rng(4)
    table = source.uniform(0.1, 0.9, (n_rows, 3)).astype(np.float32)
    table[:, 2] = np.arange(n_rows) // 5 - (np.arange(n_rows) % 5 == 4)  # users of 4 or 6 rows
    table[-1, 2] = 50  # and one of a single row
    return from_table("d", "d", ("x0", "x1", "who"), table), table


def job_of(text=JOB, n_rows=100):
    """One whose dataset hands out x as the two first columns."""
    job = JobFile.parse(text.replace('name = "x"\nshape = [2]', 'name = "x0"\n[[columns]]\n'
                                     'name = "x1"').encode())  # fmt: skip
    plan = derive_encoding(privacy_terms(job), SPEC, CohortRules(1, 4, 4), b"m" * 32)
    dataset, table = data(n_rows)
    return JobAtSite("job-1", job, plan, SPEC, NoDpEvent(), "enforced", dataset), table


def update_of(local, indices, monkeypatch):
    monkeypatch.setattr(row_draw, "poisson_sample", lambda *_: np.array(indices))
    monkeypatch.setattr("edge_node.rounds.site_delta.encoding_of", lambda plan, *_: (plan, b""))
    update = asyncio.run(local.make_update(RoundRequest(1, 0, MODEL_D)))
    ring = (update.vector_D % 2**local.job.plan.bits).astype(np.uint32)
    return decode_sum(local.job.plan, ring, 1.0)


def test_the_difference_is_that_of_clipped_descent_on_the_sampled_rows(monkeypatch):
    job, table = job_of()
    trainer = ScriptedTrainer()
    drawn = np.arange(0, 40, 2)
    decoded = update_of(LocalDp(job, trainer, None), drawn, monkeypatch)
    rows, model = table[drawn, :2].astype(float), MODEL_D.astype(float)
    for given in trainer.models:
        np.testing.assert_allclose(given, model, atol=0.03)
        gradients = model - rows
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        gradients *= np.minimum(1, 2.0 / norms)
        model = model - RATE * gradients.sum(0) / BATCH
    assert len(trainer.models) == STEPS
    np.testing.assert_allclose(decoded.gradient_D, model - MODEL_D, atol=0.03)
    # The metric is a mean over the steps, as a strategy's metrics are read.
    np.testing.assert_allclose(decoded.metric_sums_M, rows[:, 0].sum() / BATCH, rtol=0.05)


@pytest.mark.parametrize("drawn", [0, 1, 20])
def test_every_draw_hands_over_as_many_rows(monkeypatch, drawn):
    job, _ = job_of()
    trainer = ScriptedTrainer()
    update_of(LocalDp(job, trainer, None), np.arange(drawn), monkeypatch)
    assert trainer.sizes == [rows_a_step(100, 0.1)] * STEPS


def test_a_tasks_optimizer_steps_on_noised_gradients_in_a_process_without_rows(monkeypatch):
    text = JOB.replace(f"learning_rate = {RATE}\n", "")
    job, _ = job_of(text)
    decoded = update_of(
        LocalDp(job, ScriptedTrainer(), ScriptedOptimiser()), np.arange(20), monkeypatch
    )
    np.testing.assert_allclose(decoded.gradient_D, [-0.3, 0.3], atol=1e-2)
    with pytest.raises(UsageError, match="one optimiser"):
        LocalDp(job, ScriptedTrainer(), None)


def test_steps_that_diverge_are_refused(monkeypatch):
    class Diverging:
        async def optimise(self, model_D, _):
            return model_D * np.float32(np.nan)

    job, _ = job_of(JOB.replace(f"learning_rate = {RATE}\n", ""))
    with pytest.raises(PeerError) as caught:
        update_of(LocalDp(job, ScriptedTrainer(), Diverging()), np.arange(20), monkeypatch)
    assert caught.value.reason is Reason.NOT_FINITE


def users_of(dataset, users, monkeypatch, most=3):
    monkeypatch.setattr(row_draw, "poisson_sample", lambda *_: np.array(users, dtype=np.int64))
    schema = job_of()[0].schema
    return RowDraw(dataset, schema, PrivacyUnit("user", "who", most), 0.1).draw(b"")


def test_every_sampled_user_takes_the_same_rows_and_at_most_max_rows_count(monkeypatch):
    dataset, table = data()
    groups = dataset.groups("who")
    slots = rows_a_step(len(groups), 0.1) * 3
    for users in ([], [0], [2, 5, len(groups) - 1]):
        drawn = users_of(dataset, users, monkeypatch)
        assert len(drawn.rows_NW) == slots
        assert drawn.last_N.sum() == len(users)
        assert not (drawn.last_N & ~drawn.real_N).any()
        begin = 0
        for user in users:
            indices, valid = groups.rows_of(np.array([user]), 3)
            count = int(valid.sum())
            np.testing.assert_array_equal(
                drawn.rows_NW[begin : begin + count], table[indices[valid], :2]
            )
            np.testing.assert_array_equal(drawn.real_N[begin : begin + 3], valid[0])
            assert drawn.last_N[begin + count - 1]
            assert drawn.shares_N[begin : begin + count].sum() == pytest.approx(1.0)
            begin += 3
        assert (drawn.rows_NW[~drawn.real_N] == 0).all()


@pytest.mark.parametrize("mode", ["record-local", "record-distributed"])
def test_a_user_is_clipped_once_however_many_rows_it_has(monkeypatch, mode):
    """20 users sampled; each one's three rows add up to more than C and count as C."""
    text = JOB.replace("sampling_rate", USER + "sampling_rate").replace(
        "clipping_norm = 2.0", "clipping_norm = 0.5"
    )
    if mode == "record-distributed":
        text = text.replace("record-local", mode).replace("update_norm = 4.0\n", "")
        text = text.replace(f"[local]\nsteps = {STEPS}\nlearning_rate = {RATE}\n", "")
        text = text.replace("noise_multiplier = 0.03", "noise_multiplier = 0.01")
    job, table = job_of(text)
    trainer = ScriptedTrainer()
    users = np.arange(10)
    if mode == "record-local":
        decoded = update_of(LocalDp(job, trainer, None), users, monkeypatch)
        most = STEPS * RATE * 0.5 * len(users) / BATCH
    else:
        monkeypatch.setattr("edge_node.rounds.site_delta.encoding_of", lambda p, *_: (p, b""))
        decoded = update_of(RecordSums(job, trainer), users, monkeypatch)
        most = 0.5 * len(users)
    assert np.linalg.norm(decoded.gradient_D) == pytest.approx(most, rel=0.05)
    # A user's metric is the mean over its rows, so three rows tell no more than one.
    groups = job.dataset.groups("who")
    means = [table[groups.rows_of(np.array([u]), 3)[0][0], 0].mean() for u in users]
    over = BATCH if mode == "record-local" else 1
    assert decoded.metric_sums_M[0] == pytest.approx(sum(means) / over, rel=0.1)
