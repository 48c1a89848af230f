"""Estimate epsilon from canaries by fitting two normal distributions of one spread.

Where every canary is in each sum (sampling rate 1), the score of a canary that is in differs from
one that is out by a constant shift under the same noise: the Gaussian mechanism of parameter mu,
shift over deviation. Its exact trade-off is that of Balle and Wang (2018), arXiv 1805.06530,
theorem 8:

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

An estimate, no bound: it can lie on either side of the truth, by as much as `false_alarm` says. It
sees what the one-run bound misses, as it uses the size of the scores and not only their order.

Shapes: M = canaries.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from privacy.errors import UsageError

_MOST_EPSILON = 1e6
_BISECTIONS = 80


@dataclass(frozen=True)
class GaussianFit:
    """Two normal distributions of the same deviation.

    Attributes:
        mu: Estimate of shift over deviation.
        included: Canaries that were in.
        excluded: Canaries that were out.
    """

    mu: float
    included: int
    excluded: int

    def epsilon(self, delta: float) -> float:
        """Give epsilon of the fitted mechanism at delta; 0 where "in" does not score higher."""
        return gaussian_epsilon(self.mu, delta) if self.mu > 0 else 0.0

    def false_alarm(self, true_mu: float, most_mu: float) -> float:
        """Give the chance that the estimate of `true_mu` exceeds `most_mu`.

        The estimate times sqrt(n1 n2 / (n1 + n2)) follows the noncentral t distribution of
        n1 + n2 - 2 degrees of freedom, when scores are normal.
        """
        return float(stats.nct.sf(most_mu * self._root, self._freedom, true_mu * self._root))

    def limit(self, true_mu: float, false_alarm: float) -> float:
        """Give what the estimate of `true_mu` exceeds with this chance."""
        return float(stats.nct.isf(false_alarm, self._freedom, true_mu * self._root) / self._root)

    @property
    def _root(self) -> float:
        return math.sqrt(self.included * self.excluded / (self.included + self.excluded))

    @property
    def _freedom(self) -> int:
        return self.included + self.excluded - 2


def fit(scores_M: NDArray[np.float64], included_M: NDArray[np.bool_]) -> GaussianFit:
    """Fit the scores of canaries that were in and out.

    Args:
        scores_M: What the auditor saw of each canary.
        included_M: The coins.

    Raises:
        UsageError: The shapes differ, or one side has fewer than two canaries.
    """
    if scores_M.shape != included_M.shape or scores_M.ndim != 1:
        raise UsageError(f"scores {scores_M.shape} and coins {included_M.shape} do not match")
    inside, outside = scores_M[included_M], scores_M[~included_M]
    if min(inside.size, outside.size) < 2:
        raise UsageError("a fit needs two canaries in and two out at least")
    squares = np.sum((inside - inside.mean()) ** 2) + np.sum((outside - outside.mean()) ** 2)
    spread = math.sqrt(float(squares) / (scores_M.size - 2))
    shift = float(inside.mean() - outside.mean())
    mu = shift / spread if spread else math.copysign(math.inf, shift) if shift else 0.0
    return GaussianFit(mu, inside.size, outside.size)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Give delta of the Gaussian mechanism at epsilon."""
    with np.errstate(over="ignore"):
        second = math.exp(min(epsilon + float(special.log_ndtr(-mu / 2 - epsilon / mu)), 0.0))
    return float(special.ndtr(mu / 2 - epsilon / mu)) - second


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Give epsilon of the Gaussian mechanism at delta; infinite without noise.

    Args:
        mu: Shift over deviation, positive.
        delta: In (0, 1).

    Raises:
        UsageError: A number is out of range.
    """
    if not mu > 0 or not 0 < delta < 1:
        raise UsageError(f"no Gaussian mechanism of mu = {mu} has an epsilon at delta = {delta}")
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # epsilon = mu^2/2 + mu*t reaches delta <= Phi(-t), so this bracket always holds it.
    high = mu * mu / 2 + mu * float(-special.ndtri(delta)) + 1.0
    if not high < _MOST_EPSILON:
        return math.inf
    return _turn(lambda e: gaussian_delta(mu, e) < delta, 0.0, high)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Give the mu at which the Gaussian mechanism has this epsilon at delta.

    Raises:
        UsageError: A number is out of range.
    """
    if not epsilon > 0 or not 0 < delta < 1:
        raise UsageError(f"no Gaussian mechanism has epsilon = {epsilon} at delta = {delta}")
    high = 1.0
    while gaussian_delta(high, epsilon) < delta:
        high *= 2
    return _turn(lambda mu: gaussian_delta(mu, epsilon) > delta, 0.0, high)


def _turn(is_beyond: Callable[[float], bool], low: float, high: float) -> float:
    """Find where a monotone condition turns true, by bisection to the last bits."""
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_beyond(middle) else (middle, high)
    return high
