"""The sampler's table and its exact decisions; distributions are tested in tests/statistical."""

import math
from bisect import bisect_left
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import ive

from privacy import cdf_table, noise
from privacy.errors import UsageError
from privacy.keystream import Label, blocks_at
from privacy.noise import add_skellam_noise, skellam_table, without_noise
from privacy.quantise import QuantisedDelta
from privacy.surplus import NoiseShare
from tests.support.encoding_plans import SEED

TOP = (1 << 128) - 1


def masses(table):
    bounds = [-1] + [table.bound(row) for row in range(2 * table.half_width + 1)]
    return [high - low for low, high in pairwise(bounds)]


@pytest.mark.parametrize("variance", [1, 2, 37, 1000, 90_000])
def test_table_is_the_skellam_distribution(variance):
    table = skellam_table(variance)
    exact = masses(table)
    assert sum(exact) == TOP + 1
    assert exact == exact[::-1]
    assert min(exact) >= 0
    values = np.arange(-table.half_width, table.half_width + 1)
    pmf = np.array([float(mass) for mass in exact]) * 2.0**-128
    seen = pmf > 1e-30
    # ive itself is good to about 1e-9 here.
    assert np.allclose(pmf[seen], ive(np.abs(values[seen]), variance), rtol=1e-8, atol=0)
    assert math.fsum(pmf * values.astype(float) ** 2) == pytest.approx(variance, rel=1e-12)


@pytest.mark.parametrize("variance", [1, 37, 1000])
def test_table_does_not_depend_on_where_the_recurrence_starts(variance, monkeypatch):
    reference = skellam_table(variance)
    monkeypatch.setattr(noise, "START_BITS", 330)
    finer = skellam_table.__wrapped__(variance)
    rows = range(2 * reference.half_width + 1)
    assert max(abs(reference.bound(row) - finer.bound(row)) for row in rows) <= 1


def test_total_variation_covers_rounding_and_tails():
    table = skellam_table(1000)
    rows = 2 * table.half_width + 1
    assert rows * 2.0**-128 <= table.tv <= 2 * rows * 2.0**-128
    # The tails that the table cuts are below one unit: the outermost rows are tiny themselves.
    assert masses(table)[0] < 16


@pytest.mark.parametrize("variance", [1, 90_000])
def test_draws_at_every_border_are_decided_by_the_whole_table(variance):
    """First words on, just above and just below each bound: most of them ties."""
    table = skellam_table(variance)
    rows = range(2 * table.half_width + 1)
    heads = {
        min(max((table.bound(row) >> 96) + step, 0), 2**32 - 1)
        for row in rows
        for step in (-1, 0, 1)
    }
    first = np.array(sorted(heads), dtype=np.uint32)
    found, tied = table._rows(first)
    blocks = blocks_at(SEED, Label.NOISE_TIE, np.arange(first.size))
    found[tied] = table._resolve(first[tied], [blocks[i] for i in tied])
    for row, head, block in zip(found, first, blocks, strict=True):
        uniform = (int(head) << 96) | int.from_bytes(block[:12], "little")
        assert row == bisect_left(rows, uniform, key=table.bound)


def test_ties_read_the_block_of_their_position(monkeypatch):
    """A tie late in a long draw must use bits that no other sample uses."""
    table = skellam_table(1)
    tie = int(table.bound(table.half_width) >> 96)

    class AllTies:
        def __init__(self, *_):
            pass

        def read(self, length):
            return np.full(length // 4, tie, dtype="<u4").view(np.uint8)

    monkeypatch.setattr(cdf_table, "Keystream", AllTies)
    monkeypatch.setattr(cdf_table, "_CHUNK", 7)
    samples = table.sample(SEED, 20)
    blocks = blocks_at(SEED, Label.NOISE_TIE, np.arange(20))
    low = table.bound(table.half_width) % 2**96
    expected = [int(int.from_bytes(block[:12], "little") > low) for block in blocks]
    assert samples.tolist() == expected
    assert set(expected) == {0, 1}


def test_samples_do_not_depend_on_chunks_or_count():
    table = skellam_table(10_000)
    long = table.sample(SEED, cdf_table._CHUNK + 100)
    assert np.array_equal(table.sample(SEED, 1000), long[:1000])
    assert table.sample(SEED, 0).size == 0


def test_another_seed_gives_other_noise():
    table = skellam_table(10_000)
    one, two = table.sample(SEED, 1000), table.sample(bytes(32), 1000)
    assert np.count_nonzero(one == two) < 50


@pytest.mark.parametrize("variance", [0, -1, 2**34 + 1, 1.0, True])
def test_variances_that_no_table_holds_are_refused(variance):
    with pytest.raises(UsageError):
        skellam_table.__wrapped__(variance)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33), "0" * 32, bytearray(32)])
def test_seeds_of_another_length_are_refused_and_not_shown(seed):
    with pytest.raises(UsageError) as caught:
        skellam_table(1).sample(seed, 1)
    assert not seed or repr(seed) not in str(caught.value)


def test_noise_is_added_and_the_input_is_left_alone():
    values = np.arange(5, dtype=np.int64) * 1000
    noised = add_skellam_noise(QuantisedDelta(values, 1.0), NoiseShare(100), SEED)
    assert np.array_equal(noised.vector_D - values, skellam_table(100).sample(SEED, 5))
    assert values.tolist() == [0, 1000, 2000, 3000, 4000]


def test_an_update_made_for_noise_cannot_leave_without():
    with pytest.raises(UsageError, match="noised"):
        without_noise(QuantisedDelta(np.zeros(3, np.int64), 10.0), 20)


@pytest.mark.parametrize("value", [128, -129, -128, 2**40])
def test_an_unnoised_update_must_fit_the_ring(value):
    with pytest.raises(UsageError, match="ring"):
        without_noise(QuantisedDelta(np.array([value]), math.inf), 8)


def test_an_unnoised_update_passes_unchanged():
    update = QuantisedDelta(np.array([-127, 0, 127]), math.inf)
    assert without_noise(update, 8).vector_D.tolist() == [-127, 0, 127]
