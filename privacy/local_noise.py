"""The noise that a site adds alone to each of its local steps: discrete, on a fine grid.

privacy.md, *record-local*: clipped records are rounded to a grid of g parameter units, summed
exactly, and an integer is added to each coordinate whose deviation is z * D2 at least, D2 being the
integer sensitivity with its rounding term. g is a power of two near z*C/2^20, so rounding is lost
in the noise.

A table of deviation 2^20 would not fit a cache. So the integer is K*a + b with K = 512 and two
independent discrete Gaussians a, b of the same variance V. Its law is that of the discrete Gaussian
of variance (K^2 + 1)*V but for a factor within 1 +- 2^-220: the mass at x is
exp(-x^2 / (2*(K^2 + 1)*V)) times a sum over the integers k of exp(-(k - c(x))^2 / (2*t)) with
t = V/(K^2 + 1), which by Poisson summation varies with c by less than a factor of
1 +- 4*exp(-2*pi^2*t), and t >= 8 is required. Discrete Gaussian noise is priced as continuous one
of the same deviation (Canonne, Kamath, Steinke 2020, arXiv 2004.00010), so one step costs what
DP-SGD with noise multiplier z costs; tables and factor together are below ``DEFAULT_SAMPLER_TV`` a
sample.

Shapes: d = coordinates of a step.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privacy.accounting.sensitivity import record_rounding_sensitivity
from privacy.cdf_table import START_BITS, TAIL_BITS, CumulativeTable, table_of
from privacy.errors import PeerError, Reason, UsageError
from privacy.keystream import Label

LEVEL_RATIO = 512
"""K: what the coarse level's integers are multiplied by."""

MIN_LEVEL_VARIANCE = 8 * (LEVEL_RATIO**2 + 1)
MAX_LEVEL_VARIANCE = 2**34
MAX_STEPS = 1_000_000

_GAIN = LEVEL_RATIO**2 + 1
_STD_BITS = 20  # z*C is 2^20 to 2^21 grid steps
_MAX_EXPONENT = 64
_METRIC_ROOM = 4.0  # how much larger than expected noised mean metrics may be before they are cut
_FRACTION = 512  # bits of the fixed point that table weights are computed in


@dataclass(frozen=True)
class LocalNoise:
    """What a plan of mode ``record-local`` says about each site's local steps.

    Attributes:
        steps: Noised local steps that make one update.
        clip_gradient: C_g, parameter units: bound on what one record (or user) adds to a step.
        clip_metrics: C_m, metric units; 0 without metrics.
        expected_batch: Public divisor of one site's step, records (or users).
        grid_exponent: The grid is g = 2^grid_exponent parameter units.
        sensitivity: D2, grid units, rounding included.
        level_variance: V of each level; a coordinate's noise has variance (512^2 + 1) * V.

    Raises:
        PeerError: MALFORMED: a number is out of range.
    """

    steps: int
    clip_gradient: float
    clip_metrics: float
    expected_batch: float
    grid_exponent: int
    sensitivity: float
    level_variance: int

    def __post_init__(self) -> None:
        checks = {
            "steps": 1 <= self.steps <= MAX_STEPS,
            "clip_gradient": 0 < self.clip_gradient < math.inf,
            "clip_metrics": 0 <= self.clip_metrics < math.inf,
            "expected_batch": 0 < self.expected_batch < math.inf,
            "grid_exponent": -_MAX_EXPONENT <= self.grid_exponent <= _MAX_EXPONENT,
            "sensitivity": 0 < self.sensitivity < math.inf,
            "level_variance": MIN_LEVEL_VARIANCE <= self.level_variance <= MAX_LEVEL_VARIANCE,
        }
        for name, good in checks.items():
            if not good:
                message = f"plan field local.{name} = {getattr(self, name)!r} is out of range"
                raise PeerError(Reason.MALFORMED, message)

    @property
    def clip(self) -> float:
        """Return C with C^2 = C_g^2 + C_m^2."""
        return math.hypot(self.clip_gradient, self.clip_metrics)

    @property
    def grid(self) -> float:
        """Return g, parameter units."""
        return math.ldexp(1.0, self.grid_exponent)

    @property
    def variance(self) -> int:
        """Return the variance of a coordinate's noise, grid units squared."""
        return _GAIN * self.level_variance

    def metric_reach(self, noise_multiplier: float, metrics: int) -> float:
        """Bound a site's mean metrics of a round: their norm, and that of the noise on them.

        The mean is over steps and the expected batch. The bound is for the ring's range alone.

        Args:
            noise_multiplier: z of each step.
            metrics: M.
        """
        if not metrics:
            return 0.0
        spread = noise_multiplier * self.clip / (self.expected_batch * math.sqrt(self.steps))
        return _METRIC_ROOM * (self.clip_metrics + math.sqrt(metrics) * spread)

    def check_noise(self, noise_multiplier: float) -> None:
        """Refuse noise below z * D2, compared exactly.

        Raises:
            PeerError: POLICY: the variance is less than (z * D2)^2.
        """
        needed = (Fraction(noise_multiplier) * Fraction(self.sensitivity)) ** 2
        if self.variance < needed:
            message = (
                f"the plan adds noise of variance {self.variance} to a local step, its noise"
                f" multiplier and sensitivity ask for a deviation of"
                f" {noise_multiplier * self.sensitivity:.6g}"
            )
            raise PeerError(Reason.POLICY, message)


