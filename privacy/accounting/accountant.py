"""Price events in Renyi differential privacy and convert to (epsilon, delta_dp).

privacy.md, *Accounting*. Integer orders only. Three theorems carry everything here:

- Skellam: Agarwal, Kairouz, Liu, *The Skellam Mechanism for DP Federated Learning* (2021), arXiv
  2110.04995, integer alpha >= 2, integer shifts.
- Poisson subsampling: Steinke, *Composition of DP & Privacy Amplification by Subsampling* (2022),
  arXiv 2210.00597, tight for integer alpha, adjacency add or remove. Its sum is the exact expansion
  of D(mixture || base); the other direction is no larger because the noise is symmetric: x -> v - x
  swaps the two laws (Mironov, Talwar, Zhang 2019, arXiv 1908.10530, theorem 5).
- Conversion: Canonne, Kamath, Steinke (2020), arXiv 2004.00010, proposition 12.

The guarantees are computational, as the samplers are seeded by a stream cipher. Opacus's "gdp"
accountant falls below the truth and has no place here.

Array suffixes: A = orders asked for, K = inner orders 2..max(A).
"""

import functools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from privacy.accounting.events import (
    UNITS,
    Event,
    NoDpEvent,
    SkellamRecordEvent,
    Unit,
    require_count,
    require_event,
    require_real,
)
from privacy.accounting.sensitivity import l1_sensitivity
from privacy.errors import UsageError

Floats = NDArray[np.float64]

_WIDTH: Final[dict[Unit, int]] = {"record": 0, "user": 1, "site": 2}
"""Units by what they hold: a user has records, a site has users."""

MAX_ORDER: Final = 1024
MAX_ROWS_PER_USER: Final = 2**30
ORDERS: Final[tuple[int, ...]] = (*range(2, 129), 160, 192, 256, 320, 384, 512)

# Float64 log-gamma of orders up to 1024 is good to some 1e-12 relative; the published price is
# rounded up by far more than that, so it never lies below the theorem.
_ROUND_UP: Final = 1 + 1e-10


def skellam_rdp(alphas_A: Floats, V: float, D1: float, D2: float) -> Floats:
    """Bound the Renyi divergence of integer sums under Skellam noise, before subsampling.

    alpha*D2^2/(2V) + min{((2 alpha - 1)*D2^2 + 6*D1)/(4V^2), 3*D1/(2V)} (Agarwal et al. 2021).

    Args:
        alphas_A: Integer orders >= 2, shape (A,).
        V: Variance a coordinate, grid units squared.
        D1: L1 sensitivity, grid units.
        D2: L2 sensitivity, grid units.

    Returns:
        The bounds, shape (A,), nats.
    """
    square = D2 * D2
    with np.errstate(over="ignore"):
        correction_A = np.minimum(
            ((2 * alphas_A - 1) * (square / V) + 6 * (D1 / V)) / (4 * V), 1.5 * (D1 / V)
        )
        return np.asarray(alphas_A * (square / V) / 2 + correction_A, dtype=np.float64)


def gaussian_rdp(alphas_A: Floats, z: float) -> Floats:
    """Give alpha / (2 z^2), the Renyi divergence of the Gaussian mechanism (Mironov 2017)."""
    return np.asarray(alphas_A / (2 * z * z), dtype=np.float64)


