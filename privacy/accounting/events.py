"""What a budget is charged for: frozen events, apart from the accountants that price them.

An event states the parameters of a mechanism that ran (privacy.md, *Accounting*); what it costs in
Renyi divergence is the accountant's business. Here: the events, their validation and their strict
JSON-able form. Not here: any privacy arithmetic. A kind that is not in this file raises: an event
nobody can price must never be charged as if it were free.

Units: sensitivities ``D1``, ``D2`` and the variance ``V`` are in integer grid units (steps of 1/s).
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import ClassVar, Final, Literal

from privacy.errors import UsageError

Unit = Literal["record", "user", "site"]
UNITS: Final = ("record", "user", "site")

# Total variation between one sample of the exact Skellam law and one of the sampler, truncation of
# its table included. A 128-bit CDF table of up to 2^31 entries stays below this (privacy.md,
# *Samplers*); a sampler that cannot show it must state its own figure.
DEFAULT_SAMPLER_TV: Final = 2.0**-96

MAX_STEPS: Final = 2**40
MAX_DIMENSION: Final = 2**40
MAX_SITES: Final = 2**20
MAX_SENSITIVITY: Final = 2.0**62
MAX_VARIANCE: Final = 2.0**128


@dataclass(frozen=True)
class SkellamRecordEvent:
    """Record the release of noised integer sums over Poisson-sampled records.

    Adjacency: add or remove one record (``unit="record"``), one user with all of its rows
    (``unit="user"``: users are sampled, their rows summed, then clipped), or zero out one site's
    vector (``unit="site"``: every site takes part, so q is 1).

    Attributes:
        q: Public Poisson sampling rate, in (0, 1].
        V: Variance per coordinate that is guaranteed to be in the sum: V_site * m_h, grid units
            squared. Never the variance of all survivors.
        D1: L1 sensitivity of the integer sum, grid units.
        D2: L2 sensitivity of the integer sum, grid units; at least 1.
        d: Number of integers released a step, after all padding.
        n_sites: Sites whose samplers contribute noise (the whole cohort), for the sampler's TV.
        steps: How many such releases.
        sampler_tv: Total variation of one sample of the sampler.
        unit: What is sampled and clipped, "record", "user" or "site".
    """

    q: float
    V: float
    D1: float
    D2: float
    d: int
    n_sites: int
    steps: int = 1
    sampler_tv: float = DEFAULT_SAMPLER_TV
    unit: Unit = "record"

    KIND: ClassVar[str] = "skellam-record"

    def __post_init__(self) -> None:
        where = self.KIND
        _set_real(self, "q", 0.0, 1.0)
        _set_real(self, "V", 0.0, MAX_VARIANCE)
        _set_real(self, "D1", 0.0, MAX_SENSITIVITY)
        _set_real(self, "D2", 0.0, MAX_SENSITIVITY)
        _set_real(self, "sampler_tv", 0.0, 1.0, zero_allowed=True)
        _check_count(where, "d", self.d, MAX_DIMENSION)
        _check_count(where, "n_sites", self.n_sites, MAX_SITES)
        _check_count(where, "steps", self.steps, MAX_STEPS)
        _check_unit(where, self.unit, self.q)
        # Two integer vectors that differ do so by at least 1, and the L1 norm is never below the L2
        # norm: anything else means that real and grid units were mixed up.
        if self.D2 < 1.0 or self.D1 < self.D2:
            raise UsageError(
                f"{where}: D1={self.D1!r}, D2={self.D2!r} cannot be sensitivities of an integer sum"
                " (1 <= D2 <= D1); pass them in grid units, scaled by s"
            )


@dataclass(frozen=True)
class GaussianRecordEvent:
    """Record Poisson-subsampled Gaussian releases (DP-SGD), of ideal or of discrete noise.

    Adjacency: add or remove one record, or one user, as in `SkellamRecordEvent`. Discrete Gaussian
    noise costs no more than this at integer shifts (Canonne, Kamath, Steinke 2020, arXiv
    2004.00010, theorem 4); its sampler's total variation is counted apart.

    Attributes:
        q: Public Poisson sampling rate, in (0, 1].
        z: Noise multiplier: standard deviation over L2 sensitivity, rounding included.
        steps: How many such releases.
        d: Numbers released a step, for the sampler's TV.
        sampler_tv: Total variation of one sample; 0 for ideal noise.
        unit: What is sampled and clipped, "record" or "user".
    """

    q: float
    z: float
    steps: int = 1
    d: int = 1
    sampler_tv: float = 0.0
    unit: Unit = "record"

    KIND: ClassVar[str] = "gaussian-record"

    def __post_init__(self) -> None:
        _set_real(self, "q", 0.0, 1.0)
        _set_real(self, "z", 0.0, 1e9)
        _set_real(self, "sampler_tv", 0.0, 1.0, zero_allowed=True)
        _check_count(self.KIND, "steps", self.steps, MAX_STEPS)
        _check_count(self.KIND, "d", self.d, MAX_DIMENSION)
        _check_unit(self.KIND, self.unit, self.q)
        if self.unit == "site":
            raise UsageError(f"{self.KIND}: unit is 'site', must be 'record' or 'user'")


@dataclass(frozen=True)
class NoDpEvent:
    """Record a release without differential privacy (mode ``none``): epsilon is infinite.

    Attributes:
        steps: How many such releases.
    """

    steps: int = 1

    KIND: ClassVar[str] = "no-dp"

    def __post_init__(self) -> None:
        _check_count(self.KIND, "steps", self.steps, MAX_STEPS)


Event = SkellamRecordEvent | GaussianRecordEvent | NoDpEvent

_KINDS: Final[dict[str, type[SkellamRecordEvent | GaussianRecordEvent | NoDpEvent]]] = {
    kind.KIND: kind for kind in (SkellamRecordEvent, GaussianRecordEvent, NoDpEvent)
}


def require_event(event: object) -> Event:
    """Return the event if its kind is known.

    Raises:
        UsageError: It is anything else: an unknown event has no price.
    """
    if type(event) not in _KINDS.values():
        raise UsageError(
            f"unknown privacy event {type(event).__name__}: known are {sorted(_KINDS)}; "
            "an event that cannot be priced is never charged"
        )
    return event  # type: ignore[return-value]  # narrowed by the exact-type test above


def event_to_dict(event: Event) -> dict[str, object]:
    """Give the JSON-able form of an event: its kind and every field.

    Raises:
        UsageError: The event is of no known kind.
    """
    known = require_event(event)
    return {"kind": known.KIND, **asdict(known)}


def event_from_dict(data: object) -> Event:
    """Build an event from its JSON-able form; every field must be there and nothing else.

    Raises:
        UsageError: Unknown kind, unknown or missing key, or a value out of range.
    """
    if not isinstance(data, dict):
        raise UsageError(f"a privacy event must be an object, not {type(data).__name__}")
    kind_name = data.get("kind")
    kind = _KINDS.get(kind_name) if isinstance(kind_name, str) else None
    if kind is None:
        raise UsageError(f"unknown privacy event kind {kind_name!r}: known are {sorted(_KINDS)}")
    values = {key: value for key, value in data.items() if key != "kind"}
    require_keys(f"privacy event {kind_name}", values, {field.name for field in fields(kind)})
    return kind(**values)


def require_keys(where: str, data: dict[str, object], expected: set[str]) -> None:
    """Check that an object has exactly the expected keys.

    Raises:
        UsageError: A key is unknown or missing; the message names it.
    """
    unknown, missing = set(data) - expected, expected - set(data)
    if unknown or missing:
        raise UsageError(
            f"{where}: unknown keys {sorted(map(str, unknown))}, missing keys {sorted(missing)}"
        )


def require_real(
    where: str, value: object, low: float, high: float, *, zero_allowed: bool = False
) -> float:
    """Return a finite number in (low, high] as float; with ``zero_allowed``, low itself too.

    Raises:
        UsageError: It is no number (bool counts as none), not finite or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UsageError(f"{where} is {value!r}, must be a number")
    # Compared before the conversion: a huge int would overflow in float().
    if not (low < value <= high or (zero_allowed and value == low)):
        bracket = "[" if zero_allowed else "("
        raise UsageError(f"{where} is {value!r}, must lie in {bracket}{low!r}, {high!r}]")
    if not math.isfinite(number := float(value)):
        raise UsageError(f"{where} is {value!r}, must be finite")
    return number


def require_count(where: str, value: object, high: int, *, low: int = 1) -> int:
    """Return an integer in [low, high]; floats and bools are refused.

    Raises:
        UsageError: It is no int or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UsageError(f"{where} is {value!r}, must be an integer in [{low}, {high}]")
    return value


def _set_real(
    event: Event, name: str, low: float, high: float, *, zero_allowed: bool = False
) -> None:
    """Validate a field and store it as float, so that equal events have equal bytes."""
    where = f"{event.KIND}: {name}"
    value = require_real(where, getattr(event, name), low, high, zero_allowed=zero_allowed)
    object.__setattr__(event, name, value)


def _check_unit(where: str, unit: object, q: float) -> None:
    if unit not in UNITS:
        raise UsageError(f"{where}: unit is {unit!r}, must be one of {UNITS}")
    if unit == "site" and q != 1.0:
        raise UsageError(f"{where}: unit is 'site', but q is {q!r}: no site is sampled, q is 1")


def _check_count(kind: str, name: str, value: object, high: int) -> None:
    require_count(f"{kind}: {name}", value, high)
