"""One data set's budget for one privacy unit, and the exact tally of what is spent of it.

privacy.md, *Filter*: adaptive composition is covered only for an order fixed in advance, so a
budget fixes one integer alpha when it is created and sums Renyi divergence at that order (Feldman,
Zrnic 2021, arXiv 2008.11193: the sum never exceeds the limit, whatever the next event depends on).

Spending is counted in integers, rounded up: sums are exact whatever their order, so that the
prediction "n more steps fit" and n single charges agree to the last step, and replaying a ledger
gives the state it gave before.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from privacy.accounting.accountant import (
    MAX_ORDER,
    MAX_ROWS_PER_USER,
    rdp_to_epsilon,
    require_delta_dp,
    sampler_tv,
    step_rdp,
)
from privacy.accounting.events import (
    Event,
    NoDpEvent,
    Unit,
    require_count,
    require_event,
    require_keys,
    require_real,
)
from privacy.errors import PeerError, Reason, UsageError

RDP_BITS: Final = 64  # one unit of spent divergence is 2^-64 nat
TV_BITS: Final = 256  # one unit of spent total variation is 2^-256
# e^30 = 1e13: beyond it a bound says nothing, and the samplers' (1 + e^epsilon) * TV would eat
# delta_dp. Who wants no bound says so with allow_no_dp.
MAX_EPSILON: Final = 30.0
BUDGET_UNITS: Final = ("record", "user")  # what a site's own ledger can protect
_MAX_ID_CHARS: Final = 200


@dataclass(frozen=True)
class Budget:
    """What an administrator allows to be learnt about one unit of one data set.

    Attributes:
        dataset_id: Administrator-declared id; derived or overlapping data charge the same id.
        unit: "record" or "user".
        epsilon: The bound, in (0, 30].
        delta_dp: Its delta, in (0, 1).
        alpha: The one order, an integer in 2..1024, fixed for the budget's life.
        max_rows_per_user: Row cap m that no user of the data exceeds; needed for the user unit.
        allow_no_dp: The administrator's explicit consent to mode ``none`` on this data set.
        user_column: What tells the users apart whom the budget protects; user unit only.
    """

    dataset_id: str
    unit: Unit
    epsilon: float
    delta_dp: float
    alpha: int
    max_rows_per_user: int | None = None
    allow_no_dp: bool = False
    user_column: str | None = None

    def __post_init__(self) -> None:
        require_name("dataset_id", self.dataset_id)
        where = f"budget {self.dataset_id!r}"
        if self.unit not in BUDGET_UNITS:
            raise UsageError(f"{where}: unit is {self.unit!r}, must be one of {BUDGET_UNITS}")
        epsilon = require_real(f"{where}: epsilon", self.epsilon, 0.0, MAX_EPSILON)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta_dp", require_delta_dp(self.delta_dp))
        require_count(f"{where}: alpha", self.alpha, MAX_ORDER, low=2)
        self._check_rows(where)
        if not isinstance(self.allow_no_dp, bool):
            raise UsageError(f"{where}: allow_no_dp is {self.allow_no_dp!r}, must be true or false")
        if self.limit_units(0) <= 0:
            raise UsageError(
                f"{where}: order {self.alpha} alone costs more than epsilon {epsilon!r} at delta_dp"
                f" {self.delta_dp!r}; choose a larger alpha (see calibration.best_alpha)"
            )

    def _check_rows(self, where: str) -> None:
        if self.unit == "user":
            if self.max_rows_per_user is None:
                raise UsageError(
                    f"{where}: a user budget needs max_rows_per_user: without a cap on a user's"
                    " rows, no event has a finite price for a user"
                )
            require_count(f"{where}: max_rows_per_user", self.max_rows_per_user, MAX_ROWS_PER_USER)
            if self.user_column is not None:
                require_name(f"{where}: user_column", self.user_column)
        elif self.max_rows_per_user is not None or self.user_column is not None:
            raise UsageError(
                f"{where}: max_rows_per_user and user_column belong to user budgets only"
            )

    def delta_left(self, tv_units: int) -> float:
        """Give what the samplers leave of delta_dp: delta_dp - (1 + e^epsilon) * TV."""
        return self.delta_dp - (1 + math.exp(self.epsilon)) * math.ldexp(tv_units, -TV_BITS)

    def limit_units(self, tv_units: int) -> int:
        """Give the largest divergence, in units of 2^-64 nat, that stays within epsilon; or -1."""
        left = self.delta_left(tv_units)
        if left <= 0:
            return -1
        limit = self.epsilon - self._conversion(left)
        return _units(limit, RDP_BITS, up=False) if limit > 0 else -1

    def epsilon_of(self, rdp_units: int, tv_units: int) -> float:
        """Give the epsilon that a divergence at this budget's order amounts to; 0 if none.

        Up to the budget's epsilon the reserve for the samplers is taken at that epsilon, which is
        never too little and keeps a charge O(1); above it, the exact conversion applies.
        """
        if rdp_units == 0 and tv_units == 0:
            return 0.0
        rdp = math.ldexp(rdp_units, -RDP_BITS)
        if 0 <= rdp_units <= self.limit_units(tv_units):
            return max(0.0, rdp + self._conversion(self.delta_left(tv_units)))
        tv = math.ldexp(tv_units, -TV_BITS)
        return float(rdp_to_epsilon(np.array([rdp]), (self.alpha,), self.delta_dp, tv)[0])

    def _conversion(self, delta: float) -> float:
        return math.log1p(-1 / self.alpha) - math.log(delta * self.alpha) / (self.alpha - 1)

    def to_dict(self) -> dict[str, object]:
        """Give the JSON-able form; the user column stands in it where there is one."""
        users = {} if self.user_column is None else {"user_column": self.user_column}
        return {
            **users,
            "dataset_id": self.dataset_id,
            "unit": self.unit,
            "epsilon": self.epsilon,
            "delta_dp": self.delta_dp,
            "alpha": self.alpha,
            "max_rows_per_user": self.max_rows_per_user,
            "allow_no_dp": self.allow_no_dp,
        }

    @classmethod
    def from_dict(cls, data: dict[str, object]) -> "Budget":
        """Build a budget from its JSON-able form; unknown and missing keys are refused.

        Raises:
            UsageError: A key or value is wrong; the message names it.
        """
        if not isinstance(data, dict):
            raise UsageError(f"a budget must be an object, not {type(data).__name__}")
        required = set(cls.__dataclass_fields__) - {"user_column"}
        require_keys("budget", data, required | (data.keys() & {"user_column"}))
        return cls(**data)  # type: ignore[arg-type]  # __post_init__ checks every value


@dataclass(frozen=True)
class Tally:
    """How much of one budget is spent. Grows only.

    Attributes:
        budget: The budget.
        rdp_units: Divergence spent at the budget's order, units of 2^-64 nat.
        tv_units: Total variation of all samplers used, units of 2^-256.
        no_dp_steps: Releases without differential privacy; any makes epsilon infinite.
    """

    budget: Budget
    rdp_units: int = 0
    tv_units: int = 0
    no_dp_steps: int = 0

    @property
    def spent_epsilon(self) -> float:
        """Epsilon spent at the budget's delta_dp; 0 before the first charge."""
        if self.no_dp_steps:
            return math.inf
        return self.budget.epsilon_of(self.rdp_units, self.tv_units)

    def private_epsilon(self, delta_dp: float) -> float:
        """Give the epsilon of all releases with differential privacy, at any delta_dp.

        It is a statement about what they released, together. Releases without, which no epsilon
        covers, are not in it: never show it for the data set as a whole.

        Raises:
            UsageError: delta_dp is not between 0 and 1.
        """
        if delta_dp == self.budget.delta_dp:
            return self.budget.epsilon_of(self.rdp_units, self.tv_units)
        require_delta_dp(delta_dp)
        if self.rdp_units == 0 and self.tv_units == 0:
            return 0.0
        rdp_A = np.array([math.ldexp(self.rdp_units, -RDP_BITS)])
        tv = math.ldexp(self.tv_units, -TV_BITS)
        return float(rdp_to_epsilon(rdp_A, (self.budget.alpha,), delta_dp, tv)[0])

    @property
    def used_share(self) -> float:
        """Share of what the budget can carry that is used, 0 to 1 and above where it is overdrawn.

        Epsilon is not spent evenly: its first part is a constant of the conversion at the budget's
        order, so that a first small release shows as much of epsilon and as little of this.
        """
        if self.no_dp_steps:
            return math.inf
        limit = self.budget.limit_units(self.tv_units)
        return self.rdp_units / limit if limit > 0 else math.inf

    @property
    def remaining(self) -> float:
        """Epsilon left; 0 once a release without differential privacy was made."""
        return max(0.0, self.budget.epsilon - self.spent_epsilon)

    def after(self, event: Event) -> "Tally":
        """Give the tally with the event added, whether or not the budget allows it.

        Raises:
            UsageError: The event is of no known kind.
        """
        if isinstance(event, NoDpEvent):
            return replace(self, no_dp_steps=self.no_dp_steps + event.steps)
        rdp_units, tv_units = self._price(event)
        return replace(
            self, rdp_units=self.rdp_units + rdp_units, tv_units=self.tv_units + tv_units
        )

    def allows(self, event: Event) -> bool:
        """Say whether the event fits: consent for no-DP events, the limit at alpha for others.

        Raises:
            UsageError: The event is of no known kind.
        """
        if isinstance(event, NoDpEvent):
            return self.budget.allow_no_dp
        after = self.after(event)
        return after.rdp_units <= self.budget.limit_units(after.tv_units)

    def charge(self, event: Event) -> "Tally":
        """Give the tally with the event added, or refuse.

        After a consented release without differential privacy, the divergence of private events
        keeps being counted and held below the limit, though the epsilon shown is infinite.

        Raises:
            PeerError: BUDGET_EXHAUSTED; says what would have been reached and what is left.
            UsageError: The event is of no known kind.
        """
        if self.allows(event):
            return self.after(event)
        budget = self.budget
        name = f"budget of data set {budget.dataset_id!r} ({budget.unit} unit)"
        if isinstance(event, NoDpEvent):
            raise PeerError(
                Reason.BUDGET_EXHAUSTED,
                f"{name}: a release without differential privacy would make epsilon infinite;"
                f" allowed {budget.epsilon:.6g}, left {self.remaining:.6g}. The site's"
                " administrator can consent with allow_no_dp = true",
            )
        protected = replace(self, no_dp_steps=0)
        if budget.delta_left(self.after(event).tv_units) <= 0:
            raise PeerError(
                Reason.BUDGET_EXHAUSTED,
                f"{name}: with this charge the samplers' total variation alone would use up"
                f" delta_dp {budget.delta_dp:.6g} at epsilon {budget.epsilon:.6g}; left"
                f" {protected.remaining:.6g}: {self.steps_that_fit(event)} such steps still fit."
                " State the sampler's own sampler_tv, or use a more exact sampler",
            )
        raise PeerError(
            Reason.BUDGET_EXHAUSTED,
            f"{name}: this charge of {event.steps} steps would reach epsilon"
            f" {protected.after(event).spent_epsilon:.6g} at delta_dp {budget.delta_dp:.6g};"
            f" allowed {budget.epsilon:.6g}, spent {protected.spent_epsilon:.6g}, left"
            f" {protected.remaining:.6g}: {self.steps_that_fit(event)} such steps still fit",
        )

    def steps_that_fit(self, event: Event) -> int:
        """Give how many more steps of this event fit; its own `steps` are ignored.

        Raises:
            UsageError: The event is of no known kind.
        """
        return self.times_that_fit((replace(event, steps=1),))

    def times_that_fit(self, events: Sequence[Event]) -> int:
        """Give how many more times all of these events fit, with all their steps.

        Raises:
            UsageError: An event is of no known kind.
        """
        if any(isinstance(event, NoDpEvent) for event in events):
            return 0
        prices = [self._price(event) for event in events]
        one_rdp, one_tv = sum(rdp for rdp, _ in prices), sum(tv for _, tv in prices)
        slack = self.budget.limit_units(self.tv_units) - self.rdp_units
        if slack < 0:
            return 0
        # The samplers' share shrinks the limit with every step: the first bound is an upper one.
        low, high = 0, min(slack // max(one_rdp, 1), 2**62)
        while low < high:
            middle = (low + high + 1) // 2
            limit = self.budget.limit_units(self.tv_units + middle * one_tv)
            if self.rdp_units + middle * one_rdp <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def _price(self, event: Event) -> tuple[int, int]:
        require_event(event)
        budget = self.budget
        return _price_units(event, budget.alpha, budget.unit, budget.max_rows_per_user or 1)


def require_name(where: str, value: object) -> str:
    """Return a short printable name.

    Raises:
        UsageError: It is no string, empty, too long or holds control characters.
    """
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_ID_CHARS or not value.isprintable():
        raise UsageError(f"{where} is {value!r}, must be 1 to {_MAX_ID_CHARS} printable characters")
    return value


@functools.lru_cache(maxsize=4096)
def _price_units(event: Event, alpha: int, unit: Unit, max_rows: int) -> tuple[int, int]:
    """Price a whole event at one order in integer units, rounded up; looked up each round."""
    rdp = float(step_rdp(event, (alpha,), unit, max_rows)[0])
    one_tv = sampler_tv(replace(event, steps=1))
    return event.steps * _units(rdp, RDP_BITS), event.steps * _units(one_tv, TV_BITS)


def _units(value: float, bits: int, *, up: bool = True) -> int:
    """Convert a non-negative float to whole units of 2^-bits, rounded up or down.

    An infinite value becomes more than any limit.
    """
    if math.isinf(value):
        return 1 << (bits + 64)
    numerator, denominator = value.as_integer_ratio()
    scaled = numerator << bits
    return -(-scaled // denominator) if up else scaled // denominator
