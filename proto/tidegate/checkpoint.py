"""A model version whole, as a safetensors file in chunks of 1 MiB that are named by their content.

The file holds the flat model, what the server optimiser carries over, and the version's
announcement. Its layout follows from the job and the announcement's size alone, so a site knows the
file's header and its length before a byte arrives and parses nothing. Its **root** is the SHA-256
of the list of its chunks' SHA-256s; of a file of one chunk, that chunk's. Both ends hash what they
hold, part by part, without a copy of the whole; a site whose root differs fetches the list and the
chunks that differ.

Shapes: D = coordinates of the model vector.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from privacy.errors import PeerError, Reason, UsageError
from tidegate.broadcast import ContentName

CHUNK_BYTES = 1 << 20
MODEL = "model"
ANNOUNCEMENT = "announcement"

_HASH_BYTES = 32
_FLOAT32_BYTES = 4
_ALIGNMENT = 64

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class CheckpointLayout:
    """Where each part of a checkpoint lies.

    Attributes:
        length: D.
        fields: Names of the server optimiser's vectors, each (D,), in alphabetical order; none at
            version 0.
        announcement_bytes: Size of the version's announcement.
    """

    length: int
    fields: tuple[str, ...] = ()
    announcement_bytes: int = 0

    @cached_property
    def header(self) -> bytes:
        """Return what precedes the data: length and table of a safetensors file."""
        vector_bytes = _FLOAT32_BYTES * self.length
        table: dict[str, object] = {}
        begin = 0
        for name in (MODEL, *self.fields):
            table[name] = _entry("F32", self.length, begin, begin + vector_bytes)
            begin += vector_bytes
        if self.announcement_bytes:
            end = begin + self.announcement_bytes
            table[ANNOUNCEMENT] = _entry("U8", self.announcement_bytes, begin, end)
        text = json.dumps(table, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % _ALIGNMENT)
        return len(text).to_bytes(8, "little") + text

    @property
    def size(self) -> int:
        """Return the file's length in bytes."""
        vectors = 1 + len(self.fields)
        return len(self.header) + _FLOAT32_BYTES * self.length * vectors + self.announcement_bytes

    def view(
        self, model_D: Vector, state: Mapping[str, Vector], announcement: bytes = b""
    ) -> "Checkpoint":
        """Show a version's parts as the file, with no copy.

        Raises:
            UsageError: The parts do not fit the layout.
        """
        vectors = [model_D, *(state[field] for field in self.fields if field in state)]
        fits = all(v.shape == (self.length,) and v.dtype == np.float32 for v in vectors)
        if (
            not fits
            or state.keys() != set(self.fields)
            or len(announcement) != (self.announcement_bytes)
        ):
            raise UsageError("a model version does not fit the layout of its checkpoint")
        flat = [np.ascontiguousarray(vector, "<f4").data.cast("B") for vector in vectors]
        parts = [memoryview(self.header), *flat, memoryview(announcement)]
        return Checkpoint(tuple(part for part in parts if len(part)))

    def split(self, file: bytearray) -> tuple[Vector, dict[str, Vector], bytes]:
        """Show a whole file, whose root was checked, as model, state and announcement.

        Raises:
            PeerError: MALFORMED: it does not begin with this layout's header.
        """
        begin = len(self.header)
        if len(file) != self.size or bytes(file[:begin]) != self.header:
            raise PeerError(Reason.MALFORMED, "the checkpoint is not laid out as the job says")
        count = self.length * (1 + len(self.fields))
        vectors = np.frombuffer(file, "<f4", count, begin).reshape(-1, self.length)
        state = dict(zip(self.fields, vectors[1:], strict=True))
        end = begin + _FLOAT32_BYTES * count
        return vectors[0], state, bytes(file[end:])


@dataclass(frozen=True)
class Checkpoint:
    """A file as the parts of memory that it lies in."""

    parts: tuple[memoryview, ...]

    @property
    def size(self) -> int:
        """Return its length in bytes."""
        return sum(len(part) for part in self.parts)

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return a run of bytes: a view where it lies in one part, else a copy."""
        pieces = []
        for part in self.parts:
            if size > 0 and offset < len(part):
                piece = part[offset : offset + size]
                pieces.append(piece)
                size -= len(piece)
                offset = 0
            else:
                offset -= len(part)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, offset: int, data: bytes) -> None:
        """Put bytes in place of those that are there; the parts must be writable."""
        left = memoryview(data)
        for part in self.parts:
            if left and offset < len(part):
                room = min(len(left), len(part) - offset)
                part[offset : offset + room] = left[:room]
                left, offset = left[room:], 0
            else:
                offset -= len(part)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Give its chunks in order."""
        for offset in range(0, self.size, CHUNK_BYTES):
            yield self.read(offset, CHUNK_BYTES)

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """Return its chunks' SHA-256s; taken once."""
        return tuple(hashlib.sha256(chunk).digest() for chunk in self.chunks())

    @property
    def name(self) -> ContentName:
        """Return its root and size."""
        return ContentName(root_of(self.digests), self.size)


def chunk_count(size: int) -> int:
    """Give the number of chunks of a file."""
    return -(-size // CHUNK_BYTES)


def chunk_size(size: int, index: int) -> int:
    """Give the length of one chunk of a file of so many bytes."""
    return min(CHUNK_BYTES, size - index * CHUNK_BYTES)


def root_of(digests: Sequence[bytes]) -> bytes:
    """Give the root over chunks' digests."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()


def read_digests(raw: bytes, name: ContentName) -> tuple[bytes, ...]:
    """Read the list of a checkpoint's chunk digests.

    Raises:
        PeerError: WRONG_DIGEST: it is not the list that the root stands for.
    """
    digests = tuple(raw[at : at + _HASH_BYTES] for at in range(0, len(raw), _HASH_BYTES))
    if len(raw) != _HASH_BYTES * chunk_count(name.size) or root_of(digests) != name.sha256:
        raise PeerError(Reason.WRONG_DIGEST, "the list of chunks is not the checkpoint's")
    return digests


def _entry(dtype: str, length: int, begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": [length], "data_offsets": [begin, end]}
