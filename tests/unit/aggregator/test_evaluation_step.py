"""Metrics read from one noised sum: the values, and errors that are what they say."""

import math

import numpy as np
import pytest

from aggregator.evaluation_step import EvaluationStep, read_metrics
from aggregator.secure_rounds import SecureMean
from aggregator.statistics_step import StatisticsStep
from privacy.errors import UsageError
from privacy.metrics import BinnedAuc, MeanMetric, MetricLayout

LAYOUT = MetricLayout((MeanMetric("loss", 4.0), BinnedAuc("auc", 3)))
SUMS = np.array([1000.0, 250.0, 400.0, 300.0, 100.0, 20.0, 60.0, 120.0])


class Rounds:
    """A secure sum without sites."""

    def __init__(self, mean):
        self.mean = mean

    def wait_for_nodes(self):
        return [1, 2, 3]

    def run_round(self, node_ids):
        assert node_ids == [1, 2, 3]
        return self.mean


def test_values_are_means_over_the_counted_records_and_the_area_of_the_counts():
    found = read_metrics(LAYOUT, SUMS, 0.0)
    wins = 60 * (400 + 150) + 120 * (700 + 50) + 20 * 200
    assert found["records"] == 1000
    assert found["loss"] == pytest.approx(1.0)
    assert found["auc"] == pytest.approx(wins / (800 * 200))
    assert found["auc_error"] == found["loss_error"] == 0


def test_errors_are_the_spread_over_fresh_noise():
    random = np.random.default_rng(7)
    std = 4.0
    drawn = [read_metrics(LAYOUT, SUMS + random.normal(0, std, 8), std) for _ in range(3000)]
    stated = read_metrics(LAYOUT, SUMS, std)
    for name in ("records", "loss", "auc"):
        spread = np.std([found[name] for found in drawn])
        assert spread == pytest.approx(stated[f"{name}_error"], rel=0.08), name


@pytest.mark.parametrize("records", [0.0, -5.0])
def test_what_the_noise_drowned_is_left_out(records):
    found = read_metrics(LAYOUT, np.full(8, records), 10.0)
    assert found == {"records": records, "records_error": 10.0}


def test_the_model_that_is_evaluated_stays_what_it_was():
    model_D = np.arange(5, dtype=np.float32)
    mean = SecureMean(SUMS, {}, 1.5)
    made = EvaluationStep(LAYOUT).step(1, model_D, Rounds(mean))
    assert made.values_D is model_D
    assert made.metrics["records_error"] == 1.5
    assert EvaluationStep(LAYOUT).step(1, model_D, Rounds(None)) is None


def test_statistics_become_the_model_with_their_noise():
    made = StatisticsStep().step(1, np.zeros(9, np.float32), Rounds(SecureMean(SUMS, {}, 1.5)))
    assert made.values_D.dtype == np.float32
    assert made.values_D.tolist() == [*SUMS, 1.5]
    assert made.metrics == {"records": 1000.0, "records_error": 1.5}
    assert StatisticsStep().step(1, np.zeros(9, np.float32), Rounds(None)) is None


@pytest.mark.parametrize("step", [EvaluationStep(LAYOUT), StatisticsStep()])
def test_a_state_of_another_job_is_refused(step):
    step.restore(step.state())
    with pytest.raises(UsageError):
        step.restore(b"momentum")


def test_a_mean_is_cut_to_its_bounds():
    found = read_metrics(MetricLayout((MeanMetric("m", 2.0),)), np.array([10.0, 14.0]), 1.0)
    assert found["m"] == 2.0
    assert found["m_error"] == pytest.approx(2 * 0.1 * math.sqrt(2))
