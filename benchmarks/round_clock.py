"""Read from the aggregator's journal when each round was committed, and compute the pace.

Progress is pushed to watchers at most ten times a second, too coarse for one round; the journal has
the moment at which each round's model version became durable. Warm-up rounds are left out: they pay
for connections, caches and tables. With t(r) the commit time of round r and w the warm-up, the
steady rate is (last - w) / (t(last) - t(w)), and a round's time is t(r) - t(r - 1), r > w.
"""

import itertools
import sqlite3
import statistics
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

_COMMITS = """
SELECT round, at_s FROM journal
WHERE kind = 'round-committed' AND job_id = coalesce(:job_id, job_id) ORDER BY round
"""


@dataclass(frozen=True)
class Pace:
    """How fast the rounds past the warm-up went."""

    rounds: int
    rounds_per_s: float
    median_ms: float


def commit_times(database: Path, job_id: str | None = None) -> dict[int, float]:
    """Return when each round of a job, or of the only one, was committed: Unix seconds."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        rows = connection.execute(_COMMITS, {"job_id": job_id})
        return {int(number): float(at_s) for number, at_s in rows}


def steady_pace(committed_s: Mapping[int, float], warm_up: int) -> Pace:
    """Compute the pace past the warm-up.

    Args:
        committed_s: Commit time by round, from round 1 on.
        warm_up: Rounds that do not count, at least 1.

    Raises:
        ValueError: No round lies past the warm-up.
    """
    counted = [committed_s[number] for number in sorted(committed_s) if number >= warm_up]
    if len(counted) < 2:
        raise ValueError(f"no round past the warm-up of {warm_up}: run more rounds")
    times_s = [after - before for before, after in itertools.pairwise(counted)]
    return Pace(
        rounds=len(times_s),
        rounds_per_s=len(times_s) / (counted[-1] - counted[0]),
        median_ms=1000 * statistics.median(times_s),
    )
