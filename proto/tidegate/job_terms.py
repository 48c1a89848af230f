"""Read a job file's numbers into the terms from which both ends derive the encoding plan.

One function for aggregator and sites: were there two, a job could mean two noises.
"""

from dataclasses import replace

from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import Mode
from privacy.planning import PrivacyTerms
from privacy.quantise import Rounding
from privacy.spec import VectorSpec
from tidegate.evaluation_layout import evaluation_norm, evaluation_spec
from tidegate.jobfile import (
    SERVER_APP,
    Evaluation,
    FlowerApp,
    JobFile,
    LocalPrivacy,
    NoPrivacy,
    RecordPrivacy,
    SitePrivacy,
    Statistics,
    Task,
    Trees,
)
from tidegate.statistics_layout import StatisticsLayout
from tidegate.tree_layout import TreeLayout
from tidegate.tree_model import model_spec


def update_spec(job: JobFile, model: VectorSpec) -> VectorSpec:
    """Describe the vector that sites sum: the model's own for training, else what is counted.

    Args:
        job: A valid job file.
        model: The spec of the model version that is broadcast.

    Raises:
        PeerError: WRONG_SHAPE: such a job has another model.
        UsageError: This version cannot run such a job.
    """
    if isinstance(job.work, Task | FlowerApp):
        return model
    if isinstance(job.work, Evaluation):
        return evaluation_spec(job.metrics)
    if isinstance(job.work, Statistics):
        layout = statistics_layout(job)
        if model != layout.model_spec:
            raise PeerError(Reason.WRONG_SHAPE, "the model is not the sums of the job's columns")
        return layout.spec
    if isinstance(job.work, Trees):
        if model != model_spec(job.work):
            raise PeerError(Reason.WRONG_SHAPE, "the model is not the trees of the job")
        return TreeLayout(job.work).spec
    kind = type(job.work).__name__
    raise UsageError(f"this version cannot run {kind} yet")


def statistics_layout(job: JobFile) -> StatisticsLayout:
    """Give the layout of a statistics job's sums.

    Raises:
        UsageError: The job is another one.
    """
    if not isinstance(job.work, Statistics) or job.schema is None:
        raise UsageError("only a [statistics] job has statistics")
    return StatisticsLayout(job.schema, job.work.bins)


def privacy_terms(job: JobFile) -> PrivacyTerms:
    """Give the privacy terms of a valid job file."""
    if isinstance(job.work, Statistics):
        return counted_terms(_terms(job), job, statistics_layout(job).norm, 1.0)
    if isinstance(job.work, Trees):
        return counted_terms(_terms(job), job, TreeLayout(job.work).norm, 1.0)
    if isinstance(job.work, Evaluation):
        terms = replace(_terms(job), metrics_length=0)  # they are the vector, nothing beside it
        return counted_terms(terms, job, evaluation_norm(job.metrics), 1.0)
    return _terms(job)


def most_of_site(job: JobFile) -> float:
    """Give the most that one coordinate of a site's counts can be; 0 for work that counts nothing.

    Every record adds 1 to a coordinate at most.
    """
    if not isinstance(job.work, Statistics | Trees | Evaluation):
        return 0.0
    privacy = job.privacy
    return float(privacy.max_records) if isinstance(privacy, NoPrivacy | RecordPrivacy) else 0.0


def counted_terms(terms: PrivacyTerms, job: JobFile, norm: float, most: float) -> PrivacyTerms:
    """Complete the terms of work that sums records as they are, by its public bounds.

    Args:
        terms: What the job file itself says.
        job: The job file.
        norm: The most that one record moves the vector, in L2.
        most: The most that one record adds to one coordinate.
    """
    privacy = job.privacy
    if isinstance(privacy, NoPrivacy):  # the plan's clip is then the bound of a site's whole sum
        return replace(terms, clipping_norm=privacy.max_records * most)
    if not isinstance(privacy, RecordPrivacy):
        raise UsageError("records are summed in modes 'record-distributed' and 'none' only")
    return replace(terms, clipping_norm=norm, site_range=privacy.max_records * most)


def _terms(job: JobFile) -> PrivacyTerms:
    privacy = job.privacy
    evaluation_rounds, evaluation_length = _evaluations(job)
    terms = PrivacyTerms(
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
        evaluation_rounds=evaluation_rounds,
        evaluation_length=evaluation_length,
        groups=1 if job.robust is None else job.robust.groups,
        rank=job.compression.rank,
        bits=job.compression.bits,
        decay=job.compression.residual,
        target=job.compression.target,
    )
    if isinstance(privacy, NoPrivacy):
        return terms
    terms = replace(
        terms,
        epsilon=privacy.epsilon,
        delta_dp=privacy.delta_dp,
        noise_multiplier=privacy.noise_multiplier,
    )
    if not isinstance(privacy, LocalPrivacy) and privacy.remove_surplus_noise:
        terms = replace(terms, surplus_up_to=job.round.target_sites // terms.groups)
    if isinstance(privacy, SitePrivacy):
        return replace(terms, rounding=Rounding.CONDITIONAL)
    terms = replace(
        terms,
        sampling_rate=privacy.sampling_rate,
        expected_batch_size=float(privacy.expected_batch_size),
        max_records=privacy.max_records,
        unit="user" if privacy.unit.kind == "user" else "record",
        max_rows=privacy.unit.max_rows,
    )
    if isinstance(privacy, RecordPrivacy):
        return replace(terms, rounding=privacy.rounding)
    steps = 1 if job.local is None else job.local.steps
    return replace(terms, local_steps=steps, update_norm=privacy.update_norm)


def _evaluations(job: JobFile) -> tuple[int, int]:
    """Give how often a Flower app evaluates beside its rounds, and the length of its metrics.

    A ServerApp asks for evaluations as it likes: then any of the rounds may be one.
    """
    work = job.work
    if not isinstance(work, FlowerApp):
        return 0, 0
    if work.driver == SERVER_APP:
        return 0, job.evaluation_metrics.length
    if not work.evaluate_every or work.evaluate_every > job.rounds:
        return 0, 0
    return job.rounds // work.evaluate_every, job.evaluation_metrics.length
