"""An audit's report: one HTML file without a single reference to anything outside it.

Names come from a job and its app, which are not trusted: everything is escaped by the template.
"""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from edge_node.leakage.jobs import AuditedJob
from edge_node.leakage.pictures import data_uri
from edge_node.leakage.records import AuditRecord
from edge_node.leakage.run import Audited, AuditSettings
from privacy.errors import UsageError
from privacy.leakage.verdict import Evidence, EvidenceKind, Finding, Verdict
from privacy.pipeline import Mode

PAGES = Path(__file__).parent / "pages"
_MOST_CELLS = 24
_MOST_TOKENS = 64
_MEANING = {
    Verdict.PASS: "Records stay hidden from every attack that was tried.",
    Verdict.WARN: "Something shows, or not everything could be attacked: this is no PASS.",
    Verdict.FAIL: "Records can be reconstructed from what this job sends.",
}
_MODES = {
    Mode.RECORD_DISTRIBUTED: "records clipped one by one, noise shared among the sites",
    Mode.RECORD_LOCAL: "records clipped one by one, each local step noised at the site",
    Mode.SITE: "the site's whole difference clipped, noise shared among the sites",
    Mode.NONE: "no differential privacy",
}


@dataclass(frozen=True)
class ReportFacts:
    """What a report is of.

    Attributes:
        job: The audited job.
        audited: What came out.
        record: As it is kept; also where it is not, for its time and names.
        settings: How the audit was run.
    """

    job: AuditedJob
    audited: Audited
    record: AuditRecord
    settings: AuditSettings


def write_page(path: Path, facts: ReportFacts) -> None:
    """Write a report, readable by its owner only: it may show the site's own records.

    Raises:
        UsageError: The file cannot be written.
    """
    environment = Environment(
        loader=FileSystemLoader(PAGES), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("leakage.html.j2").render(**_values(facts))
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(page)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error


def figure(value: float, metric: str) -> str:
    """Write a score for people."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.1f} dB" if metric.endswith("dB") else f"{value:.1%}"


def _values(facts: ReportFacts) -> dict[str, Any]:
    report = facts.audited.report
    worst_first = sorted(report.findings, key=lambda finding: -finding.verdict.rank)
    shown = [_shown(finding) for finding in worst_first]
    return {
        "name": facts.job.file.name,
        "verdict": report.verdict.value,
        "meaning": _MEANING[report.verdict],
        "reason": report.reason,
        "private": facts.settings.private_records > 0,
        "no_dp": facts.audited.plan.mode is Mode.NONE,
        "made_at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(facts.record.made_at_s)),
        "findings": [one for one in shown if one["verdict"] != Verdict.NOT_APPLICABLE],
        "skipped": [one for one in shown if one["verdict"] == Verdict.NOT_APPLICABLE],
        "facts": _facts(facts),
        "lacking": facts.audited.protections,
    }


def _facts(facts: ReportFacts) -> list[tuple[str, str]]:
    audited, plan, key = facts.audited, facts.audited.plan, facts.audited.key
    noise = f"noise multiplier z = {plan.noise_multiplier:.6g}" if plan.noise_multiplier else "none"
    settings = facts.settings
    effort = settings.effort
    records = "made up from the declared columns"
    if settings.private_records:
        records = "the site's own: this file must not leave the site"
    return [
        ("mode", f"{plan.mode}: {_MODES[plan.mode]}"),
        ("noise", noise),
        ("clipping norm", f"{plan.clip_gradient:g}"),
        ("encoding", f"{plan.length} integers of {plan.bits} bits, map {plan.map_kind}"),
        ("an update", f"{audited.records} records a site; the sum is over {audited.sites} sites"),
        ("records attacked", records),
        ("data set", facts.record.dataset),
        ("columns", ", ".join(audited.schema.names[:40])),
        ("job", facts.job.name),
        ("app", f"sha256:{key.app_sha256.hex()}"),
        ("plan", f"sha256:{key.plan_sha256.hex()}"),
        ("schema", f"sha256:{key.schema_sha256.hex()}"),
        ("seed", str(settings.seed)),
        (
            "effort",
            f"{effort.trials} trials, {effort.iterations} iterations, {effort.restarts} restarts",
        ),
        ("attacks", f"version {key.version}"),
    ]


def _shown(finding: Finding) -> dict[str, Any]:
    return {
        "attack": finding.attack,
        "title": finding.title,
        "exposure": finding.exposure.value,
        "metric": finding.metric.value,
        "score": figure(finding.score, finding.metric),
        "baseline": figure(finding.baseline, finding.metric),
        "verdict": finding.verdict.value,
        "kind": finding.verdict.name.lower().replace("_", "-"),
        "reason": finding.reason,
        "details": [(name, f"{value:.4g}") for name, value in finding.details.items()],
        "evidence": None if finding.evidence is None else _evidence(finding.evidence),
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    if evidence.kind is EvidenceKind.IMAGES:
        pairs = zip(evidence.originals, evidence.reconstructions, strict=True)
        pictures = [tuple(data_uri(np.asarray(one, np.float32)) for one in pair) for pair in pairs]
        return {"kind": "images", "pictures": pictures, "left_out": 0}
    most = _MOST_TOKENS if evidence.kind is EvidenceKind.TOKENS else _MOST_CELLS
    right = evidence.right
    rows = [
        {
            "original": [_cell(value) for value in evidence.originals[number][:most]],
            "made": [_cell(value) for value in evidence.reconstructions[number][:most]],
            "right": [] if right is None else right[number][:most].tolist(),
        }
        for number in range(len(evidence.originals))
    ]
    width = evidence.originals.shape[1]
    return {
        "kind": str(evidence.kind.value),
        "columns": list(evidence.columns[:most]),
        "rows": rows,
        "left_out": max(0, width - most),
    }


def _cell(value: np.float32 | np.int64) -> str:
    return str(int(value)) if isinstance(value, np.integer) else f"{float(value):.4g}"