def poisson_subsampled_rdp(orders: tuple[int, ...], q: float, base_K: Floats) -> Floats:
    """Amplify by Poisson subsampling: the tight bound for integer orders (Steinke 2022).

    exp((a-1) eps'(a)) = 1 + sum_{k=2..a} C(a,k) (1-q)^(a-k) q^k (exp((k-1) eps(k)) - 1): the terms
    k = 0, 1 of the theorem and the -1 sum to 1 by the binomial theorem. All terms are positive, so
    nothing cancels, and the sum is taken in log space.

    The caller vouches for the theorem's premises, as this module does: base_K bounds the divergence
    in both directions for add or remove adjacency, and the noise is symmetric.

    Args:
        orders: Integer orders, each in 2..len(base_K)+1.
        q: Sampling rate in (0, 1].
        base_K: eps(k) for k = 2, 3, ..., shape (K,), non-negative nats.

    Returns:
        The amplified bounds, shape (A,), nats.

    Raises:
        UsageError: An order is no integer or has no base value, or a base value is negative or NaN.
    """
    require_real("sampling rate q", q, 0.0, 1.0)
    for alpha in orders:
        require_count("order alpha", alpha, min(MAX_ORDER, len(base_K) + 1), low=2)
    if not bool((base_K >= 0).all()):
        raise UsageError("subsampling needs non-negative Renyi bounds at every order 2..alpha")
    alphas_A = np.array(orders, dtype=np.float64)
    if q == 1.0:
        return np.asarray(base_K[np.array(orders) - 2], dtype=np.float64)
    k_K = np.arange(2, max(orders) + 1, dtype=np.float64)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        exponent_K = (k_K - 1) * base_K[: len(k_K)]
        gain_K = exponent_K + np.log(-np.expm1(-exponent_K))
        log_terms_AK = (
            _log_binomials(orders)
            + (alphas_A[:, None] - k_K) * math.log1p(-q)
            + (k_K * math.log(q) + gain_K)
        )
        # Outside the triangle log C(a, k) = -inf; with an infinite gain that would be NaN.
        log_terms_AK[k_K > alphas_A[:, None]] = -np.inf
        total_A = np.asarray(special.logsumexp(log_terms_AK, axis=1))
    return np.asarray(np.logaddexp(0.0, total_A) / (alphas_A - 1) * _ROUND_UP, dtype=np.float64)


def step_rdp(
    event: Event, orders: tuple[int, ...] = ORDERS, unit: Unit = "record", max_rows: int = 1
) -> Floats:
    """Price one step of an event for one privacy unit, at every order; cached.

    A record event against the user unit: a user's rows are sampled independently, so the user takes
    part with probability q' = 1 - (1-q)^m and then shifts the sum by at most m*D2 (m the row cap);
    by quasi-convexity over which rows were drawn, (q', m*D2) bounds both directions. A user event
    against the record unit: one record changes its user's clipped sum by at most 2*D2, both sides
    sampled alike, so joint convexity gives log(1 - q + q exp((a-1) eps(a; 2*D2))) / (a-1). A site
    event against the record or user unit is the same with q = 1: whatever changes inside a site,
    its clipped vector stays within D2. A record or user event has no finite price for a site.

    Args:
        event: What was done; its `steps` are ignored here.
        orders: Integer orders, 2..1024.
        unit: Whose privacy: "record", "user" or "site".
        max_rows: m, the cap on one user's rows; used for the user unit only.

    Returns:
        Renyi divergence a step, shape (A,), nats, read-only; infinite for `NoDpEvent`, and where
        the event does not bound what the unit adds.

    Raises:
        UsageError: Unknown event or unit, or an order or cap out of range.
    """
    known = require_event(event)
    if unit not in UNITS:
        raise UsageError(f"unknown privacy unit {unit!r}: known are {UNITS}")
    rows = require_count("max_rows", max_rows, MAX_ROWS_PER_USER) if unit == "user" else 1
    if not isinstance(orders, tuple) or not orders:
        raise UsageError("orders must be a non-empty tuple of integers")
    for alpha in orders:
        require_count("order alpha", alpha, MAX_ORDER, low=2)
    if isinstance(known, NoDpEvent) or _WIDTH[known.unit] < _WIDTH[unit] == _WIDTH["site"]:
        return np.full(len(orders), np.inf)
    # What is narrower than the event's unit changes that unit's vector: twice the sensitivity.
    replaced = _WIDTH[unit] < _WIDTH[known.unit]
    # The row cap plays no part where the event's own unit is that of the budget, or wider.
    group = rows if known.unit == "record" else 1
    if isinstance(known, SkellamRecordEvent):
        return _skellam_step(known, orders, group, replaced=replaced)
    return _gaussian_step(known.q, known.z, orders, group, replaced=replaced)


def sampler_tv(event: Event) -> float:
    """Give the total variation that an event's samplers cause: steps * n * d * TV a sample."""
    known = require_event(event)
    if isinstance(known, NoDpEvent):
        return 0.0
    sites = known.n_sites if isinstance(known, SkellamRecordEvent) else 1
    return float(known.steps) * sites * known.d * known.sampler_tv


