"""Release a model: named tensors as safetensors, with its provenance in the file's metadata."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from safetensors.numpy import save

from aggregator.checkpoints import Checkpoint
from aggregator.jobs import Job
from aggregator.person import state_person_epsilon
from aggregator.progress import JobProgress
from aggregator.registry import SealedManifest
from privacy.accounting.chain import TIER_CONDITIONAL, TIER_ENFORCED
from privacy.pipeline import Mode
from tidegate import provenance
from tidegate.jobfile import NoPrivacy
from tidegate.keys import EcdsaSigner, load_key, read_private


@dataclass(frozen=True)
class RunFacts:
    """What a model came out of: the sealed manifest and the transcript hash of its last sum."""

    sealed: SealedManifest | None
    transcript: bytes


@dataclass(frozen=True)
class Signer:
    """Who states a model's provenance.

    Attributes:
        certificate_pem: The aggregator's own, issued by the consortium's CA.
        sign: Signs a message with its key.
    """

    certificate_pem: bytes
    sign: Callable[[bytes], bytes]


def signer_of(folder: Path) -> Signer:
    """Load the aggregator's TLS key and certificate as the signer of its models.

    Raises:
        UsageError: A file is missing or open to others.
    """
    key = EcdsaSigner(load_key(read_private(folder / "tls.key")))
    return Signer(read_private(folder / "tls.pem"), key.sign)


def export_model(
    job: Job,
    checkpoint: Checkpoint,
    progress: JobProgress,
    run: RunFacts,
    signer: Signer,
) -> bytes:
    """Give the newest version of a job as a safetensors file.

    Epsilon is the largest that a site's ledger reported, so what the file states is an upper bound
    for every site. What the job alone costs a person in several sites stands beside it.
    """
    manifest = None if run.sealed is None else run.sealed.manifest
    person = state_person_epsilon(job, manifest, progress.attempts_repeated)
    privacy = job.file.privacy
    private = not isinstance(privacy, NoPrivacy)
    spent = max((tally.epsilon for tally in progress.sites.values()), default=0.0)
    facts = {
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
        "delta_dp": "0" if isinstance(privacy, NoPrivacy) else f"{privacy.delta_dp:.6g}",
        "person_sites": str(person.sites),
        "job_epsilon_one_site": f"{person.one_site:.6g}" if private else "inf",
        "job_epsilon_person": f"{person.all_sites:.6g}" if private else "inf",
        "tier": tier_of(job),
        "noise_multiplier": (
            "0" if job.plan.mode is Mode.NONE else f"{job.plan.noise_multiplier:.6g}"
        ),
        "manifest_hash": (run.sealed.manifest_hash if run.sealed else b"").hex(),
        "transcript_hash": run.transcript.hex(),
        "chain_head": checkpoint.model.chain_head.hex(),
        "app_sha256": job.app_sha256.hex(),
        provenance.DIGEST: checkpoint.model.sha256.hex(),
        provenance.SPEC: job.vector_spec.decode("ascii"),
    }
    sealed = provenance.seal(facts, signer.certificate_pem, signer.sign)
    return save(job.spec.unflatten(checkpoint.model.vector()), sealed)


def tier_of(job: Job) -> str:
    """Say who is trusted with the clip (privacy.md), in the words that every surface uses."""
    if isinstance(job.file.privacy, NoPrivacy):
        return "none"
    if job.file.declares_dp:
        return f"{TIER_CONDITIONAL}{job.app_sha256.hex()}"
    return TIER_ENFORCED
