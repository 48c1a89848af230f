"""Keep at a site what its compressed updates have left unsaid, and say it in the next ones.

A lossy map drops most of each difference. The residual E remembers it: the site encodes V = delta +
decay * E, and once the result names it among the survivors, E becomes V minus what its own integers
decode to. Integers before noise: neither noise nor masks ever enter E (traffic.md, step 6).

A site that dropped out has said nothing: E becomes V, and nothing of it is lost. Where the same
version is trained from again, the new difference takes the place of the unsent one, or it would
count twice.

In mode record-distributed there is none: E would carry records past their step's accounting. In
mode site the payload is clipped after E is in, and the unit is all that the site holds; in
record-local delta and E are made of noised steps alone.

Shapes: D = gradient coordinates.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False, repr=False)
class _Pending:
    """An update whose fate is not known: from which version, V, and what it says of V."""

    version: int
    wanted_D: NDArray[np.float32]
    said_D: NDArray[np.float32]


@dataclass(eq=False)
class Residual:
    """The residual of one job at one site; secret as the differences are that it is made of.

    Attributes:
        decay: Share of E that goes into the next update, in (0, 1].
    """

    decay: float
    _kept_D: NDArray[np.float32] | None = field(default=None, repr=False)
    _pending: _Pending | None = field(default=None, repr=False)

    def add_to(self, delta_D: NDArray[np.float32], version: int) -> NDArray[np.float32]:
        """Give V, what the site would say of a difference and of all that was left before.

        An earlier update that was never settled counts as dropped.

        Args:
            delta_D: The difference, shape (D,).
            version: That it was trained from.
        """
        pending = self._pending
        if pending is not None and pending.version != version:
            self._kept_D = pending.wanted_D
        self._pending = None
        if self._kept_D is None:
            return delta_D
        carried_D = np.float32(self.decay) * self._kept_D
        carried_D += delta_D
        return carried_D

    def note(
        self, version: int, wanted_D: NDArray[np.float32], said_D: NDArray[np.floating]
    ) -> None:
        """Remember an update until it is known whether it came to be in the sum.

        Args:
            version: That it was trained from.
            wanted_D: V; not changed from here on.
            said_D: What the site's own integers decode to, before noise.
        """
        # What is not finite came of a training that diverged: it must not poison later updates.
        if np.isfinite(wanted_D).all():
            self._pending = _Pending(version, wanted_D, said_D.astype(np.float32))

    def settle(self, version: int) -> None:
        """Take note that the update from a version is in the sum; any other is left as it is."""
        pending = self._pending
        if pending is None or pending.version != version:
            return
        self._kept_D = pending.wanted_D - pending.said_D
        self._pending = None