def rdp_to_epsilon(
    rdp_A: Floats, orders: tuple[int, ...], delta_dp: float, tv: float = 0.0
) -> Floats:
    """Convert Renyi divergences to epsilon at delta_dp, for every order.

    epsilon = r + log(1 - 1/alpha) - log(delta*alpha)/(alpha - 1) (Canonne et al. 2020, prop. 12).
    Samplers that are tv away from the ideal law cost (1 + e^epsilon) * tv of delta_dp: P~(S) <=
    P(S) + tv and Q(S) <= Q~(S) + tv. As that depends on epsilon, the least fixed point is sought
    from below and only a certified value is returned.

    Args:
        rdp_A: Composed divergences, shape (A,), nats.
        orders: The integer orders of rdp_A.
        delta_dp: The DP delta, in (0, 1).
        tv: Total variation of all samplers used.

    Returns:
        Epsilon per order, shape (A,), at least 0; infinite where tv leaves nothing of delta_dp.

    Raises:
        UsageError: delta_dp or tv is out of range.
    """
    delta_dp = require_delta_dp(delta_dp)
    require_real("sampler total variation", tv, 0.0, math.inf, zero_allowed=True)
    alphas_A = np.array(orders, dtype=np.float64)
    epsilon_A = np.zeros(len(alphas_A))
    certified_A = np.zeros(len(alphas_A), dtype=np.bool_)
    for _ in range(200):
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            left_A = (
                delta_dp - (1 + np.exp(epsilon_A)) * tv if tv else np.full_like(rdp_A, delta_dp)
            )
            needed_A = rdp_A + np.log1p(-1 / alphas_A) - np.log(left_A * alphas_A) / (alphas_A - 1)
        needed_A = np.maximum(np.where(left_A > 0, needed_A, np.inf), 0.0)
        certified_A = needed_A <= epsilon_A
        if certified_A.all():
            return epsilon_A
        epsilon_A = np.where(certified_A, epsilon_A, needed_A + 1e-12)
    return np.where(certified_A, epsilon_A, np.inf)


def require_delta_dp(delta_dp: object) -> float:
    """Return delta_dp if it lies strictly between 0 and 1.

    Raises:
        UsageError: It does not.
    """
    value = require_real("delta_dp", delta_dp, 0.0, 1.0)
    if value == 1.0:
        raise UsageError("delta_dp is 1.0, must be below 1 (usually below 1 / number of records)")
    return value


class Accountant:
    """Compose events and give the best epsilon over all orders.

    For planning, calibration and reports on a schedule that is fixed in advance. The best order is
    picked after the fact, which is not valid for events chosen adaptively: enforcement is the
    ledger's, at one order fixed in advance (privacy.md, *Filter*).
    """

    def __init__(
        self, orders: tuple[int, ...] = ORDERS, unit: Unit = "record", max_rows: int = 1
    ) -> None:
        self._orders = orders
        self._unit: Unit = unit
        self._max_rows = max_rows
        self._rdp_A = np.zeros(len(orders))
        self._tv = 0.0

    def compose(self, event: Event) -> "Accountant":
        """Add an event with all of its steps.

        Raises:
            UsageError: The event is of no known kind.
        """
        price_A = self._price(event)  # refuses what is no event
        self._rdp_A = self._rdp_A + event.steps * price_A
        self._tv += self._variation(event)
        return self

    def compose_any(self, events: Sequence[Event]) -> "Accountant":
        """Add one of these events, whichever is chosen and when: the most at every order.

        Raises:
            UsageError: An event is of no known kind.
        """
        prices = [self._price(event) * event.steps for event in events]
        self._rdp_A = self._rdp_A + np.max(prices, axis=0)
        self._tv += max(self._variation(event) for event in events)
        return self

    def get_epsilon(self, delta_dp: float) -> float:
        """Give the smallest epsilon over all orders, at delta_dp; 0 when nothing was composed."""
        return self._best(delta_dp)[0]

    def best_alpha(self, delta_dp: float) -> int:
        """Give the order that `get_epsilon` picked."""
        return self._best(delta_dp)[1]

    def _price(self, event: Event) -> Floats:
        """Give the divergence of one step at every order."""
        return step_rdp(event, self._orders, self._unit, self._max_rows)

    def _variation(self, event: Event) -> float:
        """Give the total variation of all samplers of the event's steps."""
        return sampler_tv(event)

    def _best(self, delta_dp: float) -> tuple[float, int]:
        epsilon_A = rdp_to_epsilon(self._rdp_A, self._orders, delta_dp, self._tv)
        if not self._rdp_A.any() and self._tv == 0:
            return 0.0, self._orders[0]
        best = int(np.argmin(epsilon_A))
        return float(epsilon_A[best]), self._orders[best]


