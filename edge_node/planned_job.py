"""Find the job that `edge-node budget plan` is asked about, and read it; see `forecast`.

It is a job that this site was offered and keeps, a job file, or an app folder with one. What a
task's model looks like is in nobody's file: the app says it in the confined process that would
train it, and only if policy lists it; else the administrator states the number of its parameters.
"""

import asyncio
import tempfile
import time
from contextlib import closing
from pathlib import Path

from edge_node.budget import open_ledger, read_entries
from edge_node.config import SiteConfig
from edge_node.data import Dataset
from edge_node.data.dataset import rowless
from edge_node.data.loading import load_dataset
from edge_node.forecast import JobForecast, SiteState, forecast
from edge_node.leakage.records import AuditRecord, NotAuditedError, read_records
from edge_node.leakage.terms import AuditKey
from edge_node.offer_reading import JobReading, derive_reading, read_offer
from edge_node.policy import APP_DIGEST, Policy
from edge_node.policy_file import load_policy
from edge_node.rounds.task_rounds import base_models_of
from edge_node.rounds.trainer_rules import trainer_confinement, trainer_limits
from edge_node.store_jobs import find_job
from edge_node.store_schema import MANIFEST_PIN, connect, find_pin, read_ledgers
from edge_node.trainer.frames import MEASURE
from edge_node.trainer.trainer import Trainer, TrainerFailure, TrainerJob
from privacy.errors import PeerError, Reason, UsageError
from privacy.spec import MAX_LENGTH, TensorSpec, VectorSpec
from tidegate import appbundle
from tidegate.job_terms import statistics_layout
from tidegate.jobfile import FlowerApp, JobFile, Statistics, Task, Trees
from tidegate.manifest import Manifest, parse
from tidegate.schema import Schema
from tidegate.tree_model import model_spec

JOB_FILE = "job.toml"
_MOST_SPEC_BYTES = 16 << 20


def plan_budget(config: SiteConfig, job: str, parameters: int | None) -> JobForecast:
    """Say what a job would cost this site.

    Args:
        config: The site's settings.
        job: The id of a job that was offered here, a job file, or an app folder.
        parameters: The number of trainable parameters of its model, if it is to be taken as given.

    Raises:
        UsageError: There is no such job, no sealed manifest yet, or the job file is wrong.
        PeerError: The job contradicts itself or the manifest: it would be refused for that.
    """
    policy = load_policy(config.policy_file)
    with closing(connect(config.database, read_only=True)) as database:
        raw = find_pin(database, MANIFEST_PIN)
        if raw is None:
            raise UsageError(
                "this site has no sealed manifest yet, and the noise of a job follows from it: run"
                " the edge node until the operator has sealed one"
            )
        manifest = parse(raw)
        offer = find_job(database, job)
        stored = {ledger.dataset_id: ledger for ledger in read_ledgers(database)}
        audits = {record.key: record for record in reversed(read_records(database))}
    if offer is not None:
        reading, name, app = read_offer(offer, manifest), offer.job_id, offer.app_sha256
    else:
        reading, name, app = _read_file(config, policy, manifest, (Path(job), parameters))
    # A table that is larger than memory is read from a file as long as it is looked at.
    with tempfile.TemporaryDirectory(prefix="plan-", dir=config.folder) as scratch:
        site = SiteState(
            asked=job,
            config=config,
            policy=policy,
            manifest=manifest,
            ledgers={name: open_ledger(config.site_id, ledger) for name, ledger in stored.items()},
            entries={name: read_entries(ledger) for name, ledger in stored.items()},
            open_dataset=lambda reading: _open_dataset(config, reading, Path(scratch)),
            audit_of=audits.get if offer or parameters is None else _audit_of_unknown,
            now_s=time.time(),
        )
        return forecast(site, reading, name, app)


