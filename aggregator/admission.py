"""Take a submitted job, or say which rule it breaks: all that can be checked without its code.

The sites judge a job again by their own policies. What is refused here could never train under
the sealed manifest or within this aggregator's limits, so the operator hears of it at once.
"""

import secrets

from aggregator.broadcast import ModelVersion, first_version
from aggregator.cohort import cohort_rule
from aggregator.config import Limits
from aggregator.jobs import Job
from privacy.announcement import announced_bytes
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan
from privacy.planning import CohortRules, check_encoding, derive_encoding, evaluation_encoding
from privacy.ring import packed_length
from privacy.secagg.encoding import hash_of
from privacy.spec import VectorSpec
from tidegate import appbundle
from tidegate.broadcast import MAX_ANNOUNCEMENT_BYTES
from tidegate.convert.bounds import MAX_ROUND
from tidegate.flower_project import FILE as PROJECT_FILE
from tidegate.flower_project import read_project
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.jobfile import SERVER_APP, FlowerApp, JobFile
from tidegate.manifest import Manifest
from tidegate.requests import SubmitHeader

_JOB_ID_BYTES = 4
_FLOAT32_BYTES = 4


def admit(
    header: SubmitHeader, app: bytes, model: bytes, manifest: Manifest, limits: Limits, now_s: float
) -> tuple[Job, ModelVersion]:
    """Check a submission and give the job with its version 0.

    Calibrating the noise takes a while: not to be called on the event loop.

    Args:
        header: As received; sizes and digests of what follows agree with it.
        app: The app bundle.
        model: The initial model's broadcast bytes.
        manifest: The sealed one.
        limits: This aggregator's own.
        now_s: Unix seconds.

    Raises:
        PeerError: What was sent is malformed, or breaks the manifest's or this aggregator's limits.
        UsageError: The job cannot run; says which number to change.
    """
    file = JobFile.parse_received(header.job_toml)
    spec = VectorSpec.from_bytes(header.vector_spec)
    _check_app(file, app, spec, limits)
    if len(model) != _FLOAT32_BYTES * spec.length:
        raise PeerError(
            Reason.WRONG_SHAPE,
            f"the model has {len(model)} bytes, its spec says {_FLOAT32_BYTES * spec.length}",
        )
    terms = privacy_terms(file)
    _check_cohort(file, manifest)
    job_id = _new_job_id(file.name)
    rules = CohortRules(manifest.colluders, manifest.min_survivors, len(manifest.members))
    try:
        summed = update_spec(file, spec)
        plan = derive_encoding(terms, summed, rules, hash_of("job-map", job_id))
        # Every site would refuse it for this: the operator hears so at once.
        check_encoding(plan, terms, summed, rules)
        evaluation = b""
        if terms.evaluation_length:
            seed = hash_of("evaluation-map", job_id)
            evaluation = evaluation_encoding(terms, rules, plan, seed).to_bytes()
    except ArithmeticError as error:  # numbers may each be in range and their product not
        raise PeerError(Reason.MALFORMED, "the job's numbers are out of all proportion") from error
    _check_sizes(plan, manifest, limits)
    job = Job(
        job_id=job_id,
        job_toml=header.job_toml,
        vector_spec=header.vector_spec,
        encoding=plan.to_bytes(),
        evaluation_encoding=evaluation,
        app=app,
        submitted_at_s=now_s,
    )
    return job, first_version(job_id, model)


def _check_app(file: JobFile, app: bytes, spec: VectorSpec, limits: Limits) -> None:
    """Refuse a bundle that does not hold what the job file runs."""
    task, work = file.task, file.work
    if task is not None and task.file not in appbundle.read(app):
        raise PeerError(Reason.MALFORMED, f"the app holds no {task.file} ([task] file)")
    if not file.runs_app and app != appbundle.EMPTY:
        raise PeerError(Reason.MALFORMED, "such a job runs no app, so it must come without one")
    if not isinstance(work, FlowerApp):
        return
    project = read_project(appbundle.read(app).get(PROJECT_FILE, b""))
    project.run_config(work.run_config)
    if work.evaluate_every and file.rounds + file.rounds // work.evaluate_every > MAX_ROUND:
        raise UsageError(f"trainings and evaluations are more than {MAX_ROUND} together")
    if work.driver != SERVER_APP:
        return
    if not project.server_app:
        raise UsageError(
            f"{PROJECT_FILE}: [tool.flwr.app.components] serverapp is missing, and the job is to be"
            " driven by it; name it, or state driver = 'strategy' and a [strategy] in job.toml"
        )
    kept = file.rounds * _FLOAT32_BYTES * spec.length
    if kept > limits.max_replay_bytes:
        raise UsageError(
            f"the replies to {file.rounds} calls of the ServerApp take {kept} bytes while the job"
            " runs, so that it can be re-run after a crash; aggregator.toml allows [limits]"
            f" max_replay_bytes = {limits.max_replay_bytes}: raise that, lower [job] rounds, or"
            " let a [strategy] drive the job, which keeps the newest state only"
        )


def _check_cohort(file: JobFile, manifest: Manifest) -> None:
    """Refuse a target that no cohort of this manifest can reach."""
    target = cohort_rule(file, manifest).target_sites
    if target > len(manifest.members):
        raise UsageError(
            f"[round] target_sites = {target} is more than the"
            f" {len(manifest.members)} members of the sealed manifest: lower it"
        )


def _check_sizes(plan: EncodingPlan, manifest: Manifest, limits: Limits) -> None:
    most = manifest.limits.max_vector_length
    if plan.length > most:
        raise PeerError(
            Reason.TOO_LARGE, f"the vector has {plan.length} integers, the manifest allows {most}"
        )
    announced = max(announced_bytes(plan, version) for version in (0, 1))
    if announced > MAX_ANNOUNCEMENT_BYTES:
        raise PeerError(
            Reason.TOO_LARGE,
            f"the bases of a version have {announced} bytes, a train request carries"
            f" {MAX_ANNOUNCEMENT_BYTES} at most: lower [compression] rank, or raise its target",
        )
    upload = packed_length(plan.length, plan.bits)
    if upload > limits.max_upload_bytes:
        raise PeerError(
            Reason.TOO_LARGE,
            f"each upload has {upload} bytes: raise [limits] max_upload_bytes in"
            f" aggregator.toml ({limits.max_upload_bytes}), or compress more",
        )


def _new_job_id(name: str) -> str:
    slug = "".join(c if c.isalnum() and c.isascii() else "-" for c in name.lower())
    return f"{slug.strip('-')[:40] or 'job'}-{secrets.token_hex(_JOB_ID_BYTES)}"
