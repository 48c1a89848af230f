"""Hold a vector of noise against the exact distribution that was charged, with stated false alarms.

Moments, because they are exact for every sum of shares: the cumulants of independent integers add.
A Skellam variable of variance V has all even cumulants V and no odd ones; a Gaussian, discrete ones
of the deviations used here included (to e^(-2 pi^2 V)), has none but the second. Each figure is
given in its own standard errors; by the central limit theorem it is then a standard normal one.

Shapes: N = samples.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privacy.errors import UsageError

LAGS = (1, 2, 4, 32_768)
"""The next sample, the AES block of four, two blocks, and the chunk of the sampler."""


@dataclass(frozen=True)
class NoiseLaw:
    """A symmetric distribution by its even cumulants.

    Attributes:
        variance: The second.
        tail: The fourth, sixth and eighth; 0 for a Gaussian, the variance for a Skellam.
    """

    variance: float
    tail: float

    @classmethod
    def skellam(cls, variance: float) -> "NoiseLaw":
        """Describe a Skellam variable, or a sum of them, by the variance of the whole."""
        return cls(variance, variance)

    @classmethod
    def gaussian(cls, variance: float) -> "NoiseLaw":
        """Describe a Gaussian variable."""
        return cls(variance, 0.0)

    def moment(self, order: int) -> float:
        """Give the moment of an even order up to 8, from the cumulants.

        Raises:
            UsageError: The order is another one.
        """
        v, k = self.variance, self.tail
        moments = {
            2: v,
            4: k + 3 * v**2,
            6: k + 15 * k * v + 15 * v**3,
            8: k + 28 * k * v + 35 * k**2 + 210 * k * v**2 + 105 * v**4,
        }
        if order not in moments:
            raise UsageError(f"moments of orders 2, 4, 6 and 8 are known, not {order}")
        return moments[order]


@dataclass(frozen=True)
class Deviations:
    """How far samples are from a law, each in standard errors of its own.

    Attributes:
        mean: Of the first moment.
        variance: Of the second.
        skewness: Of the third.
        kurtosis: Of the fourth.
    """

    mean: float
    variance: float
    skewness: float
    kurtosis: float

    @property
    def largest(self) -> float:
        """Return the largest magnitude; NaN if any is."""
        return float(np.abs([self.mean, self.variance, self.skewness, self.kurtosis]).max())


def deviations(noise_N: NDArray[np.float64], law: NoiseLaw) -> Deviations:
    """Compare the first four moments of samples, about zero, with those of a law."""
    fourth, sixth, eighth = (law.moment(2 * j) / law.variance**j for j in (2, 3, 4))
    root = math.sqrt(noise_N.size)
    unit_N = noise_N / math.sqrt(law.variance)
    square_N = unit_N * unit_N
    return Deviations(
        mean=float(unit_N.mean()) * root,
        variance=(float(square_N.mean()) - 1) * root / math.sqrt(fourth - 1),
        skewness=float((square_N * unit_N).mean()) * root / math.sqrt(sixth),
        kurtosis=(float((square_N * square_N).mean()) - fourth)
        * root
        / math.sqrt(eighth - fourth**2),
    )


def variance_ratio(noise_N: NDArray[np.float64], variance: float) -> float:
    """Give the measured variance, about zero, over the claimed one."""
    return float(np.mean(noise_N * noise_N)) / variance


def variance_false_alarm(count: int, law: NoiseLaw, tolerance: float) -> float:
    """Give the chance that the variance of samples of a law is off by more than a share of it.

    Args:
        count: N.
        law: The truth.
        tolerance: A share: 0.01 is one percent.
    """
    spread = math.sqrt((law.moment(4) / law.variance**2 - 1) / count)
    return float(2 * stats.norm.sf(tolerance / spread))


def largest_autocorrelation(noise_N: NDArray[np.float64], lags: tuple[int, ...] = LAGS) -> float:
    """Give the largest correlation of samples with later ones, in standard errors; 0 for no lag."""
    power = float(np.mean(noise_N * noise_N))
    if not power:
        return math.inf  # constant zero follows from itself
    found = [0.0]
    for lag in lags:
        if lag < noise_N.size:
            product = float(np.mean(noise_N[:-lag] * noise_N[lag:]))
            found.append(abs(product) / power * math.sqrt(noise_N.size - lag))
    return max(found)


def correlation(first_N: NDArray[np.float64], second_N: NDArray[np.float64]) -> float:
    """Give the correlation of two vectors of mean zero, in standard errors; infinite for zeros."""
    power = math.sqrt(float(np.mean(first_N**2)) * float(np.mean(second_N**2)))
    if not power:
        return math.inf
    return abs(float(np.mean(first_N * second_N))) / power * math.sqrt(first_N.size)


def threshold(false_alarm: float, figures: int = 1) -> float:
    """Give what none of so many standard normal figures exceeds in magnitude, but for this chance.

    Args:
        false_alarm: For all figures together, split evenly (Bonferroni).
        figures: How many there are.
    """
    return float(stats.norm.isf(false_alarm / (2 * figures)))
