"""Find the noise multiplier and the order for a plan that is fixed in advance.

privacy.md, *Accounting*: a ledger enforces its budget at one order chosen beforehand, so a job is
calibrated either at that order (`alpha` given) or at the best order of its plan, which is then the
order a new budget should be created with (`best_alpha`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from privacy.accounting.accountant import ORDERS, Accountant
from privacy.accounting.budget import MAX_EPSILON
from privacy.accounting.events import (
    DEFAULT_SAMPLER_TV,
    Event,
    SkellamRecordEvent,
    Unit,
    require_real,
)
from privacy.accounting.sensitivity import l1_sensitivity, required_variance
from privacy.errors import UsageError

MIN_NOISE_MULTIPLIER: Final = 0.1
MAX_NOISE_MULTIPLIER: Final = 1e6
TOLERANCE: Final = 1e-4
# Charging step by step rounds each price up by 2^-64; this margin keeps the last step affordable.
_MARGIN: Final = 1e-9


@dataclass(frozen=True)
class NoisePlan:
    """Everything about a schedule of Skellam releases but its noise multiplier.

    Attributes:
        q: Public Poisson sampling rate.
        steps: How many releases the whole plan makes.
        D2: Integer L2 sensitivity, from `sensitivity`.
        d: Integers a release, after padding.
        n_sites: Sites in the cohort.
        sampler_tv: Total variation of one sample.
        unit: What is sampled and clipped.
    """

    q: float
    steps: int
    D2: float
    d: int
    n_sites: int
    sampler_tv: float = DEFAULT_SAMPLER_TV
    unit: Unit = "record"

    def event(self, noise_multiplier: float, steps: int | None = None) -> SkellamRecordEvent:
        """Give the event of this plan at a noise multiplier, all steps or the given number.

        Raises:
            UsageError: A value of the plan is out of range.
        """
        return SkellamRecordEvent(
            q=self.q,
            V=required_variance(noise_multiplier, self.D2),
            D1=l1_sensitivity(self.D2, self.d),
            D2=self.D2,
            d=self.d,
            n_sites=self.n_sites,
            steps=self.steps if steps is None else steps,
            sampler_tv=self.sampler_tv,
            unit=self.unit,
        )


@dataclass(frozen=True)
class Target:
    """The guarantee to reach.

    Attributes:
        epsilon: At most this, for the whole plan.
        delta_dp: At this delta.
        alpha: The order a ledger's budget has fixed; None picks the best order of the plan.
        unit: Whose privacy.
        max_rows: Row cap of a user; used for the user unit only.
    """

    epsilon: float
    delta_dp: float
    alpha: int | None = None
    unit: Unit = "record"
    max_rows: int = 1

    def accountant(self) -> Accountant:
        """Make an empty accountant for this unit and order."""
        orders = ORDERS if self.alpha is None else (self.alpha,)
        return Accountant(orders, self.unit, self.max_rows)


def plan_epsilon(target: Target, events: Iterable[Event]) -> float:
    """Give the epsilon of a fixed list of events at the target's delta, order and unit.

    Raises:
        UsageError: An event or a value of the target is out of range.
    """
    accountant = target.accountant()
    for event in events:
        accountant.compose(event)
    return accountant.get_epsilon(target.delta_dp)


def calibrate_noise_multiplier(
    target: Target, plan: NoisePlan, also: tuple[Event, ...] = ()
) -> float:
    """Find the least noise multiplier z whose plan stays within the target, by bisection.

    Epsilon falls as z grows, so the upper end of the bracket always meets the target: the result
    does, within 1e-4 of it (relative, below epsilon 1).

    Args:
        target: Epsilon, delta, unit and, for an existing budget, its order.
        plan: The schedule.
        also: Events with their own noise charged to the same budget (evaluations).

    Returns:
        z, at least 0.1.

    Raises:
        UsageError: No noise multiplier reaches the target: the fixed order, the other events or
            the samplers alone cost more.
    """

    def reached(z: float) -> float:
        return plan_epsilon(target, (*also, plan.event(z)))

    about = f"order {target.alpha or 'best'}, {len(also)} other events"
    return least_noise_multiplier(target, reached, about)


def least_noise_multiplier(
    target: Target, reached: Callable[[float], float], about: str = "order best"
) -> float:
    """Find the least noise multiplier z at which a schedule stays within the target's epsilon.

    Args:
        target: Its epsilon is the limit.
        reached: Epsilon of the whole schedule at a z, falling in z.
        about: What the schedule is, for the message when nothing reaches the target.

    Returns:
        z, at least 0.1, within 1e-4 of the limit (relative, below epsilon 1).

    Raises:
        UsageError: No noise multiplier reaches the target.
    """
    epsilon = require_real("target epsilon", target.epsilon, 0.0, MAX_EPSILON)
    limit = epsilon * (1 - _MARGIN)
    low, high = MIN_NOISE_MULTIPLIER, 1.0
    if reached(low) <= limit:
        return low
    while reached(high) > limit:
        low, high = high, high * 2
        if high > MAX_NOISE_MULTIPLIER:
            raise UsageError(
                f"no noise reaches epsilon {epsilon!r} at delta_dp {target.delta_dp!r}: at"
                f" z={low:.4g} it is still {reached(low):.4g}; {about}: raise epsilon, delta_dp or"
                " the order"
            )
    while limit - reached(high) > TOLERANCE * min(1.0, epsilon) and high - low > 1e-12 * high:
        middle = (low + high) / 2
        if reached(middle) <= limit:
            high = middle
        else:
            low = middle
    return high


def best_alpha(
    events: Iterable[Event], delta_dp: float, unit: Unit = "record", max_rows: int = 1
) -> int:
    """Choose the order at which a planned list of events costs least.

    Chosen before the first charge, from the public plan only, it may be a budget's fixed order.

    Raises:
        UsageError: No events, or their cost is infinite at every order.
    """
    accountant = Accountant(ORDERS, unit, max_rows)
    count = 0
    for event in events:
        accountant.compose(event)
        count += 1
    if not count or accountant.get_epsilon(delta_dp) == float("inf"):
        raise UsageError(f"{count} planned events have no finite cost: there is no best order")
    return accountant.best_alpha(delta_dp)
