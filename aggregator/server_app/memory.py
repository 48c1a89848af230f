"""Lay out the memory that the aggregator and a ServerApp's process share.

One anonymous file of sealed size: the vector spec, one message's settings, the model that the app
sends or ends with, and the mean that it hears. What lies in it is the process's to change at any
time, so the aggregator copies before it checks.

Shapes: D = coordinates of the model vector.
"""

import fcntl
import mmap
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidegate.flower_config import MAX_BYTES as CONFIG_BYTES

_ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


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
        """Return the size of the file. Pages that nobody writes take no memory."""
        return sum(map(_aligned, self._sizes))

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.spec_bytes, CONFIG_BYTES, 4 * self.model_length, 4 * self.model_length

    def create(self) -> int:
        """Make the file and give its descriptor, close-on-exec."""
        descriptor = os.memfd_create("tidegate-server-app", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, self.n_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor

    def attach(self, descriptor: int) -> SharedModels:
        """Map the file; the descriptor may be closed afterwards.

        The mapping lasts as long as one of the arrays does.
        """
        memory = np.frombuffer(mmap.mmap(descriptor, self.n_bytes), np.uint8)
        begin, parts = 0, []
        for size in self._sizes:
            parts.append(memory[begin : begin + size])
            begin += _aligned(size)
        spec, config, sent, mean = parts
        return SharedModels(spec, config, sent.view(np.float32), mean.view(np.float32))


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
