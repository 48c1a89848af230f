"""Derive every public number of a job's encoding, and check a plan that somebody else derived.

The aggregator derives the plan when a job is submitted; each site derives it again from the job
file and the sealed manifest and takes part only if both are the same (privacy.md, D-REC step 6).
How a plan of each mode follows from its noise multiplier stands in `privacy.encodings`; here the
multiplier is found, epsilon is counted, and what cannot protect or cannot learn is refused.
"""

import math
from dataclasses import fields, replace

from privacy.accounting.accountant import ORDERS, Accountant
from privacy.accounting.calibration import Target, least_noise_multiplier
from privacy.accounting.cross_site import PersonAccountant
from privacy.accounting.events import (
    DEFAULT_SAMPLER_TV,
    Event,
    GaussianRecordEvent,
    NoDpEvent,
    SkellamRecordEvent,
    Unit,
)
from privacy.accounting.sensitivity import l1_sensitivity
from privacy.announcement import encoding_for_version
from privacy.compression_target import resolve
from privacy.encodings import encoding_at, evaluation_spec, evaluation_terms, event_at
from privacy.errors import PeerError, Reason, UsageError
from privacy.pipeline import EncodingPlan, Mode
from privacy.spec import VectorSpec
from privacy.terms import CohortRules, PrivacyTerms

__all__ = [
    "CohortRules",
    "PrivacyTerms",
    "check_encoding",
    "check_evaluation",
    "derive_encoding",
    "encoding_for_version",
    "evaluation_encoding",
    "evaluation_spec",
    "job_epsilon",
    "person_epsilon",
    "step_event",
]

MIN_SIGNAL = 0.1
"""Least predicted signal over noise, n/(z*sqrt(d)), at which mode ``site`` is worth a round."""

_EPSILON_SLACK = 1e-6  # relative: two libms may differ in the last digits of a logarithm


