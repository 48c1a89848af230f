"""Print audits for people."""

import time
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from edge_node.leakage.records import AuditRecord, standing
from edge_node.leakage.report import figure
from edge_node.leakage.run import Audited
from edge_node.policy import Policy
from edge_node.terminal import table_console
from privacy.leakage.verdict import Finding, Report, Verdict

_COLOURS = {
    Verdict.PASS: "green",
    Verdict.WARN: "yellow",
    Verdict.FAIL: "bold red",
    Verdict.NOT_APPLICABLE: "dim",
}
_TOLD = (Verdict.WARN, Verdict.FAIL)
_DIGEST_DIGITS = 8  # with as many of three digests a row fits 80 columns; --json has all
_LEGEND = "got: recovered by the attack; guess: by somebody who has seen no update"


def print_audit(audited: Audited) -> None:
    """Print what each attack got, beside the guess without data, and the verdict.

    A mean may look harmless where a single record does not, so each finding that is no PASS is
    followed by its reason.
    """
    findings = audited.report.findings
    applied = [one for one in findings if one.verdict is not Verdict.NOT_APPLICABLE]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("attack", "on the", "got", "guess", "verdict"):
        justify: Literal["left", "right"] = "right" if name in ("got", "guess") else "left"
        table.add_column(name, justify=justify, no_wrap=name != "attack")
    for finding in applied:
        table.add_row(
            Text(f"{finding.attack} {finding.title}"),
            finding.exposure.value,
            figure(finding.score, finding.metric),
            figure(finding.baseline, finding.metric),
            _coloured(finding.verdict),
        )
    console = table_console()
    console.print(table)
    console.print(_LEGEND)
    for skipped in _skipped(findings):
        console.print(Text(skipped))
    for finding in (one for one in applied if one.verdict in _TOLD):
        line = Text(f"{finding.attack} on the {finding.exposure.value}: {finding.reason}")
        console.print(Text(f"{finding.verdict.value} ", style=_COLOURS[finding.verdict]) + line)
    console.print()
    console.print(_conclusion(audited.report))


def print_records(records: list[AuditRecord], policy: Policy, now_s: float) -> None:
    """Print the audits that this site keeps, newest first."""
    console = table_console()
    if not records:
        console.print("no leakage audit was made on this site yet")
        return
    table = Table(
        title="Leakage audits of this site",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        caption="counts: lets the job pass where policy.toml has require_leakage_audit = true",
        caption_justify="left",
    )
    for name in ("made (UTC)", "verdict", "counts", "job", "data set", "app", "plan", "schema"):
        # What tells audits apart is never cut; names wrap.
        table.add_column(name, overflow="fold", no_wrap=name not in ("job", "data set"))
    for record, counts in standing(records, policy, now_s):
        key = record.key
        digests = (key.app_sha256, key.plan_sha256, key.schema_sha256)
        table.add_row(
            time.strftime("%Y-%m-%d %H:%M", time.gmtime(record.made_at_s)),
            _coloured(record.verdict),
            "yes" if counts else "no",
            Text(record.job_name),
            Text(record.dataset),
            *(digest.hex()[:_DIGEST_DIGITS] for digest in digests),
        )
    console.print(table)


def _skipped(findings: tuple[Finding, ...]) -> list[str]:
    """Name the attacks that do not apply, each reason once."""
    why: dict[str, list[str]] = {}
    for finding in findings:
        if finding.verdict is Verdict.NOT_APPLICABLE:
            names = why.setdefault(finding.reason, [])
            if finding.attack not in names:
                names.append(finding.attack)
    return [f"not applicable: {', '.join(names)}: {reason}" for reason, names in why.items()]


def _conclusion(report: Report) -> Text:
    """Write the verdict and why, the word once."""
    word = report.verdict.value
    rest = report.reason.removeprefix(word)
    return _coloured(report.verdict) + Text(rest if rest != report.reason else f": {rest}")


def _coloured(verdict: Verdict) -> Text:
    return Text(verdict.value, style=_COLOURS[verdict])
