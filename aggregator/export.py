"""Release a model: named tensors as safetensors, with its provenance in the file's metadata."""

from importlib.metadata import version

from safetensors.numpy import save

from aggregator.jobs import Checkpoint, Job
from aggregator.progress import JobProgress
from privacy.pipeline import Mode
from tidegate.jobfile import RecordPrivacy


def export_model(
    job: Job,
    checkpoint: Checkpoint,
    progress: JobProgress,
    manifest_hash: bytes,
    transcript_hash: bytes,
) -> bytes:
    """Give the newest version of a job as a safetensors file.

    Epsilon is the largest that a site's ledger reported, so what the file states is an upper bound
    for every site.
    """
    privacy = job.file.privacy
    private = isinstance(privacy, RecordPrivacy)
    spent = max((tally.epsilon for tally in progress.sites.values()), default=0.0)
    metadata = {
        "format": "pt",
        "made_by": f"tidegate {version('tidegate')}",
        "job": job.job_id,
        "name": job.file.name,
        "state": str(job.state),
        "rounds": str(checkpoint.model.version),
        "version": str(checkpoint.model.version),
        "mode": str(privacy.mode),
        "unit": privacy.unit.kind,
        "epsilon": f"{spent:.6g}" if private else "inf",
        "delta_dp": (f"{privacy.delta_dp:.6g}" if isinstance(privacy, RecordPrivacy) else "0"),
        "noise_multiplier": (
            "0" if job.plan.mode is Mode.NONE else f"{job.plan.noise_multiplier:.6g}"
        ),
        "manifest_hash": manifest_hash.hex(),
        "transcript_hash": transcript_hash.hex(),
        "chain_head": checkpoint.model.chain_head.hex(),
        "app_sha256": job.app_sha256.hex(),
        "model_sha256": checkpoint.model.sha256.hex(),
    }
    return save(job.spec.unflatten(checkpoint.model.vector()), metadata)
