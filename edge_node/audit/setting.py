"""How large an audit is, and where its coins come from.

Without a seed the sites draw their secrets from the operating system, as the daemon does: that is
what is audited. With one, every secret of the sites and every coin of the auditor derives from it,
so that a run repeats.
"""

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from unittest import mock

import numpy as np

from edge_node.rounds import cell_counts, local_dp, plain_training, record_sums, site_delta

SECRET_USERS: tuple[ModuleType, ...] = (
    record_sums,
    local_dp,
    plain_training,
    site_delta,
    cell_counts,
)
"""The modules that draw the coins, the rounding and the noise seeds of updates."""


@dataclass(frozen=True)
class Setting:
    """How much an audit looks at.

    Attributes:
        canaries: m of mode record-distributed; the other modes take a part of it.
        steps: Sums that each canary is in.
        coordinates: Of vectors whose noise is measured.
        tolerance: By how much a measured variance may be off, as a share.
        key: What the auditor's coins derive from, 32 bytes.
    """

    canaries: int
    steps: int
    coordinates: int
    tolerance: float
    key: bytes = field(repr=False)

    @classmethod
    def whole(cls, key: bytes) -> "Setting":
        """Give the audit of the design: 10^6 coordinates, where one percent is 7 deviations."""
        return cls(canaries=5000, steps=10, coordinates=1_000_000, tolerance=0.01, key=key)

    @classmethod
    def short(cls, key: bytes) -> "Setting":
        """Give an audit of seconds, which sees coarse faults only: 4 % is 6 deviations or more."""
        return cls(canaries=800, steps=4, coordinates=60_000, tolerance=0.04, key=key)

    def coins(self, purpose: str) -> np.random.Generator:
        """Begin the auditor's coins for a purpose."""
        digest = hashlib.sha256(self.key + purpose.encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest)))


class SeededSecrets:
    """Stands in the place of the module ``secrets``."""

    def __init__(self, key: bytes) -> None:
        """Begin the stream of a key."""
        self._key = key
        self._drawn = 0

    def token_bytes(self, size: int) -> bytes:
        """Give the next bytes."""
        self._drawn += 1
        return hashlib.shake_256(self._key + self._drawn.to_bytes(8, "big")).digest(size)


@contextlib.contextmanager
def secrets_from(source: object) -> Iterator[None]:
    """Have the sites' secrets come from a source that has ``token_bytes``."""
    with contextlib.ExitStack() as stack:
        for module in SECRET_USERS:
            stack.enter_context(mock.patch.object(module, "secrets", source))
        yield
