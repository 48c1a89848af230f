"""Lay out the memory that the aggregator and a ServerApp's process share.

One anonymous file (`tidegate.confine.shared_file`): the vector spec, one message's settings, the
model that the app sends or ends with, and the mean that it hears.

Shapes: D = coordinates of the model vector.
"""

import mmap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.confine.shared_file import aligned, create_sealed
from tidegate.flower_config import MAX_BYTES as CONFIG_BYTES


@dataclass(frozen=True)
class SharedModels:
    """The parts of a mapped file.

    Attributes:
        spec: The vector spec's canonical bytes.
        config: One message's settings, as many as a frame says.
        sent_D: From the app.
        mean_D: To the app.
    """

    spec: NDArray[np.uint8]
    config: NDArray[np.uint8]
    sent_D: NDArray[np.float32]
    mean_D: NDArray[np.float32]


@dataclass(frozen=True)
class ModelMemory:
    """The sizes that both sides agree on."""

    spec_bytes: int
    model_length: int

    @property
    def n_bytes(self) -> int:
        """Return the size of the file."""
        return sum(map(aligned, self._sizes))

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.spec_bytes, CONFIG_BYTES, 4 * self.model_length, 4 * self.model_length

    def create(self) -> int:
        """Make the file and give its descriptor, close-on-exec."""
        return create_sealed("tidegate-server-app", self.n_bytes)

    def attach(self, descriptor: int) -> SharedModels:
        """Map the file; the descriptor may be closed afterwards.

        The mapping lasts as long as one of the arrays does.
        """
        memory = np.frombuffer(mmap.mmap(descriptor, self.n_bytes), np.uint8)
        begin, parts = 0, []
        for size in self._sizes:
            parts.append(memory[begin : begin + size])
            begin += aligned(size)
        spec, config, sent, mean = parts
        return SharedModels(spec, config, sent.view(np.float32), mean.view(np.float32))
