"""Hold a job against the site's policy and data set: one way for offer and forecast."""

from collections.abc import Callable
from dataclasses import dataclass

from edge_node.budget import check_unit
from edge_node.config import SiteConfig
from edge_node.data import Dataset
from edge_node.data.check import check_schema, check_users, job_schema
from edge_node.leakage.records import AuditRecord, check_audited
from edge_node.leakage.terms import AuditKey, audit_key
from edge_node.offer_reading import JobReading
from edge_node.policy import JobFacts, Policy, judge
from privacy.errors import PeerError, Reason
from tidegate.jobfile import FlowerApp, JobFile, Statistics
from tidegate.manifest import Manifest

AuditOf = Callable[[AuditKey], AuditRecord | None]
"""Give the newest leakage audit of what a job sends."""


@dataclass(frozen=True)
class AskedJob:
    """A job that this site is asked to take.

    Attributes:
        name: What the administrator names it by: its id, or a path.
        app_sha256: Digest of its app bundle.
        manifest: As pinned.
    """

    name: str
    app_sha256: bytes
    reading: JobReading
    manifest: Manifest


def judge_job(
    policy: Policy, config: SiteConfig, reading: JobReading, app_sha256: bytes, *, sandboxed: bool
) -> None:
    """Let a job pass the site's policy, or refuse it by naming the rule that it breaks.

    Args:
        policy: The site's.
        config: Declares the site's data sets.
        reading: The job.
        app_sha256: Digest of its app bundle.
        sandboxed: The trainer's namespaces are in force, or are not known yet.

    Raises:
        PeerError: POLICY.
    """
    job_file = reading.job_file
    judge(
        policy,
        JobFacts(
            mode=job_file.privacy.mode,
            dataset=job_file.dataset,
            dataset_known=job_file.dataset in config.datasets,
            app_sha256=app_sha256.hex(),
            epsilon=reading.epsilon,
            delta_dp=reading.terms.delta_dp,
            noise_multiplier=reading.plan.noise_multiplier,
            sandboxed=sandboxed,
            runs_app=job_file.runs_app,
            is_statistics=isinstance(job_file.work, Statistics),
            declares_dp=job_file.declares_dp,
        ),
    )


def check_records(policy: Policy, dataset: Dataset, reading: JobReading) -> None:
    """Hold the data set against the job's bounds, columns and privacy unit; reads whole columns.

    Raises:
        PeerError: POLICY: it does not fit.
    """
    most = reading.most_records
    if most and len(dataset) > most:
        raise PeerError(Reason.POLICY, "the data set is larger than the job's max_records")
    check_columns(dataset, reading.job_file)
    check_unit(policy, dataset, reading.job_file.privacy.unit)


def check_columns(dataset: Dataset, job_file: JobFile) -> None:
    """Hold the data set against the job's columns, and what tells its users apart.

    Raises:
        PeerError: POLICY: a column does not fit.
    """
    if isinstance(job_file.work, FlowerApp):
        return
    check_schema(dataset, job_schema(job_file, dataset))
    unit = job_file.privacy.unit
    if unit.kind == "user":
        check_users(dataset, unit.column)


def check_audit(
    policy: Policy, job: AskedJob, dataset: Dataset, audit_of: AuditOf, now_s: float
) -> None:
    """Hold a job against the site's leakage audits, where its policy asks for one.

    Raises:
        NotAuditedError: No PASS stands of exactly what the job sends.
    """
    if not policy.require_leakage_audit:
        return
    job_file, plan = job.reading.job_file, job.reading.plan
    schema = job_schema(job_file, dataset)
    key = audit_key(job.app_sha256, job_file, plan, schema, job.manifest)
    check_audited(policy, audit_of(key), job.name, now_s)
