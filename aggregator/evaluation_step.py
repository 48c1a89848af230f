"""Read an evaluation job's metrics from its one noised sum, each with its standard error.

The model stays what it was: version 1 of an evaluation job is version 0.

Shapes: M = metric coordinates.
"""

import math

import numpy as np
from numpy.typing import NDArray

from aggregator.secure_rounds import GlobalModel, SecureRounds
from privacy.errors import UsageError
from privacy.metrics import BinnedAuc, MetricLayout, auc_from_counts

Vector = NDArray[np.float64]


class EvaluationStep:
    """See ``secure_rounds.ServerStep``; it keeps no state."""

    def __init__(self, metrics: MetricLayout) -> None:
        """Take the layout of the job's metrics."""
        self._metrics = metrics

    def step(
        self,
        round_number: int,  # noqa: ARG002 - the protocol's; there is one round
        global_D: NDArray[np.float32],
        rounds: SecureRounds,
    ) -> GlobalModel | None:
        """Run the one round with all sites that are there; blocks.

        Args:
            round_number: 1.
            global_D: The model that is evaluated, shape (D,).
            rounds: Carries the round out.

        Returns:
            The same model, with its metrics; None where the round was given up.
        """
        mean = rounds.run_round(rounds.wait_for_nodes())
        if mean is None:
            return None
        return GlobalModel(global_D, read_metrics(self._metrics, mean.values_U, mean.noise_std))

    def state(self) -> bytes:
        """Return nothing: one round needs no other."""
        return b""

    def restore(self, state: bytes) -> None:
        """Refuse any state.

        Raises:
            UsageError: There is one.
        """
        if state:
            raise UsageError("an evaluation job keeps no state between rounds")


def read_metrics(layout: MetricLayout, sums_U: Vector, noise_std: float) -> dict[str, float]:
    """Give each metric and its standard error, to first order, that of the noise alone.

    Args:
        layout: The job's metrics.
        sums_U: [records | metrics], as ``tidegate.evaluation_layout`` lays them out.
        noise_std: Standard deviation of the noise in each sum.

    Returns:
        ``records`` and every metric that the noise leaves a value, each with ``NAME_error``.
    """
    records = float(sums_U[0])
    found = {"records": records, "records_error": noise_std}
    offset = 1
    for metric in layout.metrics:
        block = sums_U[offset : offset + metric.length]
        offset += metric.length
        if isinstance(metric, BinnedAuc):
            value, error = _auc(block[: metric.bins], block[metric.bins :], noise_std)
        elif records > 0:
            share = min(1.0, max(0.0, float(block[0]) / records))
            value = share * metric.upper
            error = metric.upper * noise_std / records * math.hypot(1.0, share)
        else:
            value = error = math.nan
        if math.isfinite(value) and math.isfinite(error):
            found |= {metric.name: value, f"{metric.name}_error": error}
    return found


def _auc(negatives: Vector, positives: Vector, noise_std: float) -> tuple[float, float]:
    """Give the AUC of noised counts, and its error by its derivatives to each count."""
    value = auc_from_counts(negatives, positives)
    if not math.isfinite(value):
        return math.nan, math.nan
    all_negative, all_positive = float(negatives.sum()), float(positives.sum())
    below = np.cumsum(negatives) - negatives / 2
    above = all_positive - np.cumsum(positives) + positives / 2
    to_positives = (below / all_negative - value) / all_positive
    to_negatives = (above / all_positive - value) / all_negative
    gradient = math.hypot(float(np.linalg.norm(to_positives)), float(np.linalg.norm(to_negatives)))
    return value, noise_std * gradient
