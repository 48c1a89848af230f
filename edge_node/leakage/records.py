"""Remember the verdicts of leakage audits, and hold a job against them (`require_leakage_audit`).

The records lie in the site's own database: the audit command writes them, also while the daemon
runs, and the daemon reads them at each offer. The newest audit of exactly what a job sends counts:
a PASS that is not too old lets the job pass, nothing else does. The app's code ran beside the
attacks and can have written it, so `policy.judge` asks for a reviewed app first. Verdicts and
scores on made-up records only; nothing of a record of the site's.
"""

import json
import sqlite3
from dataclasses import dataclass

from edge_node.leakage.terms import AuditKey
from edge_node.policy import Policy
from privacy.errors import PeerError, Reason
from privacy.leakage.verdict import AUDIT_VERSION, Verdict

_DAY_S = 86_400.0
_COLUMNS = (
    "app_sha256, plan_sha256, schema_sha256, version, made_at_s, verdict, job_name, dataset, seed,"
    " summary"
)


class NotAuditedError(PeerError):
    """The site asks for a leakage audit with a PASS, and there is none of this job."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.POLICY, message)


@dataclass(frozen=True)
class AuditRecord:
    """One audit that was run.

    Attributes:
        key: What it was of.
        made_at_s: When, Unix seconds.
        verdict: Its outcome.
        job_name: As the job file calls itself.
        dataset: The data set that it was made for.
        seed: Repeats it.
        summary: The findings without records, JSON.
    """

    key: AuditKey
    made_at_s: float
    verdict: Verdict
    job_name: str
    dataset: str
    seed: int
    summary: bytes


def write_record(db: sqlite3.Connection, record: AuditRecord) -> None:
    """Keep a record, durably."""
    key = record.key
    db.execute(
        f"INSERT INTO leakage_audits ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
        (
            key.app_sha256,
            key.plan_sha256,
            key.schema_sha256,
            key.version,
            record.made_at_s,
            str(record.verdict),
            record.job_name,
            record.dataset,
            record.seed,
            record.summary,
        ),
    )


def read_records(db: sqlite3.Connection) -> list[AuditRecord]:
    """Give all records, newest first."""
    query = f"SELECT {_COLUMNS} FROM leakage_audits ORDER BY rowid DESC"  # noqa: S608
    return [_record(row) for row in db.execute(query)]


def newest_record(db: sqlite3.Connection, key: AuditKey) -> AuditRecord | None:
    """Give the newest record of exactly this; None where there is none."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM leakage_audits"  # noqa: S608 - constants
        " WHERE app_sha256 = ? AND plan_sha256 = ? AND schema_sha256 = ? AND version = ?"
        " ORDER BY rowid DESC LIMIT 1",
        (key.app_sha256, key.plan_sha256, key.schema_sha256, key.version),
    ).fetchone()
    return None if row is None else _record(row)


def check_audited(policy: Policy, record: AuditRecord | None, job: str, now_s: float) -> None:
    """Refuse a job that the site's policy wants audited, where no PASS stands.

    Args:
        policy: The site's.
        record: The newest audit of exactly this job's sending.
        job: Its id, for the command to run.
        now_s: Unix seconds.

    Raises:
        NotAuditedError: Why, in words that may be sent.
    """
    if not policy.require_leakage_audit:
        return
    why = ""
    if record is None:
        why = "no leakage audit of this app, encoding and data set was run here"
    elif record.verdict is not Verdict.PASS:
        why = f"its leakage audit said {record.verdict}"
    elif is_stale(policy, record, now_s):
        why = f"its leakage audit is older than {policy.leakage_audit_days} days"
    if why:
        raise NotAuditedError(
            f"the site's policy refuses this job by rule require_leakage_audit: {why}; the site"
            f" runs `edge-node audit leakage --config site.toml --job {job}`, and the job is"
            " submitted again"
        )


def is_stale(policy: Policy, record: AuditRecord, now_s: float) -> bool:
    """Say whether a record is too old to count, or of a time that has not come, but for a day."""
    age_s = now_s - record.made_at_s
    return not -_DAY_S <= age_s <= policy.leakage_audit_days * _DAY_S


def standing(
    records: list[AuditRecord], policy: Policy, now_s: float
) -> list[tuple[AuditRecord, bool]]:
    """Say of each audit, newest first, whether it lets its job pass."""
    seen: set[AuditKey] = set()
    found = []
    for record in records:
        newest = record.key not in seen and record.key.version == AUDIT_VERSION
        seen.add(record.key)
        passed = record.verdict is Verdict.PASS and not is_stale(policy, record, now_s)
        reviewed = record.key.app_sha256.hex() in policy.allowed_apps
        found.append((record, newest and passed and reviewed))
    return found


def summary_bytes(summary: dict[str, object]) -> bytes:
    """Write a report's summary for the record."""
    return json.dumps(summary, sort_keys=True, separators=(",", ":")).encode("ascii")


def _record(row: tuple[bytes, bytes, bytes, int, float, str, str, str, int, bytes]) -> AuditRecord:
    app, plan, schema, version, made_at_s, verdict, job_name, dataset, seed, summary = row
    key = AuditKey(bytes(app), bytes(plan), bytes(schema), version)
    return AuditRecord(key, made_at_s, Verdict(verdict), job_name, dataset, seed, bytes(summary))
