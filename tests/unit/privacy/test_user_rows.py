"""Rows of users against a plain loop, however blocks cut them."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.user_rows import UserRows


def cut(rows, last, cuts):
    """Feed rows in blocks and give all finished users."""
    users, found = UserRows(rows.shape[1]), []
    for begin, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        found.append(users.take(rows[begin:end], last[begin:end]))
    assert not users.is_open
    return np.concatenate(found)


def by_loop(rows, last):
    found, total = [], np.zeros(rows.shape[1])
    for row, ends in zip(rows, last, strict=True):
        total = total + row
        if ends:
            found.append(total)
            total = np.zeros(rows.shape[1])
    return np.array(found).reshape(-1, rows.shape[1])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 108), max_size=8),
    seed=st.integers(0, 2**32 - 1),
)
def test_users_are_summed_to_the_last_bit_however_blocks_cut_them(counts, cuts, seed):
    rng = np.random.default_rng(seed)
    last = np.concatenate([np.arange(count) == count - 1 for count in counts])
    # Magnitudes far apart: another order of summation would give other bits.
    rows = rng.normal(size=(len(last), 3)) * 10.0 ** rng.integers(-12, 12, size=(len(last), 3))
    cuts = sorted(min(place, len(rows)) for place in cuts)
    assert np.array_equal(cut(rows, last, cuts), by_loop(rows, last))


def test_a_pairwise_sum_would_have_depended_on_the_cut():
    """Control: what `np.add.reduceat` gives a user changes with where its rows begin."""
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(64, 50)) * 10.0 ** rng.integers(-12, 12, size=(64, 50))
    whole = np.add.reduceat(rows, [0], axis=0)[0]
    parts = np.add.reduceat(rows, [0, 13], axis=0).sum(axis=0)
    assert not np.array_equal(whole, parts)


def test_a_row_that_is_not_finite_spoils_its_own_user_only():
    rows = np.ones((4, 2))
    rows[0, 0], rows[1, 0] = np.inf, -np.inf
    found = cut(rows, np.array([False, True, False, True]), [1])
    assert np.isnan(found[0, 0])
    assert found[1].tolist() == [2.0, 2.0]


def test_memory_is_that_of_one_user_and_a_block():
    users = UserRows(4)
    for _ in range(1000):
        assert users.take(np.ones((8, 4)), np.zeros(8, np.bool_)).shape == (0, 4)
    assert users.is_open
    assert users.take(np.ones((1, 4)), np.ones(1, np.bool_)).tolist() == [[8001.0] * 4]
    assert not users.is_open
    assert users.take(np.empty((0, 4)), np.empty(0, np.bool_)).shape == (0, 4)
