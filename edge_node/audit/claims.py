"""What a plan must promise, computed a second time from the job and the manifest alone.

Written apart from `privacy.accounting.sensitivity` and `privacy.encodings` on purpose: a number
that both sides derive with the same wrong function agrees with itself.
"""

import math
from fractions import Fraction

from edge_node.audit.finding import Finding
from edge_node.audit.setting import Setting
from edge_node.audit.subject import Subject, Terms
from privacy.audit.gaussian_fit import gaussian_epsilon
from privacy.compress import MapKind
from privacy.pipeline import Mode
from privacy.terms import CohortRules

_ROUND = Fraction(1, 10**12)  # relative: what float64 may lose of a number derived in another order
_WASTE = 1.001  # a plan may round noise and sensitivity up, but not by more

LOW_RANK = Terms(
    coordinates=6000, rows=60, bins=3, compression='map = "low-rank"\nrank = 3\nsmall_keep = 0.5'
)
NOISED_MODES = (
    Terms(bins=3),
    Terms(bins=3, rounding="sum"),
    Terms(surplus=True),
    Terms(coordinates=5000, compression='map = "rotation+random-k"\nkeep = 0.1'),
    LOW_RANK,
    Terms(mode=Mode.RECORD_LOCAL, bins=3, local="steps = 2\nlearning_rate = 1.0"),
    Terms(mode=Mode.SITE, local="steps = 1\nbatch_size = 1\nlearning_rate = 1.0"),
)
MANY_SITES = CohortRules(colluders=2, min_survivors=200, members=290)


def subjects() -> list[Subject]:
    """Give a job of each way to the grid and each mode that adds noise."""
    return [
        Subject.of(terms, MANY_SITES) if terms.mode is Mode.SITE else Subject.of(terms)
        for terms in NOISED_MODES
    ]


def name_of(subject: Subject) -> str:
    """Name a subject by its mode and by what is not as usual in it."""
    terms, plan = subject.terms, subject.plan
    parts = [str(plan.mode)]
    if terms.rounding == "sum":
        parts.append("sum rounding")
    if plan.map_kind is not MapKind.IDENTITY:
        parts.append(str(plan.map_kind))
    if terms.surplus:
        parts.append("surplus removed")
    if terms.bins:
        parts.append("metrics")
    return ", ".join(parts)


def sensitivity(subject: Subject) -> float:
    """Give D2 in grid units: the clip, and the most that rounding to the grid can add."""
    terms, plan = subject.terms, subject.plan
    clip = math.hypot(terms.clipping_norm, terms.metrics_norm if terms.bins else 0.0)
    if plan.local is not None:
        length = terms.coordinates + 2 * terms.bins
        return clip / 2.0**plan.local.grid_exponent + math.sqrt(length) / 2
    reach, root = clip * plan.scale, math.sqrt(plan.length)
    if plan.mode is Mode.SITE:  # Kairouz, Liu, Steinke 2021, proposition 26, beta = exp(-1/2)
        return min(reach + root, math.sqrt(reach**2 + plan.length / 4 + reach + root / 2))
    return reach + (root if terms.rounding == "sum" else root / 2)


def variance(subject: Subject) -> float:
    """Give the variance that must be in what is released, from honest sites alone: (z * D2)^2."""
    return (subject.plan.noise_multiplier * sensitivity(subject)) ** 2


def share(subject: Subject) -> float:
    """Give the variance that each site must add: the fewest honest survivors make up the whole."""
    return variance(subject) / (subject.rules.min_survivors - subject.rules.colluders)


def check_plans(_setting: Setting) -> list[Finding]:
    """Hold the derived plans against the claims, and epsilon against the exact Gaussian one."""
    found = []
    for subject in subjects():
        found += [_sensitivity(subject), _noise(subject), _epsilon(subject)]
        found += _levels(subject)
    return found


def _sensitivity(subject: Subject) -> Finding:
    plan, needed = subject.plan, sensitivity(subject)
    stated = plan.sensitivity if plan.local is None else plan.local.sensitivity
    return Finding(
        check="plan: sensitivity",
        subject=name_of(subject),
        claim=f"D2 >= {needed:.3f} grid steps",
        measured=f"{stated:.3f}",
        passed=needed * (1 - float(_ROUND)) <= stated <= needed * _WASTE,
    )


def _noise(subject: Subject) -> Finding:
    """Compare exactly what the fewest honest survivors add with (z * D2)^2."""
    plan = subject.plan
    honest = subject.rules.min_survivors - subject.rules.colluders
    added = honest * plan.noise_variance if plan.local is None else plan.local.variance
    needed = (Fraction(plan.noise_multiplier) * Fraction(sensitivity(subject))) ** 2
    # V_site is a whole number, so m_h sites may waste m_h.
    most = float(needed) * _WASTE + (honest if plan.local is None else 512**2 + 1)
    who = f"{honest} honest" if plan.local is None else "each site alone"
    return Finding(
        check="plan: noise",
        subject=name_of(subject),
        claim=f"{who}: V >= {float(needed):.6g}",
        measured=f"{float(added):.6g}",
        passed=needed * (1 - _ROUND) <= added <= most,
    )


def _levels(subject: Subject) -> list[Finding]:
    """Look at what stays in a sum at each number of survivors that lets noise be removed."""
    colluders, needed = subject.rules.colluders, variance(subject)
    return [
        Finding(
            check="plan: noise",
            subject=f"{name_of(subject)} from {level.survivors} survivors",
            claim=f"{level.survivors - colluders} honest: V >= {needed:.6g}",
            measured=f"{float((level.survivors - colluders) * level.variance):.6g}",
            passed=(level.survivors - colluders) * level.variance >= needed * (1 - float(_ROUND)),
        )
        for level in subject.plan.noise_levels
    ]


def _epsilon(subject: Subject) -> Finding:
    """At sampling rate 1 the exact epsilon of Gaussian noise is known: no claim may be below it."""
    plan, terms = subject.plan, subject.terms
    steps = terms.rounds * (1 if plan.local is None else plan.local.steps)
    exact = gaussian_epsilon(math.sqrt(steps) / plan.noise_multiplier, subject.delta)
    claimed = subject.epsilon(subject.delta)
    return Finding(
        check="plan: epsilon",
        subject=name_of(subject),
        claim=f"{exact:.4f} (exact) <= claim <= {terms.epsilon:g}",
        measured=f"{claimed:.4f}",
        passed=exact <= claimed <= terms.epsilon * (1 + 1e-6),
    )
