"""What one step hands to the app and makes of the answer: the same work whatever was drawn."""

import asyncio
import math

import numpy as np
import pytest

from edge_node.data import from_table
from edge_node.rounds import record_sums, row_draw
from edge_node.rounds.contract import JobAtSite, RoundRequest
from edge_node.rounds.record_sums import RecordSums
from edge_node.rounds.row_draw import rows_a_step
from privacy.accounting.events import NoDpEvent
from privacy.decode import decode_sum
from privacy.metrics import summarise
from privacy.pipeline import RecordAccumulator
from privacy.planning import CohortRules, derive_encoding
from privacy.spec import TensorSpec, VectorSpec
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import JobFile

N_RECORDS, RATE, PHYSICAL_BATCH = 1000, 0.04, 32
SPEC = VectorSpec((TensorSpec("w", (3,)),))
JOB = b"""
[job]
name = "credit"
dataset = "credit"
rounds = 1
[task]
file = "task.py"
physical_batch = 32
[privacy]
mode = "record-distributed"
epsilon = 100.0
delta_dp = 1e-5
sampling_rate = 0.04
clipping_norm = 1.0
metrics_norm = 2.0
expected_batch_size = 160
noise_multiplier = 0.01
[[metrics]]
name = "loss"
kind = "mean"
upper = 4.0
[[metrics]]
name = "auc"
kind = "binned-auc"
bins = 2
[compression]
map = "identity"
range = 4.0
[strategy]
name = "FedAvg"
[round]
target_sites = 4
deadline_s = 30.0
max_attempts = 3
"""
GRADIENT_D = np.array([0.25, -0.5, 0.125], np.float32)


class ScriptedTrainer:
    """Answers as an app whose loss, label and score are columns."""

    def __init__(self):
        self.sizes = []

    async def record_gradients(self, _model_D, rows_NC, on_chunk):
        for begin in range(0, len(rows_NC), PHYSICAL_BATCH):
            rows = rows_NC[begin : begin + PHYSICAL_BATCH]
            gradients = np.zeros((PHYSICAL_BATCH, 3), np.float32)
            metrics = np.zeros((PHYSICAL_BATCH, 5), np.float32)
            gradients[: len(rows)] = GRADIENT_D  # of zeros too: only the mask can keep them out
            metrics[: len(rows), 0] = rows[:, 0] / 4.0
            bins = (2 * rows[:, 1] + (rows[:, 2] >= 0.5)).astype(int)
            metrics[np.arange(len(rows)), 1 + bins] = 1.0
            self.sizes.append(len(rows))
            on_chunk(gradients, metrics, len(rows))


@pytest.fixture
def site(monkeypatch):
    job = JobFile.parse(JOB)
    plan = derive_encoding(privacy_terms(job), SPEC, CohortRules(1, 4, 4), b"m" * 32)
    source = np.random.default_rng(5)
    table = np.empty((N_RECORDS, 3), np.float32)
    table[:, 0] = source.uniform(0.5, 3.5, N_RECORDS)
    table[:, 1] = np.arange(N_RECORDS) % 2
    table[:, 2] = np.clip(0.3 * table[:, 1] + source.uniform(0, 0.7, N_RECORDS), 0, 1)
    dataset = from_table("credit", "credit", ("loss", "label", "score"), table)
    at_site = JobAtSite("job-1", job, plan, SPEC, NoDpEvent(), "enforced", dataset)
    local = RecordSums(at_site, ScriptedTrainer())
    shapes = []
    monkeypatch.setattr(record_sums, "RecordAccumulator", watched(shapes))
    monkeypatch.setattr("edge_node.rounds.site_delta.encoding_of", lambda plan, *_: (plan, b""))
    return local, shapes


def watched(shapes):
    class Watched(RecordAccumulator):
        def add(self, grads_ND, metrics_NM, mask_N=None, last_N=None):
            shapes.append((grads_ND.shape, metrics_NM.shape, mask_N.shape))
            super().add(grads_ND, metrics_NM, mask_N, last_N)

    return Watched


def take(local, drawn, monkeypatch):
    indices = np.arange(drawn, dtype=np.int64)
    monkeypatch.setattr(row_draw, "poisson_sample", lambda *_: indices)
    update = asyncio.run(local.make_update(RoundRequest(1, 0, np.zeros(3, np.float32))))
    ring = (update.vector_D % 2**local.job.plan.bits).astype(np.uint32)
    return decode_sum(local.job.plan, ring, 1.0), indices


@pytest.mark.parametrize("drawn", [0, 1, 40, 84])
def test_every_draw_costs_the_same_rows_chunks_and_clips(site, monkeypatch, drawn):
    local, shapes = site
    take(local, drawn, monkeypatch)
    assert rows_a_step(N_RECORDS, RATE) == 84
    assert local.trainer.sizes == [32, 32, 20]
    assert shapes == [((n, 3), (n, 5), (n,)) for n in (32, 32, 20)]


def test_a_draw_beyond_the_bound_loses_no_record(site, monkeypatch):
    local, _ = site
    decoded, _ = take(local, 120, monkeypatch)
    assert sum(local.trainer.sizes) == 120
    np.testing.assert_allclose(decoded.gradient_D, -120 * GRADIENT_D, atol=1.0)


@pytest.mark.parametrize("drawn", [0, 3, 80])
def test_only_sampled_records_count_and_padding_never_does(site, monkeypatch, drawn):
    local, _ = site
    decoded, _ = take(local, drawn, monkeypatch)
    np.testing.assert_allclose(decoded.gradient_D, -drawn * GRADIENT_D, atol=0.5)
    scale = local.job.job_file.metrics.coordinate_scale(2.0)
    assert abs(decoded.metric_sums_M[1:].sum() / scale - drawn) < 1.0


def test_two_metrics_decode_to_the_loss_and_auc_of_the_records(site, monkeypatch):
    local, _ = site
    decoded, indices = take(local, 80, monkeypatch)
    layout = local.job.job_file.metrics
    counts = decoded.metric_sums_M / layout.coordinate_scale(
        local.job.job_file.privacy.metrics_norm
    )
    values = summarise(layout, counts, expected_records=1e9)
    rows = local.job.dataset.table_NW[indices]
    low, high = rows[rows[:, 1] == 0, 2] >= 0.5, rows[rows[:, 1] == 1, 2] >= 0.5
    wins = np.mean(high[:, None].astype(float) - low[None, :].astype(float)) / 2 + 0.5
    assert values["loss"] == pytest.approx(rows[:, 0].mean(), rel=0.03)
    assert values["auc"] == pytest.approx(wins, abs=0.03)


@pytest.mark.parametrize(
    ("n_rows", "rate", "expected"),
    [(0, 0.5, 0), (1, 0.01, 1), (50, 1.0, 50), (1000, 0.04, 84), (120_000, 0.008, 1152)],
)
def test_the_rows_of_a_step_follow_from_public_numbers(n_rows, rate, expected):
    assert rows_a_step(n_rows, rate) == expected


def test_a_draw_above_the_bound_is_one_in_about_a_billion():
    mean = N_RECORDS * RATE
    at_most = sum(
        math.comb(N_RECORDS, k) * RATE**k * (1 - RATE) ** (N_RECORDS - k)
        for k in range(rows_a_step(N_RECORDS, RATE) + 1)
    )
    assert 1 - at_most < 1e-9
    assert rows_a_step(N_RECORDS, RATE) < 2.5 * mean
