"""What is printed of audits can be read where it is printed, and says why an audit is no PASS."""

import asyncio
from types import SimpleNamespace

import pytest

from edge_node.leakage import run, terminal
from edge_node.leakage.jobs import AuditedJob
from edge_node.leakage.records import AuditRecord
from edge_node.leakage.run import AuditSettings, run_audit
from edge_node.leakage.terms import AuditKey
from edge_node.policy import Policy
from privacy.errors import UsageError
from privacy.leakage.effort import Effort
from privacy.leakage.verdict import Exposure, Finding, Metric, Verdict, not_applicable, report_of
from tests.support.tree_jobs import trees_job
from tidegate import appbundle

KEY = AuditKey(bytes.fromhex("ab12cd34" * 8), b"p" * 32, b"s" * 32)
RECORD = AuditRecord(KEY, 1.8e9, Verdict.FAIL, "credit-risk-of-many", "loans", 7, b"{}")


def finding(verdict, reason):
    return Finding("A3", "Inversion", Exposure.ALONE, Metric.PSNR, 11.2, 9.7, verdict, reason)


def printed(capsys, monkeypatch, columns, show, *arguments):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("edge_node.terminal._WIDTH", columns)
    show(*arguments)
    return capsys.readouterr().out


def test_the_list_keeps_times_and_digests_whole_at_80_columns(capsys, monkeypatch):
    shown = printed(
        capsys, monkeypatch, 80, terminal.print_records, [RECORD, RECORD], Policy(), 1.8e9
    )
    assert shown.count("2027-01-15 08:00") == 2
    assert shown.count("ab12cd34") == 2
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_site_without_audits_is_told_so(capsys, monkeypatch):
    shown = printed(capsys, monkeypatch, 80, terminal.print_records, [], Policy(), 1.8e9)
    assert shown.strip() == "no leakage audit was made on this site yet"


def test_a_failure_is_followed_by_its_reason_and_what_does_not_apply_by_why(capsys, monkeypatch):
    """A mean of 11 dB beside a guess of 10 looks harmless: one picture was not."""
    report = report_of(
        [
            finding(Verdict.FAIL, "32 pictures: best SSIM 0.58"),
            not_applicable("A4", "Tokens", Exposure.ALONE, Metric.TOKENS, "no tokens"),
            not_applicable("A4", "Tokens", Exposure.SUM, Metric.TOKENS, "no tokens"),
        ]
    )
    audited = SimpleNamespace(report=report)
    shown = printed(capsys, monkeypatch, 100, terminal.print_audit, audited)
    assert "FAIL A3 on the update alone: 32 pictures: best SSIM 0.58" in shown
    assert shown.count("no tokens") == 1
    assert shown.strip().splitlines()[-1] == "FAIL by A3 on the update alone"
    passed = SimpleNamespace(report=report_of([finding(Verdict.PASS, "nothing")]))
    assert "WARN: no attack" in printed(capsys, monkeypatch, 100, terminal.print_audit, passed)


def test_long_attacks_say_that_they_go_on(monkeypatch):
    monkeypatch.setattr(run, "_BEAT_S", 0.001)

    async def first_word():
        said = asyncio.get_running_loop().create_future()
        beat = asyncio.create_task(run._beat(lambda line: said.done() or said.set_result(line)))
        line = await asyncio.wait_for(said, 60)
        beat.cancel()
        return line

    assert asyncio.run(first_word()).startswith("still attacking after ")


def test_work_without_a_loss_is_named_as_such_before_anything_runs():
    job = AuditedJob("trees", trees_job(), appbundle.EMPTY)
    settings = AuditSettings(1, Effort(), 60.0)
    with pytest.raises(UsageError, match=r"attacks need a \[task\]"):
        run_audit(job, None, None, None, settings, progress=[].append)
