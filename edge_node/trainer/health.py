"""Decide when a trainer is replaced and when it is given up: no clock, no process, only the rules.

A trainer is kept warm for a whole job. One that fails is started again after a wait that doubles,
so that an app that dies at once does not burn the site's processor; after a number of failures in
a row it is given up. One whose memory keeps growing is replaced between two rounds.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class HealthRules:
    """When to replace a trainer, and when to give it up.

    Attributes:
        max_restarts: Failures in a row after which the app is not started again.
        backoff_s: Wait before the start after a first failure; it doubles with each further one.
        backoff_max_s: Longest such wait.
        leak_rounds: Requests in a row over which memory is seen to grow or not.
        leak_share: Share of the memory limit that it may grow by over so many requests, each
            ending with more than the one before.
    """

    max_restarts: int = 5
    backoff_s: float = 0.5
    backoff_max_s: float = 60.0
    leak_rounds: int = 5
    leak_share: float = 0.1


class Restarts:
    """The failures of one trainer."""

    def __init__(self, rules: HealthRules) -> None:
        """Begin without a failure."""
        self._rules = rules
        self._failures = 0
        self._failed_at_s = 0.0
        self.last_reason = ""

    @property
    def given_up(self) -> bool:
        """Return whether the app has failed too often to be started again."""
        return self._failures > self._rules.max_restarts

    @property
    def failures(self) -> int:
        """Return how often it failed since it last answered a request."""
        return self._failures

    def failed(self, now_s: float, reason: str) -> None:
        """Count a failure of the app.

        Args:
            now_s: On a clock that never goes back.
            reason: For the site's own log; it may hold data.
        """
        self._failures += 1
        self._failed_at_s = now_s
        self.last_reason = reason

    def answered(self) -> None:
        """Forget the failures: a whole request was answered."""
        self._failures = 0

    def wait_s(self, now_s: float) -> float:
        """Give how long to wait before the next start."""
        if not self._failures:
            return 0.0
        rules = self._rules
        # Bounded before the power: a float overflows at 2**1024.
        doubled_s = rules.backoff_s * 2.0 ** min(self._failures - 1, 64)
        due_s = self._failed_at_s + min(doubled_s, rules.backoff_max_s)
        return max(0.0, due_s - now_s)


class MemoryWatch:
    """The memory of one trainer process after each request, in MiB."""

    def __init__(self, rules: HealthRules, limit_mib: float) -> None:
        """Begin with no reading.

        Args:
            rules: What counts as a leak.
            limit_mib: What the trainer's processes may use together.
        """
        self._limit_mib = limit_mib
        self._allowed_mib = rules.leak_share * limit_mib
        self._readings: deque[float] = deque(maxlen=rules.leak_rounds + 1)

    def fault(self, used_mib: float) -> str:
        """Take a reading and say why the process must be replaced; empty when it need not be."""
        self._readings.append(used_mib)
        if used_mib > self._limit_mib:
            return f"it holds {used_mib:.0f} MiB, more than its limit of {self._limit_mib:.0f} MiB"
        readings = list(self._readings)
        if len(readings) < (self._readings.maxlen or 0):
            return ""
        grows = all(before < after for before, after in pairwise(readings))
        grown_mib = readings[-1] - readings[0]
        if grows and grown_mib > self._allowed_mib:
            return (
                f"it leaks: {grown_mib:.0f} MiB more over {len(readings) - 1} requests in a row, "
                f"more than {self._allowed_mib:.0f} MiB"
            )
        return ""
