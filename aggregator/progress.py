"""Count what is shown of a job: rounds, metrics, and each site's part, traffic and time.

Everything here is public to the operator anyway: sizes and times of messages, what sites report of
their budget, and metrics read from noised sums. Kept as JSON with each round, so that a restart
goes on counting.
"""

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

_LOG_LINES = 200
_RATE_ROUNDS = 50


@dataclass
class SiteTally:
    """One site's part in a job.

    Attributes:
        epsilon: Spent on the data set, as the site's ledger says.
        bytes_up: Bytes that the site sent: messages, their gRPC frames, uploads.
        bytes_down: Bytes sent to it.
        train_s: Seconds it trained, by its own clock, as are the two below.
        exchange_s: Seconds in secure exchanges.
        wait_s: Seconds it waited for others.
        rounds_in: Rounds whose sum holds its update.
        dropped: Rounds that it began and that finished without it.
        state: What it does now (``round.SiteState``).
        detail: Why, where there is something to say.
        group: The group that it is or was last in, from 1; 0 where cohorts are not in groups.
    """

    epsilon: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    train_s: float = 0.0
    exchange_s: float = 0.0
    wait_s: float = 0.0
    rounds_in: int = 0
    dropped: int = 0
    state: str = "absent"
    detail: str = ""
    group: int = 0


@dataclass
class JobProgress:
    """What is shown of one job.

    Attributes:
        attempts_repeated: Attempts beyond one an exchange, also those that a crash cut off: sites
            may have been charged for each.
    """

    round: int = 0
    attempts_aborted: int = 0
    attempts_repeated: int = 0
    sites: dict[str, SiteTally] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    stalled: str = ""
    log: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))
    past_rate: float = 0.0
    wrap_rate: float = 0.0
    _committed_s: deque[float] = field(default_factory=lambda: deque(maxlen=_RATE_ROUNDS))

    @classmethod
    def from_json(cls, raw: bytes, site_ids: Iterable[str]) -> "JobProgress":
        """Go on from what ``to_json`` gave, for these sites."""
        kept = json.loads(raw)
        tallies = kept.get("sites", {})
        progress = cls(
            round=kept.get("round", 0),
            attempts_aborted=kept.get("attempts_aborted", 0),
            attempts_repeated=kept.get("attempts_repeated", 0),
            metrics=kept.get("metrics", {}),
            past_rate=kept.get("rounds_per_s", 0.0),
            wrap_rate=kept.get("wrap_rate", 0.0),
            sites={name: SiteTally(**tallies.get(name, {})) for name in site_ids},
        )
        progress.log.extend(kept.get("log", ()))
        return progress

    def to_json(self, finished: int | None = None) -> bytes:
        """Give what a restart needs.

        Args:
            finished: A round that counts as finished from when this is durable.
        """
        return json.dumps(
            {
                "round": self.round if finished is None else finished,
                "attempts_aborted": self.attempts_aborted,
                "attempts_repeated": self.attempts_repeated,
                "metrics": self.metrics,
                "rounds_per_s": self.rounds_per_s(),
                "wrap_rate": self.wrap_rate,
                "sites": {name: asdict(tally) for name, tally in self.sites.items()},
                "log": list(self.log)[-20:],
            },
            separators=(",", ":"),
        ).encode()

    def say(self, line: str, now_s: float) -> None:
        """Add a line to the job's log."""
        moment = datetime.fromtimestamp(now_s, UTC).strftime("%H:%M:%S")
        self.log.append(f"{moment} {line}")

    def committed(self, round_number: int, now_s: float) -> None:
        """Count a finished round."""
        self.round = round_number
        self._committed_s.append(now_s)

    def rounds_per_s(self) -> float:
        """Return the rate over the last rounds; that before a restart until there is a new one."""
        times = self._committed_s
        span_s = times[-1] - times[0] if len(times) > 1 else 0.0
        return (len(times) - 1) / span_s if span_s > 0 else self.past_rate
