"""Run AES-256 in counter mode into buffers that are given, as fast as the processor allows.

A stream that begins at a counter block whose last 32 bits are zero is GCM's own counter mode: with
the first 96 bits of that block as nonce, GCM encrypts its text from the counter's value 2 on (NIST
SP 800-38D, 7.1). The two blocks before come from the cipher in counter mode, all others from GCM,
whose tag nobody asks for. The bytes are the same (a test holds both to single blocks of the cipher)
and arrive about twice as fast where OpenSSL has GCM, but not counter mode, in the instructions that
encrypt four blocks at once (VAES); docs/adr/0018. Where a stream begins elsewhere it is counter
mode throughout.

The caller sees to it that no key and counter block meet twice.
"""

from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from privacy.errors import UsageError

KEY_BYTES = 32
BLOCK_BYTES = 16
PIECE_BYTES = 1 << 17
"""Text, keystream and what is done with it stay in the second-level cache together."""

SLACK_BYTES = BLOCK_BYTES - 1
"""Room that the cipher asks for behind the bytes it writes."""

_NONCE_BYTES = 12
_HEAD_BYTES = 2 * BLOCK_BYTES  # the counter's values 0 and 1, which GCM keeps to itself
_ZEROS = memoryview(bytes(PIECE_BYTES))


class CounterStream:
    """One keystream, read from its first block on."""

    def __init__(self, key: bytes, first_block: bytes) -> None:
        """Open a stream.

        Args:
            key: 32 bytes.
            first_block: The counter block it begins at, 16 bytes; counts up big-endian.

        Raises:
            UsageError: The key or the block has another length.
        """
        if len(key) != KEY_BYTES or len(first_block) != BLOCK_BYTES:
            raise UsageError("AES-256 in counter mode takes a key of 32 bytes and a block of 16")
        self._stream: CipherContext = Cipher(AES256(key), CTR(first_block)).encryptor()
        self._next: CipherContext | None = None
        self._left = 0  # bytes until the next cipher's turn
        if not any(first_block[_NONCE_BYTES:]):
            self._next = Cipher(AES256(key), GCM(first_block[:_NONCE_BYTES])).encryptor()
            self._left = _HEAD_BYTES

    def read_into(self, buffer: memoryview, size: int) -> None:
        """Write the next bytes of the stream over the start of a buffer.

        Args:
            buffer: Bytes, at least ``size + SLACK_BYTES`` of them; those behind ``size`` may
                change too.
            size: Number of bytes wanted.
        """
        begin = 0
        while begin < size:
            most = PIECE_BYTES if self._next is None else self._left
            piece = min(size - begin, most)
            self._stream.update_into(_ZEROS[:piece], buffer[begin:])
            begin += piece
            if self._next is not None:
                self._left -= piece
                if not self._left:
                    self._stream, self._next = self._next, None
