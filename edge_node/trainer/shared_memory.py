"""Lay out the memory that the daemon and its trainer process share.

One anonymous file holds the model, two slots each of a batch of rows, its per-record gradients and
its per-record metrics, and room for bytes of a request or its answer: while the daemon clips and
sums what lies in one slot, the trainer fills the other (`tidegate.confine.shared_file`).

Shapes: D = coordinates of the model vector, P = rows of a physical batch, W = numbers of a row,
M = metrics a record.
"""

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.confine.shared_file import aligned, create_sealed

SLOTS = 2

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Slot:
    """One slot's arrays: float32 views of the shared memory."""

    rows_PW: FloatArray
    gradients_PD: FloatArray
    metrics_PM: FloatArray


@dataclass(frozen=True)
class SharedArrays:
    """The arrays of a mapped file."""

    model_D: FloatArray
    slots: tuple[Slot, ...]
    blob: NDArray[np.uint8]


@dataclass(frozen=True)
class SharedLayout:
    """The sizes that both sides agree on."""

    model_length: int
    physical_batch: int
    row_width: int
    metrics_length: int
    blob_bytes: int = 0

    @property
    def n_bytes(self) -> int:
        """Return the size of the file."""
        slot_bytes = sum(aligned(4 * self.physical_batch * width) for width in self._widths)
        return aligned(4 * self.model_length) + SLOTS * slot_bytes + aligned(self.blob_bytes)

    @property
    def _widths(self) -> tuple[int, int, int]:
        return self.row_width, self.model_length, self.metrics_length

    def create(self) -> int:
        """Make the file and give its descriptor, close-on-exec."""
        return create_sealed("tidegate-trainer", self.n_bytes)

    def attach(self, descriptor: int) -> SharedArrays:
        """Map the file; the descriptor may be closed afterwards.

        The mapping lasts as long as one of the arrays does.
        """
        memory = mmap.mmap(descriptor, self.n_bytes)
        begin = 0

        def next_array(*shape: int) -> FloatArray:
            nonlocal begin
            array: FloatArray = np.ndarray(shape, dtype=np.float32, buffer=memory, offset=begin)
            begin += aligned(array.nbytes)
            return array

        model_D = next_array(self.model_length)
        slots = tuple(
            Slot(*(next_array(self.physical_batch, width) for width in self._widths))
            for _ in range(SLOTS)
        )
        blob = np.ndarray((self.blob_bytes,), dtype=np.uint8, buffer=memory, offset=begin)
        return SharedArrays(model_D, slots, blob)
