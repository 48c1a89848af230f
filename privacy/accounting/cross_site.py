"""Price an event for a person whose data lie in several sites at once.

privacy.md, *Accounting*: a ledger protects one record (or user) of its own site. Whoever is a
customer of k banks adds a record to each; with one shared noise (D-REC) the k shares meet the same
noise, so the loss grows faster than k times one site's. These figures are shown, never charged.

One shared noise. Each site samples its records alone, so j ~ Bin(k, q) of the person's vectors are
in the sum, which moves by at most j*D2. With L_j the likelihood ratio of such a shift and f =
sum_j p_j L_j, no bound on single shifts gives E[f^alpha] exactly: it holds products of different
L_j. Three upper bounds, each valid at each order, of which the least is taken:

- *mixture*. Adding the person: E[f^a] = sum_m C(a,m) p_0^(a-m) E[(sum_{j>=1} p_j L_j)^m], and by
  Minkowski's inequality the last factor is at most S_m^m, S_m = sum_{j>=1} p_j E[L_j^m]^(1/m).
  For k = 1 this is Steinke's sum (arXiv 2210.00597). Removing: f >= p_0, so Taylor's formula with
  its remainder gives E[f^(1-a)] <= 1 + r(a) Var(f), r(a) = (p_0^(1-a) - 1 - (a-1) q') / q'^2, q' =
  1 - p_0, and Var(f) <= S_2^2 - q'^2. (r is the largest value of ((1+g)^(1-a) - 1 + (a-1) g) / g^2
  over g >= -q': that quotient falls in g, as the second derivative of (1+g)^(1-a) does.)
- *convexity*, for removing: Q against the mixture over j >= 1 of ((1-q') Q + q' Q_j), by joint
  convexity of exp((a-1) D_a) (van Erven, Harremoes 2014, arXiv 1206.2459, theorem 13).
- *split*: Skellam noise of variance V is the sum of k independent parts of V/k, one added to each
  site's share; the sum is post-processing of k releases, whose divergences add up.

Array suffixes: A = orders asked for, J = sites that drew the person, M = inner orders 2..max(A).
"""

import functools
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from privacy.accounting.accountant import (
    ORDERS,
    Accountant,
    poisson_subsampled_rdp,
    sampler_tv,
    skellam_rdp,
    step_rdp,
)
from privacy.accounting.events import (
    Event,
    GaussianRecordEvent,
    NoDpEvent,
    require_count,
    require_event,
)
from privacy.accounting.sensitivity import l1_sensitivity

Floats = NDArray[np.float64]

MAX_PERSON_SITES: Final = 1000
# As in the accountant: far more than float64 log-gamma and log-sum-exp lose.
_ROUND_UP: Final = 1 + 1e-10
_FLAT: Final = 1e-3


def person_rdp(event: Event, sites: int, orders: tuple[int, ...] = ORDERS) -> Floats:
    """Price one step for a person with one unit of data (a record, or a user) in each of k sites.

    Gaussian noise is each site's own: k releases, which add up. A site event does not bound what a
    person adds but by its site's whole vector: the sum moves by at most 2*k*D2, unsampled.

    Args:
        event: What every one of the sites takes part in; its `steps` are ignored here.
        sites: k, from 1 to 1000.
        orders: Integer orders, 2..1024.

    Returns:
        Renyi divergence a step, shape (A,), nats; infinite for `NoDpEvent`.

    Raises:
        UsageError: Unknown event, or sites or an order out of range.
    """
    known = require_event(event)
    require_count("sites of a person", sites, MAX_PERSON_SITES)
    unit = "record" if isinstance(known, NoDpEvent) or known.unit == "site" else known.unit
    single_A = step_rdp(known, orders, unit)
    if isinstance(known, NoDpEvent) or sites == 1:
        return single_A
    if isinstance(known, GaussianRecordEvent):
        return sites * single_A
    if known.unit == "site":
        shift = 2 * sites * known.D2
        alphas_A = np.array(orders, dtype=np.float64)
        return skellam_rdp(alphas_A, known.V, l1_sensitivity(shift, known.d), shift) * _ROUND_UP
    return _shared_noise(known.q, known.V, known.D1, known.D2, sites, orders)


class PersonAccountant(Accountant):
    """Compose a fixed schedule for a person in k sites; see `Accountant`."""

    def __init__(self, sites: int, orders: tuple[int, ...] = ORDERS) -> None:
        super().__init__(orders)
        self._sites = sites

    def _price(self, event: Event) -> Floats:
        return person_rdp(event, self._sites, self._orders)

    def _variation(self, event: Event) -> float:
        # All samplers of a shared sum are in the event; of local noise, one site's alone.
        return sampler_tv(event) * (self._sites if isinstance(event, GaussianRecordEvent) else 1)


