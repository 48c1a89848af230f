"""Read times off a job's progress as the aggregator pushes it.

Warm-up rounds are left out: they pay for connections, caches and the first model download. The
steady rate is (last - first) / (time of last - time of first), where *first* is the first push at
or past the warm-up and *last* the last push that showed a new round. Pushes may skip rounds when
they follow each other fast; a skip of k rounds counts as k rounds of equal length.
"""

import itertools
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Push:
    """One push: when it came, on a monotonic clock, and how many rounds were complete."""

    at_s: float
    round: int


@dataclass(frozen=True)
class Pace:
    """How fast rounds went between two pushes."""

    first_round: int
    last_round: int
    seconds: float
    median_ms: float

    @property
    def rounds(self) -> int:
        """Return the rounds counted."""
        return self.last_round - self.first_round

    @property
    def rounds_per_s(self) -> float:
        """Return the steady rate."""
        return self.rounds / self.seconds


def steady_pace(pushes: list[Push], warm_up: int) -> Pace:
    """Compute the pace past the warm-up.

    Raises:
        ValueError: Fewer than two pushes with different rounds lie past the warm-up.
    """
    steps: list[Push] = []
    for push in pushes:
        if push.round >= warm_up and (not steps or push.round > steps[-1].round):
            steps.append(push)
    if len(steps) < 2:
        raise ValueError(f"too few rounds past the warm-up of {warm_up}: run more rounds")
    times_ms: list[float] = []
    for before, after in itertools.pairwise(steps):
        count = after.round - before.round
        times_ms += [1000 * (after.at_s - before.at_s) / count] * count
    return Pace(
        first_round=steps[0].round,
        last_round=steps[-1].round,
        seconds=steps[-1].at_s - steps[0].at_s,
        median_ms=statistics.median(times_ms),
    )
