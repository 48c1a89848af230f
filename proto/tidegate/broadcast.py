"""The broadcast of a model version: canonical bytes, by which all sites come to the same model.

A broadcast is small and travels in the train request. It names by digest what else a site may need:
the opened sum that turns the version before into this one (``tidegate.replay``), the announcement
that fixes how updates from it are encoded, and at every 32nd version, or where there is no sum, the
checkpoint that holds it whole (``tidegate.checkpoint``). The version chain hashes these bytes, so
whatever a site fetches is held against the chain (secure-aggregation.md, Values).

What comes from the wire is bounded here and compared with the job's plan by ``check``.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from privacy.errors import PeerError, Reason
from privacy.secagg.encoding import dec, enc
from tidegate.version_chain import chain_head, chain_start

CHECKPOINT_EVERY = 32
"""Versions between two roots that every site compares its own model with."""
LOG_VERSIONS = 64
"""The most versions that a log goes back."""
MAX_BYTES = 512
MAX_LOG_BYTES = LOG_VERSIONS * (MAX_BYTES + 16) + 256
MAX_ANNOUNCEMENT_BYTES = 3 << 20
"""It travels in the train request, a message of a session."""

_LABEL = "tidegate/broadcast/1"
_LOG_LABEL = "tidegate/version-log/1"
_HASH_BYTES = 32
_MAX_VERSION = 1_000_000
_MAX_UPDATES = 1_000_000
_MAX_CONTENT_BYTES = 1 << 38


@dataclass(frozen=True)
class ContentName:
    """Bytes by their SHA-256 and length; of a checkpoint, by the root over its chunks."""

    sha256: bytes
    size: int

    @classmethod
    def of(cls, data: bytes) -> "ContentName":
        """Name some bytes."""
        return cls(hashlib.sha256(data).digest(), len(data))


@dataclass(frozen=True)
class OpenedSumName:
    """The sum that makes a version.

    Attributes:
        packed: The ring integers, exactly B bits each, without a tail of metrics alone.
        encoded_at: The version that its updates were encoded for: the one that sites trained from.
        updates: How many sites' updates are in it.
    """

    packed: ContentName
    encoded_at: int
    updates: int


@dataclass(frozen=True)
class Broadcast:
    """See the module.

    Attributes:
        version: From 0.
        opened: What turns the version before into this one; None where it comes whole.
        checkpoint: The version whole; None where every site has to have it by replay.
        announcement: Of this version; None where the job's plan leaves nothing open.
    """

    version: int
    opened: OpenedSumName | None = None
    checkpoint: ContentName | None = None
    announcement: ContentName | None = None

    def __post_init__(self) -> None:
        if self.opened is None and self.checkpoint is None:
            raise PeerError(Reason.MALFORMED, "neither a sum nor a checkpoint")
        if self.opened is not None and not 0 <= self.opened.encoded_at < self.version:
            raise PeerError(Reason.MALFORMED, "its sum is of no version before it")
        if self.version % CHECKPOINT_EVERY == 0 and self.checkpoint is None:
            raise PeerError(Reason.MALFORMED, f"version {self.version} must state its root")

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Broadcast":
        """Read a broadcast as it came.

        Raises:
            PeerError: MALFORMED or TOO_LARGE: these are not the canonical bytes of one.
        """
        if len(raw) > MAX_BYTES:
            raise PeerError(Reason.TOO_LARGE, f"more than {MAX_BYTES} bytes")
        reader = _Parts(dec(raw), "broadcast")
        if reader.text() != _LABEL:
            raise PeerError(Reason.MALFORMED, "of another kind")
        version = reader.whole(_MAX_VERSION)
        packed = reader.content(_MAX_CONTENT_BYTES)
        encoded_at, updates = reader.whole(_MAX_VERSION), reader.whole(_MAX_UPDATES)
        opened = None if packed is None else OpenedSumName(packed, encoded_at, updates)
        checkpoint = reader.content(_MAX_CONTENT_BYTES)
        announcement = reader.content(MAX_ANNOUNCEMENT_BYTES)
        reader.end()
        if (updates > 0) != (opened is not None) or (opened is None and encoded_at):
            raise PeerError(Reason.MALFORMED, "updates and sum do not go together")
        return cls(version, opened, checkpoint, announcement)

    @cached_property
    def raw(self) -> bytes:
        """Return the canonical bytes."""
        opened = self.opened
        return enc(
            _LABEL,
            self.version,
            *_parts_of(None if opened is None else opened.packed),
            0 if opened is None else opened.encoded_at,
            0 if opened is None else opened.updates,
            *_parts_of(self.checkpoint),
            *_parts_of(self.announcement),
        )

    @property
    def sha256(self) -> bytes:
        """Return the digest that the version chain takes in."""
        return hashlib.sha256(self.raw).digest()

    def head_after(self, before: bytes) -> bytes:
        """Return the chain's head up to and with this version, from the head before it."""
        return chain_head(before, self.version, self.sha256)

    @property
    def contents(self) -> tuple[ContentName, ...]:
        """Return what a replay of this version needs."""
        packed = None if self.opened is None else self.opened.packed
        return tuple(name for name in (packed, self.announcement) if name is not None)


