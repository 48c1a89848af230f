"""The combiner: exact small cases, permutations, even counts, and what a minority can move."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator import combine as combine_module
from aggregator.cohort import draw_groups
from aggregator.combine import combine
from privacy.errors import UsageError
from tidegate.jobfile import Combine, Robust


def median(groups):
    return Robust(groups, Combine.MEDIAN)


def trimmed(groups, trim):
    return Robust(groups, Combine.TRIMMED_MEAN, trim)


def rows(*values):
    return [np.array(value, dtype=np.float64) for value in values]


def test_small_cases_by_hand():
    three = rows([1, 9, -5], [2, 0, 100], [3, 4, -7])
    assert combine(three, median(3)).tolist() == [2, 4, -5]
    assert combine(three, trimmed(3, 1)).tolist() == [2, 4, -5]
    four = rows([1, 0], [2, 0], [10, 4], [1e9, 4])
    assert combine(four, median(4)).tolist() == [6, 2]  # the mean of the two in the middle
    five = rows([1], [2], [3], [7], [-1e9])
    assert combine(five, median(5)).tolist() == [2]
    assert combine(five, trimmed(5, 1)).tolist() == [2]
    assert combine(rows([0], [1], [2], [3], [9], [10]), trimmed(6, 2)).tolist() == [2.5]


@pytest.mark.parametrize("rule", [median(4), trimmed(4, 1)])
def test_the_order_of_the_groups_does_not_matter(rule):
    rng = np.random.default_rng(5)
    means = [rng.normal(size=7) for _ in range(4)]
    expected = combine(means, rule)
    for order in itertools.permutations(means):
        np.testing.assert_array_equal(combine(list(order), rule), expected)


def test_long_vectors_are_combined_part_by_part(monkeypatch):
    rng = np.random.default_rng(6)
    means = [rng.normal(size=1001) for _ in range(5)]
    whole = combine(means, trimmed(5, 1))
    monkeypatch.setattr(combine_module, "_CHUNK", 100)
    np.testing.assert_array_equal(combine(means, trimmed(5, 1)), whole)
    np.testing.assert_array_equal(combine(means, median(5)), np.median(np.stack(means), axis=0))


@pytest.mark.parametrize("rule", [median(5), trimmed(5, 2)])
def test_too_few_groups_are_refused(rule):
    least = rule.least_groups
    with pytest.raises(UsageError, match=f"{least - 1} groups opened, {least} are needed"):
        combine(rows(*([[1.0]] * (least - 1))), rule)


VALUES = st.floats(-1e6, 1e6)


@given(
    st.integers(1, 4).flatmap(
        lambda bad: st.tuples(
            st.lists(VALUES, min_size=bad + 1, max_size=6),
            st.lists(st.floats(-1e300, 1e300), min_size=bad, max_size=bad),
        )
    )
)
def test_a_minority_moves_nothing_beyond_what_the_honest_gave(sides):
    honest, poisoned = sides
    groups = len(honest) + len(poisoned)
    if groups < 3:
        return
    means = rows(*[[value] for value in (*honest, *poisoned)])
    slack = 1e-9 * max(1.0, *map(abs, honest))  # of the mean of the kept
    rules = [trimmed(groups, len(poisoned))]
    if median(groups).tolerated >= len(poisoned):
        rules.append(median(groups))
    for rule in rules:
        combined = combine(means, rule)[0]
        assert min(honest) - slack <= combined <= max(honest) + slack


def test_what_is_tolerated():
    assert [median(groups).tolerated for groups in (3, 4, 5, 6, 7)] == [1, 1, 2, 2, 3]
    assert trimmed(7, 2).tolerated == 2
    assert [trimmed(9, trim).least_groups for trim in (1, 2, 3, 4)] == [3, 5, 7, 9]


SITES = [bytes([i]) * 32 for i in range(1, 33)]


@given(
    st.sets(st.sampled_from(SITES), min_size=6),
    st.integers(1, 6),
    st.binary(min_size=32, max_size=32),
)
def test_groups_part_the_cohort_evenly(sites, count, seed):
    groups = draw_groups(sites, count, seed, 1)
    assert len(groups) == count
    assert sorted(site for group in groups for site in group) == sorted(sites)
    sizes = [len(group) for group in groups]
    assert max(sizes) - min(sizes) <= 1
    assert all(group == tuple(sorted(group)) for group in groups)
    assert groups == draw_groups(sorted(sites, reverse=True), count, seed, 1)


def test_each_draw_and_each_seed_gives_other_groups():
    drawn = {
        draw_groups(SITES[:15], 3, seed, draw) for seed in (bytes(32), b"s" * 32) for draw in (1, 2)
    }
    assert len(drawn) == 4


def test_a_site_comes_into_each_group_equally_often():
    counts = np.zeros(3)
    for draw in range(3000):
        groups = draw_groups(SITES[:15], 3, b"q" * 32, draw)
        counts[[SITES[0] in group for group in groups].index(True)] += 1
    # Chi-square with 2 degrees of freedom: 13.8 is exceeded once in 1000 seeds; this one is fixed.
    assert ((counts - 1000) ** 2 / 1000).sum() < 13.8
