"""Audit a job: run the attacks on it in the site's sandbox and read what they say.

The app's code is not trusted and the attacks take gradients through it, so they run where it runs
(ADR 16); here are the job, the plan that its updates leave by, and the reading of the report.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from edge_node.config import SiteConfig
from edge_node.data.dataset import Dataset
from edge_node.leakage.evidence import MAX_BYTES, read_report
from edge_node.leakage.jobs import AuditedJob
from edge_node.leakage.terms import AuditKey, audit_key, records_of, steps_of
from edge_node.rounds.task_rounds import base_models_of
from edge_node.rounds.trainer_rules import trainer_confinement, trainer_limits
from edge_node.trainer.frames import ATTACK, DESCRIBE, LEAKAGE
from edge_node.trainer.trainer import HealthRules, Trainer, TrainerJob, TrainerLimits
from privacy.errors import PeerError, UsageError
from privacy.leakage.effort import Effort
from privacy.leakage.verdict import Report
from privacy.pipeline import EncodingPlan
from privacy.planning import CohortRules, derive_encoding
from privacy.spec import TensorSpec, VectorSpec
from tidegate import appbundle
from tidegate.job_terms import privacy_terms
from tidegate.jobfile import Task
from tidegate.manifest import Manifest
from tidegate.schema import Schema

_NOTHING = VectorSpec((TensorSpec("none", ()),))
"""The daemon's side holds no model: what is attacked is the one that the task makes."""
_PUBLIC_SEED = bytes(32)
_BEAT_S = 20.0
"""Between words of progress: the confined process says nothing until it is done."""


@dataclass(frozen=True)
class AuditSettings:
    """How an audit is run.

    Attributes:
        seed: Of made-up records and of the attacks' own choices.
        effort: How hard the attacks try.
        time_limit_s: Until they must have answered.
        private_records: How many of the site's own records to attack; 0 makes records up.
    """

    seed: int
    effort: Effort
    time_limit_s: float
    private_records: int = 0


@dataclass(frozen=True)
class Audited:
    """An audit that was run.

    Attributes:
        key: What it was of.
        report: What the attacks got.
        plan: How updates leave.
        schema: The columns of a record.
        sites: How many sites' updates the attacked sum has.
        records: How many records an attacked update is made of.
        protections: What the sandbox lacked; empty where nothing.
    """

    key: AuditKey
    report: Report
    plan: EncodingPlan
    schema: Schema
    sites: int
    records: int
    protections: tuple[str, ...] = ()


def run_audit(
    job: AuditedJob,
    manifest: Manifest,
    config: SiteConfig,
    dataset: Dataset | None,
    settings: AuditSettings,
    *,
    progress: Callable[[str], None],
) -> Audited:
    """Run an audit.

    Args:
        job: What to audit.
        manifest: As pinned: how many sites are in a sum.
        config: site.toml: device, sandbox and limits are those of training.
        dataset: The site's; None where the job declares its columns and records are made up.
        settings: See `AuditSettings`.
        progress: Called with a few words now and then.

    Raises:
        UsageError: There is nothing to attack, or this machine or job cannot be audited; says why.
        PeerError: The app failed, or the confined process gave no report.
    """
    task = job.file.work
    if not isinstance(task, Task):
        raise UsageError(
            "attacks need a [task], whose loss they can take gradients of: no audit of other work"
            " can say PASS"
        )
    schema = job.file.schema or (None if dataset is None else dataset.scalars)
    if schema is None or not schema.columns:
        raise UsageError("the job declares no [[columns]], so name the data set to audit it for")
    with tempfile.TemporaryDirectory(prefix="tidegate-audit-") as scratch:
        folder = Path(scratch) / "app"
        appbundle.unpack(job.app, folder)
        trainer = _trainer(task, config, folder, settings)
        rows = _rows(dataset, schema, settings)
        return asyncio.run(
            _attack(trainer, job, manifest, schema, rows, settings, progress=progress)
        )


