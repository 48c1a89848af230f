"""The labelled streams: counter mode, read in any portions, apart from one another."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from privacy.errors import UsageError
from privacy.keystream import Keystream, Label, blocks_at
from tests.support.encoding_plans import SEED


def test_stream_is_aes_ctr_from_the_labels_block():
    counter = bytes([Label.ROUNDING]) + bytes(15)
    expected = Cipher(algorithms.AES(SEED), modes.CTR(counter)).encryptor().update(bytes(100))
    stream = Keystream(SEED, Label.ROUNDING)
    assert (
        stream.read(7).tobytes() + stream.read(0).tobytes() + stream.read(93).tobytes() == expected
    )


@pytest.mark.parametrize("label", list(Label))
def test_blocks_stand_where_the_stream_has_them(label):
    stream = Keystream(SEED, label).read(16 * 300).tobytes()
    positions = np.array([0, 1, 255, 256, 299, 3])
    assert blocks_at(SEED, label, positions) == [stream[16 * i : 16 * i + 16] for i in positions]


def test_labels_have_streams_of_their_own():
    streams = {Keystream(SEED, label).read(16).tobytes() for label in Label}
    assert len(streams) == len(Label)


def test_seeds_are_checked():
    with pytest.raises(UsageError):
        Keystream(SEED[:16], Label.ROUNDING)
    with pytest.raises(UsageError):
        blocks_at(SEED[:16], Label.ROUNDING, np.array([0]))
