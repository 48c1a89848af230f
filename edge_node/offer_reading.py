"""Read a job as a site has to: on paper, by the sealed manifest, before anything of it runs.

An offer brings the encoding that the aggregator derived; it is derived anew and must be the same,
number by number. A job file on the administrator's desk brings none; the same functions derive it,
so that what `edge-node budget plan` says and what an offer is judged by are one reading.
"""

from dataclasses import dataclass, replace

from edge_node.rounds.contract import EvaluationTerms
from edge_node.store_schema import StoredJob
from privacy.accounting.events import Event
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan
from privacy.planning import (
    CohortRules,
    check_encoding,
    check_evaluation,
    derive_encoding,
    evaluation_encoding,
    step_event,
)
from privacy.secagg.encoding import hash_of
from privacy.spec import VectorSpec
from privacy.terms import PrivacyTerms
from tidegate.job_terms import privacy_terms, update_spec
from tidegate.jobfile import JobFile, NoPrivacy
from tidegate.manifest import Manifest


@dataclass(frozen=True)
class JobReading:
    """A job, read and checked on paper.

    Attributes:
        spec: Of the model version that is broadcast.
        plan: How updates are encoded.
        epsilon: Of the whole job at its own delta and best order.
        rules: The sealed manifest's.
        evaluation: How a Flower app's evaluations are encoded; None where the job has none.
    """

    job_file: JobFile
    spec: VectorSpec
    plan: EncodingPlan
    epsilon: float
    rules: CohortRules
    evaluation: EncodingPlan | None

    @property
    def terms(self) -> PrivacyTerms:
        """What the job file says about privacy."""
        return privacy_terms(self.job_file)

    @property
    def event(self) -> Event:
        """What one update is charged as."""
        return step_event(self.plan, self.rules)

    @property
    def whole(self) -> Event:
        """What all rounds are charged as, together."""
        return step_event(self.plan, self.rules, self.job_file.rounds)

    @property
    def evaluation_terms(self) -> EvaluationTerms | None:
        """How an evaluation is encoded, and what one is charged as."""
        if self.evaluation is None:
            return None
        return EvaluationTerms(self.evaluation, step_event(self.evaluation, self.rules))

    @property
    def exchange_events(self) -> tuple[Event, ...]:
        """What one exchange may be charged as: a training, or an evaluation."""
        evaluation = self.evaluation_terms
        return (self.event,) if evaluation is None else (self.event, evaluation.event)

    @property
    def schedules(self) -> tuple[tuple[Event, ...], ...]:
        """The lists of charges of which the job makes the dearest, each event with its count.

        A ServerApp asks for evaluations as it likes: then every round may be one.
        """
        if self.evaluation_terms is None:
            return ((self.whole,),)
        terms, evaluation = self.terms, self.evaluation_terms.event
        if terms.evaluation_rounds:
            return ((self.whole, _times(evaluation, terms.evaluation_rounds)),)
        return ((self.whole,), (_times(evaluation, terms.rounds),))

    @property
    def most_records(self) -> int:
        """The job's public bound on this site's records; 0 where it states none."""
        privacy = self.job_file.privacy
        return privacy.max_records if isinstance(privacy, NoPrivacy) else self.plan.n_max


def read_offer(offer: StoredJob, manifest: Manifest) -> JobReading:
    """Read an offer, every byte of which the aggregator chose.

    Raises:
        PeerError: It is not a job that this version can run, whatever is wrong with it.
    """
    try:
        job_file = JobFile.parse_received(offer.job_toml)
        spec = VectorSpec.from_bytes(offer.vector_spec)
        plan = EncodingPlan.from_bytes(offer.encoding)
        return _checked(job_file, spec, plan, offer.evaluation_encoding, manifest)
    except ArithmeticError as error:
        # Numbers may each be in range and their product not: a bad offer never stops the daemon.
        raise PeerError(Reason.MALFORMED, "the job's numbers are out of all proportion") from error


def derive_reading(job_file: JobFile, spec: VectorSpec, manifest: Manifest) -> JobReading:
    """Read a job file that nobody has offered yet, as its offer would be read.

    Args:
        job_file: The job.
        spec: Of its model; only the length matters to what it costs.
        manifest: As pinned.

    Raises:
        UsageError: No noise, scale or bit width fits it.
        PeerError: Its terms contradict each other, or the manifest.
    """
    terms = privacy_terms(job_file)
    rules = _rules_of(manifest)
    seed = hash_of("budget-plan")  # of the shared map, which costs nothing
    try:
        plan = derive_encoding(terms, update_spec(job_file, spec), rules, seed)
        evaluation = b""
        if terms.evaluation_length:
            evaluation = evaluation_encoding(terms, rules, plan, seed).to_bytes()
        return _checked(job_file, spec, plan, evaluation, manifest)
    except ArithmeticError as error:
        raise UsageError("the job's numbers are out of all proportion") from error


def _checked(
    job_file: JobFile, spec: VectorSpec, plan: EncodingPlan, evaluation: bytes, manifest: Manifest
) -> JobReading:
    """Derive the plan anew from job and manifest; it must be the one offered, number by number."""
    rules = _rules_of(manifest)
    terms = privacy_terms(job_file)
    epsilon = check_encoding(plan, terms, update_spec(job_file, spec), rules)
    evaluation_plan = None
    if bool(evaluation) != bool(terms.evaluation_length):
        raise PeerError(
            Reason.MALFORMED, "an offer has an evaluation encoding exactly where the job evaluates"
        )
    if evaluation:
        evaluation_plan = EncodingPlan.from_bytes(evaluation)
        check_evaluation(evaluation_plan, terms, rules, plan)
    lengths = (each.length for each in (plan, evaluation_plan) if each is not None)
    if max(lengths) > manifest.limits.max_vector_length:
        raise PeerError(Reason.TOO_LARGE, "the vector is longer than the manifest allows")
    return JobReading(job_file, spec, plan, epsilon, rules, evaluation_plan)


def _rules_of(manifest: Manifest) -> CohortRules:
    return CohortRules(manifest.colluders, manifest.min_survivors, len(manifest.members))


def _times(event: Event, count: int) -> Event:
    return replace(event, steps=event.steps * count)