def _trainer(task: Task, config: SiteConfig, folder: Path, settings: AuditSettings) -> Trainer:
    limits: TrainerLimits = replace(
        trainer_limits(config),
        request_timeout_s=settings.time_limit_s,
        processes=1,
        health=HealthRules(max_restarts=0),
    )
    work = TrainerJob(
        app_folder=folder,
        task_file=task.file,
        schema=Schema(()),
        spec=_NOTHING,
        physical_batch=1,
        serves=ATTACK,
        seed=task.seed,
        base_models=base_models_of(task, config),
        work=LEAKAGE,
        blob_bytes=MAX_BYTES,
    )
    return Trainer(work, limits, trainer_confinement(config))


async def _attack(
    trainer: Trainer,
    job: AuditedJob,
    manifest: Manifest,
    schema: Schema,
    rows: bytes,
    settings: AuditSettings,
    *,
    progress: Callable[[str], None],
) -> Audited:
    try:
        progress("starting the app in its sandbox")
        sandbox = await trainer.start()
        if rows and sandbox.missing:
            raise UsageError(
                "an audit shows an app private records in a whole sandbox only; it lacks here:"
                f" {', '.join(sandbox.missing)}"
            )
        described, _ = await trainer.request({"action": DESCRIBE})
        plan = plan_of(job, VectorSpec.from_bytes(described.blob), manifest)
        columns = json.dumps([asdict(column) for column in schema.columns]).encode("ascii")
        parts = (plan.to_bytes(), columns, rows)
        sites, records = manifest.min_survivors, records_of(job.file, manifest)
        frame = {
            "action": ATTACK,
            "seed": settings.seed,
            "effort": asdict(settings.effort),
            "sites": sites,
            "records": records,
            "local_steps": steps_of(job.file, plan),
            "time_boxed": job.file.round.time_box_s is not None,
            "learning_rate": None if job.file.local is None else job.file.local.learning_rate,
            "sizes": [len(part) for part in parts],
        }
        progress(
            f"attacking updates of {records} records, alone and in a sum of {sites} sites; this"
            f" takes minutes, {settings.time_limit_s / 60:.0f} at most"
        )
        beat = asyncio.create_task(_beat(progress))
        try:
            reply, _ = await trainer.request(frame, blob=b"".join(parts))
        finally:
            beat.cancel()
        report = read_report(reply.blob)
    finally:
        await trainer.stop()
    key = audit_key(appbundle.digest(job.app), job.file, plan, schema, manifest)
    return Audited(key, report, plan, schema, sites, records, tuple(sandbox.missing))


async def _beat(progress: Callable[[str], None]) -> None:
    started_s = time.monotonic()
    while True:
        await asyncio.sleep(_BEAT_S)
        progress(f"still attacking after {time.monotonic() - started_s:.0f} s")


def plan_of(job: AuditedJob, spec: VectorSpec, manifest: Manifest) -> EncodingPlan:
    """Give the plan that a job's updates leave by: the offered one, else derived here.

    Raises:
        UsageError: No such plan exists, or the offer is of another model.
    """
    if job.plan is not None:
        if job.plan.spec_digest != spec.digest:
            raise UsageError("the offered job is of another model than its app makes")
        return job.plan
    rules = CohortRules(manifest.colluders, manifest.min_survivors, len(manifest.members))
    try:
        return derive_encoding(privacy_terms(job.file), spec, rules, _PUBLIC_SEED)
    except PeerError as error:
        raise UsageError(f"the job's numbers give no plan: {error.args[0]}") from error


def _rows(dataset: Dataset | None, schema: Schema, settings: AuditSettings) -> bytes:
    """Draw some of the site's own records, for its own eyes; empty where records are made up."""
    if not settings.private_records:
        return b""
    if dataset is None:
        raise UsageError("private records are asked for, and there is no data set to take them of")
    count = min(settings.private_records, len(dataset))
    source = np.random.Generator(np.random.PCG64(settings.seed))
    indices = np.sort(source.choice(len(dataset), size=count, replace=False)).astype(np.int64)
    return dataset.take_rows(indices, schema).astype("<f4").tobytes()
