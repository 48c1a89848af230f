"""Print audits for people."""

import sys
import time

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edge_node.leakage.records import AuditRecord, standing
from edge_node.leakage.report import figure
from edge_node.leakage.run import Audited
from edge_node.policy import Policy
from privacy.leakage.verdict import Verdict

_COLOURS = {
    Verdict.PASS: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.NOT_APPLICABLE: "dim",
}


def print_audit(audited: Audited) -> None:
    """Print what each attack got, beside the guess without data, and the verdict."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("attack", "on the", "got", "guess", "verdict"):
        table.add_column(name, justify="right" if name in ("got", "guess") else "left")
    for finding in audited.report.findings:
        table.add_row(
            Text(f"{finding.attack} {finding.title}"),
            finding.exposure.value,
            figure(finding.score, finding.metric),
            figure(finding.baseline, finding.metric),
            _coloured(finding.verdict),
        )
    console = Console(file=sys.stdout)
    console.print(table)
    console.print("got: recovered by the attack; guess: by somebody who has seen no update\n")
    console.print(_coloured(audited.report.verdict))
    console.print(Text(audited.report.reason))


def print_records(records: list[AuditRecord], policy: Policy, now_s: float) -> None:
    """Print the audits that this site keeps, newest first."""
    table = Table(title="Leakage audits of this site", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("made (UTC)", "verdict", "counts", "job", "data set", "app", "plan", "schema"):
        table.add_column(name, overflow="fold")
    for record, counts in standing(records, policy, now_s):
        key = record.key
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.made_at_s)),
            _coloured(record.verdict),
            "yes" if counts else "no",
            Text(record.job_name),
            Text(record.dataset),
            *(digest.hex()[:12] for digest in (key.app_sha256, key.plan_sha256, key.schema_sha256)),
        )
    Console(file=sys.stdout).print(table)


def _coloured(verdict: Verdict) -> Text:
    return Text(verdict.value, style=_COLOURS[verdict])
