"""The fast way through GCM gives the bytes of the cipher's single blocks, wherever it begins."""

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from privacy.counter_mode import PIECE_BYTES, SLACK_BYTES, CounterStream
from privacy.errors import UsageError

KEY = bytes(range(32))


def single_blocks(first_block: bytes, size: int) -> bytes:
    """Encrypt each counter block by itself."""
    first = int.from_bytes(first_block, "big")
    blocks = [(first + i) % 2**128 for i in range(-(-size // 16))]
    encryptor = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(b"".join(b.to_bytes(16, "big") for b in blocks))[:size]


def read(stream: CounterStream, size: int) -> bytes:
    buffer = bytearray(size + SLACK_BYTES)
    stream.read_into(memoryview(buffer), size)
    return bytes(buffer[:size])


@given(
    nonce=st.binary(min_size=12, max_size=12),
    counter=st.sampled_from([0, 1, 2, 3, 2**32 - 2]),
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=8),
)
def test_every_way_to_read_gives_the_single_blocks(nonce, counter, sizes):
    first_block = nonce + counter.to_bytes(4, "big")
    stream = CounterStream(KEY, first_block)
    pieces = b"".join(read(stream, size) for size in sizes)
    assert pieces == single_blocks(first_block, sum(sizes))


@pytest.mark.parametrize("counter", [0, 7])
@pytest.mark.parametrize("size", [PIECE_BYTES, 3 * PIECE_BYTES + 45])
def test_long_reads_go_piece_by_piece(counter, size):
    first_block = counter.to_bytes(16, "big")
    assert read(CounterStream(KEY, first_block), size) == single_blocks(first_block, size)


def test_the_buffer_is_untouched_behind_the_slack():
    buffer = bytearray(b"\xaa" * 200)
    CounterStream(KEY, bytes(16)).read_into(memoryview(buffer), 100)
    assert buffer[100 + SLACK_BYTES :] == b"\xaa" * (100 - SLACK_BYTES)


@pytest.mark.parametrize(("key", "block"), [(KEY[:16], bytes(16)), (KEY, bytes(12))])
def test_other_lengths_are_refused(key, block):
    with pytest.raises(UsageError):
        CounterStream(key, block)
