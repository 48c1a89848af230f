"""A broadcast and a log are read from their canonical bytes alone, and lead along one chain."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import PeerError, Reason
from privacy.secagg.encoding import enc, hash_of
from tests.support.wire_messages import broadcasts
from tidegate.broadcast import (
    LOG_VERSIONS,
    Broadcast,
    ContentName,
    OpenedSumName,
    VersionLog,
)
from tidegate.version_chain import chain_start

A = ContentName(b"a" * 32, 9)
SUM = Broadcast(1, OpenedSumName(A, 0, 4))
LABEL = "tidegate/broadcast/1"


@given(broadcasts())
def test_what_is_written_is_read(broadcast):
    assert Broadcast.from_bytes(broadcast.raw) == broadcast


@given(st.binary(max_size=600))
def test_rubbish_is_refused(raw):
    with pytest.raises(PeerError):
        Broadcast.from_bytes(raw)
    with pytest.raises(PeerError):
        VersionLog.from_bytes(raw)


@given(broadcasts(), st.data())
def test_no_other_bytes_say_the_same(broadcast, data):
    raw = bytearray(broadcast.raw)
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = Broadcast.from_bytes(bytes(raw))
    except PeerError:
        return
    assert found != broadcast
    assert found.sha256 != broadcast.sha256


BAD = {
    "of another kind": enc("other", 1, b"a" * 32, 9, 0, 4, b"", 0, b"", 0),
    "nothing": enc(LABEL, 1, b"", 0, 0, 0, b"", 0, b"", 0),
    "a sum of nobody": enc(LABEL, 1, b"a" * 32, 9, 0, 0, b"", 0, b"", 0),
    "updates without a sum": enc(LABEL, 1, b"", 0, 0, 4, b"a" * 32, 9, b"", 0),
    "a base without a sum": enc(LABEL, 2, b"", 0, 1, 0, b"a" * 32, 9, b"", 0),
    "a sum of its own version": enc(LABEL, 1, b"a" * 32, 9, 1, 4, b"", 0, b"", 0),
    "a sum of a later one": enc(LABEL, 1, b"a" * 32, 9, 7, 4, b"", 0, b"", 0),
    "no root at a 32nd version": enc(LABEL, 32, b"a" * 32, 9, 31, 4, b"", 0, b"", 0),
    "a short digest": enc(LABEL, 1, b"a" * 31, 9, 0, 4, b"", 0, b"", 0),
    "a digest of nothing": enc(LABEL, 1, b"a" * 32, 0, 0, 4, b"", 0, b"", 0),
    "a large announcement": enc(LABEL, 1, b"a" * 32, 9, 0, 4, b"", 0, b"a" * 32, (3 << 20) + 1),
    "a version beyond all": enc(LABEL, 1_000_001, b"a" * 32, 9, 0, 4, b"", 0, b"", 0),
    "a string for a number": enc(LABEL, "1", b"a" * 32, 9, 0, 4, b"", 0, b"", 0),
    "a part too many": SUM.raw + enc(0),
    "a part too few": enc(LABEL, 1, b"a" * 32, 9, 0, 4, b"", 0, b""),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_broadcasts(case):
    with pytest.raises(PeerError) as caught:
        Broadcast.from_bytes(BAD[case])
    assert caught.value.reason is Reason.MALFORMED


def chain(count, first=0):
    """Give a log of so many versions, and the head after its last."""
    versions = [Broadcast(0, checkpoint=A)]
    for version in range(1, first + count):
        root = A if version % 32 == 0 else None
        versions.append(Broadcast(version, OpenedSumName(A, version - 1, 4), root))
    heads = [chain_start("job-1")]
    for broadcast in versions:
        heads.append(broadcast.head_after(heads[-1]))
    return VersionLog(heads[first], tuple(versions[first:])), heads[-1]


@pytest.mark.parametrize(("count", "first"), [(1, 0), (1, 70), (64, 0), (64, 5), (3, 31)])
def test_a_log_leads_to_its_last_version(count, first):
    log, head = chain(count, first)
    assert VersionLog.from_bytes(log.to_bytes()) == log
    log.check("job-1", log.broadcasts[-1], head)
    assert log.head_at(log.last) == head
    assert log.head_at(log.first - 1) == log.before
    assert log.of(log.first).version == first


def test_a_log_that_leads_elsewhere_is_refused():
    log, head = chain(5)
    wrong = [
        (log, log.broadcasts[-2], head),
        (log, log.broadcasts[-1], b"h" * 32),
        (dataclasses.replace(log, before=b"h" * 32), log.broadcasts[-1], head),
        (
            VersionLog(log.before, (log.broadcasts[0], *log.broadcasts[2:])),
            log.broadcasts[-1],
            head,
        ),
    ]
    for bad, last, said in wrong:
        with pytest.raises(PeerError) as caught:
            bad.check("job-1", last, said)
        assert caught.value.reason is Reason.EQUIVOCATION
    with pytest.raises(PeerError):
        log.check("job-2", log.broadcasts[-1], head)


def test_a_log_has_consecutive_versions_and_not_too_many():
    log, _ = chain(LOG_VERSIONS + 1)
    gap = (log.broadcasts[0], *log.broadcasts[2:10])
    for broadcasts_ in ((), log.broadcasts, gap, log.broadcasts[5:3:-1], log.broadcasts[:1] * 2):
        with pytest.raises(PeerError):
            VersionLog.from_bytes(VersionLog(log.before, broadcasts_).to_bytes())


def test_the_vector_of_the_protocol():
    assert (
        SUM.raw.hex()
        == (Path(__file__).parents[2] / "vectors" / "broadcast.hex").read_text().strip()
    )
    head = hash_of("version", chain_start("job-1"), 1, SUM.sha256)
    assert SUM.head_after(chain_start("job-1")) == head
