"""Stage 13: name model versions by the hash chain over their broadcasts.

A version is the flat float32 vector, little-endian. Its broadcast (``tidegate.broadcast``) names
the opened sum that made it, where sites can replay that, or its checkpoint.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tidegate.broadcast import CHECKPOINT_EVERY, Broadcast, ContentName, OpenedSumName
from tidegate.checkpoint import Checkpoint, CheckpointLayout
from tidegate.version_chain import chain_start

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class ModelVersion:
    """One published model.

    Attributes:
        version: From 0.
        sha256: Digest of ``data``.
        chain_head: The chain up to and with this version.
        data: The flat vector's bytes.
        broadcast: What the sites are told of it.
        announcement: How updates from it are encoded, beyond what the plan says.
        digests: Of the chunks of its checkpoint, where that is the version alone; empty where they
            were not taken.
    """

    version: int
    sha256: bytes
    chain_head: bytes
    data: bytes = field(repr=False)
    broadcast: Broadcast
    announcement: bytes = field(default=b"", repr=False)
    digests: tuple[bytes, ...] = field(default=(), repr=False, compare=False)

    def vector(self) -> Vector:
        """Show the bytes as a read-only vector, shape (D,)."""
        return np.frombuffer(self.data, dtype="<f4")

    def whole(self) -> Checkpoint:
        """Show a version that comes whole, without any state, as its checkpoint."""
        return _view(self.data, {}, self.announcement)


@dataclass(frozen=True)
class VersionContents:
    """What sites may fetch of a version beside its broadcast.

    Attributes:
        packed: The opened sum; empty where the version comes whole.
        checkpoint: Where its root is stated and the newest version's bytes do not show it.
    """

    packed: bytes = field(default=b"", repr=False)
    checkpoint: Checkpoint | None = None


def first_version(job_id: str, data: bytes, announcement: bytes = b"") -> ModelVersion:
    """Name the initial model of a job."""
    return _whole(chain_start(job_id), 0, data, announcement)


def next_version(
    previous: ModelVersion, values_D: Vector, announcement: bytes = b""
) -> ModelVersion:
    """Name the model that follows a version and comes whole."""
    data = np.ascontiguousarray(values_D, dtype="<f4").tobytes()
    return _whole(previous.chain_head, previous.version + 1, data, announcement)


def replayed_version(
    previous: ModelVersion,
    values_D: Vector,
    opened: tuple[bytes, int],
    state: Mapping[str, Vector],
    announcement: bytes = b"",
) -> tuple[ModelVersion, VersionContents]:
    """Name the model that sites make of a version by replay.

    Args:
        previous: The version that its updates were made from.
        values_D: The model, shape (D,).
        opened: The packed sum, and how many updates it holds.
        state: Of the server optimiser after the step, by name.
        announcement: How updates from the new version are encoded, beyond what the plan says.
    """
    packed, updates = opened
    version = previous.version + 1
    data = np.ascontiguousarray(values_D, dtype="<f4").tobytes()
    checkpoint = None
    if version % CHECKPOINT_EVERY == 0:
        checkpoint = _view(data, state, announcement)
    broadcast = Broadcast(
        version,
        OpenedSumName(ContentName.of(packed), previous.version, updates),
        None if checkpoint is None else checkpoint.name,
        ContentName.of(announcement) if announcement else None,
    )
    named = _named(previous.chain_head, data, broadcast, announcement)
    return named, VersionContents(packed, checkpoint)


def _whole(before: bytes, version: int, data: bytes, announcement: bytes) -> ModelVersion:
    whole = _view(data, {}, announcement)
    announced = ContentName.of(announcement) if announcement else None
    broadcast = Broadcast(version, checkpoint=whole.name, announcement=announced)
    return replace(_named(before, data, broadcast, announcement), digests=whole.digests)


def _view(data: bytes, state: Mapping[str, Vector], announcement: bytes) -> Checkpoint:
    model_D = np.frombuffer(data, dtype="<f4")
    layout = CheckpointLayout(model_D.size, tuple(sorted(state)), len(announcement))
    return layout.view(model_D, state, announcement)


def _named(before: bytes, data: bytes, broadcast: Broadcast, announcement: bytes) -> ModelVersion:
    digest = hashlib.sha256(data).digest()
    head = broadcast.head_after(before)
    return ModelVersion(broadcast.version, digest, head, data, broadcast, announcement)
