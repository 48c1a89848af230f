"""Expand a 32-byte seed to bytes with AES-256 in counter mode, one labelled stream a purpose.

Everything of the pipeline that looks random comes from here: signs and subsets of the shared map
(public seeds); coins of the sample, dither of the conditional rounding and noise (secret seeds).
The stream of a seed and a label is AES-256-CTR keyed with the seed, its first counter block being
the label's byte followed by fifteen zero bytes; the counter counts up big-endian. Two labels never
meet: that would take 2^120 blocks. A seed must serve one purpose and one vector; nothing here can
check that. The masks of secure aggregation have their own generator in ``privacy.secagg``.
"""

from enum import IntEnum

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from privacy.counter_mode import BLOCK_BYTES, KEY_BYTES, SLACK_BYTES, CounterStream
from privacy.errors import UsageError

SEED_BYTES = KEY_BYTES


class Label(IntEnum):
    """What a stream is for: the first byte of its counter block. Never reuse a number."""

    NOISE_FIRST = 1
    NOISE_TIE = 2
    MAP_SIGNS = 3
    MAP_SUBSET = 4
    ROUNDING = 5
    LOCAL_COARSE = 6
    LOCAL_COARSE_TIE = 7
    LOCAL_FINE = 8
    LOCAL_FINE_TIE = 9
    MAP_BASIS = 10
    SAMPLE = 0x20


def check_seed(seed: bytes) -> None:
    """Refuse a seed that is not exactly 32 bytes, without showing it.

    Raises:
        UsageError: The seed has another type or length.
    """
    if not isinstance(seed, bytes) or len(seed) != SEED_BYTES:
        message = f"a seed must be {SEED_BYTES} bytes; derive it with HKDF or read it from the OS"
        raise UsageError(message)


class Keystream:
    """Read one labelled stream of a seed from its start, or another block, on."""

    def __init__(self, seed: bytes, label: Label, block: int = 0) -> None:
        check_seed(seed)
        first_block = bytes([label]) + block.to_bytes(BLOCK_BYTES - 1, "big")
        self._stream = CounterStream(seed, first_block)

    def read(self, length: int) -> NDArray[np.uint8]:
        """Give the next bytes of the stream.

        Args:
            length: Number of bytes, at least 0.
        """
        buffer = np.empty(length + SLACK_BYTES, dtype=np.uint8)
        self._stream.read_into(buffer.data, length)
        return buffer[:length]


def blocks_at(seed: bytes, label: Label, positions_N: NDArray[np.int64]) -> list[bytes]:
    """Give the 16-byte blocks that stand at the given positions of a stream.

    Args:
        seed: 32 bytes.
        label: The stream's label.
        positions_N: Block numbers, each at least 0.
    """
    check_seed(seed)
    counters_NB = np.zeros((positions_N.size, BLOCK_BYTES), dtype=np.uint8)
    counters_NB[:, 0] = label
    counters_NB[:, 8:] = positions_N.astype(">u8").view(np.uint8).reshape(-1, 8)
    # One AES call per counter block is what counter mode does; ECB over counters is the same thing.
    encryptor = Cipher(algorithms.AES(seed), modes.ECB()).encryptor()  # noqa: S305
    stream = encryptor.update(counters_NB.tobytes())
    return [stream[i : i + BLOCK_BYTES] for i in range(0, len(stream), BLOCK_BYTES)]
