"""Metrics as coordinates of the noised vector: their layout, scale and reading.

A metric that left a site in the clear would be an uncharged release (privacy.md, D-REC step 3), so
each record's metrics are extra coordinates of the vector that is clipped, noised and masked. The
task writes one block a metric, of L2 norm at most 1; scaling all blocks by C_m / sqrt(k) keeps the
record's metric vector within C_m whatever k is. What is read back is a noised sum: counts may be
negative, and everything here is post-processing of it.

Shapes: M metric coordinates.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.errors import UsageError

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class MeanMetric:
    """The mean over records of a value in [0, upper]; one coordinate, ``value / upper``."""

    name: str
    upper: float

    @property
    def length(self) -> int:
        """Return the number of coordinates."""
        return 1


@dataclass(frozen=True)
class BinnedAuc:
    """Area under the ROC curve from counts of scores by bin; one-hot, negatives' bins first."""

    name: str
    bins: int

    @property
    def length(self) -> int:
        """Return the number of coordinates."""
        return 2 * self.bins


Metric = MeanMetric | BinnedAuc


@dataclass(frozen=True)
class MetricLayout:
    """The metrics of a job in the order of their blocks."""

    metrics: tuple[Metric, ...]

    def __post_init__(self) -> None:
        names = [metric.name for metric in self.metrics]
        if len(set(names)) != len(names):
            raise UsageError(f"metrics: names must differ, got {', '.join(names)}")

    @property
    def length(self) -> int:
        """Return M, the number of coordinates of all blocks."""
        return sum(metric.length for metric in self.metrics)

    def coordinate_scale(self, metrics_norm: float) -> float:
        """Return C_m / sqrt(k): what one record's block entry of 1.0 weighs in the sum."""
        return metrics_norm / math.sqrt(len(self.metrics)) if self.metrics else 0.0


def auc_from_counts(negatives: Vector, positives: Vector) -> float:
    """Return the AUC that counts of scores by ascending bin imply; ties within a bin count half.

    Counts may be noised, hence negative: the estimate is not clipped bin by bin, which would bias
    it, only at the end to [0, 1]. NaN when either class's count is not positive.
    """
    total_negative, total_positive = float(negatives.sum()), float(positives.sum())
    if total_negative <= 0 or total_positive <= 0:
        return math.nan
    below = np.cumsum(negatives) - negatives
    wins = float(positives @ (below + negatives / 2))
    return min(1.0, max(0.0, wins / (total_negative * total_positive)))


def summarise(layout: MetricLayout, counts_M: Vector, expected_records: float) -> dict[str, float]:
    """Read metric values from (noised) sums over records.

    Args:
        layout: The job's metrics.
        counts_M: Sums of the raw blocks, shape (M,): the decoded sum over ``coordinate_scale``.
        expected_records: The public expected number of records in the sum; used where no metric
            counts the records itself.

    Returns:
        One finite value a metric; a metric whose noised counts carry no signal is left out.
    """
    values: dict[str, float] = {}
    records, offset = expected_records, 0
    for metric in layout.metrics:
        if isinstance(metric, BinnedAuc):
            counted = float(counts_M[offset : offset + metric.length].sum())
            records = counted if counted > 0 else records
        offset += metric.length
    offset = 0
    for metric in layout.metrics:
        block = counts_M[offset : offset + metric.length]
        offset += metric.length
        if isinstance(metric, BinnedAuc):
            value = auc_from_counts(block[: metric.bins], block[metric.bins :])
        else:
            value = float(block[0]) / records * metric.upper
        if math.isfinite(value):
            values[metric.name] = value
    return values


@dataclass
class MetricAverager:
    """An exponential average over rounds of the noised sums, so that what is shown is steady."""

    layout: MetricLayout
    half_life_rounds: float = 20.0
    _sums: Vector | None = field(default=None, init=False, repr=False)
    _weight: float = field(default=0.0, init=False)

    def add(self, counts_M: Vector) -> None:
        """Take one round's noised sums of the raw blocks, shape (M,)."""
        keep = 0.5 ** (1 / self.half_life_rounds)
        if self._sums is None:
            self._sums = np.zeros_like(counts_M)
        self._sums = keep * self._sums + counts_M
        self._weight = keep * self._weight + 1.0

    def values(self, expected_records: float) -> dict[str, float]:
        """Return the metric values of the averaged sums; empty before the first round."""
        if self._sums is None:
            return {}
        return summarise(self.layout, self._sums / self._weight, expected_records)