def _skellam_step(
    event: SkellamRecordEvent, orders: tuple[int, ...], group: int, *, replaced: bool
) -> Floats:
    if replaced:
        return _skellam_replaced(event.q, event.V, event.d, 2 * event.D2, orders)
    shift = group * event.D2
    l1_shift = min(group * event.D1, shift * shift)
    return _skellam_vector(_any_of(event.q, group), event.V, l1_shift, shift, orders)


@functools.lru_cache(maxsize=1024)
def _skellam_vector(q: float, V: float, D1: float, D2: float, orders: tuple[int, ...]) -> Floats:
    base_K = skellam_rdp(np.arange(2, max(orders) + 1, dtype=np.float64), V, D1, D2)
    return _frozen(poisson_subsampled_rdp(orders, q, base_K))


@functools.lru_cache(maxsize=256)
def _gaussian_step(
    q: float, z: float, orders: tuple[int, ...], rows: int, *, replaced: bool
) -> Floats:
    if replaced:
        return _replacement(q, gaussian_rdp(np.array(orders, dtype=np.float64), z / 2), orders)
    base_K = gaussian_rdp(np.arange(2, max(orders) + 1, dtype=np.float64), z / rows)
    return _frozen(poisson_subsampled_rdp(orders, _any_of(q, rows), base_K))


@functools.lru_cache(maxsize=256)
def _skellam_replaced(q: float, V: float, d: int, shift: float, orders: tuple[int, ...]) -> Floats:
    alphas_A = np.array(orders, dtype=np.float64)
    return _replacement(q, skellam_rdp(alphas_A, V, l1_sensitivity(shift, d), shift), orders)


def _replacement(q: float, base_A: Floats, orders: tuple[int, ...]) -> Floats:
    """Amplify a changed, not a missing, contribution by joint convexity."""
    alphas_A = np.array(orders, dtype=np.float64)
    exponent_A = (alphas_A - 1) * base_A
    with np.errstate(invalid="ignore"):
        gain_A = math.log(q) + exponent_A + np.log(-np.expm1(-exponent_A))
    return _frozen(np.logaddexp(0.0, gain_A) / (alphas_A - 1) * _ROUND_UP)


@functools.lru_cache(maxsize=64)
def _log_binomials(orders: tuple[int, ...]) -> Floats:
    """Give log C(alpha, k) for k = 2..max(orders), shape (A, K); -inf where k > alpha."""
    alphas_A1 = np.array(orders, dtype=np.float64)[:, None]
    k_K = np.arange(2, max(orders) + 1, dtype=np.float64)
    inside_AK = k_K <= alphas_A1
    rest_AK = np.where(inside_AK, alphas_A1 - k_K, 0.0)
    log_AK = (
        special.gammaln(alphas_A1 + 1) - special.gammaln(k_K + 1) - special.gammaln(rest_AK + 1)
    )
    return _frozen(np.where(inside_AK, log_AK, -np.inf))


def _any_of(q: float, rows: int) -> float:
    """Give the probability that at least one of a user's rows is sampled."""
    if rows == 1 or q == 1.0:
        return q
    return min(1.0, math.nextafter(-math.expm1(rows * math.log1p(-q)), math.inf))


def _frozen(values_A: Floats) -> Floats:
    """Make a cached array read-only: a caller must not be able to change a price."""
    frozen_A = np.asarray(values_A, dtype=np.float64)
    frozen_A.flags.writeable = False
    return frozen_A
