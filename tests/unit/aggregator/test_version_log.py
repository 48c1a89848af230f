"""The delta log keeps what late sites need, no more, and over a kill."""

import numpy as np
import pytest

from aggregator import version_log
from aggregator.shelf import FileContent
from aggregator.version_log import DeltaLog, forget_versions, kept_logs
from privacy.errors import UsageError
from privacy.pipeline import Mode
from privacy.spec import TensorSpec, VectorSpec
from tests.support.encoding_plans import make_plan
from tests.support.version_market import Publisher
from tidegate.broadcast import VersionLog

SPEC = VectorSpec((TensorSpec("w", (40,)),))


@pytest.fixture(params=[1 << 18, 10], ids=["in the database", "in files"])
def publisher(tmp_path, monkeypatch, request):
    monkeypatch.setattr(version_log, "INLINE_BYTES", request.param)
    plan = make_plan(Mode.NONE, gradient=SPEC.length, metrics=0, bits=12)
    return Publisher(tmp_path, plan, SPEC)


def versions_of(publisher):
    offer = publisher.log.offer(publisher.model)
    content = offer.contents[offer.log.sha256]
    log = VersionLog.from_bytes(bytes(content.read(0, content.size)))
    log.check("job-1", publisher.model.broadcast, publisher.model.chain_head)
    for broadcast in log.broadcasts:
        for name in broadcast.contents:
            assert offer.contents[name.sha256].size == name.size
    rooted = [b for b in log.broadcasts if b.checkpoint is not None]
    assert rooted[-1].checkpoint.sha256 in offer.contents
    return log, offer


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 65, 130])
def test_it_goes_back_64_versions_and_always_to_a_root(publisher, tmp_path, count, monkeypatch):
    monkeypatch.setattr(version_log, "_OLD_SUMS", 1000)
    publisher.publish(count)
    log, _ = versions_of(publisher)
    assert (log.first, log.last) == (max(0, count - 63), count)
    publisher.crash()
    again, _ = versions_of(publisher)
    assert again == log
    files = list((tmp_path / "versions").rglob("*.*"))
    assert len(files) <= 64 + 1


def test_old_sums_weigh_no_more_than_some_checkpoints(publisher, monkeypatch):
    monkeypatch.setattr(version_log, "_OLD_SUMS", 0)
    publisher.publish(40)
    log, _ = versions_of(publisher)
    assert log.first == 32, "what came since the root is always there"
    publisher.crash()
    assert versions_of(publisher)[0] == log


def test_what_is_being_sent_goes_on_though_it_is_dropped(publisher):
    publisher.publish(1)
    _, offer = versions_of(publisher)
    name = publisher.model.broadcast.opened.packed
    content, before = offer.contents[name.sha256], publisher.model
    publisher.publish(70)
    _, offer = versions_of(publisher)
    assert name.sha256 not in offer.contents
    assert len(bytes(content.read(0, before.broadcast.opened.packed.size))) == name.size


def test_a_job_that_is_over_leaves_nothing(publisher, tmp_path):
    publisher.publish(3)
    assert kept_logs(publisher.store) == {"job-1"}
    forget_versions(publisher.store, "job-1")
    assert kept_logs(publisher.store) == set()
    assert not list((tmp_path / "versions").rglob("*.*")) if (tmp_path / "versions").exists() else 1


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(version_log, "INLINE_BYTES", 10)
    plan = make_plan(Mode.NONE, gradient=SPEC.length, metrics=0, bits=12)
    published = Publisher(tmp_path, plan, SPEC).publish(2)
    path = tmp_path / "versions" / "job-1" / "1.sum"
    path.unlink()
    with pytest.raises(UsageError, match=r"1\.sum"):
        DeltaLog(published.store, "job-1")
    with pytest.raises(FileNotFoundError):
        FileContent(path)


def test_a_file_of_a_version_that_was_not_committed_is_written_over(tmp_path, monkeypatch):
    """A kill between the file and the transaction: the next try has another sum."""
    monkeypatch.setattr(version_log, "INLINE_BYTES", 10)
    plan = make_plan(Mode.NONE, gradient=SPEC.length, metrics=0, bits=12)
    published = Publisher(tmp_path, plan, SPEC).publish(2)
    (tmp_path / "versions" / "job-1" / "3.sum").write_bytes(b"of another try")
    published.crash()
    published.publish(1)
    _, offer = versions_of(published)
    name = published.model.broadcast.opened.packed
    assert offer.contents[name.sha256].size == name.size
    assert np.isfinite(published.model.vector()).all()
