"""Poisson sampling with secret coins."""

from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.errors import UsageError
from privacy.sampling import poisson_sample

SEED = bytes(range(32))


def reference(n_rows, rate, seed):
    """Compare coin by coin in exact fractions, as the docstring says."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(b"\x20" + bytes(15))).encryptor()
    raw = stream.update(bytes(8 * n_rows))
    coins = [int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(n_rows)]
    return [i for i, coin in enumerate(coins) if coin < Fraction(rate) * 2**64 // 1]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 300),
    st.floats(0, 1, exclude_min=True, allow_subnormal=False),
    st.binary(min_size=32, max_size=32),
)
def test_it_is_the_documented_stream(n_rows, rate, seed):
    assert poisson_sample(n_rows, rate, seed).tolist() == reference(n_rows, rate, seed)


def test_blocks_join_without_a_seam():
    rate, n_rows = 0.001, (1 << 17) + 5
    assert poisson_sample(n_rows, rate, SEED).tolist() == reference(n_rows, rate, SEED)


def test_a_longer_data_set_only_adds_records():
    # Each coin belongs to its record: one record more or less moves no other's.
    short, long = poisson_sample(5000, 0.05, SEED), poisson_sample(5001, 0.05, SEED)
    assert long[long < 5000].tolist() == short.tolist()


def test_sample_sizes_are_binomial():
    # 400 draws of Binomial(2000, 0.1): the mean has standard deviation 0.67, the bound is 5 of
    # them (false alarm 6e-7); the seeds are fixed, so it never changes.
    sizes = [len(poisson_sample(2000, 0.1, i.to_bytes(32, "big"))) for i in range(400)]
    assert abs(np.mean(sizes) - 200) < 5 * np.sqrt(2000 * 0.09 / 400)
    assert 0.75 < np.var(sizes) / (2000 * 0.09) < 1.25


def test_edges():
    assert poisson_sample(0, 0.5, SEED).tolist() == []
    assert poisson_sample(4, 1.0, SEED).tolist() == [0, 1, 2, 3]
    assert poisson_sample(1000, 2.0**-64, SEED).tolist() == []
    assert poisson_sample(10, 0.5, SEED).dtype == np.int64


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, float("nan"), float("inf")])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(UsageError, match="sampling rate"):
        poisson_sample(10, rate, SEED)


def test_a_short_seed_and_a_negative_size_are_refused():
    with pytest.raises(UsageError):
        poisson_sample(10, 0.5, bytes(16))
    with pytest.raises(UsageError):
        poisson_sample(-1, 0.5, SEED)
