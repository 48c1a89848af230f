"""A report leaves the confined process whole, and nothing else passes for one."""

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_node.leakage.evidence import pack_report, read_report
from privacy.errors import PeerError, Reason
from privacy.leakage.verdict import (
    Evidence,
    EvidenceKind,
    Exposure,
    Finding,
    Metric,
    Report,
    Verdict,
    not_applicable,
    report_of,
    summary,
)

PICTURES = Evidence(
    EvidenceKind.IMAGES,
    ("face",),
    np.linspace(0, 1, 2 * 8 * 9, dtype=np.float32).reshape(2, 8, 9),
    np.zeros((2, 8, 9), np.float32),
)
TOKENS = Evidence(
    EvidenceKind.TOKENS,
    ("words",),
    np.arange(12, dtype=np.int64).reshape(2, 6),
    np.ones((2, 6), np.int64),
    np.arange(12).reshape(2, 6) % 3 == 0,
)


def finding(verdict=Verdict.PASS, exposure=Exposure.ALONE, evidence=None, **changes):
    values = {
        "attack": "A3",
        "title": "Pictures",
        "exposure": exposure,
        "metric": Metric.PSNR,
        "score": 9.5,
        "baseline": 9.8,
        "verdict": verdict,
        "reason": "no better than grey",
        "details": {"best PSNR, dB": 10.0},
        "evidence": evidence,
    }
    return Finding(**{**values, **changes})


def report(*findings):
    return report_of(findings or (finding(), finding(exposure=Exposure.SUM)))


def parts(raw):
    (length,) = struct.unpack_from(">I", raw)
    return json.loads(raw[4 : 4 + length]), raw[4 + length :]


def joined(head, rest):
    text = json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text + rest


def test_a_report_comes_back_as_it_was():
    sent = report(
        finding(evidence=PICTURES),
        finding(Verdict.FAIL, Exposure.SUM, TOKENS, attack="A4", metric=Metric.TOKENS, score=0.9),
        not_applicable("A5", "Rows", Exposure.SUM, Metric.CELLS, "no table"),
    )
    came = read_report(pack_report(sent))
    assert summary(came) == summary(sent)
    assert came.verdict is Verdict.FAIL
    for one, two in zip(sent.findings, came.findings, strict=True):
        if one.evidence is None:
            assert two.evidence is None
            continue
        assert two.evidence.columns == one.evidence.columns
        assert np.array_equal(two.evidence.originals, one.evidence.originals)
        assert np.array_equal(two.evidence.reconstructions, one.evidence.reconstructions)
        if one.evidence.right is not None:
            assert np.array_equal(two.evidence.right, one.evidence.right)
    assert math.isnan(came.findings[2].score)


def test_the_whole_verdict_is_formed_here_and_not_taken_on_trust():
    lie = Report((finding(Verdict.FAIL), finding(exposure=Exposure.SUM)), Verdict.PASS, "all good")
    assert read_report(pack_report(lie)).verdict is Verdict.FAIL
    alone = Report((finding(),), Verdict.PASS, "all good")
    assert read_report(pack_report(alone)).verdict is Verdict.WARN


@pytest.mark.parametrize(
    "change",
    [
        {"score": None},
        {"score": "9"},
        {"score": True},
        {"verdict": "pass"},
        {"verdict": 1},
        {"exposure": "everywhere"},
        {"metric": "luck"},
        {"reason": 7},
        {"details": [1]},
        {"details": {"x": "y"}},
        {"details": {str(number): 1.0 for number in range(99)}},
        {"evidence": {}},
        {"evidence": {"kind": "images", "columns": [], "shape": [9, 8, 8], "dtype": "float32"}},
        {"evidence": {"kind": "rows", "columns": [], "shape": [1, 2**40], "dtype": "float32"}},
        {"evidence": {"kind": "rows", "columns": ["a"], "shape": [1, -1], "dtype": "float32"}},
        {"evidence": {"kind": "rows", "columns": ["a"], "shape": [1, 1], "dtype": "object"}},
        {"evidence": {"kind": "images", "columns": [], "shape": [1, 2, 8, 8], "dtype": "float32"}},
    ],
)
def test_a_report_with_a_wrong_field_is_refused(change):
    head, rest = parts(pack_report(report()))
    head["findings"][0] |= change
    with pytest.raises(PeerError) as caught:
        read_report(joined(head, rest + bytes(64)))
    assert caught.value.reason is Reason.MALFORMED


def test_arrays_must_fill_the_bytes_exactly():
    raw = pack_report(report(finding(evidence=PICTURES), finding(exposure=Exposure.SUM)))
    for wrong in (raw[:-1], raw + b"\0", raw[:3], b""):
        with pytest.raises(PeerError):
            read_report(wrong)


def test_text_is_made_printable_and_short():
    head, rest = parts(pack_report(report()))
    head["findings"][0] |= {"title": "\x1b[2J" + "x" * 9000, "attack": "A\n1"}
    came = read_report(joined(head, rest)).findings[0]
    assert came.title.isprintable()
    assert len(came.title) <= 400
    assert came.attack == "A 1"


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_do_more_than_be_refused(raw):
    with pytest.raises(PeerError):
        read_report(raw)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_changed_byte_is_refused_or_gives_a_report(data):
    raw = bytearray(pack_report(report(finding(evidence=TOKENS), finding(exposure=Exposure.SUM))))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        came = read_report(bytes(raw))
    except PeerError as error:
        assert error.reason is Reason.MALFORMED  # noqa: PT017
    else:
        assert came.verdict in Verdict


def test_evidence_that_is_too_large_is_left_out_and_the_verdict_stays():
    large = np.zeros((8, 1 << 20), np.float32)
    rows = Evidence(EvidenceKind.ROWS, ("x",) * (1 << 20), large, large)
    came = read_report(pack_report(report(finding(Verdict.FAIL, evidence=rows))))
    assert came.verdict is Verdict.FAIL
    assert came.findings[0].evidence is None
