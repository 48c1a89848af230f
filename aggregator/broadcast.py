"""Stage 13: name model versions by the hash chain over their bytes, and keep the newest at hand.

Version v is the flat float32 vector, little-endian, and what is announced with it;
``tidegate.version_chain`` names both.
"""

import hashlib
from collections.abc import Container
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason
from privacy.secagg.messages import Fingerprint
from tidegate.version_chain import chain_head, chain_start


@dataclass(frozen=True)
class ModelVersion:
    """One published model.

    Attributes:
        version: From 0.
        sha256: Digest of ``data``.
        chain_head: The chain up to and with this version.
        data: The broadcast bytes.
        announcement: How updates from this version are encoded, beyond what the plan says.
    """

    version: int
    sha256: bytes
    chain_head: bytes
    data: bytes = field(repr=False)
    announcement: bytes = field(default=b"", repr=False)

    def vector(self) -> NDArray[np.float32]:
        """Show the bytes as a read-only vector, shape (D,)."""
        return np.frombuffer(self.data, dtype="<f4")


def first_version(job_id: str, data: bytes) -> ModelVersion:
    """Name the initial model of a job."""
    return _named(chain_start(job_id), 0, data)


def next_version(
    previous: ModelVersion, values_D: NDArray[np.float32], announcement: bytes = b""
) -> ModelVersion:
    """Name the model that follows a version."""
    data = np.ascontiguousarray(values_D, dtype="<f4").tobytes()
    return _named(previous.chain_head, previous.version + 1, data, announcement)


def _named(head: bytes, version: int, data: bytes, announcement: bytes = b"") -> ModelVersion:
    digest = hashlib.sha256(data).digest()
    named = chain_head(head, version, digest, announcement)
    return ModelVersion(version, digest, named, data, announcement)


class ContentShelf:
    """The contents that sites may download now, in memory, each with those who may see it."""

    def __init__(self) -> None:
        """Start empty."""
        self._contents: dict[bytes, tuple[bytes, Container[Fingerprint]]] = {}

    def put(self, sha256: bytes, data: bytes, audience: Container[Fingerprint]) -> None:
        """Offer a content; the audience may grow and shrink later."""
        self._contents[sha256] = (data, audience)

    def withdraw(self, sha256: bytes) -> None:
        """Take a content back."""
        self._contents.pop(sha256, None)

    def get(self, sha256: bytes, site: Fingerprint) -> bytes:
        """Return a content that is on offer to a site.

        Raises:
            PeerError: UNKNOWN_JOB, there is no such content, or not for this site: it is told no
                more than that.
        """
        data, audience = self._contents.get(sha256, (b"", ()))
        if site not in audience:
            raise PeerError(Reason.UNKNOWN_JOB, f"no content sha256:{sha256.hex()} is on offer")
        return data