@functools.lru_cache(maxsize=256)
def _shared_noise(
    q: float, V: float, D1: float, D2: float, sites: int, orders: tuple[int, ...]
) -> Floats:
    shifts_J = np.arange(1, sites + 1, dtype=np.float64)
    orders_M = np.arange(2, max(orders) + 1, dtype=np.float64)
    base_JM = np.stack([_shifted(V, D1, D2, j, orders_M) for j in shifts_J])
    at_A = np.array(orders) - 2
    if q == 1.0:
        price_A = np.asarray(base_JM[-1, at_A] * _ROUND_UP, dtype=np.float64)
    else:
        log_p0 = sites * math.log1p(-q)
        log_some = math.log(-math.expm1(log_p0))
        # Given that somebody drew the person: how many did.
        log_weights_J = stats.binom.logpmf(shifts_J, sites, q) - log_some
        log_growth_M = _log_growth(log_weights_J, base_JM, orders_M)
        added_A = _added(orders, log_p0, log_some, log_growth_M)
        removed_A = np.minimum(
            _removed(orders, log_p0, log_some, log_growth_M[0]),
            _convex(orders, math.exp(log_some), log_weights_J, base_JM),
        )
        split_M = _shifted(V / sites, D1, D2, 1.0, orders_M)
        split_A = sites * poisson_subsampled_rdp(orders, q, split_M)
        price_A = np.minimum(np.maximum(added_A, removed_A) * _ROUND_UP, split_A)
    price_A.setflags(write=False)
    return price_A


def _shifted(V: float, D1: float, D2: float, count: float, orders_M: Floats) -> Floats:
    """Bound the divergence of a shift by ``count`` integer vectors of at most (D1, D2)."""
    shift = count * D2
    return skellam_rdp(orders_M, V, min(count * D1, shift * shift), shift)


def _log_growth(log_weights_J: Floats, base_JM: Floats, orders_M: Floats) -> Floats:
    """Give log((S_m / q')^m - 1), S_m / q' = sum_j w_j E[L_j^m]^(1/m), without cancellation."""
    exponent_JM = (orders_M - 1) / orders_M * base_JM
    log_excess_M = special.logsumexp(log_weights_J[:, None] + _log_expm1(exponent_JM), axis=0)
    return _log_expm1(orders_M * np.logaddexp(0.0, log_excess_M))


def _added(orders: tuple[int, ...], log_p0: float, log_some: float, log_growth_M: Floats) -> Floats:
    """Bound D(with the person || without): the terms m = 0, 1 and the -1 of growth sum to 1."""
    prices = []
    for alpha in orders:
        m_M = np.arange(2, alpha + 1, dtype=np.float64)
        log_binomial_M = (
            special.gammaln(alpha + 1) - special.gammaln(m_M + 1) - special.gammaln(alpha - m_M + 1)
        )
        log_terms_M = (
            log_binomial_M + (alpha - m_M) * log_p0 + m_M * log_some + log_growth_M[: alpha - 1]
        )
        prices.append(np.logaddexp(0.0, special.logsumexp(log_terms_M)) / (alpha - 1))
    return np.array(prices)


def _removed(
    orders: tuple[int, ...], log_p0: float, log_some: float, log_growth_2: float
) -> Floats:
    """Bound D(without || with) by r(alpha) * Var(f), Var(f) <= q'^2 * growth."""
    power_A = np.array(orders, dtype=np.float64) - 1
    some = math.exp(log_some)
    with np.errstate(over="ignore", divide="ignore"):
        exact_A = np.log(np.expm1(-power_A * log_p0) - power_A * some)
        # Where that cancels: half of the second derivative of (1+g)^(1-a) at g = -q', times q'^2.
        flat_A = np.log(power_A * (power_A + 1) / 2) + 2 * log_some - (power_A + 2) * log_p0
    log_r_A = np.where(power_A * some < _FLAT, flat_A, exact_A)
    return np.asarray(np.logaddexp(0.0, log_r_A + log_growth_2) / power_A, dtype=np.float64)


def _convex(orders: tuple[int, ...], some: float, log_weights_J: Floats, base_JM: Floats) -> Floats:
    alphas_A = np.array(orders, dtype=np.float64)
    powers_JA = (alphas_A - 1) * np.stack(
        [poisson_subsampled_rdp(orders, some, base_M) for base_M in base_JM]
    )
    total_A = special.logsumexp(log_weights_J[:, None] + powers_JA, axis=0)
    # The weights sum to 1 only up to rounding: the divergence is never below 0.
    return np.asarray(np.maximum(total_A, 0.0) / (alphas_A - 1), dtype=np.float64)


def _log_expm1(values: Floats) -> Floats:
    """Give log(exp(x) - 1) for x >= 0; -inf at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(values + np.log(-np.expm1(-values)), dtype=np.float64)
