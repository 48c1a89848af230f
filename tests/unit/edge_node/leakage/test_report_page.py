"""The page shows what was got, escapes what it was given, and asks for nothing from outside."""

import base64
import re
import stat
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from edge_node.leakage.jobs import AuditedJob
from edge_node.leakage.pictures import data_uri
from edge_node.leakage.records import AuditRecord
from edge_node.leakage.report import ReportFacts, write_page
from edge_node.leakage.run import Audited, AuditSettings
from edge_node.leakage.terms import AuditKey
from privacy.errors import UsageError
from privacy.leakage.effort import Effort
from privacy.leakage.verdict import Evidence, EvidenceKind, Exposure, Verdict, report_of
from privacy.pipeline import Mode
from tests.support.encoding_plans import make_plan
from tests.support.live_aggregator import job_toml
from tests.unit.edge_node.leakage.test_evidence import PICTURES, TOKENS, finding
from tidegate.jobfile import JobFile
from tidegate.schema import Column, Schema

HOSTILE = "<script>alert('x')</script>\"'&{{ 7 * 7 }}"


class Links(HTMLParser):
    """Collect tags, and attributes that fetch something."""

    def __init__(self):
        super().__init__()
        self.tags, self.sources = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [
            value for name, value in attrs if name in ("src", "href", "data", "action")
        ]


def facts(name="plain", private=0, **changes):
    rows = np.array([[0.25, 3.0]], np.float32)
    right = np.array([[True, False]])
    table = Evidence(EvidenceKind.ROWS, (name, "age"), rows, rows + 1, right)
    findings = [
        finding(Verdict.FAIL, evidence=PICTURES, title=name, reason=name),
        finding(Verdict.PASS, Exposure.SUM, TOKENS, details={name: 1.0}),
        finding(Verdict.WARN, evidence=table),
    ]
    key = AuditKey(b"a" * 32, b"p" * 32, b"s" * 32)
    plan = make_plan(changes.pop("mode", Mode.NONE))
    schema = Schema((Column("age"),))
    audited = Audited(key, report_of(findings), plan, schema, 4, 2, **changes)
    record = AuditRecord(key, 0.0, audited.report.verdict, name, name, 1, b"{}")
    job = AuditedJob(name, JobFile.parse(job_toml()), b"")
    return ReportFacts(job, audited, record, AuditSettings(1, Effort(), 1.0, private))


def page_of(path, what):
    write_page(path, what)
    return path.read_text("utf-8")


def test_nothing_hostile_gets_into_the_page(tmp_path):
    page = page_of(tmp_path / "page.html", facts(HOSTILE, protections=(HOSTILE,)))
    links = Links()
    links.feed(page)
    assert "script" not in links.tags
    assert "<script" not in page
    assert "{{ 7 * 7 }}" in page  # shown as it is, not evaluated
    assert all(source.startswith("data:image/png;base64,") for source in links.sources)
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_page_says_verdict_figures_and_what_was_audited(tmp_path):
    page = page_of(tmp_path / "page.html", facts())
    for text in (
        "FAIL",
        "9.5 dB",
        "update alone",
        "sum of sites",
        "mode none",
        "61616161",
        "70707",
    ):
        assert text in page, text
    assert 'class="right"' in page
    assert "must not leave" not in page
    assert "must not leave" in page_of(tmp_path / "other.html", facts(private=9))
    assert "mode none" not in page_of(tmp_path / "dp.html", facts(mode=Mode.RECORD_DISTRIBUTED))


def test_the_page_is_its_owners_alone_and_follows_no_link(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o644)
    write_page(path, facts())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link.html"
    link.symlink_to(path)
    with pytest.raises(UsageError, match="cannot write"):
        write_page(link, facts())
    with pytest.raises(UsageError, match="cannot write"):
        write_page(Path("/nowhere/at/all.html"), facts())


def pixels(uri):
    raw = base64.b64decode(uri.partition(",")[2])
    width, height, depth, kind = struct.unpack(">IIBB", raw[16:26])
    begin = raw.index(b"IDAT")
    (size,) = struct.unpack(">I", raw[begin - 4 : begin])
    lines = np.frombuffer(zlib.decompress(raw[begin + 4 : begin + 4 + size]), np.uint8)
    assert depth == 8
    return lines.reshape(height, -1)[:, 1:].reshape(height, width, 3 if kind == 2 else 1)


def test_pictures_come_out_as_they_are():
    grey = np.array([[0.0, 0.5], [1.0, np.nan], [9.0, -np.inf]], np.float32)
    assert pixels(data_uri(grey))[..., 0].tolist() == [[0, 128], [255, 0], [255, 0]]
    colour = np.zeros((3, 2, 5), np.float32)
    colour[1] = 1.0
    shown = pixels(data_uri(colour))
    assert shown.shape == (2, 5, 3)
    assert (shown == [0, 255, 0]).all()
