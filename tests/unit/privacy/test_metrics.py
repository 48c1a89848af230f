"""Metrics read from noised sums: exact without noise, steady with it, never clipped into bias."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import UsageError
from privacy.metrics import (
    BinnedAuc,
    MeanMetric,
    MetricAverager,
    MetricLayout,
    auc_from_counts,
    summarise,
)


def naive_auc(negatives, positives):
    wins = 0.0
    for i, p in enumerate(positives):
        for j, n in enumerate(negatives):
            wins += p * n * (1.0 if i > j else 0.5 if i == j else 0.0)
    return wins / (sum(negatives) * sum(positives))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=20))
def test_auc_equals_the_pairwise_definition(counts):
    negatives = np.array([n for n, _ in counts], float)
    positives = np.array([p for _, p in counts], float)
    if negatives.sum() == 0 or positives.sum() == 0:
        assert math.isnan(auc_from_counts(negatives, positives))
    else:
        expected = naive_auc(negatives, positives)
        assert auc_from_counts(negatives, positives) == pytest.approx(expected, abs=1e-12)


def test_layout_scales_blocks_so_that_a_record_stays_within_the_norm():
    layout = MetricLayout((MeanMetric("loss", 4.0), BinnedAuc("auc", 3)))
    record = np.array([1.0, 0, 0, 0, 0, 0, 1.0]) * layout.coordinate_scale(0.5)
    assert np.linalg.norm(record) == pytest.approx(0.5)
    assert layout.length == 7


def test_summaries_read_loss_and_auc_from_sums():
    layout = MetricLayout((MeanMetric("loss", 4.0), BinnedAuc("auc", 2)))
    sums = np.array([5.0, 6.0, 2.0, 0.0, 2.0])  # loss/4 summed; negatives 6, 2; positives 0, 2
    values = summarise(layout, sums, expected_records=99.0)
    assert values["loss"] == pytest.approx(5.0 / 10.0 * 4.0)
    assert values["auc"] == pytest.approx(naive_auc([6, 2], [0, 2]))


def test_a_metric_without_signal_is_left_out_not_invented():
    layout = MetricLayout((BinnedAuc("auc", 2),))
    assert summarise(layout, np.array([-1.0, 0.0, 1.0, 2.0]), 10.0) == {}


def test_averaging_beats_the_noise_of_one_round():
    rng = np.random.default_rng(7)
    layout = MetricLayout((BinnedAuc("auc", 10),))
    negatives, positives = np.linspace(100, 10, 10), np.linspace(1, 10, 10)
    exact = naive_auc(negatives, positives)
    averager = MetricAverager(layout, half_life_rounds=50)
    assert averager.values(1.0) == {}
    for _ in range(200):
        averager.add(np.concatenate([negatives, positives]) + rng.normal(0, 5, 20))
    assert averager.values(1.0)["auc"] == pytest.approx(exact, abs=0.03)


def test_names_must_differ():
    with pytest.raises(UsageError, match="differ"):
        MetricLayout((MeanMetric("x", 1.0), BinnedAuc("x", 2)))
