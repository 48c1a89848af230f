"""Read counts, means, spreads and quantiles from noised sums, each with its standard error.

Everything here is post-processing of what was published: it costs no privacy. The errors are those
of the noise alone, to first order: what they leave out is that the records are themselves a sample,
that values beyond the public bounds were cut there, and that a quantile is found no finer than the
bins are. In mode none they are zero.

Shapes: C = cells of a histogram, B = bins between the bounds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason
from tidegate.statistics_layout import NOISE, RECORDS, ColumnLayout, StatisticsLayout

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number and the standard error that the noise gives it; NaN where nothing can be said."""

    value: float
    error: float


_NOTHING = Estimate(math.nan, math.nan)
_DROWNED = 3.0
"""A count below so many of its standard errors is no number to divide by."""


@dataclass(frozen=True)
class ColumnSummary:
    """What the sums say of one column.

    Attributes:
        name: The column's.
        low: Public lower bound.
        high: Public upper bound.
        missing: Share of all records without a value.
        below: Share of the values below ``low``; of a column with levels, of values that are none.
        above: Share of the values above ``high``; zero with levels.
        mean: Of the values, cut to the bounds; None with levels, as the next two.
        std: Standard deviation, divided by the count.
        quantiles: By share, from the histogram.
        histogram: Noised counts of the bins, or of the levels.
        shares: Of each level among the values; empty without levels.
    """

    name: str
    low: float
    high: float
    missing: Estimate
    below: Estimate
    above: Estimate
    mean: Estimate | None
    std: Estimate | None
    quantiles: Mapping[float, Estimate]
    histogram: tuple[float, ...]
    shares: tuple[Estimate, ...]


@dataclass(frozen=True)
class Summary:
    """What the sums say.

    Attributes:
        records: How many there are.
        noise_std: Standard deviation of the noise in each sum.
        columns: In the order of the schema.
    """

    records: Estimate
    noise_std: float
    columns: tuple[ColumnSummary, ...]


def summarise(layout: StatisticsLayout, tensors: Mapping[str, NDArray[np.float32]]) -> Summary:
    """Read a job's model.

    Args:
        layout: The job's.
        tensors: The model's, by name.

    Raises:
        PeerError: WRONG_SHAPE: they are not those of the layout; NOT_FINITE.
    """
    shapes = {tensor.name: tensor.shape for tensor in layout.model_spec.tensors}
    if {name: array.shape for name, array in tensors.items()} != shapes:
        raise PeerError(Reason.WRONG_SHAPE, "the model is not the sums of the job's columns")
    sums = {name: array.astype(np.float64) for name, array in tensors.items()}
    if not all(np.isfinite(array).all() for array in sums.values()):
        raise PeerError(Reason.NOT_FINITE, "the sums hold NaN or infinity")
    noise, records = abs(float(sums[NOISE][0])), float(sums[RECORDS][0])
    columns = tuple(_summary(column, sums, records, noise) for column in layout.columns)
    return Summary(Estimate(max(0.0, records), noise), noise, columns)


def _summary(
    column: ColumnLayout, sums: Mapping[str, Vector], records: float, noise: float
) -> ColumnSummary:
    name = column.column.name
    cells_C = sums[f"{name}/histogram"]
    known = records - float(cells_C[-1])  # two noised numbers: twice the variance
    low, high = column.bounds
    inside = slice(1, column.bins + 1) if column.has_moments else slice(0, column.bins)
    outside = [float(cells_C[0]), float(cells_C[-2])] if column.has_moments else [cells_C[-2], 0.0]
    mean, std = None, None
    quantiles: dict[float, Estimate] = {}
    shares: tuple[Estimate, ...] = ()
    if column.has_moments:
        mean, std = _moments(sums[f"{name}/moments"], known, noise, (low, high))
        curve = _Curve.of(cells_C[:-1], noise, column.edges)
        quantiles = {share: curve.quantile(share) for share in QUANTILES}
    else:
        shares = tuple(_share(float(count), known, noise, 2) for count in cells_C[inside])
    return ColumnSummary(
        name=name,
        low=low,
        high=high,
        missing=_share(float(cells_C[-1]), records, noise, 1),
        below=_share(float(outside[0]), known, noise, 2),
        above=_share(float(outside[1]), known, noise, 2),
        mean=mean,
        std=std,
        quantiles=quantiles,
        histogram=tuple(cells_C[inside].tolist()),
        shares=shares,
    )


