"""Find the job that is to be audited: a job file with its app, or an offer that the site keeps."""

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from edge_node.config import SiteConfig
from edge_node.store_jobs import JobStore
from edge_node.store_schema import MANIFEST_PIN, connect, find_pin
from privacy.errors import PeerError, UsageError
from privacy.pipeline import EncodingPlan
from tidegate import appbundle
from tidegate.jobfile import JobFile
from tidegate.manifest import Manifest, parse

_JOB_FILE = "job.toml"
_JOB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class AuditedJob:
    """A job as it is audited.

    Attributes:
        name: A path or an id, as it was asked for.
        file: The job file.
        app: The bundle that the job file runs with.
        plan: As offered; None where it is derived here.
    """

    name: str
    file: JobFile
    app: bytes = field(repr=False)
    plan: EncodingPlan | None = None


def find_job(name: str, config: SiteConfig) -> AuditedJob:
    """Find a job by a folder, a job file in the folder of its app, or the id of a kept offer.

    Raises:
        UsageError: There is none, or it cannot be read.
    """
    path = Path(name)
    if path.is_dir():
        return _from_files(name, path / _JOB_FILE)
    if path.is_file():
        return _from_files(name, path)
    if not _JOB_ID.fullmatch(name):
        raise UsageError(f"there is no folder or file {name}, and it is no job's id")
    return _from_offer(name, config)


def pinned_manifest(config: SiteConfig) -> Manifest:
    """Give the sealed manifest that this site pinned: it says how many sites are in a sum.

    Raises:
        UsageError: There is none yet.
    """
    database = connect(config.database, read_only=True)
    try:
        raw = find_pin(database, MANIFEST_PIN)
    finally:
        database.close()
    if raw is None:
        raise UsageError(
            "this site has pinned no manifest yet, so the number of sites in a sum is not known:"
            " run `edge-node run` until the operator has sealed it"
        )
    return parse(raw)


def _from_files(name: str, file: Path) -> AuditedJob:
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    job = JobFile.parse(raw, str(file))
    return AuditedJob(name, job, appbundle.pack(file.parent) if job.runs_app else appbundle.EMPTY)


def _from_offer(job_id: str, config: SiteConfig) -> AuditedJob:
    database = connect(config.database, read_only=True)
    try:
        jobs = JobStore(database, contextlib.nullcontext)
        offer = jobs.find(job_id)
        app = None if offer is None else jobs.app(offer.app_sha256)
    finally:
        database.close()
    if offer is None or app is None:
        raise UsageError(
            f"this site keeps no job {job_id!r}: it is over, or was refused for another reason"
            " than a lacking audit; name its folder or job file instead"
        )
    try:
        job, plan = JobFile.parse(offer.job_toml), EncodingPlan.from_bytes(offer.encoding)
    except PeerError as error:
        raise UsageError(f"the kept offer {job_id!r} cannot be read: {error.args[0]}") from error
    return AuditedJob(job_id, job, app, plan)
