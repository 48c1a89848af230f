"""Carry out `edge-node audit leakage` and `edge-node audit list`."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_node.config import SiteConfig, load_config
from edge_node.data.check import check_schema
from edge_node.data.dataset import Dataset
from edge_node.data.loading import load_dataset
from edge_node.leakage.jobs import AuditedJob, find_job, pinned_manifest
from edge_node.leakage.records import (
    AuditRecord,
    read_records,
    standing,
    summary_bytes,
    write_record,
)
from edge_node.leakage.report import ReportFacts, write_page
from edge_node.leakage.run import Audited, AuditSettings, run_audit
from edge_node.policy import Policy
from edge_node.policy_file import load_policy
from edge_node.store_schema import connect
from privacy.errors import UsageError
from privacy.leakage.effort import Effort
from privacy.leakage.verdict import Verdict, summary

EXIT_CODES = {Verdict.PASS: 0, Verdict.WARN: 4, Verdict.FAIL: 5}
TIME_LIMIT_S = 3600.0
_SEED_BITS = 48


@dataclass(frozen=True)
class AuditRequest:
    """What was asked for on the command line.

    Attributes:
        job: A folder, a job file or the id of a kept offer.
        dataset: The site's data set; empty for the job's.
        out: Where the page goes; None for none.
        seed: None draws one.
        private_records: How many of the site's own records to attack; 0 makes records up.
        effort: How hard the attacks try.
    """

    job: str
    dataset: str = ""
    out: Path | None = None
    seed: int | None = None
    private_records: int = 0
    effort: Effort = field(default_factory=Effort)


def audit(
    config_file: Path, request: AuditRequest, progress: Callable[[str], None]
) -> tuple[Audited, dict[str, Any]]:
    """Run an audit, write its page, and keep its verdict unless it saw private records.

    Args:
        config_file: site.toml.
        request: What was asked for.
        progress: Called with a few words now and then.

    Returns:
        What came out, and the same as plain values.

    Raises:
        UsageError: There is nothing to audit, or it cannot be audited here.
        PeerError: The app failed.
    """
    config = load_config(config_file)
    job = find_job(request.job, config)
    manifest = pinned_manifest(config)
    name = request.dataset or job.file.dataset
    dataset = _dataset(config, name, job, request)
    seed = secrets.randbits(_SEED_BITS) if request.seed is None else request.seed
    settings = AuditSettings(seed, request.effort, TIME_LIMIT_S, request.private_records)
    audited = run_audit(job, manifest, config, dataset, settings, progress=progress)
    shown = summary(audited.report)
    verdict, job_name = audited.report.verdict, job.file.name
    now_s = time.time()
    record = AuditRecord(audited.key, now_s, verdict, job_name, name, seed, summary_bytes(shown))
    if request.out is not None:
        write_page(request.out, ReportFacts(job, audited, record, settings))
    if not request.private_records:
        _keep(config, record)
    return audited, {**shown, **_named(record)}


def records(config_file: Path) -> tuple[list[AuditRecord], Policy]:
    """Give the audits that this site keeps, newest first, and the policy that they count under."""
    config = load_config(config_file)
    database = connect(config.database, read_only=True)
    try:
        return read_records(database), load_policy(config.policy_file)
    finally:
        database.close()


def plain_records(found: list[AuditRecord], policy: Policy) -> list[dict[str, Any]]:
    """Give kept audits as plain values."""
    return [
        {**_named(record), "counts": counts}
        for record, counts in standing(found, policy, time.time())
    ]


def _named(record: AuditRecord) -> dict[str, Any]:
    key = record.key
    return {
        "verdict": record.verdict.value,
        "made_at_s": round(record.made_at_s, 3),
        "job": record.job_name,
        "dataset": record.dataset,
        "seed": record.seed,
        "app_sha256": key.app_sha256.hex(),
        "plan_sha256": key.plan_sha256.hex(),
        "schema_sha256": key.schema_sha256.hex(),
        "version": key.version,
    }


def _dataset(
    config: SiteConfig, name: str, job: AuditedJob, request: AuditRequest
) -> Dataset | None:
    """Open the data set where its columns or its records are needed, and hold it to the job."""
    if name not in config.datasets:
        raise UsageError(
            f"site.toml declares no data set {name!r}: name one of"
            f" {', '.join(sorted(config.datasets)) or 'none'} with --dataset"
        )
    if job.file.schema is not None and not request.private_records:
        return None
    dataset = load_dataset(name, config.datasets[name].plug, config.path.parent, config.folder)
    if job.file.schema is not None:
        check_schema(dataset, job.file.schema)
    return dataset


def _keep(config: SiteConfig, record: AuditRecord) -> None:
    database = connect(config.database)
    try:
        write_record(database, record)
    finally:
        database.close()
