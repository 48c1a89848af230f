"""What is committed survives; what is not never shows; attempt numbers are never used twice."""

import dataclasses
import hashlib
import sqlite3

import numpy as np
import pytest

from aggregator import store as store_module
from aggregator.broadcast import first_version, next_version
from aggregator.checkpoints import Checkpoint, CommittedRound
from aggregator.jobs import ATTEMPT_ABORTED, Job, JobState, JobStore
from aggregator.progress import JobProgress
from aggregator.shelf import ContentShelf, HeldContent
from aggregator.store import Store
from privacy.errors import PeerError, Reason, UsageError
from privacy.secagg.encoding import hash_of
from tests.support.live_aggregator import SPEC, app_bundle, job_toml
from tidegate.broadcast import ContentName
from tidegate.requests import RoundRecord

JOB = Job(
    job_id="credit-1",
    job_toml=job_toml(),
    vector_spec=SPEC.to_bytes(),
    encoding=b"{}",
    app=app_bundle(),
    submitted_at_s=5.0,
)
MODEL = first_version(JOB.job_id, np.zeros(SPEC.length, "<f4").tobytes())


@pytest.fixture
def reopen(tmp_path):
    opened = []

    def reopen():
        for store in opened:
            store.close()
        opened.append(Store(f"sqlite:///{tmp_path / 'a.sqlite'}", tmp_path))
        return JobStore(opened[-1])

    yield reopen
    opened[-1].close()


def committed(previous, strategy=b"state", attempt=1):
    model = next_version(previous, np.full(SPEC.length, previous.version + 1, np.float32))
    return CommittedRound(
        attempt=attempt,
        checkpoint=Checkpoint(model, strategy, model.version),
        transcript_hash=hashlib.sha256(bytes([model.version])).digest(),
        survivors=("bank-1",),
        metric_sums=(float(model.version), 2.0),
        metrics={"loss": 1.0 / model.version},
        elapsed_s=1.5,
        progress=b'{"round":1}',
    )


def test_a_submitted_job_comes_back_whole(reopen):
    reopen().insert(JOB, MODEL)
    jobs = reopen()
    (job,) = jobs.load_all()
    assert job == JOB
    assert jobs.load_checkpoint(JOB.job_id) == Checkpoint(MODEL, b"", 0)
    assert jobs.last_transcript(JOB.job_id) == bytes(32)


@pytest.mark.parametrize("inline_bytes", [1 << 20, 10], ids=["in the database", "in files"])
def test_a_committed_round_comes_back_and_replaces_the_one_before(
    reopen, tmp_path, monkeypatch, inline_bytes
):
    monkeypatch.setattr(store_module, "INLINE_BYTES", inline_bytes)
    jobs = reopen()
    jobs.insert(JOB, MODEL)
    previous = MODEL
    for number in range(3):
        done = committed(previous, strategy=b"a long strategy state %d" % number)
        jobs.commit_round(JOB.job_id, done, 9.0)
        previous = done.checkpoint.model
        jobs = reopen()
        assert jobs.load_checkpoint(JOB.job_id) == done.checkpoint
        assert jobs.last_transcript(JOB.job_id) == done.transcript_hash
    assert jobs.recent_metric_sums(JOB.job_id, 2) == [[2.0, 2.0], [3.0, 2.0]]
    files = list((tmp_path / "blobs").iterdir())
    assert len(files) == (2 if inline_bytes == 10 else 0)
    (job,) = jobs.load_all()
    assert (job.elapsed_s, job.progress) == (1.5, b'{"round":1}')


def test_two_jobs_that_begin_with_one_model_do_not_share_a_file(reopen, monkeypatch):
    monkeypatch.setattr(store_module, "INLINE_BYTES", 10)
    jobs = reopen()
    other = dataclasses.replace(JOB, job_id="credit-2")
    jobs.insert(JOB, MODEL)
    jobs.insert(other, first_version("credit-2", MODEL.data))
    jobs.commit_round(JOB.job_id, committed(MODEL), 9.0)
    assert jobs.load_checkpoint("credit-2").model.data == MODEL.data


def test_a_damaged_blob_is_named(reopen, tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "INLINE_BYTES", 10)
    jobs = reopen()
    jobs.insert(JOB, MODEL)
    (file,) = (tmp_path / "blobs").iterdir()
    file.write_bytes(b"rubbish")
    with pytest.raises(UsageError, match=file.name):
        jobs.load_checkpoint(JOB.job_id)


def test_a_commit_that_fails_changes_nothing(reopen):
    jobs = reopen()
    jobs.insert(JOB, MODEL)
    done = committed(MODEL)
    jobs.commit_round(JOB.job_id, done, 9.0)
    with pytest.raises(Exception, match="UNIQUE"):
        jobs.commit_round(JOB.job_id, committed(MODEL, b"other"), 9.0)
    assert reopen().load_checkpoint(JOB.job_id) == done.checkpoint


