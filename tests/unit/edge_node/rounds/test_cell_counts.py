"""A site's own part in statistics: which rows are counted, and who is refused."""

import asyncio

import numpy as np
import pytest

from edge_node.data import from_table
from edge_node.rounds import cell_counts
from edge_node.rounds.cell_counts import CellCounts
from edge_node.rounds.contract import JobAtSite, RoundRequest
from privacy.accounting.events import NoDpEvent
from privacy.errors import PeerError, Reason, UsageError
from privacy.planning import CohortRules, derive_encoding
from tidegate.job_terms import privacy_terms, statistics_layout
from tidegate.jobfile import JobFile

JOB = """
[job]
name = "s"
dataset = "credit"
[statistics]
bins = 2
[[columns]]
name = "age"
low = 0.0
high = 1.0
[privacy]
{privacy}
[round]
target_sites = 5
"""
RECORD = """mode = "record-distributed"
epsilon = 100.0
delta_dp = 1e-5
noise_multiplier = 0.01
max_records = 5000
sampling_rate = {}"""


def round_of(privacy, table, columns=("other", "age")):
    job_file = JobFile.parse(JOB.format(privacy=privacy).encode())
    layout = statistics_layout(job_file)
    plan = derive_encoding(privacy_terms(job_file), layout.spec, CohortRules(1, 4, 5), bytes(32))
    dataset = from_table("credit", "credit", columns, table)
    job = JobAtSite("j", job_file, plan, layout.model_spec, NoDpEvent(1), "none", dataset)
    return CellCounts(job)


def counts(work):
    update = asyncio.run(work.make_update(RoundRequest(1, 0, np.zeros(8, np.float32))))
    return update.vector_D / work.job.plan.scale


def table(rows):
    return np.random.default_rng(1).uniform(0, 1, (rows, 2)).astype(np.float32)


def test_every_record_is_counted_in_blocks_of_any_size(monkeypatch):
    monkeypatch.setattr(cell_counts, "_BLOCK_CELLS", 4 * 37)
    values = table(1000)
    found = counts(round_of('mode = "none"', values))
    low = (values[:, 1] < 0.5).sum()
    assert found[:6].tolist() == [1000, 0, low, 1000 - low, 0, 0]
    scaled = 2 * values[:, 1].astype(float) - 1
    np.testing.assert_allclose(found[6:], [scaled.sum(), (scaled**2).sum()], atol=0.01)


def test_a_sample_has_the_public_rate():
    found = counts(round_of(RECORD.format(0.2), table(4000)))
    assert abs(found[0] - 800) < 6 * np.sqrt(800 * 0.8)
    assert found[2] + found[3] == pytest.approx(found[0], abs=1.0)


def test_two_updates_of_the_same_rows_differ_by_fresh_noise():
    work = round_of(RECORD.format(1.0).replace("0.01", "5.0"), table(100))
    assert (counts(work) != counts(work)).any()


def test_nothing_of_an_app_is_started():
    work = round_of('mode = "none"', table(3))
    assert asyncio.run(work.start()) is None
    asyncio.run(work.stop())


def test_a_column_that_the_site_has_not_is_refused():
    with pytest.raises(PeerError, match="age") as caught:
        round_of('mode = "none"', table(3), ("other", "years"))
    assert caught.value.reason is Reason.POLICY


@pytest.mark.parametrize("privacy", ['mode = "none"\nmax_records = 99', RECORD.format(1.0)])
def test_more_records_than_the_job_allows_are_refused(privacy):
    with pytest.raises(UsageError, match=r"max_records|n_max"):
        counts(round_of(privacy, table(5001)))
