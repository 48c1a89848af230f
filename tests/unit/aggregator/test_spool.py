"""Only whole uploads of the announced bytes leave the spool."""

import hashlib

import pytest

from aggregator.spool import Spool
from privacy.errors import PeerError, Reason

CTX = b"c" * 32
DATA = bytes(range(256)) * 10
SHA = hashlib.sha256(DATA).digest()


@pytest.fixture(params=[1 << 20, 100], ids=["memory", "file"])
def spool(request, tmp_path):
    spool = Spool(tmp_path / "spool", memory_bytes=request.param)
    spool.expect(CTX, frozenset({"bank-1", "bank-2"}), len(DATA))
    yield spool
    spool.discard(CTX)
    assert list((tmp_path / "spool").iterdir()) == []


def reason(call, *args):
    with pytest.raises(PeerError) as caught:
        call(*args)
    return caught.value.reason


def test_upload_is_whole_at_its_last_byte_only(spool):
    upload = spool.begin(CTX, "bank-1", len(DATA), SHA)
    spool.write(upload, upload.stream, 0, DATA[:1000])
    assert spool.whole(CTX, "bank-1") is None
    assert spool.received(CTX, "bank-1") == 1000
    spool.write(upload, upload.stream, 1000, DATA[1000:])
    assert spool.whole(CTX, "bank-1").read_at(5, 300) == DATA[5:305]
    assert spool.whole(CTX, "bank-2") is None


def test_upload_resumes_where_it_ended_and_overlaps_are_skipped(spool):
    first = spool.begin(CTX, "bank-1", len(DATA), SHA)
    stream = first.stream
    spool.write(first, stream, 0, DATA[:1000])
    again = spool.begin(CTX, "bank-1", len(DATA), SHA)
    assert reason(spool.write, first, stream, 1000, DATA[1000:]) is Reason.REPLAY
    spool.write(again, again.stream, 900, DATA[900:])
    assert spool.whole(CTX, "bank-1").read_at(0, len(DATA)) == DATA


def test_a_gap_is_refused(spool):
    upload = spool.begin(CTX, "bank-1", len(DATA), SHA)
    assert reason(spool.write, upload, upload.stream, 1, DATA[1:9]) is Reason.MALFORMED


def test_wrong_digest_drops_all_bytes_and_a_right_upload_follows(spool):
    upload = spool.begin(CTX, "bank-1", len(DATA), SHA)
    bad = DATA[:-1] + b"\0"
    assert reason(spool.write, upload, upload.stream, 0, bad) is Reason.WRONG_DIGEST
    assert spool.whole(CTX, "bank-1") is None
    assert spool.received(CTX, "bank-1") == 0
    spool.write(upload, upload.stream, 0, DATA)
    assert spool.whole(CTX, "bank-1") is not None


def test_other_bytes_for_the_same_attempt_are_refused(spool):
    spool.begin(CTX, "bank-1", len(DATA), SHA)
    other = hashlib.sha256(b"other").digest()
    assert reason(spool.begin, CTX, "bank-1", len(DATA), other) is Reason.EQUIVOCATION


def test_wrong_size_and_too_many_bytes_are_refused(spool):
    assert reason(spool.begin, CTX, "bank-1", len(DATA) + 1, SHA) is Reason.WRONG_SHAPE
    upload = spool.begin(CTX, "bank-1", len(DATA), SHA)
    assert reason(spool.write, upload, upload.stream, 0, DATA + b"x") is Reason.TOO_LARGE


def test_nobody_else_and_no_other_attempt_may_upload(spool):
    assert reason(spool.begin, CTX, "bank-3", len(DATA), SHA) is Reason.WRONG_CONTEXT
    assert reason(spool.begin, b"d" * 32, "bank-1", len(DATA), SHA) is Reason.WRONG_CONTEXT
    spool.discard(CTX)
    assert reason(spool.received, CTX, "bank-1") is Reason.WRONG_CONTEXT


def test_an_upload_that_outlives_its_attempt_is_refused(spool):
    upload = spool.begin(CTX, "bank-1", len(DATA), SHA)
    spool.write(upload, upload.stream, 0, DATA[:1000])
    spool.discard(CTX)
    assert reason(spool.write, upload, upload.stream, 1000, DATA[1000:]) is Reason.WRONG_CONTEXT


def test_kept_uploads_are_the_bytes_that_came(spool, tmp_path):
    upload = spool.begin(CTX, "bank-1", len(DATA), SHA)
    spool.write(upload, upload.stream, 0, DATA)
    spool.keep(CTX, tmp_path / "kept")
    spool.discard(CTX)
    assert (tmp_path / "kept" / "bank-1.masked").read_bytes() == DATA


def test_what_an_earlier_process_left_is_deleted(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir()
    (folder / "old").write_bytes(b"x")
    Spool(folder)
    assert list(folder.iterdir()) == []