def _is_drowned(count: float, noise: float, variances: int) -> bool:
    return count <= max(0.0, _DROWNED * noise * math.sqrt(variances))


def _share(count: float, whole: float, noise: float, variances: int) -> Estimate:
    """Give count / whole, cut to [0, 1]; ``whole`` has that many times the noise's variance."""
    if _is_drowned(whole, noise, variances):
        return _NOTHING
    share = min(1.0, max(0.0, count / whole))
    return Estimate(share, noise / whole * math.sqrt(1 + variances * share**2))


def _moments(
    sums: Vector, known: float, noise: float, bounds: tuple[float, float]
) -> tuple[Estimate, Estimate]:
    """Give mean and standard deviation, by propagating the noise of both sums and the count."""
    if _is_drowned(known, noise, 2):
        return _NOTHING, _NOTHING
    low, high = bounds
    half = (high - low) / 2
    first, second = (float(value) / known for value in sums)
    first, second = min(1.0, max(-1.0, first)), min(1.0, max(0.0, second))
    step = noise / known
    mean_error = step * math.sqrt(1 + 2 * first**2)
    variance = max(0.0, second - first**2)
    variance_error = step * math.sqrt(1 + 4 * first**2 + 2 * (2 * first**2 - second) ** 2)
    deviation = math.sqrt(variance)
    # Where the variance is no larger than its error, a derivative at its root would say nothing.
    deviation_error = variance_error / (2 * max(deviation, math.sqrt(variance_error) / 2, 1e-150))
    return (
        Estimate((low + high) / 2 + half * first, half * mean_error),
        Estimate(half * deviation, half * deviation_error),
    )


@dataclass(frozen=True)
class _Curve:
    """The cumulative share of values at each edge, made monotone.

    Attributes:
        places: Values at which the share is known, ascending.
        shares: Cumulative shares there, ascending from 0 to 1.
        spread: Standard error of a share in the middle.
    """

    places: Vector
    shares: Vector
    spread: float

    @classmethod
    def of(cls, counts_C: Vector, noise: float, edges: Vector) -> "_Curve":
        """Sum up counts below, in and above the bins; what lies outside sits at the bounds."""
        rising_C = np.cumsum(counts_C)
        total = float(rising_C[-1])
        if _is_drowned(total, noise, len(counts_C)):
            return cls(edges, np.full(len(edges), math.nan), math.nan)
        # Noise makes the sums fall in places. Halfway between the running maximum from the left and
        # the running minimum from the right they rise, and stay what they were where they did.
        from_left = np.maximum.accumulate(rising_C)
        from_right = np.minimum.accumulate(rising_C[::-1])[::-1]
        shares_C = np.clip((from_left + from_right) / (2 * total), 0.0, 1.0)
        spread = noise / total * math.sqrt(len(counts_C)) / 2
        return cls(edges, shares_C[:-1], spread)

    def quantile(self, share: float) -> Estimate:
        """Give the value below which a share of the values lies, linear within a bin."""
        if math.isnan(self.spread):
            return _NOTHING
        # The error of a partial sum of C noised counts against the whole: sqrt(p (1 - p) C) noises.
        delta = self.spread * 2 * math.sqrt(share * (1 - share))
        low, high = self._at(max(0.0, share - delta)), self._at(min(1.0, share + delta))
        return Estimate(self._at(share), (high - low) / 2)

    def _at(self, share: float) -> float:
        place = int(np.searchsorted(self.shares, share, side="left"))
        if place == 0:
            return float(self.places[0])
        if place == len(self.shares):
            return float(self.places[-1])
        begin, end = float(self.shares[place - 1]), float(self.shares[place])
        part = (share - begin) / (end - begin)
        return float(self.places[place - 1] + part * (self.places[place] - self.places[place - 1]))
