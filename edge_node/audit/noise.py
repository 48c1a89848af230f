"""Measure the noise of the pipeline where there is nothing else: empty batches, no movement.

What is measured is what leaves: updates of real rounds, opened by real secure sums; and what is
claimed comes from `edge_node.audit.claims`.

Shapes: d = integers of one vector, M = metrics.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from edge_node.audit import claims
from edge_node.audit.finding import Finding
from edge_node.audit.secure_sum import SecureCohort
from edge_node.audit.setting import Setting
from edge_node.audit.subject import Records, Rows, ScriptedApp, Subject, Terms, update_of, without
from privacy.audit import noise_law
from privacy.audit.noise_law import NoiseLaw
from privacy.noise import add_skellam_noise
from privacy.pipeline import Mode
from privacy.quantise import QuantisedDelta
from privacy.ring import centre, reduce_in_place
from privacy.surplus import NoiseShare
from privacy.terms import CohortRules

FALSE_ALARM = 1e-7
"""Of each finding below; of the variances it is less, as their tolerance is many deviations."""

SITE_RULES = CohortRules(colluders=10, min_survivors=1500, members=2200)
_BINS = 1000
_ROUNDS = 2
_SAMPLER_VARIANCES = (1, 7, 400, 250_000, 25_000_000)
_LOCAL = "steps = 2\nlearning_rate = 1.0"

Noise = NDArray[np.float64]


@dataclass(frozen=True)
class Rounds:
    """What came of a few rounds on empty batches.

    Attributes:
        shares: By round and site: one site's update.
        opened: By round: the sum of all survivors.
        honest: By round: the same without the colluders' shares, which the aggregator knows.
    """

    shares: list[list[Noise]]
    opened: list[Noise]
    honest: list[Noise]


def check_sampler(setting: Setting) -> list[Finding]:
    """Draw from the noise stage itself, at small and large variances."""
    return [found for variance in _SAMPLER_VARIANCES for found in _sampler(setting, variance)]


def run_empty_rounds(subject: Subject, survivors: int) -> Rounds:
    """Run rounds without a record; the last survivors collude, the other members drop out.

    Args:
        subject: Mode record-distributed.
        survivors: |U3| of each round, from N_min to all members.
    """
    app, cohort = ScriptedApp(_nothing(subject)), SecureCohort(subject.rules)
    sites = [subject.site([], app) for _ in range(survivors)]
    rounds = Rounds([], [], [])
    for number in range(1, _ROUNDS + 1):
        request, plan = subject.request(number), subject.plan_of(number)
        updates = {k: update_of(site, request) for k, site in enumerate(sites)}
        opened = cohort.sum(plan, updates)
        honest = survivors - subject.rules.colluders
        honest_d = without(opened, {k: u for k, u in updates.items() if k >= honest}, plan)
        rounds.shares.append([u.vector_D.astype(np.float64) for u in updates.values()])
        rounds.opened.append(centre(opened.total_d, plan.bits).astype(np.float64))
        rounds.honest.append(centre(honest_d, plan.bits).astype(np.float64))
    return rounds


def check_shared_noise(setting: Setting) -> list[Finding]:
    """Measure shares and opened sums of mode record-distributed, after a drop-out."""
    subject = Subject.of(coarse_terms(setting.coordinates))
    rounds = run_empty_rounds(subject, subject.rules.min_survivors)
    whole, share = claims.variance(subject), claims.share(subject)
    survivors, honest = subject.rules.min_survivors, subject.rules.honest_sites
    name = "record-distributed"
    of_share = f"{name}, one site's share"
    of_honest = f"{name}, sum of {survivors} less {subject.rules.colluders} colluder"
    of_all = f"{name}, sum of {survivors}"
    first = rounds.shares[0]
    metrics = np.concatenate(
        [share_d[-2 * _BINS :] for shares in rounds.shares for share_d in shares]
    )
    found = [
        _variance(of_share, first[0], NoiseLaw.skellam(share), setting),
        _variance(of_honest, rounds.honest[0], NoiseLaw.skellam(whole), setting),
        _variance(of_all, rounds.opened[0], NoiseLaw.skellam(survivors * share), setting),
        _metrics(f"{name}, metrics of all shares", metrics, NoiseLaw.skellam(share)),
        _law(of_share, first[0], NoiseLaw.skellam(subject.plan.noise_variance)),
        _law(of_honest, rounds.honest[0], NoiseLaw.skellam(honest * subject.plan.noise_variance)),
        _apart(f"{name}, sites of a round", first),
        _apart(f"{name}, rounds of a site", [shares[0] for shares in rounds.shares]),
        _apart(f"{name}, opened sums", rounds.opened),
        _each(f"{name}, all shares", list(chain(*rounds.shares)), subject.plan.noise_variance),
    ]
    return found + _attempts(subject)


def _attempts(subject: Subject) -> list[Finding]:
    """Ask a site twice for the very same round: no noise may come twice."""
    site = subject.site([], ScriptedApp(_nothing(subject)))
    made = [update_of(site, subject.request(1)).vector_D.astype(np.float64) for _ in range(2)]
    same = float(np.mean(made[0] == made[1]))
    finding = Finding(
        check="noise: attempts",
        subject="record-distributed, a round asked for twice",
        claim="less than 1 % of coordinates equal",
        measured=f"{same:.2%}",
        passed=same < 0.01,
    )
    return [finding, _apart("record-distributed, attempts", made)]


def check_surplus_noise(setting: Setting) -> list[Finding]:
    """Nobody drops out, and the noise that more survivors can do without comes off again."""
    terms = replace(coarse_terms(setting.coordinates), surplus=True)
    subject = Subject.of(terms)
    survivors, colluders = subject.rules.members, subject.rules.colluders
    rounds = run_empty_rounds(subject, survivors)
    name = f"record-distributed, surplus off, sum of {survivors} less {colluders} colluder"
    return [
        _variance(name, rounds.honest[0], NoiseLaw.skellam(claims.variance(subject)), setting),
        _apart("record-distributed, surplus off, sums", rounds.opened),
    ]


def check_local_noise(setting: Setting) -> list[Finding]:
    """Mode record-local: a site's update is the sum of its steps' noise, read in their grid."""
    base = coarse_terms(setting.coordinates)
    subject = Subject.of(
        Terms(
            mode=Mode.RECORD_LOCAL,
            coordinates=base.coordinates,
            epsilon=base.epsilon,
            bins=_BINS,
            clipping_norm=base.clipping_norm,
            expected_batch=1,
            local=_LOCAL,
        )
    )
    plan, local = subject.plan, subject.local
    site = subject.site([], ScriptedApp(_nothing(subject)))
    made = []
    for number in range(1, _ROUNDS + 1):
        ring_d = update_of(site, subject.request(number)).vector_D.astype(np.uint32)
        decoded = subject.decode(number, reduce_in_place(ring_d, plan.bits), 1)
        # Metrics are a mean over the steps, the model their sum.
        metrics = decoded.metric_sums_M * local.steps
        made.append(np.concatenate([decoded.gradient_D, metrics]) / local.grid)
    law = NoiseLaw.gaussian(local.steps * claims.variance(subject))
    name = f"record-local, an update of {local.steps} steps"
    metrics = np.concatenate([update_d[-2 * _BINS :] for update_d in made])
    return [
        _variance(name, made[0], law, setting),
        _metrics("record-local, metrics", metrics, law),
        _law(name, made[0], NoiseLaw.gaussian(local.steps * float(local.variance))),
        _apart("record-local, rounds of a site", made),
    ]


def check_site_noise(setting: Setting) -> list[Finding]:
    """Mode site: a site that does not move sends its noise share alone."""
    subject = Subject.of(
        Terms(
            mode=Mode.SITE,
            coordinates=setting.coordinates,
            epsilon=20.0,
            local="steps = 1\nbatch_size = 1\nlearning_rate = 1.0",
        ),
        SITE_RULES,
    )
    app = ScriptedApp(_nothing(subject))
    sites = [subject.site([0], app) for _ in range(2)]
    made = [update_of(site, subject.request(1)).vector_D.astype(np.float64) for site in sites]
    return [
        _variance(
            "site, one site's share", made[0], NoiseLaw.skellam(claims.share(subject)), setting
        ),
        _law("site, one site's share", made[0], NoiseLaw.skellam(subject.plan.noise_variance)),
        _apart("site, sites of a round", made),
    ]


def _sampler(setting: Setting, variance: int) -> list[Finding]:
    nothing = QuantisedDelta(np.zeros(setting.coordinates, dtype=np.int64), 1.0)
    seed = setting.coins(f"sampler {variance}").bytes(32)
    noise = add_skellam_noise(nothing, NoiseShare(variance), seed).vector_D.astype(np.float64)
    law = NoiseLaw.skellam(float(variance))
    name = f"Skellam sampler at V = {variance}"
    return [_variance(name, noise, law, setting), _law(name, noise, law)]


def coarse_terms(length: int) -> Terms:
    """Give a job whose grid is as coarse as one may be: rounding then costs the most.

    sqrt(d) is just below two percent of C * s, so a term left out of D2 shows as far as it can.

    Args:
        length: d, metrics included.
    """
    needed = math.sqrt(length) / 0.02
    clip = 1.002 * needed / 2.0 ** math.ceil(math.log2(needed))
    metrics_norm = 0.25
    return Terms(
        coordinates=length - 2 * _BINS,
        epsilon=20.0,
        bins=_BINS,
        clipping_norm=math.sqrt(clip**2 - metrics_norm**2),
        metrics_norm=metrics_norm,
    )


def _nothing(subject: Subject) -> Records:
    """Answer with zeros for rows that there are none of."""
    width = 2 * subject.terms.bins

    def records(_model_D: Rows, rows: Rows) -> tuple[Rows, Rows]:
        gradients = np.zeros((len(rows), subject.spec.length), dtype=np.float32)
        return gradients, np.zeros((len(rows), width), dtype=np.float32)

    return records


def _variance(name: str, noise: Noise, law: NoiseLaw, setting: Setting) -> Finding:
    tolerance = setting.tolerance
    ratio = noise_law.variance_ratio(noise, law.variance)
    return Finding(
        check="noise: variance",
        subject=name,
        claim=f"within {tolerance:.1%} of {law.variance:.6g}",
        measured=f"{ratio - 1:+.2%}",
        passed=abs(ratio - 1) <= tolerance,
        false_alarm=noise_law.variance_false_alarm(noise.size, law, tolerance),
    )


def _metrics(name: str, noise: Noise, law: NoiseLaw) -> Finding:
    """Look at the metric coordinates apart: they are too few to show in the whole vector."""
    spread = math.sqrt((law.moment(4) / law.variance**2 - 1) / noise.size)
    tolerance = noise_law.threshold(FALSE_ALARM) * spread
    ratio = noise_law.variance_ratio(noise, law.variance)
    return Finding(
        check="noise: metrics",
        subject=f"{name}, {noise.size}",
        claim=f"variance within {tolerance:.1%} of {law.variance:.6g}",
        measured=f"{ratio - 1:+.2%}",
        passed=abs(ratio - 1) <= tolerance,
        false_alarm=FALSE_ALARM,
    )


def _each(name: str, shares: Sequence[Noise], variance: int) -> Finding:
    """Look at each coordinate by itself: a single one without noise shows in no average.

    Noise of variance V is 0 with probability exp(-V) I_0(V), in every share at once hardly ever.
    """
    silent = int(np.count_nonzero(~np.any(shares, axis=0)))
    count = len(shares[0])
    return Finding(
        check="noise: coordinates",
        subject=f"{name}, {len(shares)}",
        claim=f"none of {count} without noise in all",
        measured=f"{silent}",
        passed=silent == 0,
        false_alarm=count * float(special.ive(0, variance)) ** len(shares),
    )


def _law(name: str, noise: Noise, law: NoiseLaw) -> Finding:
    """Hold four moments and the correlation at a few lags against the law."""
    found = noise_law.deviations(noise, law)
    lagged = noise_law.largest_autocorrelation(noise)
    most = noise_law.threshold(FALSE_ALARM, 4 + len(noise_law.LAGS))
    worst = max(found.largest, lagged)
    return Finding(
        check="noise: law",
        subject=name,
        claim=f"four moments, four lags: <= {most:.1f} sd",
        measured=f"{worst:.2f} sd",
        passed=worst <= most,
        false_alarm=FALSE_ALARM,
    )


def _apart(name: str, vectors: Sequence[Noise]) -> Finding:
    """Hold vectors that must have noise of their own against each other."""
    pairs = list(combinations(vectors, 2))
    worst = max(noise_law.correlation(first, second) for first, second in pairs)
    most = noise_law.threshold(FALSE_ALARM, len(pairs))
    return Finding(
        check="noise: independence",
        subject=name,
        claim=f"correlation <= {most:.1f} sd",
        measured=f"{worst:.2f} sd",
        passed=worst <= most,
        false_alarm=FALSE_ALARM,
    )
