import numpy as np
import pytest

from aggregator.tree_splits import (
    GrowthRules,
    NodeSums,
    Side,
    best_split,
    leaf_value,
    reconciled,
    whole,
)

EXACT = GrowthRules(1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


def node(gradient, curvature, cells=None):
    gradient = np.array(gradient, float)
    cells = np.ones_like(gradient) if cells is None else np.array(cells, float)
    return NodeSums(gradient, np.array(curvature, float), cells)


def noisy(sd, **changes):
    return GrowthRules(**{**vars(EXACT), "gradient_sd": sd, "curvature_sd": sd / 3.25, **changes})


def slow_best(sums, rules):
    """Try every split with XGBoost's formula."""
    best = (rules.min_gain, None)

    def term(g, h):
        return g**2 / (h + rules.l2)

    for row in range(len(sums.gradient_FB)):
        g, h = sums.gradient_FB[row], sums.curvature_FB[row]
        for last in range(len(g) - 1):
            for missing_left in (False, True):
                left = np.arange(len(g)) <= last
                left[-1] = missing_left
                sides = [(g[s].sum(), h[s].sum()) for s in (left, ~left)]
                if min(h for _, h in sides) < max(rules.min_weight, 1e-6):
                    continue
                gain = sum(term(*side) for side in sides) - term(g.sum(), h.sum())
                if gain > best[0] + 1e-9:
                    best = (gain, (row, last, missing_left))
    return best[0]


@pytest.mark.parametrize("seed", range(20))
def test_without_noise_the_best_split_is_xgboosts(seed):
    random = np.random.default_rng(seed)
    records = random.integers(0, [5, 5, 5], (60, 3))
    g, h = random.normal(0, 1, 60), random.uniform(0, 0.25, 60)
    sums = node(
        [np.bincount(records[:, f], g, 5) for f in range(3)],
        [np.bincount(records[:, f], h, 5) for f in range(3)],
    )
    found = best_split(sums, EXACT)
    expected = slow_best(sums, EXACT)
    if found is None:
        assert expected == 0
        return
    gain = sum(side.gradient**2 / (side.curvature + 1) for side in (found.left, found.right))
    root = whole(sums)
    assert gain - root.gradient**2 / (root.curvature + 1) == pytest.approx(expected)


def test_missing_values_alone_may_make_a_side():
    sums = node([[0.0, 0.0, 0.0, 50.0]], [[20.0, 20.0, 20.0, 20.0]])
    split = best_split(sums, EXACT)
    assert (split.last_left_bin, split.missing_left) == (2, False)
    assert (split.left.gradient, split.right.gradient) == (0.0, 50.0)


def test_bins_that_a_feature_has_not_make_no_side():
    sums = node([[5.0, 0.0, 0.0, 0.0]], [[9.0, 0.0, 0.0, 0.0]], [[1, 0, 0, 1]])
    assert best_split(sums, GrowthRules(1.0, 0.0, 0.0, 0.0, 0.0, 0.0)) is None


def test_small_sides_and_small_gains_are_refused():
    sums = node([[-9.0, 9.0, 0.0]], [[9.0, 9.0, 0.0]])
    assert best_split(sums, EXACT) is not None
    assert best_split(sums, GrowthRules(1.0, 1.0, 10.0, 0.0, 0.0, 0.0)) is None
    assert best_split(sums, GrowthRules(1.0, 1.0, 1.0, 17.0, 0.0, 0.0)) is None


def test_noise_alone_is_seldom_split_on():
    random = np.random.default_rng(0)
    rules = noisy(20.0, min_weight=0.0)
    made = 0
    for _ in range(300):
        sums = node(random.normal(0, 20, (4, 17)), np.full((4, 17), 100.0))
        made += best_split(reconciled(sums), rules) is not None
    assert made < 60
    clear = node([[-2000.0] * 8 + [2000.0] * 8 + [0.0]], [[100.0] * 17])
    split = best_split(clear, rules)
    assert split.last_left_bin == 7


def test_noise_shrinks_a_value_more_the_less_the_node_weighs():
    exact = leaf_value(Side(-10.0, 9.0, 1.0), EXACT)
    assert exact == pytest.approx(1.0)
    light = leaf_value(Side(-10.0, 9.0, 4.0), noisy(20.0))
    heavy = leaf_value(Side(-1000.0, 900.0, 4.0), noisy(20.0))
    assert 0 < light < 0.2
    assert heavy == pytest.approx(1000 / 901, rel=0.01)


def test_a_noised_negative_weight_gives_a_finite_small_value():
    value = leaf_value(Side(-50.0, -30.0, 16.0), noisy(20.0))
    assert 0 < value < 0.5


def test_histograms_of_one_node_are_brought_to_the_same_better_total():
    random = np.random.default_rng(1)
    errors, alone = [], []
    for _ in range(400):
        cells = np.zeros((3, 11))
        for row, width in enumerate((10, 4, 10)):
            cells[row, :width] = 1
            cells[row, -1] = 1
        noise = random.normal(0, 1, (2, 3, 11)) * (cells > 0)
        sums = reconciled(NodeSums(noise[0], noise[1] + cells, cells))
        totals = sums.gradient_FB.sum(axis=1)
        assert np.allclose(totals, totals[0])
        assert (sums.gradient_FB[cells == 0] == 0).all()
        errors.append(totals[0])
        alone.append(noise[0][0].sum())
        assert whole(sums).cells == pytest.approx(1 / (1 / 11 + 1 / 5 + 1 / 11))
    assert np.var(errors) == pytest.approx(whole(sums).cells, rel=0.25)
    assert np.var(errors) < 0.5 * np.var(alone)