def derive_encoding(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes
) -> EncodingPlan:
    """Derive a job's encoding plan; calibrates the noise where the job states none.

    Args:
        terms: The job's terms.
        spec: The model's vector.
        rules: The sealed manifest's.
        map_seed: 32 public bytes; each round's map seed derives from it and the base version.

    Raises:
        UsageError: No noise, scale or bit width fits, or mode ``site`` would drown in its noise;
            says which number to change.
        PeerError: The terms contradict each other.
    """
    terms = resolve(terms, spec, rules)
    z = 0.0 if terms.mode is Mode.NONE else terms.noise_multiplier
    if z is None:
        z = _calibrated(terms, spec, rules, map_seed)
    plan = encoding_at(terms, spec, rules, map_seed, z)
    if plan.mode is Mode.SITE:
        _check_signal(plan, rules.members // terms.groups)
    return plan


def evaluation_encoding(
    terms: PrivacyTerms, rules: CohortRules, plan: EncodingPlan, map_seed: bytes
) -> EncodingPlan:
    """Derive the plan of a Flower app's evaluations: a vector of ``evaluation_length`` metrics.

    Its gradient part is the metrics, clipped to ``metrics_norm`` (1 where the job has none beside
    its training), with the noise multiplier of the training plan. In record-local nothing is added
    here: the app declares that its metrics are noised like a round of its training.

    Args:
        terms: The job's terms.
        rules: The sealed manifest's.
        plan: The job's training plan.
        map_seed: 32 public bytes; the map is the identity.

    Raises:
        UsageError: The job has no evaluations, or no plan for them exists.
        PeerError: The terms contradict each other.
    """
    if not terms.evaluation_length or terms.mode is Mode.RECORD_DISTRIBUTED:
        raise UsageError(f"a job of mode {terms.mode} without evaluation metrics has no such plan")
    spec = evaluation_spec(terms.evaluation_length)
    return encoding_at(evaluation_terms(terms), spec, rules, map_seed, plan.noise_multiplier)


def check_encoding(
    plan: EncodingPlan, terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules
) -> float:
    """Check a plan from the wire against the job and the manifest, number by number.

    A noise multiplier that the job does not state is taken from the plan; everything else is
    derived anew and must be the same; then epsilon of all rounds must not exceed the job's.

    Returns:
        Epsilon of the whole job at ``terms.delta_dp``; infinite in mode ``none``.

    Raises:
        PeerError: POLICY: a number differs from the derived one (named), or epsilon is above the
            job's.
    """
    stated = terms
    if terms.noise_multiplier is None:
        stated = replace(terms, noise_multiplier=plan.noise_multiplier)
    try:
        own = derive_encoding(stated, spec, rules, plan.map_seed)
    except UsageError as error:
        raise PeerError(Reason.POLICY, f"the plan cannot be derived here: {error}") from error
    _compare(plan, own)
    epsilon = job_epsilon(plan, terms, rules)
    if terms.mode is not Mode.NONE and not epsilon <= terms.epsilon * (1 + _EPSILON_SLACK):
        raise PeerError(
            Reason.POLICY,
            f"{terms.rounds} rounds of this plan cost epsilon {epsilon:.4f},"
            f" the job states {terms.epsilon}",
        )
    return epsilon


def check_evaluation(
    evaluation: EncodingPlan, terms: PrivacyTerms, rules: CohortRules, plan: EncodingPlan
) -> None:
    """Check an evaluation plan from the wire: it must be the one derived here.

    Args:
        evaluation: As offered.
        terms: The job's terms.
        rules: The sealed manifest's.
        plan: The job's training plan, checked before.

    Raises:
        PeerError: POLICY: it differs, or no such plan exists.
    """
    try:
        own = evaluation_encoding(terms, rules, plan, evaluation.map_seed)
    except UsageError as error:
        raise PeerError(Reason.POLICY, f"the plan cannot be derived here: {error}") from error
    _compare(evaluation, own)


def step_event(plan: EncodingPlan, rules: CohortRules, steps: int = 1) -> Event:
    """Give the ledger event of one (or several) of this plan's exchanges.

    In record-local an exchange is all the local steps behind it. Elsewhere it is the sum that is
    released, and the variance counted is V_site * m_h: what the fewest honest survivors add, never
    that of all.
    """
    if plan.mode is Mode.NONE:
        return NoDpEvent(steps)
    if plan.local is not None:
        return GaussianRecordEvent(
            q=plan.sampling_rate,
            z=plan.noise_multiplier,
            steps=steps * plan.local.steps,
            d=plan.gradient_length + plan.metrics_length,
            sampler_tv=DEFAULT_SAMPLER_TV,
            unit=_unit(plan),
        )
    return SkellamRecordEvent(
        q=plan.sampling_rate,
        V=float(plan.noise_variance) * rules.honest_sites,
        D1=l1_sensitivity(plan.sensitivity, plan.longest),
        D2=plan.sensitivity,
        d=plan.longest,
        n_sites=rules.members,
        steps=steps,
        unit=_unit(plan),
    )


def job_epsilon(plan: EncodingPlan, terms: PrivacyTerms, rules: CohortRules) -> float:
    """Give epsilon of all exchanges at the job's delta, at the best order; infinite without DP.

    Training and evaluation are both counted, for the job's own privacy unit.
    """
    if plan.mode is Mode.NONE:
        return math.inf
    return _schedule_epsilon(terms, *_exchange_events(plan, terms, rules))


def person_epsilon(
    plan: EncodingPlan, terms: PrivacyTerms, rules: CohortRules, sites: int, repeats: int = 0
) -> float:
    """Give epsilon of all exchanges for a person whose data lie in several sites.

    Args:
        plan: The job's.
        terms: The job's.
        rules: The sealed manifest's.
        sites: In how many sites, k: in each with one of the job's units, a record or a user.
        repeats: Attempts that failed, each of which may have been charged beside the plan.

    Raises:
        UsageError: There cannot be so many sites.
    """
    if plan.mode is Mode.NONE:
        return math.inf
    train, evaluation = _exchange_events(plan, terms, rules)
    accountant = PersonAccountant(sites)
    _compose_schedule(accountant, terms, train, evaluation)
    if repeats:
        kinds = [train] if evaluation is None else [train, evaluation]
        accountant.compose_any([_times(event, repeats) for event in kinds])
    return accountant.get_epsilon(terms.delta_dp)


def _exchange_events(
    plan: EncodingPlan, terms: PrivacyTerms, rules: CohortRules
) -> tuple[Event, Event | None]:
    """Give what one training exchange costs, and one evaluation where the job has any."""
    train = step_event(plan, rules)
    if not terms.evaluation_length:
        return train, None
    return train, step_event(evaluation_encoding(terms, rules, plan, plan.map_seed), rules)


def _calibrated(
    terms: PrivacyTerms, spec: VectorSpec, rules: CohortRules, map_seed: bytes
) -> float:
    """Find the least noise multiplier that serves training and evaluation alike."""

    def reached(z: float) -> float:
        evaluation = None
        if terms.evaluation_length:
            metrics = evaluation_spec(terms.evaluation_length)
            evaluation = event_at(evaluation_terms(terms), metrics, rules, map_seed, z)
        train = event_at(terms, spec, rules, map_seed, z)
        return _schedule_epsilon(terms, train, evaluation)

    return least_noise_multiplier(Target(terms.epsilon, terms.delta_dp), reached)


def _schedule_epsilon(terms: PrivacyTerms, train: Event, evaluation: Event | None) -> float:
    """Give epsilon of all of a job's exchanges, each of which costs one of these events."""
    accountant = Accountant(ORDERS, terms.protected, max(1, terms.max_rows))
    _compose_schedule(accountant, terms, train, evaluation)
    return accountant.get_epsilon(terms.delta_dp)


def _compose_schedule(
    accountant: Accountant, terms: PrivacyTerms, train: Event, evaluation: Event | None
) -> None:
    if evaluation is None:
        accountant.compose(_times(train, terms.rounds))
    elif terms.evaluation_rounds:
        accountant.compose(_times(train, terms.rounds))
        accountant.compose(_times(evaluation, terms.evaluation_rounds))
    else:
        accountant.compose_any([_times(event, terms.rounds) for event in (train, evaluation)])


def _times(event: Event, count: int) -> Event:
    return replace(event, steps=event.steps * count)


def _check_signal(plan: EncodingPlan, sites: int) -> None:
    """Refuse mode ``site`` where the noise would hide what the sites of one sum agree on.

    Raises:
        UsageError: n/(z*sqrt(d)) is not above `MIN_SIGNAL`.
    """
    signal = sites / (plan.noise_multiplier * math.sqrt(plan.length))
    if not signal > MIN_SIGNAL:
        least = math.floor(MIN_SIGNAL * plan.noise_multiplier * math.sqrt(plan.length)) + 1
        most = (sites / (MIN_SIGNAL * plan.noise_multiplier)) ** 2
        raise UsageError(
            f"mode 'site' would learn nothing: with n = {sites} sites in a sum, a noise multiplier"
            f" of z = {plan.noise_multiplier:.4g} and d = {plan.length} coordinates the signal is"
            f" n/(z*sqrt(d)) = {signal:.3g} of the noise, and must be above {MIN_SIGNAL}. Take at"
            f" least {least} sites, fewer than {most:.0f} coordinates ([compression] keep, or an"
            " adapter instead of the whole model), a larger epsilon or fewer rounds; or protect"
            " records instead: mode 'record-distributed'"
        )


def _compare(plan: EncodingPlan, own: EncodingPlan) -> None:
    """Refuse a plan that differs from the one derived here, naming the number.

    Raises:
        PeerError: POLICY.
    """
    if own.to_bytes() == plan.to_bytes():
        return
    for field in fields(own):
        said, derived = getattr(plan, field.name), getattr(own, field.name)
        if repr(said) != repr(derived):  # -0.0 is no other number than 0.0, and other bytes
            raise PeerError(
                Reason.POLICY,
                f"the plan says {field.name} = {said!r}, the job and the manifest give {derived!r}",
            )
    raise PeerError(Reason.POLICY, "the plan is not the one that the job and the manifest give")


def _unit(plan: EncodingPlan) -> Unit:
    """Give a plan's unit as the accountant knows it; mode ``none`` has none."""
    if plan.mode is Mode.SITE:
        return "site"
    return "user" if plan.unit == "user" else "record"
