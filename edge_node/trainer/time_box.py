"""Say when a site stops to take local steps: after a fixed wall time, by its own monotonic clock.

How many steps fit is between the site and its machine: each step handles a public number of rows
whatever it draws, and the number of steps is told to nobody.
"""

import time
from collections.abc import Callable

from privacy.errors import UsageError

Clock = Callable[[], float]
"""Gives seconds that never run backwards."""


class TimeBox:
    """One round's time to train in. The first step is always taken, however long it lasts."""

    def __init__(self, length_s: float, clock: Clock = time.monotonic) -> None:
        """Take the length and the clock; the box opens with `begin`.

        Raises:
            UsageError: The length is not positive.
        """
        if not length_s > 0:
            raise UsageError(f"a time box must have a positive length, not {length_s} s")
        self._length_s = length_s
        self._clock = clock
        self._ends_s = 0.0

    def begin(self) -> None:
        """Open the box now."""
        self._ends_s = self._clock() + self._length_s

    @property
    def is_over(self) -> bool:
        """Say whether no further step may begin."""
        return self._clock() >= self._ends_s
