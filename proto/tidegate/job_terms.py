"""Read a job file's numbers into the terms from which both ends derive the encoding plan.

One function for aggregator and sites: were there two, a job could mean two noises.
"""

from dataclasses import replace

from privacy.errors import UsageError
from privacy.pipeline import Mode
from privacy.planning import PrivacyTerms
from privacy.quantise import Rounding
from privacy.spec import VectorSpec
from tidegate.jobfile import FlowerApp, JobFile, RecordPrivacy, Task


def update_spec(job: JobFile, model: VectorSpec) -> VectorSpec:
    """Describe the vector that sites sum: the model's own for training, else what is counted.

    Args:
        job: A valid job file.
        model: The spec of the model version that is broadcast.
    """
    if isinstance(job.work, Task | FlowerApp):
        return model
    kind = type(job.work).__name__
    raise UsageError(f"this version cannot run {kind} yet")


def privacy_terms(job: JobFile) -> PrivacyTerms:
    """Give the privacy terms of a valid job file."""
    privacy = job.privacy
    plain = PrivacyTerms(
        mode=Mode(privacy.mode),
        rounds=job.rounds,
        epsilon=0.0,
        delta_dp=0.0,
        sampling_rate=1.0,
        clipping_norm=privacy.clipping_norm,
        metrics_norm=privacy.metrics_norm,
        metrics_length=job.metrics_length,
        expected_batch_size=0.0,
        max_records=0,
        rounding=Rounding.PLAIN,
        noise_multiplier=None,
        map_kind=job.compression.map,
        keep=job.compression.keep,
        signal_range=job.compression.range,
    )
    if isinstance(privacy, RecordPrivacy):
        return replace(
            plain,
            epsilon=privacy.epsilon,
            delta_dp=privacy.delta_dp,
            sampling_rate=privacy.sampling_rate,
            expected_batch_size=float(privacy.expected_batch_size),
            max_records=privacy.max_records,
            rounding=privacy.rounding,
            noise_multiplier=privacy.noise_multiplier,
        )
    return plain