def _read_file(
    config: SiteConfig, policy: Policy, manifest: Manifest, asked: tuple[Path, int | None]
) -> tuple[JobReading, str, bytes]:
    """Read a job file, or an app folder with one."""
    path, parameters = asked
    file = path / JOB_FILE if path.is_dir() else path
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} is neither a job that this site knows nor a job file: {error.strerror}"
        ) from error
    job_file = JobFile.parse(raw, str(file))
    app = appbundle.pack(file.parent) if job_file.runs_app else appbundle.EMPTY
    sha256 = appbundle.digest(app)
    if parameters is not None:
        spec = _vector(parameters)
    elif isinstance(job_file.work, Task):
        spec = _measured(config, policy, job_file.work, app)
    else:
        spec = _fixed_spec(job_file, file)
    return derive_reading(job_file, spec, manifest), job_file.name, sha256


def _fixed_spec(job_file: JobFile, file: Path) -> VectorSpec:
    """Give the model's spec where the job file alone fixes it."""
    if isinstance(job_file.work, Trees):
        return model_spec(job_file.work)
    if isinstance(job_file.work, Statistics):
        return statistics_layout(job_file).model_spec
    if isinstance(job_file.work, FlowerApp):
        raise UsageError(
            f"{file}: how many parameters a Flower app trains is not in its job file: add"
            " --parameters N, as `tidegate job check` prints it"
        )
    return _vector(1)  # an evaluation sums metrics, whatever the model's length


def _vector(length: int) -> VectorSpec:
    if not 1 <= length <= MAX_LENGTH:
        raise UsageError(f"--parameters {length}: must lie in 1..{MAX_LENGTH}")
    return VectorSpec((TensorSpec("model", (length,)),))


def _measured(config: SiteConfig, policy: Policy, task: Task, app: bytes) -> VectorSpec:
    """Ask the app, confined, for the spec of its model."""
    if appbundle.digest(app).hex() not in policy.allowed_apps:
        raise UsageError(
            f"the app sha256:{appbundle.digest(app).hex()} is not in allowed_apps of policy.toml"
            f" ({APP_DIGEST}), so it is not run to see how many parameters its model has:"
            " add --parameters N, as `tidegate job check` prints it"
        )
    with tempfile.TemporaryDirectory(prefix="tidegate-plan-") as scratch:
        folder = Path(scratch) / "app"
        appbundle.unpack(app, folder)
        trainer = Trainer(
            TrainerJob(
                app_folder=folder,
                task_file=task.file,
                schema=Schema(()),
                spec=_vector(1),
                physical_batch=1,
                serves=MEASURE,
                blob_bytes=_MOST_SPEC_BYTES,
                seed=task.seed,
                base_models=base_models_of(task, config),
            ),
            trainer_limits(config),
            trainer_confinement(config),
        )
        return asyncio.run(_ask_spec(trainer))


async def _ask_spec(trainer: Trainer) -> VectorSpec:
    try:
        reply, _ = await trainer.request({"action": MEASURE})
    except TrainerFailure as error:
        raise UsageError(f"the app does not load: {error.detail}") from error
    finally:
        await trainer.stop()
    return VectorSpec.from_bytes(reply.blob)


def _audit_of_unknown(_key: AuditKey) -> AuditRecord | None:
    raise NotAuditedError(
        "rule require_leakage_audit: an audit is of a model, and --parameters names but a number;"
        " leave it out to see whether this job's stands"
    )


def _open_dataset(config: SiteConfig, reading: JobReading, scratch: Path) -> Dataset:
    """Open the job's data set as an offer does, but keep nothing of it."""
    name = reading.job_file.dataset
    declared = config.datasets[name]
    if isinstance(reading.job_file.work, FlowerApp):
        return rowless(name, declared.id)
    try:
        return load_dataset(name, declared.plug, config.path.parent, scratch)
    except UsageError as error:
        raise PeerError(
            Reason.POLICY, f"this site cannot open its data set {name!r} now: {error}"
        ) from error
