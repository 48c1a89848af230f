"""Say where a job can go on from, and what one finished exchange changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aggregator.broadcast import ModelVersion
from tidegate.messages import TRAIN


@dataclass(frozen=True)
class Checkpoint:
    """Where a job can go on from.

    Attributes:
        model: The newest model version.
        strategy: What ``Optimiser.state`` gave after it; empty before the first round.
        exchange: The number of the last finished exchange.
    """

    model: ModelVersion
    strategy: bytes = field(repr=False)
    exchange: int


@dataclass(frozen=True)
class CommittedRound:
    """Everything that one finished exchange changes, made durable together.

    Attributes:
        attempt: The attempt that succeeded; of groups, the last that was used.
        checkpoint: Model version and strategy state after it, and its number.
        transcript_hash: Of the attempt, or over those of the groups' attempts.
        survivors: Names of the sites in the sum, or in the sums that were combined.
        metric_sums: Noised sums of the raw metric blocks, for averages after a restart.
        metrics: What was shown of the round, for the report.
        elapsed_s: The job's running time so far.
        progress: JSON for the job's row.
        purpose: What the exchange was for.
        publishes: Whether its model is a new version.
        groups: Attempt and survivors of each sum that was used.
        wrap_rate: Estimated share of coordinates that wrapped, of the worst of the round's sums.
    """

    attempt: int
    checkpoint: Checkpoint
    transcript_hash: bytes
    survivors: tuple[str, ...]
    metric_sums: tuple[float, ...]
    metrics: Mapping[str, float]
    elapsed_s: float
    progress: bytes = field(repr=False)
    purpose: str = TRAIN
    publishes: bool = True
    groups: tuple[tuple[int, tuple[str, ...]], ...] = ()
    wrap_rate: float = 0.0
