"""Read a job file's numbers into the terms from which both ends derive the encoding plan.

One function for aggregator and sites: were there two, a job could mean two noises.
"""

from dataclasses import replace

from privacy.pipeline import Mode
from privacy.planning import PrivacyTerms
from privacy.quantise import Rounding
from tidegate.jobfile import JobFile, NoPrivacy


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
    if isinstance(privacy, NoPrivacy):
        return plain
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
