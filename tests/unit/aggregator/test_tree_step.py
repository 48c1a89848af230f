"""The server step of trees, over the sites' own code in this process."""

import numpy as np
import pytest

from aggregator.secure_rounds import SecureMean
from aggregator.server_step import make_step
from aggregator.tree_growth import base_margin, moved_to
from aggregator.tree_splits import GrowthRules
from aggregator.tree_step import TreeStep
from benchmarks.tree_consortium import InProcessConsortium, run_job
from privacy.errors import PeerError, Reason, UsageError
from tests.support.tree_jobs import DP, TABLES, sites, table, trees_job
from tidegate.tree_layout import CURVATURE_WEIGHT, TreeLayout
from tidegate.tree_model import NO_SPLIT, TreeModel, model_spec

ROWS = table(3000)


def auc(scores, labels):
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    ones = labels > 0.5
    return (ranks[ones].mean() - (ones.sum() + 1) / 2) / (~ones).sum()


@pytest.mark.parametrize("l2", [0.5, 3.0])
def test_levels_without_privacy_grow_xgboosts_trees(l2):
    xgboost = pytest.importorskip("xgboost")
    job = trees_job(f"trees = 4\ndepth = 3\nbins = 16\nlearning_rate = 0.3\nl2 = {l2}")
    grown = run_job(job, sites(ROWS))
    share = ROWS[:, 0].mean()
    assert grown.model.base_margin == pytest.approx(np.log(share / (1 - share)), abs=1e-4)
    settings = {
        "objective": "binary:logistic",
        "tree_method": "exact",
        "max_depth": 3,
        "eta": 0.3,
        "lambda": l2,
        "min_child_weight": 1.0,
        "base_score": float(share),
        "nthread": 1,
    }
    peer = xgboost.train(settings, xgboost.DMatrix(ROWS[:, 1:], ROWS[:, 0]), 4)
    expected = peer.predict(xgboost.DMatrix(ROWS[:, 1:]), output_margin=True)
    assert np.abs(grown.model.predict_margin(ROWS[:, 1:]) - expected).max() < 1e-4


@pytest.mark.parametrize("per_tree", [1, 2, 3])
def test_tables_learn_and_split_on_their_own_features_only(per_tree):
    job = trees_job(
        f'structure = "tables"\ntrees = 12\ndepth = 3\nbins = 16\nfeatures_per_tree = {per_tree}'
    )
    grown = run_job(job, sites(ROWS))
    layout = TreeLayout(job.work)
    for tree in range(12):
        used = set(grown.model.feature_TI[tree].tolist()) - {NO_SPLIT}
        assert used <= set(layout.turn(tree).features)
    assert auc(grown.model.predict_margin(ROWS[:, 1:]), ROWS[:, 0]) > 0.85


def test_a_table_of_all_features_gives_the_trees_that_levels_give():
    levels = run_job(trees_job("trees = 2\ndepth = 3\nbins = 16"), sites(ROWS))
    table_of_all = 'structure = "tables"\nfeatures_per_tree = 3\ntrees = 2\ndepth = 3\nbins = 16'
    tables = run_job(trees_job(table_of_all), sites(ROWS))
    assert np.array_equal(levels.model.feature_TI, tables.model.feature_TI)
    margins = [grown.model.predict_margin(ROWS[:, 1:]) for grown in (levels, tables)]
    assert np.abs(margins[0] - margins[1]).max() < 1e-4


@pytest.mark.parametrize("trees", ["trees = 3\ndepth = 2\nbins = 16", TABLES])
def test_with_privacy_trees_still_rank_and_the_accountant_agrees(trees):
    grown = run_job(trees_job(trees, DP), sites(table(10_000)))
    assert 7.9 < grown.epsilon <= 8.0
    assert auc(grown.model.predict_margin(ROWS[:, 1:]), ROWS[:, 0]) > 0.75
    assert np.isfinite(grown.model.to_vector()).all()


@pytest.mark.parametrize("trees", ["trees = 2\ndepth = 2", TABLES])
@pytest.mark.parametrize("margin", [-2.6, 0.7])
def test_the_first_sum_moves_to_the_base_margin_exactly(trees, margin):
    layout = TreeLayout(trees_job(trees).work)
    random = np.random.default_rng(0)
    ones = random.integers(0, 50, sum(layout.cells_K)).astype(float)
    zeros = random.integers(0, 50, sum(layout.cells_K)).astype(float)

    def sums_at(margin):
        p = 1 / (1 + np.exp(-margin))
        gradients = p * (ones + zeros) - ones
        return np.append(gradients, CURVATURE_WEIGHT * p * (1 - p) * (ones + zeros))

    rules = GrowthRules(0.1, 1.0, 1.0, 0.0, 10.0, 3.0)
    moved, noised = moved_to(margin, sums_at(0.0), rules)
    assert np.allclose(moved, sums_at(margin))
    assert noised.gradient_sd >= 10.0
    assert noised.curvature_sd <= 3.0


@pytest.mark.parametrize("trees", ["trees = 2\ndepth = 2", TABLES])
def test_a_base_margin_stays_finite_whatever_the_noise_says(trees):
    layout = TreeLayout(trees_job(trees).work)
    for value in (0.0, -1e9, 1e9):
        sums = np.full(layout.spec.length, value)
        assert abs(base_margin(layout, layout.turn(0), sums)) < 7


class Rounds:
    def __init__(self, values):
        self.values = values

    def wait_for_nodes(self):
        return [1]

    def run_round(self, node_ids, instruction=None):
        return None if self.values is None else SecureMean(self.values, {}, 0.0)


def test_a_round_that_was_given_up_gives_no_model_and_nan_is_refused():
    job = trees_job()
    step = TreeStep(job.work)
    model = TreeModel.empty(job.work).to_vector()
    assert step.step(1, model, Rounds(None)) is None
    with pytest.raises(PeerError) as caught:
        step.step(1, model, Rounds(np.full(TreeLayout(job.work).spec.length, np.nan)))
    assert caught.value.reason is Reason.NOT_FINITE


def test_nothing_is_kept_beside_the_model_version():
    step = make_step(trees_job(), model_spec(trees_job().work), 4)
    assert step.state() == b""
    step.restore(b"")
    with pytest.raises(UsageError):
        step.restore(b"m_t")


def test_a_resumed_job_grows_the_same_trees():
    job = trees_job("trees = 2\ndepth = 3\nbins = 16")
    straight = run_job(job, sites(ROWS)).model.to_vector()
    model = TreeModel.empty(job.work).to_vector()
    for version in range(job.rounds):  # a fresh aggregator and fresh sites at every version
        consortium = InProcessConsortium(job, sites(ROWS))
        consortium.version, consortium.model_D = version, model
        step = make_step(job, model_spec(job.work), 4)
        model = step.step(version + 1, model, consortium).values_D
    assert np.array_equal(model, straight)