def test_attempt_numbers_rise_also_over_a_crash(reopen):
    jobs = reopen()
    assert jobs.next_attempt(JOB.job_id, 1) == 1
    jobs.open_attempt(JOB.job_id, (1, 1), {"bank-1": 4}, 9.0)
    jobs.open_attempt(JOB.job_id, (1, 2), {"bank-1": 5}, 9.0)
    jobs.end_attempt(JOB.job_id, (1, 2), (ATTEMPT_ABORTED, "too few"), 9.0)
    jobs = reopen()
    assert jobs.next_attempt(JOB.job_id, 1) == 3
    assert jobs.next_attempt(JOB.job_id, 2) == 1
    assert jobs.next_attempt("credit-2", 1) == 1


def test_state_and_reason_survive(reopen):
    reopen().insert(JOB, MODEL)
    over = dataclasses.replace(JOB, state=JobState.FAILED, detail="why", elapsed_s=3.0)
    reopen().set_state(over, 9.0)
    (job,) = reopen().load_all()
    assert (job.state, job.detail, job.elapsed_s) == (JobState.FAILED, "why", 3.0)


def test_database_is_durable_at_each_commit(reopen, tmp_path):
    reopen()
    store = Store(f"sqlite:///{tmp_path / 'a.sqlite'}", tmp_path)
    with store.transaction() as connection:
        raw = connection.connection.driver_connection
        assert isinstance(raw, sqlite3.Connection)
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert raw.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_unknown_job_and_bad_url_are_named(reopen, tmp_path):
    with pytest.raises(PeerError) as caught:
        reopen().load_checkpoint("nothing")
    assert caught.value.reason is Reason.UNKNOWN_JOB
    with pytest.raises(UsageError, match="database"):
        Store("not a url", tmp_path)
    with pytest.raises(UsageError, match="database"):
        Store(f"sqlite:///{tmp_path}/no/such/folder/a.sqlite", tmp_path)


def test_chain_is_that_of_the_contract():
    head = hash_of("chain", JOB.job_id)
    head = hash_of("version", head, 0, hashlib.sha256(MODEL.broadcast.raw).digest())
    assert MODEL.chain_head == head
    after = next_version(MODEL, np.ones(SPEC.length, np.float32), b"basis")
    assert after.broadcast.announcement == ContentName.of(b"basis")
    head = hash_of("version", head, 1, hashlib.sha256(after.broadcast.raw).digest())
    assert (after.version, after.chain_head) == (1, head)
    assert after.vector().dtype == np.dtype("<f4")


def test_content_is_shown_to_its_audience_only():
    shelf, audience = ContentShelf(), {b"a"}
    shelf.offer("job-1", {b"d" * 32: HeldContent(b"data")}, audience)
    assert shelf.get(b"d" * 32, b"a").read(0, 9) == b"data"
    for digest, site in ((b"d" * 32, b"b"), (b"e" * 32, b"a")):
        with pytest.raises(PeerError) as caught:
            shelf.get(digest, site)
        assert caught.value.reason is Reason.UNKNOWN_JOB
    audience.add(b"b")
    assert shelf.get(b"d" * 32, b"b").read(1, 2) == b"at"
    shelf.offer("job-2", {b"d" * 32: HeldContent(b"data")}, {b"c"})
    shelf.withdraw("job-1")
    assert shelf.get(b"d" * 32, b"c").size == 4
    with pytest.raises(PeerError):
        shelf.get(b"d" * 32, b"a")


def test_progress_goes_on_counting_after_a_restart():
    progress = JobProgress.from_json(b"{}", ["bank-1"])
    progress.sites["bank-1"].bytes_up = 7
    for moment in range(5):
        progress.committed(moment + 1, float(moment))
    progress.say("hello", 0.0)
    assert progress.rounds_per_s() == 1.0
    again = JobProgress.from_json(progress.to_json(), ["bank-1", "bank-2"])
    assert again.sites["bank-1"].bytes_up == 7
    assert again.sites["bank-2"].bytes_up == 0
    assert (again.round, again.rounds_per_s(), list(again.log)) == (5, 1.0, list(progress.log))


def test_a_history_keeps_first_and_last_and_is_thinned(reopen, monkeypatch):
    monkeypatch.setattr("aggregator.jobs.MAX_HISTORY", 3)
    jobs = reopen()
    jobs.insert(JOB, MODEL)
    assert jobs.history(JOB.job_id) == []
    model = MODEL
    for attempt in range(1, 9):
        done = committed(model, attempt=attempt)
        jobs.commit_round(JOB.job_id, done, 10.0)
        model = done.checkpoint.model
    rounds = jobs.history(JOB.job_id)
    assert [entry.round for entry in rounds] == [1, 4, 7, 8]
    assert rounds[-1] == RoundRecord(8, 8, 1, 1.5, {"loss": 0.125})
