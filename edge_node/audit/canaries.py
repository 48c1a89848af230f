"""Put canaries into an audited job and hold what the aggregator sees against epsilon.

A canary is a record (in mode site, a whole site) whose gradient has one coordinate of a block that
nothing else uses, five times as large as the clip allows. Each is in or out by a fair coin. The
auditor plays the strongest aggregator of the threat model: as few survivors as the manifest allows,
and among them the most colluders, whose own noise it takes out of each sum.

Shapes: D = coordinates, M = canaries, P = rows of a physical batch.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_node.audit.finding import Finding
from edge_node.audit.secure_sum import SecureCohort
from edge_node.audit.setting import Setting
from edge_node.audit.subject import Records, Rows, ScriptedApp, Subject, Terms, update_of, without
from privacy.audit.gaussian_fit import fit, gaussian_epsilon, gaussian_mu
from privacy.audit.one_run import lower_bound
from privacy.decode import decode_sum
from privacy.pipeline import Mode
from privacy.planning import CohortRules
from privacy.ring import reduce_in_place

SIGNIFICANCE = 1e-5
"""Chance that a correct pipeline's lower bound exceeds its epsilon."""

DELTA = 1e-9
"""Where the one-run bound is held against epsilon: its term in m * delta must be far below the
significance, and a claim holds at every delta."""

FIT_RATIO = 1.25
FIT_FALSE_ALARM = 1e-6
"""Few canaries fit loosely: the ratio is then what a correct pipeline exceeds with this chance."""

_RATE = 0.25
_OVERSIZE = 5.0
_ORDINARY = 24  # other records at each site, in a block of their own
_BLOCK = 40
_BINS = 4
_METRICS_NORM = 0.05  # so small that nearly all of D2 is the gradient's


@dataclass(frozen=True)
class Seen:
    """What the auditor has in the end.

    Attributes:
        scores_M: Sum over the rounds at each canary's coordinate, in units of the clip.
        included_M: The coins.
    """

    scores_M: NDArray[np.float64]
    included_M: NDArray[np.bool_]


def check_all_records(setting: Setting) -> list[Finding]:
    """Attack sums of mode record-distributed in which every record is."""
    m = setting.canaries
    subject = Subject.of(_terms(Mode.RECORD_DISTRIBUTED, m, setting.steps))
    seen = in_secure_sums(subject, _fair(setting, "all records", m))
    name = "record-distributed, all records"
    return [_bounded(name, subject, seen), _fitted(name, subject, seen)]


def check_sampled_records(setting: Setting) -> list[Finding]:
    """Attack sums of mode record-distributed over secret samples of the records."""
    m = setting.canaries
    subject = Subject.of(_terms(Mode.RECORD_DISTRIBUTED, m, 3 * setting.steps, _RATE))
    seen = in_secure_sums(subject, _fair(setting, "sampled records", m))
    return [_bounded(f"record-distributed, q = {_RATE}", subject, seen)]