def choose_local_noise(
    clips: tuple[float, float], d: int, noise_multiplier: float, steps: int, expected_batch: float
) -> LocalNoise:
    """Choose grid and noise for a noise multiplier: deviation z * D2, rounded up.

    Args:
        clips: C_g and C_m.
        d: Coordinates of a step, gradient and metrics.
        noise_multiplier: z.
        steps: Noised local steps that make one update.
        expected_batch: Public divisor of one site's step.

    Raises:
        UsageError: The numbers give no usable grid.
        PeerError: A number is out of range.
    """
    clip = math.hypot(*clips)
    deviation = noise_multiplier * clip
    if not (math.isfinite(deviation) and deviation > 0):
        raise UsageError(f"noise of {noise_multiplier} times a norm of {clip} has no grid")
    exponent = math.frexp(deviation)[1] - 1 - _STD_BITS
    if abs(exponent) > _MAX_EXPONENT:
        raise UsageError(f"[privacy] clipping_norm = {clips[0]} is out of all proportion")
    sensitivity = record_rounding_sensitivity(clip, math.ldexp(1.0, -exponent), d).D2
    needed = (Fraction(noise_multiplier) * Fraction(sensitivity)) ** 2
    level_variance = math.ceil(needed / _GAIN)
    if level_variance > MAX_LEVEL_VARIANCE:
        raise UsageError(
            f"a noise multiplier of {noise_multiplier:g} on {d} coordinates is more than the local"
            " sampler carries: lower it, or use fewer coordinates"
        )
    return LocalNoise(
        steps, clips[0], clips[1], expected_batch, exponent, sensitivity, level_variance
    )


def local_noise(level_variance: int, seed: bytes, count: int) -> NDArray[np.int64]:
    """Draw independent discrete Gaussian integers of variance (512^2 + 1) * V, by two levels.

    Args:
        level_variance: V.
        seed: 32 secret bytes, used for nothing else and once only.
        count: Number of samples.

    Raises:
        UsageError: V is out of range, or the seed is not 32 bytes.
    """
    if not MIN_LEVEL_VARIANCE <= level_variance <= MAX_LEVEL_VARIANCE:
        raise UsageError(f"a level variance of {level_variance} gives no Gaussian of two levels")
    table = gaussian_table(level_variance)
    samples = table.sample(seed, count, (Label.LOCAL_COARSE, Label.LOCAL_COARSE_TIE))
    samples *= LEVEL_RATIO
    samples += table.sample(seed, count, (Label.LOCAL_FINE, Label.LOCAL_FINE_TIE))
    return samples


@lru_cache(maxsize=4)
def gaussian_table(variance: int) -> CumulativeTable:
    """Build the 128-bit table of the discrete Gaussian: P(k) proportional to exp(-k^2 / (2V)).

    Args:
        variance: V, a whole number.

    Raises:
        UsageError: V is not a whole number of the range that a table holds.
    """
    if isinstance(variance, bool) or not isinstance(variance, int):
        raise UsageError("the variance of a discrete Gaussian must be a whole number here")
    if not 1 <= variance <= MAX_LEVEL_VARIANCE:
        raise UsageError(f"a variance of {variance} is outside 1..{MAX_LEVEL_VARIANCE}")
    weights = list(_gaussian_weights(variance, _tail_start(variance, START_BITS)))
    return table_of(weights[::-1], _tail_start(variance, TAIL_BITS))


def _gaussian_weights(variance: int, last: int) -> Iterator[int]:
    """Give exp(-k^2 / (2V)) for k = 0 to ``last``, in fixed point.

    Each weight is the one before times exp(-(2k-1) / (2V)), a product that is itself carried on. A
    floor costs 2^-512 of a factor, so weight k is off by less than 4 (k + 1)^2 units: nothing to
    the 2^-200 of the last one.
    """
    root = _exp_of_minus(Fraction(1, 2 * variance))
    square = root * root >> _FRACTION
    weight, ratio = 1 << _FRACTION, root
    yield weight
    for _ in range(last):
        weight = weight * ratio >> _FRACTION
        ratio = ratio * square >> _FRACTION
        yield weight


def _exp_of_minus(x: Fraction) -> int:
    """Give exp(-x) for x in (0, 1/2] in fixed point, to a few units, by its series."""
    total, term, n = 0, 1 << _FRACTION, 0
    while term:
        total += term if n % 2 == 0 else -term
        n += 1
        term = term * x.numerator // (x.denominator * n)
    return total


def _tail_start(variance: int, bits: int) -> int:
    """Find a k for which P(|X| > k) is at most 2^-bits: P(X >= k) <= exp(-k^2 / (2V))."""
    return math.ceil(math.sqrt(2 * variance * (bits + 1) * math.log(2))) + 1