@dataclass(frozen=True)
class VersionLog:
    """The newest versions' broadcasts, with the chain's head before the first of them.

    Attributes:
        before: That head.
        broadcasts: Of consecutive versions, oldest first.
    """

    before: bytes
    broadcasts: tuple[Broadcast, ...] = field(repr=False)

    @classmethod
    def from_bytes(cls, raw: bytes) -> "VersionLog":
        """Read a log as it came.

        Raises:
            PeerError: MALFORMED or TOO_LARGE: it is none, or its versions are not consecutive.
        """
        if len(raw) > MAX_LOG_BYTES:
            raise PeerError(Reason.TOO_LARGE, f"version log: more than {MAX_LOG_BYTES} bytes")
        reader = _Parts(dec(raw), "version log")
        if reader.text() != _LOG_LABEL:
            raise PeerError(Reason.MALFORMED, "version log: of another kind")
        before = reader.blob(_HASH_BYTES)
        broadcasts = []
        while not reader.at_end:
            broadcasts.append(Broadcast.from_bytes(reader.blob()))
        versions = [broadcast.version for broadcast in broadcasts]
        if not versions or len(versions) > LOG_VERSIONS:
            message = f"version log: must hold 1 to {LOG_VERSIONS} versions"
            raise PeerError(Reason.MALFORMED, message)
        if versions != list(range(versions[0], versions[0] + len(versions))):
            raise PeerError(Reason.MALFORMED, "version log: its versions are not consecutive")
        return cls(before, tuple(broadcasts))

    def to_bytes(self) -> bytes:
        """Return the canonical bytes."""
        return enc(_LOG_LABEL, self.before, *(broadcast.raw for broadcast in self.broadcasts))

    @property
    def first(self) -> int:
        """Return its oldest version."""
        return self.broadcasts[0].version

    @property
    def last(self) -> int:
        """Return its newest version."""
        return self.broadcasts[-1].version

    def of(self, version: int) -> Broadcast:
        """Return the broadcast of one of its versions."""
        return self.broadcasts[version - self.first]

    def head_at(self, version: int) -> bytes:
        """Return the chain's head after a version, from the one before the first on."""
        head = self.before
        for broadcast in self.broadcasts[: version - self.first + 1]:
            head = broadcast.head_after(head)
        return head

    def check(self, job_id: str, last: Broadcast, head: bytes) -> None:
        """Refuse a log that does not lead to the version and head that were announced.

        Raises:
            PeerError: EQUIVOCATION.
        """
        starts = self.first > 0 or self.before == chain_start(job_id)
        if self.broadcasts[-1] != last or self.head_at(self.last) != head or not starts:
            raise PeerError(
                Reason.EQUIVOCATION,
                f"the version log does not lead to version {last.version} as it was announced",
            )


class _Parts:
    """Reads the parts of an encoding one by one, each of the type and size that is due."""

    def __init__(self, parts: tuple[str | bytes | int, ...], what: str) -> None:
        self._parts = parts
        self._what = what
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._parts)

    def text(self) -> str:
        part = self._next()
        return part if isinstance(part, str) else ""

    def whole(self, most: int) -> int:
        part = self._next()
        if not isinstance(part, int) or part > most:
            raise self._wrong(f"a whole number of at most {most} was due")
        return part

    def blob(self, size: int | None = None) -> bytes:
        part = self._next()
        if not isinstance(part, bytes) or (size is not None and len(part) != size):
            raise self._wrong("bytes of another length were due")
        return part

    def content(self, most: int) -> ContentName | None:
        digest, size = self.blob(), self.whole(most)
        if not digest and not size:
            return None
        if len(digest) != _HASH_BYTES or not size:
            raise self._wrong("a digest and a size were due")
        return ContentName(digest, size)

    def end(self) -> None:
        if not self.at_end:
            raise self._wrong("it has more parts than there are")

    def _next(self) -> str | bytes | int:
        if self.at_end:
            raise self._wrong("it is cut off")
        self._at += 1
        return self._parts[self._at - 1]

    def _wrong(self, why: str) -> PeerError:
        return PeerError(Reason.MALFORMED, f"{self._what}: part {self._at}: {why}")


def _parts_of(name: ContentName | None) -> tuple[bytes, int]:
    return (b"", 0) if name is None else (name.sha256, name.size)