def check_local_updates(setting: Setting) -> list[Finding]:
    """Attack one site's updates of mode record-local, as if their masks were broken."""
    m = setting.canaries
    subject = Subject.of(_terms(Mode.RECORD_LOCAL, m, setting.steps // 2))
    seen = in_local_updates(subject, _fair(setting, "local updates", m))
    name = "record-local"
    return [_bounded(name, subject, seen), _fitted(name, subject, seen)]


def check_whole_sites(setting: Setting) -> list[Finding]:
    """Attack sums of mode site, in which each honest site is a canary."""
    honest = setting.canaries // 2
    rules = CohortRules(1, honest + 1, honest + honest // 2 + 1)
    subject = Subject.of(_terms(Mode.SITE, honest, max(1, setting.steps // 3)), rules)
    seen = in_site_updates(subject, _fair(setting, "whole sites", honest))
    return [_bounded("site", subject, seen), _fitted("site", subject, seen)]


def in_secure_sums(subject: Subject, included_M: NDArray[np.bool_]) -> Seen:
    """Run all rounds of mode record-distributed over secure sums with a drop-out and a colluder."""
    m, rules = included_M.size, subject.rules
    app = ScriptedApp(canary_records(m, subject.spec.length, subject.terms.bins))
    cohort = SecureCohort(rules)
    # Sites 0 .. m_h-1 are honest, then the colluders; the last ones drop out of every sum.
    honest = rules.honest_sites
    sites = [subject.site(_rows_of(included_M, k, honest), app) for k in range(rules.min_survivors)]
    scores_M = np.zeros(m)
    for number in range(1, subject.terms.rounds + 1):
        request = subject.request(number)
        updates = {k: update_of(site, request) for k, site in enumerate(sites)}
        opened = cohort.sum(subject.plan_of(number), updates)
        colluding = {k: update for k, update in updates.items() if k >= honest}
        total_d = without(opened, colluding, subject.plan)
        mean_D = subject.decode(number, total_d, len(opened.survivors)).gradient_D
        scores_M += mean_D[:m] * subject.job.divisor(len(opened.survivors))
    return Seen(scores_M / subject.terms.clipping_norm, included_M)


def in_local_updates(subject: Subject, included_M: NDArray[np.bool_]) -> Seen:
    """Run all rounds of mode record-local at one site and read its updates, unmasked."""
    m = included_M.size
    app = ScriptedApp(canary_records(m, subject.spec.length, subject.terms.bins))
    site = subject.site(_rows_of(included_M, 0, 1), app)
    scores_M = np.zeros(m)
    for number in range(1, subject.terms.rounds + 1):
        ring_d = update_of(site, subject.request(number)).vector_D.astype(np.uint32)
        plan = subject.plan_of(number)
        moved_D = decode_sum(plan, reduce_in_place(ring_d, plan.bits), 1.0).gradient_D
        # The model moved against the gradient, at a rate of 1: a canary's coordinate went up.
        scores_M += moved_D[:m] * subject.local.expected_batch
    return Seen(scores_M / subject.terms.clipping_norm, included_M)


def in_site_updates(subject: Subject, included_M: NDArray[np.bool_]) -> Seen:
    """Run all rounds of mode site; each honest site is a canary with a coordinate of its own.

    The masks are left out, as they cancel exactly: what is summed is what the sites would mask.
    """
    honest, length = included_M.size, subject.spec.length

    def records(_model_D: Rows, rows: Rows) -> tuple[Rows, Rows]:
        number = int(rows[0, 0])
        moved_PD = np.zeros((1, length), dtype=np.float32)
        if number >= 0:
            moved_PD[0, number] = _OVERSIZE
        return moved_PD, np.zeros((1, 0), dtype=np.float32)

    app = ScriptedApp(records)
    sites = [subject.site([k if included_M[k] else -1], app) for k in range(honest)]
    scores_M = np.zeros(honest)
    for number in range(1, subject.terms.rounds + 1):
        plan, request = subject.plan_of(number), subject.request(number)
        total_d = np.zeros(plan.length, dtype=np.uint32)
        for site in sites:
            total_d += update_of(site, request).vector_D.astype(np.uint32)
        opened = decode_sum(plan, reduce_in_place(total_d, plan.bits), 1.0)
        scores_M += opened.gradient_D[:honest]
    return Seen(scores_M / subject.terms.clipping_norm, included_M)


def canary_records(m: int, length: int, bins: int) -> Records:
    """Give what records answer: canaries 0 .. m-1 their coordinate, others a block of their own."""
    block_D = np.zeros(length, dtype=np.float32)
    block_D[m:] = -1.0

    def records(_model_D: Rows, rows: Rows) -> tuple[Rows, Rows]:
        number_P = rows[:, 0].astype(np.int64)
        is_canary_P = number_P < m
        gradients_PD = np.zeros((len(rows), length), dtype=np.float32)
        gradients_PD[~is_canary_P] = block_D
        places = np.flatnonzero(is_canary_P)
        gradients_PD[places, number_P[places]] = -_OVERSIZE  # descent goes up
        metrics_PM = np.zeros((len(rows), 2 * bins), dtype=np.float32)
        metrics_PM[:, :1] = np.where(is_canary_P, 0.0, 1.0)[:, np.newaxis]
        return gradients_PD, metrics_PM

    return records


def _fair(setting: Setting, purpose: str, count: int) -> NDArray[np.bool_]:
    return setting.coins(f"canaries, {purpose}").random(count) < 0.5


def _terms(mode: Mode, m: int, steps: int, rate: float = 1.0) -> Terms:
    by_site = mode is Mode.SITE
    local = "steps = 1\nbatch_size = 1\nlearning_rate = 1.0" if by_site else ""
    if mode is Mode.RECORD_LOCAL:
        local = "steps = 2\nlearning_rate = 1.0"
    return Terms(
        mode=mode,
        coordinates=m if by_site else m + _BLOCK,
        rounds=max(1, steps),
        bins=0 if by_site else _BINS,
        metrics_norm=_METRICS_NORM,
        sampling_rate=rate,
        expected_batch=max(1, round(m * rate / 2)),
        local=local,
    )


def _rows_of(included_M: NDArray[np.bool_], site: int, sites: int) -> NDArray[np.int64]:
    """Give a site's part of the canaries that are in, and its ordinary records."""
    ordinary = included_M.size + np.arange(_ORDINARY)
    if site >= sites:
        return ordinary
    return np.concatenate([np.flatnonzero(included_M)[site::sites], ordinary])


def _bounded(name: str, subject: Subject, seen: Seen) -> Finding:
    bound = lower_bound(seen.scores_M, seen.included_M, DELTA, SIGNIFICANCE)
    claim = subject.epsilon(DELTA)
    return Finding(
        check="canaries: one-run bound",
        subject=f"{name}, m = {seen.scores_M.size}",
        claim=f"<= epsilon {claim:.3f} at delta {DELTA:g}",
        measured=f"{bound.epsilon:.3f} ({bound.right} of {bound.guesses} right)",
        passed=bound.epsilon <= claim,
        false_alarm=SIGNIFICANCE,
    )


def _fitted(name: str, subject: Subject, seen: Seen) -> Finding:
    """Hold the fit against the exact epsilon of a Gaussian mechanism of the job's noise."""
    fitted = fit(seen.scores_M, seen.included_M)
    steps = subject.terms.rounds * (1 if subject.plan.local is None else subject.plan.local.steps)
    theory_mu = math.sqrt(steps) / subject.plan.noise_multiplier
    theory = gaussian_epsilon(theory_mu, subject.delta)
    most_mu = max(
        gaussian_mu(FIT_RATIO * theory, subject.delta), fitted.limit(theory_mu, FIT_FALSE_ALARM)
    )
    ratio = gaussian_epsilon(most_mu, subject.delta) / theory
    return Finding(
        check="canaries: Gaussian fit",
        subject=f"{name}, m = {seen.scores_M.size}",
        claim=f"<= {ratio:.2f} * {theory:.3f} (exact), delta {subject.delta:g}",
        measured=f"{fitted.epsilon(subject.delta):.3f}",
        passed=fitted.mu <= most_mu,
        false_alarm=fitted.false_alarm(theory_mu, most_mu),
    )
