"""Read a job file's numbers into the terms from which both ends derive the encoding plan.

One function for aggregator and sites: were there two, a job could mean two noises.
"""

from privacy.pipeline import Mode
from privacy.planning import PrivacyTerms
from privacy.quantise import Rounding
from tidegate.jobfile import JobFile, RecordPrivacy


def privacy_terms(job: JobFile) -> PrivacyTerms:
    """Give the privacy terms of a valid job file."""
    privacy = job.privacy
    by_record = isinstance(privacy, RecordPrivacy)
    return PrivacyTerms(
        mode=Mode(privacy.mode),
        rounds=job.rounds,
        epsilon=privacy.epsilon if by_record else 0.0,
        delta_dp=privacy.delta_dp if by_record else 0.0,
        sampling_rate=privacy.sampling_rate if by_record else 1.0,
        clipping_norm=privacy.clipping_norm,
        metrics_norm=privacy.metrics_norm,
        metrics_length=job.metrics_length,
        expected_batch_size=float(privacy.expected_batch_size) if by_record else 0.0,
        max_records=privacy.max_records if by_record else 0,
        rounding=privacy.rounding if by_record else Rounding.PLAIN,
        noise_multiplier=privacy.noise_multiplier if by_record else None,
        map_kind=job.compression.map,
        keep=job.compression.keep,
        signal_range=job.compression.range,
    )
