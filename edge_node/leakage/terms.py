"""Say what exactly an audit was of: the app, how its updates leave, the columns, the attacks.

A record of a PASS counts for nothing else. What is left out are the map's seed, which is drawn for
each job and public, and whatever changes nothing in what a site sends, as the job's name.
"""

import json
import math
from dataclasses import asdict, dataclass

from privacy.leakage.verdict import AUDIT_VERSION
from privacy.pipeline import EncodingPlan, Mode
from privacy.secagg.encoding import hash_of
from tidegate.jobfile import JobFile, LocalPrivacy, RecordPrivacy, Task
from tidegate.manifest import Manifest
from tidegate.schema import Schema

MOST_RECORDS = 8
"""Small batches give most away, and a Poisson sample may be small by chance."""


@dataclass(frozen=True)
class AuditKey:
    """What an audit was of.

    Attributes:
        app_sha256: Digest of the app bundle.
        plan_sha256: Of the encoding plan and of what else decides what a site's update holds.
        schema_sha256: Of the columns of a record.
        version: Of the attacks and lines.
    """

    app_sha256: bytes
    plan_sha256: bytes
    schema_sha256: bytes
    version: int = AUDIT_VERSION


def audit_key(
    app_sha256: bytes, job: JobFile, plan: EncodingPlan, schema: Schema, manifest: Manifest
) -> AuditKey:
    """Name what an audit of a job at this site is of."""
    task = None if not isinstance(job.work, Task) else asdict(job.work)
    local = None if job.local is None else asdict(job.local)
    terms: dict[str, object] = {
        "task": task,
        "local": local,
        "records": records_of(job, manifest),
        "sites": manifest.min_survivors,
    }
    if job.round.time_box_s is not None:
        terms["time_boxed"] = True
    sent = plan.with_map_seed(bytes(32)).to_bytes()
    return AuditKey(
        app_sha256,
        hash_of("audited-plan", sent, _canonical(terms)),
        hash_of("audited-schema", _canonical([asdict(column) for column in schema.columns])),
    )


def records_of(job: JobFile, manifest: Manifest) -> int:
    """Give how many records an attacked update is made of."""
    privacy = job.privacy
    if isinstance(privacy, RecordPrivacy | LocalPrivacy):
        members = 1 if isinstance(privacy, LocalPrivacy) else len(manifest.members)
        batch = math.ceil(privacy.expected_batch_size / members)
    else:
        batch = 1 if job.local is None else job.local.batch_size
    return max(1, min(MOST_RECORDS, batch))


def steps_of(job: JobFile, plan: EncodingPlan) -> int:
    """Give how many local steps an update has behind it; in a time-boxed round, at most."""
    if plan.mode is Mode.RECORD_DISTRIBUTED or job.local is None:
        return 1 if plan.local is None else plan.local.steps
    return job.local.steps


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
