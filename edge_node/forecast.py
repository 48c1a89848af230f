"""Say what a job would cost this site before it is accepted: `edge-node budget plan`.

Nothing is computed here a second time: the job is read as its offer is (`offer_reading`), judged as
its offer is (`acceptance`, `budget.ledger_for`, `budget.check_fits`), and its charges are added to
the tallies of the ledger by the ledger's own arithmetic. Nothing is written anywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from edge_node.acceptance import AskedJob, AuditOf, check_audit, check_records, judge_job
from edge_node.budget import charge_tier, check_fits, ledger_for
from edge_node.config import SiteConfig
from edge_node.data import Dataset
from edge_node.offer_reading import JobReading
from edge_node.policy import Policy
from privacy.accounting.budget import Tally
from privacy.accounting.chain import LedgerEntry
from privacy.accounting.events import Event
from privacy.accounting.ledger import LedgerState
from privacy.errors import PeerError
from privacy.planning import person_epsilon
from tidegate.manifest import Manifest


@dataclass(frozen=True)
class BudgetForecast:
    """What a job does to one budget of its data set, at the budget's order and delta.

    Attributes:
        alpha_is_new: The budget has no ledger yet; its first job, this one, fixes alpha.
        spent: Epsilon now.
        added: Epsilon that the job's planned charges add.
        after: Epsilon after them, whether or not the budget allows it.
        left: Epsilon left then; 0 where they do not fit.
        after_repeat: Epsilon if one of its exchanges is charged twice.
        spare_repeats: How many more exchanges still fit after the job: attempts that fail after
            their charge and are charged anew.
        fits: All planned charges fit.
        exchanges_that_fit: How many of the job's rounds fit from now on.
        jobs_that_fit: How many such jobs fit from now on.
        used_share: Share of all that the budget can carry that is used now.
        used_share_after: The same after the job.
    """

    dataset_id: str
    unit: str
    alpha: int
    alpha_is_new: bool
    epsilon: float
    delta_dp: float
    spent: float
    added: float
    after: float
    left: float
    after_repeat: float
    spare_repeats: int
    fits: bool
    exchanges_that_fit: int
    jobs_that_fit: int
    used_share: float
    used_share_after: float


@dataclass(frozen=True)
class JobForecast:
    """What a job would cost, and whether this site would accept it.

    Attributes:
        job: Its id, or the name in its file.
        dataset: As the job names it.
        tier: Who is trusted with the clip, in the words of the ledger.
        exchanges: How many charges the job plans.
        charged: How many of them the ledger has already (a job that runs here).
        job_epsilon: Of the whole job at its own delta and best order, which policy judges.
        delta_dp: The job's; 0 without differential privacy.
        refusal: Why the site would refuse it; empty if it would accept it.
        person_sites: In how many sites one person's data may lie, by the manifest.
        epsilon_one_site: Of the job for a person in one site.
        epsilon_person: The same for one in ``person_sites``.
        budgets: Each budget of the data set; none where there is no ledger to charge.
        local_steps: Steps of a round: all of them charged, whether or not they fit into a time box;
            0 where a round is one sum of records.
        time_box_s: How long the site trains in a round; None where it takes all steps.
    """

    job: str
    dataset: str
    mode: str
    tier: str
    noise_multiplier: float
    exchanges: int
    charged: int
    job_epsilon: float
    delta_dp: float
    refusal: str
    person_sites: int
    epsilon_one_site: float
    epsilon_person: float
    budgets: tuple[BudgetForecast, ...]
    local_steps: int = 0
    time_box_s: float | None = None

    @property
    def is_accepted(self) -> bool:
        """Say whether the site would accept the job."""
        return not self.refusal


@dataclass(frozen=True)
class SiteState:
    """What a forecast looks at.

    Attributes:
        asked: What the job was asked for by: its id or a path, which an audit takes as well.
        ledgers: By data-set id, as verified.
        entries: By data-set id, oldest first.
        open_dataset: Opens a declared data set by name; raises as an offer's does.
        audit_of: Gives the newest leakage audit of what a job sends.
        now_s: Unix seconds: audits grow old.
    """

    asked: str
    config: SiteConfig
    policy: Policy
    manifest: Manifest
    ledgers: dict[str, LedgerState]
    entries: dict[str, Sequence[LedgerEntry]]
    open_dataset: Callable[[JobReading], Dataset]
    audit_of: AuditOf
    now_s: float


def forecast(site: SiteState, reading: JobReading, job: str, app_sha256: bytes) -> JobForecast:
    """Say what a job would cost and whether it would be accepted.

    Args:
        site: This site now.
        reading: The job.
        job: Its id, if it has one here; else its name.
        app_sha256: Digest of its app bundle.
    """
    config, policy = site.config, site.policy
    refusals: list[str] = []

    def ask(check: Callable[[], object]) -> None:
        try:
            check()
        except PeerError as error:
            refusals.append(str(error.args[0]))

    ask(lambda: judge_job(policy, config, reading, app_sha256, sandboxed=True))
    if not refusals:  # as at an offer: no data set is opened for a job that policy refuses
        ask(lambda: _check_data(site, AskedJob(site.asked, app_sha256, reading, site.manifest)))
    declared = config.datasets.get(reading.job_file.dataset)
    budgets: tuple[BudgetForecast, ...] = ()
    entries: Sequence[LedgerEntry] = ()
    if declared is not None:
        made = site.ledgers.get(declared.id)
        entries = [e for e in site.entries.get(declared.id, ()) if e.occasion.job_id == job]
        try:
            state = ledger_for(config.site_id, policy, declared.id, reading.whole, made)
            ask(lambda: check_fits(state, reading.event))
            open_alpha = state is not made and policy.budget_rule(declared.id) is not None
            budgets = tuple(
                _budget_forecast(tally, reading, entries, alpha_is_new=open_alpha)
                for tally in state.tallies
            )
        except PeerError as error:
            refusals.append(str(error.args[0]))
    terms, most = reading.terms, site.manifest.max_sites_per_person
    one, several = (
        person_epsilon(reading.plan, terms, reading.rules, sites) for sites in (1, most)
    )
    return JobForecast(
        job=job,
        dataset=reading.job_file.dataset,
        mode=str(reading.plan.mode),
        tier=charge_tier(reading.job_file, app_sha256),
        noise_multiplier=reading.plan.noise_multiplier,
        exchanges=terms.exchanges,
        charged=len(entries),
        job_epsilon=reading.epsilon,
        delta_dp=terms.delta_dp,
        refusal=refusals[0] if refusals else "",
        person_sites=most,
        epsilon_one_site=one,
        epsilon_person=several,
        budgets=budgets,
        local_steps=0 if reading.job_file.local is None else reading.job_file.local.steps,
        time_box_s=reading.job_file.round.time_box_s,
    )


def _check_data(site: SiteState, job: AskedJob) -> None:
    dataset = site.open_dataset(job.reading)
    check_records(site.policy, dataset, job.reading)
    check_audit(site.policy, job, dataset, site.audit_of, site.now_s)


def _budget_forecast(
    tally: Tally, reading: JobReading, entries: Sequence[LedgerEntry], *, alpha_is_new: bool
) -> BudgetForecast:
    schedule = _dearest(tally, (_still_to_come(events, entries) for events in reading.schedules))
    such = _dearest(tally, reading.schedules)  # another one, from its first round
    after = _sum_of(tally, schedule)
    one = max(reading.exchange_events, key=lambda event: tally.after(event).rdp_units)
    budget = tally.budget
    fits = _fits(tally, schedule)
    return BudgetForecast(
        dataset_id=budget.dataset_id,
        unit=budget.unit,
        alpha=budget.alpha,
        alpha_is_new=alpha_is_new,
        epsilon=budget.epsilon,
        delta_dp=budget.delta_dp,
        spent=tally.spent_epsilon,
        added=_difference(tally.spent_epsilon, after.spent_epsilon),
        after=after.spent_epsilon,
        left=after.remaining if fits else 0.0,
        after_repeat=after.after(one).spent_epsilon,
        spare_repeats=after.times_that_fit((one,)) if fits else 0,
        fits=fits,
        exchanges_that_fit=tally.times_that_fit((reading.event,)),
        jobs_that_fit=tally.times_that_fit(such) if such else 0,
        used_share=tally.used_share,
        used_share_after=after.used_share,
    )


def _dearest(tally: Tally, schedules: Iterable[tuple[Event, ...]]) -> tuple[Event, ...]:
    """Give the schedule that this budget is charged most for."""
    return max(schedules, key=lambda events: _sum_of(tally, events).rdp_units)


def _still_to_come(events: tuple[Event, ...], entries: Sequence[LedgerEntry]) -> tuple[Event, ...]:
    """Take off what the job was charged already; a charge of an attempt that failed is one too."""
    left: list[Event] = []
    for event in events:
        done = sum(
            entry.event.steps
            for entry in entries
            if replace(entry.event, steps=1) == replace(event, steps=1)
        )
        if event.steps > done:
            left.append(replace(event, steps=event.steps - done))
    return tuple(left)


def _sum_of(tally: Tally, events: tuple[Event, ...]) -> Tally:
    for event in events:
        tally = tally.after(event)
    return tally


def _fits(tally: Tally, events: tuple[Event, ...]) -> bool:
    for event in events:
        if not tally.allows(event):
            return False
        tally = tally.after(event)
    return True


def _difference(before: float, after: float) -> float:
    return 0.0 if before == after else after - before
